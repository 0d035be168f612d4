"""Training one leased range: a push for every minibatch, and what happens to the ones that cannot be used."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from edl.core.errors import JobFailedError
from edl.worker.gate import Gate
from edl.worker.leases import Leased, Leases
from edl.worker.model_port import Network, Step, Watcher, rows_of
from edl.worker.parameters import Parameters, Push
from edl.worker.progress import Progress
from edl.worker.slab import Rows, RowsByTable
from edl.worker.stream import Loaded, Minibatch, RecordStream

_LOG = logging.getLogger(__name__)


class NotFiniteError(JobFailedError):
    """A loss or gradient is NaN or infinite, and ``train.on_nan`` is ``stop``."""


class Tried(NamedTuple):
    """What became of a minibatch: its loss if it applied something; whether the lease or the gradient was refused."""

    loss: float | None
    revoked: bool
    stale: bool


class Trainer:
    """Does training tasks.

    Args:
        network: the user's model.
        learning_rate: of a global step.
        parameters: the PS.
        stream: of training records.
        leases: says whether a lease is still this worker's.
        progress: is told of every step that is in.
        gate: held while a push is on its way.
        skip_nan: ``train.on_nan`` is ``skip``.
        watcher: the user's callbacks.
    """

    def __init__(
        self,
        network: Network,
        learning_rate: Callable[[int], float],
        parameters: Parameters,
        stream: RecordStream,
        leases: Leases,
        progress: Progress,
        gate: Gate,
        *,
        skip_nan: bool,
        watcher: Watcher,
    ) -> None:
        self._network = network
        self._learning_rate = learning_rate
        self._parameters = parameters
        self._stream = stream
        self._leases = leases
        self._progress = progress
        self._gate = gate
        self._skip_nan = skip_nan
        self._watcher = watcher
        self._not_finite = 0
        self._rejected = 0
        self._traced = False

    def run(self, task: Leased) -> None:
        """All steps of a range, then the report; what is left of a lease that was lost is dropped.

        Raises:
            NotFiniteError: a step's loss or gradient is not finite and the job stops at that.
            LeavingError: this worker was told to go.
            EdlError: records cannot be read, or the PS are away for too long.
        """
        self._watcher.begin_epoch(task.epoch)
        for loaded in self._stream.minibatches(task):
            if not self._leases.alive(task.lease) or not self._step(task, loaded):
                _LOG.info("lease %d: dropped after %d steps", task.lease, loaded.step)
                self._progress.drop(task.lease)
                return
        self._progress.finish(task.lease)

    def _step(self, task: Leased, loaded: Loaded) -> bool:
        """One step, in on all PS; False if the lease was revoked."""
        number = self._parameters.version
        self._watcher.begin_step(number)
        while (tried := self._try(task, loaded)).stale:
            self._rejected += 1
            _LOG.debug("lease %d: step %d is computed anew, %d so far", task.lease, loaded.step, self._rejected)
        if tried.loss is not None and not tried.revoked:
            self._watcher.end_step(number, tried.loss)
        return not tried.revoked

    def _try(self, task: Leased, loaded: Loaded) -> Tried:
        """Compute and push a minibatch, at the values as they are."""
        result = self._compute(task, loaded)
        loss = None if result is None else result[0].loss
        with self._gate.critical():
            pushed = self._parameters.push(self._push(task, loaded, result))
            if not (pushed.revoked or pushed.stale):
                self._progress.stepped(task.lease, loaded.step + 1, loss=loss, skipped=loaded.skipped)
        return Tried(loss, pushed.revoked, pushed.stale)

    def _compute(self, task: Leased, loaded: Loaded) -> tuple[Step, RowsByTable] | None:
        """Loss and gradients; None if there is nothing to apply."""
        if loaded.minibatch is None:
            return None
        minibatch: Minibatch = loaded.minibatch
        result, rows = self._gradients(minibatch)
        if not self._traced:
            # Tracing takes seconds, in which other workers go on: these gradients are of values long gone.
            self._traced = True
            result, rows = self._gradients(minibatch)
        if is_finite(result):
            return result, {table: Rows(rows[table].ids, values) for table, values in result.rows.items()}
        self._not_finite += 1
        report_not_finite(task, loaded.step, result.loss, self._not_finite, skip=self._skip_nan)
        return None

    def _gradients(self, minibatch: Minibatch) -> tuple[Step, RowsByTable]:
        slab = self._parameters.slab()
        rows = rows_of(self._network, self._parameters, minibatch.features)
        return self._network.train(slab, rows, minibatch.features, minibatch.labels), rows

    def _push(self, task: Leased, loaded: Loaded, result: tuple[Step, RowsByTable] | None) -> Push:
        cut = self._progress.acknowledge()
        following = task.lease if loaded.step + 1 < task.steps else self._leases.upcoming()
        versions = self._parameters.versions
        if result is None:
            return Push(task.lease, loaded.step, cut, versions=versions, following=following)
        return Push(
            task.lease,
            loaded.step,
            cut,
            versions=versions,
            following=following,
            learning_rate=self._learning_rate(self._parameters.version),
            weight=loaded.records / task.minibatch,
            slab=result[0].slab,
            rows=result[1],
        )


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
