"""What may take a while, and no longer: a final checkpoint, and a lost node before its PS is replaced."""

from __future__ import annotations

from typing import Any

from core.core_harness import CoreHarness, alive

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


def found(masters: CoreHarness, kind: type[Any], event: Any, now: float) -> list[Any]:
    return [command for command in masters.state.handle(event, now) if isinstance(command, kind)]


def test_a_disk_that_takes_too_long_does_not_keep_a_stopped_job() -> None:
    masters = CoreHarness()
    lease = masters.train()
    masters.see(ProgressReported("worker-0", (LeaseProgress(lease, 1),)))
    assert found(masters, EndJob, StopRequested("stopped", checkpoint_seconds=10.0), 100.0) == []
    number = masters.state.cut_number
    masters.state.handle(CutPrepared("ps-0", number), 100.1)
    masters.state.handle(UpdatesHeld("ps-0", number, {lease: 1}), 100.2)
    assert found(masters, SaveCheckpoint, SnapshotTaken("ps-0", number, 1, 0.0), 100.3)
    assert found(masters, EndJob, Tick(), 109.9) == []
    (end,) = found(masters, EndJob, Tick(), 110.0)
    assert end.phase == "Interrupted"


def test_a_ps_of_a_lost_node_is_replaced_once_the_cluster_has_tainted_the_node() -> None:
    """Before that the cluster would give its successor a place there."""
    masters = CoreHarness()
    masters.train()
    masters.state.handle(UNREACHABLE, 10 * PS_SILENCE_SECONDS)
    assert found(masters, DeletePod, Tick(), 10 * PS_SILENCE_SECONDS + TAINT_SECONDS - 0.1) == []
    (deleted,) = found(masters, DeletePod, Tick(), 10 * PS_SILENCE_SECONDS + TAINT_SECONDS)
    assert (deleted.uid, deleted.grace) == ("ps-0", 0.0)


def test_a_node_that_is_back_in_between_is_lost_anew() -> None:
    masters, now = CoreHarness(), 10 * PS_SILENCE_SECONDS
    masters.train()
    masters.state.handle(UNREACHABLE, now)
    masters.state.handle(alive(Role.PS, 0), now + 1.0)
    masters.state.handle(Tick(), now + 1.0)
    masters.state.handle(UNREACHABLE, now + 2.0)
    assert found(masters, DeletePod, Tick(), now + 2.0 + TAINT_SECONDS - 0.1) == []
    assert found(masters, DeletePod, Tick(), now + 2.0 + TAINT_SECONDS)
