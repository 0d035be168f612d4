"""Writes data sets to files. Directories appear complete or not at all."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from edl.api.errors import BadInputError, StorageError
from edl.data.recordio.chunk import Compression
from edl.data.recordio.writer import Writer
from edl.data.sample_datasets import GeneratedDataset, RecordTable
from edl.data.temporary_names import temporary_path
from edl.data.tf_example import FeatureValue, serialize_example

FileFormat: TypeAlias = Literal["recordio", "csv"]
ProgressCallback: TypeAlias = Callable[[int], None]

ABOUT_NAME = "about.json"
"""File with facts about a data set, beside its directories."""


@dataclass(frozen=True)
class DatasetLayout:
    """How records become files.

    Args:
        format: ``recordio`` (Examples) or ``csv`` (a header and rows).
        compression: compression of RecordIO chunks.
        records_per_file: maximum number of records in one file.
    """

    format: FileFormat = "recordio"
    compression: Compression = "none"
    records_per_file: int = 16_384

    def __post_init__(self) -> None:
        if self.records_per_file < 1:
            raise BadInputError(f"--records-per-file {self.records_per_file}", hint="at least 1")
        if self.format == "csv" and self.compression != "none":
            raise BadInputError(f"--compression {self.compression} with csv", hint="only RecordIO files are compressed")


def check_output_empty(out: Path) -> None:
    """Raise BadInputError if ``out`` is a file, or a directory that is not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInputError(
            "not an empty directory", where=str(out), hint="choose another, or --force to replace its train and test"
        )


def write_dataset(
    data: GeneratedDataset, directory: Path, layout: DatasetLayout, on_progress: ProgressCallback
) -> dict[str, list[Path]]:
    """Write ``train`` and ``test`` below ``directory``, replacing each as a whole, and ``data.about``.

    Args:
        data: the records.
        directory: the output directory; see ``check_output_empty``.
        layout: format, compression and file size.
        on_progress: called with the number of records written since the last call.

    Returns:
        The files of each part.

    Raises:
        StorageError: a file cannot be written.
    """
    parts = {"train": data.training, "test": data.validation}
    try:
        written = {
            name: _write_dataset_part(table, directory / name, layout, on_progress) for name, table in parts.items()
        }
        if data.about:
            (directory / ABOUT_NAME).write_text(json.dumps(dict(data.about), indent=1) + "\n")
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", where=str(error.filename or directory)) from error
    return written


def _write_dataset_part(
    table: RecordTable, directory: Path, layout: DatasetLayout, advance: ProgressCallback
) -> list[Path]:
    temporary = temporary_path(directory)
    temporary.mkdir(parents=True)
    try:
        # written beside the target first, so that a failure leaves the earlier directory unchanged
        names = list(_write_files(table, temporary, layout, advance))
        # rename() does not replace a directory that contains files
        if directory.exists():
            shutil.rmtree(directory)
        temporary.replace(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return [directory / name for name in names]


def _write_files(
    table: RecordTable, directory: Path, layout: DatasetLayout, advance: ProgressCallback
) -> Iterator[str]:
    features, rows = table.features(), table.rows()
    for number in range(-(-len(table) // layout.records_per_file)):
        name = f"data-{number:05d}.{layout.format}"
        if layout.format == "csv":
            _write_csv(directory / name, table.columns, islice(rows, layout.records_per_file), advance)
        else:
            _write_recordio(directory / name, islice(features, layout.records_per_file), layout.compression, advance)
        yield name


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], advance: ProgressCallback) -> None:
    # newline="": the csv module writes line ends itself, and cells may contain line breaks
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(row)
            advance(1)


def _write_recordio(
    path: Path, features: Iterable[dict[str, FeatureValue]], compression: Compression, advance: ProgressCallback
) -> None:
    with Writer(path, compression=compression) as writer:
        for record in features:
            writer.write(serialize_example(record))
            advance(1)
