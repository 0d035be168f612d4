"""Training of a leased range: one push per minibatch, and the handling of unusable ones.

``Trainer`` has the parts of a step as methods, and two loops over them: ``run_sequentially`` and
``run_overlapped``.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ParamSpec, TypeVar

import numpy as np

from edl.api.errors import BadInputError, JobFailedError
from edl.numerics.array_types import Floats, RowBatch, RowsByTable
from edl.numerics.parameter_store import PushGradients
from edl.worker.graceful_shutdown import ShutdownGate
from edl.worker.lease_client import LeaseClient, LeasedTask, ProgressReporter
from edl.worker.model_interface import NetworkLike, StepResultLike, TrainingCallbacks, pull_needed_rows
from edl.worker.parameter_client import ParameterClient, StepPush
from edl.worker.record_stream import LoadedStep, MinibatchLike, RecordStream


@dataclass(slots=True)
class TrainingStep:
    """A minibatch on its way to the parameter servers; each stage fills in what the next one needs.

    Attributes:
        loaded_step: the minibatch; may have no records, if all of them are corrupt.
        table_rows: the rows of PS-backed tables that it looks up.
        flat_values: the dense values; nothing is written there while the step is computed.
        value_versions: of these values, by PS.
        global_step: the number that it is to get, as far as this worker knows.
        loss: None if it applies nothing.
        push: without the lease that follows, which is known when it is sent.
    """

    loaded_step: LoadedStep
    table_rows: RowsByTable
    flat_values: Floats = field(init=False)
    value_versions: tuple[int, ...] = field(init=False)
    global_step: int = field(init=False)
    loss: float | None = field(init=False)
    push: StepPush = field(init=False)


# --------------------------------------------------------------------------------------------------
# A single background thread that runs its jobs in the order in which they were submitted.


JobResult = TypeVar("JobResult")
JobArguments = ParamSpec("JobArguments")


class SerialExecutor:
    """Runs jobs one after another on a daemon thread, which starts with the first job.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._job_queue: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], Any, Any] | None] = (
            queue.SimpleQueue()
        )
        self._newest_future: Future[Any] | None = None

    def submit(
        self, job: Callable[JobArguments, JobResult], /, *args: JobArguments.args, **kwargs: JobArguments.kwargs
    ) -> Future[JobResult]:
        """Run ``job`` after all earlier ones; its result or exception comes out of the future.

        To be called by one thread.
        """
        if self._newest_future is None:
            threading.Thread(target=self._run_jobs, name=self._name, daemon=True).start()
        future: Future[JobResult] = Future()
        self._newest_future = future
        self._job_queue.put((future, job, args, kwargs))
        return future

    def drain(self) -> None:
        """Wait until no job is running, whether it succeeds or fails."""
        if self._newest_future is not None:
            wait((self._newest_future,))

    def close(self) -> None:
        """Stop the thread after the submitted jobs. No job may follow."""
        self._job_queue.put(None)

    def _run_jobs(self) -> None:
        while (item := self._job_queue.get()) is not None:
            future, job, args, kwargs = item
            try:
                future.set_result(job(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  raised again where the result is wanted
                future.set_exception(error)
            # Drop the reference: it may be a gradient or rows, which would otherwise live until the
            # next job.
            del future, job, args, kwargs, item


# --------------------------------------------------------------------------------------------------
# Losses and gradients that are NaN or infinite: detected, and reported with their records.


class NotFiniteError(JobFailedError):
    """A loss or gradient is NaN or infinite, and ``train.on_nan`` is ``stop``."""


def is_finite(result: StepResultLike) -> bool:
    """Whether loss and all gradients are finite."""
    return math.isfinite(result.loss) and all(
        np.isfinite(a).all() for a in (result.flat_gradients, *result.row_gradients.values())
    )


def find_nonfinite_gradient(network: NetworkLike, result: StepResultLike) -> str:
    """The first gradient that is not finite, in the order of the flat buffer, with its shape."""
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
    task: LeasedTask, step: int, loss: float, count: int, *, skip: bool, gradient: str = "a gradient"
) -> None:
    """Stop, or log what is skipped; ``gradient`` names the culprit if the loss is finite.

    Raises:
        NotFiniteError: the job does not skip.
    """
    source, records = task.describe_records(step)
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
    """Add the record range to input errors that name no other place."""
    try:
        yield
    except BadInputError as error:
        if error.where is None:
            source, records = task.describe_records(step)
            error.where = records if source is None else f"{source}, {records}"
        raise


_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _LeasedRange:
    """A leased range in progress.

    Attributes:
        task: the lease.
        loaded_steps: of all its steps.
        applied_steps: how many are in on all PS.
    """

    task: LeasedTask
    loaded_steps: Iterator[LoadedStep]
    applied_steps: int = 0


class Trainer:
    """Runs training tasks.

    Args:
        network: the user's model.
        learning_rate: of a global step.
        parameter_client: the PS.
        stream: of training records.
        leases: says whether a lease is still this worker's.
        progress: is told of every step that is in.
        gate: held while a push is on its way.
        skip_nan: ``train.on_nan`` is ``skip``.
        training_callbacks: the user's.
        executor: ``strategy.overlap``: pushes and pulls beside the step that is computed. None: one step at a time.
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
        executor: SerialExecutor | None = None,
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
        self._executor = executor
        self._nonfinite_count = 0
        self._stale_pushes = 0
        self._is_traced = False

    def run(self, task: LeasedTask) -> None:
        """Train all steps of a range and report it; the rest of a lost lease is dropped.

        Raises:
            NotFiniteError: a step's loss or gradient is not finite and the job stops at that.
            LeavingError: this worker was told to leave.
            EdlError: records cannot be read, or the PS are away for too long.
        """
        self._training_callbacks.begin_epoch(task.epoch)
        loaded_steps = self._load_steps(task)
        # A range that is trained one by one may contain a record that crashes the process. Nothing
        # of it is read ahead, so that a crash identifies its minibatch.
        if task.one_by_one:
            leased_range = _LeasedRange(task, loaded_steps)
            self.run_sequentially(leased_range)
        else:
            leased_range = _LeasedRange(task, self._trace_model_first(task, loaded_steps))
            if self._executor is None:
                self.run_sequentially(leased_range)
            else:
                self.run_overlapped(leased_range, self._executor)
        if leased_range.applied_steps == task.step_count:
            self._progress.finish_task(task.lease_id)
        else:
            _LOG.info("lease %d: dropped after %d steps", task.lease_id, leased_range.applied_steps)
            self._progress.drop_lease(task.lease_id)

    # ------------------------------------------------------------ the two loops over a range's
    # steps

    def run_sequentially(self, leased_range: _LeasedRange) -> None:
        """Complete each step before the next one starts: every step uses the newest values."""
        while (step := self.prepare_step(leased_range)) is not None:
            self.pull_values(leased_range, step, None)
            self.compute_step(leased_range, step)
            if not self.push_step(leased_range, step):
                return
            self.end_step(step)

    def run_overlapped(self, leased_range: _LeasedRange, executor: SerialExecutor) -> None:
        """Push one step and prepare another while the one between them is computed.

        Pushing and pulling wait for parameter servers, computing does not::

            caller   |          compute n            |            compute n+1          |
            executor | values n | push n-1 prepare n+1 | values n+1 | push n  prepare n+2 | values n+2

        The executor's order is the whole protocol: a step is pushed after the one before it was answered, and prepared
        after the one before the last was. So there is one push on its way at most, and a step uses values that lack
        one push of this worker at most, the newest. docs/design/0008-modes.md has what follows from it.

        Nothing is under way when this returns or raises.

        Raises:
            Exception: what the steps raise; of two that fail at once, what the computed one does.
        """
        try:
            prepared = executor.submit(self.prepare_step, leased_range)
            step = executor.submit(self._pull_values_of, leased_range, prepared, None).result()
            prepared = executor.submit(self.prepare_step, leased_range)
            pushed: Future[bool] | None = None
            while step is not None:
                self.compute_step(leased_range, step)
                # If the previous step turns out to be refused, the step being computed is
                # discarded.
                if pushed is not None and not pushed.result():
                    return
                # Only the dense values are pulled this late, so that they include what other
                # workers push in the meantime. Values as old as the rows would lack twice as many
                # pushes of others, which costs accuracy.
                next_step = executor.submit(self._pull_values_of, leased_range, prepared, step)
                pushed = executor.submit(self.push_step, leased_range, step)
                prepared = executor.submit(self._prepare_unless_revoked, leased_range, pushed)
                self.end_step(step)
                step = next_step.result()
            if pushed is not None:
                pushed.result()
        finally:
            # After the range, any thread may use the connections: an evaluation, an export, another
            # range.
            executor.drain()

    def _pull_values_of(
        self, leased_range: _LeasedRange, prepared: Future[TrainingStep | None], unsent_step: TrainingStep | None
    ) -> TrainingStep | None:
        """On the executor, after ``prepared``: the step with its values; None after the last one."""
        step = prepared.result()
        if step is not None:
            self.pull_values(leased_range, step, unsent_step)
        return step

    def _prepare_unless_revoked(self, leased_range: _LeasedRange, pushed: Future[bool]) -> TrainingStep | None:
        """On the executor, after ``pushed``: prepare the next step only if the lease is still held."""
        return self.prepare_step(leased_range) if pushed.result() else None

    # ------------------------------------------------------------ the stages of a step

    def prepare_step(self, leased_range: _LeasedRange) -> TrainingStep | None:
        """The next minibatch and its rows; None at the end of the range, or of its lease."""
        loaded_step = next(leased_range.loaded_steps, None)
        return None if loaded_step is None else self._with_rows(leased_range.task, loaded_step)

    def pull_values(self, leased_range: _LeasedRange, step: TrainingStep, unsent_step: TrainingStep | None) -> None:
        """Pull the newest dense values into a step; ``unsent_step``: the previous one, if it is not sent yet."""
        client = self._parameter_client
        step.flat_values = client.latest_values(None if unsent_step is None else unsent_step.push)
        step.value_versions = client.value_versions
        # The servers' version lacks the pushes of this range that are in flight; they precede this
        # step.
        step.global_step = client.global_step + step.loaded_step.step - leased_range.applied_steps

    def compute_step(self, leased_range: _LeasedRange, step: TrainingStep) -> None:
        """Compute loss and push of a step; on the thread that created the model."""
        self._training_callbacks.begin_step(step.global_step)
        self._compute_push(leased_range.task, step)

    def push_step(self, leased_range: _LeasedRange, step: TrainingStep) -> bool:
        """Push a step to all PS; False if the lease is lost."""
        task, loaded_step = leased_range.task, step.loaded_step
        while self._leases.is_held(task.lease_id):
            # Shutdown waits for the answer and for recording the step. Otherwise the master would
            # have to ask the PS for the lease's progress.
            with self._gate.critical_section():
                # Rounds of synchronous training wait for the push announced here, so the lease that
                # follows is looked up as late as possible.
                has_more_steps = loaded_step.step + 1 < task.step_count
                next_lease = task.lease_id if has_more_steps else self._leases.next_training_lease()
                outcome = self._parameter_client.push(replace(step.push, next_lease_id=next_lease))
                if outcome.revoked:
                    return False
                if not outcome.stale:
                    leased_range.applied_steps = loaded_step.step + 1
                    self._progress.record_step(
                        task.lease_id,
                        leased_range.applied_steps,
                        loss=step.loss,
                        skipped_records=loaded_step.skipped_records,
                    )
                    return True
            # A synchronous PS refused the gradient as stale. Compute it again here; the step object
            # of the loop stays unchanged. In synchronous training nothing else is in flight.
            self._stale_pushes += 1
            _LOG.debug(
                "lease %d: step %d is recomputed because its values were stale, %d so far",
                task.lease_id,
                loaded_step.step,
                self._stale_pushes,
            )
            step = self._with_rows(task, loaded_step)
            self.pull_values(leased_range, step, None)
            self._compute_push(task, step)
        return False

    def end_step(self, step: TrainingStep) -> None:
        """Notify the user's callbacks of the end of a step, before the next one is computed."""
        if step.loss is not None:
            self._training_callbacks.end_step(step.global_step, step.loss)

    def _with_rows(self, task: LeasedTask, loaded_step: LoadedStep) -> TrainingStep:
        if loaded_step.minibatch is None:
            return TrainingStep(loaded_step, {})
        return TrainingStep(loaded_step, self._pull_rows(task, loaded_step.step, loaded_step.minibatch))

    def _pull_rows(self, task: LeasedTask, step: int, minibatch: MinibatchLike) -> RowsByTable:
        with add_record_range(task, step):
            return pull_needed_rows(self._network, self._parameter_client, minibatch.features)

    def _compute_push(self, task: LeasedTask, step: TrainingStep) -> None:
        """Run the step function and build the push. A push that applies nothing still records its step."""
        loaded_step = step.loaded_step
        step.loss = None
        step.push = StepPush(task.lease_id, loaded_step.step, value_versions=step.value_versions)
        minibatch = loaded_step.minibatch
        if minibatch is None:
            return
        with add_record_range(task, loaded_step.step):
            result = self._network.train(
                step.flat_values, step.table_rows, minibatch.features, minibatch.labels, minibatch.weights
            )
        # Servers apply whatever they receive. Only the worker knows the records behind a NaN, so it
        # decides here.
        if not is_finite(result):
            self._nonfinite_count += 1
            bad_gradient = find_nonfinite_gradient(self._network, result)
            report_not_finite(
                task,
                loaded_step.step,
                result.loss,
                self._nonfinite_count,
                skip=self._skip_nan,
                gradient=bad_gradient,
            )
            return
        step.loss = result.loss
        gradients = PushGradients(
            result.flat_gradients,
            {table: RowBatch(step.table_rows[table].ids, values) for table, values in result.row_gradients.items()},
            self._learning_rate(step.global_step),
            # The last minibatch of a range may be smaller: its statistics are weighted by its share
            # of records.
            loaded_step.record_count / task.minibatch_size,
        )
        step.push = replace(step.push, gradients=gradients)

    # ------------------------------------------------------------ the records of a range

    def _load_steps(self, task: LeasedTask) -> Iterator[LoadedStep]:
        """Load steps while the lease is held; the stream stops reading for a lost one."""
        for loaded in self._stream.load_steps(task):
            if not self._leases.is_held(task.lease_id):
                return
            yield loaded
            if not self._leases.is_held(task.lease_id):
                return

    def _trace_model_first(self, task: LeasedTask, loaded_steps: Iterator[LoadedStep]) -> Iterator[LoadedStep]:
        """The same minibatches; for the first range, the model is first traced with the first of them.

        Tracing takes seconds, in which other workers push many updates, so this gradient is
        discarded as outdated. It runs on the thread that made the model, because Keras keeps some of
        its settings by thread.
        """
        consumed: list[LoadedStep] = []
        while not self._is_traced and (loaded := next(loaded_steps, None)) is not None:
            consumed.append(loaded)
            if loaded.minibatch is not None:
                rows = self._pull_rows(task, loaded.step, loaded.minibatch)
                with add_record_range(task, loaded.step):
                    minibatch = loaded.minibatch
                    self._network.train(
                        self._parameter_client.latest_values(),
                        rows,
                        minibatch.features,
                        minibatch.labels,
                        minibatch.weights,
                    )
                self._is_traced = True
        return chain(consumed, loaded_steps)
