"""Which files a data set consists of, and what format they are in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.data.conversion_hints import contains_images, hint_for_file, hint_for_images

PathOrPaths: TypeAlias = str | Path | Sequence[str | Path]

INDEX_SUFFIX = ".idx"
RECORDIO_MAGIC = bytes.fromhex("04030201")
_FORMAT_BY_SUFFIX = {".recordio": "recordio", ".rio": "recordio", ".csv": "csv", ".tsv": "csv"}


def read_error(file: Path, error: OSError) -> EdlError:
    """The error to raise for ``error``: bad input where the path is to blame, else worth another try (a volume)."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return BadInputError(f"cannot be read: {error.strerror}", where=str(file), hint="check path and permissions")
    return RetryableError(f"cannot be read: {error.strerror}", where=str(file), hint="is the volume reachable?")


def temporary_path(path: Path) -> Path:
    """A hidden name of this process in the same directory, to be renamed to ``path`` when it is complete."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def list_data_files(paths: PathOrPaths) -> tuple[Path, ...]:
    """All data files under ``paths``: a directory stands for its files in sorted order.

    Hidden files and index side files (``*.idx``) of a directory are passed over; its sub-directories are not entered.

    Raises:
        BadInputError: a path is missing, unreadable or an empty directory, or there is no path at all.
    """
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not listed:
        raise BadInputError("there are no data files: the list of paths is empty", hint="name a file or a directory")
    files = tuple(file for path in listed for file in _list_path_files(Path(path)))
    _check_listed_once(files)
    return files


def _list_path_files(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return _list_directory_files(path)
        with path.open("rb"):
            return [path]
    except FileNotFoundError:
        raise BadInputError(
            "there is no such file or directory", where=str(path), hint=_nearest_directory_hint(path)
        ) from None
    except OSError as error:
        raise read_error(path, error) from error


def _list_directory_files(directory: Path) -> list[Path]:
    entries = sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.is_file() and entry.suffix != INDEX_SUFFIX]
    if not files:
        folders = [entry.name for entry in entries if entry.is_dir()]
        hint = f"name one of its directories: {', '.join(folders[:5])}" if folders else "`edl data` can write examples"
        if any(contains_images(entry.iterdir()) for entry in entries if entry.is_dir()):
            hint = hint_for_images(directory)
        raise BadInputError("the directory has no data files", where=str(directory), hint=hint)
    return files


def _nearest_directory_hint(path: Path) -> str:
    parent = path
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    return f"the nearest directory that exists is {parent.resolve()}"


def _check_listed_once(files: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for file in files:
        if file in seen:
            raise BadInputError("the file is listed twice", where=str(file), hint="name each file once")
        seen.add(file)


def detect_format(files: Sequence[Path]) -> str:
    """The one format of all ``files``, from their suffixes or their first bytes.

    Raises:
        BadInputError: a file's format is unknown, or the files are of several formats.
    """
    found = {file: _detect_file_format(file) for file in files}
    formats = {name for name in found.values() if name}
    if len(formats) > 1:
        listing = ", ".join(f"{file.name} is {name}" for file, name in list(found.items())[:4])
        raise BadInputError(
            f"files of several formats: {listing}",
            where=str(files[0].parent),
            hint="keep one format in a data set",
        )
    # Only empty files: an empty RecordIO file is legal and has 0 records.
    return formats.pop() if formats else "recordio"


def _detect_file_format(file: Path) -> str | None:
    """The file's format, or None for an empty file whose name says nothing."""
    by_name = _FORMAT_BY_SUFFIX.get(file.suffix.lower())
    if by_name:
        return by_name
    try:
        with file.open("rb") as stream:
            head = stream.read(len(RECORDIO_MAGIC))
    except OSError as error:
        raise read_error(file, error) from error
    if not head:
        return None
    if head == RECORDIO_MAGIC:
        return "recordio"
    raise BadInputError(
        "unknown data format: neither the name nor the first bytes tell",
        where=str(file),
        hint=hint_for_file(file)
        or "name the format with data.reader.format (recordio or csv), move the file elsewhere, or read it yourself "
        "with a custom_data_reader in the model module: docs/bring-your-own-data.md",
    )
