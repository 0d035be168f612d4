"""The master process: it creates its parts, runs until the end of the job, and stops them.

Exit codes:

* 0: the job is over, done or failed; ``failure.json`` says which. On Kubernetes a failed job exits 1,
  after the Job was changed so that no other master starts;
* 143: this master received SIGTERM. The journal is flushed, pods keep running, and another master
  continues;
* 1: this master cannot continue, another one may. Its log has the reason.

SIGUSR1 means that the user of ``edl run`` stops the job: it ends after a final checkpoint, for which
it waits at most 10 s.

If the journal cannot be written, the job fails with kind ``storage``, because no other master could
decide anything either. Users and the supervisor are informed, but the journal ends at its last durable
entry. When the disk has space again, ``edl run --resume`` continues from there and from the newest
checkpoint, as after a power failure. If the journal cannot be opened, the job does not change, and the
supervisor tries again for a while.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from edl.api.cluster_port import POD_GRACE_SECONDS, Role
from edl.api.errors import BadInputError, EdlError, StorageError
from edl.api.exit_codes import DONE_EXIT, FAILED_EXIT, SIGTERM_EXIT
from edl.api.job_spec import CheckpointSpec, JobSpec
from edl.api.run_events import RoleStarted, WarningRaised
from edl.cluster.status_port import DesiredState
from edl.core import priority_rule
from edl.core.cuts import FINAL_SECONDS, STOPPED
from edl.core.events import (
    CoreEvent,
    DatasetDescribed,
    DesiredStateInvalid,
    EndJob,
    PodChanged,
    PodsSynced,
    ScaleRequested,
    StopRequested,
)
from edl.core.job import JobStateMachine
from edl.core.state import LEASE_RETURN_SECONDS, JobSettings
from edl.data.file_digests import digest_sources
from edl.data.job_data import data_set_paths, open_job_data
from edl.data.reader_factory import read_reader_blocks
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import load_job_file
from edl.jobfile.log_level import set_printed_level
from edl.jobfile.quantities import format_size
from edl.jobfile.section_type import to_json
from edl.jobfile.strategy_choice import count_parameter_servers, has_own_state, uses_all_reduce
from edl.jobfile.zoo_lookup import find_model_function
from edl.master import guarded_threads
from edl.master.backend import MasterBackend, choose_backend
from edl.master.checkpoint_coordinator import CheckpointCoordinator
from edl.master.master_commands import CommandEnd, prepare_run, run_command
from edl.master.master_service import MasterService
from edl.master.pod_controller import (
    LEAVE_SECONDS,
    PROGRAM_END_SECONDS,
    PodController,
    live_pods,
    terminate_pods,
    wait_for_programs,
)
from edl.master.ps_client import PsControlClient
from edl.master.ps_metrics import PsMetrics
from edl.master.shell import MasterEndsError, MasterShell
from edl.master.status_publication import (
    PeriodicReports,
    PreparationReport,
    RunPublisher,
    is_end_written,
    write_end,
    write_metrics,
    write_summary,
)
from edl.master.status_reporter import StatusReporter
from edl.storage.journal import Journal
from edl.storage.journal_truncation import check_not_truncated, explain_journal_damage
from edl.storage.run_directory import RunDirectory
from edl.storage.run_weights import RunWeights, choose_run_weights, release_run_weights
from edl.transport import edl_pb2_grpc
from edl.transport.control_server import start_control_server
from edl.transport.open_files import raise_open_files_limit
from edl.transport.process_identity import ProcessIdentity

# --------------------------------------------------------------------------------------------------
# The part of the JobSpec that matters to decisions.


def settings_from_spec(spec: JobSpec, *, describe: bool, durable: bool, weights_step: int = 0) -> JobSettings:
    """The settings of a job that trains, or of one that evaluates or predicts and needs no parameter servers.

    A training job under AllReduce needs none either.

    Args:
        describe: whether a worker describes the data set, because the user has a reader of their own.
        durable: whether the run directory outlives the master's pod.
        weights_step: the global step of stored weights; 0 if it is unknown.
    """
    train, trains, all_reduce = spec.train, spec.task == "train", uses_all_reduce(spec)
    return JobSettings(
        minibatch=train.minibatch_size,
        # One worker must be able to fill a step with what it holds.
        task_records=max(train.minibatch_size * train.minibatches_per_task, spec.strategy.global_batch or 0),
        epochs=train.epochs,
        seed=train.seed,
        max_steps=train.max_steps,
        evaluation_steps=train.evaluation_steps,
        checkpoint_steps=spec.checkpoint.every_steps if spec.checkpoint and not has_own_state(spec) else None,
        checkpoint_full_timeout=(spec.checkpoint or CheckpointSpec()).full_timeout,
        export=spec.export is not None and trains and not spec.command,
        predict=spec.task == "predict",
        evaluate=spec.task == "evaluate",
        weights_step=weights_step,
        describe=describe,
        shuffle=train.shuffle.window,
        max_corrupt=spec.data.max_corrupt_records,
        skip_crashing=train.on_crashing_range == "skip",
        ps=count_parameter_servers(spec),
        workers=spec.workers.max,
        workers_min=spec.workers.min,
        elevated_share=priority_rule.parse_priority(spec.workers.priority).share,
        oom_memory_factor=spec.workers.oom_memory_factor,
        worker_memory=format_size(spec.workers.resources.memory),
        ps_memory=format_size(spec.ps.resources.memory),
        # Of a program that keeps its own state, only the ledger is the master's, in its journal.
        durable=durable and not has_own_state(spec),
        has_parameters=not has_own_state(spec),
        all_reduce=all_reduce,
        # The last worker that has the newest state writes it before it ends.
        grace=POD_GRACE_SECONDS if all_reduce else LEASE_RETURN_SECONDS,
        global_batch=spec.strategy.global_batch if all_reduce else None,
        buckets=trains and train.batches.bucket_by is not None,
        drop_remainder=trains and train.batches.drop_remainder,
        evaluation_workers=1 if spec.evaluation.max_workers is None else spec.evaluation.max_workers,
    )


def may_define_reader(spec: JobSpec) -> bool:
    """Whether the user's module may define its own reader.

    The module is parsed, never run. If it may, a worker, which runs it, describes the data set.
    """
    if spec.command:
        return False
    module = find_model_function(Path(spec.model.zoo), spec.model.definition, spec.model.functions)
    return module.may_define("custom_data_reader")


# --------------------------------------------------------------------------------------------------
# Counting the records of a data set with the built-in readers.


SourceRows = tuple[tuple[str, int], ...]


def describe_dataset(spec: JobSpec, run_folder: Path | None = None) -> DatasetDescribed:
    """The sources and record counts that the job needs.

    Raises:
        BadInputError: a data set does not exist or cannot be read.
    """
    used = {"predict": ("prediction",), "evaluate": ("validation",)}.get(spec.task, ("training", "validation"))
    readers = {
        name: open_job_data(spec.data, name, run_folder, is_first=True)
        for name in used
        if data_set_paths(spec.data, name)
    }
    rows = {name: tuple((each.name, each.records) for each in reader.sources()) for name, reader in readers.items()}
    training = readers.get("training")
    return DatasetDescribed(
        **rows,
        blocks=None if training is None or spec.train.shuffle.window == 0 else read_reader_blocks(training),
        digests={name: digests for name, reader in readers.items() if (digests := digest_sources(reader))},
    )


# --------------------------------------------------------------------------------------------------
# The desired state set by users, as events of the core.


STOP_CHECKPOINT_SECONDS = 30.0
"""Seconds for the checkpoint before a stop: the default grace period of pods."""


def desired_state_events(desired_states: Iterable[DesiredState]) -> Iterator[CoreEvent]:
    """The events for each desired state; the core ignores a state that it already has.

    Args:
        desired_states: the states in the order in which users set them.
    """
    for desired in desired_states:
        if desired.stop:
            yield StopRequested(STOPPED, STOP_CHECKPOINT_SECONDS)
            return
        if desired.unreadable:
            yield DesiredStateInvalid(desired.unreadable)
        else:
            yield ScaleRequested(desired.min, desired.max)


# --------------------------------------------------------------------------------------------------
# Tuning of the Python interpreter for a server with many small requests.


_SWITCH_SECONDS = 0.001
"""Seconds after which another thread gets the interpreter; Python's default is 0.005."""
_YOUNG_OBJECTS = 20_000
"""New objects after which garbage is collected; Python's default is 700 to 2,000."""


def tune_interpreter() -> None:
    """Tune the interpreter; call once, after all imports.

    Threads switch more often, because the journal's writer must not wait long for its turn. The
    garbage collector runs less often and skips the objects of the imports: messages and entries are
    freed by reference counting.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)


log = logging.getLogger("edl.master")

BEGINS_ANEW_MESSAGE = "the job starts over: it has no volume, so the state of the previous master is lost"
_FLUSH_SECONDS = 1.0
"""Seconds to wait for the events of the last pods at the end of the job."""
_THREADS_BESIDE_WORKERS, _THREADS_PER_WORKER = 16, 3
"""Threads of the server. A worker calls from three threads: for leases, for reports, and its main thread."""
_MIN_WORKERS = 64
"""How far a job may be scaled beyond its spec before lease requests wait for a free thread.

Threads are started on demand.
"""


def main() -> int:
    """Run the master; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    raise_open_files_limit()
    tune_interpreter()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    stop_wanted = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: stop_wanted.set())
    # A terminal's Ctrl-C reaches every process of the job; the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        identity = ProcessIdentity.from_environment()
        spec = _load_spec(RunDirectory(identity.run_dir))
        set_printed_level(spec.log.level)
        return serve_job(identity, spec, choose_backend(spec, identity, os.environ), stopping, stop_wanted)
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


def _load_spec(run: RunDirectory) -> JobSpec:
    try:
        return load_job_file(run.spec)
    except SpecError as error:
        hint = "The file was valid when the run started and has changed since: restore it, or start a new run."
        raise BadInputError(str(error), hint=hint) from error


def serve_job(
    identity: ProcessIdentity,
    spec: JobSpec,
    backend: MasterBackend,
    stopping: threading.Event,
    stop_wanted: threading.Event | None = None,
) -> int:
    """Wait until this process may be the job's master, then run; returns the exit code.

    Args:
        stopping: set on SIGTERM.
        stop_wanted: set when the job must end after a final checkpoint.

    Raises:
        EdlError: this master cannot start.
    """
    with ExitStack() as taken:
        taken.callback(backend.close)
        if not backend.acquire(stopping):
            log.info("received SIGTERM while waiting to become the master")
            return SIGTERM_EXIT
        run = RunDirectory(identity.run_dir)
        report = PreparationReport(spec, run, backend.status_publisher)
        prepared = CommandEnd()
        # Kubernetes may restart the container of a failed job: its reason stays, and nothing is prepared again.
        if not is_end_written(run):
            spec, prepared = prepare_run(run, spec, stopping, report.report_line)
        if prepared.was_stopped:
            log.info("received SIGTERM: the next master prepares the job")
            return SIGTERM_EXIT
        with MasterProcess(identity, spec, backend, prepared.problem) as master:
            code = master.run(stopping, stop_wanted)
        # Everything that the previous master wrote is on disk now.
        master.publish_end()
        return backend.conclude(failed=master.has_failed) if code == DONE_EXIT else code


class MasterProcess:
    """All parts of a master, started on entry and stopped on exit.

    Args:
        identity: identity of this process.
        spec: the job's spec.
        backend: the cluster or the machine that it runs on, with the fence.
        problem: why the job cannot run, if that is known.

    Raises:
        RefusedError: another master has the journal open.
        StorageError: the journal cannot be read or opened.
    """

    def __init__(
        self, identity: ProcessIdentity, spec: JobSpec, backend: MasterBackend, problem: EdlError | None = None
    ) -> None:
        self._run = RunDirectory(identity.run_dir)
        self._backend = backend
        self._spec, self._identity = spec, identity
        self._bad_module: EdlError | None = None
        self._weights = self._find_weights()
        state, self._journal = self._open_journal(f"master process {os.getpid()}")
        # What follows from a failed preparation, such as a missing module, is not the reason.
        self._bad_module = problem or self._bad_module
        self._publisher = (
            RunPublisher(backend.status_publisher, self._run) if backend.status_publisher is not None else None
        )
        on_event = self._publisher.add_event if self._publisher is not None else lambda event: None
        ps_metrics = PsMetrics(spec.strategy, spec.ps.max_rows)
        self._reporter = StatusReporter(
            self._run,
            spec.name,
            state,
            lambda error: self.shell.fail(error),
            on_event,
            lambda: ps_metrics.parameters_status() if state.settings.ps else None,
            lambda: self.shell.core_clock.now(),
        )
        keep = spec.checkpoint.keep if spec.checkpoint else 1
        checkpoints = CheckpointCoordinator(
            self._run.checkpoints, keep, self._cuts_in_use, lambda: self.shell.wait_for_fence()
        )
        incarnation = self._journal.incarnation
        self._ps_client = PsControlClient(identity.token, incarnation, state.settings.ps, checkpoints)
        self._pods = PodController(backend.cluster)
        self.shell = MasterShell(
            state,
            self._journal,
            pods=self._pods,
            ps_client=self._ps_client,
            emit_event=self._reporter.emit_core_event,
            fence=backend.fence,
        )
        self._servicer = MasterService(self.shell, self._ps_client, incarnation, ps_metrics.record_report)
        self._resources = ExitStack()
        self._periodic_reports = PeriodicReports(self.shell, self._reporter, self._publisher, self._run)

    def _open_journal(self, holder: str) -> tuple[JobStateMachine, Journal]:
        durable = self._backend.durable
        settings = settings_from_spec(
            self._spec,
            describe=self._has_own_reader(),
            durable=durable,
            weights_step=self._weights.step if self._weights is not None and self._spec.task != "train" else 0,
        )
        fence = self._backend.fence
        with explain_journal_damage(self._run):
            journal, content = Journal.open(
                self._run.journal,
                holder=holder,
                exclusive=fence is None,
                minimum_incarnation=fence.incarnation if fence else 0,
                validate_content=partial(check_not_truncated, self._run),
            )
        state = JobStateMachine(settings)
        state.replay_journal(content.snapshot, list(content.entries))
        if content.incarnation:
            log.info("replayed the journal of incarnation %d: %d entries", content.incarnation, len(content.entries))
        self._begins_anew = not (content.incarnation or durable) and journal.incarnation > 1
        return state, journal

    def _find_weights(self) -> RunWeights | None:
        """The weights of another run that this one works with, or begins with.

        They are found once, so that all workers and later masters use the same.
        """
        if self._spec.task == "train" and self._spec.model.init_from is None:
            return None
        try:
            return RunWeights.read(self._run, self._spec.task) or choose_run_weights(self._run, self._spec)
        except EdlError as error:
            # Reported as the job's failure by ``_describe_dataset``, when the master can do so.
            self._bad_module = error
            return None

    def _has_own_reader(self) -> bool:
        try:
            return may_define_reader(self._spec)
        except BadInputError as error:
            # Reported as the job's failure by ``_describe_dataset``, when the master can do so.
            self._bad_module = error
            return False

    def __enter__(self) -> MasterProcess:
        with self._resources as parts:
            for part in (self._journal, self._reporter, self.shell, self._ps_client, self._pods):
                parts.callback(part.close)
            # Before the server accepts calls: leases need this master's incarnation, and the answers
            # of PS need a receiver.
            self.shell.begin_incarnation(self._journal.incarnation)
            self._ps_client.start(self.shell.handle, self.shell.fail)
            self._start_server(parts)
            if self._begins_anew:
                self._reporter.emit_event(WarningRaised(BEGINS_ANEW_MESSAGE, time=time.time()))
            if self._weights is not None and self._weights.may_be_removed:
                self._reporter.emit_event(WarningRaised(self._weights.removal_warning, time=time.time()))
            if not self.shell.state.has_ended or self._awaits_programs:
                self._reporter.emit_event(RoleStarted(time=time.time(), role="master", index=0, pid=os.getpid()))
            self._periodic_reports.start()
            parts.callback(self._periodic_reports.close)
            self._resources = parts.pop_all()
        return self

    def _start_server(self, parts: ExitStack) -> None:
        server = start_control_server(
            lambda server: edl_pb2_grpc.add_MasterServicer_to_server(self._servicer, server),  # type: ignore[no-untyped-call]
            self._identity.master_address,
            self._identity.token,
            _THREADS_BESIDE_WORKERS + _THREADS_PER_WORKER * max(self._spec.workers.max, _MIN_WORKERS),
            before_stop=self.shell.stop_waiting,
        )
        parts.callback(server.stop, 0.2)

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    # ------------------------------------------------------------------ running

    def run(self, stopping: threading.Event, stop_wanted: threading.Event | None = None) -> int:
        """Run until the job is over, this master fails, or it is asked to stop; returns the exit code."""
        shell = self.shell
        has_ended = self._adopt_recorded_end()
        leaves = partial(self._is_leaving, stopping)
        if not has_ended or self._awaits_programs:
            self._pods.start(partial(self._handle_cluster_event, leaves), shell.fail, leaves)
        if not has_ended:
            guarded_threads.start_guarded_thread("data", self._describe_dataset, shell.fail)
            guarded_threads.start_guarded_thread("wishes", self._follow_desired_state, shell.fail)
            if stop_wanted is not None:
                guarded_threads.start_guarded_thread("stop", partial(self._wait_for_stop, stop_wanted), shell.fail)
            shell.run(stopping.is_set)
        if shell.job_end is not None and not self._judge_programs(stopping, stop_wanted):
            log.info("received SIGTERM: the next master waits for the programs, which keep running")
            return SIGTERM_EXIT
        if shell.job_end is not None:
            return self._end_job(shell.job_end, stopping)
        if isinstance(shell.failure, StorageError) and shell.core_clock.may_decide():
            return self._end_without_journal(shell.failure, stopping)
        if shell.core_clock.may_decide():
            self._write_current_state()
        if shell.failure is not None:
            return FAILED_EXIT
        log.info("received SIGTERM: the journal is flushed, pods keep running")
        return SIGTERM_EXIT

    @property
    def has_failed(self) -> bool:
        """Whether the job ended without success."""
        ended = self.shell.job_end
        return ended is not None and ended.phase != "Done"

    def publish_end(self) -> None:
        """Publish the final state of the job, or of this master."""
        if self._publisher is not None and self.shell.core_clock.may_decide():
            self._publisher.publish_end(self._periodic_reports.current_status())

    def _adopt_recorded_end(self) -> bool:
        """Whether the previous master ended the job and died before reporting it."""
        state = self.shell.state
        if state.has_ended:
            self.shell.job_end = EndJob(state.phase, state.reason)
        return state.has_ended

    def _describe_dataset(self) -> None:
        state = self.shell.state
        try:
            if self._bad_module is not None:
                raise self._bad_module
            if not state.is_dataset_known and not state.settings.describe:
                self.shell.handle(describe_dataset(self._spec, self._run.path))
        except EdlError as error:
            self.shell.fail_job(str(error), "storage" if isinstance(error, StorageError) else "input")

    def _is_leaving(self, stopping: threading.Event) -> bool:
        """Whether this master was asked to stop. The job may end with it; otherwise the next master decides."""
        return stopping.is_set() and self.shell.job_end is None

    def _handle_cluster_event(self, is_leaving: Callable[[], bool], event: CoreEvent) -> None:
        """Handle a report of the cluster; reports about PS also update their connections."""
        # Leave it to the next master, which receives the report again.
        if is_leaving():
            return
        self.shell.handle(event)
        if isinstance(event, PodChanged) and event.pod.has_ended:
            self._ps_client.remove_ps(event.pod.uid)
        elif isinstance(event, PodsSynced):
            known = {pod.uid for pod in live_pods(self.shell, Role.PS)}
            for uid in self._ps_client.connections().keys() - known:
                self._ps_client.remove_ps(uid)

    def _follow_desired_state(self) -> None:
        """Follow the desired state; ends with its source, possibly after this master."""
        source = self._backend.desired_states
        if source is None:
            return
        try:
            for event in desired_state_events(source.watch_desired_state()):
                self.shell.handle(event)
        except MasterEndsError as error:
            log.info("the desired state is left to the next master: %s", error)

    def _wait_for_stop(self, stop_wanted: threading.Event) -> None:
        """Wait until the user of ``edl run`` stops the job; the thread ends with the process."""
        stop_wanted.wait()
        # If this master ends, no other one continues the job either.
        with suppress(MasterEndsError):
            self.shell.handle(StopRequested(STOPPED, FINAL_SECONDS))

    def _cuts_in_use(self) -> set[int]:
        """Checkpoints that must not be pruned."""
        with self.shell.lock:
            state = self.shell.state
            used = set(state.callbacks.best_cuts)
            if state.checkpoint is not None:
                used.add(state.checkpoint.cut)
            # This checkpoint may turn out to be the best. Under AllReduce it is the newest one, and a pin is a step.
            if state.evaluation is not None and state.world is None:
                used.add(state.evaluation.pin)
            return used

    # ------------------------------------------------------------------ end of the job

    @property
    def _awaits_programs(self) -> bool:
        """Whether the job is done but for what its programs do after the last record."""
        return bool(self._spec.command) and self.shell.state.phase == "Done" and not is_end_written(self._run)

    def _judge_programs(self, stopping: threading.Event, stop_wanted: threading.Event | None) -> bool:
        """Let the programs of a done job end; the job fails if one does not end in order.

        Returns:
            Whether that is decided; otherwise it is left to the next master.
        """
        shell = self.shell
        if not self._awaits_programs or shell.failure is not None:
            return True
        shell.stop_waiting()
        is_stopped = stop_wanted.is_set if stop_wanted is not None else lambda: False
        have_ended = wait_for_programs(shell, PROGRAM_END_SECONDS, lambda: stopping.is_set() or is_stopped())
        if not have_ended and stopping.is_set() and not is_stopped():
            return False
        # ``failure`` has the reason, and the next master decides.
        with suppress(MasterEndsError):
            shell.judge_program_ends(None if is_stopped() else PROGRAM_END_SECONDS)
            shell.flush_commands(_FLUSH_SECONDS)
        return True

    def _end_job(self, ended: EndJob, stopping: threading.Event) -> int:
        log.info("job %s: %s", ended.phase, ended.reason)
        # Workers that wait for a lease get the answer that the job is over, and exit.
        self.shell.stop_waiting()
        if self.shell.failure is None:
            terminate_pods(self.shell, self._pods, self._backend.gone_seconds, LEAVE_SECONDS, stopping.is_set)
            # The ends of the last pods are reported before the end of the job.
            self.shell.flush_commands(_FLUSH_SECONDS)
        if ended.phase == "Done" and self._spec.master.finish and not is_end_written(self._run):
            if not self._finish(stopping):
                log.info("received SIGTERM: the next master finishes the job")
                return SIGTERM_EXIT
            ended = self.shell.job_end or ended
        with self.shell.lock:
            status, summary = self._reporter.build_status(), self._reporter.build_summary()
        if self._spec.task == "evaluate" and self._weights is not None and ended.phase == "Done":
            write_metrics(self._run, self._weights, summary)
        write_end(self._run, self._reporter, ended, status, summary)
        # A training that failed may be resumed before its first checkpoint.
        if self._spec.task != "train" or ended.phase == "Done":
            release_run_weights(self._run)
        return DONE_EXIT

    def _finish(self, stopping: threading.Event) -> bool:
        """Run ``master.finish``; the job fails if it does. False: it is left to the next master."""
        with self.shell.lock:
            summary = self._reporter.build_summary()
        with self._periodic_reports.reporting_finish() as take_line:
            end = run_command(
                "master.finish", self._spec.master.finish, self._run, stopping, json.dumps(to_json(summary)), take_line
            )
        if end.problem is not None:
            with suppress(MasterEndsError):
                self.shell.fail_done_job(str(end.problem))
                self.shell.flush_commands(_FLUSH_SECONDS)
        return not end.was_stopped

    def _end_without_journal(self, error: StorageError, stopping: threading.Event) -> int:
        """The journal cannot be written: no master can continue until somebody has checked the disk."""
        ended = EndJob("Failed", str(error), failure_kind="storage")
        with self.shell.lock:
            self.shell.state.fail_job(ended.reason, ended.failure_kind)
        return self._end_job(ended, stopping)

    def _write_current_state(self) -> None:
        with self.shell.lock:
            status, summary = self._reporter.build_status(), self._reporter.build_summary()
        self._reporter.write_status(status)
        write_summary(self._run, summary)
