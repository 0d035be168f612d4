"""A minibatch that ends its workers under AllReduce: it is found, and kills from outside are not taken for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from support.all_reduce_master import AllReduceMaster
from support.text_keys import missing_keys

from edl.core.allreduce import CLOSING_SILENCE_SECONDS
from edl.core.crash_suspects import MAX_FED_AHEAD
from edl.core.events import EmitEvent, EndJob, LeaseReply, Tick, WorkerLeft
from edl.core.pod_lifecycle import MAX_CRASHES
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import Share, StepShares

MINIBATCH = 4


class World:
    """Ranks in lockstep: each holds up to two leases, and trains one minibatch a step.

    Args:
        workers: number of ranks; a lost one is replaced.
        deadly: records that end the worker that trains them.
        exit_code: how it ends.
        report_steps: rank 0 reports after so many steps.
        is_cluster_late: whether the cluster says that a worker has ended when the next round runs without it.
    """

    def __init__(
        self,
        workers: int,
        deadly: Iterable[int] = (),
        *,
        exit_code: int = 137,
        report_steps: int = 1,
        is_cluster_late: bool = False,
        **settings: Any,
    ) -> None:
        self.master = AllReduceMaster(started=workers, **settings)
        self.deadly, self.exit_code, self.report_steps = set(deadly), exit_code, report_steps
        self.is_cluster_late = is_cluster_late
        self.lost = 0
        self.step = 0
        self.shares: dict[int, StepShares] = {}
        self.positions: dict[str, dict[int, tuple[LeaseReply, int]]] = {}
        self.commands: list[Any] = []
        self._join()

    # ------------------------------------------------------------------ what a test does

    def run(self, steps: int = 200) -> EndJob | None:
        """Take steps until the job ends; returns how it ended."""
        for _ in range(steps):
            if self.end is not None:
                return self.end
            self.take_step()
        return self.end

    @property
    def end(self) -> EndJob | None:
        """How the job ended."""
        return next((command for command in self.commands if isinstance(command, EndJob)), None)

    def take_step(self) -> None:
        """All ranks train their next minibatch; those that it ends take part in no reduction."""
        self.request_leases()
        if self.end is not None:
            return
        shares = {worker: share for worker in self.master.rounds.members if (share := self._next_share(worker))}
        dead = [worker for worker, share in shares.items() if self.deadly & self._records(share)]
        if dead:
            self.kill(*dead, exit_code=self.exit_code)
            return
        if shares:
            self.step += 1
            self.shares[self.step] = tuple(shares.values())
            for worker, share in shares.items():
                granted, _ = self.positions[worker][share.lease]
                self.positions[worker][share.lease] = (granted, share.end)
        if not shares or self.step % self.report_steps == 0:
            self._report_stable()

    def kill(self, *workers: str, exit_code: int = 137) -> None:
        """These workers end; the others report, and new ones take their place."""
        master, survivors = self.master, [worker for worker in self.master.rounds.members if worker not in workers]
        self.lost += len(workers)
        for worker in workers:
            self.positions.pop(worker, None)
            if not self.is_cluster_late:
                self._do(master.kill, worker, exit_code)
        for worker in survivors:
            self._do(master.report, worker, RankPhase.ENDED, step=self.step, shares=self.shares)
        if self.is_cluster_late:
            for _ in range(3):
                master.now += CLOSING_SILENCE_SECONDS / 2
                for worker in survivors:
                    self._do(master.report, worker, RankPhase.ENDED, step=self.step, shares=self.shares)
            self._do(master.handle, Tick())
            for worker in survivors:
                self._do(master.report, worker, RankPhase.CONFIRMED)
            for worker in workers:
                self._do(master.kill, worker, exit_code)
        for _ in workers:
            self._start_worker()
        if self.end is None:
            self._join()

    def events(self, kind: str) -> list[Any]:
        """Events for users."""
        emitted = [command.event for command in self.commands if isinstance(command, EmitEvent)]
        return [event for event in emitted if getattr(event, "kind", "") == kind]

    # ------------------------------------------------------------------ parts

    def _do(self, what: Any, *arguments: Any, **named: Any) -> Any:
        handle = self.master.handle

        def record(event: Any, *, after: float = 0.01) -> list[Any]:
            commands = handle(event, after=after)
            self.commands += commands
            return commands

        self.master.handle = record  # type: ignore[method-assign]
        try:
            return what(*arguments, **named)
        finally:
            self.master.handle = handle  # type: ignore[method-assign]

    def _start_worker(self) -> None:
        self._do(self.master.start_worker)

    def _join(self) -> None:
        """Let every living worker be a member of a running round."""
        master, rounds = self.master, self.master.rounds
        living = [worker for worker in master.workers if worker not in master.gone]

        def ask_to_join() -> None:
            for worker in living:
                if worker not in rounds.members:
                    self._do(master.report, worker, RankPhase.OUTSIDE)

        ask_to_join()
        for _ in range(4):
            if not rounds.holders:
                self.step, self.shares = 0, {}
            for worker in rounds.members:
                self._do(master.report, worker, RankPhase.CONFIRMED)
            if self.end is not None or all(rounds.trains(worker) for worker in living):
                break
            ask_to_join()
            for worker in rounds.members:
                self._do(master.report, worker, RankPhase.ENDED, step=self.step, shares=self.shares)
            ask_to_join()
        training = master.state.training_ledger
        assert training is not None
        # As ``ShareSource.align`` does.
        for worker in living:
            positions = self.positions.setdefault(worker, {})
            self.positions[worker] = {lease: each for lease, each in positions.items() if lease in training.leases}

    def request_leases(self) -> None:
        """Let each member hold up to two leases."""
        training = self.master.state.training_ledger
        assert training is not None
        for worker in self.master.rounds.members:
            positions = {lease: each for lease, each in self.positions[worker].items() if lease in training.leases}
            self.positions[worker] = positions
            while len(positions) < 2 and self.end is None:
                answer = self._do(self.master.lease, worker, *positions)
                if not isinstance(answer, LeaseReply):
                    break
                positions[answer.lease] = (answer, 0)

    def _next_share(self, worker: str) -> Share | None:
        for lease, (granted, at) in self.positions[worker].items():
            if at < granted.record_range.records:
                return Share(lease, at, min(at + MINIBATCH, granted.record_range.records))
        return None

    def _records(self, share: Share) -> set[int]:
        granted = next(positions[share.lease][0] for positions in self.positions.values() if share.lease in positions)
        start = granted.record_range.start
        return set(range(start + share.start, start + share.end))

    def _report_stable(self) -> None:
        rank0 = self.master.rounds.members[0]
        self._do(self.master.report, rank0, RankPhase.RUNNING, step=self.step, stable=self.step, shares=self.shares)
        self.shares = {step: each for step, each in self.shares.items() if step > self.master.rounds.committed_step}


@pytest.mark.parametrize("exit_code", [137, 0, 139])
@pytest.mark.parametrize(("workers", "most_lost"), [(1, 4), (2, 4), (3, 5)])
def test_a_minibatch_that_ends_its_workers_fails_the_job_and_is_named(
    workers: int, most_lost: int, exit_code: int
) -> None:
    world = World(workers, deadly=[42], exit_code=exit_code, records=400)
    end = world.run()
    assert end is not None
    assert (end.phase, end.failure_kind) == ("Failed", "crash")
    assert not missing_keys(end.reason, "records 40 to 43 of a", f"{world.lost} times")
    assert world.lost <= most_lost


@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_found_although_the_master_hears_of_steps_late(workers: int) -> None:
    """The steps that nobody reported are lost with a single worker, and in the state of the survivors with two."""
    world = World(workers, deadly=[42], report_steps=7, records=400)
    end = world.run(1000)
    assert end is not None
    assert end.reason.startswith("records 40 to 43 of a made workers crash")
    assert world.lost <= 5


def test_two_such_minibatches_that_are_trained_in_one_step_are_both_found() -> None:
    world = World(3, deadly=[2, 18], skip_crashing=True, records=400)
    end = world.run()
    assert end is not None
    assert end.phase == "Done"
    assert sorted((event.start, event.end) for event in world.events("quarantined")) == [(0, 4), (16, 20)]
    assert world.lost <= 12


@pytest.mark.parametrize("workers", [1, 3])
def test_a_model_that_ends_its_workers_with_any_records_fails_the_job_and_blames_no_minibatch(workers: int) -> None:
    world = World(workers, deadly=range(400), skip_crashing=True, records=400)
    end = world.run()
    assert end is not None
    assert (end.phase, end.failure_kind) == ("Failed", "crash")
    assert not missing_keys(end.reason, "all workers ended 6 times in succession", "SIGKILL")
    assert world.lost == MAX_CRASHES * workers
    assert not world.events("quarantined")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_minibatch_that_ends_its_workers_is_skipped_if_the_job_says_so(workers: int) -> None:
    world = World(workers, deadly=[42], skip_crashing=True, records=400)
    end = world.run(1000)
    assert end is not None
    assert end.phase == "Done"
    training = world.master.state.training_ledger
    assert training is not None
    assert [(work.start, work.end) for work in training.quarantined_ranges] == [(40, 44)]
    assert training.done_records == 400 - 4
    (event,) = world.events("quarantined")
    assert "made workers crash" in event.reason
    assert world.lost <= 5


def test_three_workers_that_are_killed_at_once_are_no_failure() -> None:
    world = World(4)
    for _ in range(3):
        world.take_step()
    world.kill(*world.master.rounds.members[1:])
    end = world.run()
    assert end is not None
    assert end.phase == "Done"


@pytest.mark.parametrize("workers", [1, 4])
def test_kills_from_outside_that_hit_different_minibatches_are_no_failure(workers: int) -> None:
    world = World(workers, task_records=8)
    for _ in range(12):
        # Each time a worker gets some steps further than the one before.
        if world.end is None:
            world.kill(world.master.rounds.members[-1])
        for _ in range(2 + 2 * world.lost):
            if world.end is None:
                world.take_step()
    end = world.run()
    assert end is not None
    assert end.phase == "Done"


def test_suspect_records_are_leased_one_minibatch_at_a_time_to_a_worker_that_holds_nothing_else() -> None:
    world = World(2)
    world.take_step()
    world.kill(world.master.rounds.members[1])
    training = world.master.state.training_ledger
    assert training is not None
    suspects, leased_suspects = world.master.state.crash_suspects, 0
    while suspects.suspect_ranges:
        world.request_leases()
        for worker in world.master.rounds.members:
            leases = list(training.worker_leases(worker))
            if any(suspects.is_suspect(lease.record_range) for lease in leases):
                leased_suspects += 1
                assert [lease.step_count for lease in leases] == [1]
        world.take_step()
    # What a worker may have read ahead, and not the whole of its leases.
    assert leased_suspects == 1 + MAX_FED_AHEAD
    end = world.run()
    assert end is not None
    assert end.phase == "Done"


def test_the_cluster_may_say_late_that_a_silent_worker_has_ended() -> None:
    """The others do not wait for it: its leases have returned by then, but it is known what it trained."""
    world = World(2, deadly=[42], is_cluster_late=True, records=400)
    end = world.run()
    assert end is not None
    assert not missing_keys(end.reason, "records 40 to 43 of a", "4 times")
    assert world.lost == 4


def test_a_worker_that_has_announced_that_it_leaves_accuses_no_minibatch() -> None:
    world = World(2)
    world.take_step()
    leaving = world.master.rounds.members[1]
    world.master.handle(WorkerLeft(leaving, "SIGTERM"))
    world.kill(leaving)
    assert not world.master.state.crash_suspects.suspect_ranges


def test_workers_that_end_before_their_first_lease_count_against_the_role() -> None:
    master = AllReduceMaster(started=0)
    ends: list[Any] = []
    for _ in range(MAX_CRASHES):
        worker = master.start_worker()
        before = len(master.journal)
        master.kill(worker)
        ends += [entry for entry in master.journal[before:] if entry["kind"] == "phase"]
    (end,) = ends
    assert "workers crashed 6 times" in end["reason"]


def test_a_worker_that_ends_while_it_evaluates_accuses_no_training_records() -> None:
    world = World(2, validation=64, evaluation_steps=1, evaluation_workers=0)
    master = world.master
    world.take_step()
    rank0 = master.rounds.members[0]
    world._do(master.report, rank0, RankPhase.RUNNING, step=world.step, stable=world.step, is_paused=True)
    victim = master.rounds.members[1]
    granted = world._do(master.lease, victim, *world.positions[victim])
    assert granted.kind == "evaluation"
    world.kill(victim)
    assert not master.state.crash_suspects.suspect_ranges
    assert master.state.range_crashes
