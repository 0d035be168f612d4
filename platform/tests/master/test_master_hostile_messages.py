"""One hostile message after another, of every method, to masters at every kind of work.

A message that ends the job, or takes the worker out of it, must not hide what the next one does: such a job is finished
by honest workers, if it can be, and another one begins. Whatever was said, the journal replays to what the master had,
every record is in one place, and the status can be written.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from master.master_stubs import TOKEN
from master.test_master_message_fields import METHODS, refusal_of
from master.test_master_servicer import CONTEXT, WORKER, ServiceHarness
from support.examples import examples
from transport.malformed_messages import messages_with

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.errors import RefusedError
from edl.api.status import Status
from edl.core import events as ev
from edl.core.callback_decisions import BestCheckpoint, EarlyStopping, ReduceLROnPlateau, callbacks_to_json
from edl.core.job import JobStateMachine
from edl.jobfile import section_type
from edl.master.master_service import lease_to_task
from edl.master.status_reporter import StatusReporter
from edl.simulation import promises
from edl.storage.run_directory import RunDirectory
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import MasterServicer, add_MasterServicer_to_server

TURNS = 400
"""That an honest job takes at most."""
CALLBACKS = (
    EarlyStopping("loss", "min", patience=9, restore_best_weights=True),
    ReduceLROnPlateau("loss", "min", factor=0.5, patience=1, rate=0.125),
    BestCheckpoint("loss", "min", filepath="best.keras"),
)
DATASET = {"training": [["digits", 16]], "validation": [["more", 6]]}


class HonestJob(ServiceHarness):
    """A job with one PS that does what it is told, and honest workers: pods come and go as the master wants."""

    def __init__(self, point: str, tmp_path: Path) -> None:
        self.now = 0.0
        predict = point == "prediction"
        super().__init__(
            clock=lambda: self.now,
            workers=2,
            evaluation_steps=2,
            checkpoint_steps=3,
            export=True,
            describe=True,
            predict=predict,
            max_corrupt=1 << 40,
        )
        self.state = self.shell.state
        self._carried_out = {"pods": 0, "ps": 0}
        self.reporter = StatusReporter(RunDirectory(tmp_path), "job", self.state, self.shell.fail)
        self._born = 0
        for event in (
            ev.PodChanged(PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING)),
            ev.PodChanged(PodStatus("worker-0", Role.WORKER, 0, PodPhase.RUNNING)),
            ev.PodChanged(PodStatus("worker-1", Role.WORKER, 1, PodPhase.RUNNING)),
            ev.PodsSynced(),
        ):
            self.shell.handle(event)
        self.register_ps("ps-0")
        self.point = point

    # ------------------------------------------------------------------ the cluster and the PS

    def turn(self) -> None:
        """Time passes; what the master wants is done."""
        self.now += 0.5
        for pod in self.state.pods.live_pods(Role.PS):
            with suppress(RefusedError):
                self.register_ps(pod.uid, pod.index)
        if self.shell.failure is None:
            self.shell.handle(ev.Tick())
        for _ in range(20):
            assert self.shell.flush_commands(20.0)
            if self.shell.failure is not None or not self._obey():
                return
        raise AssertionError("the master wants more and more")

    def _obey(self) -> bool:
        pods = self.stubs.pods.done[self._carried_out["pods"] :]
        wanted = self.stubs.ps.done[self._carried_out["ps"] :]
        self._carried_out = {"pods": len(self.stubs.pods.done), "ps": len(self.stubs.ps.done)}
        for command in pods:
            self._change(command)
        for command in wanted:
            for event in self._answers(command):
                self.shell.handle(event)
        return bool(pods or wanted)

    def _change(self, command: Any) -> None:
        match command:
            case ev.StartPod(role, index):
                self._born += 1
                self.shell.handle(
                    ev.PodChanged(PodStatus(f"{role}-{index}-{self._born}", role, index, PodPhase.RUNNING))
                )
                if role is Role.PS:
                    self.register_ps(f"{role}-{index}-{self._born}")
            case ev.DeletePod(uid):
                pod = self.state.pods.by_uid[uid]
                self.shell.handle(ev.PodChanged(PodStatus(uid, pod.role, pod.index, PodPhase.GONE)))

    def _answers(self, command: Any) -> Iterator[Any]:
        uids = [pod.uid for pod in self.state.pods.live_pods(Role.PS)]
        match command:
            case ev.AttachPs(uid):
                yield ev.PsAttached(uid, initialized=True, version=0)
            case ev.RevokeLeases(uid, leases):
                yield ev.LeasesRevoked(uid, dict.fromkeys(leases, 0))
            case ev.PrepareCut(cut):
                yield from (ev.CutPrepared(uid, cut) for uid in uids)
            case ev.HoldUpdates(cut):
                yield from (ev.UpdatesHeld(uid, cut, {}) for uid in uids)
            case ev.TakeSnapshot(cut):
                yield from (ev.SnapshotTaken(uid, cut, 0, 0.0) for uid in uids)
            case ev.SaveCheckpoint(cut):
                yield ev.CheckpointSaveFinished(cut)
            case ev.CopyCheckpoint(source, cut):
                yield ev.CheckpointCopyFinished(source, cut)

    # ------------------------------------------------------------------ honest workers

    def reach(self) -> pb.Task:
        """Work until worker-0 holds a task of the kind that this job is about."""
        declared = json.dumps(callbacks_to_json(CALLBACKS)).encode()
        self.service.Register(pb.RegisterRequest(member=WORKER, ready=True, callbacks=declared), CONTEXT)
        for _ in range(TURNS):
            self.turn()
            reply = self.lease()
            if reply.task.kind == self.point:
                return reply.task
            assert not reply.HasField("stop"), reply
            if reply.HasField("task"):
                self.honest_report(WORKER, reply.task)
        raise AssertionError(f"no task of kind {self.point}: {self.state.phase}")

    def finish(self, said: Any = ()) -> None:
        """New workers do what is left; the one that was spoken for is gone."""
        self.shell.handle(ev.PodChanged(PodStatus("worker-0", Role.WORKER, 0, PodPhase.GONE)))
        described = self.state.validation + (self.state.main_ledger.plan.sources if self.state.main_ledger else ())
        if sum(source.records for source in described) > 1000:
            return  # a false description of the data: it does not come to an end here
        for _ in range(TURNS):
            self.turn()
            for pod in self.state.pods.live_pods(Role.WORKER):
                if self.state.has_ended or self.shell.failure is not None:
                    return
                member = pb.Member(role="worker", index=pod.index, uid=pod.uid)
                answer = self.shell.handle(ev.LeaseRequested(pod.uid, frozenset()))
                if isinstance(answer, ev.LeaseReply):
                    self.honest_report(member, lease_to_task(answer))
        raise AssertionError(f"the job does not come to an end: {self.state.phase}, {said}")

    def honest_report(self, member: pb.Member, task: pb.Task) -> None:
        payload = json.loads(task.payload) if task.payload else {}
        results = {
            "describe": {("prediction" if self.point == "prediction" else k): v for k, v in DATASET.items()},
            "evaluation": {"loss": {"additive": True, "states": [1.0]}},
            "metrics": {"loss": 0.5},
            "export": {"paths": ["/runs/r1/export"], "loading": ""},
            "best model": {"place": payload.get("place"), "cut": payload.get("cut"), "path": "best.keras"},
        }
        steps = -(-(task.end - task.start) // task.minibatch)
        answer = self.shell.handle(
            ev.TaskReported(member.uid, task.lease, ev.LeaseProgress(task.lease, steps), results.get(task.kind))
        )
        assert isinstance(answer, ev.Acknowledged)
        if answer.refusal:  # false metric states came before these: as a worker says whose report is refused
            self.shell.handle(ev.WorkerFailed(member.uid, "refused", answer.refusal))

    # ------------------------------------------------------------------ what must be true

    def check(self) -> None:
        assert self.shell.failure is None
        journal = [json.loads(json.dumps(entry)) for entry in self.stubs.journal.entries]
        replayed, compacted = JobStateMachine(self.state.settings), JobStateMachine(self.state.settings)
        replayed.replay_journal(None, journal)
        compacted.replay_journal(json.loads(json.dumps(self.state.to_snapshot(), allow_nan=False)), [])
        promises.journal_is_enough(self.state, replayed, journal[-3:])
        promises.journal_is_enough(self.state, compacted, journal[-3:])
        if self.state.main_ledger is not None:
            assert self.reporter.build_summary().records_lost == 0
        with self.shell.lock:
            status = section_type.to_json(self.reporter.build_status())
        assert section_type.from_json(Status, json.loads(json.dumps(status, allow_nan=False)), "status")

    def close(self) -> None:
        self.shell.stop_waiting()
        self.shell.close()
        self.reporter.close()


class MasterRelay(MasterServicer):
    """Answers for whichever job there is now."""

    job: HonestJob

    def Register(self, request: Any, context: Any) -> Any:
        return self.job.service.Register(request, context)

    async def Lease(self, request: Any, context: Any) -> Any:
        return await self.job.service.Lease(request, context)

    async def Progress(self, request: Any, context: Any) -> Any:
        return await self.job.service.Progress(request, context)

    async def Report(self, request: Any, context: Any) -> Any:
        return await self.job.service.Report(request, context)

    def Fail(self, request: Any, context: Any) -> Any:
        return self.job.service.Fail(request, context)

    def Leave(self, request: Any, context: Any) -> Any:
        return self.job.service.Leave(request, context)

    async def World(self, request: Any, context: Any) -> Any:
        return await self.job.service.World(request, context)


@pytest.fixture
def relay() -> MasterRelay:
    return MasterRelay()


@pytest.fixture
def channel(relay: MasterRelay, tmp_path: Path) -> Iterator[ControlChannel]:
    with ExitStack() as stack:
        server = start_control_server(partial(add_MasterServicer_to_server, relay), f"unix:{tmp_path}/m", TOKEN, 4)
        stack.callback(server.stop)
        yield stack.enter_context(ControlChannel(server.address, TOKEN))


PS = pb.Member(role="ps", index=0, uid="ps-0")
STRANGER = pb.Member(role="worker", index=7, uid="worker-7")


def bases(task: pb.Task) -> list[tuple[Any, Any]]:
    """Every method with what all but one field of a message may be."""
    last = pb.LeaseProgress(lease=task.lease, through=1, loss_sum=1.0, loss_steps=1)
    over = pb.LeaseProgress(lease=task.lease, through=2)
    requests = {
        "Register": [
            pb.RegisterRequest(member=WORKER, ready=True),
            pb.RegisterRequest(member=STRANGER, ready=True),
            pb.RegisterRequest(member=PS, control_address="unix:/a", bulk_address="unix:/b"),
            pb.RegisterRequest(member=PS, leaving=True, figures=pb.PsFigures(entered=1)),
        ],
        "Lease": [pb.LeaseRequest(member=WORKER, held=[task.lease]), pb.LeaseRequest(member=STRANGER)],
        "Progress": [pb.ProgressRequest(member=m, leases=[last]) for m in (WORKER, STRANGER)],
        "Report": [
            pb.ReportRequest(member=WORKER, lease=task.lease, last=over),
            pb.ReportRequest(member=WORKER, lease=task.lease, last=last),
            pb.ReportRequest(member=STRANGER, lease=task.lease),
        ],
        "Fail": [pb.FailRequest(member=WORKER, kind=kind, lease=task.lease) for kind in ("crash", "input")],
        "Leave": [pb.LeaveRequest(member=m, leases=[last]) for m in (WORKER, STRANGER, PS)],
        "World": [pb.WorldRequest(member=WORKER, phase="outside")],
    }
    assert set(requests) == {method.name for method in METHODS}, "a new method is walked as well"
    return [(method, base) for method in METHODS for base in requests[method.name]]


POINTS = ("describe", "training", "evaluation", "metrics", "best model", "export", "prediction")


def walk(relay: MasterRelay, channel: ControlChannel, tmp_path: Path, point: str, seed: int, count: int | None) -> None:
    chance = random.Random(seed)
    relay.job = HonestJob(point, tmp_path)
    task = relay.job.reach()
    requests = [
        (method, path, value, request)
        for method, base in bases(task)
        for path, _, value, request in messages_with(method.request, base)
        if not (path == "wait_seconds" and value > 0)  # it waits by this job's clock, which stands still meanwhile
    ]
    chance.shuffle(requests)
    sent: list[str] = []
    for method, path, value, request in requests[:count]:
        sent.append(f"{method.name}.{path} = {value!r:.60}")
        refused = refusal_of(lambda method=method, request=request: channel.call(method, request, timeout=30.0))
        assert refused in (None, "bad", "retryable"), (refused, sent)
        assert relay.job.shell.failure is None, sent
        if chance.random() < 0.2:
            relay.job.turn()
        lease_numbers = [lease.number for _, lease in relay.job.state.worker_leases("worker-0")]
        if relay.job.state.has_ended or task.lease not in lease_numbers:
            assert relay.job.shell.failure is None, sent
            relay.job.check()
            relay.job.finish(sent)
            relay.job.check()
            relay.job.close()
            relay.job = HonestJob(point, tmp_path)
            assert relay.job.reach() == task
            sent.clear()
    relay.job.check()
    relay.job.close()


@pytest.mark.examples
@pytest.mark.parametrize("point", POINTS)
def test_whatever_is_said_to_a_master_it_goes_on_and_so_does_the_next_one(
    relay: MasterRelay, channel: ControlChannel, tmp_path: Path, point: str
) -> None:
    walk(relay, channel, tmp_path, point, seed=1, count=examples(300))


@pytest.mark.repetition
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", POINTS)
def test_all_that_can_be_said(relay: MasterRelay, channel: ControlChannel, tmp_path: Path, point: str) -> None:
    walk(relay, channel, tmp_path, point, seed=2, count=None)
