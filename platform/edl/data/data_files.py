"""Lists the files of a data set and detects their format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from edl.api.errors import BadInputError, EdlError, RetryableError

# --------------------------------------------------------------------------------------------------
# Hints for files in other formats: for each format, a few lines of Python that convert such a file
# to RecordIO.
#
# Each hint has a complete program to copy. A test runs each of them and reads what it wrote.


IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
_DOCS_HINT = "docs/bring-your-own-data.md has more, and how a model module reads other formats itself."

_TFRECORD_PROGRAM = """\
from edl.data import Writer
import tensorflow as tf
with Writer({target!r}) as writer:
    for record in tf.data.TFRecordDataset({source!r}{compression}).as_numpy_iterator():
        writer.write(record)"""
_NPZ_PROGRAM = """\
from edl.data import Writer, serialize_example
import numpy as np
arrays = dict(np.load({source!r}))
with Writer({target!r}) as writer:
    for row in zip(*arrays.values(), strict=True):
        writer.write(serialize_example({{k: np.ravel(v).tolist() for k, v in zip(arrays, row)}}))"""
_NPY_PROGRAM = """\
from edl.data import Writer, serialize_example
import numpy as np
with Writer({target!r}) as writer:
    for row in np.load({source!r}):
        writer.write(serialize_example({{"value": np.ravel(row).tolist()}}))"""
_IMAGES_PROGRAM = """\
from pathlib import Path
from edl.data import Writer, serialize_example
kinds = {kinds!r}
images = sorted(f for f in Path({source!r}).rglob("*") if f.suffix.lower() in kinds)
labels = sorted({{f.parent.name for f in images}})
with Writer({target!r}) as writer:
    for f in images:
        writer.write(serialize_example({{"image": f.read_bytes(), "label": labels.index(f.parent.name)}}))"""


def hint_for_file(file: Path) -> str | None:
    """How to convert a file to RecordIO; None for an unknown kind of file."""
    suffix, target = file.suffix.lower(), str(file.with_suffix(".recordio"))
    name = file.name.lower()
    if suffix in IMAGE_SUFFIXES:
        return hint_for_images(file.parent)
    if suffix in (".tfrecord", ".tfrecords") or ".tfrecord" in name:
        compression = ', compression_type="GZIP"' if suffix == ".gz" else ""
        program = _TFRECORD_PROGRAM.format(source=str(file), target=target, compression=compression)
        return _format_program_hint(
            "TFRecord files contain the same records in another framing; feed stays unchanged", program
        )
    if suffix in (".npz", ".npy"):
        program = (_NPZ_PROGRAM if suffix == ".npz" else _NPY_PROGRAM).format(source=str(file), target=target)
        return _format_program_hint("each record becomes a tf.train.Example with one feature per array", program)
    return None


def hint_for_images(folder: Path) -> str:
    """How to convert a folder of images, with a sub-folder for each class, to RecordIO."""
    target = f"{folder}.recordio"
    program = _IMAGES_PROGRAM.format(source=str(folder), target=target, kinds=tuple(sorted(IMAGE_SUFFIXES)))
    return _format_program_hint(
        "each record becomes a tf.train.Example with the file's bytes and the number of its folder", program
    )


def hint_for_encoding(file: str) -> str:
    """How to convert a text file that is not UTF-8."""
    path = Path(file)
    target = path.with_name(f"{path.stem}.utf8{path.suffix}")
    return f"if the whole file is in another encoding, convert it: iconv -f latin1 -t utf-8 '{path}' > '{target}'"


def contains_images(files: Iterable[Path]) -> bool:
    """Whether any of the files is an image."""
    return any(file.suffix.lower() in IMAGE_SUFFIXES for file in files)


def _format_program_hint(what: str, program: str) -> str:
    lines = "\n".join(f"    {line}" for line in program.splitlines())
    return f"convert it to RecordIO ({what}), with Python:\n{lines}\n{_DOCS_HINT}"


FileT = TypeVar("FileT")
PathOrPaths: TypeAlias = str | Path | Sequence[str | Path]

INDEX_SUFFIX = ".idx"
RECORDIO_MAGIC = bytes.fromhex("04030201")
_FORMAT_BY_SUFFIX = {".recordio": "recordio", ".rio": "recordio", ".csv": "csv", ".tsv": "csv"}


def read_error(file: Path, error: OSError) -> EdlError:
    """The error for an OSError: BadInputError if the path is wrong, otherwise RetryableError, as for a lost volume."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return BadInputError(f"cannot be read: {error.strerror}", where=str(file), hint="check path and permissions")
    return RetryableError(f"cannot be read: {error.strerror}", where=str(file), hint="is the volume reachable?")


def find_source(files: Mapping[str, FileT], source: str) -> FileT:
    """The file of a source.

    Raises:
        BadInputError: the data set has no such source.
    """
    file = files.get(source)
    if file is None:
        raise BadInputError("no such source in this data set", where=source)
    return file


def temporary_path(path: Path) -> Path:
    """A hidden name in the same directory, to be renamed to ``path`` when the file is complete.

    It contains the process id, so that processes that write the same path do not write into one file.
    """
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def list_data_files(paths: PathOrPaths) -> tuple[Path, ...]:
    """All data files under ``paths``, with the files of a directory in sorted order.

    Hidden files, index files (``*.idx``) and sub-directories of a directory are ignored.

    Raises:
        BadInputError: a path is missing, unreadable or an empty directory, or ``paths`` is empty.
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
    # sorted, so that every process lists the same files in the same order
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
    """The format of ``files``, by their suffixes or their first bytes.

    Raises:
        BadInputError: the format of a file is unknown, or the files have several formats.
    """
    format_by_file = {file: _detect_file_format(file) for file in files}
    formats = {name for name in format_by_file.values() if name}
    if len(formats) > 1:
        listing = ", ".join(f"{file.name} is {name}" for file, name in list(format_by_file.items())[:4])
        raise BadInputError(
            f"files of several formats: {listing}",
            where=str(files[0].parent),
            hint="keep one format in a data set",
        )
    # no format at all: all files are empty, and an empty RecordIO file is valid and has 0 records
    return formats.pop() if formats else "recordio"


def format_of_name(file: Path) -> str | None:
    """The format that a file's suffix stands for; None if it stands for none."""
    return _FORMAT_BY_SUFFIX.get(file.suffix.lower())


def _detect_file_format(file: Path) -> str | None:
    """The file's format; None for an empty file with an unknown suffix."""
    by_name = format_of_name(file)
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
        "unknown data format: neither the name nor the first bytes of the file identify it",
        where=str(file),
        hint=hint_for_file(file)
        or "name the format with data.reader.format (recordio or csv), move the file elsewhere, or read it yourself "
        "with a custom_data_reader in the model module: docs/bring-your-own-data.md",
    )
