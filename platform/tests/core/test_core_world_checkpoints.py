"""Checkpoints under AllReduce in the pure core: the rank that writes, the ledger of the copied step, failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.all_reduce_master import AllReduceMaster
from support.text_keys import missing_keys

from edl.api.run_events import WarningRaised
from edl.core.allreduce import describe_world
from edl.core.checkpointing import RETRY_SAVING_SECONDS, RETRY_SECONDS
from edl.core.cuts import FIRST_WRITE_SECONDS, WORLD_STEP_KEY, WRITE_SECONDS, SavedCheckpoint, WrittenShard
from edl.core.events import (
    CheckpointOrder,
    CheckpointRefused,
    CheckpointSaveFinished,
    CopiedState,
    EndJob,
    SaveCheckpoint,
    StopRequested,
    Tick,
    WorldReported,
    WorldView,
)
from edl.core.ledger import TRAINING
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import MemberReport, RoundPhase, Share, StepShares

FILE = WrittenShard("ps-0.safetensors", 100, 7)


class SavingMaster(AllReduceMaster):
    """A master whose rank 0 trains alone: step n has the n-th minibatch of its first lease."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**({"durable": True, "checkpoint_steps": 2} | settings))
        self.start_round("w0")
        self.lease_number = self.lease("w0").lease

    def run(self, stable: int, copied: CopiedState | None = None, **more: Any) -> WorldView:
        """Rank 0 reports steps, and perhaps a copy."""
        shares: dict[int, StepShares] = {
            step: (Share(self.lease_number, 4 * (step - 1), 4 * step),)
            for step in range(self.rounds.committed_step + 1, stable + 1)
        }
        return self.report("w0", RankPhase.RUNNING, step=stable, stable=stable, shares=shares, copied=copied, **more)

    def copy(self, cut: int, step: int, shard: WrittenShard | None = FILE) -> CopiedState:
        """Rank 0 has copied its state after a step."""
        return CopiedState(cut, step, 0.01, shard, {self.lease_number: 4 * step} if step else {})

    def order(self) -> tuple[int, int]:
        """Number and step of the checkpoint that rank 0 has to write."""
        order = self.run(self.rounds.committed_step).checkpoint
        assert order is not None
        return order.cut, order.at_step

    def save(self, stable: int, step: int) -> None:
        """Rank 0 has copied a step and written the file, and the manifest is on disk."""
        cut, _ = self.order()
        self.run(stable, self.copy(cut, step))
        assert self.saving().step == step
        self.handle(CheckpointSaveFinished(cut))

    def saving(self) -> SaveCheckpoint:
        """The newest command to write a manifest."""
        assert self.commands
        return next(command for command in reversed(self.commands) if isinstance(command, SaveCheckpoint))

    @property
    def commands(self) -> list[Any]:
        if not hasattr(self, "_commands"):
            self._commands: list[Any] = []
        return self._commands

    def _take(self, commands: list[Any]) -> list[Any]:
        self.commands.extend(commands)
        return super()._take(commands)


def done_in(ledger: Any) -> int:
    return int(ledger["done_records"])


def test_the_first_checkpoint_is_of_the_initial_state_and_the_next_ones_of_multiples() -> None:
    master = SavingMaster()
    assert master.order() == (1, 0)
    master.save(0, 0)
    assert master.order() == (2, 2)
    assert done_in(master.saving().ledger) == 0


def test_the_ledger_of_a_checkpoint_has_the_records_up_to_its_step_and_no_others() -> None:
    master = SavingMaster()
    master.save(0, 0)
    cut, _ = master.order()
    # One message says that step 2 was copied and that step 4 is stable.
    master.run(4, master.copy(cut, 2))
    saving = master.saving()
    assert (saving.step, done_in(saving.ledger), saving.ledger[WORLD_STEP_KEY]) == (2, 8, 2)
    assert not saving.ledger["leases"]
    training = master.state.ledgers[TRAINING]
    assert training.done_records == 16


def test_a_copy_whose_step_is_not_stable_yet_waits_for_it() -> None:
    master = SavingMaster()
    master.save(0, 0)
    cut, _ = master.order()
    copied = master.copy(cut, 2)
    master.commands.clear()
    master.run(1, copied)
    assert not any(isinstance(command, SaveCheckpoint) for command in master.commands)
    master.run(3, copied)
    assert done_in(master.saving().ledger) == 8


def test_a_copy_of_a_round_that_breaks_gets_its_ledger_when_the_next_round_starts() -> None:
    master = SavingMaster()
    master.save(0, 0)
    cut, _ = master.order()
    copied = master.copy(cut, 2)
    shares = {step: (Share(master.lease_number, 4 * (step - 1), 4 * step),) for step in (1, 2, 3)}
    master.commands.clear()
    master.report("w0", RankPhase.ENDED, step=3, shares=shares, copied=copied)
    assert not any(isinstance(command, SaveCheckpoint) for command in master.commands)
    master.report("w0", RankPhase.CONFIRMED, copied=copied)
    assert (master.saving().step, done_in(master.saving().ledger)) == (2, 8)
    assert master.state.step == 3


def test_a_copy_of_a_writer_that_the_others_have_lost_is_given_up() -> None:
    """They may make this step anew, with other records, before the writer comes back and reports its file."""
    master = SavingMaster()
    master.save(0, 0)
    master.start_round("w0", "w1")
    cut, _ = master.order()
    master.run(1, master.copy(cut, 2, None))
    master.now += 60.0
    master.report("w1", RankPhase.RUNNING, step=1)
    master.handle(Tick())
    assert "w0" in master.rounds.lost
    assert master.state.world_checkpoint is None or master.state.world_checkpoint.number != cut


def test_the_writer_is_rank_0_and_nobody_else_is_asked() -> None:
    master = SavingMaster()
    master.start_round("w0", "w1")
    orders = {worker: master.report(worker, RankPhase.RUNNING, step=0).checkpoint for worker in ("w0", "w1")}
    assert orders["w0"] is not None
    assert orders["w1"] is None


def test_a_lost_writer_is_replaced_under_another_number() -> None:
    master = SavingMaster()
    master.start_round("w0", "w1")
    cut, _ = master.order()
    master.run(0, master.copy(cut, 0, None))
    master.kill("w0")
    master.report("w1", RankPhase.ENDED, step=0)
    master.report("w1", RankPhase.CONFIRMED)
    master.handle(Tick(), after=2.0)
    order = master.report("w1", RankPhase.RUNNING, step=0).checkpoint
    assert order is not None
    assert order.cut > cut
    # What the lost one says comes too late.
    master.commands.clear()
    master.handle(
        WorldReported("w0", RankPhase.OUTSIDE, master.rounds.round, MemberReport(step=0), copied=master.copy(cut, 0))
    )
    assert not any(isinstance(command, SaveCheckpoint) for command in master.commands)


def test_the_answer_that_starts_a_round_names_the_checkpoint_that_counts() -> None:
    """Otherwise rank 0 copies its state for a checkpoint that was called off, and the one that counts is late."""
    master = SavingMaster()
    master.save(0, 0)
    cut, _ = master.order()
    master.run(1)
    master.report("w1", RankPhase.OUTSIDE)
    master.report("w0", RankPhase.ENDED, step=1)
    master.report("w1", RankPhase.OUTSIDE)
    master.report("w1", RankPhase.CONFIRMED)
    view = master.report("w0", RankPhase.CONFIRMED)
    assert view.phase is RoundPhase.RUNNING
    # Its step may have been announced to ranks of the round before.
    assert view.checkpoint == CheckpointOrder(cut + 1, at_step=2, when_paused=False)
    master.run(3, master.copy(cut + 1, 2))
    assert master.saving().step == 2


def test_after_a_failure_training_goes_on_for_one_interval_and_then_pauses_until_one_is_written() -> None:
    master = SavingMaster()
    master.save(0, 0)
    cut, _ = master.order()
    full = WrittenShard("", 0, 0, "No space left on device")
    master.run(2, master.copy(cut, 2, full))
    assert master.saving().shards == (full,)
    master.handle(CheckpointSaveFinished(cut, "No space left on device"))
    assert not master.run(3).must_pause
    view = master.run(4)
    assert view.must_pause
    assert view.checkpoint is None
    master.now += RETRY_SAVING_SECONDS
    master.run(4)
    order = master.run(4).checkpoint
    assert order is not None
    assert (order.cut > cut, order.at_step) == (True, 2)
    master.run(4, master.copy(order.cut, 4))
    master.handle(CheckpointSaveFinished(order.cut))
    assert not master.run(4).must_pause
    assert master.state.checkpoint is not None
    assert master.state.checkpoint.step == 4


# --------------------------------------------------------------------------------------------------
# A writer whose thread hangs in its file.


class HangingMaster(SavingMaster):
    """A master of several ranks with one checkpoint, whose files took a second."""

    def __init__(self, *workers: str, **settings: Any) -> None:
        super().__init__(started=len(workers), **settings)
        self.start_round(*workers)
        cut, _ = self.order()
        self.run(0, self.copy(cut, 0, None))
        self.pass_time(1, copied=self.copy(cut, 0, None))
        self.run(0, self.copy(cut, 0))
        self.handle(CheckpointSaveFinished(cut))

    def pass_time(self, seconds: float, stable: int = 0, **more: Any) -> WorldView:
        """All are heard, and rank 0 says the same; returns its view."""
        until, entered = self.now + seconds, 0
        while self.now < until:
            entered += 1
            for worker in self.rounds.members[1:]:
                self.report(worker, RankPhase.RUNNING, step=stable, entered=entered)
            view = self.run(stable, entered=entered, **more)
            self.handle(Tick(), after=min(3.0, max(0.01, until - self.now)))
        return view

    @property
    def warnings(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, WarningRaised)]


def test_a_writer_that_says_nothing_is_named_and_training_pauses_until_another_one_has_written() -> None:
    master = HangingMaster("w0", "w1")
    cut, _ = master.order()
    hangs = master.copy(cut, 2, None)
    master.run(2, hangs)
    master.pass_time(WRITE_SECONDS - 5, 3, copied=hangs)
    assert master.warnings == []
    assert not master.pass_time(10, 3, copied=hangs).must_pause
    assert master.warnings == [
        f"checkpoint {cut} was not written; the previous one is kept: "
        f"worker-0 has not written its file of checkpoint {cut} in 601 s"
    ]
    assert master.state.checkpoint_writes.limit_seconds == 2 * WRITE_SECONDS
    # Rank 0 is asked again: it is the one that reports steps. But its thread accepts nothing.
    master.now += RETRY_SAVING_SECONDS
    assert master.run(3).checkpoint is not None
    assert master.run(4).must_pause
    master.run(4, is_paused=True)
    order = master.report("w1", RankPhase.RUNNING, step=4).checkpoint
    assert order is not None
    assert order == CheckpointOrder(order.cut, at_step=2, when_paused=True)
    master.report("w1", RankPhase.RUNNING, step=4, copied=CopiedState(order.cut, 4, 0.01, FILE))
    assert (master.saving().cut, master.saving().step, done_in(master.saving().ledger)) == (order.cut, 4, 16)
    master.handle(CheckpointSaveFinished(order.cut))
    assert not master.run(4).must_pause
    assert master.state.checkpoint_writes.limit_seconds == WRITE_SECONDS
    # While all train only rank 0 can.
    assert master.order()[1] == 6


def test_a_writer_may_take_much_longer_than_before() -> None:
    master = HangingMaster("w0", "w1")
    cut, _ = master.order()
    copied = master.copy(cut, 2, None)
    master.run(2, copied)
    master.pass_time(304, 3, copied=copied)
    master.run(3, master.copy(cut, 2))
    master.handle(CheckpointSaveFinished(cut))
    cut, _ = master.order()
    copied = master.copy(cut, 4, None)
    master.run(4, copied)
    master.pass_time(2900, 5, copied=copied)
    assert master.state.world_checkpoint is not None
    assert master.state.world_checkpoint.number == cut
    (warning,) = master.warnings
    assert warning.startswith(f"worker-0 has not written its file of checkpoint {cut} in 9")
    assert master.state.checkpoint_failure is None
    master.pass_time(200, 5, copied=copied)
    assert master.state.checkpoint_failure is not None


def test_nobody_knows_how_long_the_first_file_takes() -> None:
    master = SavingMaster(started=1)
    cut, _ = master.order()
    copied = master.copy(cut, 0, None)
    for _ in range(int(FIRST_WRITE_SECONDS / 3.1)):
        master.run(0, copied)
        master.handle(Tick(), after=3)
    assert master.state.world_checkpoint is not None
    for _ in range(50):
        master.run(0, copied)
        master.handle(Tick(), after=3)
    assert master.state.checkpoint_failure is not None


@pytest.mark.parametrize("workers", [("w0", "w1"), ("w0",)])
def test_at_the_end_another_worker_writes_what_the_first_one_does_not(workers: tuple[str, ...]) -> None:
    master = HangingMaster(*workers, checkpoint_steps=None, max_steps=4)
    master.run(4)
    cut, at_step = master.order()
    assert at_step == 4
    hangs = master.copy(cut, 4, None)
    master.run(4, hangs)
    assert not any(isinstance(command, EndJob) for command in master.commands)
    world = describe_world(master.state)
    assert world is not None
    assert world.awaited == ""
    master.pass_time(WRITE_SECONDS + 5, 4, copied=hangs)
    assert not missing_keys(master.warnings[-1], f"checkpoint {cut} was not written", "worker-0")
    master.pass_time(RETRY_SAVING_SECONDS, 4, copied=hangs)
    if workers == ("w0",):
        assert [end.phase for end in master.commands if isinstance(end, EndJob)] == ["Done"]
        return
    assert not any(isinstance(command, EndJob) for command in master.commands)
    order = master.report("w1", RankPhase.RUNNING, step=4).checkpoint
    assert order is not None
    assert order.at_step == 4
    master.report("w1", RankPhase.RUNNING, step=4, copied=CopiedState(order.cut, 4, 0.01, FILE))
    master.handle(CheckpointSaveFinished(order.cut))
    assert [end.phase for end in master.commands if isinstance(end, EndJob)] == ["Done"]


def test_at_the_end_a_volume_that_answers_nobody_is_not_waited_for() -> None:
    master = HangingMaster("w0", "w1", "w2", checkpoint_steps=None, max_steps=4)
    master.run(4)
    for writer in ("w0", "w1"):
        assert not any(isinstance(command, EndJob) for command in master.commands)
        order = master.report(writer, RankPhase.RUNNING, step=4, stable=4 if writer == "w0" else 0).checkpoint
        assert order is not None
        copied = CopiedState(order.cut, 4, 0.01, None)
        master.report(writer, RankPhase.RUNNING, step=4, stable=4 if writer == "w0" else 0, copied=copied)
        limit = master.state.checkpoint_writes.limit_seconds
        master.pass_time(limit + RETRY_SAVING_SECONDS + 10, 4)
    assert [end.phase for end in master.commands if isinstance(end, EndJob)] == ["Done"]
    failed = [warning for warning in master.warnings if "was not written" in warning]
    assert [warning.rpartition(": ")[2][:8] for warning in failed] == ["worker-0", "worker-1"]


def test_a_new_master_finds_a_writer_that_accepts_no_checkpoint() -> None:
    """Its thread hangs in one that the master before had called for."""
    master = HangingMaster("w0", "w1")
    master.restart()
    master.run(2)
    master.pass_time(FIRST_WRITE_SECONDS + 10, 3)
    failure = master.state.checkpoint_failure
    assert failure is not None
    assert not missing_keys(failure.reason, "worker-0", "has not copied its state")


def test_a_long_task_of_the_main_thread_is_no_fault_of_the_writer() -> None:
    """It copies between two exchanges, and while it exports there are none."""
    master = HangingMaster("w0", "w1", checkpoint_steps=None, max_steps=4)
    master.run(4)
    for _ in range(400):
        for worker in master.rounds.members:
            master.report(worker, RankPhase.RUNNING, step=4, stable=4 if worker == "w0" else 0, entered=1)
        master.handle(Tick(), after=3)
    assert master.state.world_checkpoint is not None
    assert master.state.world_checkpoint.waited < 10


def test_a_stop_waits_for_the_pause_of_all_ranks_and_its_checkpoint_has_every_step() -> None:
    master = SavingMaster(checkpoint_steps=100)
    master.save(0, 0)
    master.run(3)
    master.handle(StopRequested("stopped by its user", 10.0))
    view = master.run(3)
    assert view.must_pause
    assert view.checkpoint is not None
    assert view.checkpoint.when_paused
    master.run(3, master.copy(view.checkpoint.cut, 3), is_paused=True)
    assert done_in(master.saving().ledger) == 12
    ended = [x for x in master.handle(CheckpointSaveFinished(view.checkpoint.cut)) if isinstance(x, EndJob)]
    (end,) = ended
    assert not missing_keys(end.reason, "stopped by its user", "checkpoint 3", "3 steps")


def test_a_stop_while_no_checkpoint_can_be_written_says_why() -> None:
    master = SavingMaster(checkpoint_steps=2)
    master.save(0, 0)
    master.run(2)
    cut, _ = master.order()
    master.run(2, master.copy(cut, 2, WrittenShard("", 0, 0, "No space left on device")))
    master.handle(CheckpointSaveFinished(cut, "No space left on device"))
    ended = [x for x in master.handle(StopRequested("stopped by its user", 10.0)) if isinstance(x, EndJob)]
    (end,) = ended
    assert not missing_keys(end.reason, "no checkpoint could be written: No space left on device")


def test_a_stop_without_new_steps_ends_at_once() -> None:
    master = SavingMaster(checkpoint_steps=100)
    master.save(0, 0)
    commands = master.handle(StopRequested("stopped by its user", 10.0))
    assert any(isinstance(command, EndJob) for command in commands)


def test_when_no_worker_is_left_training_goes_back_to_the_checkpoint_and_not_to_the_start() -> None:
    master = SavingMaster()
    master.save(0, 0)
    master.save(3, 2)
    assert master.state.ledgers[TRAINING].done_records == 12
    master.kill("w0")
    view = master.report("w1", RankPhase.OUTSIDE)
    assert (view.holders, view.step, view.restore_cut) == ((), 2, 2)
    training = master.state.ledgers[TRAINING]
    assert (training.done_records, master.state.counters.rolled_back, master.state.step) == (8, 4, 2)
    # A new master knows the same.
    master.restart()
    assert master.report("w1", RankPhase.FETCHING).restore_cut == 2


def test_a_checkpoint_that_cannot_be_read_is_replaced_by_an_older_one() -> None:
    master = SavingMaster()
    master.save(0, 0)
    older = SavedCheckpoint(1, 0, 0, dict(master.saving().ledger))
    master.save(3, 2)
    master.kill("w0")
    assert master.report("w1", RankPhase.OUTSIDE).restore_cut == 2
    master.handle(CheckpointRefused("w1", 2, "is damaged", older))
    view = master.report("w1", RankPhase.ENDED)
    assert (view.phase, view.restore_cut, view.step) == (RoundPhase.CONFIRMING, 1, 0)
    assert master.state.ledgers[TRAINING].done_records == 0


def test_without_any_checkpoint_that_can_be_read_the_job_fails() -> None:
    master = SavingMaster()
    master.save(0, 0)
    master.run(1)
    master.kill("w0")
    master.report("w1", RankPhase.OUTSIDE)
    commands = master.handle(CheckpointRefused("w1", 1, "is damaged", None, "there is no older one"))
    (end,) = [command for command in commands if isinstance(command, EndJob)]
    assert not missing_keys(end.reason, "is damaged", "there is no older one")


def test_a_new_master_forgets_the_checkpoint_in_progress_and_begins_another_one() -> None:
    master = SavingMaster()
    cut, _ = master.order()
    master.run(0, master.copy(cut, 0, None))
    master.restart()
    order = master.run(0, master.copy(cut, 0)).checkpoint
    assert order is not None
    assert order.cut > cut


@pytest.mark.parametrize("evaluates", [True, False])
def test_the_last_checkpoint_has_every_record(evaluates: bool) -> None:
    master = SavingMaster(checkpoint_steps=None, validation=8 if evaluates else 0, export=True)
    master.save(0, 0)
    step = 0
    while not master.state.is_training_over():
        lease = master.lease_number
        training = master.state.ledgers[TRAINING]
        shares = {step + each: (Share(lease, 4 * (each - 1), 4 * each),) for each in range(1, 5)}
        step += 4
        master.report("w0", RankPhase.RUNNING, step=step, stable=step, shares=shares)
        answer = master.lease("w0")
        master.lease_number = getattr(answer, "lease", lease)
    cut, at_step = master.order()
    assert at_step == step
    master.run(step, master.copy(cut, step))
    assert done_in(master.saving().ledger) == training.done_records == 96


def test_a_checkpoint_whose_step_is_never_reached_gives_way_to_the_last_one() -> None:
    master = SavingMaster(checkpoint_steps=100, max_steps=3)
    master.save(0, 0)
    assert master.order() == (2, 100)
    master.run(3)
    assert master.order() == (3, 3)


def test_the_last_worker_that_leaves_saves_its_state_and_training_goes_on_from_there() -> None:
    master = SavingMaster(checkpoint_steps=100)
    master.save(0, 0)
    master.run(2)
    master.run(2, is_leaving=True)
    shares = {step: (Share(master.lease_number, 4 * (step - 1), 4 * step),) for step in (3, 4)}
    assert master.report("w0", RankPhase.ENDED, step=4, shares=shares, is_leaving=True).is_member
    view = master.report("w0", RankPhase.ENDED, step=4, shares=shares, is_leaving=True)
    assert view.checkpoint is not None
    copied = master.copy(view.checkpoint.cut, 4)
    master.report("w0", RankPhase.ENDED, step=4, shares=shares, is_leaving=True, copied=copied)
    assert done_in(master.saving().ledger) == 16
    master.handle(CheckpointSaveFinished(view.checkpoint.cut))
    assert not master.report("w0", RankPhase.ENDED, step=4, shares=shares, is_leaving=True).is_member
    master.kill("w0")
    after = master.report("w1", RankPhase.OUTSIDE)
    assert (after.step, after.restore_cut) == (4, view.checkpoint.cut)
    assert (master.state.ledgers[TRAINING].done_records, master.state.counters.rolled_back) == (16, 0)


def test_a_worker_that_leaves_stays_for_the_round_in_which_a_new_one_takes_its_state_over() -> None:
    master = SavingMaster(checkpoint_steps=100)
    master.save(0, 0)
    master.run(2, is_leaving=True)
    master.report("w1", RankPhase.OUTSIDE)
    master.report("w0", RankPhase.ENDED, step=2, is_leaving=True)
    view = master.report("w1", RankPhase.OUTSIDE)
    assert (view.members, view.holders, view.step) == (("w0", "w1"), ("w0",), 2)
    for worker in view.members:
        master.report(worker, RankPhase.CONFIRMED)
    assert master.rounds.pending_change == "w0 leaves"


def test_the_job_waits_for_its_last_checkpoint_also_when_the_first_writer_of_it_is_lost() -> None:
    master = SavingMaster(checkpoint_steps=None, max_steps=4)
    master.start_round("w0", "w1")
    master.save(0, 0)
    master.run(4)
    cut, at_step = master.order()
    assert at_step == 4
    master.run(4, master.copy(cut, 4, None))
    master.kill("w0")
    for phase in (RankPhase.ENDED, RankPhase.CONFIRMED):
        master.report("w1", phase, step=4)
    assert not any(isinstance(command, EndJob) for command in master.commands)
    master.now += RETRY_SECONDS
    for _ in range(2):
        view = master.report("w1", RankPhase.RUNNING, step=4, stable=4)
    assert view.checkpoint is not None
    copied = CopiedState(view.checkpoint.cut, 4, 0.01, FILE)
    master.report("w1", RankPhase.RUNNING, step=4, stable=4, copied=copied)
    master.handle(CheckpointSaveFinished(view.checkpoint.cut))
    assert [end.phase for end in master.commands if isinstance(end, EndJob)] == ["Done"]


# --------------------------------------------------------------------------------------------------
# A large state: several ranks copy and write a share each.


class SharingMaster(SavingMaster):
    """A master of three ranks; the first two write shards."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.start_round("w0", "w1", "w2")

    def share(self, worker: str, cut: int, step: int, shard: WrittenShard | None = None) -> WorldView:
        """Another rank than 0 has copied its share of a step, and perhaps written it."""
        return self.report(worker, RankPhase.RUNNING, step=step, copied=CopiedState(cut, step, 0.02, shard))

    def announced(self, cut: int, step: int, shard: WrittenShard | None = None) -> CopiedState:
        """What rank 0 says of a step whose state two ranks have copied."""
        return replace(self.copy(cut, step, shard), writers=("w0", "w1"))

    def has_saved(self) -> bool:
        return any(isinstance(command, SaveCheckpoint) for command in self.commands)

    def begin(self) -> int:
        """Rank 0 has copied the state of step 2 together with another rank; returns the number of the cut."""
        cut, _ = self.order()
        self.run(2, self.announced(cut, 2))
        self.commands.clear()
        return cut


OTHER_FILE = WrittenShard("ps-1.safetensors", 50, 8)


@pytest.mark.parametrize("first", ["w0", "w1"])
def test_the_manifest_is_written_when_all_shards_are_there(first: str) -> None:
    master = SharingMaster()
    cut = master.begin()
    # Each writer of a share knows from its view that it has to report it.
    assert master.share("w1", cut, 2).checkpoint is not None
    assert master.report("w2", RankPhase.RUNNING, step=2).checkpoint is None
    reports = {
        "w0": lambda: master.run(3, master.announced(cut, 2, FILE)),
        "w1": lambda: master.share("w1", cut, 2, OTHER_FILE),
    }
    reports.pop(first)()
    assert not master.has_saved()
    for report in reports.values():
        report()
    saving = master.saving()
    assert (saving.step, saving.shards, done_in(saving.ledger)) == (2, (FILE, OTHER_FILE), 8)
    assert saving.pause == 0.02
    master.handle(CheckpointSaveFinished(cut))
    assert master.share("w1", cut, 2, OTHER_FILE).checkpoint is None


def test_what_a_rank_reports_before_rank_0_counts_when_it_is_repeated() -> None:
    master = SharingMaster()
    cut, _ = master.order()
    master.share("w1", cut, 2, OTHER_FILE)
    master.run(2, master.announced(cut, 2, FILE))
    assert not master.has_saved()
    master.share("w1", cut, 2, OTHER_FILE)
    assert master.saving().shards == (FILE, OTHER_FILE)


@pytest.mark.parametrize("lost", ["w0", "w1"])
@pytest.mark.parametrize("has_copied", [True, False])
def test_when_a_writer_is_lost_other_ranks_write_a_later_step(lost: str, has_copied: bool) -> None:
    master = SharingMaster()
    cut = master.begin()
    if has_copied:
        master.share("w1", cut, 2)
    master.kill(lost)
    survivors = [worker for worker in ("w0", "w1", "w2") if worker != lost]
    shares = {3: (Share(master.lease_number, 8, 12),)}
    for phase in (RankPhase.ENDED, RankPhase.CONFIRMED):
        for worker in survivors:
            master.report(worker, phase, step=3, shares=shares if phase is RankPhase.ENDED else None)
    master.handle(Tick(), after=RETRY_SECONDS + 0.1)
    order = master.report(survivors[0], RankPhase.RUNNING, step=3).checkpoint
    assert order is not None
    assert order.cut > cut
    assert not master.has_saved()
    for worker, shard in zip(survivors, (FILE, OTHER_FILE), strict=True):
        copied = CopiedState(order.cut, 3, 0.01, shard, writers=tuple(survivors) if worker == survivors[0] else ())
        master.report(worker, RankPhase.RUNNING, step=3, copied=copied)
    assert master.saving().shards == (FILE, OTHER_FILE)
    assert master.saving().cut == order.cut


def test_a_writer_that_has_reported_its_shard_may_be_lost() -> None:
    master = SharingMaster()
    cut = master.begin()
    master.share("w1", cut, 2, OTHER_FILE)
    master.kill("w1")
    master.report("w0", RankPhase.ENDED, step=2, copied=master.announced(cut, 2, FILE))
    assert master.saving().shards == (FILE, OTHER_FILE)


def test_a_reduction_that_breaks_after_rank_0_has_finished_it_calls_the_checkpoint_off() -> None:
    """The others have not heard of the announcement, and never report a share."""
    master = SharingMaster()
    cut = master.begin()
    master.kill("w2")
    for phase in (RankPhase.ENDED, RankPhase.CONFIRMED):
        for worker in ("w0", "w1"):
            master.report(worker, phase, step=2)
    pending = master.state.world_checkpoint
    assert pending is None or pending.number > cut


def test_an_announcement_that_a_broken_reduction_may_have_spread_is_not_used_in_the_next_round() -> None:
    """Ranks that heard of it are writing shards, and other ranks may have these in the next round."""
    master = SharingMaster()
    cut, at_step = master.order()
    assert at_step == 0
    master.kill("w2")
    for phase in (RankPhase.ENDED, RankPhase.CONFIRMED):
        for worker in ("w0", "w1"):
            master.report(worker, phase, step=0)
    assert master.order()[0] > cut


def test_shares_of_two_steps_are_no_checkpoint() -> None:
    master = SharingMaster()
    cut = master.begin()
    master.share("w1", cut, 1, OTHER_FILE)
    assert not master.has_saved()
    assert master.state.world_checkpoint is None
    master.handle(Tick(), after=RETRY_SECONDS + 0.1)
    assert master.order()[0] > cut


def test_an_error_of_one_writer_ends_the_attempt() -> None:
    master = SharingMaster()
    cut = master.begin()
    full = WrittenShard("", 0, 0, "No space left on device")
    master.share("w1", cut, 2, full)
    assert master.saving().shards == (full,)
    master.handle(CheckpointSaveFinished(cut, full.error))
    assert master.state.checkpoint_failure is not None


def test_a_writer_that_hangs_in_its_share_is_named() -> None:
    """Only rank 0 can announce the next checkpoint, and all first ranks write their shares of it."""
    master = SharingMaster()
    cut = master.begin()
    for _ in range(int(WRITE_SECONDS / 3) + 1):
        master.run(3, master.announced(cut, 2, FILE))
        for worker in ("w1", "w2"):
            master.report(worker, RankPhase.RUNNING, step=3)
        master.handle(Tick(), after=3)
    failure = master.state.checkpoint_failure
    assert failure is not None
    assert failure.reason.startswith(f"worker-1 has not written its file of checkpoint {cut} in 60")
    master.now += RETRY_SAVING_SECONDS
    assert master.run(4).must_pause
    assert master.order()[0] > cut


def test_writers_that_cannot_be_are_not_believed() -> None:
    master = SharingMaster()
    cut, _ = master.order()
    master.run(0, replace(master.copy(cut, 0, FILE), writers=("w1", "w0")))
    assert master.saving().shards == (FILE,)
