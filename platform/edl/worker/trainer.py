"""Training one leased range: a push for every minibatch, and what happens to the ones that cannot be used.

The parts of a step are methods here; in which order those of several steps happen is for the schedule (``overlap``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from edl.keras.flat_buffer import RowBatch, RowsByTable
from edl.worker.finite_check import find_nonfinite_gradient, is_finite, report_not_finite
from edl.worker.gradient_push import GradientPush
from edl.worker.lease_client import LeaseClient, LeasedTask
from edl.worker.model_interface import NetworkLike, StepResultLike, TrainingCallbacks, pull_needed_rows
from edl.worker.parameter_client import ParameterClient
from edl.worker.progress_reporter import ProgressReporter
from edl.worker.record_errors import add_record_range
from edl.worker.record_stream import LoadedStep, MinibatchLike, RecordStream
from edl.worker.shutdown_gate import ShutdownGate
from edl.worker.step_schedule import StepSchedule, StepStages, run_sequentially
from edl.worker.step_stages import ComputedStep, PreparedStep, ReadyStep

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _LeasedRange:
    """A leased range that is worked on.

    Attributes:
        task: the lease.
        loaded_steps: of all its steps.
        through: steps that are in.
    """

    task: LeasedTask
    loaded_steps: Iterator[LoadedStep]
    through: int = 0


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
        schedule: in which order the parts of neighbouring steps happen.
    """

    def __init__(
        self,
        network: NetworkLike,
        learning_rate: Callable[[int], float],
        parameters: ParameterClient,
        stream: RecordStream,
        leases: LeaseClient,
        progress: ProgressReporter,
        gate: ShutdownGate,
        *,
        skip_nan: bool,
        watcher: TrainingCallbacks,
        schedule: StepSchedule = run_sequentially,
    ) -> None:
        self._network = network
        self._learning_rate = learning_rate
        self._parameter_client = parameters
        self._stream = stream
        self._leases = leases
        self._progress = progress
        self._gate = gate
        self._skip_nan = skip_nan
        self._training_callbacks = watcher
        self._schedule = schedule
        self._nonfinite_count = 0
        self._stale_pushes = 0
        self._is_traced = False

    def run(self, task: LeasedTask) -> None:
        """All steps of a range, then the report; what is left of a lease that was lost is dropped.

        Raises:
            NotFiniteError: a step's loss or gradient is not finite and the job stops at that.
            LeavingError: this worker was told to go.
            EdlError: records cannot be read, or the PS are away for too long.
        """
        self._training_callbacks.begin_epoch(task.epoch)
        minibatches = self._load_steps(task)
        work = _LeasedRange(task, minibatches if task.one_by_one else self._trace_model_first(task, minibatches))
        schedule = run_sequentially if task.one_by_one else self._schedule
        schedule(
            StepStages(
                prepare=partial(self._prepare_next, work),
                values=partial(self._pull_values, work),
                compute=partial(self._compute_step, task),
                send=partial(self._send, work),
                end=self._end,
            )
        )
        if work.through == task.steps:
            self._progress.finish(task.lease)
        else:
            _LOG.info("lease %d: dropped after %d steps", task.lease, work.through)
            self._progress.drop(task.lease)

    def _load_steps(self, task: LeasedTask) -> Iterator[LoadedStep]:
        """Of a range while its lease is held: the stream reads no further for one that is lost."""
        for loaded in self._stream.load_steps(task):
            if not self._leases.alive(task.lease):
                return
            yield loaded
            if not self._leases.alive(task.lease):
                return

    def _trace_model_first(self, task: LeasedTask, minibatches: Iterator[LoadedStep]) -> Iterator[LoadedStep]:
        """The same minibatches; if it is the first range, once the model is traced, with the first of them.

        Tracing takes seconds, in which other workers go on: this gradient is of values long gone. It happens on the
        thread that made the model, because Keras keeps some of its settings by thread.
        """
        taken: list[LoadedStep] = []
        while not self._is_traced and (loaded := next(minibatches, None)) is not None:
            taken.append(loaded)
            if loaded.minibatch is not None:
                rows = self._rows(task, loaded.step, loaded.minibatch)
                with add_record_range(task, loaded.step):
                    given = loaded.minibatch
                    self._network.train(
                        self._parameter_client.slab(), rows, given.features, given.labels, given.weights
                    )
                self._is_traced = True
        return chain(taken, minibatches)

    # ------------------------------------------------------------ the parts of a step

    def _prepare_next(self, work: _LeasedRange) -> PreparedStep | None:
        """The next minibatch, and its rows; None at the end of the range, or of its lease."""
        loaded = next(work.loaded_steps, None)
        return None if loaded is None else self._prepare_step(work, loaded)

    def _prepare_step(self, work: _LeasedRange, loaded: LoadedStep) -> PreparedStep:
        rows: RowsByTable = {}
        if loaded.minibatch is not None:
            rows = self._rows(work.task, loaded.step, loaded.minibatch)
        return PreparedStep(loaded, rows)

    def _pull_values(self, work: _LeasedRange, prepared: PreparedStep, before: ComputedStep | None) -> ReadyStep:
        """A prepared step with the newest dense values; ``before``: the step before it, if it is not sent yet."""
        loaded, rows = prepared
        slab = self._parameter_client.slab(None if before is None else before.push)
        # Steps of this range that are on their way precede it
        number = self._parameter_client.version + loaded.step - work.through
        return ReadyStep(loaded, number, self._parameter_client.versions, slab, rows)

    def _rows(self, task: LeasedTask, step: int, minibatch: MinibatchLike) -> RowsByTable:
        with add_record_range(task, step):
            return pull_needed_rows(self._network, self._parameter_client, minibatch.features)

    def _compute_step(self, task: LeasedTask, ready: ReadyStep) -> ComputedStep:
        """Loss and gradients, as a push that does not say yet which lease follows."""
        self._training_callbacks.begin_step(ready.number)
        return self._done(task, ready)

    def _done(self, task: LeasedTask, ready: ReadyStep) -> ComputedStep:
        push = GradientPush(task.lease, ready.loaded.step, versions=ready.versions)
        result = self._compute_gradients(task, ready)
        if result is None:
            return ComputedStep(None, push)
        push = replace(
            push,
            learning_rate=self._learning_rate(ready.number),
            weight=ready.loaded.records / task.minibatch,
            slab=result.slab,
            rows={table: RowBatch(ready.rows[table].ids, values) for table, values in result.rows.items()},
        )
        return ComputedStep(result.loss, push)

    def _compute_gradients(self, task: LeasedTask, ready: ReadyStep) -> StepResultLike | None:
        """None if there is nothing to apply."""
        if ready.loaded.minibatch is None:
            return None
        given: MinibatchLike = ready.loaded.minibatch
        with add_record_range(task, ready.loaded.step):
            result = self._network.train(ready.slab, ready.rows, given.features, given.labels, given.weights)
        if is_finite(result):
            return result
        self._nonfinite_count += 1
        step, named = ready.loaded.step, find_nonfinite_gradient(self._network, result)
        report_not_finite(task, step, result.loss, self._nonfinite_count, skip=self._skip_nan, gradient=named)
        return None

    def _send(self, work: _LeasedRange, ready: ReadyStep, done: ComputedStep) -> bool:
        """Put a step in, on all PS; False if the lease is lost.

        A synchronous PS may find a gradient too old: it is computed again, here, because a schedule for
        synchronous training has nothing else under way.
        """
        task, loaded = work.task, ready.loaded
        while self._leases.alive(task.lease):
            with self._gate.critical_section():
                pushed = self._parameter_client.push(self._with_next_lease(task, done.push))
                if pushed.revoked:
                    return False
                if not pushed.stale:
                    work.through = loaded.step + 1
                    self._progress.stepped(task.lease, work.through, loss=done.loss, skipped=loaded.skipped)
                    return True
            self._stale_pushes += 1
            _LOG.debug("lease %d: step %d is computed anew, %d so far", task.lease, loaded.step, self._stale_pushes)
            ready = self._pull_values(work, self._prepare_step(work, loaded), None)
            done = self._done(task, ready)
        return False

    def _with_next_lease(self, task: LeasedTask, push: GradientPush) -> GradientPush:
        following = task.lease if push.step + 1 < task.steps else self._leases.next_training_lease()
        return replace(push, following=following)

    def _end(self, ready: ReadyStep, done: ComputedStep) -> None:
        if done.loss is not None:
            self._training_callbacks.end_step(ready.number, done.loss)
