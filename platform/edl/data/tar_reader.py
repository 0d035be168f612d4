"""Reads tar files of WebDataset. A record is a sample: the members of a tar file that differ in their extensions only.

A record is a mapping from extensions to ``bytes``, and ``__key__`` is the name without an extension. One pass over the
headers of a file notes where each member is, so nothing is unpacked. The index stays in memory, or is also saved beside
the file.
"""

from __future__ import annotations

import re
import tarfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edl.api.errors import BadInputError
from edl.data.data_files import (
    FileVersion,
    changed_error,
    find_source,
    load_saved_index,
    log_unusable_index,
    read_error,
    save_index,
    stream_version,
)
from edl.data.file_digests import SourceDigests, digest_file
from edl.data.reader import OBJECT_BYTES, BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source
from edl.data.reader_factory import ReaderOptions
from edl.data.record_columns import ColumnRecords
from edl.data.remote_files import is_remote

KEY_COLUMN = "__key__"
"""Column of the samples' names."""
_KIND = {"version": 1, "format": "webdataset"}
_BLOCK_BYTES = 1 << 18
_HEADER_BYTES = tarfile.BLOCKSIZE
# The part after the first dot of the file's name, as WebDataset has it.
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.S)


@dataclass
class TarIndex:
    """Where the members of a file's samples are.

    Args:
        version: of the file.
        keys: names of the samples.
        first_members: number of each sample's first member, and at the end the number of members.
        extensions: of each member.
        offsets: byte offset of each member's content.
        sizes: bytes of each member's content.
    """

    version: FileVersion
    keys: list[str] = field(default_factory=list)
    first_members: list[int] = field(default_factory=lambda: [0])
    extensions: list[str] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, key: str, extension: str, offset: int, size: int) -> None:
        """Note a member. It belongs to the sample of the member before it if they have the same key."""
        if not self.keys or self.keys[-1] != key:
            self.keys.append(key)
            self.first_members.append(len(self.extensions))
        self.extensions.append(extension)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.first_members[-1] = len(self.extensions)

    def members(self, sample: int) -> range:
        """Numbers of the members of a sample."""
        return range(self.first_members[sample], self.first_members[sample + 1])

    def offset(self, sample: int) -> int:
        """Byte offset of a sample's first content."""
        return self.offsets[self.first_members[sample]]

    def bytes(self, sample: int) -> int:
        """Bytes of a sample's members."""
        members = self.members(sample)
        return sum(self.sizes[members.start : members.stop])

    def to_json(self) -> dict[str, object]:
        """What ``from_json`` reads."""
        return {
            "keys": self.keys,
            "first_members": self.first_members,
            "extensions": self.extensions,
            "offsets": self.offsets.tolist(),
            "sizes": self.sizes.tolist(),
        }

    @staticmethod
    def from_json(saved: Mapping[str, Any], version: FileVersion) -> TarIndex:
        """A saved index.

        Raises:
            ValueError: it cannot be true.
        """
        firsts, extensions = list(saved["first_members"]), list(saved["extensions"])
        offsets, sizes = array("Q", saved["offsets"]), array("Q", saved["sizes"])
        keys = list(saved["keys"])
        if not (
            len(firsts) == len(keys) + 1
            and (firsts[0], firsts[-1]) == (0, len(extensions))
            and all(first < last for first, last in pairwise(firsts))
            and len(extensions) == len(offsets) == len(sizes)
            and all(offset + size <= version[0] for offset, size in zip(offsets, sizes, strict=True))
            and all(isinstance(each, str) for each in (*keys, *extensions))
        ):
            raise ValueError("its members do not fit")
        return TarIndex(version, keys, firsts, extensions, offsets, sizes)


class TarReader:
    """A data set of tar files. No file stays open between calls.

    Args:
        files: the files.
        columns: the extensions to read, in this order; all by default.
        save_index: also save the index of each file beside it.
    """

    def __init__(self, files: Sequence[Path], columns: Sequence[str] = (), *, save_index: bool = False) -> None:
        self._files = {str(file): file for file in files}
        self._columns = tuple(columns)
        self._save_index = save_index

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> TarReader:
        """A reader with the options of ``data.reader``: ``columns`` and ``index``."""
        chosen = ReaderOptions(options, allowed_names=("columns", "index"))
        save_index = chosen.get_choice("index", ("memory", "file")) == "file"
        return cls(files, chosen.get_names("columns"), save_index=save_index)

    @cached_property
    def metadata(self) -> Metadata:
        """The columns, all of which are bytes."""
        return Metadata("webdataset", self._names, dict.fromkeys(self._names, "string"))

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and number of samples of each file."""
        _ = self._names  # refuses columns that no sample has
        return tuple(Source(name, len(index.keys)) for name, index in self._indexes.items())

    def source_digests(self) -> SourceDigests:
        """What finds out whether each file was written again; see ``file_digests``."""
        return {name: partial(digest_file, path) for name, path in self._files.items()}

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Any]:
        """Samples ``[start, end)`` of one file; see ``Reader.read``. A sample that lacks a column is corrupt."""
        path, index = find_source(self._files, source), self._indexes[source]
        if not 0 <= start <= end <= len(index.keys):
            raise BadInputError(
                f"samples {start} to {end} were requested, the file has {len(index.keys)}", where=source
            )
        cells: dict[str, list[bytes]] = {name: [] for name in self._names}
        try:
            with path.open("rb", buffering=0) as stream:
                if stream_version(stream) != index.version:
                    raise changed_error(path)
                for sample in range(start, end):
                    self._read_sample(stream, source, sample, cells, on_corrupt)
        except OSError as error:
            raise read_error(path, error) from error
        return ColumnRecords({name: np.array(column, object) for name, column in cells.items()})

    def blocks(self, source: str) -> BlockSizes:
        """Blocks of about 256 KiB of one file."""
        find_source(self._files, source)
        index = self._indexes[source]
        records: list[int] = []
        filled, total = _BLOCK_BYTES, 0
        for sample in range(len(index.keys)):
            if filled >= _BLOCK_BYTES:
                records.append(0)
                filled = 0
            records[-1] += 1
            size = index.bytes(sample) + OBJECT_BYTES * (len(self._names) + 1)
            filled, total = filled + size, total + size
        return BlockSizes(records, total)

    def _read_sample(
        self,
        stream: BinaryIO,
        source: str,
        sample: int,
        cells: Mapping[str, list[bytes]],
        on_corrupt: OnCorrupt | None,
    ) -> None:
        index = self._indexes[source]
        members = index.members(sample)
        places = {index.extensions[member]: member for member in members}
        missing = [name for name in self._names if name != KEY_COLUMN and name not in places]
        if missing or len(places) != len(members):
            what = f"no member .{missing[0]}" if missing else "several members of one extension"
            reason = f"sample {index.keys[sample]} has {what}"
            corrupt = CorruptRange(source, sample, sample + 1, None, index.offset(sample), reason)
            if on_corrupt is None:
                raise CorruptRecordError(corrupt)
            on_corrupt(corrupt)
            return
        for name, column in cells.items():
            if name == KEY_COLUMN:
                column.append(index.keys[sample].encode("utf-8", "surrogateescape"))
                continue
            size = index.sizes[places[name]]
            stream.seek(index.offsets[places[name]])
            content = stream.read(size)
            while len(content) < size:
                more = stream.read(size - len(content))
                if not more:
                    raise changed_error(self._files[source], "it became shorter")
                content += more
            column.append(content)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        extensions = {extension for index in self._indexes.values() for extension in index.extensions}
        if not self._columns:
            return (KEY_COLUMN, *sorted(extensions))
        missing = [name for name in self._columns if name not in extensions and name != KEY_COLUMN]
        if missing and extensions:
            raise BadInputError(
                f"no sample has a member with the extension {', '.join(missing)}",
                where="data.reader.columns",
                hint=f"the files have {', '.join(sorted(extensions))}",
            )
        return self._columns

    @cached_property
    def _indexes(self) -> Mapping[str, TarIndex]:
        return {name: self._load_index(path) for name, path in self._files.items()}

    def _load_index(self, path: Path) -> TarIndex:
        try:
            with path.open("rb") as stream:
                version = stream_version(stream)
                saved = _saved_index(path, version)
                index = saved or scan_members(path, stream, version)
        except OSError as error:
            raise read_error(path, error) from error
        if self._save_index or (saved is None and is_remote(path)):
            save_index(path, _KIND, version, index.to_json())
        return index


def _saved_index(path: Path, version: FileVersion) -> TarIndex | None:
    saved = load_saved_index(path, _KIND, version)
    if saved is None:
        return None
    try:
        return TarIndex.from_json(saved, version)
    except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
        log_unusable_index(path, error)
        return None


def scan_members(path: Path, stream: BinaryIO, version: FileVersion) -> TarIndex:
    """The index, by one pass over the headers of a file.

    Raises:
        BadInputError: a header is damaged, or the file ends before its end mark.
    """
    index = TarIndex(version)
    try:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in _list_members(tar):
                if not member.isreg():
                    continue
                if member.issparse():
                    raise _damage(path, member.offset, f"member {member.name} is sparse")
                # Members without an extension and hidden ones belong to no sample.
                if named := _NAME.fullmatch(member.name.removeprefix("./")):
                    index.add(named[1], named[2].lower(), member.offset_data, member.size)
            end: int = tar.offset
    except tarfile.TarError as error:
        raise _damage(path, stream.tell() if str(error) != "empty file" else 0, str(error)) from error
    # The tarfile module takes a damaged header for the end of the file.
    stream.seek(end)
    mark = stream.read(_HEADER_BYTES)
    if len(mark) < _HEADER_BYTES:
        raise _damage(path, end, "the file ends without an end mark")
    while mark:
        if mark.strip(b"\0"):
            raise _damage(path, end, "no header of a member begins here")
        mark = stream.read(1 << 20)
    return index


def _list_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined,unused-ignore]  # else all of them stay in memory
        yield member


def _damage(path: Path, offset: int, reason: str) -> BadInputError:
    return BadInputError(
        f"the file cannot be read as tar at byte {offset}: {reason}",
        where=str(path),
        hint="it was truncated or overwritten there, or several files were put one after another; write it again",
    )
