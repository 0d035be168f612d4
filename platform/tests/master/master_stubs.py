"""What tests of the master stand on: journals that a test releases, and a parameter server that answers as told."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.errors import EdlError
from edl.core.events import (
    CoreCommand,
    CutPrepared,
    DatasetDescribed,
    PodChanged,
    PodsSynced,
    PsAttached,
    PsRegistered,
    SnapshotTaken,
    UpdatesHeld,
)
from edl.core.job import JobStateMachine
from edl.core.state import JobSettings
from edl.master.shell import MasterShell
from edl.storage.segment_chain import encode_record
from edl.transport import edl_pb2 as pb
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import PsControlServicer, add_PsControlServicer_to_server

TOKEN = "the-token-of-these-tests"
LONG = 30.0
"""Seconds until a test that waits for something gives up: never reached by one that passes."""


class StubJournal:
    """A journal whose disk obeys the test: entries become durable when ``sync`` is called, or at once."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.entries: list[Mapping[str, Any]] = []
        self.snapshots: list[Mapping[str, Any]] = []
        self.size_bytes = 0
        self.waiting = 0
        self._at_once = at_once
        self._durable = 0
        self._lsn = 0
        self._failure: EdlError | None = None
        self._changed = threading.Condition()

    def append(self, entry: Mapping[str, Any]) -> int:
        if self._failure is not None:
            raise self._failure
        encode_record(entry)  # as one with a disk does: not every value can be
        self.entries.append(entry)
        self._lsn += 1
        return self._lsn

    def compact(self, snapshot: Mapping[str, Any]) -> int:
        encode_record(snapshot)
        self.snapshots.append(snapshot)
        self.size_bytes = 0
        self._lsn += 1
        return self._lsn

    def wait_until_durable(self, lsn: int, timeout: float | None = None) -> None:
        with self._changed:
            self.waiting += 1
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._at_once or self._failure or self._durable >= lsn, LONG)
            self.waiting -= 1
            if self._failure is not None:
                raise self._failure
            assert done

    def call_when_durable(self, lsn: int, call: Callable[[], object]) -> bool:
        return False

    def sync(self) -> None:
        with self._changed:
            self._durable = self._lsn
            self._changed.notify_all()

    def fail(self, error: EdlError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def until_waiting(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.waiting >= count, LONG)

    def kinds(self) -> list[str]:
        return [entry["kind"] for entry in self.entries]


class CommandRecorder:
    """Remembers commands, and lets a test wait for them."""

    def __init__(self) -> None:
        self.done: list[CoreCommand] = []
        self._changed = threading.Condition()

    def execute(self, command: CoreCommand) -> None:
        with self._changed:
            self.done.append(command)
            self._changed.notify_all()

    __call__ = execute

    def until(self, wanted: Callable[[CoreCommand], bool]) -> CoreCommand:
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(wanted, self.done)), LONG), self.done
            return next(filter(wanted, self.done))


class ShellHarness:
    """A shell on stubs, with one PS and some workers where ``populate`` was called."""

    def __init__(self, *, at_once: bool = True, clock: Callable[[], float] = lambda: 0.0, **settings: Any) -> None:
        self.journal = StubJournal(at_once=at_once)
        self.pods, self.ps, self.emitted = CommandRecorder(), CommandRecorder(), CommandRecorder()
        state = JobStateMachine(JobSettings(**{"minibatch": 2, "task_records": 4, "seed": None, **settings}))
        self.shell = MasterShell(
            state,
            self.journal,  # type: ignore[arg-type]
            pods=self.pods,
            ps_client=self.ps,
            emit_event=self.emitted,
            clock=clock,
        )

    def populate(self, records: int = 8, workers: int = 1) -> None:
        handle = self.shell.handle
        handle(PodChanged(PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING)))
        for index in range(workers):
            handle(PodChanged(PodStatus(f"worker-{index}", Role.WORKER, index, PodPhase.RUNNING)))
        handle(PodsSynced())
        handle(DatasetDescribed(training=(("digits", records),)))
        handle(PsRegistered("ps-0"))
        handle(PsAttached("ps-0", initialized=True, version=0))


FIRST_CUT = (CutPrepared("ps-0", 1), UpdatesHeld("ps-0", 1, {}), SnapshotTaken("ps-0", 1, 0, 0.0))
"""What the PS says of it, in order."""


class ScriptedPs(PsControlServicer):
    """A PS behind a real server: remembers what it is asked, answers what the test set."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self._changed = threading.Condition()

    def _answer(self, name: str, request: Any, default: Any) -> Any:
        with self._changed:
            self.asked.append(request)
            self._changed.notify_all()
        return self.answers.get(name, lambda _: default)(request)

    def until_asked(self, count: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, LONG), self.asked
            return list(self.asked)

    def Attach(self, request: pb.AttachRequest, context: Any) -> pb.AttachReply:
        return self._answer("Attach", request, pb.AttachReply(initialized=True, version=3, pins=[2]))

    def Revoke(self, request: pb.RevokeRequest, context: Any) -> pb.RevokeReply:
        applied = [pb.LeaseStep(lease=lease, through=1) for lease in request.leases]
        return self._answer("Revoke", request, pb.RevokeReply(applied=applied))

    def Prepare(self, request: pb.PrepareRequest, context: Any) -> pb.PrepareReply:
        return self._answer("Prepare", request, pb.PrepareReply())

    def Hold(self, request: pb.HoldRequest, context: Any) -> pb.HoldReply:
        return self._answer("Hold", request, pb.HoldReply(applied=[pb.LeaseStep(lease=9, through=2)]))

    def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> pb.SnapshotReply:
        return self._answer("Snapshot", request, pb.SnapshotReply(version=5, pause_seconds=0.25))

    def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        return self._answer("Release", request, pb.ReleaseReply())

    def Unpin(self, request: pb.UnpinRequest, context: Any) -> pb.UnpinReply:
        return self._answer("Unpin", request, pb.UnpinReply())

    def Saved(self, request: pb.SavedRequest, context: Any) -> pb.SavedReply:
        return self._answer("Saved", request, pb.SavedReply(error="the test set no answer"))


@contextmanager
def scripted_ps() -> Iterator[tuple[ScriptedPs, str]]:
    """A PS and its address."""
    with tempfile.TemporaryDirectory() as folder:  # short: a socket's path is limited
        ps = ScriptedPs()
        address = f"unix:{Path(folder) / 'ps'}"
        server = start_control_server(lambda s: add_PsControlServicer_to_server(ps, s), address, TOKEN, threads=4)
        try:
            yield ps, address
        finally:
            server.stop(0.0)
