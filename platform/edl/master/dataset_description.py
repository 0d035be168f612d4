"""Counting the records of a data set with the built-in readers."""

from __future__ import annotations

from collections.abc import Sequence

from edl.core.events import DatasetDescribed
from edl.data.reader import Reader
from edl.data.reader_factory import open_reader
from edl.data.record_blocks import blocks_of
from edl.jobfile.job_spec import JobSpec

Rows = tuple[tuple[str, int], ...]


def describe(spec: JobSpec, *, predict: bool) -> DatasetDescribed:
    """Sources and record counts of what the job needs.

    Raises:
        BadInputError: there is nothing there, or it cannot be read.
    """
    if predict:
        return DatasetDescribed(prediction=_sources(spec.data.prediction, spec))
    reader = open_reader(spec.data.training, spec.data.reader) if spec.data.training else None
    return DatasetDescribed(
        training=() if reader is None else _rows(reader),
        validation=_sources(spec.data.validation, spec),
        blocks=None if reader is None or spec.train.shuffle.window == 0 else blocks_of(reader),
    )


def _sources(paths: Sequence[str], spec: JobSpec) -> Rows:
    return _rows(open_reader(tuple(paths), spec.data.reader)) if paths else ()


def _rows(reader: Reader) -> Rows:
    return tuple((source.name, source.records) for source in reader.sources())
