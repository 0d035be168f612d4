"""Runs the user's Keras callbacks in a worker.

Each worker has its own callbacks. They see only the worker's own minibatches: ``logs`` contains the loss of one
minibatch, and at the end of an epoch the mean loss. An epoch begins when the worker gets its first task of the epoch,
and ends with its first task of the next one. If a callback sets ``model.optimizer.learning_rate``, the new rate takes
effect with this worker's next push.

In a job with parameter servers, the worker's model keeps the initial weights, so callbacks that use the weights are
refused. If a callback sets ``model.stop_training``, the master hears of it: it hands out no more records, and the job
ends when those that workers hold are done. Under strategy Local the worker's model is the trained one, and callbacks
may stop the training.

Monitor callbacks (``monitors``) decide by evaluations. Under strategy Local they are called here after each evaluation,
as after an epoch of ``keras.Model.fit``. In a job with parameter servers, the master decides instead of them.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras

from edl.api.job_spec import TrainSpec
from edl.api.strategy import Strategy
from edl.core.callback_decisions import CallbackSpec
from edl.data.reader import Reader
from edl.keras import monitor_callbacks
from edl.keras.callback_changes import CopiedWeights, LayerAttributes, StepSettings
from edl.keras.model_contract import block_compiled_methods, block_weight_methods
from edl.keras.monitor_callbacks import refuse_unsupported_callbacks
from edl.keras.user_code import source_file, user_code

# --------------------------------------------------------------------------------------------------
# Differences to ``keras.Model.fit``: methods that are never called, and the content of ``params``.


CallbackParams = Mapping[str, Any]

_UNCALLED_METHODS = tuple(
    f"on_{kind}_{end}" for kind in ("test_batch", "predict_batch", "predict") for end in ("begin", "end")
)
"""Methods never called. ``on_test_begin`` and ``on_test_end`` are called once per evaluation task."""
_UNCALLED_MONITOR_METHODS = tuple(
    f"on_{kind}_{end}" for kind in ("batch", "train_batch", "test") for end in ("begin", "end")
)
"""Further methods that are never called on monitor callbacks."""


def build_callback_params(train: TrainSpec, strategy: Strategy, reader: Reader) -> CallbackParams:
    """The ``params`` that ``keras.Model.fit`` would set.

    Args:
        train: the job's section ``train``.
        strategy: the job's section ``strategy``.
        reader: the reader of the training records.

    Returns:
        ``steps`` is the number of steps of an epoch, for all workers together; None under AllReduce without a global
        batch, where it follows from the number of workers. ``verbose`` is the default of ``fit``.
    """
    params = {"verbose": 1, "epochs": train.epochs}
    if strategy.name == "AllReduce":
        batch, records = strategy.global_batch, sum(source.records for source in reader.sources())
        return {**params, "steps": None if batch is None else -(-records // batch)}
    counts = [source.records for source in reader.sources()]
    if train.shuffle.window != 0 and getattr(reader, "blocks", None) is not None:
        # A shuffled order is one sequence of records. Without it, each source ends with a minibatch
        # of its own, which may be smaller.
        counts = [sum(counts)]
    steps = sum(-(-count // train.minibatch_size) for count in counts)
    return {**params, "steps": steps}


def set_callback_params(callbacks: Iterable[Any], params: CallbackParams) -> None:
    """Give callbacks the ``params`` that ``keras.Model.fit`` gives them; without any, they keep their own."""
    if not params:
        return
    for callback in callbacks:
        # A progress bar shows global steps here, which do not restart with an epoch: it gets no
        # target.
        bar = isinstance(callback, keras.callbacks.ProgbarLogger)
        callback.set_params({**params, "steps": None} if bar else dict(params))


def warn_of_uncalled_methods(callbacks: Iterable[Any], monitors: Iterable[Any]) -> None:
    """Warn about methods of the user's own callbacks that Keras calls but a job does not.

    Args:
        callbacks: the callbacks that are called for steps, epochs and evaluation tasks.
        monitors: the callbacks that are called after each evaluation.
    """
    for callback, uncalled in (
        *((each, _UNCALLED_METHODS) for each in callbacks),
        *((each, (*_UNCALLED_METHODS, *_UNCALLED_MONITOR_METHODS)) for each in monitors),
    ):
        user_methods = [f"{method}()" for method in uncalled if is_user_defined(callback, method)]
        if not user_methods:
            continue
        kind = type(callback)
        where = "" if is_keras_class(kind) else f" ({source_file(kind)})"
        called = (
            f"{', '.join(user_methods[:-1])} and {user_methods[-1]} are"
            if len(user_methods) > 1
            else f"{user_methods[0]} is"
        )
        _LOG.warning(
            "the callback %s: %s never called%s; docs/model-contract.md, Callbacks, lists the called methods",
            kind.__name__,
            called,
            where,
        )


def is_user_defined(callback: Any, method: str) -> bool:
    """Whether the user's class defines the method, rather than Keras."""
    if method in vars(callback):
        return True
    definer = next((base for base in type(callback).__mro__ if method in vars(base)), object)
    return definer is not object and not is_keras_class(definer)


def is_keras_class(kind: type) -> bool:
    """Whether Keras defines the class, rather than the user."""
    module = inspect.getmodule(kind)
    return module is not None and module.__name__.partition(".")[0] in ("keras", "tf_keras")


_LOG = logging.getLogger(__name__)

_MONITOR_STATE_FIELDS = ("best", "wait", "stopped_epoch", "best_epoch", "cooldown_counter")
"""Attributes of Keras' callbacks that a resumed run must restore, besides weights."""

_BEFORE_FIRST_STEP = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin")

MonitorCheck = Callable[[list[Any]], None]
"""Raises for monitor callbacks that could never take effect."""


class NoCallbacks:
    """The interface of :class:`KerasCallbacks` for modules without ``callbacks()``; every method does nothing."""

    master_callbacks: tuple[CallbackSpec, ...] = ()
    """The callbacks that the master evaluates."""
    stop_reason = ""
    """The reason why a callback ended training."""

    def begin_step(self, step: int) -> None:
        """Call the callbacks before a minibatch."""

    def end_step(self, step: int, loss: float) -> None:
        """Call the callbacks after a minibatch was applied or, with overlap, sent."""

    def begin_training(self) -> None:
        """Call the callbacks at the beginning of training, once."""

    def begin_first_step(self) -> None:
        """Try the callbacks before the first update, except those that write log files."""

    def begin_epoch(self, epoch: int) -> None:
        """Call the callbacks if this task is the first one of an epoch."""

    def end_epoch(self) -> None:
        """End the present epoch, if one has begun."""

    def begin_test(self) -> None:
        """Call the callbacks before an evaluation task."""

    def end_test(self) -> None:
        """Call the callbacks after an evaluation task."""

    def end_training(self) -> None:
        """Call the callbacks at the end of training."""

    def run_monitors(self, step: int, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        """Run the monitor callbacks with an evaluation's values; returns their decisions as messages."""
        return []

    def end_monitors(self) -> Mapping[str, float | None] | None:
        """End the monitor callbacks; returns the metrics of restored weights, unless the last evaluation has them."""
        return None

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs, as JSON."""
        return {}

    def weight_arrays(self) -> dict[str, Any]:
        """The weights that a resumed run needs."""
        return {}

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Restore ``state`` and ``weight_arrays``."""


class KerasCallbacks:
    """Runs a list of Keras callbacks.

    Args:
        callbacks: the value that the module's ``callbacks()`` returned.
        model: the Keras model that the callbacks see.
        optimizer: becomes ``model.optimizer``.
        zoo: the model zoo; files below it are the user's code in tracebacks.
        trains_locally: whether this process trains ``model``; otherwise parameter servers hold the weights.
        uses_optimizer: whether steps use ``optimizer``: a ``train_step`` of the user's may have others.
        worker_index: this worker's index, which becomes part of output file names; None if it is the only worker.
        check_monitors: called with the monitor callbacks.
        params: the ``params`` of the callbacks.
        on_stop: called each time a callback has set ``model.stop_training``, unless this process trains ``model``.
        steps_are_traced: whether the first step is traced before ``on_train_begin``, and not after it as in ``fit``.

    Attributes:
        master_callbacks: the callbacks that the master evaluates; empty if this process does.

    Raises:
        BadInputError: one of the callbacks cannot work in this job.
        UserCodeError: the user's code raised an exception.
    """

    def __init__(
        self,
        callbacks: Any,
        model: Any,
        optimizer: Any,
        zoo: Path,
        *,
        trains_locally: bool = False,
        uses_optimizer: bool = True,
        worker_index: int | None = None,
        check_monitors: MonitorCheck,
        params: CallbackParams = MappingProxyType({}),
        on_stop: Callable[[], None] = lambda: None,
        steps_are_traced: bool = False,
    ) -> None:
        self._on_stop = on_stop
        model.optimizer = optimizer
        # ``fit`` sets it as well: callbacks may read it before one sets it.
        if not hasattr(model, "stop_training"):
            model.stop_training = False
        self._zoo = zoo
        self._model = model
        self._trains_locally = trains_locally
        self._training_begun = False
        self._epoch: int | None = None
        self._begun_epoch: int | None = None
        """The newest one that has begun; it may be over."""
        self._epoch_loss_sum, self._epoch_steps = 0.0, 0
        self._has_logged_stop = False
        if trains_locally:
            block_compiled_methods(model)
        else:
            block_weight_methods(model)
        self._settings = StepSettings(model)
        self._traced_layers: LayerAttributes | None = None
        self._all_callbacks: list[Any] = []
        self._writers: dict[str, str] = {}
        """By method: the user's own ones that are called, as messages name them."""
        with self._calling_user_code("set_model"):
            other_callbacks = self._all_callbacks = keras.tree.flatten(list(callbacks))
            deciding_callbacks = [each for each in other_callbacks if monitor_callbacks.is_monitor(each)]
            other_callbacks = [each for each in other_callbacks if not monitor_callbacks.is_monitor(each)]
            refuse_unsupported_callbacks(other_callbacks, trains_locally=trains_locally)
            if not uses_optimizer:
                monitor_callbacks.refuse_unused_rates((*other_callbacks, *deciding_callbacks))
            check_monitors(deciding_callbacks)
            monitor_callbacks.refuse_scheduled_rate(deciding_callbacks, optimizer)
            self.master_callbacks = (
                () if trains_locally else monitor_callbacks.declare_callbacks(deciding_callbacks, optimizer)
            )
            if self.master_callbacks:
                monitor_callbacks.refuse_conflicting_rates(other_callbacks, self.master_callbacks)
            if worker_index is not None:
                _separate_output_files(other_callbacks, worker_index)
            warn_of_uncalled_methods(other_callbacks, deciding_callbacks)
            self._callback_list = _CallbackList(other_callbacks, model=model)
        with self._calling_user_code("set_params"):
            set_callback_params(other_callbacks, params)
        if steps_are_traced:
            self._traced_layers = LayerAttributes(model)
        self._scheduled_rates = None if trains_locally else _EpochRates(other_callbacks, optimizer)
        self._monitors = deciding_callbacks if trains_locally else []
        self._loss_sum_since_evaluation, self._steps_since_evaluation = 0.0, 0
        self._evaluation_count, self._last_evaluated_step, self._resumed_epoch = 0, -1, -1
        self._metrics_by_evaluation: dict[int, Mapping[str, float | None]] = {}
        with self._calling_user_code("on_train_begin"):
            for callback in self._monitors:
                callback.set_model(model)
                set_callback_params([callback], params)
                callback.on_train_begin()

    @property
    def epoch_losses(self) -> tuple[float, int]:
        """The sum of the losses of the present epoch's steps, and their number."""
        return self._epoch_loss_sum, self._epoch_steps

    def adopt_epoch_losses(self, loss_sum: float, steps: int) -> None:
        """Replace them by those of another rank, which has seen the whole epoch."""
        self._epoch_loss_sum, self._epoch_steps = loss_sum, steps

    def drop_epoch(self) -> None:
        """Leave the present epoch without its end: this worker lacks some of its steps, and so its loss."""
        self._epoch = None
        self._epoch_loss_sum, self._epoch_steps = 0.0, 0

    def begin_again(self) -> None:
        """Training goes on from a checkpoint: the next step calls what is called at the beginning."""
        self.drop_epoch()
        for callback in self._callback_list.callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                # It would truncate its file, which may be the only log of the epochs before the checkpoint.
                callback.append = True
        self._training_begun = False

    def begin_step(self, step: int) -> None:
        """Call the callbacks before a minibatch; ``step`` is the global step."""
        # Callbacks read this step's rate from a schedule, and TensorBoard its step, from
        # iterations.
        if not self._trains_locally:
            self._model.optimizer.iterations.value.assign(step, read_value=False)
        with self._calling_user_code("on_train_batch_begin"):
            self._callback_list.on_train_batch_begin(step)

    def end_step(self, step: int, loss: float) -> None:
        """Call the callbacks after a minibatch was applied or, with overlap, sent."""
        self._traced_layers = None
        self._epoch_loss_sum += loss
        self._epoch_steps += 1
        self._loss_sum_since_evaluation += loss
        self._steps_since_evaluation += 1
        with self._calling_user_code("on_train_batch_end"):
            self._callback_list.on_train_batch_end(step, {"loss": loss})

    def begin_training(self) -> None:
        """Call the callbacks at the beginning of training, once; :meth:`begin_epoch` calls this too."""
        if self._training_begun:
            return
        self._training_begun = True
        with self._calling_user_code("on_train_begin"):
            self._callback_list.on_train_begin()

    def begin_first_step(self) -> None:
        """Try the callbacks before the first update, except those that write log files."""
        # These truncate the files of an earlier run when training begins.
        log_writers = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
        tried = [each for each in self._callback_list.callbacks if not isinstance(each, log_writers)]
        self._callback_list.callbacks[:] = tried
        self.begin_epoch(0)
        self.begin_step(0)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch and end the previous one, if this task is the first one of its epoch."""
        if epoch == self._epoch:
            return
        self.end_other_epoch(epoch)
        self.begin_training()
        self._epoch = self._begun_epoch = epoch
        with self._calling_user_code("on_epoch_begin"):
            if self._scheduled_rates is not None:
                self._scheduled_rates.assign_epoch_rate(epoch)
            rate = self._current_rate() if epoch == self._resumed_epoch else None
            self._callback_list.on_epoch_begin(epoch)
            # The run was resumed in the middle of this epoch. Callbacks set a rate at its
            # beginning, which ReduceLROnPlateau may have lowered since: keep the restored rate.
            if rate is not None:
                self._model.optimizer.learning_rate = rate
            if self._scheduled_rates is not None:
                self._scheduled_rates.record_next_rate(epoch)

    def end_other_epoch(self, epoch: int) -> None:
        """End the present epoch, if it is another one than this."""
        if self._epoch != epoch:
            self.end_epoch()

    def end_epoch(self) -> None:
        """End the present epoch, if one has begun."""
        if self._epoch is not None:
            self._end_epoch(self._epoch)
            self._epoch = None

    def _end_epoch(self, epoch: int) -> None:
        logs = {"loss": self._epoch_loss_sum / self._epoch_steps} if self._epoch_steps else {}
        self._epoch_loss_sum, self._epoch_steps = 0.0, 0
        with self._calling_user_code("on_epoch_end"):
            self._callback_list.on_epoch_end(epoch, logs)

    def begin_test(self) -> None:
        """Call the callbacks before an evaluation task."""
        with self._calling_user_code("on_test_begin"):
            self._callback_list.on_test_begin()

    def end_test(self) -> None:
        """Call the callbacks after an evaluation task."""
        with self._calling_user_code("on_test_end"):
            self._callback_list.on_test_end()

    def end_training(self) -> None:
        """Call the callbacks at the end of training."""
        if not self._training_begun:
            return
        self.end_epoch()
        with self._calling_user_code("on_train_end"):
            self._callback_list.on_train_end()

    # ------------------------------------------------------------ monitor callbacks

    def run_monitors(self, step: int, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        """Run the monitor callbacks with an evaluation's values; returns their decisions as messages."""
        # A resumed run may evaluate a step again that the callbacks saw before.
        if not self._monitors or step <= self._last_evaluated_step:
            return []
        for callback in self._monitors:
            monitor_callbacks.refuse_missing_monitor(callback, metrics)
        logs = {f"val_{name}": value for name, value in metrics.items()}
        if self._steps_since_evaluation:
            logs["loss"] = self._loss_sum_since_evaluation / self._steps_since_evaluation
        self._loss_sum_since_evaluation, self._steps_since_evaluation = 0.0, 0
        self._metrics_by_evaluation[self._evaluation_count] = {
            n: v if math.isfinite(v) else None for n, v in metrics.items()
        }
        decisions = []
        for callback in self._monitors:
            rate, stopped = self._current_rate(), self.stop_reason
            with self._calling_user_code(f"on_epoch_end of {type(callback).__name__}"):
                callback.on_epoch_begin(self._evaluation_count)
                callback.on_epoch_end(self._evaluation_count, dict(logs))
            if self._current_rate() != rate:
                decisions.append((type(callback).__name__, f"the learning rate is now {self._current_rate():.6g}"))
            if self.stop_reason != stopped:
                decisions.append((type(callback).__name__, self.stop_reason))
        self._evaluation_count, self._last_evaluated_step = self._evaluation_count + 1, step
        return decisions

    def _current_rate(self) -> float | None:
        """The optimizer's rate; None if a schedule determines it, or there are several optimizers."""
        optimizer = self._model.optimizer
        if isinstance(optimizer, keras.optimizers.MultiOptimizer):
            return None
        rate_or_schedule = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
        has_schedule = isinstance(rate_or_schedule, keras.optimizers.schedules.LearningRateSchedule)
        return None if has_schedule else float(self._model.optimizer.learning_rate)

    @property
    def stop_reason(self) -> str:
        """The reason why a monitor callback ended training; empty if none did."""
        for callback in self._monitors:
            if getattr(callback, "stopped_epoch", 0):
                best = "none" if callback.best is None else f"{float(callback.best):.6g}"
                named = f"{type(callback).__name__}: {callback.monitor}"
                return f"{named} has not improved for {callback.wait} evaluations; the best value is {best}"
        return ""

    def end_monitors(self) -> Mapping[str, float | None] | None:
        """End the monitor callbacks; returns the metrics of restored weights, unless the last evaluation has them."""
        best_metrics = None
        for callback in self._monitors:
            with self._calling_user_code(f"on_train_end of {type(callback).__name__}"):
                callback.on_train_end()
            if (
                getattr(callback, "best_weights", None) is not None
                and callback.best_epoch != self._evaluation_count - 1
            ):
                best_metrics = self._metrics_by_evaluation.get(callback.best_epoch)
        return best_metrics

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs, as JSON."""
        best = {getattr(callback, "best_epoch", -1) for callback in self._monitors}
        return {
            "epoch": self._begun_epoch,
            "evaluations": self._evaluation_count,
            "evaluated_at": self._last_evaluated_step,
            "values": [
                [number, dict(self._metrics_by_evaluation[number])]
                for number in sorted(best & self._metrics_by_evaluation.keys())
            ],
            "monitors": [
                {
                    name: _json_number(getattr(callback, name))
                    for name in _MONITOR_STATE_FIELDS
                    if hasattr(callback, name)
                }
                for callback in self._monitors
            ],
        }

    def weight_arrays(self) -> dict[str, Any]:
        """The weights for ``restore_best_weights``, as ``best/<index of the callback>/<n>``."""
        return {
            f"best/{place}/{n}": weight
            for place, callback in enumerate(self._monitors)
            for n, weight in enumerate(getattr(callback, "best_weights", None) or ())
        }

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Restore ``state`` and ``weight_arrays``; a callback of another kind than before starts without state."""
        if not state:
            return
        self._resumed_epoch = -1 if state["epoch"] is None else state["epoch"]
        self._evaluation_count, self._last_evaluated_step = state["evaluations"], state["evaluated_at"]
        self._metrics_by_evaluation = dict(state["values"])
        for place, (callback, saved_fields) in enumerate(zip(self._monitors, state["monitors"], strict=False)):
            if any(not hasattr(callback, name) for name in saved_fields):
                continue
            for name, value in saved_fields.items():
                setattr(callback, name, value)
            weight_keys = sorted(
                (key for key in arrays if key.startswith(f"best/{place}/")), key=lambda k: int(k.split("/")[2])
            )
            if weight_keys and hasattr(callback, "best_weights"):
                callback.best_weights = [arrays[key] for key in weight_keys]
        if self.stop_reason:
            self._model.stop_training = True

    @contextmanager
    def _calling_user_code(self, name: str) -> Iterator[None]:
        method = name.partition(" ")[0]
        copied_weights = self._find_copied_weights(method)
        with user_code(self._zoo, f"{name}() of a callback"):
            yield
        # Checked after every call, because any method may set it.
        self._refuse_changes(method)
        if copied_weights is not None and (place := self._name_writers(method)):
            copied_weights.refuse_changes(place)
        if not self._trains_locally and getattr(self._model, "stop_training", False):
            # Steps may be made again after a rollback: then the callbacks decide again.
            self._model.stop_training = False
            if not self._has_logged_stop:
                self._has_logged_stop = True
                _LOG.info(
                    "a callback set model.stop_training: the job ends when the records that workers hold are done"
                )
            self._on_stop()

    def _refuse_changes(self, method: str) -> None:
        """Refuse what a callback has changed in this method; Keras' own callbacks change nothing of it."""
        if place := self._name_writers(method):
            self._settings.refuse_changes(place)
            # A worker that joins later calls on_epoch_begin of a later epoch, before which ``fit`` has traced its step.
            if self._traced_layers is not None and not self._begun_epoch:
                self._traced_layers.refuse_changes(place)

    def _name_writers(self, method: str) -> str:
        """Which callbacks of the user's own have the method, as messages name them."""
        if method not in self._writers:
            own = (type(each).__name__ for each in self._all_callbacks if is_user_defined(each, method))
            self._writers[method] = " or ".join(f"{name}.{method}()" for name in own)
        return self._writers[method]

    def _find_copied_weights(self, method: str) -> CopiedWeights | None:
        """The copies of weights, which no method before the first step may part from them; None: it is a later one."""
        if not self._trains_locally or self._epoch_steps or self._begun_epoch:
            return None
        # The callbacks are known after set_model().
        is_early = method == "set_model" or (method in _BEFORE_FIRST_STEP and bool(self._name_writers(method)))
        return CopiedWeights(self._model) if is_early else None


class _CallbackList(keras.callbacks.CallbackList):  # type: ignore[misc]  # Keras has no types
    """Says once what a callback of the user's own reads in ``logs`` that ``fit`` provides and a job does not."""

    def __init__(self, callbacks: list[Any], model: Any) -> None:
        super().__init__(callbacks, model=model)
        self._named: set[tuple[type, Any]] = set()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, self._watch(callback, "on_epoch_end", logs))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Not in Keras' thread for callbacks, which has no part in the step's order.
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=self._watch(callback, "on_train_batch_end", logs))

    def _watch(self, callback: Any, method: str, logs: Any) -> dict[str, Any]:
        kind = type(callback)
        if is_keras_class(kind) and not isinstance(callback, keras.callbacks.LambdaCallback):
            return dict(logs or {})

        def warn(key: Any) -> None:
            if (kind, key) not in self._named:
                self._named.add((kind, key))
                _LOG.warning(
                    "the callback %s: %s() asks for logs[%r], which fit may have and a job does not: here logs has the"
                    " loss only. Decide by evaluations with EarlyStopping, ReduceLROnPlateau or ModelCheckpoint;"
                    " docs/model-contract.md, Callbacks",
                    kind.__name__,
                    method,
                    key,
                )

        return _WatchedLogs(logs or {}, warn)


class _WatchedLogs(dict[str, Any]):
    """Values of a callback's ``logs``; ``on_missing`` is called with each key that is asked for and missing."""

    def __init__(self, values: Mapping[str, Any], on_missing: Callable[[Any], None]) -> None:
        super().__init__(values)
        self._on_missing = on_missing

    def __missing__(self, key: Any) -> Any:
        self._on_missing(key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        has_key = super().__contains__(key)
        if not has_key:
            self._on_missing(key)
        return has_key

    def get(self, key: Any, default: Any = None) -> Any:
        if not super().__contains__(key):
            self._on_missing(key)
        return super().get(key, default)


class _EpochRates:
    """Computes the rate that ``LearningRateScheduler`` sets for each epoch, equally in all workers.

    A schedule may depend on the previous epoch's rate, as ``lambda epoch, rate: rate * 0.9`` does. A worker may miss
    epochs: it may start late, or get no records of an epoch. So this class starts from the optimizer's initial rate and
    calls the schedules for every epoch, also for the missed ones.
    """

    def __init__(self, callbacks: list[Any], optimizer: Any) -> None:
        schedules = [each for each in callbacks if isinstance(each, keras.callbacks.LearningRateScheduler)]
        has_schedule = isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule)
        # Keras does not allow to assign the rate of an optimizer with a schedule. The callback
        # itself raises Keras' error for it.
        self._schedules = [] if has_schedule else schedules
        self._optimizer = optimizer
        self._rate_by_epoch = [float(optimizer.learning_rate)] if self._schedules else []
        """The rate before each epoch that was computed so far."""

    def assign_epoch_rate(self, epoch: int) -> None:
        """Set the optimizer's rate for the start of an epoch, before the callbacks are called."""
        if not self._schedules:
            return
        while len(self._rate_by_epoch) <= epoch:
            self._optimizer.learning_rate = self._rate_by_epoch[-1]
            for schedule in self._schedules:
                schedule.on_epoch_begin(len(self._rate_by_epoch) - 1)
            self._rate_by_epoch.append(float(self._optimizer.learning_rate))
        self._optimizer.learning_rate = self._rate_by_epoch[epoch]

    def record_next_rate(self, epoch: int) -> None:
        """Record the rate that the callbacks set at the start of the epoch; the next epoch begins with it."""
        if self._schedules and len(self._rate_by_epoch) == epoch + 1:
            self._rate_by_epoch.append(float(self._optimizer.learning_rate))


def _separate_output_files(callbacks: list[Any], worker_index: int) -> None:
    """Give each worker its own output files, because several writers would corrupt one file."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            stem, dot, suffix = Path(callback.filename).name.rpartition(".")
            name = f"{stem}-worker-{worker_index}.{suffix}" if stem else f"{dot}{suffix}-worker-{worker_index}"
            callback.filename = str(Path(callback.filename).with_name(name))
            _LOG.info("CSVLogger of worker %d writes to %s", worker_index, callback.filename)
        elif isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = str(Path(callback.log_dir) / f"worker-{worker_index}")
            _LOG.info("TensorBoard of worker %d writes to %s", worker_index, callback.log_dir)


def _json_number(value: Any) -> float | int | None:
    """A number as JSON; None if it is not finite, because JSON has no infinity and no NaN."""
    if value is None or isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def make_callbacks(
    callbacks_function: Callable[[], Any] | None,
    model: Any,
    optimizer: Any,
    zoo: Path,
    *,
    trains_locally: bool = False,
    uses_optimizer: bool = True,
    worker_index: int | None = None,
    check_monitors: MonitorCheck,
    make_params: Callable[[], CallbackParams] = dict,
    on_stop: Callable[[], None] = lambda: None,
) -> NoCallbacks | KerasCallbacks:
    """Create the module's callbacks; ``callbacks_function`` is its function ``callbacks``.

    Raises:
        BadInputError: one of the callbacks cannot work in this job.
        UserCodeError: the user's code raised an exception.
    """
    callbacks = callbacks_function() if callbacks_function is not None else None
    return (
        KerasCallbacks(
            callbacks,
            model,
            optimizer,
            zoo,
            trains_locally=trains_locally,
            uses_optimizer=uses_optimizer,
            worker_index=worker_index,
            check_monitors=check_monitors,
            params=make_params(),
            on_stop=on_stop,
        )
        if callbacks
        else NoCallbacks()
    )
