"""Reads NumPy files: ``.npy`` (records are the array's items) and ``.npz`` (records are mappings from array names).

The first axis counts the records. Arrays that are stored uncompressed are mapped into memory, so a read loads only its
own records. Nothing is unpickled: arrays of Python objects are refused.
"""

from __future__ import annotations

import errno
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.data.data_files import FileVersion, changed_error, file_version, find_source, read_error, stream_version
from edl.data.file_digests import SourceDigests, digest_file
from edl.data.reader import BlockSizes, Metadata, OnCorrupt, Source
from edl.data.reader_factory import ReaderOptions
from edl.data.record_columns import ColumnRecords
from edl.data.remote_files import is_remote

_BLOCK_BYTES = 1 << 18
_FEWEST_BLOCK_RECORDS = 10
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
"""Of a member of a zip file: its last two numbers are the lengths of the name and of further fields."""


_ZIP_MAGIC = b"PK\x03\x04"
# A damaged header of an array is parsed as Python, and NumPy does not translate all errors of that.
_DAMAGES = (ValueError, SyntaxError, TypeError, KeyError, tokenize.TokenError, struct.error, EOFError, zlib.error,
            zipfile.BadZipFile, NotImplementedError)  # fmt: skip
"""Errors of a file with other bytes than NumPy wrote."""


@dataclass(frozen=True)
class ArrayFile:
    """The arrays of one file by name; one without a name from an ``.npy`` file.

    Args:
        arrays: all with the same first axis.
        version: of the file.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    version: FileVersion

    @property
    def records(self) -> int:
        """Length of the first axis."""
        return len(next(iter(self.arrays.values())))


class NumpyReader:
    """A data set of files that all end with ``.npy`` or all with ``.npz``, with the same arrays.

    Args:
        files: the files.
        columns: names of the arrays to read from ``.npz`` files; all by default.
    """

    def __init__(self, files: Sequence[Path], columns: Sequence[str] = ()) -> None:
        self._paths = {str(file): file for file in files}
        self._columns = tuple(columns)
        self._open_files: dict[str, ArrayFile] = {}

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> NumpyReader:
        """A reader with the options of ``data.reader``: ``columns`` (all) and ``label`` (see ``CsvReader``)."""
        chosen = ReaderOptions(options, allowed_names=("columns", "label"))
        chosen.get_name("label")  # feed reports a name that is no column
        return cls(files, chosen.get_names("columns"))

    @cached_property
    def metadata(self) -> Metadata:
        """Names and types of the arrays of an ``.npz`` file."""
        arrays = self._common_arrays
        if "" in arrays:
            return Metadata("npy")
        types = {name: _dtype_name(array.dtype) for name, array in arrays.items()}
        return Metadata("npz", tuple(arrays), types)

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and record count of each file."""
        _ = self._common_arrays  # refuses files with different arrays before any record is counted
        return tuple(Source(name, self._open(name).records) for name in self._paths)

    def source_digests(self) -> SourceDigests:
        """What finds out whether each file was written again; see ``file_digests``."""
        return {name: partial(digest_file, path) for name, path in self._paths.items()}

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Any]:
        """Records ``[start, end)`` of one file: an array, or ``ColumnRecords``; see ``Reader.read``."""
        file = self._open(source)
        if not 0 <= start <= end <= file.records:
            raise BadInputError(f"records {start} to {end} were requested, the file has {file.records}", where=source)
        self._check_unchanged(source, file)
        # A copy: of a mapped file, what is read is read here and not in the middle of a step.
        parts = {name: _plain(array[start:end]) for name, array in file.arrays.items()}
        return parts[""] if "" in parts else ColumnRecords(parts)  # type: ignore[return-value]

    def blocks(self, source: str) -> BlockSizes:
        """Blocks of about 256 KiB of one file."""
        file = self._open(source)
        total = sum(array.nbytes for array in file.arrays.values())
        size = max(_FEWEST_BLOCK_RECORDS, _BLOCK_BYTES * file.records // max(1, total))
        return BlockSizes([min(size, file.records - at) for at in range(0, file.records, size)], total)

    @cached_property
    def _common_arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """The first file's arrays; those of all others must have the same names, types and shapes of a record."""
        first, *others = self._paths
        expected = self._open(first).arrays
        for other in others:
            arrays = self._open(other).arrays
            if _describe_arrays(arrays) != _describe_arrays(expected):
                raise BadInputError(
                    f"{_describe_arrays(arrays)}; {first} has {_describe_arrays(expected)}",
                    where=other,
                    hint="all files of a data set need the same arrays, with the same types and shapes of a record",
                )
        return expected

    def _open(self, source: str) -> ArrayFile:
        path = find_source(self._paths, source)
        if source not in self._open_files:
            self._open_files[source] = self._choose_columns(path, open_array_file(path))
        return self._open_files[source]

    def _choose_columns(self, path: Path, file: ArrayFile) -> ArrayFile:
        if not self._columns:
            _check_records(path, file.arrays)
            return file
        missing = [name for name in self._columns if name not in file.arrays]
        if missing:
            has = ", ".join(name for name in file.arrays if name)
            raise BadInputError(
                f"{path}: no array {', '.join(missing)}",
                where="data.reader.columns",
                hint=f"the file has the arrays {has}" if has else "an .npy file has one array without a name",
            )
        chosen = {name: file.arrays[name] for name in self._columns}
        _check_records(path, chosen)
        return ArrayFile(chosen, file.version)

    def _check_unchanged(self, source: str, file: ArrayFile) -> None:
        try:
            stat = self._paths[source].stat()
        except OSError as error:
            raise read_error(self._paths[source], error) from error
        if file_version(stat) != file.version:
            raise changed_error(self._paths[source])


def open_array_file(path: Path) -> ArrayFile:
    """Open an ``.npy`` or ``.npz`` file.

    Raises:
        BadInputError: it is none, is truncated, or has arrays of Python objects.
    """
    try:
        with path.open("rb") as stream:
            version = stream_version(stream)
            if zipfile.is_zipfile(stream):
                arrays = _open_members(path)
            else:
                stream.seek(0)
                if stream.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC:
                    raise ValueError("it is truncated: its end, which says where the arrays are, is missing")
                arrays = {"": _map_array(path, stream, 0)}
    except OSError as error:
        if error.errno == errno.EINVAL:  # zipfile goes to a place before the beginning of the file
            raise _damaged_error(path, "it lacks bytes, so its members are not where it says") from error
        raise read_error(path, error) from error
    except _DAMAGES as error:
        raise _damaged_error(path, str(error)) from error
    return ArrayFile(arrays, version)


def _damaged_error(path: Path, reason: str) -> BadInputError:
    return BadInputError(
        f"the file cannot be read: {reason}",
        where=str(path),
        hint="write it again with numpy.save or numpy.savez; arrays of Python objects are not read",
    )


def _open_members(path: Path) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    with path.open("rb") as whole, zipfile.ZipFile(whole) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type == zipfile.ZIP_STORED:
                arrays[name] = _map_array(path, stream, _content_offset(stream, member))
            else:
                with archive.open(member) as packed:
                    arrays[name] = np.lib.format.read_array(packed, allow_pickle=False)
    if not arrays:
        raise ValueError("it has no arrays")
    return arrays


def _content_offset(stream: BinaryIO, member: zipfile.ZipInfo) -> int:
    stream.seek(member.header_offset)
    header = stream.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or header[:4] != _ZIP_MAGIC:
        raise ValueError(f"no member {member.filename} at byte {member.header_offset}")
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    return member.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)


def _map_array(path: Path, stream: BinaryIO, offset: int) -> npt.NDArray[Any]:
    """Map the array that begins at a byte of the file; an array without bytes is no map."""
    stream.seek(offset)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise ValueError("an array has Python objects")
    begin = stream.tell()
    needed = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if begin + needed > stream_version(stream)[0]:
        raise ValueError(f"it is truncated: an array needs {needed} bytes from byte {begin} on")
    if not needed:
        return np.empty(shape, dtype)
    if is_remote(path):
        return _RemoteArray(path, dtype, begin, shape, is_fortran=is_fortran)  # type: ignore[return-value]
    return np.memmap(path, dtype, "r", begin, shape, "F" if is_fortran else "C")


class _RemoteArray:
    """What the reader needs of an array: it fetches the records that are asked for."""

    def __init__(
        self, path: Path, dtype: np.dtype[Any], begin: int, shape: tuple[int, ...], *, is_fortran: bool
    ) -> None:
        self._path, self._begin, self._is_fortran = path, begin, is_fortran
        self.dtype, self.shape, self.ndim = dtype, shape, len(shape)
        self.nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        self._record_bytes = self.nbytes // max(1, shape[0] if shape else 1)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, records: slice) -> npt.NDArray[Any]:
        start, end, _ = records.indices(len(self))
        with self._path.open("rb", buffering=0) as stream:
            if self._is_fortran:  # the values of a record lie apart
                stream.seek(self._begin)
                whole = np.frombuffer(stream.read(self.nbytes), self.dtype)
                return whole.reshape(self.shape, order="F")[start:end]
            stream.seek(self._begin + start * self._record_bytes)
            content = stream.read(max(0, end - start) * self._record_bytes)
        return np.frombuffer(content, self.dtype).reshape(max(0, end - start), *self.shape[1:])


def _check_records(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if (reason := _unusable_type(array.dtype)) is not None:
            raise BadInputError(
                f"{f'array {name}' if name else 'the array'} is {array.dtype}: {reason}",
                where=str(path),
                hint="name the other arrays in data.reader.columns, or convert this one when you write the file",
            )
    sizes = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if None in sizes.values() or len(set(sizes.values())) != 1:
        sizes_text = ", ".join(f"{name or 'the array'}: {size or 'no axis'}" for name, size in sizes.items())
        raise BadInputError(
            f"the first axis of all arrays must count the records, and has {sizes_text}",
            where=str(path),
            hint="name the arrays with one entry for each record in data.reader.columns",
        )


def _unusable_type(dtype: np.dtype[Any]) -> str | None:
    """Why an array of this type cannot be a feature; None: it can."""
    if dtype.names is not None:
        return "a record of several fields; write an array for each of them"
    if dtype.kind == "V":
        return "raw bytes, as NumPy writes bfloat16; convert it to float32"
    if dtype.kind in "fc" and dtype.itemsize > np.dtype(dtype.kind + ("8" if dtype.kind == "f" else "16")).itemsize:
        return "more than TensorFlow has; convert it to float64" if dtype.kind == "f" else "too long; use complex128"
    return None


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype.kind in "SU" else "int64" if dtype.kind in "mM" else dtype.name


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy in memory, with a type that TensorFlow has: native byte order, text as UTF-8, and times as ``int64``."""
    if array.dtype.kind in "mM":
        return np.array(array, dtype=array.dtype.newbyteorder("=")).view(np.int64)
    if array.dtype.kind == "U":
        return np.char.encode(array, "utf-8").astype(object)
    if array.dtype.kind == "S":
        return np.array(array, dtype=object)
    return np.array(array, dtype=array.dtype.newbyteorder("="))


def _describe_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    # The longest text of a file says how wide its items are.
    types = {name: "text" if array.dtype.kind in "SU" else array.dtype.name for name, array in arrays.items()}
    return ", ".join(f"{name or 'an array'}: {types[name]} {array.shape[1:]}" for name, array in arrays.items())
