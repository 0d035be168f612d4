"""A run that continues under another strategy: what its new journal has of the old one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.api.errors import BadInputError, StorageError
from edl.api.job_spec import JobSpec
from edl.api.journal_entries import CallbacksDeclared, CutAnnounced, DatasetEntered, EvaluationCompleted
from edl.core.callback_decisions import CallbackState, EvaluationResult, ReduceLROnPlateau, callbacks_to_json
from edl.core.cuts import WORLD_STEP_KEY
from edl.core.job import JobStateMachine
from edl.core.record_ranges import RecordRange
from edl.core.state import JobSettings
from edl.jobfile.loader import dump_job_spec, load_job_text
from edl.numerics.keras_state import KERAS_STATE_KEY, KerasState
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.storage.checkpoint_manifest import DATASET_KEY, CheckpointManifest, commit_checkpoint, cut_directory
from edl.storage.checkpoint_shards import write_shard
from edl.storage.journal import Journal
from edl.storage.journal_reader import read_journal
from edl.storage.journal_truncation import restart_journal
from edl.storage.run_directory import RunDirectory, make_run_directory, write_run_spec
from edl.storage.run_resumption import check_resume_changes, check_spec_changes, has_journal
from edl.storage.strategy_change import plan_resumption

PLATEAU = ReduceLROnPlateau("loss", "min", factor=0.5, patience=1, rate=0.1)
SERVERS, RANKS = "ParameterServer", "AllReduce"
SETTINGS = {
    SERVERS: JobSettings(minibatch=4, task_records=16),
    RANKS: JobSettings(minibatch=4, task_records=16, ps=0, all_reduce=True),
}
KNOWN = KerasState(OptimizerSpec("sgd"))


def make_spec(strategy: str, **settings: Any) -> JobSpec:
    fields = {
        "apiVersion": "edl.dev/v1",
        "name": "job",
        "model": {"zoo": "zoo", "definition": "m.custom_model"},
        "data": {"training": "data.csv"},
        "strategy": {"name": strategy, **settings},
    }
    return load_job_text(json.dumps(fields), "job.json")


def evaluated(*losses: tuple[int, float]) -> tuple[CallbackState, list[Any]]:
    """The state after evaluations at some steps, and the journal's entries about them."""
    state = CallbackState().declare_callbacks([PLATEAU])
    entries: list[Any] = [CallbacksDeclared(declared=callbacks_to_json([PLATEAU]))]
    for step, loss in losses:
        state = state.apply_evaluation(EvaluationResult(step, 0, {"loss": loss}))
        entries.append(
            EvaluationCompleted(
                metrics={"loss": loss}, step=step, pin=1, final=False, callbacks=state.evaluated_state()
            )
        )
    return state, entries


def make_run(
    folder: Path, strategy: str, entries: list[Any], *, keras_state: KerasState | None = KNOWN
) -> RunDirectory:
    """A run with a checkpoint after three tasks of 16 records; under AllReduce two workers made six steps of them."""
    run = RunDirectory(folder / "r1")
    make_run_directory(run)
    write_run_spec(run, dump_job_spec(make_spec(strategy)))
    dataset = DatasetEntered(training=[["a", 64]], validation=[])
    journal, _ = Journal.open(run.journal, holder="the test")
    for entry in (dataset, *entries):
        journal.append(entry.to_json())
    journal.wait_until_durable(journal.append(CutAnnounced(cut=2, step=12).to_json()))
    journal.close()
    directory = cut_directory(run.checkpoints, 2)
    described = keras_state is not None and strategy == RANKS
    metadata = {KERAS_STATE_KEY: keras_state.to_json()} if described and keras_state else {}
    shard = write_shard(directory, 0, {"dense/w": np.zeros(3, np.float32)}, metadata)
    ledger = {"epoch": 0, "index": 3, "returned": [], "leases": [], "done_records": 48, "done_steps": 12}
    ledger |= {"quarantined": [], DATASET_KEY: {"training": [["a", 64]], "validation": []}}
    ledger |= {WORLD_STEP_KEY: 6} if strategy == RANKS else {"lacking": {"0": 3}}
    commit_checkpoint(directory, CheckpointManifest(2, 12, "now", (shard,), ledger))
    return run


def continue_run(run: RunDirectory, strategy: str, *, from_checkpoint: bool = False) -> JobStateMachine:
    """The state of the first master under another strategy."""
    spec = make_spec(strategy)
    check_resume_changes(run, spec)
    restart = plan_resumption(run, spec, from_checkpoint=from_checkpoint)
    assert restart is not None
    what, taken_over, anew, *_ = restart.describe_losses()
    assert strategy in what
    assert ("what callbacks have decided" in taken_over) == (restart.old_strategy != "Local")
    assert anew.startswith("begins anew: random numbers of layers such as Dropout")
    restart_journal(restart, "the test")
    journal_content, state = read_journal(run.journal), JobStateMachine(SETTINGS[strategy])
    state.replay_journal(journal_content.snapshot, list(journal_content.entries))
    return state


@pytest.mark.parametrize(("old", "new"), [(SERVERS, RANKS), (RANKS, SERVERS)])
def test_the_ledger_and_the_decisions_of_callbacks_are_carried_over(tmp_path: Path, old: str, new: str) -> None:
    step = {SERVERS: 12, RANKS: 6}[old]
    expected, entries = evaluated((2, 0.5), (4, 0.6), (step, 0.4))
    # What follows the checkpoint is done again.
    _, later = evaluated((2, 0.5), (4, 0.6), (step, 0.4), (step + 2, 0.9))
    run = make_run(tmp_path, old, [*entries, later[-1]])
    state = continue_run(run, new)
    training = state.training_ledger
    assert training is not None
    assert (training.done_records, training.done_steps, training.count_remaining_records()) == (48, 12, 16)
    assert state.checkpoint is not None
    # Parameter servers count minibatches.
    assert (state.checkpoint.cut, state.checkpoint.step, state.last_checkpoint) == (2, 12, 12)
    if state.world is not None:
        assert state.world.checkpoint_step == 12
    assert state.callbacks.learning_rate == expected.learning_rate == pytest.approx(0.05)
    assert state.callbacks.evaluated_state() == expected.evaluated_state()
    assert state.counters.metrics


def test_planning_twice_gives_the_same(tmp_path: Path) -> None:
    """A container that was killed between the new journal and its marker begins once more."""
    expected, entries = evaluated((2, 0.5), (4, 0.6))
    run = make_run(tmp_path, SERVERS, entries)
    for _ in range(2):
        state = continue_run(run, RANKS)
        assert state.callbacks.evaluated_state() == expected.evaluated_state()
        assert state.cut_number == 2


def test_without_a_readable_journal_only_from_the_checkpoint(tmp_path: Path) -> None:
    _, entries = evaluated((2, 0.5), (4, 0.6))
    run = make_run(tmp_path, SERVERS, entries)
    (segment,) = run.journal.glob("*.edlj")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(StorageError, match="the journal"):
        plan_resumption(run, make_spec(RANKS), from_checkpoint=False)
    state = continue_run(run, RANKS, from_checkpoint=True)
    assert state.training_ledger is not None
    assert state.training_ledger.done_records == 48
    assert state.callbacks.learning_rate is None


def test_the_same_strategy_keeps_its_journal(tmp_path: Path) -> None:
    run = make_run(tmp_path, RANKS, [])
    assert plan_resumption(run, make_spec(RANKS), from_checkpoint=False) is None
    restart = plan_resumption(run, make_spec(RANKS), from_checkpoint=True)
    assert restart is not None
    assert (restart.step, restart.new_strategy) == (6, "")


def test_a_state_that_servers_do_not_have_is_refused_before_anything_changes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "ema", RANKS, [], keras_state=KerasState(None, "use_ema=True of the optimizer"))
    with pytest.raises(BadInputError, match="use_ema"):
        plan_resumption(run, make_spec(SERVERS), from_checkpoint=True)
    run = make_run(tmp_path / "old", RANKS, [], keras_state=None)
    with pytest.raises(BadInputError, match="earlier version"):
        plan_resumption(run, make_spec(SERVERS), from_checkpoint=False)


def test_local_and_parameter_servers_do_not_continue_each_other(tmp_path: Path) -> None:
    run = make_run(tmp_path, SERVERS, [])
    with pytest.raises(BadInputError, match=r"strategy.name was ParameterServer, is Local") as refused:
        check_resume_changes(run, make_spec("Local"))
    assert "AllReduce first" in (refused.value.hint or ""), "this way is open"


def test_a_run_with_a_global_batch_names_the_only_strategy_that_continues_it(tmp_path: Path) -> None:
    """Other strategies refuse the field, so *change it back* alone would send people in a circle."""
    old = make_spec(RANKS, global_batch=8)
    with pytest.raises(BadInputError, match=r"global_batch was 8") as refused:
        check_spec_changes("r1", old, make_spec(SERVERS))
    assert "{name: AllReduce, global_batch: 8}" in (refused.value.hint or "")


def make_local_run(folder: Path, callbacks: Mapping[str, Any]) -> RunDirectory:
    """A run of strategy Local with a checkpoint after eight of the 16 records of a task."""
    run = RunDirectory(folder / "r1")
    make_run_directory(run)
    write_run_spec(run, dump_job_spec(make_spec("Local")))
    directory = cut_directory(run.checkpoints, 2)
    shard = write_shard(directory, 0, {"dense/w": np.zeros(3, np.float32)})
    ledger = {"epoch": 0, "index": 1, "returned": [[0, "a", 8, 16]], "leases": [], "quarantined": []}
    ledger |= {"done_records": 8, "done_steps": 2, DATASET_KEY: {"training": [["a", 64]], "validation": []}}
    ledger |= {"records_done": 8, "records_skipped": 0, "window": 0, "evaluated": -1, "callbacks": callbacks}
    commit_checkpoint(directory, CheckpointManifest(2, 2, "now", (shard,), ledger))
    return run


def test_a_run_of_strategy_local_gets_a_journal_with_its_position(tmp_path: Path) -> None:
    run = make_local_run(tmp_path, {})
    assert not has_journal(run)
    state = continue_run(run, RANKS)
    training = state.training_ledger
    assert training is not None
    assert (training.done_records, training.done_steps) == (8, 2)
    assert training.next_range() == RecordRange(0, "a", 8, 16)
    assert state.world is not None
    assert state.world.checkpoint_step == 2
    assert state.checkpoint is not None
    assert not {"window", "callbacks"} & state.checkpoint.ledger.keys()


def test_strategy_local_leaves_the_journal_aside(tmp_path: Path) -> None:
    run = make_run(tmp_path, RANKS, [])
    spec = make_spec("Local")
    check_resume_changes(run, spec)
    restart = plan_resumption(run, spec, from_checkpoint=False)
    assert restart is not None
    what, taken_over, anew, *_ = restart.describe_losses()
    assert "without a journal, at step 12: it counts minibatches" in what
    assert "the state of the optimizer, the position in the data" in taken_over
    assert anew == "begins anew: random numbers of layers such as Dropout; the callbacks with what they have decided"
    aside = restart_journal(restart, "the test")
    assert not has_journal(run)
    assert list(aside.iterdir())
    write_run_spec(run, dump_job_spec(spec))
    assert plan_resumption(run, spec, from_checkpoint=False) is None


def test_callbacks_that_have_decided_cannot_change_to_or_from_local(tmp_path: Path) -> None:
    ranks = make_run(tmp_path / "ranks", RANKS, evaluated((2, 0.5), (4, 0.6))[1])
    local = make_local_run(tmp_path / "local", {"evaluations": 2, "monitors": [{"best": 0.5, "wait": 1}]})
    for run, new in ((ranks, "Local"), (local, RANKS)):
        with pytest.raises(BadInputError, match="have decided by 2 evaluations"):
            plan_resumption(run, make_spec(new), from_checkpoint=False)
        assert plan_resumption(run, make_spec(new), from_checkpoint=True) is not None
    own = make_local_run(tmp_path / "own", {"evaluations": 2, "monitors": []})
    assert plan_resumption(own, make_spec(RANKS), from_checkpoint=False) is not None


def test_strategy_local_does_not_read_what_parameter_servers_wrote(tmp_path: Path) -> None:
    """The run has changed to AllReduce, which has written no checkpoint yet."""
    run = make_run(tmp_path, SERVERS, [])
    write_run_spec(run, dump_job_spec(make_spec(RANKS)))
    with pytest.raises(BadInputError, match="parameter servers wrote the newest checkpoint"):
        plan_resumption(run, make_spec("Local"), from_checkpoint=False)
