"""A million tasks and a thousand workers: what the core does for one event does not grow with them."""

from __future__ import annotations

from collections import deque
from typing import Any

from support.core_harness import CoreJob

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.core import events as ev
from edl.core.state import JobSettings

TASKS, WORKERS, ROUNDS = 1_000_000, 1_000, 5
SETTINGS = JobSettings(minibatch=64, task_records=256, workers=WORKERS, ps=2, checkpoint_steps=5_000, max_steps=10**9)


class LargeJob(CoreJob):
    """A job, its workers, and two PS that answer at once."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self.state.begin_incarnation(1)
        self.see(ev.DatasetDescribed(training=(("a", TASKS * 256),)), ev.PodsSynced())
        for role, count in ((Role.PS, 2), (Role.WORKER, WORKERS)):
            for index in range(count):
                self.see(ev.PodChanged(PodStatus(f"{role}-{index}", role, index, PodPhase.RUNNING)))
        self.see(*(ev.PsRegistered(f"ps-{i}") for i in range(2)))
        self.see(ev.ModelDeclared("worker-0"))

    def see(self, *happened: ev.CoreEvent, after: float = 0.0) -> list[Any]:
        """Everything that was decided, also about what the PS answered."""
        self.now += after
        all_commands: list[Any] = []
        waiting = deque(happened)
        while waiting:
            self.now += 1e-4
            commands = self.state.handle(waiting.popleft(), self.now)
            all_commands += commands
            for command in commands:
                waiting.extend(self._answers(command))
        return all_commands

    def _answers(self, command: ev.CoreCommand) -> list[ev.CoreEvent]:
        match command:
            case ev.AttachPs(uid):
                return [ev.PsAttached(uid, False, 0)]
            case ev.PrepareCut(cut):
                return [ev.CutPrepared(f"ps-{i}", cut) for i in range(2)]
            case ev.HoldUpdates(cut):
                training = self.state.training_ledger
                assert training is not None
                applied = {number: lease.done_steps for number, lease in training.leases.items()}
                return [ev.UpdatesHeld(f"ps-{i}", cut, applied) for i in range(2)]
            case ev.TakeSnapshot(cut):
                return [ev.SnapshotTaken(f"ps-{i}", cut, 0, 0.0) for i in range(2)]
            case ev.SaveCheckpoint(cut):
                return [ev.CheckpointSaveFinished(cut)]
            case ev.RevokeLeases(ps, leases):
                return [ev.LeasesRevoked(ps, dict.fromkeys(leases, 2))]
        return []


def test_a_million_tasks_and_a_thousand_workers() -> None:
    job = LargeJob()
    workers = [f"worker-{i}" for i in range(WORKERS)]
    for _ in range(ROUNDS):
        granted = {w: g.lease for w in workers for g in job.see(ev.LeaseRequested(w)) if isinstance(g, ev.LeaseReply)}
        assert granted.keys() == set(workers)
        for worker, lease in granted.items():
            job.see(ev.ProgressReported(worker, (ev.LeaseProgress(lease, 2),)))
            job.state.next_deadline(job.now)
        for worker, lease in granted.items():
            job.see(ev.TaskReported(worker, lease, ev.LeaseProgress(lease, 4)))
    training = job.state.training_ledger
    assert training is not None
    assert training.done_records == WORKERS * ROUNDS * 256
    assert training.count_remaining_records() == (TASKS - WORKERS * ROUNDS) * 256
    assert job.state.checkpoint is not None
    assert job.state.checkpoint.step >= 15_000
    assert len(job.state.revoked_leases) == 0


def test_a_thousand_workers_are_preempted_at_once() -> None:
    """A service with a higher priority wants its nodes back: every range is at the head of the queue again."""
    job = LargeJob()
    workers = [f"worker-{i}" for i in range(WORKERS)]
    for worker in workers:
        job.see(ev.LeaseRequested(worker))
    for index, worker in enumerate(workers):
        job.see(ev.PodChanged(PodStatus(worker, Role.WORKER, index, PodPhase.FAILED, 143)))
    training = job.state.training_ledger
    assert training is not None
    assert not training.leases
    assert len(training.returned_ranges) == WORKERS
    assert training.done_records == WORKERS * 2 * 64
    assert job.state.counters.repeated == WORKERS * 64
    assert not job.state.holders
