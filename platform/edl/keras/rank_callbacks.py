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
  A worker that gets the state of others begins training and the epoch before, so what it changes is replaced.
  If a step is abandoned, a rank may have called its callbacks before it, and another one not yet: all do so when the
  next round begins.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from edl.api.errors import BadInputError
from edl.core.rank_state import NOT_BEGUN, CallbackEpoch
from edl.keras.model_loss import updating_optimizers
from edl.keras.replica_state import ReplicaState
from edl.keras.user_callbacks import CallbackParams, KerasCallbacks

_LOG = logging.getLogger(__name__)


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
        self._is_first = False
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
        return CallbackEpoch(self._epoch + 1, *self._callbacks.epoch_losses) if self._has_begun else NOT_BEGUN

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
        self._begun_step, self._epoch, self._has_begun = step, max(self._epoch, epoch), True
        with self._keeping_rate():
            self._callbacks.begin_epoch(self._epoch)
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
        if self._rate is not None and learning_rate is not None:
            self._rate = learning_rate
        with self._keeping_rate():
            self._callbacks.end_step(step, loss)

    def begin_test(self) -> None:
        """Call the callbacks before an evaluation task."""
        with self._keeping_rate():
            self._callbacks.begin_test()

    def end_test(self) -> None:
        """Call the callbacks after an evaluation task."""
        with self._keeping_rate():
            self._callbacks.end_test()

    def end_training(self) -> None:
        """Call the callbacks at the end of training. The model was evaluated and exported before."""
        before = self._replica.digest()
        with self._keeping_rate():
            self._callbacks.end_training()
        if self._replica.digest() != before:
            _LOG.warning(
                "a callback changed variables in on_train_end() or in the last on_epoch_end(): neither the final "
                "evaluation nor the export has that change"
            )

    def forget_stop(self) -> None:
        """Training went back to a step before the one after which it stopped."""
        self._replica.model.stop_training = False

    def adopt_state(self, epoch: CallbackEpoch) -> None:
        """This rank gets the state of others now.

        Training and the present epoch begin before, so what ``on_train_begin`` and ``on_epoch_begin`` change is
        replaced: the others have called them at the beginning. The loss of the epoch is that of all its steps, so what
        callbacks decide by it at the end is the same on all ranks.

        The rate that the callbacks have set belongs to this rank's own steps. Otherwise the first rank would repeat it,
        and so undo what the others have decided since.

        Args:
            epoch: of the others; not begun: training begins with this state, or goes on from a checkpoint.
        """
        if epoch.begun:
            if epoch.begun != self.callback_epoch.begun:
                with self._keeping_rate():
                    self._callbacks.begin_epoch(epoch.begun - 1)
                self._epoch, self._has_begun = epoch.begun - 1, True
            self._callbacks.adopt_epoch_losses(epoch.loss_sum, epoch.steps)
        if epoch.begun or self._begun_step >= 0:
            self._rate = None

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

    def start_round(self, rank: int) -> None:
        """Nothing depends on the rank."""

    def try_first_step(self) -> None:
        """Nothing is called."""

    def begin_step(self, step: int, epoch: int) -> None:
        """Nothing is called."""

    def end_step(self, step: int, epoch: int, loss: float, learning_rate: float | None) -> None:
        """Nothing is called."""

    def begin_test(self) -> None:
        """Nothing is called."""

    def end_test(self) -> None:
        """Nothing is called."""

    def end_training(self) -> None:
        """Nothing is called."""

    def forget_stop(self) -> None:
        """Nothing has stopped training."""

    def adopt_state(self, epoch: CallbackEpoch) -> None:
        """Nothing is called."""


MakeParams = Callable[[], CallbackParams]


def _has_schedule(optimizer: Any) -> bool:
    updating = updating_optimizers(optimizer)
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return len(updating) > 1 or isinstance(updating[0]._learning_rate, schedule)
