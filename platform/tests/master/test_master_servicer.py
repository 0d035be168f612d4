"""The service: messages to events, answers to messages, what is refused."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from master.master_stubs import FIRST_CUT, ShellHarness
from support.examples import examples

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.errors import RetryableError
from edl.core.events import (
    AttachPs,
    CheckpointSaveFinished,
    CutPrepared,
    LeaseProgress,
    PodChanged,
    PrepareCut,
    PsAttached,
    SnapshotTaken,
    StopRequested,
    Tick,
    UpdatesHeld,
)
from edl.core.rank_state import RankPhase
from edl.master.master_service import MasterService, parse_lease_progress, parse_result
from edl.master.ps_client import PsConnection
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import PeerRefusedError

CONTEXT: Any = None
WORKER = pb.Member(role="worker", index=0, uid="worker-0")
INCARNATION = 3


class RegisteredPs:
    """Where PS listen, without ways to them."""

    def __init__(self) -> None:
        self.links: dict[str, PsConnection] = {}

    def add_ps(self, uid: str, index: int, control_address: str, bulk_address: str) -> bool:
        new = uid not in self.links
        self.links.setdefault(uid, PsConnection(uid, index, control_address, bulk_address, "token"))
        return new

    def connections(self) -> Mapping[str, PsConnection]:
        return dict(self.links)


class ServiceHarness:
    """A service over a shell with one PS and two workers."""

    def __init__(self, **settings: Any) -> None:
        self.stubs = ShellHarness(**settings)
        self.shell = self.stubs.shell
        self.shell.begin_incarnation(INCARNATION)
        self.servers = RegisteredPs()
        self.figures: list[tuple[str, int, pb.PsFigures]] = []
        self.service = MasterService(
            self.shell,
            self.servers,  # type: ignore[arg-type]
            INCARNATION,
            lambda *told: self.figures.append(told),
        )

    def train(self) -> ServiceHarness:
        self.stubs.populate(workers=2)
        self.register_ps("ps-0")
        for event in (
            Tick(),
            *FIRST_CUT,
            CheckpointSaveFinished(1),
        ):
            self.shell.handle(event)
        self.stubs.ps.until(lambda command: command == PrepareCut(1))
        return self

    def register_ps(self, uid: str, index: int = 0, address: str = "unix:/nowhere/ps") -> pb.RegisterReply:
        member = pb.Member(role="ps", index=index, uid=uid)
        request = pb.RegisterRequest(member=member, control_address=address, bulk_address=f"{address}.bulk")
        return self.service.Register(request, CONTEXT)

    def placement(self) -> pb.Placement:
        return self.service.Register(pb.RegisterRequest(member=WORKER), CONTEXT).placement

    def lease(self, wait: float = 0.0) -> pb.LeaseReply:
        return asyncio.run(self.service.Lease(pb.LeaseRequest(member=WORKER, wait_seconds=wait), CONTEXT))

    def report(self, lease: int, result: bytes = b"", **last: Any) -> pb.ReportReply:
        steps = pb.LeaseProgress(lease=lease, **last) if last else None
        request = pb.ReportRequest(member=WORKER, lease=lease, last=steps, result=result)
        return asyncio.run(self.service.Report(request, CONTEXT))

    def progress(self, leases: Iterable[pb.LeaseProgress]) -> pb.ProgressReply:
        return asyncio.run(self.service.Progress(pb.ProgressRequest(member=WORKER, leases=leases), CONTEXT))


def test_what_a_parameter_server_says_of_itself_is_passed_on_with_its_name() -> None:
    harness = ServiceHarness().train()
    harness.shell.handle(PodChanged(PodStatus("ps-1", Role.PS, 1, PodPhase.RUNNING)))
    assert harness.figures == [], "one of before says nothing"
    figures = pb.PsFigures(entered=7)
    member = pb.Member(role="ps", index=0, uid="ps-0")
    request = pb.RegisterRequest(member=member, figures=figures, control_address="unix:/a", bulk_address="unix:/b")
    harness.service.Register(request, CONTEXT)
    assert harness.figures == [("ps-0", 0, figures)]
    other = pb.RegisterRequest(member=pb.Member(role="ps", index=1, uid="ps-1"), figures=figures, leaving=True)
    assert harness.service.Register(other, CONTEXT).may_end, "the cluster does not show it"
    assert harness.figures[1:] == [("ps-1", 1, figures)]
    assert "ps-1" not in harness.servers.links, "one that is told to go is not counted on"
    del harness.figures[1:]
    harness.service.Register(pb.RegisterRequest(member=WORKER, figures=figures), CONTEXT)
    assert len(harness.figures) == 1, "workers have none"


def test_a_parameter_server_that_was_told_to_go_serves_on_until_a_checkpoint_has_what_it_holds() -> None:
    harness = ServiceHarness().train()
    member = pb.Member(role="ps", index=0, uid="ps-0")
    registration = pb.RegisterRequest(member=member, control_address="unix:/a", bulk_address="unix:/b", leaving=True)
    assert not harness.service.Register(registration, CONTEXT).may_end
    assert "ps-0" in harness.servers.links, "a new master takes the checkpoint, too"
    cut = harness.shell.state.cut
    assert cut is not None
    assert cut.keep_paused
    for event in (
        CutPrepared("ps-0", cut.number),
        UpdatesHeld("ps-0", cut.number, {}),
        SnapshotTaken("ps-0", cut.number, 0, 0.0),
        CheckpointSaveFinished(cut.number),
    ):
        assert not harness.service.Register(registration, CONTEXT).may_end
        harness.shell.handle(event)
    assert harness.service.Register(registration, CONTEXT).may_end


# ---------------------------------------------------------------------------------------------- work


def test_a_task_says_all_that_a_worker_must_know() -> None:
    harness = ServiceHarness().train()
    reply = harness.lease()
    task = reply.task
    assert reply.incarnation == INCARNATION
    assert (task.lease, task.kind, task.epoch, task.source) == ((INCARNATION << 32) + 1, "training", 0, "digits")
    assert (task.start, task.end, task.minibatch, task.pin) == (0, 4, 2, 0)
    assert task.expires_seconds > 0


@pytest.mark.parametrize("wait", [0.0, -1.0, math.nan])
def test_no_work_is_a_reason_to_wait(wait: float) -> None:
    harness = ServiceHarness()
    harness.stubs.populate()
    assert harness.lease(wait).wait.reason.endswith("first checkpoint")


def test_after_the_end_workers_are_told_to_stop() -> None:
    harness = ServiceHarness().train()
    harness.shell.handle(StopRequested("enough"))
    assert "interrupted" in harness.lease().stop.reason


def test_progress_is_entered_and_lost_leases_come_back() -> None:
    harness = ServiceHarness().train()
    lease = harness.lease().task.lease
    leases = [pb.LeaseProgress(lease=lease, through=1, loss_sum=3.0, loss_steps=2), pb.LeaseProgress(lease=77)]
    reply = harness.progress(leases)
    assert (list(reply.lost), reply.incarnation) == ([77], INCARNATION)
    assert harness.stubs.journal.entries[-1] == {"kind": "progress", "lease": lease, "through": 1, "loss": 1.5}


def test_a_report_is_taken_once() -> None:
    harness = ServiceHarness().train()
    lease = harness.lease().task.lease
    assert harness.report(lease, through=2).accepted
    again = harness.report(lease, through=2)
    assert not again.accepted
    assert "lease" in again.reason
    assert harness.stubs.journal.kinds().count("done") == 1


def test_a_report_of_a_task_that_is_not_over_is_refused_and_changes_nothing() -> None:
    harness = ServiceHarness().train()
    lease = harness.lease().task.lease
    entries = len(harness.stubs.journal.entries)
    with pytest.raises(PeerRefusedError, match="1 of 2 steps"):
        harness.report(lease, through=1)
    assert len(harness.stubs.journal.entries) == entries
    assert harness.shell.failure is None
    assert harness.report(lease, through=2).accepted


def test_leases_of_a_worker_that_leaves_are_revoked() -> None:
    harness = ServiceHarness().train()
    lease = harness.lease().task.lease
    left = pb.LeaveRequest(member=WORKER, reason="told to go", leases=[pb.LeaseProgress(lease=lease, through=1)])
    harness.service.Leave(left, CONTEXT)
    assert harness.stubs.journal.kinds()[-2:] == ["progress", "revoking"]


def test_a_failure_of_the_users_code_ends_the_job() -> None:
    harness = ServiceHarness().train()
    failed = pb.FailRequest(member=WORKER, kind="input", message="feed yields no labels", detail="Traceback")
    assert harness.service.Fail(failed, CONTEXT).fatal
    harness.shell.run(lambda: False)
    assert harness.shell.job_end is not None
    assert (harness.shell.job_end.failure_kind, harness.shell.job_end.detail) == ("input", "Traceback")


# ---------------------------------------------------------------------------------------------- what cannot be meant


@pytest.mark.parametrize(
    "call",
    [
        lambda s: asyncio.run(s.service.Lease(pb.LeaseRequest(), CONTEXT)),
        lambda s: s.service.Register(pb.RegisterRequest(), CONTEXT),
        lambda s: s.report(1, through=-1),
        lambda s: s.report(1, result=b"{"),
        lambda s: s.report(1, result=b"[" * 100_000),
        lambda s: s.report(1, result=b"\xff"),
        lambda s: s.service.Fail(pb.FailRequest(member=WORKER, kind="tired"), CONTEXT),
    ],
)
def test_what_cannot_be_meant_is_refused_and_the_master_goes_on(call: Any) -> None:
    harness = ServiceHarness().train()
    with pytest.raises(PeerRefusedError) as refused:
        call(harness)
    assert refused.value.kind == "bad"
    assert harness.shell.failure is None
    assert harness.lease().HasField("task")


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.floats(), st.integers(0, 2**63 - 1))
def test_no_number_of_a_worker_ends_the_master(lease: int, through: int, loss: float, skipped: int) -> None:
    harness = ServiceHarness().train()
    own = harness.lease().task.lease
    for number in (lease, own):
        steps = pb.LeaseProgress(
            lease=number, through=through, loss_sum=loss, loss_steps=through, skipped_records=skipped
        )
        harness.progress([steps])
    json.dumps(harness.stubs.journal.entries, allow_nan=False)
    harness.shell.close()


def test_a_loss_that_is_not_finite_says_nothing() -> None:
    given_losses = [pb.LeaseProgress(lease=1, through=2, loss_sum=x, loss_steps=2) for x in (math.nan, math.inf, 4.0)]
    assert parse_lease_progress(given_losses) == (LeaseProgress(1, 2), LeaseProgress(1, 2), LeaseProgress(1, 2, 4.0, 2))


def test_numbers_that_are_not_finite_become_none() -> None:
    assert parse_result(b'{"a": [NaN, 1e999, -Infinity, 1.5], "b": "NaN"}') == {
        "a": [None, None, None, 1.5],
        "b": "NaN",
    }
    assert parse_result(b"") is None


# ---------------------------------------------------------------------------------------------- parameter servers


def test_a_ps_that_registers_is_attached_once() -> None:
    harness = ServiceHarness()
    harness.shell.handle(PodChanged(PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING)))
    for _ in range(2):
        harness.register_ps("ps-0")
    harness.shell.handle(PsAttached("ps-0", initialized=False, version=0))
    harness.register_ps("ps-0")
    harness.shell.handle(StopRequested("enough"))
    harness.shell.run(lambda: False)  # by now, all commands were carried out
    assert [c.uid for c in harness.stubs.ps.done if isinstance(c, AttachPs)] == ["ps-0"]


def test_a_ps_that_the_cluster_has_not_shown_is_told_to_try_again_and_leaves_nothing_behind() -> None:
    harness = ServiceHarness()
    for uid in (f"ps-0-{n}" for n in range(700)):
        with pytest.raises(RetryableError, match="pod"):
            harness.register_ps(uid)
        figures = pb.RegisterRequest(member=pb.Member(role="ps", uid=uid), figures=pb.PsFigures(), leaving=True)
        with pytest.raises(RetryableError, match="pod"):
            harness.service.Register(figures, CONTEXT)
    assert not harness.servers.links, "no way to it is opened"
    assert not harness.figures
    harness.shell.handle(PodChanged(PodStatus("ps-0-true", Role.PS, 0, PodPhase.RUNNING)))
    harness.register_ps("ps-0-true")
    assert list(harness.servers.links) == ["ps-0-true"]
    harness.stubs.ps.until(lambda command: isinstance(command, AttachPs))


def test_a_ps_does_not_take_the_name_of_another_pod() -> None:
    harness = ServiceHarness().train()
    for uid, index in (("worker-0", 0), ("ps-0", 1)):
        with pytest.raises(PeerRefusedError, match="pod"):
            harness.register_ps(uid, index)


def test_a_ps_without_an_address_is_refused() -> None:
    harness = ServiceHarness()
    harness.shell.handle(PodChanged(PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING)))
    with pytest.raises(PeerRefusedError) as refused:
        harness.register_ps("ps-0", address="nowhere")
    assert refused.value.kind == "bad"
    assert harness.shell.failure is None


def test_a_ps_whose_pod_has_ended_is_refused() -> None:
    harness = ServiceHarness()
    harness.shell.handle(PodChanged(PodStatus("ps-0", Role.PS, 0, PodPhase.FAILED, 137)))
    with pytest.raises(PeerRefusedError, match="has ended"):
        harness.register_ps("ps-0")
    assert not harness.servers.links


def test_the_placement_names_those_that_listen_and_its_version_changes_with_them() -> None:
    harness = ServiceHarness(ps=2)
    for index in (0, 1):
        harness.shell.handle(PodChanged(PodStatus(f"ps-{index}", Role.PS, index, PodPhase.RUNNING)))
        harness.register_ps(f"ps-{index}", index)
    empty = harness.placement()
    assert not empty.ps
    versions = [empty.version]
    for index in (0, 1):
        harness.shell.handle(PsAttached(f"ps-{index}", initialized=False, version=0))
        versions.append(harness.placement().version)
    assert versions == sorted(set(versions))
    assert harness.placement().version == versions[-1]
    assert [(x.index, x.uid) for x in harness.placement().ps] == [(0, "ps-0"), (1, "ps-1")]
    assert sorted(set(harness.placement().slots)) == [0, 1]
    assert all(version >> 32 == INCARNATION for version in versions)


def test_a_ps_that_replaces_a_lost_one_belongs_to_the_placement_when_it_holds_the_checkpoint() -> None:
    harness = ServiceHarness().train()
    before = harness.placement()
    harness.shell.handle(PodChanged(PodStatus("ps-0", Role.PS, 0, PodPhase.FAILED, 137)))
    harness.shell.handle(PodChanged(PodStatus("ps-0b", Role.PS, 0, PodPhase.RUNNING)))
    harness.register_ps("ps-0b")
    assert not harness.placement().ps
    harness.shell.handle(PsAttached("ps-0b", initialized=False, version=0))  # it is told to load the checkpoint
    assert not harness.placement().ps
    harness.shell.handle(PsAttached("ps-0b", initialized=True, version=0))
    after = harness.placement()
    assert [x.uid for x in after.ps] == ["ps-0b"]
    assert after.version > before.version
    assert harness.lease().placement_version == after.version


def test_a_worker_whose_pod_has_ended_is_no_member_and_follows_nobody() -> None:
    """A pod that was deleted by force: an error would end the job, though the others go on without it."""
    harness = ServiceHarness(all_reduce=True, ps=0, workers=2, durable=False)
    harness.stubs.populate(workers=2)

    def report(worker: str, phase: RankPhase, round_id: pb.Round | None = None, **fields: Any) -> pb.WorldReply:
        member = pb.Member(role="worker", index=int(worker[-1]), uid=worker)
        request = pb.WorldRequest(
            member=member, address=f"unix:/nowhere/{worker}", phase=phase.value, round=round_id, **fields
        )
        return asyncio.run(harness.service.World(request, CONTEXT))

    round_id = report("worker-0", RankPhase.OUTSIDE).round
    report("worker-0", RankPhase.CONFIRMED, round_id, digest=7)
    assert report("worker-1", RankPhase.FOLLOWING, round_id).source.address == "unix:/nowhere/worker-0"
    harness.shell.handle(PodChanged(PodStatus("worker-1", Role.WORKER, 1, PodPhase.GONE)))
    reply = report("worker-1", RankPhase.CAUGHT_UP, round_id, unreadable=pb.UnreadableCheckpoint(cut=1, error="?"))
    assert (reply.member, reply.source.address) == (False, "")
    assert not report("worker-0", RankPhase.RUNNING, round_id).change, "nobody waits for it"
