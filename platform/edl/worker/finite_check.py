"""Losses and gradients that are NaN or infinite: found, and reported by the records that they are of."""

from __future__ import annotations

import logging
import math

import numpy as np

from edl.api.errors import JobFailedError
from edl.worker.lease_client import LeasedTask
from edl.worker.model_interface import NetworkLike, StepResultLike

_LOG = logging.getLogger(__name__)


class NotFiniteError(JobFailedError):
    """A loss or gradient is NaN or infinite, and ``train.on_nan`` is ``stop``."""


def is_finite(result: StepResultLike) -> bool:
    """Whether loss and all gradients are finite."""
    return math.isfinite(result.loss) and all(np.isfinite(a).all() for a in (result.slab, *result.rows.values()))


def find_nonfinite_gradient(network: NetworkLike, result: StepResultLike) -> str:
    """Which gradient is not finite, with its shape: the first one, in the order of the slab."""
    at = 0
    for variable in network.variables:
        if not np.isfinite(result.slab[at : at + variable.size]).all():
            what = "the change of the statistic" if variable.statistic else "the gradient of"
            return f"{what} '{variable.name}' {list(variable.shape)}"
        at += variable.size
    for table in network.tables:
        if not np.isfinite(result.rows[table.name]).all():
            return f"the gradient of rows of '{table.name}' ({table.rows or 'any id'} x {table.dim})"
    return "a gradient"


def report_not_finite(
    task: LeasedTask, step: int, loss: float, count: int, *, skip: bool, gradient: str = "a gradient"
) -> None:
    """Stop, or say what is skipped; ``gradient`` names the one to blame if the loss is finite.

    Raises:
        NotFiniteError: the job does not skip.
    """
    source, records = task.records(step)
    what = f"loss {loss}" if not math.isfinite(loss) else f"{gradient} is not finite, loss {loss:g}"
    if not skip:
        raise NotFiniteError(
            f"{what} from {records}" if not math.isfinite(loss) else f"{what}, from {records}",
            where=source,
            hint="look at these records and at the learning rate; train.on_nan: skip leaves such minibatches out",
        )
    place = records if source is None else f"{source}: {records}"
    _LOG.warning("%s: %s; the step is not applied, %d so far", place, what, count)
