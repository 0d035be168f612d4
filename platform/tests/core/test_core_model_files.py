"""When the files of ``ModelCheckpoint`` without ``save_best_only`` are due."""

from __future__ import annotations

import json

import pytest
from support.all_reduce_master import AllReduceMaster

from edl.core.callback_decisions import callbacks_from_json, callbacks_to_json
from edl.core.job import JobStateMachine
from edl.core.model_files import ModelFile, ModelFiles
from edl.core.task_results import find_result_error

EPOCH = ModelFile("e-{epoch}.keras")
EVERY_5 = ModelFile("s-{batch}.keras", every_steps=5)


def declared(step: int = 0, epochs: int = 0) -> ModelFiles:
    return ModelFiles().declare((EPOCH, EVERY_5), step, epochs)


def test_files_are_due_once_at_the_end_of_an_epoch_and_after_their_steps() -> None:
    files = declared()
    assert [files.due(step, ended) for step, ended in ((0, 0), (4, None), (5, None), (6, 1), (10, 1))] == [
        (),
        (),
        (1,),
        (0,),
        (0, 1),
    ]
    written = files.mark_written({0: 1, 1: 10})
    assert [written.due(step, ended) for step, ended in ((10, 1), (15, 1), (12, 2))] == [(), (1,), (0,)]
    assert [files.next_step(step) for step in (0, 4, 5, 6)] == [5, 5, 5, 10]
    assert [written.next_step(step) for step in (10, 11, 15)] == [15, 15, 15]
    assert ModelFiles((EPOCH,), (0,)).next_step(3) == 0


def test_files_are_due_again_after_a_return_and_not_before_their_callback_came() -> None:
    written = declared().mark_written({0: 3, 1: 30})
    assert written.roll_back_to(12, 1).written == (1, 12)
    assert written.roll_back_to(40, 9).written == (3, 30)
    # A resumed run has a new callback: it has no file of what was trained before.
    assert declared(12, 1).due(10, 1) == ()
    assert declared(10, 1).due(10, 1) == ()
    more = written.declare((EVERY_5, ModelFile("x.keras")), 31, 3)
    assert more.written == (30, 3)


def test_declarations_and_state_survive_json() -> None:
    files = declared().mark_written({0: 3})
    assert ModelFiles.from_snapshot(json.loads(json.dumps(files.to_snapshot()))) == files
    assert callbacks_from_json(json.loads(json.dumps(callbacks_to_json((EPOCH, EVERY_5))))) == (EPOCH, EVERY_5)
    with pytest.raises(ValueError, match="every_steps"):
        callbacks_from_json([{"kind": "ModelFile", "filepath": "a", "every_steps": -1}])


@pytest.mark.parametrize(
    "result",
    [None, {}, {"written": [[0, 1]], "paths": []}, {"written": [[0, -1]], "paths": ["a"]}, {"written": 3, "paths": 3}],
)
def test_an_impossible_result_is_refused(result: object) -> None:
    lease = None
    assert "model file" in find_result_error("model file", lease, None, result, None)  # type: ignore[arg-type]
    good = {"written": [[0, 1], [1, 5]], "paths": ["a", "b"]}
    assert not find_result_error("model file", lease, None, good, None)  # type: ignore[arg-type]


def test_a_master_that_is_replaced_and_a_compacted_journal_know_the_files() -> None:
    master = AllReduceMaster(started=1, callbacks=(EPOCH, EVERY_5))
    assert master.state.model_files == declared()
    master.state.model_files = master.state.model_files.mark_written({1: 5})
    copy = JobStateMachine(master.settings)
    copy.replay_journal(json.loads(json.dumps(master.state.to_snapshot())), [])
    assert copy.model_files == master.state.model_files
    master.restart()
    assert master.state.model_files.specs == (EPOCH, EVERY_5)
    assert master.state.callbacks.specs == ()
