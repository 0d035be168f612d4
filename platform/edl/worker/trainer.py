"""Training of a leased range: one push per minibatch, also for a minibatch that changes no parameter.

``Trainer`` implements the stages of a step as methods, and two loops over these stages: ``run_sequentially`` and
``run_overlapped``.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ParamSpec, TypeVar

from edl.api.errors import BadInputError
from edl.numerics.array_types import Floats
from edl.numerics.parameter_store import PushGradients, RowBatch, RowsByTable
from edl.worker.graceful_shutdown import ShutdownGate
from edl.worker.lease_client import LeaseClient, LeasedTask, ProgressReporter
from edl.worker.loss_log import LossLog
from edl.worker.model_interface import NetworkLike, TrainingCallbacks, pull_needed_rows
from edl.worker.not_finite import find_nonfinite_gradient, is_finite, report_not_finite
from edl.worker.parameter_client import ParameterClient, StepPush
from edl.worker.record_stream import LoadedStep, MinibatchLike, RecordStream


@dataclass(slots=True)
class TrainingStep:
    """A minibatch on its way to the parameter servers; each stage fills in what the next one needs.

    Attributes:
        loaded_step: the minibatch; it has no records if all of them are corrupt.
        table_rows: the rows of PS-backed tables that the minibatch looks up.
        flat_values: the dense values; they do not change while the step is computed.
        value_versions: the version of each PS's values.
        global_step: the number that this worker expects for the step; other workers push at the same time.
        loss: the loss of the minibatch; None if the step changes no parameter.
        is_skipped: whether it changes none because loss or gradient is not finite.
        push: the request, except for the lease that follows: it is added when the push is sent.
    """

    loaded_step: LoadedStep
    table_rows: RowsByTable
    flat_values: Floats = field(init=False)
    value_versions: tuple[int, ...] = field(init=False)
    global_step: int = field(init=False)
    loss: float | None = field(init=False)
    is_skipped: bool = field(init=False, default=False)
    push: StepPush = field(init=False)


# --------------------------------------------------------------------------------------------------
# A single background thread that runs its jobs in the order in which they were submitted.


JobResult = TypeVar("JobResult")
JobArguments = ParamSpec("JobArguments")


class SerialExecutor:
    """Runs jobs one after another on a daemon thread, which starts with the first job.

    Args:
        name: the thread's name.
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
        """Run ``job`` after all earlier ones; the future has its result or exception.

        Only one thread may call it.
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
            # Without this, the thread's variables would keep gradients or rows in memory until the
            # next job.
            del future, job, args, kwargs, item


@contextmanager
def add_record_range(task: LeasedTask, step: int) -> Iterator[None]:
    """Add the source and the record range to a ``BadInputError`` that names no other place."""
    try:
        yield
    except BadInputError as error:
        if error.where is None:
            source, records = task.describe_records(step)
            error.where = records if source is None else f"{source}, {records}"
        raise


@contextmanager
def add_worker_name(name: str) -> Iterator[None]:
    """Begin a ``BadInputError`` with the worker: of several that train together, the others may have no such error.

    An exception of the user's code names its file and line instead.
    """
    try:
        yield
    except BadInputError as error:
        if type(error) is BadInputError:
            error.message = f"{name}: {error.message}"
        raise


_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _LeasedRange:
    """A leased range in progress.

    Attributes:
        task: the leased task.
        loaded_steps: the minibatches of its steps.
        applied_steps: how many of its steps all PS have applied.
    """

    task: LeasedTask
    loaded_steps: Iterator[LoadedStep]
    applied_steps: int = 0


class Trainer:
    """Runs training tasks.

    Args:
        network: the user's model.
        learning_rate: returns the learning rate of a global step.
        parameter_client: pulls values and pushes gradients.
        stream: reads and feeds the training records.
        leases: says whether this worker still holds a lease.
        progress: reports applied steps and ended leases to the master.
        gate: makes a shutdown wait for the answer to a push.
        skip_nan: whether ``train.on_nan`` is ``skip``.
        training_callbacks: the user's Keras callbacks.
        loss_log: gets the loss of each step.
        executor: pushes and pulls while a step is computed (``strategy.overlap``); None: one step at a time.
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
        loss_log: LossLog | None = None,
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
        self._loss_log = loss_log or LossLog(None)
        self._executor = executor
        self._nonfinite_count = 0
        self._stale_pushes = 0
        self._is_traced = False

    def run(self, task: LeasedTask) -> None:
        """Train all steps of a range and report its end; if its lease is lost, drop the remaining steps.

        Raises:
            NotFiniteError: a step's loss or gradient is not finite, and ``train.on_nan`` is ``stop``.
            LeavingError: this worker must leave.
            EdlError: records cannot be read, or a PS does not answer within its timeout.
        """
        self._training_callbacks.begin_epoch(task.epoch)
        loaded_steps = self._load_steps(task)
        # A range that is trained one by one may contain a record that crashes the process. Neither
        # tracing nor the executor may read ahead in it: a crash must identify its minibatch.
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

    # ------------------------------------------------------------ the two loops over steps

    def run_sequentially(self, leased_range: _LeasedRange) -> None:
        """Complete each step before the next one starts: every step uses the newest values."""
        while (step := self.prepare_step(leased_range)) is not None:
            self.pull_values(leased_range, step, None)
            self.compute_step(leased_range, step)
            if not self.push_step(leased_range, step):
                return
            self.end_step(step)

    def run_overlapped(self, leased_range: _LeasedRange, executor: SerialExecutor) -> None:
        """Push the previous step and prepare the next one while a step is computed.

        Pushing and pulling wait for parameter servers, computing does not::

            caller   |          compute n            |            compute n+1          |
            executor | values n | push n-1 prepare n+1 | values n+1 | push n  prepare n+2 | values n+2

        The executor runs its jobs in order, and this order is the protocol: step n is pushed after push n-1 was
        answered, and prepared after push n-2 was answered. So at most one push is in flight, and the values of a step
        lack at most this worker's newest push. docs/design/0008-modes.md describes the consequences for accuracy.

        No push or pull is in flight when this returns or raises.

        Raises:
            Exception: any error of a stage; if two stages fail at once, the error of the computed step.
        """
        try:
            prepared = executor.submit(self.prepare_step, leased_range)
            step = executor.submit(self._pull_values_of, leased_range, prepared, None).result()
            prepared = executor.submit(self.prepare_step, leased_range)
            pushed: Future[bool] | None = None
            while step is not None:
                self.compute_step(leased_range, step)
                # If the lease was revoked at the previous push, the computed step is discarded.
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
            # Only one thread at a time may use the connections, and after this range the task loop's
            # thread uses them itself: for evaluations, exports, and ranges trained one by one.
            executor.drain()

    def _pull_values_of(
        self, leased_range: _LeasedRange, prepared: Future[TrainingStep | None], unsent_step: TrainingStep | None
    ) -> TrainingStep | None:
        """Pull the values of the prepared step; returns None after the last one. Runs on the executor."""
        step = prepared.result()
        if step is not None:
            self.pull_values(leased_range, step, unsent_step)
        return step

    def _prepare_unless_revoked(self, leased_range: _LeasedRange, pushed: Future[bool]) -> TrainingStep | None:
        """Prepare the next step unless ``pushed`` found the lease revoked. Runs on the executor."""
        return self.prepare_step(leased_range) if pushed.result() else None

    # ------------------------------------------------------------ the stages of a step

    def prepare_step(self, leased_range: _LeasedRange) -> TrainingStep | None:
        """The next minibatch and its rows; None at the end of the range or when the lease is lost."""
        loaded_step = next(leased_range.loaded_steps, None)
        return None if loaded_step is None else self._with_rows(leased_range.task, loaded_step)

    def pull_values(self, leased_range: _LeasedRange, step: TrainingStep, unsent_step: TrainingStep | None) -> None:
        """Pull the newest dense values into a step.

        ``unsent_step`` is the previous step if its push is not sent yet: its gradient is added to the pulled values.
        """
        client = self._parameter_client
        step.flat_values = client.latest_values(None if unsent_step is None else unsent_step.push)
        step.value_versions = client.value_versions
        # The servers' version lacks the pushes of this range that are in flight; they precede this
        # step.
        step.global_step = client.global_step + step.loaded_step.step - leased_range.applied_steps

    def compute_step(self, leased_range: _LeasedRange, step: TrainingStep) -> None:
        """Compute loss and push of a step. Runs on the thread that created the model."""
        self._training_callbacks.begin_step(step.global_step)
        self._compute_push(leased_range.task, step)

    def push_step(self, leased_range: _LeasedRange, step: TrainingStep) -> bool:
        """Push a step to all PS; False if the lease is lost."""
        task, loaded_step = leased_range.task, step.loaded_step
        while self._leases.is_held(task.lease_id):
            # Shutdown waits for the answer and for recording the step. Otherwise the master would
            # have to ask the PS for the lease's progress.
            with self._gate.critical_section():
                # A round of synchronous training waits for the push of this worker that is announced
                # here. So the next lease is looked up as late as possible: it may have arrived while
                # this step was computed.
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
                        is_skipped=step.is_skipped,
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
        """Call the user's callbacks for the end of a step, before the next step is computed."""
        if step.loss is not None:
            self._training_callbacks.end_step(step.global_step, step.loss)
            self._loss_log.end_step(step.global_step + 1, step.loss)

    def _with_rows(self, task: LeasedTask, loaded_step: LoadedStep) -> TrainingStep:
        if loaded_step.minibatch is None:
            return TrainingStep(loaded_step, {})
        return TrainingStep(loaded_step, self._pull_rows(task, loaded_step.step, loaded_step.minibatch))

    def _pull_rows(self, task: LeasedTask, step: int, minibatch: MinibatchLike) -> RowsByTable:
        with add_record_range(task, step):
            return pull_needed_rows(self._network, self._parameter_client, minibatch.features)

    def _compute_push(self, task: LeasedTask, step: TrainingStep) -> None:
        """Run the step function and build the push; a push without gradients still records its step."""
        loaded_step = step.loaded_step
        step.loss, step.is_skipped = None, False
        step.push = StepPush(task.lease_id, loaded_step.step, value_versions=step.value_versions)
        minibatch = loaded_step.minibatch
        if minibatch is None:
            return
        with add_record_range(task, loaded_step.step):
            result = self._network.train(
                step.flat_values, step.table_rows, minibatch.features, minibatch.labels, minibatch.weights
            )
        # A PS applies every gradient that it receives. Only the worker can name the records that led
        # to a NaN, so the check is made here.
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
            step.is_skipped = True
            return
        step.loss = result.loss
        gradients = PushGradients(
            result.flat_gradients,
            {table: RowBatch(step.table_rows[table].ids, values) for table, values in result.row_gradients.items()},
            self._learning_rate(step.global_step),
            # The last minibatch of a range may be smaller, so its statistics (such as batch means)
            # get a smaller weight.
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
        """Returns ``loaded_steps``; in the first range, first traces the model with the first minibatch.

        Tracing takes seconds, in which other workers push many updates. So the gradient of this call is too old and
        discarded. Tracing runs on the thread that made the model, because Keras keeps some of its settings by thread.
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
