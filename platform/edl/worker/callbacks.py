"""The user's Keras callbacks, called as a worker sees training.

Each worker runs its own. It sees its own minibatches only: ``logs`` holds the loss of one, at the end of an epoch the
mean of them. An epoch begins and ends for it with the first task that it gets of one epoch and of the next. What a
callback does to ``model.optimizer.learning_rate`` takes effect with this worker's next push.

Where parameter servers hold the weights, the model that callbacks see has the initial ones: what would use them is
refused. ``model.stop_training`` does not end such a job, because the master plans its end; the attempt is logged once.
With strategy Local the model is the trained one, and callbacks may stop it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from edl.worker.refused_callbacks import refuse
from edl.worker.user_code import user_code

_LOG = logging.getLogger(__name__)

_OF_WEIGHTS = (
    "evaluate",
    "export",
    "fit",
    "get_weights",
    "load_weights",
    "predict",
    "save",
    "save_weights",
    "set_weights",
)
"""Methods of a Keras model that use or change its weights."""


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
        model: the Keras model that they see.
        optimizer: becomes ``model.optimizer``.
        zoo: the model zoo; frames of files below it are the user's in tracebacks.
        local: whether this process trains ``model`` by ``optimizer``; else parameter servers hold the weights.
        worker: index of this worker among others, each of which gets files of its own; None: there are no others.

    Raises:
        BadInputError: one of the callbacks could not do its work.
        ModuleError: the user's code raises.
    """

    def __init__(
        self,
        callbacks: Any,
        model: Any,
        optimizer: Any,
        zoo: Path,
        *,
        local: bool = False,
        worker: int | None = None,
    ) -> None:
        import keras

        model.optimizer = optimizer
        self._zoo = zoo
        self._model = model
        self._local = local
        self._epoch: int | None = None
        self._losses, self._steps = 0.0, 0
        self._warned = False
        if not local:
            _refuse_weights(model)
        with self._calling("set_model"):
            found = keras.tree.flatten(list(callbacks))
            refuse(found, local=local)
            if worker is not None:
                _give_files_of_its_own(found, worker)
            self._all = keras.callbacks.CallbackList(found, model=model)
        self._rates = None if local else _ScheduledRates(found, optimizer)

    def begin_step(self, step: int) -> None:
        """A minibatch begins; ``step`` is the global step."""
        if not self._local:  # so that the rate of a schedule, and what TensorBoard counts, are those of this step
            self._model.optimizer.iterations.value.assign(step, read_value=False)
        with self._calling("on_train_batch_begin"):
            self._all.on_train_batch_begin(step)

    def end_step(self, step: int, loss: float) -> None:
        """A minibatch is in, or with overlap on its way."""
        self._losses += loss
        self._steps += 1
        with self._calling("on_train_batch_end"):
            self._all.on_train_batch_end(step, {"loss": loss})

    def begin_epoch(self, epoch: int) -> None:
        """A task of an epoch begins: the first of them begins the epoch, and ends the one before."""
        if epoch == self._epoch:
            return
        if self._epoch is None:
            with self._calling("on_train_begin"):
                self._all.on_train_begin()
        else:
            self._end_epoch(self._epoch)
        self._epoch = epoch
        with self._calling("on_epoch_begin"):
            if self._rates is not None:
                self._rates.assign_before(epoch)
            self._all.on_epoch_begin(epoch)
            if self._rates is not None:
                self._rates.note(epoch)

    def _end_epoch(self, epoch: int) -> None:
        logs = {"loss": self._losses / self._steps} if self._steps else {}
        self._losses, self._steps = 0.0, 0
        with self._calling("on_epoch_end"):
            self._all.on_epoch_end(epoch, logs)

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
        self._end_epoch(self._epoch)
        with self._calling("on_train_end"):
            self._all.on_train_end()

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        with user_code(self._zoo, f"{name}() of a callback"):
            yield
        if not self._local and not self._warned and getattr(self._model, "stop_training", False):
            self._warned = True
            _LOG.warning(
                "a callback set model.stop_training: a worker cannot end the job, so this has no effect; "
                "train.max_steps and train.epochs say when it ends"
            )


class _ScheduledRates:
    """What ``LearningRateScheduler`` makes of the rate, the same in every worker.

    A schedule may go on from the rate of the epoch before, as ``lambda epoch, rate: rate * 0.9`` does. No worker sees
    all epochs: one takes another's place, or the last records of an epoch go elsewhere. So the rate before an epoch is
    what the schedules make of the rate that ``optimizer()`` gave, in all epochs up to that one.
    """

    def __init__(self, callbacks: list[Any], optimizer: Any) -> None:
        import keras

        schedules = [each for each in callbacks if isinstance(each, keras.callbacks.LearningRateScheduler)]
        by_itself = isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule)
        self._schedules = [] if by_itself else schedules  # Keras lets nobody assign a rate then, and says so
        self._optimizer = optimizer
        self._before = [float(optimizer.learning_rate)] if self._schedules else []
        """By epoch, as far as they are known."""

    def assign_before(self, epoch: int) -> None:
        """Give the optimizer the rate with which an epoch begins, before the callbacks hear of it."""
        if not self._schedules:
            return
        while len(self._before) <= epoch:
            self._optimizer.learning_rate = self._before[-1]
            for schedule in self._schedules:
                schedule.on_epoch_begin(len(self._before) - 1)
            self._before.append(float(self._optimizer.learning_rate))
        self._optimizer.learning_rate = self._before[epoch]

    def note(self, epoch: int) -> None:
        """The callbacks have begun an epoch: with what they made of the rate the next one begins."""
        if self._schedules and len(self._before) == epoch + 1:
            self._before.append(float(self._optimizer.learning_rate))


def _give_files_of_its_own(callbacks: list[Any], worker: int) -> None:
    """Several workers that write to one file leave one that nobody can read."""
    import keras

    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            stem, dot, suffix = Path(callback.filename).name.rpartition(".")
            name = f"{stem}-worker-{worker}.{suffix}" if stem else f"{dot}{suffix}-worker-{worker}"
            callback.filename = str(Path(callback.filename).with_name(name))
            _LOG.info("CSVLogger of worker %d writes to %s", worker, callback.filename)
        elif isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = str(Path(callback.log_dir) / f"worker-{worker}")
            _LOG.info("TensorBoard of worker %d writes to %s", worker, callback.log_dir)


def _refuse_weights(model: Any) -> None:
    """Let methods of ``model`` raise that would use the initial weights; those that the user's class defines stay."""
    import keras

    for name in _OF_WEIGHTS:
        if getattr(type(model), name) is getattr(keras.Model, name):
            setattr(model, name, partial(_raise_no_weights, name))


def _raise_no_weights(method: str, *_: Any, **__: Any) -> NoReturn:
    """Not an error of EDL: what the user's code raises is shown with the user's lines."""
    raise RuntimeError(
        f"model.{method}: the model of a callback has the initial weights, the trained ones are on the parameter "
        "servers; checkpoint.every_steps keeps them, the export is a model that has them"
    )


def watcher(
    make: Callable[[], Any] | None,
    model: Any,
    optimizer: Any,
    zoo: Path,
    *,
    local: bool = False,
    worker: int | None = None,
) -> NoCallbacks | KerasCallbacks:
    """The module's callbacks; ``make`` is its ``callbacks`` function, the rest as of :class:`KerasCallbacks`.

    Raises:
        BadInputError: one of the callbacks could not do its work.
        ModuleError: the user's code raises.
    """
    found = make() if make is not None else None
    return KerasCallbacks(found, model, optimizer, zoo, local=local, worker=worker) if found else NoCallbacks()
