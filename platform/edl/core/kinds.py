"""The kinds of work that are leased."""

from __future__ import annotations

from edl.core.shards import Plan, Source
from edl.core.tasks import Ledger

TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"
DESCRIBE, METRICS, EXPORT = "describe", "metrics", "export"
BEST = "best model"
"""The file of ``ModelCheckpoint(save_best_only=True)`` is to be written."""

STEPWISE = (TRAINING, PREDICTION)
"""Kinds whose steps count one by one; of the others only the result of the whole task does."""


def unit(kind: str) -> Ledger:
    """A ledger of one thing to do."""
    return Ledger(Plan((Source(kind, 1),), 1), 1, 1)
