"""What may take a while, and no longer: a final checkpoint, and a lost node before its PS is replaced."""

from __future__ import annotations

from typing import Any

from support.core_harness import CoreHarness, alive

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.core.events import (
    CutPrepared,
    DeletePod,
    EndJob,
    LeaseProgress,
    PodChanged,
    ProgressReported,
    SaveCheckpoint,
    SnapshotTaken,
    StopRequested,
    Tick,
    UpdatesHeld,
)
from edl.core.job_pods import PS_SILENCE_SECONDS
from edl.core.parameter_servers import TAINT_SECONDS

UNREACHABLE = PodChanged(
    PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING, pid=100, node="n1", unreachable_since=1_700_000_000.0)
)


def commands_of(harness: CoreHarness, kind: type[Any], event: Any, now: float) -> list[Any]:
    return [command for command in harness.state.handle(event, now) if isinstance(command, kind)]


def test_a_disk_that_takes_too_long_does_not_keep_a_stopped_job() -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 1),)))
    assert commands_of(harness, EndJob, StopRequested("stopped", checkpoint_seconds=10.0), 100.0) == []
    number = harness.state.cut_number
    harness.state.handle(CutPrepared("ps-0", number), 100.1)
    harness.state.handle(UpdatesHeld("ps-0", number, {lease: 1}), 100.2)
    assert commands_of(harness, SaveCheckpoint, SnapshotTaken("ps-0", number, 1, 0.0), 100.3)
    assert commands_of(harness, EndJob, Tick(), 109.9) == []
    (end,) = commands_of(harness, EndJob, Tick(), 110.0)
    assert end.phase == "Interrupted"


def test_a_ps_of_a_lost_node_is_replaced_once_the_cluster_has_tainted_the_node() -> None:
    """Before that the cluster would give its successor a place there."""
    harness = CoreHarness()
    harness.train()
    harness.state.handle(UNREACHABLE, 10 * PS_SILENCE_SECONDS)
    assert commands_of(harness, DeletePod, Tick(), 10 * PS_SILENCE_SECONDS + TAINT_SECONDS - 0.1) == []
    (deleted,) = commands_of(harness, DeletePod, Tick(), 10 * PS_SILENCE_SECONDS + TAINT_SECONDS)
    assert (deleted.uid, deleted.grace) == ("ps-0", 0.0)


def test_a_node_that_is_back_in_between_is_lost_anew() -> None:
    harness, now = CoreHarness(), 10 * PS_SILENCE_SECONDS
    harness.train()
    harness.state.handle(UNREACHABLE, now)
    harness.state.handle(alive(Role.PS, 0), now + 1.0)
    harness.state.handle(Tick(), now + 1.0)
    harness.state.handle(UNREACHABLE, now + 2.0)
    assert commands_of(harness, DeletePod, Tick(), now + 2.0 + TAINT_SECONDS - 0.1) == []
    assert commands_of(harness, DeletePod, Tick(), now + 2.0 + TAINT_SECONDS)
