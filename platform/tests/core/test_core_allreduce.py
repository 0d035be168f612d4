"""The world of AllReduce within the job: silence, leases, limits, and what a new master does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.all_reduce_master import AllReduceMaster
from support.text_keys import missing_keys

from edl.api.run_events import RecordsRequeued, RoleRequested
from edl.api.status import WorldStatus
from edl.core.allreduce import CLOSING_SILENCE_SECONDS, describe_world
from edl.core.events import (
    EndJob,
    LeaseProgress,
    LeaseReply,
    ProgressReported,
    TaskReported,
    Tick,
    WorldReported,
    WorldView,
)
from edl.core.job import JobStateMachine
from edl.core.ledger import EXPORT, TRAINING
from edl.core.rank_state import RankPhase
from edl.core.scaling import is_starved
from edl.core.world_rounds import MemberReport, RoundPhase, Share


def test_the_first_worker_trains_alone_and_the_next_ones_join() -> None:
    master = AllReduceMaster()
    master.start_round("w0")
    assert master.rounds.members == ("w0",)
    master.start_round("w0", "w1", "w2")
    assert set(master.rounds.members) == {"w0", "w1", "w2"}


def test_the_pods_of_a_node_have_neighbouring_ranks() -> None:
    master = AllReduceMaster(started=5, nodes=("a", "b", "a", "b", "a"), workers_min=4)
    master.start_round("w0", "w1", "w2", "w3")
    assert master.rounds.members == ("w0", "w2", "w1", "w3")
    # A new master knows the nodes from the cluster.
    master.restart()
    master.start_round("w4")
    assert master.rounds.members == ("w0", "w2", "w4", "w1", "w3")
    master.kill("w0")
    for worker in ("w1", "w2", "w3", "w4"):
        master.report(worker, RankPhase.ENDED, step=0)
    assert master.rounds.members == ("w2", "w4", "w1", "w3")


def test_a_new_master_gives_training_leases_no_limits_of_their_own() -> None:
    """It would look every millisecond whether one of them has expired, and a stuck task would hide behind it."""
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    master.lease("w0")
    master.restart()
    for _ in range(400):
        master.report("w0", RankPhase.RUNNING, step=1)
        master.handle(Tick(), after=2.0)
    assert master.state.next_deadline(master.now) - master.now >= 0.5
    assert not any(holder.last_steps for holder in master.state.holders.values())


def test_below_the_minimum_no_round_starts_and_the_job_says_why() -> None:
    master = AllReduceMaster(workers_min=2)
    view = master.report("w0", RankPhase.OUTSIDE)
    assert not view.is_member
    for reason in (view.reason, master.lease("w0").reason):
        assert not missing_keys(reason, "1 of at least 2 workers")
    assert master.report("w1", RankPhase.OUTSIDE).is_member


def test_users_see_the_world_with_its_ranks_and_what_it_waits_for() -> None:
    master = AllReduceMaster(workers_min=2)
    master.report("w0", RankPhase.OUTSIDE)
    world = describe_world(master.state)
    assert world is not None
    assert not missing_keys(world.reason, "1 of at least 2 workers")
    assert replace(world, reason="") == WorldStatus()
    master.start_round("w0", "w1")
    world = describe_world(master.state)
    assert world is not None
    assert (world.running, world.size, world.ranks, world.reason) == (True, 2, (0, 1), "")
    master.report("w2", RankPhase.OUTSIDE)
    world = describe_world(master.state)
    assert world is not None
    assert (world.running, world.reason) == (True, "worker-2 joins")


def test_a_worker_outside_is_given_a_member_to_follow_while_a_round_runs() -> None:
    master = AllReduceMaster()
    assert master.report("w0", RankPhase.FOLLOWING).source == ""
    master.start_round("w0", "w1")
    view = master.report("w2", RankPhase.FOLLOWING)
    assert view.source in ("w0", "w1")
    assert not view.must_change
    assert master.report("w0", RankPhase.RUNNING, step=0).source == ""
    assert master.report("w2", RankPhase.CAUGHT_UP, step=0).must_change


@pytest.mark.parametrize(
    ("nodes", "sources"),
    [
        # Worker 4 begins with rank 4 % 4; the ranks of one node are side by side.
        (("a", "b", "c", "d", "e"), ("w0", "w1", "w2", "w3")),
        (("a", "a", "b", "a", "e"), ("w0", "w2")),
        (("a", "b", "c", "d", "c"), ("w2",)),
        (("a", "b", "a", "d", "a"), ("w0",)),
        (("", "b", "c", "d", "e"), ("w0",)),
        (("a", "", "c", "", ""), ("w0", "w2")),
        (("", "", "", "", ""), ("w0",)),
    ],
)
def test_a_worker_outside_gets_its_state_from_members_of_different_nodes(
    nodes: tuple[str, ...], sources: tuple[str, ...]
) -> None:
    """One of its own node sends everything: it crosses no network."""
    master = AllReduceMaster(started=5, nodes=nodes, workers_min=4)
    master.start_round("w0", "w1", "w2", "w3")
    view = master.report("w4", RankPhase.FOLLOWING)
    assert (view.source, *view.helpers) == sources


def test_a_worker_that_was_ready_too_late_changes_the_world_only_when_it_has_followed_the_round() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    master.kill("w1")
    # It was caught up with the round that is closing; after a loss the survivors wait for nobody.
    master.report("w2", RankPhase.CAUGHT_UP, step=0)
    master.report("w0", RankPhase.ENDED, step=0)
    assert master.rounds.members == ("w0",)
    view = master.report("w0", RankPhase.CONFIRMED)
    assert (view.phase, view.must_change) == (RoundPhase.RUNNING, False)
    assert not master.report("w2", RankPhase.FOLLOWING, step=0).must_change
    assert master.report("w2", RankPhase.CAUGHT_UP, step=0).must_change


def test_a_change_does_not_wait_for_a_worker_that_was_ready_too_late_for_the_round_before() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    master.kill("w1")
    master.report("w2", RankPhase.CAUGHT_UP, step=0)
    master.report("w0", RankPhase.ENDED, step=0)
    master.report("w0", RankPhase.CONFIRMED)
    # It says nothing any more, and another one joins.
    other = master.start_worker()
    master.report(other, RankPhase.CAUGHT_UP, step=0)
    master.report("w0", RankPhase.ENDED, step=0)
    master.report(other, RankPhase.OUTSIDE, step=0)
    assert master.rounds.members == ("w0", other)


def test_a_member_that_says_nothing_while_the_others_wait_is_lost() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1", "w2")
    master.report("w0", RankPhase.ENDED, step=0)
    master.report("w1", RankPhase.ENDED, step=0)
    assert master.rounds.phase is RoundPhase.CLOSING
    master.report("w0", RankPhase.ENDED, step=0)
    for worker in ("w0", "w1"):
        master.now += CLOSING_SILENCE_SECONDS / 2
        master.report(worker, RankPhase.ENDED, step=0)
    master.handle(Tick(), after=CLOSING_SILENCE_SECONDS / 2)
    assert master.rounds.members == ("w0", "w1")


def test_time_in_which_the_master_was_stopped_is_no_silence() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    master.now += 100
    master.report("w0", RankPhase.RUNNING, step=0)
    master.handle(Tick(late_seconds=100))
    assert (master.rounds.phase, master.rounds.lost) == (RoundPhase.RUNNING, set())


def test_a_planned_change_does_not_wait_for_a_candidate_that_is_silent() -> None:
    master = AllReduceMaster()
    master.start_round("w0")
    master.report("w1", RankPhase.OUTSIDE)
    assert master.report("w0", RankPhase.ENDED, step=0).phase is RoundPhase.CLOSING
    master.now += CLOSING_SILENCE_SECONDS
    master.report("w0", RankPhase.ENDED, step=0)
    master.handle(Tick())
    assert (master.rounds.phase, master.rounds.members) == (RoundPhase.CONFIRMING, ("w0",))


def test_the_lease_of_a_lost_worker_returns_when_the_next_round_starts_and_not_before() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    granted = master.lease("w1")
    lost = granted.lease
    shares = {1: (Share(lost, 0, 4),)}
    master.kill("w1")
    training = master.state.training_ledger
    assert training is not None
    assert lost in training.leases, "the step of which it was a part may be in the state of the others"
    # w0 has applied the step with the lost worker's share.
    master.report("w0", RankPhase.ENDED, step=1, shares=shares)
    assert lost in training.leases
    master.report("w0", RankPhase.CONFIRMED)
    assert lost not in training.leases
    assert training.done_records == 4
    assert [work.start for work in training.returned_ranges] == [granted.record_range.start + 4]


def test_the_minibatch_of_a_lost_worker_counts_as_repeated_and_that_of_a_worker_that_left_does_not() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1", "w2")
    lost, left = master.lease("w1"), master.lease("w2")
    master.kill("w1")
    shares = {1: (Share(lost.lease, 0, 4), Share(left.lease, 0, 4))}
    master.report("w2", RankPhase.ENDED, step=1, shares=shares, is_leaving=True)
    master.report("w0", RankPhase.ENDED, step=1, shares=shares)
    master.report("w0", RankPhase.CONFIRMED)
    assert master.rounds.trains("w0")
    training = master.state.training_ledger
    assert training is not None
    assert (training.done_records, master.state.counters.repeated) == (8, 4)
    assert master.journal[-1]["repeated"] == 4
    repeated = [event for event in master.events if isinstance(event, RecordsRequeued)]
    start = lost.record_range.start + 4
    assert [(event.worker, event.start, event.end) for event in repeated] == [(1, start, start + 4)]
    master.restart()
    assert master.state.counters.repeated == 4


@pytest.mark.parametrize("is_compacted", [False, True])
def test_what_a_worker_leaves_does_not_count_as_repeated_if_the_master_is_killed_before_the_next_round_starts(
    *, is_compacted: bool
) -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1", "w2")
    left, lost = master.lease("w2"), master.lease("w1")
    shares = {1: (Share(left.lease, 0, 4), Share(lost.lease, 0, 4))}
    for worker in ("w2", "w1", "w0"):
        master.report(worker, RankPhase.ENDED, step=1, shares=shares, is_leaving=worker == "w2")
    assert (master.rounds.phase, master.rounds.members) == (RoundPhase.CONFIRMING, ("w0", "w1"))
    if is_compacted:
        master.compact()
    master.kill("w2", exit_code=0)
    # A worker that is lost on the way counts all the same.
    master.kill("w1")
    master.restart()
    master.report("w0", RankPhase.ENDED, step=1, shares=shares)
    master.report("w0", RankPhase.CONFIRMED)
    assert master.rounds.trains("w0")
    training = master.state.training_ledger
    assert training is not None
    assert (training.done_records, master.state.counters.repeated, len(training.leases)) == (8, 4, 0)


def test_a_worker_that_left_and_ended_before_there_were_enough_for_a_round_repeats_nothing() -> None:
    master = AllReduceMaster(workers_min=2)
    master.start_round("w0", "w1")
    shares = {1: (Share(master.lease("w1").lease, 0, 4),)}
    master.report("w1", RankPhase.ENDED, step=1, shares=shares, is_leaving=True)
    master.report("w0", RankPhase.ENDED, step=1, shares=shares)
    assert not master.report("w1", RankPhase.ENDED, step=1, is_leaving=True).is_member
    master.kill("w1", exit_code=0)
    master.report("w2", RankPhase.OUTSIDE)
    for worker in ("w0", "w2"):
        master.report(worker, RankPhase.CONFIRMED)
    assert (master.rounds.members, master.rounds.phase) == (("w0", "w2"), RoundPhase.RUNNING)
    assert master.state.counters.repeated == 0


def test_with_a_global_batch_a_lost_worker_repeats_its_part_of_a_step_at_most() -> None:
    master = AllReduceMaster(global_batch=8)
    master.start_round("w0", "w1", "w2")
    lost = master.lease("w1")
    assert lost.record_range.records > 3
    master.kill("w1")
    for worker in ("w0", "w2"):
        master.report(worker, RankPhase.ENDED, step=0)
    for worker in ("w0", "w2"):
        master.report(worker, RankPhase.CONFIRMED)
    assert master.state.counters.repeated == 3


def test_a_lost_worker_without_a_lease_repeats_nothing() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    master.kill("w1")
    master.report("w0", RankPhase.ENDED, step=0)
    master.report("w0", RankPhase.CONFIRMED)
    assert (master.rounds.trains("w0"), master.state.counters.repeated) == (True, 0)


def test_a_worker_that_was_lost_and_joins_the_very_next_round_has_no_lease() -> None:
    """It gave its leases up when it heard that it was outside, so nobody would train their records."""
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    lost = master.lease("w1").lease
    master.now += 5.0
    master.report("w0", RankPhase.RUNNING, step=0)
    master.handle(Tick())
    assert "w1" in master.rounds.lost
    # It is back before the survivor has reported.
    master.report("w1", RankPhase.OUTSIDE)
    master.report("w0", RankPhase.ENDED, step=0)
    assert master.rounds.members == ("w0", "w1")
    training = master.state.training_ledger
    assert training is not None
    for worker in master.rounds.members:
        master.report(worker, RankPhase.CONFIRMED)
    assert master.rounds.trains("w1")
    assert lost not in training.leases


def test_only_members_of_the_running_round_get_training_leases() -> None:
    master = AllReduceMaster()
    master.start_round("w0")
    assert isinstance(master.lease("w0"), LeaseReply)
    assert not isinstance(master.lease("w1"), LeaseReply)
    master.kill("w0")
    assert not isinstance(master.lease("w0"), LeaseReply)


def test_a_grant_that_got_lost_is_granted_again() -> None:
    master = AllReduceMaster()
    master.start_round("w0")
    first = master.lease("w0").lease
    assert master.lease("w0").lease == first
    assert master.lease("w0", first).lease != first


def test_a_late_request_takes_no_lease_back_that_the_worker_trains() -> None:
    master = AllReduceMaster()
    master.start_round("w0")
    lease = master.lease("w0").lease
    master.lease("w0", lease)
    master.report("w0", RankPhase.RUNNING, step=2, stable=1, shares={1: (Share(lease, 0, 4),)})
    training = master.state.training_ledger
    assert training is not None
    master.lease("w0")
    assert lease in training.leases


def test_a_lease_that_a_worker_has_given_up_returns_with_a_new_master() -> None:
    master = AllReduceMaster()
    master.start_round("w0")
    lease = master.lease("w0").lease
    master.lease("w0", lease)
    master.report("w0", RankPhase.RUNNING, step=2, stable=1, shares={1: (Share(lease, 0, 4),)})
    master.restart()
    master.lease("w0")
    assert master.state.training_ledger is not None
    assert lease not in master.state.training_ledger.leases


def test_steps_count_only_with_the_shares_that_say_what_is_in_them() -> None:
    master = AllReduceMaster()
    master.start_round("w0")
    lease = master.lease("w0").lease
    master.report("w0", RankPhase.RUNNING, step=3, stable=2, shares={2: (Share(lease, 4, 8),)})
    assert master.state.step == 0
    master.report("w0", RankPhase.RUNNING, step=3, stable=2**61)
    assert master.state.step == 0
    steps = {1: (Share(lease, 0, 4),), 2: (Share(lease, 4, 8),)}
    view = master.report("w0", RankPhase.RUNNING, step=3, stable=2, shares=steps, loss=0.5)
    assert (master.state.step, view.committed_step, view.leases) == (2, 2, {lease: 8})
    assert master.state.counters.loss == 0.5


def test_different_variables_end_the_job_and_name_the_workers() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    for worker in ("w0", "w1"):
        master.report(worker, RankPhase.ENDED, step=0)
    before = len(master.journal)
    master.report("w0", RankPhase.CONFIRMED, digest=1)
    master.report("w1", RankPhase.CONFIRMED, digest=2)
    ended = [entry for entry in master.journal[before:] if entry["kind"] == "phase"]
    assert [entry["name"] for entry in ended] == ["Failed"]
    assert "worker-0 and worker-1" in ended[0]["reason"]


@pytest.mark.parametrize("phase", [RoundPhase.RUNNING, RoundPhase.CONFIRMING])
def test_a_new_master_keeps_a_running_round_and_closes_an_announced_one(phase: RoundPhase) -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    if phase is RoundPhase.CONFIRMING:
        for worker in ("w0", "w1"):
            master.report(worker, RankPhase.ENDED, step=0)
    assert master.rounds.phase is phase
    members, number = master.rounds.members, master.rounds.round
    master.restart()
    assert (master.rounds.members, master.rounds.round) == (members, number)
    assert master.rounds.phase is (RoundPhase.RUNNING if phase is RoundPhase.RUNNING else RoundPhase.CLOSING)


def test_when_nobody_has_a_state_the_ledger_starts_again() -> None:
    master = AllReduceMaster()
    master.start_round("w0")
    lease = master.lease("w0").lease
    master.report("w0", RankPhase.RUNNING, step=2, stable=1, shares={1: (Share(lease, 0, 4),)})
    assert master.state.step == 1
    master.kill("w0")
    master.start_round("w1")
    training = master.state.training_ledger
    assert training is not None
    assert (master.state.step, training.done_records, dict(training.leases)) == (0, 0, {})
    assert master.state.counters.rolled_back == 4
    again = AllReduceMaster()
    again.journal, again.gone = master.journal, master.gone
    again.restart()
    assert again.state.training_ledger is not None
    assert again.state.training_ledger.to_snapshot() == training.to_snapshot()


def test_the_answer_to_the_report_that_begins_an_evaluation_says_that_nobody_trains() -> None:
    master = AllReduceMaster(validation=8, evaluation_steps=1)
    master.start_round("w0")
    lease = master.lease("w0").lease
    shares = {1: (Share(lease, 0, 4),)}
    view = master.report("w0", RankPhase.RUNNING, step=1, stable=1, shares=shares, is_paused=True)
    assert master.state.evaluation is not None
    assert view.must_pause
    # A new master, before it knows the pods.
    state = JobStateMachine(master.settings)
    state.replay_journal(None, master.journal)
    state.begin_incarnation(2)
    report = MemberReport(step=1)
    answers = state.handle(WorldReported("w0", RankPhase.RUNNING, master.rounds.round, report, 1), 0.0)
    assert [answer.must_pause for answer in answers if isinstance(answer, WorldView)] == [True]


def test_training_ends_with_the_step_that_max_steps_names() -> None:
    master = AllReduceMaster(max_steps=2)
    master.start_round("w0")
    lease = master.lease("w0").lease
    steps = {1: (Share(lease, 0, 4),), 2: (Share(lease, 4, 8),)}
    master.report("w0", RankPhase.RUNNING, step=2, stable=2, shares=steps)
    assert master.state.is_training_over()
    assert master.state.training_ledger is not None
    assert not master.state.training_ledger.leases
    ends = [command for command in master.handle(Tick()) if isinstance(command, EndJob)]
    assert ends == [] or ends[0].phase == "Done"
    assert master.state.phase == "Done"


def requested_workers(master: AllReduceMaster) -> list[int]:
    """Indices of the workers that the master has requested, half a second later."""
    master.handle(Tick(), after=0.5)
    return [event.index for event in master.events if isinstance(event, RoleRequested) and event.role == "worker"]


def test_below_the_minimum_a_worker_is_requested_although_all_records_are_leased() -> None:
    """Seen by reading: a lost worker's records return with the next round, which waits for a worker that nobody
    requested, so the job hung for ever."""
    master = AllReduceMaster(started=2, records=32, workers_min=2)
    master.start_round("w0", "w1")
    for worker in ("w0", "w1"):
        assert isinstance(master.lease(worker), LeaseReply)
    master.kill("w1")
    master.report("w0", RankPhase.ENDED, step=0)
    assert not missing_keys(master.rounds.waiting_reason, "1 of at least 2 workers")
    assert is_starved(master.state)
    assert requested_workers(master) == [2]
    master.start_worker()
    master.start_round("w0", "w2")
    assert master.rounds.members == ("w0", "w2")


def test_when_training_is_over_one_worker_evaluates_and_exports() -> None:
    master = AllReduceMaster(started=2, records=16, workers_min=2, validation=8)
    master.start_round("w0", "w1")
    step, leases = 0, list[int]()
    while isinstance(lease := master.lease("w0", *leases), LeaseReply) and lease.kind == TRAINING:
        leases.append(lease.lease)
        steps = -(-(lease.record_range.end - lease.record_range.start) // 4)
        shares = {step + at: (Share(lease.lease, 4 * at - 4, 4 * at),) for at in range(1, steps + 1)}
        step += steps
        master.report("w0", RankPhase.RUNNING, step=step, stable=step, shares=shares)
    assert master.state.is_training_over()
    master.kill("w1")
    master.report("w0", RankPhase.ENDED, step=4)
    master.start_round("w0")
    assert master.rounds.members == ("w0",)
    assert requested_workers(master) == []


@pytest.mark.parametrize(("seconds", "exports"), [(300, 1), (900, 2)])
def test_an_export_may_take_longer_than_steps_do(seconds: int, exports: int) -> None:
    """It reports no steps. Its lease returned after a minute, its result was refused, and the job never ended."""
    master = AllReduceMaster(started=1, max_steps=1, export=True)
    master.start_round("w0")
    training = master.lease("w0").lease
    master.state.lease_timeouts.record_step(0.01, master.now)
    master.report("w0", RankPhase.RUNNING, step=1, stable=1, shares={1: (Share(training, 0, 4),)})
    for _ in range(exports):
        assert not master.state.has_ended
        lease = master.lease("w0")
        assert lease.kind == EXPORT
        until = master.now + seconds
        while master.now < until:
            master.report("w0", RankPhase.RUNNING, step=1, stable=1)
            master.handle(ProgressReported("w0", (LeaseProgress(lease.lease, 0),)))
            master.handle(Tick(), after=min(3.0, max(0.01, until - master.now)))
        master.handle(TaskReported("w0", lease.lease, None, ["/export"]))
    assert master.state.phase == "Done"
