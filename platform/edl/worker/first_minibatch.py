"""The first minibatch of a data set: a model that is built by its first call needs its features."""

from __future__ import annotations

from typing import Any

from edl.data.reader import Reader
from edl.worker.corrupt_records import CorruptRecordSkipper
from edl.worker.feed_pipeline import FeedFunction, Minibatch
from edl.worker.lease_client import LeasedTask

_TRIES_PER_SOURCE = 8
"""Minibatches of each source that may be empty, because their records are corrupt or ``feed`` drops them."""


def find_first_minibatch(
    reader: Reader, feeder: FeedFunction, corrupt: CorruptRecordSkipper, *, size: int
) -> tuple[LeasedTask, Minibatch] | None:
    """The first ``size`` records that ``feed`` keeps some of, and their range as a task; None if there are none.

    Raises:
        EdlError: records cannot be read, or ``feed`` raises.
    """
    for source in reader.sources():
        for start in range(0, min(source.records, _TRIES_PER_SOURCE * size), size):
            end = min(source.records, start + size)
            minibatch = feeder.minibatch(0, corrupt.read(reader, source.name, start, end))
            if minibatch is not None:
                return LeasedTask(0, feeder.mode, source.name, start, end, size), minibatch
    return None


def find_first_features(reader: Reader, feeder: FeedFunction, corrupt: CorruptRecordSkipper, *, size: int) -> Any:
    """Features of the first ``size`` records that ``feed`` keeps some of; None if there are none.

    Raises:
        EdlError: records cannot be read, or ``feed`` raises.
    """
    found = find_first_minibatch(reader, feeder, corrupt, size=size)
    return None if found is None else found[1].features
