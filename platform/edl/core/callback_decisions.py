"""Keras' callbacks that decide by evaluations, decided once for the whole job.

``EarlyStopping``, ``ReduceLROnPlateau`` and ``ModelCheckpoint(save_best_only=True)`` compare the value of a metric with
the best one so far. Workers cannot do this: the records of an evaluation are spread over all of them, so none has its
values. Workers therefore declare the user's callbacks (``edl.keras.monitor_callbacks``), and the decisions are made
here with Keras' own arithmetic; an evaluation takes the place of an epoch of ``keras.fit``. Tests compare the decisions
with those of Keras. ``evaluation_callbacks`` applies them to the job.

Everything is a value: ``CallbackState.apply_evaluation`` returns the state after one more evaluation, which is
journaled.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from edl.core.model_files import ModelFile
from edl.core.short_list import format_short_list

MAX_HISTORY = 1000
"""Number of evaluations in the history, which is needed when a job rolls back to a checkpoint."""


@dataclass(frozen=True, slots=True)
class MetricMonitor:
    """The metric that a callback monitors, with the rule for comparing its values.

    Attributes:
        monitor: name of a metric of the evaluation, without ``val_``.
        mode: ``min`` if lower values are better, ``max`` if higher values are.
        min_delta: smallest change that counts as an improvement; at least 0.
    """

    monitor: str
    mode: str
    min_delta: float = 0.0

    def is_improvement(self, value: float, reference: float | None) -> bool:
        """Whether ``value`` is better than ``reference``. Any value is better than None; NaN is never better."""
        if math.isnan(value):
            return False
        if reference is None:
            return True
        # Keras compares tensors of float32, in which 1.05 is not more than 0.1 above 0.95.
        if self.mode == "max":
            return _round_to_float32(value - self.min_delta) > _round_to_float32(reference)
        return _round_to_float32(value + self.min_delta) < _round_to_float32(reference)


@dataclass(frozen=True, slots=True)
class EarlyStopping(MetricMonitor):
    """Ends training when a metric has not improved for ``patience`` evaluations; attributes as in Keras."""

    patience: int = 0
    baseline: float | None = None
    restore_best_weights: bool = False
    start_from_epoch: int = 0


@dataclass(frozen=True, slots=True)
class ReduceLROnPlateau(MetricMonitor):
    """Lowers the learning rate when a metric has not improved; attributes as in Keras.

    Attributes:
        rate: the optimizer's initial learning rate.
    """

    factor: float = 0.1
    patience: int = 10
    cooldown: int = 0
    min_lr: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class BestCheckpoint(MetricMonitor):
    """``ModelCheckpoint(save_best_only=True)``.

    Attributes:
        threshold: only better values are kept; Keras' ``initial_value_threshold``.
        filepath: path of the file that a worker writes, with Keras' placeholders.
        weights_only: whether the file has weights only instead of a whole model.
        saves_every: whether each evaluation counts as the best one: without ``save_best_only``, if the path has values
            of the evaluation.
    """

    threshold: float | None = None
    filepath: str = ""
    weights_only: bool = False
    saves_every: bool = False


CallbackSpec = EarlyStopping | ReduceLROnPlateau | BestCheckpoint
DeclaredCallback = CallbackSpec | ModelFile
"""What workers declare. Of these, a :class:`ModelFile` decides nothing."""
CALLBACK_TYPES: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (EarlyStopping, ReduceLROnPlateau, BestCheckpoint, ModelFile)
}


@dataclass(frozen=True, slots=True)
class CallbackProgress:
    """The progress of one callback. Not every kind uses every field.

    Attributes:
        best: the best value so far.
        best_cut, best_step, best_epoch, best_metrics: the checkpoint, global step, number (from 1) and
            values of the evaluation whose weights are kept; 0 and empty if there is none.
        written: the checkpoint from which a worker has written the file.
        wait: consecutive evaluations without improvement.
        cooldown: evaluations during which the rate is not lowered again.
    """

    best: float | None = None
    best_cut: int = 0
    best_step: int = 0
    best_epoch: int = 0
    best_metrics: Mapping[str, float | None] = field(default_factory=dict)
    written: int = 0
    wait: int = 0
    cooldown: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One evaluation, as callbacks see it.

    Attributes:
        step: global step of the evaluated parameters.
        cut: their checkpoint; 0 if it is not on disk.
        metrics: values by name; None for a value that is not finite.
    """

    step: int
    cut: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class CallbackState:
    """The declared callbacks and their decisions so far.

    Attributes:
        specs: the callbacks in the order of the user's list.
        progress: the progress of each callback.
        evaluations: number of evaluations so far.
        learning_rate: the rate that ``ReduceLROnPlateau`` has set; None: the optimizer's own.
        stop_reason: why training must end; empty if it need not.
        history: step and state after each of the newest evaluations, for :meth:`roll_back_to`.
    """

    specs: tuple[CallbackSpec, ...] = ()
    progress: tuple[CallbackProgress, ...] = ()
    evaluations: int = 0
    learning_rate: float | None = None
    stop_reason: str = ""
    history: tuple[tuple[int, Mapping[str, Any]], ...] = field(default=(), repr=False)

    # ------------------------------------------------------------------ consequences

    @property
    def keeps_best_checkpoint(self) -> bool:
        """Whether the weights of the best evaluation are kept.

        If so, every evaluated cut becomes a checkpoint.
        """
        return any(_keeps_best(callback) for callback in self.specs)

    @property
    def best_cuts(self) -> frozenset[int]:
        """Checkpoints that must not be removed."""
        # The current best, and those that are the best again after a rollback.
        before = {each["best_cut"] for _, state in self.history for each in state["progress"]}
        return frozenset(({each.best_cut for each in self.progress} | before) - {0})

    @property
    def best_to_restore(self) -> CallbackProgress | None:
        """The evaluation whose weights the final model gets (``restore_best_weights``).

        None: those of the last step.
        """
        for callback, progress in zip(self.specs, self.progress, strict=True):
            if isinstance(callback, EarlyStopping) and callback.restore_best_weights and progress.best_cut:
                return progress
        return None

    @property
    def best_to_write(self) -> tuple[int, BestCheckpoint, CallbackProgress] | None:
        """The first best checkpoint that a worker still has to write to its file, with its index in the list."""
        for index, (callback, progress) in enumerate(zip(self.specs, self.progress, strict=True)):
            if isinstance(callback, BestCheckpoint) and progress.best_cut != progress.written:
                return index, callback, progress
        return None

    # ------------------------------------------------------------------ changes

    def declare_callbacks(self, declared: Sequence[DeclaredCallback]) -> CallbackState:
        """The state for these callbacks: known ones keep their progress, new ones start fresh."""
        specs = deciding_callbacks(declared)
        if specs == self.specs:
            return self
        before = dict(zip(map(_callback_identity, self.specs), self.progress, strict=True))
        known = tuple(before.get(_callback_identity(callback), _initial_progress(callback)) for callback in specs)
        lowers = any(isinstance(callback, ReduceLROnPlateau) for callback in specs)
        stops = any(isinstance(callback, EarlyStopping) for callback in specs)
        rate, stopped = self.learning_rate if lowers else None, self.stop_reason if stops else ""
        return CallbackState(specs, known, self.evaluations, rate, stopped)

    def apply_evaluation(self, evaluation: EvaluationResult) -> CallbackState:
        """The state after one more evaluation. A value that is not finite is never an improvement."""
        rate, stopped, progress = self.learning_rate, self.stop_reason, []
        for callback, was in zip(self.specs, self.progress, strict=True):
            if callback.monitor not in evaluation.metrics:
                progress.append(was)
                continue
            measured = evaluation.metrics[callback.monitor]
            value = math.nan if measured is None else measured
            match callback:
                case EarlyStopping():
                    now, stop = _apply_early_stopping(callback, was, value, self.evaluations, evaluation)
                    stopped = stopped or stop
                case ReduceLROnPlateau():
                    now, lowered = _apply_plateau(callback, was, value, callback.rate if rate is None else rate)
                    rate = rate if lowered is None else lowered
                case BestCheckpoint():
                    now = _apply_best_checkpoint(callback, was, value, self.evaluations, evaluation)
            progress.append(now)
        after = replace(
            self, progress=tuple(progress), evaluations=self.evaluations + 1, learning_rate=rate, stop_reason=stopped
        )
        return self.apply_evaluated_state(evaluation.step, after.evaluated_state())

    def apply_evaluated_state(self, step: int, state: Mapping[str, Any]) -> CallbackState:
        """The state after an evaluation at ``step`` whose outcome was recorded as ``evaluated_state``."""
        return replace(self.with_evaluated_state(state), history=(*self.history, (step, state))[-MAX_HISTORY:])

    def mark_written(self, position: int, cut: int) -> CallbackState:
        """Record that a worker wrote the file of a callback's best checkpoint."""
        progress = list(self.progress)
        if position < len(progress):
            progress[position] = replace(progress[position], written=cut)
        return replace(self, progress=tuple(progress))

    def roll_back_to(self, step: int) -> CallbackState:
        """The state as of ``step``; later evaluations are discarded."""
        kept = tuple(one for one in self.history if one[0] <= step)
        if len(kept) == len(self.history):
            return self
        then = CallbackState(self.specs, tuple(map(_initial_progress, self.specs)))
        if kept:
            then = then.with_evaluated_state(kept[-1][1])
        return replace(then, history=kept)

    def trim_history(self, step: int) -> CallbackState:
        """Drop history that no rollback can reach: the job never goes back before ``step``."""
        older = [one for one in self.history if one[0] <= step]
        return replace(self, history=(*older[-1:], *(one for one in self.history if one[0] > step)))

    # ------------------------------------------------------------------ as JSON

    def evaluated_state(self) -> dict[str, Any]:
        """The outcome of the evaluations, without the declarations."""
        return {
            "progress": [asdict(progress) for progress in self.progress],
            "evaluations": self.evaluations,
            "rate": self.learning_rate,
            "stopped": self.stop_reason,
        }

    def with_evaluated_state(self, state: Mapping[str, Any]) -> CallbackState:
        """Restore what :meth:`evaluated_state` returned."""
        progress = tuple(CallbackProgress(**each) for each in state["progress"])
        return replace(
            self,
            progress=progress,
            evaluations=state["evaluations"],
            learning_rate=state["rate"],
            stop_reason=state["stopped"],
        )

    def to_snapshot(self) -> dict[str, Any]:
        """The complete state."""
        return {
            "declared": callbacks_to_json(self.specs),
            **self.evaluated_state(),
            "history": [list(one) for one in self.history],
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> CallbackState:
        """Restore what :meth:`to_snapshot` returned."""
        history = tuple((step, state) for step, state in snapshot["history"])
        specs = deciding_callbacks(callbacks_from_json(snapshot["declared"]))
        return replace(cls(specs).with_evaluated_state(snapshot), history=history)


def deciding_callbacks(declared: Sequence[DeclaredCallback]) -> tuple[CallbackSpec, ...]:
    """The declared callbacks that decide by evaluations."""
    return tuple(each for each in declared if not isinstance(each, ModelFile))


def model_files(declared: Sequence[DeclaredCallback]) -> tuple[ModelFile, ...]:
    """The declared callbacks that write files without an evaluation."""
    return tuple(each for each in declared if isinstance(each, ModelFile))


def callbacks_to_json(specs: Sequence[DeclaredCallback]) -> list[dict[str, Any]]:
    """Callbacks as a worker declares them."""
    return [{"kind": type(callback).__name__, **asdict(callback)} for callback in specs]


def callbacks_from_json(rows: Any) -> tuple[DeclaredCallback, ...]:
    """Parse what :func:`callbacks_to_json` returned.

    Raises:
        ValueError: the value has another form; the message says which part.
    """
    if not isinstance(rows, list):
        raise ValueError(f"callbacks must be a list, not {type(rows).__name__}")  # noqa: TRY004  as for its elements
    return tuple(_callback_from_row(row) for row in rows)


def _callback_from_row(row: Any) -> DeclaredCallback:
    kind = CALLBACK_TYPES.get(str(row.get("kind"))) if isinstance(row, dict) else None
    if kind is None:
        raise ValueError(f"a callback must be an object whose kind is one of {', '.join(CALLBACK_TYPES)}")
    values = {name: value for name, value in row.items() if name != "kind"}
    kinds = {each.name: str(each.type) for each in fields(kind)}
    for name, value in values.items():
        if name not in kinds or not _is_valid_value(value, kinds[name]):
            raise ValueError(f"{row['kind']}: the argument {name} is unknown or invalid: {str(value)[:60]!r}")
    try:
        callback: DeclaredCallback = kind(**values)
    except TypeError as error:
        raise ValueError(f"{row['kind']}: {error}") from error
    if isinstance(callback, ModelFile):
        if callback.every_steps < 0:
            raise ValueError(f"{row['kind']}: every_steps must be at least 0")
        return callback
    if callback.mode not in ("min", "max") or callback.min_delta < 0:
        raise ValueError(f"{row['kind']}: mode must be min or max, and min_delta at least 0")
    return callback


def _is_valid_value(value: Any, kind: str) -> bool:
    """Whether a JSON value has the field's type, is finite and is within range."""
    if value is None:
        return "None" in kind
    if kind.startswith(("str", "bool")):
        return isinstance(value, str if kind == "str" else bool)
    if isinstance(value, bool) or not isinstance(value, int | float if kind.startswith("float") else int):
        return False
    return abs(value) < 1e300 if isinstance(value, float) else abs(value) < 1 << 53


# ------------------------------------------------------------------------------------------------ each callback


def explain_missing_monitor(callback: str, metric: str, metrics: Iterable[str]) -> str:
    """Why a callback cannot decide; empty if the evaluation has its metric.

    Only an evaluation shows the names of a metric with several values: ``F1Score(name="f")`` has ``f_0``, ``f_1`` ...
    """
    names = sorted(metrics)
    if metric in names:
        return ""
    return (
        f"{callback} monitors 'val_{metric}', but the evaluation has only "
        f"{format_short_list([f'val_{name}' for name in names], 12)}"
    )


def _keeps_best(callback: CallbackSpec) -> bool:
    return isinstance(callback, BestCheckpoint) or (
        isinstance(callback, EarlyStopping) and callback.restore_best_weights
    )


def _initial_progress(callback: CallbackSpec) -> CallbackProgress:
    return CallbackProgress(callback.threshold) if isinstance(callback, BestCheckpoint) else CallbackProgress()


def _callback_identity(callback: CallbackSpec) -> tuple[str, str, str]:
    """The identity of a callback across declarations. Its patience may change, its monitor may not."""
    return type(callback).__name__, callback.monitor, callback.mode


def _keep_weights(progress: CallbackProgress, epoch: int, evaluation: EvaluationResult) -> CallbackProgress:
    """Mark this evaluation's weights as the best if its checkpoint is on disk; otherwise keep the earlier ones."""
    if not evaluation.cut:
        return progress
    return replace(
        progress,
        best_cut=evaluation.cut,
        best_step=evaluation.step,
        best_epoch=epoch + 1,
        best_metrics=dict(evaluation.metrics),
    )


def _apply_early_stopping(
    callback: EarlyStopping, progress: CallbackProgress, value: float, epoch: int, evaluation: EvaluationResult
) -> tuple[CallbackProgress, str]:
    """Keras' ``EarlyStopping.on_epoch_end``."""
    if epoch < callback.start_from_epoch:
        return progress, ""
    now = replace(progress, wait=progress.wait + 1)
    # If the weights of the best evaluation are not on disk, later evaluations are compared with the kept
    # weights, so that these do not stay far behind the best value. If all weights are on disk, both
    # comparisons are the same.
    kept = progress.best_metrics.get(callback.monitor) if progress.best_cut else None
    if callback.restore_best_weights and (not progress.best_cut or callback.is_improvement(value, kept)):
        now = _keep_weights(now, epoch, evaluation)
    if callback.is_improvement(value, now.best):
        now = replace(now, best=value)
        if callback.baseline is None or callback.is_improvement(value, callback.baseline):
            now = replace(now, wait=0)
        return now, ""
    if now.wait >= callback.patience and epoch > 0:
        best = "none" if now.best is None else f"{now.best:.6g}"
        many = "evaluation" if now.wait == 1 else "evaluations"
        return (
            now,
            f"EarlyStopping: val_{callback.monitor} has not improved for {now.wait} {many}; the best value is {best}",
        )
    return now, ""


def _apply_plateau(
    callback: ReduceLROnPlateau, progress: CallbackProgress, value: float, rate: float
) -> tuple[CallbackProgress, float | None]:
    """Keras' ``ReduceLROnPlateau.on_epoch_end``.

    Returns a new rate if it changed, rounded to float32 as in an optimizer.
    """
    now = replace(progress, cooldown=progress.cooldown - 1, wait=0) if progress.cooldown > 0 else progress
    if callback.is_improvement(value, now.best):
        return replace(now, best=value, wait=0), None
    if now.cooldown > 0:
        return now, None
    now = replace(now, wait=now.wait + 1)
    if now.wait < callback.patience or not rate > _round_to_float32(callback.min_lr):
        return now, None
    return replace(now, cooldown=callback.cooldown, wait=0), _round_to_float32(
        max(rate * callback.factor, callback.min_lr)
    )


def _apply_best_checkpoint(
    callback: BestCheckpoint, progress: CallbackProgress, value: float, epoch: int, evaluation: EvaluationResult
) -> CallbackProgress:
    """Keras' ``ModelCheckpoint._should_save_model``.

    A model that could not be written does not become the best.
    """
    if evaluation.cut and callback.saves_every:
        return _keep_weights(progress, epoch, evaluation)
    if not evaluation.cut or not callback.is_improvement(value, progress.best):
        return progress
    return replace(_keep_weights(progress, epoch, evaluation), best=value)


def _round_to_float32(value: float) -> float:
    """The nearest float32, which is how Keras stores it; infinite beyond the largest float32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
