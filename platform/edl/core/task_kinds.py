"""The kinds of work that are leased."""

from __future__ import annotations

from edl.core.ledger import Ledger
from edl.core.shards import RecordSource, ShardPlan
from edl.core.shuffle import SHUFFLED_SOURCE, ShuffleOrder

TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"
DESCRIBE, METRICS, EXPORT = "describe", "metrics", "export"
BEST_MODEL = "best model"
"""The file of ``ModelCheckpoint(save_best_only=True)`` is to be written."""

STEPWISE_KINDS = (TRAINING, PREDICTION)
"""Kinds whose steps count one by one; of the others only the result of the whole task does."""


def single_task_ledger(kind: str) -> Ledger:
    """A ledger of one thing to do."""
    return Ledger(ShardPlan((RecordSource(kind, 1),), 1), 1, 1)


def shuffled_ledger(order: ShuffleOrder, epochs: int, minibatch: int, portion: int) -> Ledger:
    """The ledger of an order's positions, one after the other, in leases of ``portion`` records.

    Where a window is several leases it is one shard, so that it stays with one worker as far as possible: each worker
    that has a part of it reads all of its blocks.
    """
    positions = (RecordSource(SHUFFLED_SOURCE, order.records),)
    if order.window <= portion:
        return Ledger(ShardPlan(positions, portion), epochs, minibatch)
    return Ledger(ShardPlan(positions, order.window), epochs, minibatch, portion)
