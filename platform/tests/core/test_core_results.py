from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core_harness import CoreHarness
from support.text_keys import missing_keys

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.core.evaluation import PinnedEvaluation, merge_metric_states
from edl.core.events import (
    Acknowledged,
    DatasetDescribed,
    EndJob,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    PodChanged,
    PodsSynced,
    WorkerFailed,
)
from edl.core.ledger import Lease, single_task_ledger
from edl.core.record_ranges import RecordRange
from edl.core.shuffle import training_size_error
from edl.core.strict_json import decode_json
from edl.core.task_results import find_result_error

ONE_BLOCK = {"runs": [[[7, 1]]], "record_bytes": 9}
KINDS = ("describe", "evaluation", "metrics", "export", "prediction", "training")
LEASE = Lease(7, RecordRange(0, "digits", 0, 10), 4, "worker-0")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def pinned_evaluation(**states: Any) -> PinnedEvaluation:
    return PinnedEvaluation(1, 10, False, single_task_ledger("evaluation"), states)


def state(*states: Any, additive: bool = True) -> dict[str, Any]:
    return {"additive": additive, "states": list(states)}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(KINDS), json_values)
def test_whatever_json_a_worker_reports_is_judged_and_never_raises(kind: str, result: Any) -> None:
    assert isinstance(find_result_error(kind, LEASE, None, result, pinned_evaluation(acc=state([1.0, 2.0]))), str)


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("describe", {"training": [["digits", 100]], "validation": [], "prediction": []}),
        ("evaluation", {"acc": state([3.0, None]), "auc": state([1], additive=False)}),
        ("describe", {"training": [["a", 7], ["b", 0]], "blocks": {"runs": [[[3, 2], [1, 1]], []], "record_bytes": 9}}),
        ("describe", {"training": [["a", 7]], "blocks": {**ONE_BLOCK, "weights": [[2, 1]]}}),
        ("metrics", {"acc": 0.5, "loss": None}),
        ("export", ["/runs/r1/export"]),
        ("prediction", None),
    ],
)
def test_the_agreed_shapes_are_taken(kind: str, result: Any) -> None:
    before = pinned_evaluation(acc=state([1.0, 2.0]), auc=state(additive=False)) if kind == "evaluation" else None
    assert find_result_error(kind, LEASE, None, result, before) == ""


@pytest.mark.parametrize(
    ("kind", "result", "why"),
    [
        ("describe", {"training": [["digits", -1]]}, "a source is"),
        ("describe", {"training": [["digits", True]]}, "a source is"),
        ("describe", {"training": [["digits", 1]], "validation": [None]}, "a source is [name, records], not nothing"),
        ("describe", {"training": None}, "a source is"),
        ("describe", {"trainning": []}, "is not an object of"),
        ("describe", None, "nothing"),
        ("describe", {"training": [["a", 7]], "blocks": {"runs": [[[3, 2]]], "record_bytes": 9}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {"runs": [[[7, 1]], []], "record_bytes": 9}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {"runs": [[[-7, -1]]], "record_bytes": 9}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {"runs": [[7, 1]], "record_bytes": 9}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {**ONE_BLOCK, "weights": [[1, 2]]}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {**ONE_BLOCK, "weights": [[0, 1]]}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {**ONE_BLOCK, "weights": [[1001, 1]]}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {**ONE_BLOCK, "weights": [[True, 1]]}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {**ONE_BLOCK, "weights": "1"}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {"runs": [[[7, 1]]]}}, "do not add up"),
        ("describe", {"training": [["a", 7]], "blocks": {"runs": [[[1, 7.0]]], "record_bytes": 9}}, "do not add up"),
        ("evaluation", [0.5], "one entry per metric"),
        ("evaluation", {"acc": 0.5}, "'acc'"),
        ("evaluation", {"acc": state("much")}, "'acc'"),
        ("evaluation", {"loss": state([1.0, 2.0])}, "do not add up"),
        ("evaluation", {"acc": state([1.0])}, "do not add up"),
        ("metrics", {"acc": "high"}, "'acc'"),
        ("metrics", [0.5], "list"),
        ("export", "/runs/r1/export", "str"),
        ("export", [], "list"),
    ],
)
def test_other_shapes_are_refused_with_what_was_found(kind: str, result: Any, why: str) -> None:
    assert why in find_result_error(kind, LEASE, None, result, pinned_evaluation(acc=state([1.0, 2.0])))


def test_a_training_task_is_over_only_after_its_last_step() -> None:
    assert "after 2 of 3 steps" in find_result_error("training", LEASE, LeaseProgress(7, 2), None, None)
    assert find_result_error("training", LEASE, LeaseProgress(7, 3), None, None) == ""
    assert find_result_error("training", LEASE, None, None, None) == ""


def test_a_sum_with_a_number_that_is_not_finite_is_not_finite() -> None:
    total = merge_metric_states({"acc": state([1.0, None, 2])}, {"acc": state([None, 1.0, 3])})
    assert total == {"acc": state([None, None, 5])}


def test_a_sum_that_no_number_can_hold_is_not_finite_and_what_64_bits_cannot_hold_has_a_fraction() -> None:
    total = merge_metric_states({"acc": state([1e308, -1e308, 2**63 - 1])}, {"acc": state([1e308, -1e308, 2**63 - 1])})
    assert total == {"acc": state([None, None, 2.0**64])}
    assert decode_json(json.dumps(total, allow_nan=False)) == total


def test_a_job_that_trains_leases_no_records_to_predict() -> None:
    harness = CoreHarness()
    harness.see(DatasetDescribed(training=(("a", 640),), prediction=(("b", 64),)))
    assert set(harness.state.ledgers) == {"training"}


@pytest.mark.parametrize("sources", [(("a", 7),), (("a", 3), ("b", 4))])
def test_a_job_whose_epoch_does_not_fill_a_minibatch_ends_before_it_begins(sources: Any) -> None:
    """It would make one small step an epoch, and export an untrained model with exit code 0."""
    harness = CoreHarness()
    (end,) = [x for x in harness.see(DatasetDescribed(training=sources)) if isinstance(x, EndJob)]
    assert (end.phase, end.failure_kind) == ("Failed", "input")
    assert end.reason.startswith(
        f"train.minibatch_size is 8, and data.training has {sum(n for _, n in sources)} records"
    )
    assert not [entry for entry in harness.journal if entry["kind"] == "dataset"]


def test_one_record_is_one_record_in_the_message() -> None:
    assert "data.training has 1 record: no minibatch" in str(training_size_error(8, 1, 1, None))


def test_a_job_whose_epoch_does_not_fill_a_step_of_all_workers_ends_before_it_begins() -> None:
    why = training_size_error(8, 20, 1, 32)
    assert why is not None
    assert why.startswith("strategy.global_batch is 32, and data.training has 20 records")
    assert training_size_error(8, 32, 1, 32) is None
    # A worker takes a step in parts.
    assert training_size_error(64, 32, 1, 32) is None


def test_a_job_whose_steps_would_wait_for_more_leases_than_a_worker_can_name_ends_before_it_begins() -> None:
    masters = CoreHarness()
    masters.settings = replace(masters.settings, all_reduce=True, ps=0, global_batch=1200, minibatch=1, task_records=1)
    masters.restart()
    (end,) = [x for x in masters.see(DatasetDescribed(training=(("a", 2500),))) if isinstance(x, EndJob)]
    assert (end.phase, end.failure_kind) == ("Failed", "input")
    assert end.reason.startswith("strategy.global_batch is 1,200, but a worker may have only 1,000 records of it")
    assert not [entry for entry in masters.journal if entry["kind"] == "dataset"]


def test_a_job_whose_epochs_count_beyond_64_bits_ends_before_it_begins() -> None:
    masters = CoreHarness()
    masters.settings = replace(masters.settings, epochs=2**62)
    masters.restart()
    (end,) = [x for x in masters.see(DatasetDescribed(training=(("a", 640),))) if isinstance(x, EndJob)]
    assert (end.phase, end.failure_kind) == ("Failed", "input")
    assert "train.epochs" in end.reason
    assert training_size_error(8, 640, (2**63 - 1) // 640) is None


def test_a_job_without_training_records_ends_and_says_so() -> None:
    for sources in ((), (("a", 0),)):
        harness = CoreHarness()
        harness.see(PodsSynced())
        (end,) = [x for x in harness.see(DatasetDescribed(training=sources)) if isinstance(x, EndJob)]
        assert (end.phase, end.failure_kind) == ("Failed", "input")
        assert not missing_keys(end.reason, "training data", "no records")


def test_it_may_be_full_with_records_of_several_sources_and_as_many_as_an_epoch_has() -> None:
    for sources in ((("a", 8),), (("a", 4), ("b", 4))):
        harness = CoreHarness()
        assert not [x for x in harness.see(DatasetDescribed(training=sources)) if isinstance(x, EndJob)]


def test_a_lease_names_the_files_that_were_counted_also_after_a_restart_and_not_in_an_older_run() -> None:
    digests = {"training": "0123abcd", "validation": "89ab4567"}
    harness = CoreHarness()
    harness.see(DatasetDescribed(training=(("a", 640),), digests=digests))
    harness.restart()
    assert harness.state.file_digests == digests
    restored = CoreHarness().state
    restored.replay_journal(json.loads(json.dumps(harness.state.to_snapshot())), [])
    assert restored.file_digests == digests
    (entry,) = harness.entries("dataset")
    del entry["digests"]
    harness.restart()
    assert harness.state.file_digests == {}

    working = CoreHarness()
    working.train()
    working.state.file_digests = digests
    (granted,) = [x for x in working.see(LeaseRequested("worker-1")) if isinstance(x, LeaseReply)]
    assert granted.digests == digests["training"]


@pytest.mark.parametrize("digests", [[], {"training": 1}, {"training": "0" * 2000}])
def test_digests_that_are_no_texts_or_long_ones_are_refused(digests: Any) -> None:
    result = {"training": [["a", 640]], "digests": digests}
    assert "digests of the files" in find_result_error("describe", LEASE, None, result, None)


def test_a_run_that_an_older_master_began_so_goes_on() -> None:
    harness = CoreHarness()
    harness.journal.append({"kind": "dataset", "training": [["a", 7]], "validation": [], "prediction": []})
    harness.restart()
    assert harness.state.is_dataset_known
    assert not harness.state.has_ended


def test_every_worker_that_finds_the_same_bad_input_ends() -> None:
    harness = CoreHarness()
    harness.train()
    answers = [harness.see(WorkerFailed(worker, "input", "no such column")) for worker in ("worker-0", "worker-1")]
    assert [x.fatal for answer in answers for x in answer if isinstance(x, Acknowledged)] == [True, True]


@pytest.mark.parametrize("kind", ["refused", "input", "nan", "storage"])
def test_a_worker_whose_pod_has_ended_ends_alone(kind: str) -> None:
    """Its pod was deleted by force, or its node cut off from the cluster; another worker has its work."""
    harness = CoreHarness()
    harness.train()
    harness.see(PodChanged(PodStatus("worker-1", Role.WORKER, 1, PodPhase.GONE)))
    answer = harness.see(WorkerFailed("worker-1", kind, "the cluster reports that this pod has ended"))
    assert [each.fatal for each in answer if isinstance(each, Acknowledged)] == [True]
    assert not harness.state.has_ended
    assert harness.state.last_failure is None
