"""Corrupt records under AllReduce: each that is skipped counts once, whoever reports it and how often."""

from __future__ import annotations

from typing import Any

from support.all_reduce_master import AllReduceMaster
from support.text_keys import missing_keys

from edl.core.events import EndJob
from edl.core.job import JobStateMachine
from edl.core.ledger import TRAINING
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import Share, StepShares


class DamagedData(AllReduceMaster):
    """Two ranks train in lockstep; ``skipped`` are the corrupt records of each minibatch of rank 1."""

    def __init__(self, *skipped: int, **settings: Any) -> None:
        super().__init__(started=2, **({"max_corrupt": 100} | settings))
        self.start_round("w0", "w1")
        first, second = self.lease("w0").lease, self.lease("w1").lease
        self.shares: dict[int, StepShares] = {
            step: (Share(first, 4 * step - 4, 4 * step), Share(second, 4 * step - 4, 4 * step, sum(skipped[:step])))
            for step in range(1, len(skipped) + 1)
        }
        self.ends: list[EndJob] = []

    def run(self, stable: int, worker: str = "w0") -> None:
        """A rank reports the steps up to ``stable``."""
        self.report(worker, RankPhase.RUNNING, step=stable, stable=stable, shares=self.shares)

    def _take(self, commands: list[Any]) -> list[Any]:
        if hasattr(self, "ends"):
            self.ends += [command for command in commands if isinstance(command, EndJob)]
        return super()._take(commands)

    @property
    def skipped(self) -> int:
        return self.state.counters.skipped


def test_a_report_that_comes_again_counts_nothing_again() -> None:
    master = DamagedData(1, 0, 2)
    master.run(1)
    assert master.skipped == 1
    # The worker has not heard of the answer yet, so its report begins with step 1 again.
    master.run(2)
    master.run(2)
    assert master.skipped == 1
    master.run(3)
    assert (master.skipped, master.state.ledgers[TRAINING].done_records) == (3, 24)


def test_the_journal_names_them_only_where_there_are_any() -> None:
    master = DamagedData(0, 2)
    master.run(1)
    master.run(2)
    first, second = [entry["done"] for entry in master.journal if entry["kind"] == "steps"]
    (one, other), (_, damaged) = first, second
    assert (len(one), len(other)) == (2, 2)
    assert damaged == [other[0], 8, 2]


def test_a_new_master_goes_on_counting_also_from_a_compacted_journal() -> None:
    master = DamagedData(1, 1, 1)
    master.run(2)
    snapshot = master.state.to_snapshot()
    master.restart()
    master.run(2)
    assert master.skipped == 2
    master.run(3)
    assert master.skipped == 3
    restored = JobStateMachine(master.settings)
    restored.replay_journal(snapshot, [])
    (number,) = [n for n, lease in restored.ledgers[TRAINING].leases.items() if lease.worker == "w1"]
    assert restored.counters.skipped == 2
    assert restored.ledgers[TRAINING].record_skipped(number, 3) == 1


def test_a_survivor_reports_what_a_lost_rank_has_skipped() -> None:
    master = DamagedData(1, 2)
    master.run(1)
    master.kill("w1")
    master.report("w0", RankPhase.ENDED, step=2, shares=master.shares)
    master.report("w0", RankPhase.CONFIRMED)
    assert (master.skipped, master.state.ledgers[TRAINING].done_records) == (3, 16)


def test_all_ranks_together_may_not_skip_more_than_the_limit_in_an_epoch() -> None:
    master = DamagedData(1, 1, 1, max_corrupt=2)
    master.run(2)
    assert not master.ends
    master.run(3)
    (end,) = master.ends
    assert (end.phase, end.failure_kind) == ("Failed", "input")
    assert not missing_keys(end.reason, "3 corrupt records in epoch 1", "allows 2")


def test_a_limit_that_a_lost_rank_exceeded_ends_the_job_with_the_next_round() -> None:
    master = DamagedData(1, 2, max_corrupt=2)
    master.run(1)
    master.kill("w1")
    master.report("w0", RankPhase.ENDED, step=2, shares=master.shares)
    assert not master.ends
    master.report("w0", RankPhase.CONFIRMED)
    (end,) = master.ends
    assert not missing_keys(end.reason, "3 corrupt records in epoch 1", "allows 2")
