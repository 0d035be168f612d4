"""What Keras callbacks are given, and which of them are refused because they could not do their work."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
from support.text_keys import missing_keys  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.strategy import Strategy  # noqa: E402
from edl.keras.monitor_callbacks import refuse_unsupported_callbacks  # noqa: E402
from edl.keras.user_callbacks import (  # noqa: E402
    NoCallbacks,
    build_callback_params,
    make_callbacks,
)
from edl.keras.user_code import UserCodeError  # noqa: E402

CALLBACKS = keras.callbacks


class ScriptedCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Does at each call what it was given, and writes down what it sees."""

    def __init__(self, act: Any = None) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self._act = act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._act is not None:
            self._act(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("begin", epoch, logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("end", epoch, logs))

    def on_test_end(self, logs: Any = None) -> None:
        self.seen.append(("test", logs))


class UserCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """A subclass needs what its base does."""


def dense() -> Any:
    return keras.Sequential([keras.Input([1]), keras.layers.Dense(1, name="head")])


def watch(
    callback: Any,
    folder: Path,
    *,
    model: Any = None,
    optimizer: Any = None,
    local: bool = False,
    worker: int | None = None,
    on_stop: Callable[[], None] = lambda: None,
) -> Any:
    model, optimizer = model or dense(), optimizer or keras.optimizers.SGD(0.1)
    return make_callbacks(
        lambda: [callback],
        model,
        optimizer,
        folder,
        trains_locally=local,
        worker_index=worker,
        check_monitors=lambda found: None,
        on_stop=on_stop,
    )


def train(watching: Any, losses: list[list[float]]) -> None:
    """Epochs of steps, each of the loss that is given; an evaluation after each epoch."""
    step = 0
    for epoch, of_epoch in enumerate(losses):
        watching.begin_epoch(epoch)
        for loss in of_epoch:
            watching.begin_step(step)
            watching.end_step(step, loss)
            step += 1
        watching.begin_test()
        watching.end_test()
    watching.end_training()


# ---------------------------------------------------------------- what is refused

NEVER: dict[str, tuple[Any, str]] = {
    "BackupAndRestore": (lambda: CALLBACKS.BackupAndRestore("backup"), "checkpoint.every_steps"),
    "TerminateOnNaN": (CALLBACKS.TerminateOnNaN, "train.on_nan"),
    "swap_on_epoch=True of the callback SwapEMAWeights": (
        lambda: CALLBACKS.SwapEMAWeights(True),
        "remove swap_on_epoch",
    ),
}
"""What a job cannot do, wherever it trains: the callback, and a word of what is to be used instead."""
WITHOUT_WEIGHTS: dict[str, tuple[Any, str]] = {
    "ModelCheckpoint": (lambda: CALLBACKS.ModelCheckpoint("m.keras"), "checkpoint.every_steps"),
    r"UserCheckpoint \(a keras.callbacks.ModelCheckpoint\)": (
        lambda: UserCheckpoint("m.keras"),
        "checkpoint.every_steps",
    ),
    "SwapEMAWeights": (CALLBACKS.SwapEMAWeights, "average"),
    "histogram_freq=2 of the callback TensorBoard": (lambda: CALLBACKS.TensorBoard(histogram_freq=2), "checkpoint"),
    "embeddings_freq=1 of the callback TensorBoard": (lambda: CALLBACKS.TensorBoard(embeddings_freq=1), "checkpoint"),
}
"""What needs the trained weights, which a worker of parameter servers does not have."""


def refusal(callback: Any, folder: Path, *, local: bool) -> BadInputError:
    with pytest.raises(BadInputError) as caught:
        watch(callback, folder, local=local)
    return caught.value


@pytest.mark.parametrize("local", [False, True], ids=["servers", "local"])
@pytest.mark.parametrize("named", [name for name in NEVER if " of " not in name])
def test_what_no_job_can_do_is_refused_by_name(named: str, local: bool, tmp_path: Path) -> None:
    make, instead = NEVER[named]
    error = refusal(make(), tmp_path, local=local)
    assert f"the callback {named} " in error.message
    assert instead in str(error.hint)


@pytest.mark.parametrize("named", [name for name in NEVER if " of " in name])
def test_arguments_that_need_an_evaluation_are_refused_where_the_rest_works(named: str, tmp_path: Path) -> None:
    make, instead = NEVER[named]
    error = refusal(make(), tmp_path, local=True)
    assert named in error.message
    assert instead in str(error.hint)


@pytest.mark.parametrize("named", WITHOUT_WEIGHTS)
def test_what_needs_the_trained_weights_is_refused_where_parameter_servers_have_them(
    named: str, tmp_path: Path
) -> None:
    make, instead = WITHOUT_WEIGHTS[named]
    with pytest.raises(BadInputError, match=named) as caught:
        watch(make(), tmp_path)
    assert "initial weights" in caught.value.message
    assert instead in str(caught.value.hint)
    refuse_unsupported_callbacks([make()], trains_locally=True)  # does not raise


def test_nested_callbacks_are_looked_at_too(tmp_path: Path) -> None:
    refusal([ScriptedCallback(), [CALLBACKS.TerminateOnNaN()]], tmp_path, local=False)


def test_what_decides_by_evaluations_is_declared_where_parameter_servers_have_the_weights(tmp_path: Path) -> None:
    deciding = [
        CALLBACKS.EarlyStopping(mode="min"),
        CALLBACKS.ModelCheckpoint("m.keras", "val_auc", 0, True, mode="max"),
    ]
    watching = watch([ScriptedCallback(), *deciding], tmp_path)
    assert [(type(each).__name__, each.monitor) for each in watching.master_callbacks] == [
        ("EarlyStopping", "loss"),
        ("BestCheckpoint", "auc"),
    ]
    train(watching, [[4.0], [5.0]])  # and is not called
    assert watch([ScriptedCallback(), *deciding], tmp_path, local=True).master_callbacks == ()


def test_two_that_set_the_rate_are_refused(tmp_path: Path) -> None:
    both = [CALLBACKS.ReduceLROnPlateau(mode="min"), CALLBACKS.LearningRateScheduler(float)]
    assert "LearningRateScheduler" in refusal(both, tmp_path, local=False).message
    watch(both, tmp_path, local=True)


def test_a_rate_of_a_schedule_is_refused_where_keras_would_lower_it_in_mid_training(tmp_path: Path) -> None:
    scheduled = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10))
    with pytest.raises(BadInputError, match="ReduceLROnPlateau cannot be used: a schedule"):
        watch(CALLBACKS.ReduceLROnPlateau(), tmp_path, local=True, optimizer=scheduled)

    class OwnDecision(CALLBACKS.ReduceLROnPlateau):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """It leaves the rate alone."""

    watch(OwnDecision(), tmp_path, local=True, optimizer=scheduled)


def test_every_callback_of_keras_is_known() -> None:
    """A new one is to be looked at: it works, or it is refused."""
    works = {
        "CSVLogger",
        "Callback",
        "CallbackList",
        "EarlyStopping",
        "History",
        "LambdaCallback",
        "LearningRateScheduler",
        "ProgbarLogger",
        "ReduceLROnPlateau",
        "RemoteMonitor",
        "TensorBoard",
    }
    refused = {*(name for name in (*NEVER, *WITHOUT_WEIGHTS) if " " not in name), "OrbaxCheckpoint"}
    assert {name for name in dir(CALLBACKS) if name[0].isupper()} - works - refused == set()


# ---------------------------------------------------------------- what works


def test_an_epoch_ends_with_the_mean_loss_of_its_steps(tmp_path: Path) -> None:
    callback = ScriptedCallback()
    train(watch(callback, tmp_path), [[4.0, 2.0], [1.0]])
    assert callback.seen == [
        ("begin", 0, {}),
        ("test", {}),
        ("end", 0, {"loss": 3.0}),
        ("begin", 1, {}),
        ("test", {}),
        ("end", 1, {"loss": 1.0}),
    ]


def test_an_epoch_without_a_step_ends_without_a_loss(tmp_path: Path) -> None:
    callback = ScriptedCallback()
    train(watch(callback, tmp_path), [[4.0], []])
    assert callback.seen[-1] == ("end", 1, {})


def test_a_csv_logger_writes_a_row_an_epoch(tmp_path: Path) -> None:
    train(watch(CALLBACKS.CSVLogger(tmp_path / "log.csv"), tmp_path), [[4.0, 2.0], [1.0]])
    with (tmp_path / "log.csv").open() as file:
        assert [(row["epoch"], row["loss"]) for row in csv.DictReader(file)] == [("0", "3.0"), ("1", "1.0")]


def test_two_workers_do_not_write_to_one_csv_file(tmp_path: Path) -> None:
    watching = [watch(CALLBACKS.CSVLogger(tmp_path / "log.csv"), tmp_path, worker=index) for index in (0, 1)]
    for at, losses in enumerate(([[4.0]], [[1.0], [3.0]])):
        train(watching[at], losses)
    written = {path.name: path.read_text().split()[1:] for path in tmp_path.glob("*.csv")}
    assert written == {"log-worker-0.csv": ["0,4.0,NA"], "log-worker-1.csv": ["0,1.0,NA", "1,3.0,NA"]}


def test_tensorboard_writes_what_its_reader_reads(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for index in (0, 1):
        train(watch(CALLBACKS.TensorBoard(tmp_path / "logs"), tmp_path, worker=index), [[4.0, 2.0], [1.0]])
    for index in (0, 1):
        read = EventAccumulator(str(tmp_path / "logs" / f"worker-{index}" / "train"))
        read.Reload()
        assert "epoch_loss" in read.Tags()["tensors"]
        assert [event.step for event in read.Tensors("epoch_loss")] == [0, 1]


def rates_of(epochs: list[int], folder: Path, schedule: Any) -> dict[int, float]:
    """The rate that a worker has in each of the epochs of which it gets tasks, in the order in which it gets them."""
    optimizer, rates = keras.optimizers.SGD(0.1), {}
    watching = watch(CALLBACKS.LearningRateScheduler(schedule), folder, optimizer=optimizer, worker=0)
    for epoch in epochs:
        watching.begin_epoch(epoch)
        rates[epoch] = float(optimizer.learning_rate)
    return rates


@pytest.mark.parametrize("epochs", [[2], [0, 2], [1, 0, 2], [0, 1, 0, 2], [2, 1, 0, 3]])
@pytest.mark.parametrize(
    "schedule", [lambda epoch, rate: rate * 0.5, lambda epoch: 0.1 * 0.5 ** (epoch + 1)], ids=["last rate", "epoch"]
)
def test_a_scheduled_rate_is_the_same_whichever_epochs_a_worker_has_seen(
    schedule: Any, epochs: list[int], tmp_path: Path
) -> None:
    expected = rates_of([0, 1, 2, 3], tmp_path, schedule)
    assert expected == pytest.approx({epoch: 0.1 * 0.5 ** (epoch + 1) for epoch in range(4)})
    for epoch, rate in rates_of(epochs, tmp_path, schedule).items():
        assert rate == pytest.approx(expected[epoch]), epoch


def test_the_optimizer_is_at_the_global_step(tmp_path: Path) -> None:
    """What callbacks log as the rate of a schedule is that of the step."""
    rates: list[float] = []
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.5, 0.25, 0.125])
    optimizer = keras.optimizers.SGD(schedule)
    callback = ScriptedCallback(lambda model: rates.append(float(model.optimizer.learning_rate)))
    train(watch(callback, tmp_path, optimizer=optimizer), [[1.0, 1.0, 1.0]])
    assert rates == [0.5, 0.25, 0.125]


def test_where_the_process_trains_itself_the_optimizer_counts(tmp_path: Path) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    train(watch(ScriptedCallback(), tmp_path, optimizer=optimizer, local=True), [[1.0, 1.0, 1.0]])
    assert int(optimizer.iterations) == 0


def test_a_model_checkpoint_has_the_weights_of_the_process_that_trains(tmp_path: Path) -> None:
    model = dense()
    watching = watch(CALLBACKS.ModelCheckpoint(tmp_path / "m.keras"), tmp_path, model=model, local=True)
    watching.begin_epoch(0)
    model.get_layer("head").bias.assign([1.45])
    watching.end_training()
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.get_layer("head").bias, np.float32([1.45]))


# ---------------------------------------------------------------- what the model of a callback can do

WEIGHTS = {
    "save": lambda model: model.save("m.keras"),
    "save_weights": lambda model: model.save_weights("m.weights.h5"),
    "get_weights": lambda model: model.get_weights(),
    "set_weights": lambda model: model.set_weights([]),
    "load_weights": lambda model: model.load_weights("m.weights.h5"),
    "predict": lambda model: model.predict(np.ones([1, 1])),
    "evaluate": lambda model: model.evaluate(np.ones([1, 1])),
    "export": lambda model: model.export("m"),
}


@pytest.mark.parametrize("method", WEIGHTS)
def test_a_callback_that_wants_trained_weights_is_told_where_they_are(method: str, tmp_path: Path) -> None:
    watching = watch(ScriptedCallback(WEIGHTS[method]), tmp_path)
    with pytest.raises(UserCodeError, match=f"model\\.{method}.*initial weights.*parameter servers"):
        train(watching, [[1.0]])


def test_where_the_process_trains_itself_the_model_has_them(tmp_path: Path) -> None:
    weights: list[Any] = []
    train(watch(ScriptedCallback(lambda model: weights.extend(model.get_weights())), tmp_path, local=True), [[1.0]])
    assert [weight.shape for weight in weights] == [(1, 1), (1,)]


def test_a_method_of_the_users_own_model_stays(tmp_path: Path) -> None:
    class ModelWithExport(keras.Model):  # type: ignore[misc]
        def call(self, features: Any) -> Any:
            return self.export(features)

        def export(self, features: Any) -> Any:
            return features + 1.0

    model = ModelWithExport()
    watch(ScriptedCallback(), tmp_path, model=model)
    np.testing.assert_array_equal(model(np.zeros([1, 1], np.float32)), [[1.0]])


class UnsupportedHooks(keras.callbacks.Callback):  # type: ignore[misc]
    """With methods that Keras would call and EDL does not."""

    def on_test_begin(self, logs: Any = None) -> None: ...

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None: ...

    def on_predict_end(self, logs: Any = None) -> None: ...

    def on_batch_end(self, batch: int, logs: Any = None) -> None: ...


class OwnStopping(keras.callbacks.EarlyStopping):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


@pytest.mark.parametrize("local", [False, True], ids=["servers", "local"])
def test_methods_that_are_never_called_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, local: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        train(watch(UnsupportedHooks(), tmp_path, local=local), [[1.0, 1.0], [1.0]])
    (message,) = caplog.messages
    assert not missing_keys(message, "UnsupportedHooks", "on_test_batch_end()", "on_predict_end()")
    assert str(Path(__file__)) in message


class DecidesByLogs(keras.callbacks.Callback):  # type: ignore[misc]
    """Asks as people do for what ``fit`` provides: with ``get``, ``in`` and an index."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert "accuracy" not in logs
        assert "loss" in logs

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert logs.get("val_mae") is None
        assert logs.get("val_loss", 3.0) == 3.0
        assert logs["loss"] == logs.get("loss")
        with pytest.raises(KeyError):
            logs["mae"]


@pytest.mark.parametrize("local", [False, True], ids=["servers", "local"])
def test_what_a_callback_asks_for_and_logs_lacks_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, local: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        train(watch(DecidesByLogs(), tmp_path, local=local), [[1.0, 1.0], [1.0]])
    assert [message.split("logs['")[1].split("']")[0] for message in caplog.messages] == [
        "accuracy",
        "val_mae",
        "val_loss",
        "mae",
    ]
    assert all(not missing_keys(message, "DecidesByLogs", "EarlyStopping") for message in caplog.messages)


def test_a_lambda_callback_that_asks_for_what_logs_lacks_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = CALLBACKS.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.get("val_loss"))
    with caplog.at_level(logging.WARNING):
        train(watch([callback, CALLBACKS.CSVLogger(str(tmp_path / "log.csv"))], tmp_path), [[1.0], [1.0]])
    (message,) = caplog.messages
    assert not missing_keys(message, "LambdaCallback", "'val_loss'")


def test_what_a_lambda_callback_is_given_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = CALLBACKS.LambdaCallback(on_test_batch_begin=lambda batch, logs: None, on_train_end=lambda logs: None)
    with caplog.at_level(logging.WARNING):
        watch(callback, tmp_path)
    (message,) = caplog.messages
    assert not missing_keys(message, "LambdaCallback", "on_test_batch_begin()")
    assert "on_train_end" not in message


def test_one_that_decides_by_evaluations_hears_of_no_minibatches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        watch(OwnStopping(monitor="val_loss"), tmp_path, local=True)
    (message,) = caplog.messages
    assert not missing_keys(message, "OwnStopping", "on_train_batch_end()")


@pytest.mark.parametrize("kind", ["TensorBoard", "ProgbarLogger", "History"])
def test_of_callbacks_of_keras_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # TensorBoard's folder
    with caplog.at_level(logging.WARNING):
        watch(getattr(CALLBACKS, kind)(), tmp_path)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("local", "callback"),
    [(False, ScriptedCallback), (True, ScriptedCallback), (True, lambda: OwnStopping(monitor="val_loss"))],
)
def test_params_are_what_keras_gives(tmp_path: Path, local: bool, callback: Any) -> None:
    instance = callback()
    params = {"verbose": 1, "epochs": 3, "steps": 20}
    make_callbacks(
        lambda: [instance],
        dense(),
        keras.optimizers.SGD(0.1),
        tmp_path,
        trains_locally=local,
        check_monitors=lambda found: None,
        make_params=lambda: params,
    )
    assert instance.params == params


def test_a_progress_bar_counts_global_steps_and_has_no_end(tmp_path: Path) -> None:
    bar = CALLBACKS.ProgbarLogger()
    params = {"verbose": 1, "epochs": 3, "steps": 20}
    make_callbacks(
        lambda: [bar],
        dense(),
        keras.optimizers.SGD(0.1),
        tmp_path,
        check_monitors=lambda found: None,
        make_params=lambda: params,
    )
    assert (bar.epochs, bar.target, bar.verbose) == (3, None, 1)


@pytest.mark.parametrize(
    ("window", "blocks", "steps"), [(None, True, 3), (64, True, 3), (0, True, 4), (None, False, 4)]
)
def test_the_steps_of_an_epoch_follow_from_the_order_of_records(window: int | None, blocks: bool, steps: int) -> None:
    train = SimpleNamespace(epochs=2, minibatch_size=10, shuffle=SimpleNamespace(window=window))
    sources = [SimpleNamespace(records=11), SimpleNamespace(records=17)]
    reader = SimpleNamespace(sources=lambda: sources, **({"blocks": len} if blocks else {}))
    params = build_callback_params(train, Strategy(), reader)  # type: ignore[arg-type]
    assert params == {"verbose": 1, "epochs": 2, "steps": steps}


@pytest.mark.parametrize(("global_batch", "steps"), [(9, 4), (14, 2), (None, None)])
def test_under_all_reduce_the_steps_of_an_epoch_follow_from_the_global_batch(
    global_batch: int | None, steps: int | None
) -> None:
    train = SimpleNamespace(epochs=2, minibatch_size=10, shuffle=SimpleNamespace(window=None))
    reader = SimpleNamespace(sources=lambda: [SimpleNamespace(records=11), SimpleNamespace(records=17)])
    strategy = Strategy(name="AllReduce", global_batch=global_batch)
    assert build_callback_params(train, strategy, reader)["steps"] == steps  # type: ignore[arg-type]


def stop(model: Any) -> None:
    model.stop_training = True


def test_that_a_callback_stops_training_is_reported_each_time_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stops: list[None] = []
    model = dense()
    watching = watch(ScriptedCallback(stop), tmp_path, model=model, on_stop=lambda: stops.append(None))
    with caplog.at_level(logging.INFO):
        train(watching, [[1.0, 1.0]])
    assert len(stops) >= 2
    assert not model.stop_training, "after a rollback the callbacks decide again"
    assert len([message for message in caplog.messages if "stop_training" in message]) == 1


def test_it_is_reported_wherever_the_callback_does_it(tmp_path: Path) -> None:
    class AtTheTest(keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_end(self, logs: Any = None) -> None:
            stop(self.model)

    stops: list[None] = []
    watching = watch(AtTheTest(), tmp_path, on_stop=lambda: stops.append(None))
    watching.begin_test()
    assert not stops
    watching.end_test()
    assert len(stops) == 1


def test_where_the_process_trains_itself_it_has_an_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = dense()
    train(watch(ScriptedCallback(stop), tmp_path, model=model, local=True), [[1.0]])
    assert model.stop_training
    assert not caplog.messages


def test_without_callbacks_nothing_is_watched(tmp_path: Path) -> None:
    for make in (None, list, lambda: None):
        assert type(make_callbacks(make, None, None, tmp_path, check_monitors=lambda found: None)) is NoCallbacks
