"""What callbacks of the job remember and forget; edl_keras/test_keras_monitor_callbacks.py compares them with Keras."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core_harness import CoreHarness, alive
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.journal_entries import DatasetEntered, ParametersRolledBack, StoppedByCallback
from edl.core.callback_decisions import (
    BestCheckpoint,
    CallbackState,
    EarlyStopping,
    EvaluationResult,
    ReduceLROnPlateau,
    callbacks_from_json,
    callbacks_to_json,
)
from edl.core.events import (
    CheckpointCopyFinished,
    CheckpointSaveFinished,
    CopyCheckpoint,
    CutPrepared,
    DatasetDescribed,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    PodsSynced,
    ProgressReported,
    PsAttached,
    PsRegistered,
    SaveCheckpoint,
    SnapshotTaken,
    TaskReported,
    Tick,
    UpdatesHeld,
)
from edl.core.job import JobStateMachine
from edl.core.journal_application import apply_entry
from edl.core.state import JobSettings, JobState

DECLARED = (
    EarlyStopping("loss", "min", patience=2, restore_best_weights=True),
    ReduceLROnPlateau("loss", "min", factor=0.5, patience=1, rate=0.125),
    BestCheckpoint("auc", "max", filepath="best.keras"),
)
VALUES = st.one_of(st.none(), st.floats(-10, 10), st.sampled_from([0.0, 1.0]))
SEQUENCES = st.lists(st.tuples(VALUES, VALUES), max_size=20)


def evaluations(values: list[tuple[float | None, float | None]]) -> list[EvaluationResult]:
    return [EvaluationResult(10 * n, n, {"loss": a, "auc": b}) for n, (a, b) in enumerate(values, 1)]


def decide_after(values: list[tuple[float | None, float | None]], begin: CallbackState | None = None) -> CallbackState:
    callbacks = begin or CallbackState().declare_callbacks(DECLARED)
    for evaluation in evaluations(values):
        callbacks = callbacks.apply_evaluation(evaluation)
    return callbacks


@given(SEQUENCES)
def test_json_keeps_them(values: list[tuple[float | None, float | None]]) -> None:
    callbacks = decide_after(values)
    text = json.dumps(callbacks.to_snapshot(), allow_nan=False)
    assert CallbackState.from_snapshot(json.loads(text)) == callbacks


@given(SEQUENCES, st.integers(0, 20))
def test_a_job_that_goes_back_decides_as_if_it_had_not_gone_on(
    values: list[tuple[float | None, float | None]], kept: int
) -> None:
    assert decide_after(values).roll_back_to(10 * kept) == decide_after(values[:kept])


@given(SEQUENCES, st.integers(0, 20))
def test_what_is_forgotten_is_what_no_job_goes_back_to(
    values: list[tuple[float | None, float | None]], saved: int
) -> None:
    callbacks = decide_after(values).trim_history(10 * saved)
    for step in range(10 * min(saved, len(values)), 10 * len(values) + 1):
        assert (
            callbacks.roll_back_to(step).evaluated_state() == decide_after(values).roll_back_to(step).evaluated_state()
        )
    assert len(callbacks.history) <= max(1, len(values) - saved + 1)


def test_a_best_value_whose_weights_are_not_on_disk_keeps_those_before() -> None:
    callbacks = CallbackState().declare_callbacks(DECLARED)
    callbacks = callbacks.apply_evaluation(EvaluationResult(10, 1, {"loss": 2.0, "auc": 0.5}))
    callbacks = callbacks.apply_evaluation(EvaluationResult(20, 0, {"loss": 1.0, "auc": 0.9}))
    assert callbacks.best_cuts == {1}
    assert callbacks.best_to_restore is not None
    assert callbacks.best_to_restore.best_step == 10


def test_later_weights_are_kept_where_the_best_evaluation_is_not_on_disk() -> None:
    """Those of 0.9 must not be restored where 0.11 is on disk, and 0.1 alone is not."""
    callbacks = CallbackState().declare_callbacks(
        (EarlyStopping("loss", "min", 0.02, patience=3, restore_best_weights=True),)
    )
    for step, cut, loss in [(1, 1, 0.9), (2, 0, 0.1), (3, 3, 0.11), (4, 4, 0.105), (5, 5, 0.12)]:
        callbacks = callbacks.apply_evaluation(EvaluationResult(step, cut, {"loss": loss}))
    assert callbacks.stop_reason.endswith("0.1")
    assert callbacks.best_to_restore is not None
    assert callbacks.best_to_restore.best_cut == 3


def test_the_best_of_before_stays_until_the_job_cannot_go_back_to_it() -> None:
    callbacks = decide_after([(2.0, 0.5), (1.0, 0.9)])
    assert callbacks.best_cuts == {1, 2}
    assert callbacks.trim_history(20).best_cuts == {2}


def test_each_best_is_written_once() -> None:
    callbacks = decide_after([(2.0, 0.5)])
    assert callbacks.best_to_write is not None
    place, callback, best = callbacks.best_to_write
    assert (callback.filepath, best.best_metrics) == ("best.keras", {"loss": 2.0, "auc": 0.5})
    callbacks = callbacks.mark_written(place, best.best_cut)
    assert callbacks.best_to_write is None
    assert callbacks.apply_evaluation(EvaluationResult(20, 2, {"loss": 1.0, "auc": 0.4})).best_to_write is None
    assert callbacks.apply_evaluation(EvaluationResult(20, 2, {"loss": 1.0, "auc": 0.6})).best_to_write is not None


def test_callbacks_that_are_taken_out_take_their_decisions_with_them() -> None:
    callbacks = decide_after([(1.0, 0.5), (1.0, 0.5), (1.0, 0.5)])
    assert (callbacks.learning_rate, bool(callbacks.stop_reason)) == (0.03125, True)
    assert callbacks.declare_callbacks(DECLARED) is callbacks
    without = callbacks.declare_callbacks(DECLARED[2:])
    assert (without.learning_rate, without.stop_reason, without.best_cuts) == (None, "", {1})
    patient = EarlyStopping("loss", "min", patience=9, restore_best_weights=True)
    assert callbacks.declare_callbacks([patient]).progress[0].wait == 2


def test_what_a_worker_declares_is_read_back() -> None:
    assert callbacks_from_json(json.loads(json.dumps(callbacks_to_json(DECLARED)))) == DECLARED


@pytest.mark.parametrize(
    "rows",
    [
        {},
        [3],
        [{}],
        [{"kind": "object"}],
        [{"kind": "EarlyStopping", "monitor": "loss"}],
        [{"kind": "EarlyStopping", "monitor": "loss", "mode": "auto"}],
        [{"kind": "EarlyStopping", "monitor": "loss", "mode": "min", "min_delta": -1}],
        [{"kind": "EarlyStopping", "monitor": "loss", "mode": "min", "patience": "3"}],
        [{"kind": "EarlyStopping", "monitor": "loss", "mode": "min", "patience": True}],
        [{"kind": "EarlyStopping", "monitor": "loss", "mode": "min", "patience": 10**400}],
        [{"kind": "EarlyStopping", "monitor": "loss", "mode": "min", "rate": 3.0}],
        [{"kind": "ReduceLROnPlateau", "monitor": "loss", "mode": "min", "rate": float("inf")}],
        [{"kind": "BestCheckpoint", "monitor": None, "mode": "min"}],
    ],
)
def test_what_cannot_be_meant_is_refused(rows: object) -> None:
    with pytest.raises(ValueError):
        callbacks_from_json(rows)


# ---------------------------------------------------------------- what they mean for a job


class EvaluatedJob(CoreHarness):
    """One PS, two workers, 640 records of which a step takes 8; evaluated every 10 steps."""

    def __init__(self, declared: tuple[Any, ...], **settings: Any) -> None:
        super().__init__(**settings)
        self.settings = replace(self.settings, evaluation_steps=10)
        self.declared = declared
        self.restart()
        self.see(DatasetDescribed(training=(("a", 640),), validation=(("v", 8),)))
        self.see(alive(Role.PS, 0), alive(Role.WORKER, 0), alive(Role.WORKER, 1), PodsSynced())
        self.see(PsRegistered("ps-0"), PsAttached("ps-0", False, 0), ModelDeclared("worker-0", declared), Tick())

    def again(self) -> None:
        """Another master."""
        self.restart()
        self.see(alive(Role.PS, 0), alive(Role.WORKER, 0), alive(Role.WORKER, 1), PodsSynced())
        pins = tuple(self.state.pinned_cuts.get("ps-0", ())) or (self.state.cut_number,)
        self.see(PsRegistered("ps-0"), PsAttached("ps-0", True, 1, pins), ModelDeclared("worker-1", self.declared))

    def cut(self, error: str = "") -> list[Any]:
        number = self.state.cut_number
        self.see(CutPrepared("ps-0", number), UpdatesHeld("ps-0", number, {}))
        commands = self.see(SnapshotTaken("ps-0", number, self.state.step, 0.0))
        return commands + (self.see(CheckpointSaveFinished(number, error)) if saves(commands) else [])

    def leases(self) -> list[LeaseReply]:
        leases = []
        while granted := [x for x in self.see(LeaseRequested("worker-0")) if isinstance(x, LeaseReply)]:
            leases += granted
        return leases

    def evaluated(self, loss: float) -> list[Any]:
        """The evaluation that is under way."""
        self.leases()
        (states,) = self.state.ledgers["evaluation"].leases
        self.see(TaskReported("worker-0", states, None, {"loss": {"additive": True, "states": [1.0]}}))
        (values,) = [x for x in self.leases() if x.kind == "metrics"]
        return self.see(TaskReported("worker-0", values.lease, None, {"loss": loss}))


def saves(commands: list[Any]) -> bool:
    return any(isinstance(command, SaveCheckpoint) for command in commands)


STOP = EarlyStopping("loss", "min", patience=1, restore_best_weights=True)
LOWER = ReduceLROnPlateau("loss", "min", patience=1, rate=0.5, factor=0.5)


def trained(job: EvaluatedJob) -> None:
    """The next ten steps or more; the evaluation of them is begun."""
    job.leases()
    assert job.state.training_ledger is not None
    for lease in list(job.state.training_ledger.leases)[:2]:
        job.see(TaskReported("worker-0", lease))


def test_an_evaluated_version_is_a_checkpoint_where_the_best_is_to_be_kept() -> None:
    for declared, expected in (((STOP,), True), ((LOWER,), False)):
        job = EvaluatedJob(declared)
        job.cut()
        trained(job)
        assert saves(job.cut()) == expected


def test_an_evaluation_decides_and_the_next_master_knows_it() -> None:
    job = EvaluatedJob((STOP, LOWER))
    job.cut()
    for loss in (1.0, 2.0):
        trained(job)
        job.cut()
        job.evaluated(loss)
        job.again()
    assert job.state.callbacks.learning_rate == 0.25
    assert "EarlyStopping" in job.state.callbacks.stop_reason
    assert job.entries("evaluated")[-1]["callbacks"]["rate"] == 0.25
    assert [lease.kind for lease in job.leases()] == [], "no more training is handed out"
    assert not job.state.is_training_over(), "what is in the hands of workers is finished"
    snapshot = json.loads(json.dumps(job.state.to_snapshot()))
    fresh = JobStateMachine(job.settings)
    fresh.replay_journal(snapshot, [])
    assert fresh.callbacks == job.state.callbacks


@pytest.mark.parametrize("callback", [STOP, LOWER, BestCheckpoint("loss", "min", filepath="best.keras")])
def test_a_callback_whose_metric_an_evaluation_does_not_have_ends_the_job(callback: Any) -> None:
    """A metric with several values has the names ``f_0``, ``f_1`` ..., which nobody knows before."""
    job = EvaluatedJob((replace(callback, monitor="f"),))
    job.cut()
    trained(job)
    job.cut()
    job.evaluated(1.0)
    assert job.state.phase == "Failed"
    assert not missing_keys(job.state.reason, "monitors 'val_f'", "only val_loss")


def test_the_best_weights_become_the_newest_checkpoint_at_the_end() -> None:
    job = EvaluatedJob((STOP,))
    job.cut()
    for loss in (1.0, 2.0):
        trained(job)
        job.cut()
        job.evaluated(loss)
    (best,) = [p.best_cut for p in job.state.callbacks.progress]
    for lease in list(job.state.ledgers["training"].leases):
        job.see(TaskReported("worker-0", lease))
    job.cut()
    commands = job.evaluated(3.0)
    (copy,) = [command for command in commands if isinstance(command, CopyCheckpoint)]
    assert (copy.source, job.state.phase) == (best, "Evaluating")
    ended = job.see(CheckpointCopyFinished(best, copy.cut))
    assert job.state.checkpoint is not None
    assert (job.state.checkpoint.cut, job.state.counters.metrics) == (copy.cut, {"loss": 1.0})
    assert job.state.phase == "Done", ended


def test_a_job_that_keeps_nothing_on_disk_cannot_keep_the_best() -> None:
    assert "storage" in EvaluatedJob((STOP,), durable=False).state.reason
    assert EvaluatedJob((LOWER,), durable=False).state.phase != "Failed"


def test_workers_that_declare_different_callbacks_end_the_job() -> None:
    job = EvaluatedJob((LOWER,))
    job.see(ModelDeclared("worker-1", ()))
    assert (job.state.phase, "different callbacks" in job.state.reason) == ("Failed", True)


def test_with_parameter_servers_a_callback_of_a_worker_ends_training_when_held_records_are_done() -> None:
    job = CoreHarness()
    lease = job.train()
    stopped = ProgressReported("worker-0", (LeaseProgress(lease, 3),), has_stopped_training=True)
    for _ in range(2):
        job.see(stopped)
    assert [entry["step"] for entry in job.entries("stopped_by_callback")] == [3]
    for begin_again in (False, True):
        if begin_again:
            snapshot = json.loads(json.dumps(job.state.to_snapshot()))
            job.state = JobStateMachine(job.settings)
            job.state.replay_journal(snapshot, [])
        granted = [x for x in job.see(LeaseRequested("worker-1")) if isinstance(x, LeaseReply)]
        assert granted == []
    assert not job.state.is_training_over()
    job.see(TaskReported("worker-0", lease, LeaseProgress(lease, 8)))
    assert job.state.is_training_over()
    assert "model.stop_training after step 3" in job.state.callback_stop_reason


def test_steps_that_are_made_again_may_end_training_again() -> None:
    state = JobState(JobSettings(minibatch=4, task_records=16, ps=1))
    apply_entry(state, DatasetEntered.from_fields({"training": [["a", 64]], "validation": []}))
    position = state.training_ledger.snapshot_at_cut({})  # type: ignore[union-attr]
    apply_entry(state, StoppedByCallback(step=8))
    assert "step 8" in state.callback_stop_reason
    apply_entry(state, ParametersRolledBack(cut=0, records=32, ledger=position, reason="lost"))
    assert state.callback_stop_reason == ""
