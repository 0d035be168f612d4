"""Updates that ``train.on_nan: skip`` left out are counted once, and workers' warnings reach the user once."""

from __future__ import annotations

from core.test_core_world_rounds import running
from support.core_harness import CoreHarness

from edl.api.run_events import WarningRaised
from edl.core.events import EmitEvent, LeaseProgress, ProgressReported, TaskReported, WorkerWarning
from edl.core.rank_state import PendingShares
from edl.core.world_rounds import MemberReport, RoundStarted, Share, StepsCommitted


def test_skipped_updates_are_counted_also_over_a_restart_of_the_master() -> None:
    harness = CoreHarness()
    lease = harness.train()
    progress = ProgressReported("worker-0", (LeaseProgress(lease, 3, skipped_updates=2),))
    harness.see(progress)
    harness.see(progress)
    harness.restart()
    harness.see(TaskReported("worker-0", lease, LeaseProgress(lease, 8, skipped_updates=1), None))
    assert harness.state.counters.updates_skipped == 3


def test_a_step_of_all_ranks_that_was_skipped_counts_once() -> None:
    rounds = running("a", "b").rounds
    (committed,) = rounds.handle_stable(rounds.round, 3, {5: 4}, {}, (1, 3, 4))
    assert isinstance(committed, StepsCommitted)
    assert committed.updates_skipped == 2
    rounds.apply_committed(committed)
    # Its sender does not know yet that these steps are committed.
    (committed,) = rounds.handle_stable(rounds.round, 4, {5: 4}, {}, (1, 3, 4))
    assert isinstance(committed, StepsCommitted)
    assert committed.updates_skipped == 1


def test_a_skipped_step_that_only_a_survivor_reports_is_counted() -> None:
    rounds = running("a", "b")
    rounds.do(rounds.rounds.handle_lost("b", "killed"))
    first = rounds.rounds.round
    report = MemberReport(rounds.rounds.started_round, 2, 7, 0, {5: 4}, {}, (2,))
    rounds.do(rounds.rounds.handle_report("a", first, report))
    rounds.confirm()
    started = rounds.said[-1]
    assert isinstance(started, RoundStarted)
    assert (started.step, started.updates_skipped) == (2, 1)


def test_a_copy_of_the_state_has_the_skipped_steps_that_no_master_knows() -> None:
    shares = PendingShares()
    for step in range(1, 5):
        shares.add_step((Share(5, step - 1, step),), is_skipped=step in (1, 3))
    shares.drop_steps(2)
    assert shares.skipped_steps == (3,)
    assert PendingShares.from_json(shares.to_json()) == shares
    shares.drop_steps(4)
    # An earlier version reads this, too.
    assert set(shares.to_json()) == {"after", "step", "done", "newest"}


def warn(harness: CoreHarness, worker: str, *warnings: WorkerWarning) -> list[str]:
    """Report warnings; returns those of which users are told."""
    commands = harness.see(ProgressReported(worker, (), warnings))
    return [x.event.message for x in commands if isinstance(x, EmitEvent) and isinstance(x.event, WarningRaised)]


def test_a_warning_of_all_workers_is_shown_once() -> None:
    harness = CoreHarness()
    harness.train()
    warning = WorkerWarning("compile(%s) has no effect", "compile(jit_compile) has no effect")
    assert warn(harness, "worker-0", warning) == [warning.text]
    assert warn(harness, "worker-1", warning) == []
    harness.restart()
    assert warn(harness, "worker-0", warning) == []
    assert harness.state.counters.warnings == {warning.topic: [warning.text]}


def test_warnings_of_every_minibatch_are_few_and_hide_no_other() -> None:
    harness = CoreHarness()
    harness.train()
    assert len(warn(harness, "worker-0", *(WorkerWarning("loss %s", f"loss {at}") for at in range(99)))) == 3
    assert warn(harness, "worker-0", WorkerWarning("export", "no .keras file")) == ["no .keras file"]
    assert len(warn(harness, "worker-0", *(WorkerWarning(f"{at}", f"{at}") for at in range(99)))) == 30
