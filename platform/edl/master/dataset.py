"""Counting the records of a data set with the built-in readers."""

from __future__ import annotations

from collections.abc import Sequence

from edl.core.events import DatasetDescribed
from edl.data.opening import open_reader
from edl.spec.job import JobSpec

Rows = tuple[tuple[str, int], ...]


def describe(spec: JobSpec, *, predict: bool) -> DatasetDescribed:
    """Sources and record counts of what the job needs.

    Raises:
        BadInputError: there is nothing there, or it cannot be read.
    """
    if predict:
        return DatasetDescribed(prediction=_sources(spec.data.prediction, spec))
    return DatasetDescribed(
        training=_sources(spec.data.training, spec), validation=_sources(spec.data.validation, spec)
    )


def _sources(paths: Sequence[str], spec: JobSpec) -> Rows:
    if not paths:
        return ()
    reader = open_reader(tuple(paths), spec.data.reader)
    return tuple((source.name, source.records) for source in reader.sources())
