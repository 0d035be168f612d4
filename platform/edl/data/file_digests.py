"""Notices a file that was replaced or changed since the records of its data set were counted.

A run keeps some bytes for each data set: a digest for each source, or for each of 64 groups of neighbouring sources.
The digest of a file is made of its size and of samples of its content, so a copy on another volume or in another bucket
has the same one, and a file that was written again with as many records has another. Modification times take no part:
they differ among copies and nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

from edl.api.errors import BadInputError
from edl.data.data_files import read_error
from edl.data.remote_files import RemotePath

SourceDigests: TypeAlias = Mapping[str, Callable[[], bytes]]
"""For each source by its name, in the order of the reader, what computes its digest. No records are counted for it."""
MAX_GROUPS = 64
"""Of the sources of a data set. Their digests are sent with each lease, so there must not be many."""
_GROUP_DIGITS = 8
"""Hexadecimal digits of a group: 1 of 4 billion changes is not noticed."""
_SAMPLES, _SAMPLE_BYTES = 8, 8 << 10
"""A file of at most their product is read as a whole."""
_MAX_IMAGES, _MAX_REMOTE_IMAGES = 4096, 64
"""Of a folder whose size is asked for. Each remote one takes a request."""
_THREADS = 8
"""Files of a network file system take milliseconds each."""


def digest_file(file: Path) -> bytes:
    """A digest of the size, and of the beginning, the end and parts between them.

    Of a remote file it is that of the size and of the checksum that an object store has of its own; nothing is read.

    Raises:
        EdlError: the file cannot be read.
    """
    digest = blake2b(digest_size=16)
    if isinstance(file, RemotePath):
        digest.update(f"{file.stat().st_size} {file.file.checksum()}".encode())
        return digest.digest()
    try:
        with file.open("rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            digest.update(str(size).encode())
            for start in _sample_places(size):
                stream.seek(start)
                digest.update(stream.read(_SAMPLE_BYTES))
    except OSError as error:
        raise read_error(file, error) from error
    return digest.digest()


def digest_folder(folder: Path, names: Sequence[str], *others: bytes) -> bytes:
    """A digest of the names of a folder's images, of the sizes of up to 4,096 of them, and of ``others``."""
    digest = blake2b(digest_size=16)
    for name in names:
        digest.update(f"{name}\n".encode(errors="surrogateescape"))
    most = _MAX_REMOTE_IMAGES if isinstance(folder, RemotePath) else _MAX_IMAGES
    for name in names[:: -(-len(names) // most) or 1]:
        try:
            size = (folder / name).stat().st_size
        except FileNotFoundError:  # the records of annotations without an image are corrupt
            size = -1
        except OSError as error:
            raise read_error(folder / name, error) from error
        digest.update(f"{size}\n".encode())
    for other in others:
        digest.update(other)
    return digest.digest()


def source_digests(reader: Any) -> SourceDigests:
    """For each source of a reader, what computes its digest; none for readers of databases and of users."""
    method = getattr(reader, "source_digests", None)
    digests: SourceDigests = {} if method is None else method()
    return digests


def digest_sources(reader: Any) -> str:
    """The digests of all sources of a reader, in one text; empty if it has none."""
    digests = list(source_digests(reader).values())
    return "".join(_digest_group(digests[start:end]) for start, end in _groups(len(digests)))


class FileCheck:
    """Compares the files that a process reads with the digests of a run.

    Args:
        open_reader: opens the reader. It is called only if there are digests.
    """

    def __init__(self, open_reader: Callable[[], Any]) -> None:
        self._open_reader = open_reader
        self._digests: SourceDigests | None = None
        self._checked: set[tuple[str, str]] = set()

    def check(self, expected: str, source: str = "") -> None:
        """Check the files of a source and its group, or all files; each is read once.

        Raises:
            BadInputError: a file is another one.
        """
        if not expected or (expected, source) in self._checked:
            return  # also of an older run, and of a reader without digests
        if self._digests is None:
            self._digests = source_digests(self._open_reader())
        # Names take no part, only the order: a copy in another folder or bucket is the same data.
        names = list(self._digests)
        groups = _groups(len(names))
        if len(expected) != _GROUP_DIGITS * len(groups):
            raise _changed_error(f"it has {len(names)} sources now, and had another number", "data")
        for number, (start, end) in enumerate(groups):
            wanted = expected[number * _GROUP_DIGITS :][:_GROUP_DIGITS]
            chosen = names[start:end]
            if not source or source in chosen:
                if _digest_group([self._digests[name] for name in chosen]) != wanted:
                    where = chosen[0] if len(chosen) == 1 else f"one of {chosen[0]} to {chosen[-1]}"
                    raise _changed_error("a file has other content than when its records were counted", where)
                self._checked |= {(expected, name) for name in chosen}
        self._checked.add((expected, source))


def _changed_error(what: str, where: str) -> BadInputError:
    return BadInputError(
        f"the data has changed since this run started: {what}",
        where=where,
        hint="restore the files, or start a new run; write new files beside the old ones instead of over them",
    )


def _digest_group(digests: Sequence[Callable[[], bytes]]) -> str:
    if len(digests) <= _THREADS:
        values = [digest() for digest in digests]
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            values = list(pool.map(lambda digest: digest(), digests))
    return blake2b(b"".join(values), digest_size=_GROUP_DIGITS // 2).hexdigest()


def _groups(sources: int) -> list[tuple[int, int]]:
    """First and last of the sources of each group."""
    count = min(MAX_GROUPS, sources)
    return [(number * sources // count, (number + 1) * sources // count) for number in range(count)]


def _sample_places(size: int) -> list[int]:
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return list(range(0, size, _SAMPLE_BYTES))
    return [number * (size - _SAMPLE_BYTES) // (_SAMPLES - 1) for number in range(_SAMPLES)]
