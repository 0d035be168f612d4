"""The user's own callbacks under strategy AllReduce.

Every rank runs its own callbacks with its own model, which is the trained one. All ranks call them for every step of
the world, with the same loss and at the same place, also ranks without records and workers that follow a round. So
callbacks that decide by what they get decide the same everywhere. What remains is agreed with the step messages:

- **Learning rate.** What a callback assigns is kept, and the variable gets its old value back. The rank sends the rate
  with its next records, and all ranks use that of the lowest rank with records of the latest epoch. So a callback that
  decides by the time of day, or one of a worker that came later, does not make the ranks differ.
- **model.stop_training.** A rank on which it is true says so, and no rank trains after the step that carries it.
- **Messages.** All ranks have the same logs, so ``RemoteMonitor`` sends those of rank 0 only.
- **Variables.** A callback that changes one must do so on all ranks in the same way; digests find one that does not.
  A worker that gets the state of others begins training and the epoch before, so what it changes is replaced. If it
  lacks only their newest step, it calls its callbacks for that step, too.
  If a step is abandoned, a rank may have called its callbacks before it, and another one not yet: all do so when the
  next round begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from edl.api.errors import BadInputError
from edl.core.rank_state import NO_ENDED_STEP, NOT_BEGUN, CallbackEpoch, EndedStep
from edl.keras.model_loss import updating_optimizers
from edl.keras.replica_state import ReplicaState
from edl.keras.traced_function import host_array, read_value
from edl.keras.user_callbacks import CallbackParams, KerasCallbacks, is_user_defined

_EPOCH_METHODS = ("on_train_begin", "on_epoch_begin")
_STEP_METHODS = ("on_train_batch_begin", "on_batch_begin")


class RankCallbacks:
    """Runs the callbacks of one rank.

    Args:
        callbacks: those that are neither monitors nor ``LearningRateScheduler``.
        replica: the model.
        worker_index: becomes part of the names of files that Keras' callbacks write; None: nothing is written.
        params: the ``params`` of the callbacks.
        rate_owner: what else sets the learning rate in this job; empty: nothing does.

    Raises:
        UserCodeError: the user's code raised an exception.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        replica: ReplicaState,
        *,
        worker_index: int | None,
        params: CallbackParams,
        rate_owner: str = "",
    ) -> None:
        self._replica = replica
        self._optimizer = replica.optimizer
        self._rate_owner = rate_owner
        self._has_schedule = _has_schedule(replica.optimizer)
        self._rate: float | None = None
        self._begun_step = -1
        self._epoch = 0
        self._has_begun = False
        self._ended_step = NO_ENDED_STEP
        # Of the state that the callbacks have seen last.
        self._step = -1
        self._is_first = False
        self._began_in, self._first_epoch = (0, 0), 0
        # From after the newest step, and before what is called before the next one.
        self._rate_before: float | None = None
        self._values_before: dict[int, tuple[Any, Any]] = {}
        self._lacks_values = False
        # The variables that the end of training has changed; None: the callbacks have not been called for it.
        self._final_values: list[tuple[Any, Any]] | None = None
        self._has_step_methods = _defines_any(callbacks, _STEP_METHODS)
        self._has_epoch_methods = _defines_any(callbacks, _EPOCH_METHODS)
        for callback in callbacks:
            if isinstance(callback, keras.callbacks.RemoteMonitor):
                self._call_on_first_rank(callback)
        with self._keeping_rate():
            self._callbacks = KerasCallbacks(
                callbacks,
                replica.model,
                replica.optimizer,
                replica.module.zoo,
                trains_locally=True,
                worker_index=worker_index,
                check_monitors=lambda monitors: None,
                params=params,
                steps_are_traced=True,
            )

    def start_round(self, rank: int) -> None:
        """A round begins, in which this worker has a rank."""
        self._is_first = rank == 0

    def _call_on_first_rank(self, monitor: Any) -> None:
        """Let one rank send the values of an epoch: they are the same on all."""
        send = monitor.on_epoch_end

        def send_once(epoch: int, logs: Any = None) -> None:
            if self._is_first:
                send(epoch, logs)

        monitor.on_epoch_end = send_once

    @property
    def learning_rate(self) -> float | None:
        """The rate that the callbacks have set; None: they have not set one."""
        return self._rate

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has set ``model.stop_training``."""
        return bool(getattr(self._replica.model, "stop_training", False))

    @property
    def begun_step(self) -> tuple[int, int] | None:
        """The newest step before which the callbacks were called: the number of steps before it, and its epoch."""
        return self._begun_step, self._epoch

    @property
    def callback_epoch(self) -> CallbackEpoch:
        """How far the callbacks are; what ranks get that get the state of this one."""
        place = (self._epoch + 1, *self._callbacks.epoch_losses) if self._has_begun else NOT_BEGUN.place
        return CallbackEpoch(*place, self._began_in, self._next_rate, self._first_epoch)

    @property
    def _next_rate(self) -> float | None:
        """The rate that the callbacks have set after the newest step, without what is called before the next one."""
        return self._rate_before if self._has_begun_next_step else self._rate

    @property
    def _has_begun_next_step(self) -> bool:
        return self._begun_step >= 0 and self._begun_step == self._step

    @property
    def ended_step(self) -> EndedStep:
        """The newest step that is over for the callbacks, if this rank knows its loss."""
        return self._ended_step

    def try_first_step(self) -> None:
        """Call what is called before the first step, except callbacks that write log files."""
        with self._keeping_rate():
            self._callbacks.begin_first_step()

    def begin_step(self, step: int, epoch: int) -> None:
        """Call the callbacks before a step, once: it may be computed again after a change of the world.

        Args:
            step: the number of steps before it.
            epoch: that of this rank's records, or of the step. If the step has records of two epochs, all ranks learn
                of the later one before they apply it.
        """
        is_new = step != self._begun_step
        if not is_new and epoch <= self._epoch:
            return
        # Also those between: a step may have records of three short epochs, and each rank knows its own records only.
        newest = self._epoch if self._has_begun else self._first_epoch
        epoch = max(newest, epoch)
        new_epochs = range(newest + self._has_begun, epoch + 1)
        if new_epochs and not self._callbacks.epoch_losses[1]:
            # No step that was applied counts for it: it has no loss, and so no end.
            self._callbacks.drop_epoch()
        with self._keeping_rate():
            # It belongs to the newest step, although it is known only now.
            self._callbacks.end_other_epoch(epoch)
        if is_new:
            self._rate_before, self._values_before, self._lacks_values = self._rate, {}, False
        self._begun_step, self._epoch, self._has_begun = step, epoch, True
        may_change = self._has_step_methods or (self._has_epoch_methods and bool(new_epochs))
        with self._keeping_rate(), self._keeping_values() if may_change else nullcontext():
            for each in new_epochs:
                if each != new_epochs[0]:
                    self._callbacks.drop_epoch()
                self._callbacks.begin_epoch(each)
            if is_new:
                self._callbacks.begin_step(step)

    def end_step(self, step: int, epoch: int, loss: float, learning_rate: float | None) -> None:
        """Call the callbacks after a step.

        Args:
            epoch: the latest one of the step's records.
            loss: of the step of all ranks.
            learning_rate: the rate that the ranks agreed on for this step; None: no callback has set one.
        """
        self._epoch = max(self._epoch, epoch)
        self._ended_step, self._step = EndedStep(step, self._epoch, loss), step + 1
        self._values_before = {}
        if self._rate is not None and learning_rate is not None:
            self._rate = learning_rate
        with self._keeping_rate():
            self._callbacks.end_step(step, loss)

    def skip_step(self, step: int, epoch: int) -> None:
        """A step is not applied, because a gradient is not finite: it has a beginning and no end."""
        # Ranks with records have called it, and it may have changed variables.
        self.begin_step(step, epoch)
        self._ended_step, self._step = EndedStep(step, self._epoch, is_applied=False), step + 1
        self._values_before = {}

    def begin_test(self) -> None:
        """Call the callbacks before an evaluation task."""
        with self._keeping_rate():
            self._callbacks.begin_test()

    def end_test(self) -> None:
        """Call the callbacks after an evaluation task."""
        with self._keeping_rate():
            self._callbacks.end_test()

    def end_training(self) -> None:
        """Call the callbacks at the end of training; then the variables are those that ``fit`` leaves.

        The rank that exports the model does so before, the others when the job is over. If it exports twice, it calls
        them once, and gives the variables the same values again.
        """
        if self._final_values is not None:
            for variable, value in self._final_values:
                variable.value.assign(value, read_value=False)
            return
        before = self._replica.read_values()
        if not self._callbacks.epoch_losses[1]:
            self._callbacks.drop_epoch()
        with self._keeping_rate():
            self._callbacks.end_epoch()
        # As ``fit`` does: the averages of ``use_ema`` become the weights between the two.
        self._replica.finalize()
        with self._keeping_rate():
            self._callbacks.end_training()
        self._final_values = [
            (variable, new) for variable, old in before if not _is_same(old, new := read_value(variable))
        ]

    def forget_stop(self) -> None:
        """Training went back to a step before the one after which it stopped."""
        self._replica.model.stop_training = False

    def make_up_step(self, ended: EndedStep) -> None:
        """Call the callbacks for the newest step of the others, if it is the only one that this rank lacks.

        It has lost the end of the reduction. What the callbacks change is replaced: the state of the others follows.
        """
        if ended.step < 0 or ended.step != self._step:
            return
        if not ended.is_applied:
            self.skip_step(ended.step, ended.epoch)
            return
        self.begin_step(ended.step, ended.epoch)
        self.end_step(ended.step, ended.epoch, ended.loss, None)

    def adopt_state(self, epoch: CallbackEpoch, step: int) -> None:
        """This rank gets the state of others now.

        Training and the present epoch begin before, so what ``on_train_begin`` and ``on_epoch_begin`` change is
        replaced: the others have called them at the beginning. The loss of the epoch is that of all its steps, so what
        callbacks decide by it at the end is the same on all ranks. An epoch of which this rank lacks steps has no end
        here, because its loss is not known.

        The rate that the callbacks have set belongs to this rank's own steps. Otherwise the first rank would repeat it,
        and so undo what the others have decided since. That of the others is the one for the next step.

        If training has begun again from a checkpoint while this rank was outside, it begins again here, too.

        Args:
            epoch: of the others; not begun: they have gone back to a checkpoint and made no step since.
            step: the number of steps in that state.
        """
        if epoch.begun:
            if epoch.began_in != self._began_in:
                self._forget_training()
            self._rate = epoch.learning_rate
            if epoch.begun != self.callback_epoch.begun:
                if self._step != step:
                    self._callbacks.drop_epoch()
                with self._keeping_rate():
                    self._callbacks.begin_epoch(epoch.begun - 1)
                self._epoch, self._has_begun = epoch.begun - 1, True
            self._callbacks.adopt_epoch_losses(epoch.loss_sum, epoch.steps)
        else:
            self.begin_again(step, epoch.began_in, epoch.first_epoch)
        if epoch.begun or self._begun_step >= 0:
            self._rate = epoch.learning_rate
        self._began_in, self._first_epoch = epoch.began_in, epoch.first_epoch
        # The callbacks of the next step have not changed the variables of this state.
        self._begun_step, self._values_before = -1, {}
        if self._step != step:
            self._ended_step, self._step = NO_ENDED_STEP, step

    def begin_again(self, step: int, began_in: tuple[int, int], epoch: int) -> None:
        """Training begins, or goes on from a checkpoint: all ranks call ``on_train_begin`` with the variables of it.

        A rank that has trained before does so again, as new processes do. Otherwise what it changes would be on some
        ranks only.

        Args:
            step: the number of steps in the checkpoint.
            began_in: the round: its incarnation and number.
            epoch: that of the checkpoint. It begins on all ranks, also on one whose first records are of the next one.
        """
        self._forget_training()
        self._began_in, self._first_epoch = began_in, epoch
        self._ended_step, self._step = NO_ENDED_STEP, step

    def _forget_training(self) -> None:
        self._final_values = None
        if self._has_begun:
            self._callbacks.begin_again()
            self._begun_step, self._rate, self._values_before = -1, None, {}
            self._epoch, self._has_begun = 0, False

    def forget_old_values(self) -> None:
        """This rank has begun the next step, and gets the state of others only now: they have begun it, too."""
        self._values_before, self._lacks_values = {}, True

    @property
    def lacks_old_values(self) -> bool:
        """Whether the state has what is called before the next step, and this rank does not know the old values."""
        return self._lacks_values and self._has_begun_next_step

    @contextmanager
    def showing_checkpoint(self) -> Iterator[None]:
        """The variables are those of a checkpoint.

        They have the rate that the callbacks have set for the next step: processes that go on from it do not call the
        callbacks for the step before again. They have no change of what is called before the next step, because these
        processes call it.
        """
        changed = [(variable, old, read_value(variable)) for variable, old in self._values_before.values()]
        rate = None if self._has_schedule else self._next_rate
        actual = self._read_rate() if rate is not None else None
        for variable, old, _ in changed:
            variable.value.assign(old, read_value=False)
        if rate is not None:
            self._optimizer.learning_rate = rate
        try:
            yield
        finally:
            for variable, _, new in changed:
                variable.value.assign(new, read_value=False)
            if actual is not None:
                self._optimizer.learning_rate = actual

    @contextmanager
    def _keeping_values(self) -> Iterator[None]:
        """Keep the values of the variables that callbacks change now.

        TensorFlow gives a variable new memory if somebody has read the old one and still holds it. So nothing is copied
        except what changes.
        """
        values = self._replica.read_values()
        yield
        for variable, old in values:
            if not _is_same(old, read_value(variable)):
                self._values_before.setdefault(id(variable), (variable, old))

    @contextmanager
    def _keeping_rate(self) -> Iterator[None]:
        """Callbacks see and set the rate of the next step; the variable, a part of the state, stays as it is."""
        if self._has_schedule:
            # Keras refuses to assign a rate, and to read one of several optimizers.
            yield
            return
        actual = self._read_rate()
        if self._rate is not None and self._rate != actual:
            self._optimizer.learning_rate = self._rate
        shown = self._read_rate()
        yield
        rate = self._read_rate()
        if rate != actual:
            self._optimizer.learning_rate = actual
        if rate == shown:
            return
        if not math.isfinite(rate):
            raise BadInputError(f"a callback sets the learning rate {rate}", hint="it must assign a finite number")
        if self._rate_owner:
            raise BadInputError(
                f"your callback sets the learning rate to {rate:g}, and {self._rate_owner} sets it as well",
                hint="remove one of them, or use strategy Local",
            )
        self._rate = rate

    def _read_rate(self) -> float:
        return float(self._optimizer.learning_rate)


class NoRankCallbacks:
    """The interface of :class:`RankCallbacks` for models without callbacks; every method does nothing."""

    learning_rate: float | None = None
    has_stopped = False
    begun_step: tuple[int, int] | None = None
    callback_epoch = NOT_BEGUN
    ended_step = NO_ENDED_STEP

    def start_round(self, rank: int) -> None:
        """Nothing depends on the rank."""

    def try_first_step(self) -> None:
        """Nothing is called."""

    def begin_step(self, step: int, epoch: int) -> None:
        """Nothing is called."""

    def end_step(self, step: int, epoch: int, loss: float, learning_rate: float | None) -> None:
        """Nothing is called."""

    def skip_step(self, step: int, epoch: int) -> None:
        """Nothing is called."""

    def begin_test(self) -> None:
        """Nothing is called."""

    def end_test(self) -> None:
        """Nothing is called."""

    def end_training(self) -> None:
        """Nothing is called."""

    def forget_stop(self) -> None:
        """Nothing has stopped training."""

    def make_up_step(self, ended: EndedStep) -> None:
        """Nothing is called."""

    def adopt_state(self, epoch: CallbackEpoch, step: int) -> None:
        """Nothing is called."""

    def begin_again(self, step: int, began_in: tuple[int, int], epoch: int) -> None:
        """Nothing is called."""

    lacks_old_values = False

    def forget_old_values(self) -> None:
        """No callback changes anything."""

    def showing_checkpoint(self) -> AbstractContextManager[None]:
        """No callback changes anything."""
        return nullcontext()


MakeParams = Callable[[], CallbackParams]


def _defines_any(callbacks: Sequence[Any], methods: Sequence[str]) -> bool:
    return any(is_user_defined(callback, method) for callback in callbacks for method in methods)


def _is_same(old: Any, new: Any) -> bool:
    """Whether two tensors have equal values."""
    first, second = host_array(old), host_array(new)
    has_same_memory = first.__array_interface__["data"] == second.__array_interface__["data"]
    return has_same_memory or np.array_equal(first, second)


def _has_schedule(optimizer: Any) -> bool:
    updating = updating_optimizers(optimizer)
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return len(updating) > 1 or isinstance(updating[0]._learning_rate, schedule)
