"""Opens a data set with the reader of its format.

Modules of formats are imported on use, so that counting records loads neither TensorFlow nor NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from edl.api.errors import BadInputError, EdlError
from edl.core.shuffle import BlockLayout, ShuffleOrder, choose_window
from edl.data.cache_folder import CACHE_OPTIONS, CacheFolder
from edl.data.data_files import PathOrPaths, detect_format, find_data, format_of_name, list_paths
from edl.data.reader import Reader
from edl.data.remote_files import BlockStore, is_remote
from edl.data.unpacked_cache import CACHED_FORMATS, UnpackedCache, name_inside
from edl.jobfile.database_address import is_database

if TYPE_CHECKING:
    from edl.data.block_file import RecordFormat


COLUMN_FORMATS = ("parquet", "npz", "arrow", "sql")
"""Formats of which single columns are read."""


def open_reader(
    paths: PathOrPaths,
    options: Mapping[str, object] | None = None,
    columns: Sequence[str] = (),
    text_types: Mapping[str, str] | None = None,
) -> Reader:
    """Open a data set with one of the built-in readers.

    Args:
        paths: a file, a directory (its data files in sorted order), a pattern such as ``train-*.tfrecord``, or a list
            of these.
        options: the job's ``data.reader``. Without ``format`` (see ``FORMATS``) the format is detected from the files;
            the other options are those of the format.
        columns: the columns that are needed, unless ``options`` names them; other formats return all.
        text_types: columns of CSV or JSON lines, each with its type; None: records are text.

    Raises:
        BadInputError: there is no data, a file cannot be read, or the format or an option is unknown.
    """
    format_options = dict(options or {})
    chosen = _format_of_options(format_options)
    if chosen == "sql" or any(is_database(path) for path in list_paths(paths)):
        if columns:
            format_options.setdefault("columns", list(columns))
        return _open_database([str(path) for path in list_paths(paths)], chosen, format_options)
    cache = CacheFolder.from_options(format_options)
    files = find_data(paths, None if chosen is None else str(chosen), BlockStore(cache))
    if cache is not None and chosen in (None, *CACHED_FORMATS):
        files = UnpackedCache(cache).unpack_all(files)
    name = detect_format(files) if chosen is None else str(chosen)
    if columns and name in COLUMN_FORMATS:
        format_options.setdefault("columns", list(columns))
    remote = any(is_remote(path) for path in list_paths(paths))
    try:
        reader = _create_format_reader(name, files, _without_cache(name, format_options, remote=remote))
        return _with_types(name, reader, text_types) if text_types else reader
    except ModuleNotFoundError as error:
        package = FORMAT_PACKAGES.get(error.name or "")
        if package is None:
            raise
        raise BadInputError(
            f"data of the format {name} needs the package {package}, which is not installed",
            where="data.training" if len(files) != 1 else str(files[0]),
            hint=f"pip install {package}; the extra [train] of edl-platform has it, and [program] has not",
        ) from error


def _open_database(addresses: Sequence[str], chosen: object, options: Mapping[str, object]) -> Reader:
    """The reader of tables and queries. It connects on use."""
    if chosen not in (None, "sql"):
        raise BadInputError(f"an address of a database has not the format {chosen}", where="data.reader.format")
    from edl.data.database import check_address

    for address in addresses:
        check_address(address)
        if list(addresses).count(address) > 1:
            raise BadInputError("the source is listed twice", where=address, hint="name each source once")
    from edl.data.sql_reader import SqlReader

    return SqlReader.from_options(addresses, options)


def _with_types(name: str, reader: Reader, types: Mapping[str, str]) -> Reader:
    """A reader of text with columns of these types; those of other formats have theirs."""
    if name == "csv":
        from edl.data.csv_reader import CsvReader
        from edl.data.typed_csv_reader import TypedCsvReader

        assert isinstance(reader, CsvReader)
        return TypedCsvReader(reader, types)
    if name == "jsonl":
        from edl.data.block_file import BlockFileReader
        from edl.data.typed_json_reader import TypedJsonReader

        assert isinstance(reader, BlockFileReader)
        return TypedJsonReader(reader, types)
    return reader


def _without_cache(name: str, options: Mapping[str, object], *, remote: bool) -> Mapping[str, object]:
    """The options of the format alone; those of the cache are refused where it has no use."""
    if name not in CACHED_FORMATS and not remote:
        return options
    CacheFolder.from_options(options)
    return {option: value for option, value in options.items() if option not in CACHE_OPTIONS}


def check_reader_options(paths: Sequence[str], options: Mapping[str, object]) -> None:
    """Check reader options without opening the data; its files need not exist on this machine.

    Raises:
        BadInputError: the format, an option or its value is unknown. If the format cannot be detected, nothing is
            checked.
    """
    format_options = dict(options)
    if options.get("format") == "sql" or any(is_database(path) for path in paths):
        _open_database(paths, _format_of_options(format_options), format_options)
        return
    name = _format_of_options(format_options) or format_of_name(Path(name_inside(paths[0])))
    if name is None:
        with suppress(EdlError):  # the files are missing or of no known format: whoever opens them reports that
            name = detect_format(find_data(tuple(paths)))
    if name is not None:
        remote = any(is_remote(path) for path in paths)
        _create_format_reader(
            str(name), [Path(path) for path in paths], _without_cache(str(name), format_options, remote=remote)
        )


def _format_of_options(options: dict[str, object]) -> object:
    """Take the format out of options: the named one, or that of an option which only one format has."""
    return options.pop("format", "coco" if "annotations" in options else None)


FORMATS = (
    "recordio",
    "csv",
    "tfrecord",
    "parquet",
    "npy",
    "npz",
    "jsonl",
    "text",
    "images",
    "coco",
    "webdataset",
    "arrow",
    "sql",
)
"""Values of ``data.reader.format``."""


FORMAT_PACKAGES: Mapping[str, str] = {"pyarrow": "pyarrow", "google_crc32c": "google-crc32c"}
"""Packages that only some formats need, by module: what ``pip`` calls them."""


def _create_format_reader(name: str, files: Sequence[Path], options: Mapping[str, object]) -> Reader:
    if name == "recordio":
        from edl.data.recordio.reader import RecordIOReader

        return RecordIOReader.from_options(files, options)
    if name == "csv":
        from edl.data.csv_reader import CsvReader

        return CsvReader.from_options(files, options)
    if name in ("tfrecord", "text", "jsonl"):
        from edl.data.block_file import BlockFileReader

        return BlockFileReader.from_options(files, options, _record_format(name))
    if name == "parquet":
        from edl.data.parquet_reader import ParquetReader

        return ParquetReader.from_options(files, options)
    if name in ("npy", "npz"):
        from edl.data.numpy_reader import NumpyReader

        return NumpyReader.from_options(files, options)
    if name == "images":
        from edl.data.image_folder import ImageFolderReader

        return ImageFolderReader.from_options(files, options)
    if name == "coco":
        from edl.data.coco_reader import CocoReader

        return CocoReader.from_options(files, options)
    if name == "webdataset":
        from edl.data.tar_reader import TarReader

        return TarReader.from_options(files, options)
    if name == "arrow":
        from edl.data.arrow_reader import ArrowReader

        return ArrowReader.from_options(files, options)
    near = get_close_matches(name, FORMATS, n=1)
    raise BadInputError(
        f"unknown data format {name!r}",
        where="data.reader.format",
        hint=(f"did you mean {near[0]}? " if near else "")
        + f"The built-in formats are {', '.join(FORMATS)}; a model module may define custom_data_reader for others",
    )


def _record_format(name: str) -> RecordFormat:
    if name == "tfrecord":
        from edl.data.tfrecord_format import TFRecordFormat

        return TFRecordFormat()
    from edl.data.text_format import JsonLinesFormat, TextFormat

    return TextFormat() if name == "text" else JsonLinesFormat()


# --------------------------------------------------------------------------------------------------
# The options of ``data.reader``, checked by name, type and value.


_WHERE = "data.reader"


class ReaderOptions:
    """The options that the user wrote under ``data.reader``, without ``format``.

    Args:
        values_by_name: the options as written.
        allowed_names: all options of the format.

    Raises:
        BadInputError: an option is unknown.
    """

    def __init__(self, values_by_name: Mapping[str, object], *, allowed_names: Sequence[str]) -> None:
        self._values_by_name = values_by_name
        for name in values_by_name:
            if name not in allowed_names:
                near = get_close_matches(name, allowed_names, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise BadInputError(
                    f"unknown option {name!r}", where=_WHERE, hint=f"{hint}Allowed: format, {', '.join(allowed_names)}"
                )

    def get_choice(self, name: str, values: Sequence[str]) -> str:
        """One of ``values``; the default is the first."""
        value = self._values_by_name.get(name, values[0])
        if not isinstance(value, str) or value not in values:
            raise self._invalid_option_error(name, value, f"one of {', '.join(values)}")
        return value

    def get_boolean(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._values_by_name.get(name, default)
        if not isinstance(value, bool):
            raise self._invalid_option_error(name, value, "true or false")
        return value

    def get_character(self, name: str, default: str) -> str:
        """Text of one character."""
        value = self._values_by_name.get(name, default)
        if not isinstance(value, str) or len(value) != 1:
            raise self._invalid_option_error(name, value, "one character")
        return value

    def get_name(self, name: str) -> str:
        """A name; empty by default."""
        value = self._values_by_name.get(name, "")
        if not isinstance(value, str):
            raise self._invalid_option_error(name, value, "a name")
        return value

    def get_names(self, name: str) -> tuple[str, ...]:
        """A list of distinct names; empty by default."""
        value = self._values_by_name.get(name, ())
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise self._invalid_option_error(name, value, "a list of names")
        if len(set(value)) != len(value):
            raise self._invalid_option_error(name, value, "names that differ")
        return tuple(value)

    def _invalid_option_error(self, name: str, value: object, allowed: str) -> BadInputError:
        return BadInputError(f"{value!r} is not allowed", where=f"{_WHERE}.{name}", hint=f"allowed: {allowed}")


# --------------------------------------------------------------------------------------------------
# The blocks of a data set, and the shuffled order over them.


def read_reader_blocks(reader: Reader) -> BlockLayout | None:
    """The blocks of all sources of a reader; None: the reader has no random access.

    Raises:
        BadInputError: the blocks do not add up to the reader's records.
    """
    # not isinstance(): a user's reader need not inherit from the protocol
    read_blocks = getattr(reader, "blocks", None)
    if read_blocks is None:
        return None
    sizes, total_bytes, records = [], 0, 0
    for source in reader.sources():
        block_sizes = read_blocks(source.name)
        counts = [int(count) for count in block_sizes.records]
        if sum(counts) != source.records or any(count < 0 for count in counts):
            raise BadInputError(
                f"blocks() of the data reader returns {sum(counts)} records, sources() returns {source.records}",
                where=source.name,
                hint="the records of all blocks of a source must add up to its record count",
            )
        sizes.append(counts)
        total_bytes, records = total_bytes + int(block_sizes.bytes), records + source.records
    weights = tuple(getattr(reader, "source_weights", ()))
    return BlockLayout.from_sizes(sizes, -(-total_bytes // max(1, records)), weights)


def choose_reader_window(reader: Reader, requested_window: int | None, records: int, records_per_lease: int) -> int:
    """The shuffle window for training on a reader's records; see ``core.shuffle.choose_window``.

    Args:
        reader: reader of the training records. Its blocks are listed only if records may be shuffled.
        requested_window: ``train.shuffle.window``; None: as large as memory allows.
        records: number of records in an epoch.
        records_per_lease: number of records in a lease.

    Raises:
        BadInputError: a window is requested but the reader has no random access, or the reader's blocks do not add up
            to its records.
    """
    return choose_window(
        requested_window, records, records_per_lease, None if requested_window == 0 else read_reader_blocks(reader)
    )


def describe_order(reader: Reader, window: int, seed: int, portion: int = 0) -> ShuffleOrder:
    """The shuffled order of a reader's records.

    Raises:
        BadInputError: the reader has no random access.
    """
    blocks = read_reader_blocks(reader)
    if blocks is None:
        raise BadInputError("the data reader has no random access, so its records cannot be shuffled")
    return ShuffleOrder.from_rows(
        [(source.name, source.records) for source in reader.sources()],
        blocks.runs,
        window,
        seed,
        blocks.weights,
        portion,
    )
