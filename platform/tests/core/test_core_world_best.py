"""The best weights under AllReduce in the pure core: the checkpoint of an evaluation, the file of a best model."""

from __future__ import annotations

from typing import Any

from core.test_core_world_checkpoints import SavingMaster

from edl.api.run_events import WarningRaised
from edl.core.callback_decisions import BestCheckpoint, CallbackSpec, EarlyStopping
from edl.core.checkpointing import RETRY_SAVING_SECONDS
from edl.core.events import (
    CheckpointCopyFinished,
    CheckpointSaveFinished,
    CopyCheckpoint,
    LeaseReply,
    TaskReported,
)
from edl.core.ledger import BEST_MODEL, EVALUATION, EXPORT, METRICS
from edl.core.rank_state import RankPhase

STOP = EarlyStopping("loss", "min", patience=1, restore_best_weights=True)
KEEP = BestCheckpoint("loss", "min", filepath="best.keras")
EVERY = 2


class BestMaster(SavingMaster):
    """A single worker that evaluates every two steps; checkpoints are due every hundred."""

    def __init__(self, *callbacks: CallbackSpec, **settings: Any) -> None:
        more = {"started": 1, "validation": 4, "evaluation_steps": EVERY, "checkpoint_steps": 100, "task_records": 96}
        super().__init__(**(more | settings), callbacks=callbacks)
        self.save(0, 0)

    def pause(self, step: int) -> None:
        """The worker has made a step and pauses, so the evaluation of this step begins."""
        self.run(step, is_paused=True)

    def task(self, kind: str) -> LeaseReply:
        """The task that the worker gets, of this kind."""
        answer = self.lease("w0", *self.state.ledgers["training"].leases)
        assert isinstance(answer, LeaseReply), answer
        assert answer.kind == kind
        return answer

    def evaluate(self, loss: float) -> list[Any]:
        """All records of the evaluation, and its value."""
        self.handle(TaskReported("w0", self.task(EVALUATION).lease, None, {}))
        return self.handle(TaskReported("w0", self.task(METRICS).lease, None, {"loss": loss}))

    def warnings(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, WarningRaised)]


def test_the_checkpoint_of_an_evaluation_is_of_the_step_after_which_all_pause() -> None:
    master = BestMaster(STOP)
    assert master.order() == (2, EVERY)
    assert BestMaster().order() == (2, 100), "without such callbacks it is the next regular one"


def test_an_evaluation_ends_when_its_checkpoint_is_on_disk() -> None:
    master = BestMaster(STOP)
    master.pause(EVERY)
    master.handle(TaskReported("w0", master.task(EVALUATION).lease, None, {}))
    assert not isinstance(master.lease("w0"), LeaseReply), "nobody computes the metric values yet"
    master.save(EVERY, EVERY)
    master.handle(TaskReported("w0", master.task(METRICS).lease, None, {"loss": 1.0}))
    (progress,) = master.state.callbacks.progress
    assert (progress.best_cut, progress.best_step) == (2, EVERY)
    assert not master.warnings()


def test_an_evaluation_whose_checkpoint_fails_ends_without_weights_and_says_so() -> None:
    master = BestMaster(STOP)
    master.pause(EVERY)
    cut, _ = master.order()
    master.run(EVERY, master.copy(cut, EVERY))
    master.handle(CheckpointSaveFinished(cut, "the disk is full"))
    master.evaluate(1.0)
    assert master.state.evaluation is None
    (progress,) = master.state.callbacks.progress
    assert (progress.best_cut, progress.best) == (0, 1.0)
    assert any("cannot be kept as the best" in message for message in master.warnings())


def test_nobody_trains_until_the_file_of_the_best_model_is_written() -> None:
    master = BestMaster(KEEP)
    master.pause(EVERY)
    master.save(EVERY, EVERY)
    master.evaluate(1.0)
    assert master.run(EVERY).must_pause
    task = master.task(BEST_MODEL)
    assert task.payload["cut"] == 2
    master.handle(TaskReported("w0", task.lease, None, {"place": 0, "cut": 2, "path": "best.keras"}))
    assert not master.run(EVERY).must_pause


def test_a_new_master_still_waits_for_the_file_of_the_best_model() -> None:
    master = BestMaster(KEEP)
    master.pause(EVERY)
    master.save(EVERY, EVERY)
    master.evaluate(1.0)
    master.restart()
    assert master.run(EVERY).must_pause
    assert master.task(BEST_MODEL).payload["cut"] == 2


def stop_after_two_evaluations(master: BestMaster) -> list[Any]:
    """The first evaluation is the best one, and the second one ends training; returns what follows it."""
    commands: list[Any] = []
    for number, loss in ((1, 1.0), (2, 2.0)):
        master.pause(number * EVERY)
        master.save(number * EVERY, number * EVERY)
        commands = master.evaluate(loss)
    return commands


def test_the_best_weights_become_the_newest_checkpoint_and_are_exported() -> None:
    master = BestMaster(STOP, export=True)
    commands = stop_after_two_evaluations(master)
    (copy,) = [command for command in commands if isinstance(command, CopyCheckpoint)]
    assert (copy.source, copy.version, copy.ledger["world_step"]) == (2, 2 * EVERY, 2 * EVERY)
    master.handle(CheckpointCopyFinished(copy.source, copy.cut))
    saved = master.state.checkpoint
    assert saved is not None
    assert (saved.cut, saved.step) == (copy.cut, 2 * EVERY)
    assert master.state.counters.metrics == {"loss": 1.0}
    assert master.task(EXPORT).payload == {"checkpoint": copy.cut}


def test_no_other_checkpoint_is_written_while_the_best_one_is_copied() -> None:
    """The last worker leaves meanwhile, and no checkpoint has its state: that one would be newer than the best one."""
    master = BestMaster(STOP, export=True)
    master.pause(EVERY)
    master.save(EVERY, EVERY)
    master.evaluate(1.0)
    master.pause(2 * EVERY)
    cut, _ = master.order()
    master.run(2 * EVERY, master.copy(cut, 2 * EVERY))
    master.handle(CheckpointSaveFinished(cut, "the disk is full"))
    assert any(isinstance(command, CopyCheckpoint) for command in master.evaluate(2.0))
    before = master.state.cut_number
    master.now += RETRY_SAVING_SECONDS
    master.report("w0", RankPhase.RUNNING, is_leaving=True)
    master.report("w0", RankPhase.ENDED, step=2 * EVERY)
    assert master.state.cut_number == before
    assert master.state.world_checkpoint is None


def test_the_best_weights_are_the_last_ones_if_the_last_evaluation_is_the_best() -> None:
    master = BestMaster(STOP, max_steps=EVERY, export=True)
    master.pause(EVERY)
    master.save(EVERY, EVERY)
    commands = master.evaluate(1.0)
    assert not any(isinstance(command, CopyCheckpoint) for command in commands)
    assert master.task(EXPORT).payload is None
