"""The copy of a rank's variables: only tasks of the step that was copied get it."""

from __future__ import annotations

from edl.worker.allreduce.copy_evaluation import CopyEvaluation
from edl.worker.lease_client import LeasedTask

EVERY = 10


class Evaluator:
    """A rank whose variables are the number of its step."""

    def __init__(self) -> None:
        self.step = 0
        self.evaluation = CopyEvaluation(EVERY, lambda: f"variables of step {self.step}", self._run_task)

    def _run_task(self, task: LeasedTask) -> int | None:
        raise AssertionError("no task is submitted")

    def reach(self, step: int, *, copy_at: int = 0, evaluated_step: int = 0) -> bool:
        self.step = step
        return self.evaluation.follow(copy_at, evaluated_step, step)


def test_a_task_of_another_step_gets_no_copy() -> None:
    """It was leased for an evaluation that was given up, or by a master that was replaced since."""
    rank = Evaluator()
    assert rank.reach(20, copy_at=20)
    assert rank.evaluation.find_copy(20) == "variables of step 20"
    assert rank.evaluation.find_copy(10) is None
    assert rank.evaluation.find_copy(30) is None


def test_the_copy_stays_as_it_was_until_its_evaluation_is_over() -> None:
    rank = Evaluator()
    rank.reach(20, copy_at=20)
    assert not rank.reach(27, copy_at=20, evaluated_step=20)
    assert rank.evaluation.find_copy(20) == "variables of step 20"
    rank.reach(31, evaluated_step=0)
    assert not rank.evaluation.has_copy
    assert rank.evaluation.find_copy(20) is None


def test_a_rank_that_leaves_the_world_has_no_copy_and_says_so() -> None:
    rank = Evaluator()
    rank.reach(20, copy_at=20)
    before = rank.evaluation.report
    rank.evaluation.drop()
    assert rank.evaluation.find_copy(20) is None
    assert (rank.evaluation.report.step, rank.evaluation.report.changes) == (0, before.changes + 1)
