"""Counting the records of a data set with the built-in readers."""

from __future__ import annotations

from collections.abc import Sequence

from edl.core.events import DatasetDescribed
from edl.data.reader import Reader
from edl.data.reader_factory import open_reader
from edl.data.record_blocks import read_reader_blocks
from edl.jobfile.job_spec import JobSpec

SourceRows = tuple[tuple[str, int], ...]


def describe_dataset(spec: JobSpec, *, predict: bool) -> DatasetDescribed:
    """Sources and record counts of what the job needs.

    Raises:
        BadInputError: there is nothing there, or it cannot be read.
    """
    if predict:
        return DatasetDescribed(prediction=_count_sources(spec.data.prediction, spec))
    reader = open_reader(spec.data.training, spec.data.reader) if spec.data.training else None
    return DatasetDescribed(
        training=() if reader is None else _source_rows(reader),
        validation=_count_sources(spec.data.validation, spec),
        blocks=None if reader is None or spec.train.shuffle.window == 0 else read_reader_blocks(reader),
    )


def _count_sources(paths: Sequence[str], spec: JobSpec) -> SourceRows:
    return _source_rows(open_reader(tuple(paths), spec.data.reader)) if paths else ()


def _source_rows(reader: Reader) -> SourceRows:
    return tuple((source.name, source.records) for source in reader.sources())
