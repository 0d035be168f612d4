"""Losses and gradients that are NaN or infinite: found, and reported by the records that they are of."""

from __future__ import annotations

import logging
import math

import numpy as np

from edl.core.errors import JobFailedError
from edl.worker.leases import Leased
from edl.worker.model_port import Step

_LOG = logging.getLogger(__name__)


class NotFiniteError(JobFailedError):
    """A loss or gradient is NaN or infinite, and ``train.on_nan`` is ``stop``."""


def is_finite(result: Step) -> bool:
    """Whether loss and all gradients are finite. A finite sum proves it in one pass; only else is each looked at."""
    if not math.isfinite(result.loss):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return all(bool(np.isfinite(a.sum()) or np.isfinite(a).all()) for a in (result.slab, *result.rows.values()))


def report_not_finite(task: Leased, step: int, loss: float, count: int, *, skip: bool) -> None:
    """Stop, or say what is skipped.

    Raises:
        NotFiniteError: the job does not skip.
    """
    start, end = task.window(step)
    what = f"loss {loss}" if not math.isfinite(loss) else "a gradient that is not finite"
    if not skip:
        raise NotFiniteError(
            f"{what} from records {start} to {end - 1}",
            where=task.source,
            hint="look at these records and at the learning rate; train.on_nan: skip leaves such minibatches out",
        )
    _LOG.warning("%s: %s from records %d to %d: not applied, %d so far", task.source, what, start, end - 1, count)
