"""The client of a program that takes its records from a job's master.

The unit of accounting is a minibatch of ``train.minibatch_size`` records: one is done when the program says so, or asks
for the next one. What a worker had not finished when it was lost, another one gets.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edl.api.cluster_port import POD_GRACE_SECONDS
from edl.api.errors import BadInputError, EdlError
from edl.api.exit_codes import SIGTERM_EXIT
from edl.api.job_spec import JobSpec
from edl.data.reader import Metadata, Reader
from edl.jobfile.loader import load_job_file
from edl.jobfile.strategy_choice import uses_all_reduce
from edl.sharding.batches_ahead import BatchesAhead
from edl.sharding.program_replica import Reduction
from edl.sharding.record_batch import RecordBatch
from edl.sharding.record_prefetch import PrefetchedBatch, prefetch_records
from edl.sharding.shared_steps import Arrays, ProgramWorld, SharedStep, SharedSteps, StepProgram
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.open_files import raise_open_files_limit
from edl.transport.process_identity import ProcessIdentity
from edl.worker.data_readers import open_data_set
from edl.worker.data_wait import measure_wait
from edl.worker.lease_client import (
    FINAL_REPORT_SECONDS,
    LEASES_AHEAD,
    TRAINING_KIND,
    LeaseClient,
    LeasedTask,
    ProgressReporter,
)
from edl.worker.master_session import MasterCall, MasterSession, make_master_call
from edl.worker.record_stream import CorruptRecordSkipper, LoadedStep, RecordStream
from edl.worker.runtime import ALL_REDUCE_LEASES_AHEAD

_LOG = logging.getLogger(__name__)

_BOUNDARY_SECONDS = 3.0
"""Seconds that the minibatch in progress gets after SIGTERM, before the leases are returned without it."""
_RETURN_SECONDS = 1.0
"""Seconds for returning the leases. If the master does not answer, they return when it learns of the end."""


class WorkerLeaving(SystemExit):
    """The cluster takes this worker away: all leases are returned, and other workers go on with their records.

    Raised where the program asks for more records. Uncaught, it ends the process in order, with exit code 0.
    """

    def __init__(self) -> None:
        super().__init__(0)


class RecordShard:
    """A leased range of records. Other workers do not get it while this one lives and makes progress.

    Attributes:
        epoch: from 0.
        source: the file; empty if the records of all files are shuffled.
        start, end: records ``[start, end)`` of the source, or positions of the epoch's shuffled order.
    """

    def __init__(self, client: Client, task: LeasedTask) -> None:
        self._client = client
        self.task = task
        self.epoch, self.source, self.start, self.end = task.epoch, task.source, task.start, task.end
        self._steps: Iterator[LoadedStep] | None = None
        self._loaded: LoadedStep | None = None

    def __len__(self) -> int:
        return self.end - self.start

    def __repr__(self) -> str:
        return f"RecordShard(epoch={self.epoch}, source={self.source!r}, start={self.start}, end={self.end})"

    @property
    def is_held(self) -> bool:
        """Whether this worker still holds it. If not, another worker has its records."""
        return self._client.holds(self)

    def batches(self) -> Iterator[RecordBatch]:
        """The minibatches that are left of the shard, in order. Each is done when the next one is taken.

        It ends early if the shard was taken from this worker.

        Raises:
            WorkerLeaving: the cluster takes this worker away.
            EdlError: records cannot be read.
        """
        return self._client.load_batches(self)

    @property
    def is_read(self) -> bool:
        """Whether the client has read minibatches of it; otherwise the program reads the records itself."""
        return self._steps is not None

    def load_next(self, stream: RecordStream) -> LoadedStep | None:
        """The first step that is not done; None if there is none."""
        if self._steps is None:
            self._steps = stream.load_steps(self.task)
        if self._loaded is None:
            self._loaded = next(self._steps, None)
        return self._loaded

    def step_done(self) -> None:
        """The step of ``load_next`` is done."""
        self._loaded = None


class Client:
    """A worker's connection to its master, for programs in any framework.

    Use it as a context manager, from one thread. The connection, heartbeats and reading ahead have threads of their
    own. If the ``with`` block ends with an exception, the master is told, and the job's limits for crashes apply.

    Args:
        identity: identity of this process.
        spec: the job.
        call: calls the master once.
    """

    def __init__(self, identity: ProcessIdentity, spec: JobSpec, call: MasterCall) -> None:
        self._identity = identity
        self.job = spec
        """The job file, with all defaults."""
        self.index = identity.index
        """Number of this worker, from 0. A worker that replaces another one may have a new number."""
        self.uid = identity.uid
        """Unique in the run."""
        self._session = MasterSession(
            pb.Member(role=identity.role.value, index=identity.index, uid=identity.uid),
            call,
            lost_timeout=spec.master.lost_timeout,
        )
        self._leases = LeaseClient(
            self._session,
            self._on_granted,
            lambda: self._progress.known_leases(),
            leases_ahead=ALL_REDUCE_LEASES_AHEAD if uses_all_reduce(spec) else LEASES_AHEAD,
            position_describer=lambda *positions: self._stream.describe_positions(*positions),
        )
        self._progress = ProgressReporter(self._session, self._leases.mark_lost)
        self._reader: Reader | None = None
        self._reader_lock = threading.Lock()
        self._stream = RecordStream(
            self._open_reader,
            CorruptRecordSkipper(spec.data.max_corrupt_records),
            lambda windows: measure_wait(prefetch_records(windows), self._progress.add_warning),
            self._leases.is_held,
            seed=spec.train.seed,
        )
        self._steps: SharedSteps | None = None
        self._loss: float | None = None
        self._shard: RecordShard | None = None
        self._ahead: BatchesAhead | None = None
        self._leaving = threading.Event()
        self._returned = threading.Event()
        self._at_boundary = threading.Condition()
        self._in_batch = False
        self._has_ended = False

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, *, handle_sigterm: bool | None = None) -> Client:
        """Connect to the master of the job that runs this program.

        Args:
            environment: instead of ``os.environ``.
            handle_sigterm: whether SIGTERM returns the leases and raises :class:`WorkerLeaving` where records are
                asked for. By default in the main thread, if the program has no handler of its own.

        Raises:
            BadInputError: the program was not started by a job, or its files cannot be read.
        """
        raise_open_files_limit()
        try:
            identity = ProcessIdentity.from_environment(environment)
        except BadInputError as error:
            raise BadInputError(
                error.message,
                where="edl.sharding.Client.from_env",
                hint="start the program with `edl run JOB.yaml`, with `command` in the job file",
            ) from error
        spec = load_job_file(identity.run_dir / "spec.json")
        client = cls(identity, spec, make_master_call(ControlChannel(identity.master_address, identity.token)))
        if handle_sigterm is None:
            handle_sigterm = (
                threading.current_thread() is threading.main_thread()
                and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            )
        if handle_sigterm:
            owner = os.getpid()

            def handle_sigterm_of(process: int) -> None:
                # A process that the program forked, such as a loader's, inherits the handler: it must not return the
                # leases of its parent.
                if process != owner:
                    os._exit(SIGTERM_EXIT)
                client.leave()

            signal.signal(signal.SIGTERM, lambda number, frame: handle_sigterm_of(os.getpid()))
            # A terminal's Ctrl-C reaches every process of the job; the supervisor decides what it means.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        client.start()
        return client

    def start(self) -> None:
        """Register with the master and ask for the first shards, on threads of their own."""
        for name, target in (("leases", self._register_and_lease), ("progress", self._progress.run)):
            threading.Thread(target=target, name=name, daemon=True).start()

    # ------------------------------------------------------------ records

    @property
    def metadata(self) -> Metadata:
        """What the training data is: its format, columns and classes."""
        return self._open_reader().metadata

    def fetch_shard(self) -> RecordShard | None:
        """Wait for the next range of records; None if there are no more.

        Raises:
            ValueError: the shard before it is not done; see :meth:`report_done` and :meth:`RecordShard.batches`.
            WorkerLeaving: the cluster takes this worker away.
            EdlError: the master is lost, or refused a request.
        """
        if uses_all_reduce(self.job):
            raise ValueError("under strategy AllReduce all workers take steps together: use client.steps()")
        if self._ahead is not None:
            raise ValueError("a loader takes the minibatches of this client: see client.batches_ahead()")
        if self._shard is not None and self._shard.is_held:
            raise ValueError(
                f"{self._shard!r} is not done: report_done() it, whose number counts from its beginning, or take all "
                "of its batches"
            )
        if self._shard is not None:
            self._drop(self._shard)
        while not self._has_ended:
            self._raise_if_leaving()
            task = self._leases.next_task()
            if task is None:
                self._has_ended = True
                break
            if task.kind == TRAINING_KIND and self._leases.is_held(task.lease_id):
                self._shard = RecordShard(self, task)
                return self._shard
            # A range that was revoked before it was taken.
            if task.kind == TRAINING_KIND:
                self._stream.drop_task(task)
            self._leases.release_slot(task)
        self._raise_if_leaving()
        self._progress.flush(FINAL_REPORT_SECONDS)
        return None

    def report_done(self, shard: RecordShard, records: int | None = None) -> None:
        """Report the first records of a shard as done.

        Args:
            shard: the newest one of ``fetch_shard``.
            records: how many from its beginning; None: all, which ends it. A minibatch that is not complete does not
                count yet.

        Raises:
            ValueError: it is not the newest shard, or has fewer records.
        """
        if shard is not self._shard:
            raise ValueError(f"{shard!r} is not the newest shard")
        count = len(shard) if records is None else records
        if not 0 <= count <= len(shard):
            raise ValueError(f"{shard!r} has {len(shard)} records, not {count}")
        if count == len(shard):
            self._record_step(shard, shard.task.step_count, skipped=0)
            self._finish(shard)
        elif steps := count // shard.task.minibatch_size:
            self._record_step(shard, steps, skipped=0)

    def report_done_and_wait(self, shard: RecordShard) -> bool:
        """Report a whole shard as done, and wait for the master's answer.

        A program that keeps results by itself learns so which of them count.

        Args:
            shard: the newest one of ``fetch_shard``.

        Returns:
            True if the master has entered the records as done, so no other worker gets them. False if it may have given
            them to another worker.

        Raises:
            ValueError: it is not the newest shard.
            EdlError: the master is lost.
        """
        self.report_done(shard)
        return self._progress.is_accepted(shard.task.lease_id, self.job.master.lost_timeout + FINAL_REPORT_SECONDS)

    def batches(self) -> Iterator[RecordBatch]:
        """All minibatches that this worker gets, of all epochs. Each is done when the next one is taken.

        A second iteration goes on where the first one was left, with the minibatch that was not done.

        Raises:
            WorkerLeaving: the cluster takes this worker away.
            EdlError: records cannot be read, or the master is lost.
        """
        if self._shard is not None:
            yield from self.load_batches(self._shard)
        while (shard := self.fetch_shard()) is not None:
            yield from self.load_batches(shard)

    def records(self) -> Iterator[Any]:
        """All records that this worker gets, one by one. Those of a minibatch are done together, after its last one.

        Raises:
            WorkerLeaving: the cluster takes this worker away.
            EdlError: records cannot be read, or the master is lost.
        """
        for batch in self.batches():
            yield from batch

    def batches_ahead(self) -> BatchesAhead:
        """The minibatches for a loader that works ahead of the training step, in place of :meth:`batches`.

        Raises:
            ValueError: the job has strategy AllReduce, or this client has given records before.
        """
        if uses_all_reduce(self.job):
            raise ValueError("under strategy AllReduce all workers take steps together: use client.steps()")
        if self._shard is not None or self._ahead is not None:
            raise ValueError("this client gives its records to another loop already")
        self._ahead = BatchesAhead(
            self._leases,
            self._stream,
            self._progress,
            _as_batch,
            self._raise_if_leaving,
            self._in_minibatch,
            self._take_loss,
            lambda: self._progress.flush(FINAL_REPORT_SECONDS),
        )
        return self._ahead

    def steps(
        self,
        arrays_like: Arrays,
        state_dict: Callable[[], Any],
        load_state_dict: Callable[[Any], None],
        *,
        reduction: Reduction = "mean",
        on_world: Callable[[ProgramWorld], None] | None = None,
    ) -> Iterator[SharedStep]:
        """The steps that all workers take together, for a job with ``strategy: {name: AllReduce}``.

        All functions are called on this thread, while it waits for a step or its sums.

        Args:
            arrays_like: arrays with the shapes and types of those that a step combines, such as the parameters whose
                gradients are: a sequence, or a mapping by name.
            state_dict: returns the program's state: nested mappings and sequences of arrays, numbers and texts. Its
                structure must stay the same. Workers that join get it, and checkpoints have it.
            load_state_dict: replaces the state by one of the same structure, whose arrays are NumPy arrays.
            reduction: what :meth:`SharedStep.allreduce` returns: ``mean``, by the weights of the workers, or ``sum``.
            on_world: called when this worker is in a new world, once ``os.environ`` has ``RANK``, ``WORLD_SIZE`` and
                the other variables of ``torchrun``.

        Raises:
            ValueError: the job has another strategy, or this was called before.
            WorkerLeaving: the cluster takes this worker away.
            BadInputError: workers have different programs, or their states differ; names worker and array.
            EdlError: records cannot be read, or the master is lost.
        """
        if not uses_all_reduce(self.job):
            raise ValueError("workers take steps together in a job with strategy: {name: AllReduce}")
        if self._steps is not None:
            raise ValueError("client.steps() was called before: all steps come from one iterator")
        self._steps = SharedSteps(
            self._identity,
            self.job,
            self._session,
            self._leases,
            self._progress,
            self._stream,
            StepProgram(arrays_like, state_dict, load_state_dict, reduction, on_world or (lambda world: None)),
        )
        return self._take_steps(self._steps)

    def _take_steps(self, steps: SharedSteps) -> Iterator[SharedStep]:
        self._raise_if_leaving()
        # From now on the master counts on this worker.
        self._session.register(ready=True)
        steps.start()
        yield from steps
        self._raise_if_leaving()
        self._progress.flush(FINAL_REPORT_SECONDS)

    @property
    def world(self) -> ProgramWorld | None:
        """The world that this worker takes steps in; None if it is in none.

        After the last step, workers with a world have the final state, and the others have not: a worker that came too
        late, say. So that one worker saves the model, save it where ``world`` is not None and ``world.rank`` is 0.
        """
        return None if self._steps is None else self._steps.world

    def report_loss(self, loss: float) -> None:
        """The loss of the minibatch in progress, for status and plots."""
        self._loss = float(loss)

    def stop_training(self) -> None:
        """Ask for no more records: the job ends when those that workers hold are done, or with the present step."""
        if self._steps is not None:
            self._steps.stop_training()
        else:
            self._progress.report_stop()

    def holds(self, shard: RecordShard) -> bool:
        """Whether this worker still holds a shard."""
        return shard is self._shard and self._leases.is_held(shard.task.lease_id)

    def load_batches(self, shard: RecordShard) -> Iterator[RecordBatch]:
        """See :meth:`RecordShard.batches`."""
        while self.holds(shard):
            # One that the program left is given again.
            loaded = shard.load_next(self._stream)
            if loaded is None:
                self._finish(shard)
                return
            self._raise_if_leaving()
            with self._in_minibatch():
                if (batch := _as_batch(shard.task, loaded)) is not None:
                    yield batch
                self._record_step(shard, loaded.step + 1, skipped=loaded.skipped_records)
                shard.step_done()
        if shard is self._shard:
            _LOG.info("%r was given to another worker", shard)
            self._drop(shard)

    @contextmanager
    def _in_minibatch(self) -> Iterator[None]:
        """A minibatch is in progress: a worker that leaves waits for its end."""
        with self._at_boundary:
            self._in_batch = True
        try:
            yield
        finally:
            with self._at_boundary:
                self._in_batch = False
                self._at_boundary.notify_all()

    # ------------------------------------------------------------ the end

    @property
    def is_leaving(self) -> bool:
        """Whether the cluster takes this worker away."""
        return self._leaving.is_set()

    def leave(self) -> None:
        """Return all leases soon, on a thread of its own: what SIGTERM does.

        The minibatch in progress may finish and be counted, if that takes at most three seconds. Then
        :class:`WorkerLeaving` is raised where the program asks for records.
        """
        if not self._leaving.is_set():
            self._leaving.set()
            threading.Thread(target=self._return_leases, name="leave", daemon=True).start()

    def close(self) -> None:
        """End the connection. What was fetched and is not done is returned by the end of the process."""
        if self._steps is not None:
            self._steps.close()
        with suppress(EdlError):
            self._progress.flush(FINAL_REPORT_SECONDS)
        self._leases.stop()
        self._progress.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, SystemExit | GeneratorExit):
            self._report_failure(error)
        self.close()

    def _report_failure(self, error: BaseException) -> None:
        from edl.worker.task_loop import describe_failure

        failure = describe_failure(error)
        lease = 0 if self._shard is None else self._shard.task.lease_id
        if self._ahead is not None:
            lease = self._ahead.oldest_lease
        with suppress(EdlError):
            self._session.report_failure(failure.kind, failure.message, failure.detail, lease)

    def _return_leases(self) -> None:
        if self._steps is not None:
            self._steps.begin_leaving()
        with self._at_boundary:
            self._at_boundary.wait_for(lambda: not self._in_batch, _BOUNDARY_SECONDS)
        try:
            self._session.leave("received SIGTERM", self._progress.unreported_progress(), deadline=_RETURN_SECONDS)
        except EdlError as error:
            _LOG.info("the leases were not returned: %s", error)
        self._returned.set()
        # Wakes a program that waits for records.
        self._leases.stop()

    def _raise_if_leaving(self) -> None:
        if self._leaving.is_set():
            self._returned.wait(POD_GRACE_SECONDS)
            raise WorkerLeaving

    # ------------------------------------------------------------ accounting

    def _register_and_lease(self) -> None:
        try:
            # In steps of all workers the others count on this one, once the program is ready for them.
            self._session.register(ready=not uses_all_reduce(self.job))
        except EdlError as error:
            self._leases.set_error(error)
        else:
            self._leases.run()

    def _on_granted(self, task: LeasedTask) -> None:
        self._progress.track_lease(task)
        # With a global batch, the ranges to read are known with each step.
        if task.kind == TRAINING_KIND and self.job.strategy.global_batch is None:
            self._stream.add_task(task)

    def _open_reader(self) -> Reader:
        with self._reader_lock:
            if self._reader is None:
                self._reader = open_data_set(
                    self.job.data, "training", None, Path(self.job.model.zoo), run_folder=self._identity.run_dir
                )
            return self._reader

    def _record_step(self, shard: RecordShard, steps: int, *, skipped: int) -> None:
        self._progress.record_step(shard.task.lease_id, steps, loss=self._take_loss(), skipped_records=skipped)

    def _take_loss(self) -> float | None:
        loss, self._loss = self._loss, None
        return loss

    def _finish(self, shard: RecordShard) -> None:
        self._progress.finish_task(shard.task.lease_id)
        if not shard.is_read:
            self._stream.drop_task(shard.task)
        self._release(shard)

    def _drop(self, shard: RecordShard) -> None:
        """Stop working on a shard that is not done."""
        self._progress.drop_lease(shard.task.lease_id)
        if not shard.is_read:
            self._stream.drop_task(shard.task)
        self._release(shard)

    def _release(self, shard: RecordShard) -> None:
        self._leases.release_slot(shard.task)
        self._shard = None


def _as_batch(task: LeasedTask, loaded: LoadedStep) -> RecordBatch | None:
    """The records of a step; None if all are corrupt."""
    if loaded.minibatch is None:
        return None
    assert isinstance(loaded.minibatch, PrefetchedBatch)
    start, _ = task.step_range(loaded.step)
    return RecordBatch(loaded.minibatch.records, task.epoch, task.source, start, loaded.skipped_records)
