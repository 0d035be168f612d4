"""What a copy between this machine and a volume consists of: which files, and what they are called there.

A file goes to the path that is named, or into it when that is a directory or ends in ``/``. Of a directory, the content
goes into the directory that is named. So the same command again means the same files, and goes on where it was cut off.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edl.api.errors import BadInputError
from edl.ops.file_transfer import VolumeEntry
from edl.storage.durable_files import translate_os_errors


@dataclass(frozen=True, slots=True)
class CopyItem:
    """One file: on this machine, on the volume, its size in bytes."""

    here: Path
    there: str
    size: int


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """All of a copy.

    Attributes:
        items: the files, in order.
        here: directories of this machine to be made.
        there: directories of the volume to be made.
        skipped: what is neither file nor directory, such as links.
    """

    items: tuple[CopyItem, ...]
    here: tuple[Path, ...] = ()
    there: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(item.size for item in self.items)


def plan_upload(source: Path, target: str, kind: str) -> CopyPlan:
    """From this machine to the volume.

    Args:
        source: a file or directory.
        target: path on the volume.
        kind: what is there now: ``file``, ``directory``, ``other`` or ``missing``.

    Raises:
        BadInputError: there is no such file, or a directory would take the place of a file.
    """
    if source.is_file():
        inside = kind == "directory" or target.endswith("/")
        there = posixpath.join(target, source.name) if inside else target
        return CopyPlan((CopyItem(source, there, source.stat().st_size),))
    if not source.is_dir():
        raise BadInputError("no such file or directory", where=str(source))
    if kind in ("file", "other"):
        raise BadInputError("this is a file, and a directory would take its place", where=target)
    with translate_os_errors(source, "list"):
        found = list(_walk_directory(source))
    return _classify_paths(
        (path.relative_to(source).as_posix(), path, posixpath.join(target, path.relative_to(source).as_posix()))
        for path in found
    )


def plan_download(
    source: str, entries: Iterable[VolumeEntry], target: Path, *, is_file: bool, inside: bool
) -> CopyPlan:
    """From the volume to this machine.

    Args:
        source: path on the volume.
        entries: all that is below it, or the file itself.
        target: path on this machine.
        is_file: whether ``source`` is a file.
        inside: whether a file goes into ``target``, because that is a directory or was named like one.

    Raises:
        BadInputError: a file would take the place of a directory, or the volume names a file that leads elsewhere.
    """
    found = list(entries)
    if is_file:
        here = target / PurePosixPath(source).name if inside else target
        return CopyPlan((CopyItem(here, source, found[0].size),))
    if target.is_file():
        raise BadInputError("this is a file, and a directory would take its place", where=str(target))
    for entry in found:
        if entry.path.startswith("/") or ".." in PurePosixPath(entry.path).parts:
            raise BadInputError("the volume names a file that leads elsewhere", where=entry.path)
    files = [
        CopyItem(target / each.path, posixpath.join(source, each.path), each.size)
        for each in found
        if each.kind == "file"
    ]
    folders = [target / each.path for each in found if each.kind == "directory"]
    return CopyPlan(
        tuple(files), here=(target, *folders), skipped=tuple(each.path for each in found if each.kind == "other")
    )


def _walk_directory(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk_directory(path)


def _classify_paths(found: Iterable[tuple[str, Path, str]]) -> CopyPlan:
    """Files, directories and the rest, told apart; links are not followed, on either side."""
    items: list[CopyItem] = []
    folders: list[str] = []
    others: list[str] = []
    for name, path, there in found:
        if path.is_symlink():
            others.append(name)
        elif path.is_dir():
            folders.append(there)
        elif path.is_file():
            items.append(CopyItem(path, there, path.stat().st_size))
        else:
            others.append(name)
    return CopyPlan(tuple(items), there=tuple(folders), skipped=tuple(others))
