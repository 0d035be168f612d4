"""Callbacks of ranks that train together: all use the same learning rate for a step, and stop after the same one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import pytest
from support.all_reduce_job import AllReduceJob, KilledError, Rank, RecordedCallbacks
from support.text_keys import missing_keys

from edl.collective.round_errors import RoundBrokenError
from edl.core.callback_decisions import EarlyStopping, ReduceLROnPlateau
from edl.core.ledger import TRAINING
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import RoundPhase

# The metric of the harness grows with every step, so no evaluation is better than the first one.
LOWER = ReduceLROnPlateau("total", "min", factor=0.5, patience=1, rate=1.0)
STOP = EarlyStopping("total", "min", patience=3)
EVERY = 5


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def plateau_rate(update: int) -> float:
    """The rate of an update: halved after the second evaluation and each one that follows."""
    evaluations = (update - 1) // EVERY
    return 0.5 ** max(0, evaluations - 1)


def check_rates(job: AllReduceJob) -> None:
    """All ranks used the same rate for each update, and the remaining ones have the same sum of them."""
    rate_of_update: dict[int, float] = {}
    for rank in job.ranks:
        newest = max(rank.replica.rate_of_update, default=0)
        for update, rate in rank.replica.rate_of_update.items():
            # The others may have made it again.
            if rank.is_killed and update == newest:
                continue
            assert rate_of_update.setdefault(update, rate) == rate, (rank.uid, update)
    remaining = [rank for rank in job.living_ranks() if not rank.gate.closed and rank.replica.updates]
    for rank in remaining[1:]:
        np.testing.assert_array_equal(rank.replica.rates, remaining[0].replica.rates)
    assert remaining


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_plateau_lowers_the_rate_of_the_step_after_the_evaluation(folder, workers):
    with AllReduceJob(folder, records=400, validation=32, evaluation_steps=EVERY, callbacks=(LOWER,)) as job:
        for _ in range(workers):
            job.start_rank()
        job.wait_for_end()
        check_rates(job)
        for rank in job.ranks:
            assert {u: plateau_rate(u) for u in rank.replica.rate_of_update} == rank.replica.rate_of_update


@pytest.mark.parametrize("victim", ["w0", pytest.param("w2", marks=pytest.mark.repetition)])
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("point", ["compute", "apply", "applied"])
def test_a_rank_is_killed_in_the_step_with_the_new_rate(folder, point, victim):
    def arm(rank: Rank) -> None:
        def die(at: str) -> None:
            # The eleventh update is the first one with half the rate.
            if rank.uid == victim and at == point and rank.replica.updates == 10 + (point == "applied"):
                job.kill(rank)
                raise KilledError

        rank.replica.fail_at = die

    settings = {"validation": 32, "evaluation_steps": EVERY, "callbacks": (LOWER,), "workers_min": 2}
    with AllReduceJob(folder, records=600, seconds=0.002, **settings) as job:
        for _ in range(3):
            job.start_rank(arm)
        job.wait_for_end()
        check_rates(job)
        for rank in job.ranks:
            assert {u: plateau_rate(u) for u in rank.replica.rate_of_update} == rank.replica.rate_of_update


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_early_stopping_ends_with_the_evaluated_step_on_all_ranks(folder, workers):
    settings = {"validation": 32, "evaluation_steps": EVERY, "callbacks": (STOP,), "workers_min": workers}
    with AllReduceJob(folder, records=4000, **settings) as job:
        ranks = [job.start_rank() for _ in range(workers)]
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Done"
        assert job.end.reason.startswith("EarlyStopping")
        assert {rank.replica.updates for rank in ranks} == {4 * EVERY}
        assert job.state.step == 4 * EVERY
        assert job.state.callbacks.evaluations == 4, "the step that was evaluated last is evaluated once"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(1, 3))])
def test_the_rate_of_an_epoch_under_random_faults(folder, seed):
    random = Random(seed)
    with AllReduceJob(folder, records=160, epochs=6, seconds=0.004, epoch_rate=lambda epoch: 0.5**epoch) as job:
        for _ in range(3):
            job.start_rank()
        while job.end is None and len(job.ranks) < 9:
            living = [rank for rank in job.living_ranks() if not rank.ended.is_set()]
            if len(living) > 1:
                job.kill(random.choice(living))
            job.start_rank()
            reached = job.state.step + random.randint(2, 8)
            job.wait(lambda reached=reached: job.end is not None or job.state.step >= reached)
        job.wait_for_end()
        check_rates(job)
        rates = [rate for rank in job.ranks for _, rate in sorted(rank.replica.rate_of_update.items())]
        assert set(rates) <= {0.5**epoch for epoch in range(6)}


# ------------------------------------------------------------------ callbacks of the user's own


def check_calls(job: AllReduceJob) -> None:
    """All ranks have called their callbacks for the same steps, each once, with the same epoch, loss and rate."""
    call_of_step: dict[int, tuple[int, float, float | None]] = {}
    for rank in job.ranks:
        steps = [step for step, *_ in rank.callbacks.calls]
        assert steps == sorted(set(steps)), rank.uid
        for step, *call in rank.callbacks.calls:
            assert call_of_step.setdefault(step, tuple(call)) == tuple(call), (rank.uid, step)
    updates = max(rank.replica.updates for rank in job.ranks)
    assert sorted(call_of_step) == list(range(updates))


def own(after_step: Callable[[RecordedCallbacks, int], None], *indices: int) -> Callable[[Rank], None]:
    """Give ranks, by default all of them, callbacks that do this after each step."""

    def prepare(rank: Rank) -> None:
        if not indices or rank.index in indices:
            rank.callbacks.after_step = after_step

    return prepare


@pytest.mark.parametrize("global_batch", [None, 10])
def test_all_ranks_call_callbacks_for_every_step_also_those_that_follow_a_round(folder, global_batch):
    with AllReduceJob(folder, records=400, epochs=2, seconds=0.002, global_batch=global_batch) as job:
        job.start_rank()
        job.wait(lambda: job.state.step > 10)
        follower = job.start_rank()
        job.wait(lambda: follower.made_steps)
        job.wait_for_end()
        check_calls(job)
        first_own_step = follower.made_steps[0][1]
        assert follower.callbacks.calls[0][0] < first_own_step - 1, "it has called them for steps that it followed"
        assert all(rank.callbacks.has_ended for rank in job.ranks)
        epochs = [epoch for _, epoch, *_ in job.ranks[0].callbacks.calls]
        assert (epochs[0], epochs[-1]) == (0, 1)
        # Without a global batch a worker may enter with records of the epoch before. Callbacks stay in the later one.
        assert epochs == sorted(epochs) or global_batch is None


def test_callbacks_that_change_a_variable_before_a_step_are_called_on_all_ranks_if_it_is_abandoned(folder):
    """One survivor had begun the step that broke, and the other one, without records, had not."""
    idle = True

    def change(rank: Rank) -> None:
        def before_step(step: int) -> None:
            rank.replica.rates[0] = 1000 + step

        rank.callbacks.before_step = before_step

    with AllReduceJob(folder, records=800, seconds=0.002) as job:
        first, second, lost = (job.start_rank(change) for _ in range(3))
        find_lease = second.loop._current_lease
        second.loop._current_lease = lambda *view, **named: None if idle else find_lease(*view, **named)
        job.wait_for_round(3)
        job.wait_for_step(6)

        def die(point: str) -> None:
            if point == "reduce":
                step = lost.world.step
                job.wait(lambda: first.callbacks.begun[-1][0] == step)
                job.kill(lost, is_preempted=True)
                raise KilledError

        lost.replica.fail_at = die
        job.wait_killed(lost)
        job.wait_for_round(2)
        idle = False
        job.wait_for_end()
        check_calls(job)


def test_a_worker_that_follows_from_an_abandoned_step_on_gets_no_change_of_a_callback_twice(folder):
    """Its source has begun the step that broke, so its variables have the change of the callback already."""
    is_followed = Event()

    def change(rank: Rank) -> None:
        def before_step(step: int) -> None:
            rank.replica.rates[0] += 1000

        rank.callbacks.before_step = before_step

    with AllReduceJob(folder, records=800, seconds=0.002, workers_min=2) as job:
        ranks = [job.start_rank(change) for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(6)

        def await_follower(members: Sequence[str]) -> None:
            if len(members) == 2:
                job.wait(lambda: is_followed.is_set() or any(rank.loop._feed._waiting for rank in ranks))
                is_followed.set()

        for rank in ranks[:2]:
            rank.loop._copies.start_round = await_follower

        def die(point: str) -> None:
            if point == "reduce":
                job.kill(ranks[2], is_preempted=True)
                raise KilledError

        ranks[2].replica.fail_at = die
        job.wait_killed(ranks[2])
        job.start_rank(change)
        job.wait_for_round(3)
        job.wait_for_end()
        check_calls(job)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("follows", [True, False])
def test_a_worker_that_joins_in_an_epoch_keeps_the_state_that_callbacks_have_changed_at_its_beginning(folder, follows):
    """It calls its own callbacks for the epoch before it gets the state.

    Args:
        follows: whether it follows the others, or gets the state at the boundary.
    """

    def change(rank: Rank) -> None:
        def before_epoch(epoch: int) -> None:
            rank.replica.rates[:] = 1000 * (epoch + 1)

        rank.callbacks.before_epoch = before_epoch

    with AllReduceJob(folder, records=800, epochs=2, seconds=0.002) as job:
        first = job.start_rank(change)
        job.wait_for_step(6)
        if not follows:
            first.loop._feed.serve_waiting = lambda *arguments: None
        second = job.start_rank(change)
        if not follows:
            job.wait(lambda: second.world.phase is RankPhase.FOLLOWING)
            second.world.end_following()
        job.wait_for_round(2)
        assert job.state.ledgers[TRAINING].epoch == 0
        job.wait_for_end()
        check_calls(job)
        assert first.callbacks.callback_epoch == second.callbacks.callback_epoch
        assert all(rank.callbacks.epoch_losses[0] == first.callbacks.epoch_losses[0] for rank in job.ranks)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("deciding", [(), (0,), (1,)], ids=["all", "first", "second"])
def test_a_rate_that_a_callback_sets_is_that_of_all_ranks(folder, deciding):
    def halve(callbacks: RecordedCallbacks, update: int) -> None:
        if update == 10:
            callbacks.learning_rate = 0.5

    with AllReduceJob(folder, records=800, seconds=0.002, workers_min=2) as job:
        for _ in range(2):
            job.start_rank(own(halve, *deciding))
        job.wait_for_end()
        check_calls(job)
        check_rates(job)
        rates = job.ranks[0].replica.rate_of_update
        changed = [update for update, rate in rates.items() if rate == 0.5]
        assert {rates[update] for update in range(1, 11)} == {1.0}
        assert changed == list(range(changed[0], max(rates) + 1))
        # Without records in this step, the rank that decides says so in the next one.
        assert changed[0] == 11 if not deciding else 11 <= changed[0] <= 13


def lose_end(rank: Rank, step: int, is_lost: Event) -> None:
    """Let the rank lose the end of the reduction of a step if it is the first one; the others finish it."""
    reduce = rank.loop._sums.reduce

    def reduce_and_lose(*arguments: Any, **named: Any) -> list[bytes]:
        messages = reduce(*arguments, **named)
        if rank.world.rank == 0 and rank.world.step == step - 1 and not is_lost.is_set():
            is_lost.set()
            raise RoundBrokenError(None, "the end of a reduction is lost")
        return messages

    rank.loop._sums.reduce = reduce_and_lose


def test_a_rank_that_loses_the_end_of_a_reduction_calls_its_callbacks_for_this_step_as_well(folder):
    is_lost = Event()
    with AllReduceJob(folder, records=400, seconds=0.002, workers_min=2) as job:
        for _ in range(2):
            job.start_rank(lambda rank: lose_end(rank, 20, is_lost))
        job.wait_for_end()
        assert is_lost.is_set()
        check_calls(job)
        first, second = (rank.callbacks for rank in job.ranks)
        assert [call[:3] for call in first.calls] == [call[:3] for call in second.calls]


def test_a_rank_calls_its_callbacks_once_for_a_step_whose_state_is_lost_before_it_gets_the_state(folder):
    """One rank alone has applied step 20. It dies while it passes the state on, so the others make the step again."""
    is_lost = Event()

    def prepare(rank: Rank) -> None:
        reduce, share = rank.loop._sums.reduce, rank.loop._share_state

        def reduce_and_lose(*arguments: Any, **named: Any) -> list[bytes]:
            messages = reduce(*arguments, **named)
            if rank.uid != "w0" and rank.world.step == 19 and not job.ranks[0].is_killed:
                raise RoundBrokenError(None, "the end of a reduction is lost")
            return messages

        def share_or_die(view: Any, *arguments: Any) -> Any:
            if rank.uid == "w0" and view.step == 20:
                is_lost.set()
                job.kill(rank, is_preempted=True)
                raise KilledError
            return share(view, *arguments)

        def change(callbacks: RecordedCallbacks, update: int) -> None:
            rank.replica.rates[:] += 1000

        rank.loop._sums.reduce, rank.loop._share_state = reduce_and_lose, share_or_die
        rank.callbacks.after_step = change

    with AllReduceJob(folder, records=400, seconds=0.002, workers_min=2) as job:
        for _ in range(3):
            job.start_rank(prepare)
        job.wait(is_lost.is_set)
        job.wait_for_end()
        for rank in job.living_ranks():
            assert rank.replica.rates.min() // 1000 == rank.replica.updates
        check_calls(job)


def test_a_worker_that_comes_back_when_training_is_over_does_not_call_what_is_called_at_its_end(folder, monkeypatch):
    """Its variables are those of an older step, and it lacks the loss of the epoch."""
    monkeypatch.setattr("edl.core.allreduce.CLOSING_SILENCE_SECONDS", 0.2)
    with AllReduceJob(folder, records=400, seconds=0.002, workers_min=2) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(6)
        job.silent.add("w1")
        ranks[1].connection.abort(ranks[1].world.round, "stopped")
        job.wait(lambda: job.end is not None)
        job.silent.discard("w1")
        job.wait(lambda: all(rank.ended.is_set() for rank in ranks))
        assert ranks[1].world.step < ranks[0].world.step
        assert [rank.callbacks.has_ended for rank in ranks] == [True, False, True]


def test_a_rank_that_gets_the_state_of_a_step_does_not_undo_the_rate_that_the_others_set_after_it(folder):
    """The first rank loses the end of the reduction of step 20, so its own callbacks do not see that step."""
    last, is_broken = 20, Event()

    def lower(callbacks: RecordedCallbacks, update: int) -> None:
        if update in (10, last):
            callbacks.learning_rate = {10: 0.5, last: 0.25}[update]

    def prepare(rank: Rank) -> None:
        rank.callbacks.after_step = lower
        lose_end(rank, last, is_broken)

    with AllReduceJob(folder, records=800, seconds=0.002, workers_min=2) as job:
        for _ in range(2):
            job.start_rank(prepare)
        job.wait_for_end()
        assert is_broken.is_set()
        for rank in job.ranks:
            rates = rank.replica.rate_of_update
            assert {rates[update] for update in rates if 10 < update <= last} == {0.5}
            assert {rates[update] for update in rates if update > last} == {0.25}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(1, 4))])
def test_rates_of_callbacks_are_agreed_under_random_faults(folder, seed):
    """The callbacks of each rank draw their own rates, as ones that read a clock would."""
    random = Random(seed)

    def draw(callbacks: RecordedCallbacks, update: int) -> None:
        if random.random() < 0.2:
            callbacks.learning_rate = random.random()

    with AllReduceJob(folder, records=160, epochs=6, seconds=0.004) as job:
        for _ in range(3):
            job.start_rank(own(draw))
        while job.end is None and len(job.ranks) < 9:
            # With one member, training would begin again, with other rates.
            members = [rank for rank in job.living_ranks() if job.state.world.trains(rank.uid)]
            if len(members) > 1:
                job.kill(random.choice(members))
            job.start_rank(own(draw))
            reached = job.state.step + random.randint(2, 8)
            job.wait(lambda reached=reached: job.end is not None or job.state.step >= reached)
        job.wait_for_end()
        check_rates(job)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("workers", "deciding", "global_batch", "latest"),
    [(1, (), None, 20), (3, (), None, 20), (3, (1,), None, 21), (2, (), 10, 21)],
)
def test_a_callback_that_stops_training_stops_all_ranks_after_the_same_step(
    folder, workers, deciding, global_batch, latest
):
    def stop(callbacks: RecordedCallbacks, update: int) -> None:
        callbacks.has_stopped = callbacks.has_stopped or update == 20

    settings = {"validation": 32, "workers_min": workers, "global_batch": global_batch}
    with AllReduceJob(folder, records=4000, seconds=0.001, **settings) as job:
        ranks = [job.start_rank(own(stop, *deciding)) for _ in range(workers)]
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Done"
        (updates,) = {rank.replica.updates for rank in ranks}
        assert 20 <= updates <= latest
        assert not missing_keys(job.end.reason, "model.stop_training", f"step {updates}")
        # The final evaluation has seen the variables of this step.
        (total,) = {total for _, _, total in job.evaluated}
        assert total == ranks[0].replica.counts.sum()
        check_calls(job)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("deciding", [(), (1,)])
def test_a_stop_after_the_last_step_of_an_epoch_is_exact_with_a_global_batch(folder, deciding):
    """Its messages agree on no further step, so all hear of the stop before the next epoch begins."""

    def stop(callbacks: RecordedCallbacks, update: int) -> None:
        callbacks.has_stopped = callbacks.has_stopped or update == 20

    with AllReduceJob(folder, records=200, epochs=3, seconds=0.001, workers_min=2, global_batch=10) as job:
        ranks = [job.start_rank(own(stop, *deciding)) for _ in range(2)]
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Done"
        assert {rank.replica.updates for rank in ranks} == {20}
        assert {rank.callbacks.begun_epochs for rank in ranks} == {1}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("global_batch", [None, 10])
def test_a_callback_that_stops_training_before_a_step_stops_all_ranks_after_it(folder, global_batch):
    """As ``on_epoch_end`` does: it is called when the next epoch begins. This step has its records already."""

    def stop(rank: Rank) -> None:
        def before_step(step: int) -> None:
            rank.callbacks.has_stopped = rank.callbacks.has_stopped or step == 20

        rank.callbacks.before_step = before_step

    with AllReduceJob(folder, records=4000, seconds=0.001, workers_min=2, global_batch=global_batch) as job:
        ranks = [job.start_rank(stop) for _ in range(2)]
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Done"
        assert {rank.replica.updates for rank in ranks} == {21}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("heard", [True, False])
def test_a_stop_is_forgotten_when_training_begins_again_before_it(folder, heard):
    """The rank that decided it hears nothing for a while; all others are lost, and so is every step.

    Args:
        heard: whether the reduction that tells the other rank is finished.
    """

    def stop(callbacks: RecordedCallbacks, update: int) -> None:
        if update == 19:
            job.silent.add("w0")
        callbacks.has_stopped = callbacks.has_stopped or update == 20

    def die_before_the_next_step(rank: Rank) -> None:
        def before_step(step: int) -> None:
            if step == 20 and not heard:
                job.kill(rank)
                raise KilledError

        rank.callbacks.before_step = before_step

    with AllReduceJob(folder, records=400, task_records=160, seconds=0.002, workers_min=2) as job:
        first, second = job.start_rank(own(stop, 0)), job.start_rank(die_before_the_next_step)
        job.wait(lambda: first.world._is_stopped if heard else second.is_killed and first.callbacks.has_stopped)
        first.callbacks.after_step = lambda callbacks, update: None
        job.kill(second)
        third, _ = job.start_rank(), job.start_rank()
        job.wait(lambda: job.state.world.trains(third.uid))
        job.silent.discard("w0")
        job.wait_for_round(3)
        job.wait_for_end()


@pytest.mark.repetition
def test_a_rate_is_forgotten_when_training_begins_again_before_it(folder):
    """The rank whose callbacks set it hears nothing for a while; all others are lost, and so is every step."""

    def lower(callbacks: RecordedCallbacks, update: int) -> None:
        if update == 10:
            callbacks.learning_rate = 0.5
        if update == 20:
            job.silent.add("w0")

    with AllReduceJob(folder, records=800, seconds=0.002, workers_min=2) as job:
        first, second = job.start_rank(own(lower, 0)), job.start_rank()
        job.wait(lambda: "w0" in job.silent)
        first.callbacks.after_step = lambda callbacks, update: None
        job.kill(second)
        third, _ = job.start_rank(), job.start_rank()
        job.wait(lambda: job.state.world.trains(third.uid))
        job.silent.discard("w0")
        job.wait_for_round(3)
        job.wait_for_end()
        assert set(third.replica.rate_of_update.values()) == {1.0}
        assert len(first.callbacks.beginnings) == 2, "it begins again, although the others had before it came back"


@pytest.mark.repetition
def test_a_worker_that_comes_back_begins_training_from_a_checkpoint_with_new_ones(folder):
    """It is in the second epoch when it is stopped; all others are lost, and the first step is made again."""

    def change(rank: Rank) -> None:
        def before_epoch(epoch: int) -> None:
            rank.replica.rates += 1000

        def after_step(callbacks: RecordedCallbacks, update: int) -> None:
            if rank.uid == "w0" and callbacks.begun_epochs == 2 and not is_stopped.is_set():
                job.silent.add("w0")
                is_stopped.set()

        rank.callbacks.before_epoch, rank.callbacks.after_step = before_epoch, after_step

    is_stopped = Event()
    with AllReduceJob(folder, records=240, epochs=3, seconds=0.002, workers_min=2) as job:
        _, *others = [job.start_rank(change) for _ in range(3)]
        job.wait(is_stopped.is_set)
        # Others go on without it, so its state does not count any more.
        job.wait(lambda: job.state.world.phase is RoundPhase.RUNNING and "w0" not in job.state.world.members)
        for rank in others:
            job.kill(rank)
        job.silent.discard("w0")
        job.wait(lambda: "w0" in job.state.world.candidates)
        job.start_rank(change)
        job.wait_for_round(2)
        assert not job.state.world.holders
        job.wait_for_end()
        returned, new = job.living_ranks()
        np.testing.assert_array_equal(returned.replica.rates, new.replica.rates)


def test_callbacks_before_a_step_that_is_not_applied_are_called_on_all_ranks(folder):
    """A gradient is not finite, and ``train.on_nan`` is ``skip``: a rank without records has not computed the step."""
    is_skipped = Event()

    def change(rank: Rank) -> None:
        def before_step(step: int) -> None:
            rank.replica.rates[0] += 1000

        rank.callbacks.before_step = before_step

    with AllReduceJob(folder, records=400, seconds=0.002, workers_min=2) as job:
        job.skip_nan = True
        first, second = job.start_rank(change), job.start_rank(change)
        find_lease, compute = second.loop._current_lease, first.replica.compute

        def find_lease_later(*view: Any, **named: Any) -> Any:
            return None if second.world.step == 6 else find_lease(*view, **named)

        def compute_infinity(*data: Any, **named: Any) -> Any:
            result = compute(*data, **named)
            if first.world.step != 6:
                return result
            is_skipped.set()
            return replace(result, is_finite=False, nonfinite_name="a variable")

        second.loop._current_lease, first.replica.compute = find_lease_later, compute_infinity
        job.wait(lambda: job.end is not None)
        assert is_skipped.is_set()
        assert job.end.phase == "Done", job.end
        assert [step for step, _ in first.callbacks.begun] == [step for step, _ in second.callbacks.begun]


def test_a_checkpoint_has_no_change_of_callbacks_before_a_step_that_is_not_in_it(folder):
    """The first writer dies while it copies. The others have begun the next step then, and one of them copies."""
    saved: list[tuple[float, int]] = []

    def prepare(rank: Rank) -> None:
        def before_step(step: int) -> None:
            rank.replica.rates[:] += 1000

        def die(point: str) -> None:
            if point == "copy" and rank.uid == "w0" and (updates := rank.replica.updates) > 6:
                job.wait(lambda: all(each.callbacks.begun[-1][0] == updates for each in job.ranks[1:]))
                job.kill(rank, is_preempted=True)
                raise KilledError

        rank.callbacks.before_step, rank.replica.fail_at = before_step, die

    def read(cut: int) -> None:
        arrays = job.ranks[1].checkpoints.read(cut)
        saved.append((float(arrays["rates"][-1]) // 1000, job.count_updates(arrays)))

    settings = {"workers_min": 3, "workers": 3, "durable": True, "checkpoint_steps": 4}
    with AllReduceJob(folder, records=400, seconds=0.002, **settings) as job:
        job.check_saved = read
        ranks = [job.start_rank(prepare) for _ in range(3)]
        job.wait_killed(ranks[0], 10)
        job.start_rank(prepare)
        job.wait_for_end()
        assert max(updates for _, updates in saved) > ranks[0].replica.updates
        assert all(begun == updates for begun, updates in saved), saved


@pytest.mark.parametrize("shard_bytes", [1 << 30, 64], ids=["one file", "shards"])
def test_a_rate_that_callbacks_set_after_the_step_of_a_checkpoint_is_in_it(folder, shard_bytes):
    def lower(callbacks: RecordedCallbacks, update: int) -> None:
        callbacks.learning_rate = 0.5**update

    settings = {"workers_min": 2, "durable": True, "checkpoint_steps": 10}
    with AllReduceJob(folder, records=400, seconds=0.002, shard_bytes=shard_bytes, **settings) as job:
        saved: list[Any] = []
        job.check_saved = lambda cut: saved.append(job.ranks[0].checkpoints.read(cut))
        for _ in range(2):
            job.start_rank(own(lower))
        job.wait_for_end()
        assert job.count_updates(saved[-1]) > 10
        assert all(arrays["rate"] == [0.5 ** job.count_updates(arrays)] for arrays in saved)
        check_rates(job)


def test_a_new_master_and_a_new_rank_know_that_a_callback_stopped_training(folder):
    def stop(callbacks: RecordedCallbacks, update: int) -> None:
        callbacks.has_stopped = callbacks.has_stopped or update == 20

    with AllReduceJob(folder, records=4000, seconds=0.001, validation=32) as job:
        job.evaluation_seconds = 0.5
        first = job.start_rank(own(stop))
        job.wait(lambda: job.evaluated)
        job.stop_master()
        job.start_master()
        late = job.start_rank()
        job.wait(lambda: job.end is not None)
        assert not missing_keys(job.end.reason, "model.stop_training", "step 20")
        assert (first.replica.updates, len(late.made_steps)) == (20, 0)
