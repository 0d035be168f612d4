"""The user's Keras callbacks, called as a worker sees training.

Each worker runs its own. It sees its own minibatches only, so ``logs`` holds the loss of one minibatch; an epoch begins
and ends for it with the first task that it gets of one epoch and of the next. What a callback does to
``model.optimizer.learning_rate`` takes effect with this worker's next push. ``model.stop_training`` does not end a job:
the master plans its end; the attempt is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edl.worker.user_code import user_code

_LOG = logging.getLogger(__name__)


class NoCallbacks:
    """For modules without ``callbacks()``: costs nothing."""

    def begin_step(self, step: int) -> None:
        """A minibatch begins."""

    def end_step(self, step: int, loss: float) -> None:
        """A minibatch is in, or with overlap on its way."""

    def begin_epoch(self, epoch: int) -> None:
        """A task of an epoch begins."""

    def begin_test(self) -> None:
        """An evaluation task begins."""

    def end_test(self) -> None:
        """An evaluation task ends."""

    def end(self) -> None:
        """No more training."""


class KerasCallbacks:
    """Calls a list of Keras callbacks.

    Args:
        callbacks: what the module's ``callbacks()`` returned.
        model: the Keras model that they see; it holds initial weights, the trained ones are on the PS.
        optimizer: becomes ``model.optimizer``.
        zoo: the model zoo; frames of files below it are the user's in tracebacks.
    """

    def __init__(self, callbacks: Any, model: Any, optimizer: Any, zoo: Path) -> None:
        import keras

        model.optimizer = optimizer
        self._zoo = zoo
        self._model = model
        self._epoch: int | None = None
        self._warned = False
        with self._calling("set_model"):
            self._all = keras.callbacks.CallbackList(list(callbacks), model=model)

    def begin_step(self, step: int) -> None:
        """A minibatch begins; ``step`` is the global step."""
        with self._calling("on_train_batch_begin"):
            self._all.on_train_batch_begin(step)

    def end_step(self, step: int, loss: float) -> None:
        """A minibatch is in, or with overlap on its way."""
        with self._calling("on_train_batch_end"):
            self._all.on_train_batch_end(step, {"loss": loss})
        if getattr(self._model, "stop_training", False) and not self._warned:
            self._warned = True
            _LOG.warning("a callback set model.stop_training: a worker cannot end the job, so this has no effect")

    def begin_epoch(self, epoch: int) -> None:
        """A task of an epoch begins: the first of them begins the epoch, and ends the one before."""
        if epoch == self._epoch:
            return
        if self._epoch is None:
            with self._calling("on_train_begin"):
                self._all.on_train_begin()
        else:
            with self._calling("on_epoch_end"):
                self._all.on_epoch_end(self._epoch)
        self._epoch = epoch
        with self._calling("on_epoch_begin"):
            self._all.on_epoch_begin(epoch)

    def begin_test(self) -> None:
        """An evaluation task begins."""
        with self._calling("on_test_begin"):
            self._all.on_test_begin()

    def end_test(self) -> None:
        """An evaluation task ends."""
        with self._calling("on_test_end"):
            self._all.on_test_end()

    def end(self) -> None:
        """No more training."""
        if self._epoch is None:
            return
        with self._calling("on_train_end"):
            self._all.on_epoch_end(self._epoch)
            self._all.on_train_end()

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        with user_code(self._zoo, f"{name}() of a callback"):
            yield


def watcher(make: Callable[[], Any] | None, model: Any, optimizer: Any, zoo: Path) -> NoCallbacks | KerasCallbacks:
    """The module's callbacks; ``make`` is its ``callbacks`` function.

    Raises:
        ModuleError: the user's code raises.
    """
    found = make() if make is not None else None
    return KerasCallbacks(found, model, optimizer, zoo) if found else NoCallbacks()
