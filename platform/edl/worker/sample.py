"""The first features of a data set: what a model needs that is built by its first call."""

from __future__ import annotations

from typing import Any

from edl.data.reader import Reader
from edl.worker.corruption import CorruptRecords
from edl.worker.pipeline import Feeder

_TRIES = 8
"""Minibatches of each source that may be empty, because their records are corrupt or ``feed`` drops them."""


def first_features(reader: Reader, feeder: Feeder, corrupt: CorruptRecords, *, size: int) -> Any:
    """Features of the first ``size`` records that ``feed`` keeps some of; None if there are none.

    Raises:
        EdlError: records cannot be read, or ``feed`` raises.
    """
    for source in reader.sources():
        for start in range(0, min(source.records, _TRIES * size), size):
            window = corrupt.read(reader, source.name, start, min(source.records, start + size))
            minibatch = feeder.minibatch(0, window)
            if minibatch is not None:
                return minibatch.features
    return None
