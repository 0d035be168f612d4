"""Opens a data set with the reader of its format.

Formats are imported on use, so that counting records loads neither TensorFlow nor NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edl.api.errors import BadInputError
from edl.data.data_files import PathOrPaths, detect_format, list_data_files
from edl.data.reader import Reader


def open_reader(paths: PathOrPaths, options: Mapping[str, object] | None = None) -> Reader:
    """Open a data set with one of the built-in readers.

    Args:
        paths: a file, a directory (its data files in sorted order) or a list of both.
        options: the job's ``data.reader``. ``format`` (``recordio`` or ``csv``) is found from the files when it
            is absent; the other options belong to the format.

    Raises:
        BadInputError: no data there, a file cannot be read, the format or an option is unknown.
    """
    rest = dict(options or {})
    files = list_data_files(paths)
    chosen = rest.pop("format", None)
    name = detect_format(files) if chosen is None else str(chosen)
    return _create_format_reader(name, files, rest)


def _create_format_reader(name: str, files: Sequence[Path], options: Mapping[str, object]) -> Reader:
    if name == "recordio":
        from edl.data.recordio.reader import RecordIOReader

        return RecordIOReader.from_options(files, options)
    if name == "csv":
        from edl.data.csv_reader import CsvReader

        return CsvReader.from_options(files, options)
    raise BadInputError(
        f"unknown data format {name!r}",
        where="data.reader.format",
        hint="the built-in formats are recordio and csv; a model module may define custom_data_reader for others",
    )
