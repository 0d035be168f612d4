"""What happens with a NaN or infinite loss or gradient, under each strategy: ``train.on_nan``.

A job ends with :class:`NotFiniteError` (``stop``), or a warning says that the step changes nothing (``skip``). Both
name the records of the minibatch.

- ParameterServer: a worker checks what it computed with :func:`is_finite`. A skipped step is pushed without gradients.
- Local and AllReduce: the model checks while it sums gradients (``edl.keras.replica_state.ReplicaStep``), and the step
  is not applied. Under AllReduce the message of the step tells all ranks (``step_message.StepMessage.is_finite``).
"""

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
    return math.isfinite(result.loss) and all(
        np.isfinite(a).all() for a in (result.flat_gradients, *result.row_gradients.values())
    )


def find_nonfinite_gradient(network: NetworkLike, result: StepResultLike) -> str:
    """The variable or table of the first gradient that is not finite, with its shape."""
    offset = 0
    for variable in network.variables:
        if not np.isfinite(result.flat_gradients[offset : offset + variable.size]).all():
            description = "the change of the statistic" if variable.statistic else "the gradient of"
            return f"{description} '{variable.name}' {list(variable.shape)}"
        offset += variable.size
    for table in network.tables:
        if not np.isfinite(result.row_gradients[table.name]).all():
            return f"the gradient of rows of '{table.name}' ({table.rows or 'any id'} x {table.dim})"
    return "a gradient"


def report_not_finite(
    task: LeasedTask,
    step: int,
    loss: float,
    count: int,
    *,
    skip: bool,
    gradient: str = "a gradient",
    rank: int | None = None,
) -> None:
    """Stop the job, or log that the step is skipped; the message names ``gradient`` if the loss is finite.

    Args:
        rank: of this worker, if several make a step together.

    Raises:
        NotFiniteError: ``skip`` is false.
    """
    source, records = task.describe_records(step)
    description = f"loss {loss}" if not math.isfinite(loss) else f"{gradient} is not finite, loss {loss:g}"
    if rank is not None:
        description += f", of rank {rank}"
    if not skip:
        raise NotFiniteError(
            f"{description} from {records}" if not math.isfinite(loss) else f"{description}, from {records}",
            where=source,
            hint="check these records and the learning rate; train.on_nan: skip skips such minibatches",
        )
    place = records if source is None else f"{source}: {records}"
    _LOG.warning("%s: %s; this step is skipped (%d skipped so far)", place, description, count)
