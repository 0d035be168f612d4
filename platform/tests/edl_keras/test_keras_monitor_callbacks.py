"""The decisions of the core are those of Keras' own callbacks, and what could not decide is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.core.callback_decisions import CallbackState, EvaluationResult, callbacks_from_json, callbacks_to_json  # noqa: E402
from edl.keras.monitor_callbacks import check_monitors, declare_callbacks, is_monitor  # noqa: E402

K = keras.callbacks
VALUES = st.lists(
    st.one_of(
        st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0, 1.05, 2.0]),
        # TensorFlow, which Keras compares with, takes a subnormal number for 0.
        st.floats(-3, 3, width=32, allow_subnormal=False),
    ),
    min_size=1,
    max_size=25,
)
COMMON = {"mode": st.sampled_from(["min", "max"]), "min_delta": st.sampled_from([0, 0.1, -0.1, 1e-4])}


def optimizer(rate: float = 0.1) -> Any:
    return keras.optimizers.SGD(rate)


class KerasModel:
    """What callbacks use of a model: the weights are the number of the evaluation."""

    def __init__(self) -> None:
        self.optimizer = optimizer()
        self.stop_training = False
        self.weights: Any = None
        self.saved: list[tuple[Any, str]] = []

    def get_weights(self) -> Any:
        return self.weights

    def set_weights(self, weights: Any) -> None:
        self.weights = weights

    def save(self, path: str, overwrite: bool = True) -> None:
        self.saved.append((self.weights, path))

    save_weights = save


def by_keras(callback: Any, values: list[float]) -> tuple[KerasModel, list[Any]]:
    """As keras.fit calls it; after each epoch the rate and whether training is to stop."""
    model, decisions = KerasModel(), []
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, value in enumerate(values):
        model.weights = epoch + 1
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, {"loss": 9.0, "val_loss": value})
        decisions.append((float(model.optimizer.learning_rate), model.stop_training))
        if model.stop_training:
            break
    callback.on_train_end()
    return model, decisions


def by_edl(callback: Any, values: list[float], count: int) -> tuple[CallbackState, list[Any]]:
    """As the master decides, through JSON; cut and step of an evaluation are its number."""
    rows = json.loads(json.dumps(callbacks_to_json(declare_callbacks([callback], optimizer()))))
    callbacks, decisions = CallbackState().declare_callbacks(callbacks_from_json(rows)), []
    rate = float(optimizer().learning_rate)
    for number, value in enumerate(values[:count], 1):
        callbacks = callbacks.apply_evaluation(EvaluationResult(number, number, {"loss": value}))
        callbacks = CallbackState.from_snapshot(
            json.loads(json.dumps(callbacks.to_snapshot()))
        )  # a new master each time
        decisions.append(
            (rate if callbacks.learning_rate is None else callbacks.learning_rate, bool(callbacks.stop_reason))
        )
    return callbacks, decisions


@settings(deadline=None, max_examples=examples(60))
@given(
    VALUES,
    st.fixed_dictionaries(
        {
            **COMMON,
            "patience": st.integers(0, 4),
            "baseline": st.sampled_from([None, 0.9, 0.0]),
            "restore_best_weights": st.booleans(),
            "start_from_epoch": st.integers(0, 3),
        }
    ),
)
def test_early_stopping_stops_when_keras_does_and_keeps_the_same_weights(
    values: list[float], arguments: dict[str, Any]
) -> None:
    model, expected = by_keras(K.EarlyStopping(**arguments), values)
    callbacks, decisions = by_edl(K.EarlyStopping(**arguments), values, len(expected))
    assert decisions == expected
    best = callbacks.best_to_restore
    assert (best.best_step if best else len(expected)) == model.weights


@settings(deadline=None, max_examples=examples(60))
@given(
    VALUES,
    st.fixed_dictionaries(
        {
            **COMMON,
            "patience": st.integers(0, 3),
            "factor": st.sampled_from([0.1, 0.5, 0.0]),
            "cooldown": st.integers(0, 3),
            "min_lr": st.sampled_from([0.0, 0.03, 0.1, 0.5]),
        }
    ),
)
def test_the_rate_is_lowered_when_and_as_far_as_by_keras(values: list[float], arguments: dict[str, Any]) -> None:
    _, expected = by_keras(K.ReduceLROnPlateau(**arguments), values)
    _, decisions = by_edl(K.ReduceLROnPlateau(**arguments), values, len(values))
    assert decisions == expected


@settings(deadline=None, max_examples=examples(25))
@given(VALUES, st.sampled_from(["min", "max"]), st.sampled_from([None, 0.9]))
def test_the_best_checkpoint_is_that_of_keras(values: list[float], mode: str, threshold: float | None) -> None:
    def make() -> Any:
        return K.ModelCheckpoint(
            "/nowhere/{epoch}.keras", save_best_only=True, mode=mode, initial_value_threshold=threshold
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras.src.utils.file_utils.makedirs", lambda path: None)
        model, _ = by_keras(make(), values)
    callbacks, _ = by_edl(make(), values, len(values))
    written = []
    for number in range(1, len(values) + 1):
        then, _ = by_edl(make(), values, number)
        if then.progress[0].best_epoch == number:
            written.append((number, f"/nowhere/{number}.keras"))
    assert written == model.saved
    assert callbacks.progress[0].best_step == (model.saved[-1][0] if model.saved else 0)


# ---------------------------------------------------------------- what is refused


class UserEarlyStopping(K.EarlyStopping):  # type: ignore[misc]
    """Whose code no master runs."""


def job(validation: bool = True, evaluation_steps: int | None = 10, strategy: str = "AllReduce") -> Any:
    data = SimpleNamespace(validation=("v",) if validation else ())
    train = SimpleNamespace(evaluation_steps=evaluation_steps)
    return SimpleNamespace(data=data, train=train, strategy=SimpleNamespace(name=strategy))


DIRECTIONS = {"loss": None, "auc": "up", "mae": "down", "mine": None}


@pytest.mark.parametrize(
    ("monitor", "mode"), [("val_loss", "min"), ("val_auc", "max"), ("val_mae", "min"), ("val_auc_0", None)]
)
def test_the_mode_follows_from_the_metric(monitor: str, mode: str | None) -> None:
    callback = K.EarlyStopping(monitor=monitor)
    if mode is None:
        with pytest.raises(BadInputError, match="mode"):
            check_monitors([callback], DIRECTIONS, job())
        return
    check_monitors([callback], DIRECTIONS, job())
    assert declare_callbacks([callback], optimizer())[0].mode == mode


@pytest.mark.parametrize(
    ("callback", "given", "message"),
    [
        (K.EarlyStopping(), job(validation=False), "data.validation"),
        (K.ReduceLROnPlateau(), job(evaluation_steps=None), "train.evaluation_steps"),
        (K.EarlyStopping(monitor="loss"), job(), "'loss', a value of training"),
        (K.EarlyStopping(monitor="auc"), job(), "did you mean val_auc?"),
        (K.EarlyStopping(monitor="val_accuracy"), job(), "val_loss, val_auc, val_mae, val_mine"),
        (K.EarlyStopping(monitor="val_mine"), job(), "mode='max'"),
    ],
)
def test_what_could_never_decide_is_refused(callback: Any, given: Any, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        check_monitors([callback], DIRECTIONS, given)
    assert message in f"{caught.value} {caught.value.hint}"
    assert type(callback).__name__ in caught.value.message


def test_the_best_at_the_end_may_be_the_only_one() -> None:
    check_monitors([K.ModelCheckpoint("m.keras", save_best_only=True)], DIRECTIONS, job(evaluation_steps=None))


def test_a_file_of_each_evaluation_needs_a_strategy_that_writes_all_of_them() -> None:
    valued = K.ModelCheckpoint("{epoch}-{val_mae:.2f}-{val_auc_0}.keras")
    assert is_monitor(valued)
    for strategy in ("AllReduce", "Local"):
        check_monitors([valued], DIRECTIONS, job(strategy=strategy))
    with pytest.raises(BadInputError, match="ModelCheckpoint"):
        check_monitors([valued], DIRECTIONS, job(strategy="ParameterServer"))
    with pytest.raises(BadInputError, match="val_other"):
        check_monitors([K.ModelCheckpoint("{val_other}.keras", save_best_only=True)], DIRECTIONS, job())


def test_a_subclass_is_refused_by_name_where_the_master_decides() -> None:
    assert is_monitor(UserEarlyStopping())
    with pytest.raises(BadInputError, match=r"UserEarlyStopping \(a keras.callbacks.EarlyStopping\)") as caught:
        declare_callbacks([UserEarlyStopping()], optimizer())
    assert "Local" in str(caught.value.hint)


def test_the_rate_of_a_schedule_cannot_be_lowered() -> None:
    scheduled = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5))
    with pytest.raises(BadInputError, match="schedule"):
        declare_callbacks([K.ReduceLROnPlateau()], scheduled)


def test_only_what_decides_by_evaluations_is_a_monitor(tmp_path: Path) -> None:
    others = [K.ModelCheckpoint(tmp_path / "m.keras"), K.CSVLogger("a"), K.LearningRateScheduler(float), K.History()]
    assert not any(map(is_monitor, others))
