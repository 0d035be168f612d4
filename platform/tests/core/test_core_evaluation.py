from __future__ import annotations

import copy
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core_harness import JournaledJob, alive, killed

from edl.api.cluster_port import Role
from edl.api.journal_entries import EvaluationCompleted, ParametersRolledBack
from edl.core.evaluation import merge_metric_states
from edl.core.events import (
    DatasetDescribed,
    EndJob,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    PodsSynced,
    ProgressReported,
    TaskReported,
)
from edl.core.job import JobStateMachine
from edl.core.journal_application import apply_entry
from edl.core.state import JobSettings, JobState

shape = st.lists(st.integers(0, 5), max_size=3)


def part(numbers: list[int], own: list[int]) -> dict[str, Any]:
    return {
        "accuracy": {"additive": True, "states": [numbers, [numbers]]},
        "auc": {"additive": False, "states": own},
    }


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=1)))
def test_states_add_up_elementwise_and_in_any_order(parts: list[list[int]]) -> None:
    expected = [sum(column) for column in zip(*parts, strict=True)]
    for order in (parts, parts[::-1]):
        total = reduce(merge_metric_states, (part(numbers, []) for numbers in order), {})
        assert total["accuracy"]["states"] == [expected, [expected]]


@given(st.lists(shape, min_size=1))
def test_states_that_do_not_add_up_are_kept_one_set_a_task(own: list[list[int]]) -> None:
    total = reduce(merge_metric_states, (part([1], states) for states in own), {})
    assert total["auc"] == {"additive": False, "states": own}


@given(shape, shape)
def test_adding_changes_neither_argument(first: list[int], second: list[int]) -> None:
    total, new = merge_metric_states({}, part([1], first)), part([2], second)
    before = copy.deepcopy((total, new))
    merge_metric_states(total, new)
    assert (total, new) == before


def test_tasks_that_disagree_are_refused() -> None:
    total = merge_metric_states({}, part([1], []))
    with pytest.raises(ValueError, match="metrics differ between tasks"):
        merge_metric_states(total, {"accuracy": {"additive": True, "states": []}})
    with pytest.raises(ValueError, match="differ in shape: 1 and 2 values"):
        merge_metric_states(total, part([1, 2], []))


def test_a_task_without_states_adds_nothing_and_what_is_said_of_a_metric_stays() -> None:
    empty = {"f1": {"additive": True, "states": []}}
    full = {"f1": {"additive": True, "states": [[1.0, 2.0]], "given": [["float32", [None, 2]]]}}
    twice = {**full["f1"], "states": [[2.0, 4.0]]}
    for parts in ((full, empty, full), (empty, full, full), (full, full, empty)):
        assert reduce(merge_metric_states, parts, {}) == {"f1": twice}
    assert reduce(merge_metric_states, (empty, empty), {}) == empty


# --------------------------------------------------------------------------------------------------
# A job that only evaluates; ``evaluation_only.txt`` has its course.


class EvaluatingJob(JournaledJob):
    """A job of 40 records without parameter servers, whose worker-0 may ask for work."""

    def __init__(self) -> None:
        super().__init__(JobSettings(minibatch=4, task_records=16, ps=0, evaluate=True, durable=False))

    def begin(self, *parts: tuple[str, int]) -> None:
        self.see(DatasetDescribed(validation=parts), alive(Role.WORKER, 0), PodsSynced(), ModelDeclared("worker-0"))

    def lease(self) -> LeaseReply:
        (granted,) = [x for x in self.see(LeaseRequested("worker-0")) if isinstance(x, LeaseReply)]
        return granted

    def evaluate(self, result: Any) -> LeaseReply:
        granted = self.lease()
        self.see(TaskReported("worker-0", granted.lease, None, result))
        return granted


def test_an_evaluation_without_records_is_bad_input() -> None:
    job = EvaluatingJob()
    (end,) = [x for x in job.see(DatasetDescribed(validation=(("v", 0),)), PodsSynced()) if isinstance(x, EndJob)]
    assert (end.phase, end.failure_kind) == ("Failed", "input")
    assert "no records to evaluate" in end.reason


def test_the_ledger_of_an_only_evaluation_is_the_jobs_ledger_also_after_its_end() -> None:
    job = EvaluatingJob()
    job.begin(("v", 40))
    assert job.state.main_ledger is not None
    assert (job.state.main_ledger.total_records, job.state.main_ledger.done_records) == (40, 0)
    for _ in range(2):
        job.evaluate({"n": {"additive": True, "states": [16]}})
    middle = job.state.to_snapshot()
    job.evaluate({"n": {"additive": True, "states": [8]}})
    metrics = job.evaluate({"n": 40.0})
    assert (metrics.kind, metrics.payload) == ("metrics", {"n": {"additive": True, "states": [40]}})
    assert (job.state.phase, job.state.counters.metrics) == ("Done", {"n": 40.0})
    for snapshot, done in ((middle, 32), (job.state.to_snapshot(), 40)):
        later = JobStateMachine(job.settings)
        later.replay_journal(snapshot, [])
        assert later.main_ledger is not None
        assert (later.main_ledger.done_records, later.main_ledger.total_records) == (done, 40)
        assert later.to_snapshot() == snapshot


@pytest.mark.parametrize(("done", "repeated"), [(0, 16), (2, 4)])
def test_a_processor_of_predictions_repeats_a_minibatch_at_most(done: int, repeated: int) -> None:
    """Files of predictions are written when a task ends; a processor has what it was given before."""
    job = EvaluatingJob()
    job.settings = replace(job.settings, evaluate=False, predict=True)
    job.restart()
    job.see(DatasetDescribed(prediction=(("v", 40),)), alive(Role.WORKER, 0), PodsSynced(), ModelDeclared("worker-0"))
    number = job.lease().lease
    if done:
        job.see(ProgressReported("worker-0", (LeaseProgress(number, done),)))
    job.see(killed(Role.WORKER, 0))
    assert job.state.counters.repeated == repeated


def test_a_worker_that_was_lost_before_its_model_was_built_repeats_nothing() -> None:
    job = EvaluatingJob()
    job.see(DatasetDescribed(validation=(("v", 40),)), alive(Role.WORKER, 0), PodsSynced())
    job.see(LeaseRequested("worker-0"), killed(Role.WORKER, 0))
    assert job.state.counters.repeated == 0


def test_variables_that_went_back_are_evaluated_again() -> None:
    state = JobState(JobSettings(minibatch=4, task_records=16, ps=2))
    apply_entry(state, EvaluationCompleted(metrics={"loss": 0.5}, step=8, pin=2, final=False))
    assert state.has_evaluated(8)
    assert not state.has_evaluated(9)
    # One of two parameter servers goes back to its checkpoint: the step stays, its variables do not.
    apply_entry(state, ParametersRolledBack(records=0, updates=3, cut=1, ledger=None, ps=0, reason="lost"))
    assert not state.has_evaluated(8)
