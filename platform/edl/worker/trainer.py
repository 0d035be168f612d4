"""Training one leased range: a push for every minibatch, and what happens to the ones that cannot be used.

The parts of a step are methods here; in which order those of several steps happen is for the schedule (``overlap``).
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from edl.api.errors import BadInputError, JobFailedError
from edl.keras.flat_buffer import Floats, RowBatch, RowsByTable
from edl.worker.graceful_shutdown import ShutdownGate
from edl.worker.gradient_push import GradientPush
from edl.worker.lease_client import LeaseClient, LeasedTask, ProgressReporter
from edl.worker.model_interface import NetworkLike, StepResultLike, TrainingCallbacks, pull_needed_rows
from edl.worker.parameter_client import ParameterClient
from edl.worker.record_stream import LoadedStep, MinibatchLike, RecordStream

# --------------------------------------------------------------------------------------------------
# What a step is from part to part: prepared, ready to be computed, done.


class PreparedStep(NamedTuple):
    """A minibatch with the rows of served tables that it needs."""

    loaded: LoadedStep
    rows: RowsByTable


class ReadyStep(NamedTuple):
    """A minibatch with all that it is computed from.

    Attributes:
        loaded: the minibatch.
        number: the global step that it is to be, as far as this worker knows.
        versions: by PS, of the dense values.
        slab: the dense values; nothing writes there while the step is computed.
        rows: of served tables.
    """

    loaded: LoadedStep
    number: int
    versions: tuple[int, ...]
    slab: Floats
    rows: RowsByTable


class ComputedStep(NamedTuple):
    """A minibatch's loss, None if it applies nothing, and its push: which lease follows is known when it is sent."""

    loss: float | None
    push: GradientPush


# --------------------------------------------------------------------------------------------------
# One thread beside the one that computes: it does what it is given, in the order in which it was given.


JobResult = TypeVar("JobResult")


class SerialExecutor:
    """Jobs one after another. Its thread begins with the first job and is a daemon: it keeps no process alive.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._job_queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._newest_future: Future[Any] | None = None

    def submit(self, job: Callable[[], JobResult]) -> Future[JobResult]:
        """Do ``job`` after all that were given before; what it returns or raises comes out of the future.

        To be called by one thread.
        """
        if self._newest_future is None:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        future: Future[JobResult] = Future()
        self._newest_future = future
        self._job_queue.put((future, job))
        return future

    def drain(self) -> None:
        """Wait until nothing is under way, however it ends."""
        if self._newest_future is not None:
            wait((self._newest_future,))

    def close(self) -> None:
        """End the thread once it has done what it was given. No job may follow."""
        self._job_queue.put(None)

    def _run(self) -> None:
        while (item := self._job_queue.get()) is not None:
            future, job = item
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001  raised again where the result is wanted
                future.set_exception(error)
            del future, job, item  # a gradient or rows, which nobody needs until the next job comes


# --------------------------------------------------------------------------------------------------
# In which order the parts of the steps of a range happen: one after another, or those of neighbouring steps at once.
#
# A step is prepared (its records fed, their rows pulled), gets its dense values, is computed and sent. Sending and
# pulling wait for parameter servers, computing does not, so that the lane does these while the caller computes:
#
#     caller  |          compute n            |            compute n+1          |
#     lane    | values n | send n-1 prepare n+1 | values n+1 | send n  prepare n+2 | values n+2
#
# For its dense values alone a step waits: whatever others push while the step before it is computed is in them. Values
# that came as early as the rows would lack twice as many pushes of others, and that costs models their accuracy.
#
# The lane's order is the whole protocol: a step is sent after the one before it was answered, and prepared after the
# one
# before the last was. So there is one push on its way at most, and a step uses values that lack one push of this worker
# at most, the newest. docs/design/0008-modes.md has what follows from it.


PreparedT = TypeVar("PreparedT")
ReadyT = TypeVar("ReadyT")
ComputedT = TypeVar("ComputedT")


@dataclass(frozen=True, slots=True)
class StepStages(Generic[PreparedT, ReadyT, ComputedT]):
    """The parts of the steps of one range. Each is called once for each step, in the order of the steps.

    Attributes:
        prepare: gives what the next step needs, but for dense values; None after the last one.
        values: gives it the newest dense values; told of the step before it if that is not sent yet, but will be.
        compute: gives the outcome of a step; called on the caller's thread.
        send: puts a step in; False if the rest of the range is not wanted any more.
        end: tells the user's code that a step is over; on the caller's thread, before the next one is computed.
    """

    prepare: Callable[[], PreparedT | None]
    values: Callable[[PreparedT, ComputedT | None], ReadyT]
    compute: Callable[[ReadyT], ComputedT]
    send: Callable[[ReadyT, ComputedT], bool]
    end: Callable[[ReadyT, ComputedT], None]


StepSchedule: TypeAlias = Callable[[StepStages[Any, Any, Any]], bool]
"""Goes through all steps; False if one was not wanted. Nothing is under way when it returns or raises."""


def run_sequentially(stages: StepStages[PreparedT, ReadyT, ComputedT]) -> bool:
    """Each step as a whole before the next one begins: it is computed from values that nobody could have newer."""
    while (prepared := stages.prepare()) is not None:
        ready = stages.values(prepared, None)
        computed = stages.compute(ready)
        if not stages.send(ready, computed):
            return False
        stages.end(ready, computed)
    return True


class OverlappedSchedule:
    """Sends one step and prepares another while the one between them is computed.

    A step that is computed while the one before it turns out not to be wanted is thrown away.

    Args:
        lane: sends and prepares.
    """

    def __init__(self, executor: SerialExecutor) -> None:
        self._executor = executor

    def __call__(self, stages: StepStages[PreparedT, ReadyT, ComputedT]) -> bool:
        """See :data:`StepSchedule`.

        Raises:
            Exception: what the steps raise; of two that fail at once, what the computed one does.
        """
        try:
            return self._run_stages(stages)
        finally:
            self._executor.drain()

    def _run_stages(self, stages: StepStages[PreparedT, ReadyT, ComputedT]) -> bool:
        prepared = self._executor.submit(stages.prepare)
        ready = self._executor.submit(partial(_pull_values_for, stages, prepared, None)).result()
        next_prepared = self._executor.submit(stages.prepare)
        pushed: Future[bool] | None = None
        while ready is not None:
            computed = stages.compute(ready)
            if pushed is not None and not pushed.result():
                return False
            next_ready = self._executor.submit(partial(_pull_values_for, stages, next_prepared, computed))
            pushed = self._executor.submit(partial(stages.send, ready, computed))
            next_prepared = self._executor.submit(partial(_prepare_unless_revoked, pushed, stages.prepare))
            stages.end(ready, computed)
            ready = next_ready.result()
        return pushed is None or pushed.result()


def _pull_values_for(
    stages: StepStages[PreparedT, ReadyT, ComputedT], prepared: Future[PreparedT | None], unsent: ComputedT | None
) -> ReadyT | None:
    """On the lane, behind ``prepared``: what the step is computed from; None after the last one."""
    prepared_step = prepared.result()
    return None if prepared_step is None else stages.values(prepared_step, unsent)


def _prepare_unless_revoked(pushed: Future[bool], prepare: Callable[[], PreparedT | None]) -> PreparedT | None:
    """On the lane, behind ``pushed``: prepare a step only if it will be wanted."""
    return prepare() if pushed.result() else None


# --------------------------------------------------------------------------------------------------
# Losses and gradients that are NaN or infinite: found, and reported by the records that they are of.


class NotFiniteError(JobFailedError):
    """A loss or gradient is NaN or infinite, and ``train.on_nan`` is ``stop``."""


def is_finite(result: StepResultLike) -> bool:
    """Whether loss and all gradients are finite."""
    return math.isfinite(result.loss) and all(np.isfinite(a).all() for a in (result.slab, *result.rows.values()))


def find_nonfinite_gradient(network: NetworkLike, result: StepResultLike) -> str:
    """Which gradient is not finite, with its shape: the first one, in the order of the slab."""
    offset = 0
    for variable in network.variables:
        if not np.isfinite(result.slab[offset : offset + variable.size]).all():
            description = "the change of the statistic" if variable.statistic else "the gradient of"
            return f"{description} '{variable.name}' {list(variable.shape)}"
        offset += variable.size
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
    description = f"loss {loss}" if not math.isfinite(loss) else f"{gradient} is not finite, loss {loss:g}"
    if not skip:
        raise NotFiniteError(
            f"{description} from {records}" if not math.isfinite(loss) else f"{description}, from {records}",
            where=source,
            hint="look at these records and at the learning rate; train.on_nan: skip leaves such minibatches out",
        )
    place = records if source is None else f"{source}: {records}"
    _LOG.warning("%s: %s; the step is not applied, %d so far", place, description, count)


@contextmanager
def add_record_range(task: LeasedTask, step: int) -> Iterator[None]:
    """Say of input that cannot be used, and has no other place, which records of a task's source it is of."""
    try:
        yield
    except BadInputError as error:
        if error.where is None:
            source, records = task.records(step)
            error.where = records if source is None else f"{source}, {records}"
        raise


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
        parameter_client: ParameterClient,
        stream: RecordStream,
        leases: LeaseClient,
        progress: ProgressReporter,
        gate: ShutdownGate,
        *,
        skip_nan: bool,
        training_callbacks: TrainingCallbacks,
        schedule: StepSchedule = run_sequentially,
    ) -> None:
        self._network = network
        self._learning_rate = learning_rate
        self._parameter_client = parameter_client
        self._stream = stream
        self._leases = leases
        self._progress = progress
        self._gate = gate
        self._skip_nan = skip_nan
        self._training_callbacks = training_callbacks
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
        leased_range = _LeasedRange(
            task, minibatches if task.one_by_one else self._trace_model_first(task, minibatches)
        )
        schedule = run_sequentially if task.one_by_one else self._schedule
        schedule(
            StepStages(
                prepare=partial(self._prepare_next, leased_range),
                values=partial(self._pull_values, leased_range),
                compute=partial(self._compute_step, task),
                send=partial(self._send, leased_range),
                end=self._end,
            )
        )
        if leased_range.through == task.steps:
            self._progress.finish(task.lease)
        else:
            _LOG.info("lease %d: dropped after %d steps", task.lease, leased_range.through)
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
        consumed: list[LoadedStep] = []
        while not self._is_traced and (loaded := next(minibatches, None)) is not None:
            consumed.append(loaded)
            if loaded.minibatch is not None:
                rows = self._rows(task, loaded.step, loaded.minibatch)
                with add_record_range(task, loaded.step):
                    minibatch = loaded.minibatch
                    self._network.train(
                        self._parameter_client.slab(), rows, minibatch.features, minibatch.labels, minibatch.weights
                    )
                self._is_traced = True
        return chain(consumed, minibatches)

    # ------------------------------------------------------------ the parts of a step

    def _prepare_next(self, leased_range: _LeasedRange) -> PreparedStep | None:
        """The next minibatch, and its rows; None at the end of the range, or of its lease."""
        loaded = next(leased_range.loaded_steps, None)
        return None if loaded is None else self._prepare_step(leased_range, loaded)

    def _prepare_step(self, leased_range: _LeasedRange, loaded: LoadedStep) -> PreparedStep:
        rows: RowsByTable = {}
        if loaded.minibatch is not None:
            rows = self._rows(leased_range.task, loaded.step, loaded.minibatch)
        return PreparedStep(loaded, rows)

    def _pull_values(
        self, leased_range: _LeasedRange, prepared: PreparedStep, unsent: ComputedStep | None
    ) -> ReadyStep:
        """A prepared step with the newest dense values; ``unsent``: the step before it, if it is not sent yet."""
        loaded, rows = prepared
        flat_values = self._parameter_client.slab(None if unsent is None else unsent.push)
        # Steps of this range that are on their way precede it
        number = self._parameter_client.version + loaded.step - leased_range.through
        return ReadyStep(loaded, number, self._parameter_client.versions, flat_values, rows)

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
        minibatch: MinibatchLike = ready.loaded.minibatch
        with add_record_range(task, ready.loaded.step):
            result = self._network.train(
                ready.slab, ready.rows, minibatch.features, minibatch.labels, minibatch.weights
            )
        if is_finite(result):
            return result
        self._nonfinite_count += 1
        step, bad_gradient = ready.loaded.step, find_nonfinite_gradient(self._network, result)
        report_not_finite(task, step, result.loss, self._nonfinite_count, skip=self._skip_nan, gradient=bad_gradient)
        return None

    def _send(self, leased_range: _LeasedRange, ready: ReadyStep, computed: ComputedStep) -> bool:
        """Put a step in, on all PS; False if the lease is lost.

        A synchronous PS may find a gradient too old: it is computed again, here, because a schedule for
        synchronous training has nothing else under way.
        """
        task, loaded = leased_range.task, ready.loaded
        while self._leases.alive(task.lease):
            with self._gate.critical_section():
                outcome = self._parameter_client.push(self._with_next_lease(task, computed.push))
                if outcome.revoked:
                    return False
                if not outcome.stale:
                    leased_range.through = loaded.step + 1
                    self._progress.stepped(
                        task.lease, leased_range.through, loss=computed.loss, skipped_records=loaded.skipped
                    )
                    return True
            self._stale_pushes += 1
            _LOG.debug("lease %d: step %d is computed anew, %d so far", task.lease, loaded.step, self._stale_pushes)
            ready = self._pull_values(leased_range, self._prepare_step(leased_range, loaded), None)
            computed = self._done(task, ready)
        return False

    def _with_next_lease(self, task: LeasedTask, push: GradientPush) -> GradientPush:
        next_lease_id = task.lease if push.step + 1 < task.steps else self._leases.next_training_lease()
        return replace(push, following=next_lease_id)

    def _end(self, ready: ReadyStep, computed: ComputedStep) -> None:
        if computed.loss is not None:
            self._training_callbacks.end_step(ready.number, computed.loss)
