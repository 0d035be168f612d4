"""The master process: put together, run to the end of the job, taken apart.

Exits 0 when the job is over (done, or failed by its own rules: ``status.json`` says which), 143 when it was told to go
(the journal is flushed, pods are left alone, another master goes on), 1 when it cannot go on itself.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time

from edl.core.cluster import Cluster, Role
from edl.core.errors import BadInputError, EdlError
from edl.core.events import DeletePod, EndJob, Event, Tell
from edl.core.fleet import Pod
from edl.core.job import JobState
from edl.local.client import LocalCluster
from edl.master.checkpoints import Checkpoints
from edl.master.dataset import describe
from edl.master.parameter_servers import ParameterServers
from edl.master.pods import Pods
from edl.master.reporter import PERIOD_SECONDS, Reporter
from edl.master.servicer import Servicer
from edl.master.settings import defines_reader, settings_of
from edl.master.shell import Shell
from edl.rpc import edl_pb2_grpc
from edl.rpc.channels import serve
from edl.rpc.identity import Identity
from edl.spec.event import JobEnded, RoleStarted
from edl.spec.job import JobSpec
from edl.spec.load import load
from edl.store.journal import Journal
from edl.store.rundir import RunDir, write_json

log = logging.getLogger("edl.master")

SIGTERM_EXIT = 143
LEAVE_SECONDS = 1.5
"""How long workers get to leave by themselves at the end of the job, and then pods to go when they are told to."""
_THREADS_BESIDE_WORKERS = 16


def main() -> int:
    """Run the master; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    sys.setswitchinterval(0.001)  # the journal's writer must not wait long for its turn
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        identity = Identity.from_environment()
        spec = load(identity.run_dir / "spec.json")
        with Master(identity, spec, LocalCluster.from_environment(identity.token)) as master:
            return master.run(stopping)
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


class Master:
    """All parts of a master, started on entry and stopped on exit."""

    def __init__(self, identity: Identity, spec: JobSpec, cluster: Cluster) -> None:
        self._run = RunDir(identity.run_dir)
        self._predict = (identity.run_dir / "predict.json").exists()
        self._spec, self._identity = spec, identity
        self._failed: EdlError | None = None
        self._refused: BadInputError | None = None
        state, self._journal = self._replayed(f"master process {os.getpid()}")
        self._reporter = Reporter(self._run, spec.name, state)
        keep = spec.checkpoint.keep if spec.checkpoint else 1
        checkpoints = Checkpoints(self._run.checkpoints, keep, lambda: _in_use(state))
        incarnation = self._journal.incarnation
        self._servers = ParameterServers(identity.token, incarnation, state.settings.ps, checkpoints, state.floor)
        self._pods = Pods(cluster)
        self.shell = Shell(state, self._journal, pods=self._pods, ps=self._servers, tell=self._tell)
        self._servicer = Servicer(self.shell, self._servers, incarnation)

    def _replayed(self, holder: str) -> tuple[JobState, Journal]:
        settings = settings_of(self._spec, predict=self._predict, describe=self._own_reader())
        journal, replay = Journal.open(self._run.journal, holder=holder)
        state = JobState(settings)
        state.replay(replay.snapshot, list(replay.entries))
        if replay.incarnation:
            log.info("replayed the journal of incarnation %d: %d entries", replay.incarnation, len(replay.entries))
        return state, journal

    def _own_reader(self) -> bool:
        try:
            return defines_reader(self._spec)
        except BadInputError as error:
            self._refused = error
            return False

    def __enter__(self) -> Master:
        threads = _THREADS_BESIDE_WORKERS + 3 * self._spec.workers.max
        self._server = serve(
            lambda server: edl_pb2_grpc.add_MasterServicer_to_server(self._servicer, server),  # type: ignore[no-untyped-call]
            self._identity.master_address,
            self._identity.token,
            threads,
            before_stop=self.shell.stop_waiting,
        )
        started = RoleStarted(time=time.time(), role="master", index=0, pid=os.getpid())
        self._reporter.put(started)
        return self

    def __exit__(self, *_: object) -> None:
        self._pods.close()
        self._servers.close()
        self._server.stop(grace=0.2)
        self._reporter.close()
        self._journal.close()

    # ------------------------------------------------------------------ running

    def run(self, stopping: threading.Event) -> int:
        """Run until the job is over, or this master is told to go."""
        shell = self.shell
        shell.begin(self._journal.incarnation)
        self._servers.start(self._event, self._lost)
        status = threading.Thread(target=self._keep_status, args=(stopping,), name="status", daemon=True)
        status.start()
        try:
            if not self._already_over():
                self._pods.start(self._event, self._lost)
                self._describe()
                shell.run(lambda: stopping.is_set() or self._failed is not None)
        except EdlError as error:
            self._failed = error
        if shell.ended is not None:
            return self._end(shell.ended)
        if self._failed is not None:
            raise self._failed
        log.info("told to go: the journal is flushed, pods are left alone")
        return SIGTERM_EXIT

    def _already_over(self) -> bool:
        """Whether the master before this one ended the job and did not live to say so."""
        state = self.shell.state
        if state.ended:
            self.shell.ended = EndJob(state.phase, state.reason)
        return state.ended

    def _describe(self) -> None:
        state = self.shell.state
        if state.described or state.settings.describe:
            return
        try:
            if self._refused is not None:
                raise self._refused
            self._event(describe(self._spec, predict=self._predict))
        except BadInputError as error:
            self.shell.give_up(str(error), "input")

    def _event(self, event: Event) -> None:
        try:
            self.shell.handle(event)
        except EdlError as error:
            self._lost(error)

    def _lost(self, error: EdlError) -> None:
        """Something that this master cannot do without is gone."""
        self._failed = self._failed or error
        self.shell.stop_waiting()

    def _tell(self, what: Tell) -> None:
        self._reporter.tell(what)

    def _keep_status(self, stopping: threading.Event) -> None:
        while not stopping.wait(PERIOD_SECONDS):
            with self.shell.lock:
                status = self._reporter.status()
            self._reporter.write_status(status)

    # ------------------------------------------------------------------ the end

    def _end(self, ended: EndJob) -> int:
        log.info("job %s: %s", ended.phase, ended.reason)
        self.shell.stop_waiting()
        self._dismiss()
        with self.shell.lock:
            status, summary = self._reporter.status(), self._reporter.summary()
        self._reporter.write_status(status)
        if ended.phase == "Failed":
            failure = {"kind": ended.kind, "reason": ended.reason, "detail": ended.detail}
            write_json(self._run.path / "failure.json", failure)
            (self._run.path / "failure.txt").write_text(ended.detail)
        write_json(self._run.path / "summary.json", summary.to_json())
        # The last event comes last: who reads it finds all the rest in place.
        self._reporter.put(JobEnded(time=time.time(), phase=ended.phase, reason=ended.reason, summary=summary))
        return 0

    def _dismiss(self) -> None:
        """Let the pods go, and wait until they are gone: workers were told to stop, and most leave by themselves."""
        self._await_gone(Role.WORKER)
        for pod in self._live():
            self._pods.do(DeletePod(pod.uid, LEAVE_SECONDS / 2))
        self._await_gone(Role.WORKER, Role.PS)

    def _live(self, *roles: Role) -> list[Pod]:
        with self.shell.lock:
            return [pod for role in roles or (Role.WORKER, Role.PS) for pod in self.shell.state.fleet.live(role)]

    def _await_gone(self, *roles: Role) -> None:
        until = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < until and self._live(*roles):
            self.shell.pause(0.05)


def _in_use(state: JobState) -> set[int]:
    return {state.checkpoint.cut} if state.checkpoint else set()
