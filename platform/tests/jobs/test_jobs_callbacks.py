"""Whole jobs with weights, several outputs, and callbacks that decide by evaluations."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs.plain_keras import QUIET, assign, checkpoint_arrays
from support.job_folder import JobFolder, write_module
from support.journal_bytes import read_entries
from support.text_keys import missing_keys

from edl.storage.checkpoint_manifest import list_cuts

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow, pytest.mark.filterwarnings(QUIET)]

RECORDS = 64
MODULE = """
import keras, tensorflow as tf

def custom_model():
    x = keras.Input([3])
    hidden = keras.layers.Dense(4, activation="tanh")(x)
    outputs = {"number": keras.layers.Dense(1)(hidden), "kind": keras.layers.Dense(2, activation="softmax")(hidden)}
    return keras.Model(x, outputs)

loss = {"number": "mse", "kind": "sparse_categorical_crossentropy"}
loss_weights = {"number": 0.5, "kind": 1.5}
optimizer = keras.optimizers.Adam(0.05)

def eval_metrics_fn():
    return {"number": ["mae"], "kind": ["accuracy"]}

def weighted_metrics_fn():
    return {"number": ["mse"]}

def feed(dataset, mode, metadata):
    def parse(row):
        row = tf.strings.to_number(row)
        return row[:3], {"number": row[3:4], "kind": tf.cast(row[4], tf.int64)}, row[5]
    return dataset.map(parse)
"""


def rows() -> Any:
    random = np.random.default_rng(1)
    x = random.normal(size=(RECORDS, 3))
    number, kind = x[:, :1] - x[:, 1:2], (x[:, 2:] > 0).astype(float)
    return np.hstack([x, number, kind, random.uniform(0.1, 2.0, (RECORDS, 1))]).round(4).astype(np.float32)


def job_folder(folder: Path, module: str, *, train: dict[str, Any], workers: int = 1, **fields: Any) -> JobFolder:
    """A minibatch is the whole data set, so that the order of the records plays no part."""
    folder.mkdir(parents=True, exist_ok=True)
    write_module(folder, "asked", module)
    data = folder / "data.csv"
    data.write_text("".join(",".join(f"{value:.4f}" for value in row) + "\n" for row in rows()))
    return JobFolder.make(
        folder,
        "asked",
        "asked.custom_model",
        data={"training": str(data), "validation": str(data), "reader": {"header": False}},
        train={"minibatch_size": RECORDS, "minibatches_per_task": 1, **train},
        workers={"max": workers},
        **fields,
    )


def by_keras(epochs: int) -> tuple[Any, dict[str, float]]:
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(MODULE, scope)
    model = scope["custom_model"]()
    model.compile(
        scope["optimizer"],
        loss=scope["loss"],
        loss_weights=scope["loss_weights"],
        metrics=scope["eval_metrics_fn"](),
        weighted_metrics=scope["weighted_metrics_fn"](),
    )
    data = rows()
    x, y, weights = data[:, :3], {"number": data[:, 3:4], "kind": data[:, 4].astype(np.int64)}, data[:, 5]
    each = {"number": weights, "kind": weights}
    model.fit(x, y, sample_weight=each, batch_size=RECORDS, epochs=epochs, verbose=0)
    results = model.evaluate(x, y, sample_weight=each, batch_size=RECORDS, verbose=0, return_dict=True)
    return model, {name: float(value) for name, value in results.items()}


@pytest.mark.repetition
def test_weights_and_losses_of_outputs_come_to_what_keras_fit_does(tmp_path: Path) -> None:
    job = job_folder(tmp_path, MODULE, train={"epochs": 25})
    with job.run() as run:
        summary, run_dir = run.summary(), run.run_dir
    model, expected = by_keras(25)
    assert set(summary["metrics"]) == {"loss", "number_mae", "kind_accuracy", "number_mse"}
    for name, value in summary["metrics"].items():
        assert value == pytest.approx(expected[name], rel=1e-4), name
    folder = run_dir / "checkpoints"
    restored = assign(
        type(model).from_config(model.get_config()), checkpoint_arrays(folder / f"cut-{list_cuts(folder)[-1]:08}")
    )
    for mine, theirs in zip(restored.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


CALLBACKS = """
def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.05, min_lr=0.001, cooldown=1),
        keras.callbacks.ModelCheckpoint("best.keras", monitor="val_kind_accuracy", save_best_only=True),
        keras.callbacks.EarlyStopping(patience=3, min_delta=0.02, restore_best_weights=True),
        keras.callbacks.CSVLogger("log.csv"),
    ]
"""


def evaluate(path: Path) -> dict[str, float]:
    import keras

    model = keras.models.load_model(path)
    scope: dict[str, Any] = {}
    exec(MODULE, scope)
    model.compile(loss=scope["loss"], loss_weights=scope["loss_weights"], metrics=scope["eval_metrics_fn"]())
    data = rows()
    y, weights = {"number": data[:, 3:4], "kind": data[:, 4].astype(np.int64)}, data[:, 5]
    results = model.evaluate(
        data[:, :3],
        y,
        sample_weight={"number": weights, "kind": weights},
        batch_size=RECORDS,
        verbose=0,
        return_dict=True,
    )
    return {name: float(value) for name, value in results.items()}


@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.repetition)])
def test_the_master_stops_a_job_lowers_its_rate_and_keeps_the_best(mode: str, tmp_path: Path) -> None:
    """Also when it is killed in between, and when the run is gone on with after its end."""
    job = job_folder(
        tmp_path,
        MODULE + CALLBACKS,
        train={"epochs": 100_000, "evaluation_steps": 40},
        workers=2,
        checkpoint={"every_steps": 100, "keep": 1},
        export={},
        strategy={"name": "ParameterServer", "mode": mode},
    )
    with job.run() as run:
        run.wait_event("evaluation_ended")
        run.send("master", 0, signal.SIGKILL)
        run.wait_event("callback_decided", callback="ReduceLROnPlateau", timeout=240.0)
        run_dir = run.run_dir
        run.kill()
    with job.run("--resume", run_dir.name) as run:
        summary = run.summary(timeout=240.0)
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    evaluated = [line["metrics"] for line in events if line["event"] == "evaluation_ended"]
    decided = [line for line in events if line["event"] == "callback_decided"]
    assert summary["phase"] == "Done"
    assert summary["reason"].startswith("EarlyStopping: val_loss has not improved for")
    assert summary["records_lost"] == 0
    rates = [float(line["decision"].split()[-1]) for line in decided if line["callback"] == "ReduceLROnPlateau"]
    assert rates == [max(0.05 * 0.5**n, 0.001) for n in range(1, len(rates) + 1)], "nobody forgets what was decided"
    assert {line["callback"] for line in decided} == {"ReduceLROnPlateau", "ModelCheckpoint", "EarlyStopping"}
    exported = evaluate(run_dir / "export" / "model.keras")
    assert summary["metrics"]["loss"] == pytest.approx(exported["loss"], rel=1e-4)
    assert (
        min(each["loss"] for each in evaluated) <= exported["loss"] <= min(each["loss"] for each in evaluated) + 0.021
    )
    best = evaluate(tmp_path / "best.keras")
    assert best["kind_accuracy"] == pytest.approx(max(each["kind_accuracy"] for each in evaluated))
    assert sorted(path.name for path in tmp_path.glob("log*.csv")) == [f"log-worker-{n}.csv" for n in range(4)]


@pytest.mark.repetition
def test_a_subclass_is_refused_before_the_first_step(tmp_path: Path) -> None:
    own = """
class Mine(keras.callbacks.EarlyStopping):
    pass

def callbacks():
    return [Mine()]
"""
    job = job_folder(tmp_path, MODULE + own, train={"evaluation_steps": 5})
    with job.run() as run:
        assert run.wait() == 2
        summary = run.lines[-1]
    assert summary["records_done"] == 0
    assert "Mine (a keras.callbacks.EarlyStopping)" in json.dumps(summary)


STEPS = 5
MONITORS = """
def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.05, min_lr=0.001, cooldown=1),
        keras.callbacks.EarlyStopping(patience=3, min_delta=0.02),
    ]
"""


def fit_until_stopped(callbacks: str = MONITORS) -> tuple[Any, dict[str, list[float]]]:
    """Plain Keras with these callbacks; an epoch is the data set ``STEPS`` times."""
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(MODULE + callbacks, scope)
    model = scope["custom_model"]()
    model.compile(
        scope["optimizer"],
        loss=scope["loss"],
        loss_weights=scope["loss_weights"],
        metrics=scope["eval_metrics_fn"](),
        weighted_metrics=scope["weighted_metrics_fn"](),
    )

    def make_inputs(times: int) -> tuple[Any, Any, Any]:
        data = np.tile(rows(), (times, 1))
        weights = {"number": data[:, 5], "kind": data[:, 5]}
        return data[:, :3], {"number": data[:, 3:4], "kind": data[:, 4].astype(np.int64)}, weights

    x, y, weights = make_inputs(STEPS)
    history = model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=RECORDS,
        epochs=1000,
        shuffle=False,
        verbose=0,
        validation_data=make_inputs(1),
        callbacks=scope["callbacks"](),
    ).history
    return model, history


@pytest.mark.repetition
def test_two_ranks_stop_and_lower_their_rate_as_keras_fit_does(tmp_path: Path) -> None:
    """Both ranks have the whole data set in each step, so the mean gradient is that of one process."""
    job = job_folder(
        tmp_path,
        MODULE + MONITORS,
        train={"epochs": 100_000, "evaluation_steps": STEPS},
        workers=2,
        export={},
        strategy={"name": "AllReduce"},
    )
    with job.run() as run:
        summary, run_dir = run.summary(timeout=240.0), run.run_dir
    model, history = fit_until_stopped()
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert summary["phase"] == "Done"
    assert summary["reason"].startswith("EarlyStopping: val_loss has not improved for 3 evaluations")
    decided = [line for line in events if line["event"] == "callback_decided"]
    assert decided[-1]["step"] == STEPS * len(history["val_loss"]), "the evaluation after which fit stops"
    changes = [
        (line["step"], float(line["decision"].split()[-1]))
        for line in decided
        if line["callback"] == "ReduceLROnPlateau"
    ]
    # History has the rate before the callbacks of an epoch.
    rates = history["learning_rate"]
    expected = [
        (STEPS * (epoch + 1), pytest.approx(after, rel=1e-5))
        for epoch, (before, after) in enumerate(pairwise(rates))
        if after != before
    ]
    assert expected
    assert [change for change in changes if change[0] < STEPS * len(rates)] == expected
    import keras

    exported = keras.models.load_model(run_dir / "export" / "model.keras")
    for mine, theirs in zip(exported.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


KEEPS_BEST = """
def callbacks():
    return [
        keras.callbacks.EarlyStopping(
            monitor="val_number_mae", mode="min", patience=3, min_delta=0.02, start_from_epoch=4,
            restore_best_weights=True,
        ),
        keras.callbacks.ModelCheckpoint(
            "FOLDER/best-{epoch:02d}.keras", monitor="val_kind_accuracy", mode="max", save_best_only=True
        ),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.05, min_lr=0.01),
    ]
"""


@pytest.mark.repetition
@pytest.mark.parametrize("workers", [1, 2])
def test_all_reduce_keeps_the_best_weights_as_keras_fit_does(workers: int, tmp_path: Path) -> None:
    """Of two workers the one that writes checkpoints is killed; each has the whole data set in each step."""
    job = job_folder(
        tmp_path / "job",
        MODULE + KEEPS_BEST.replace("FOLDER", str(tmp_path / "job")),
        train={"epochs": 100_000, "evaluation_steps": STEPS},
        workers=workers,
        checkpoint={"every_steps": 1000, "keep": 1},
        export={},
        strategy={"name": "AllReduce"},
    )
    with job.run() as run:
        if workers == 2:
            run.wait_event("callback_decided", callback="ModelCheckpoint", timeout=240.0)
            run.send("worker", 0, signal.SIGKILL)
        summary, run_dir = run.summary(timeout=240.0), run.run_dir
    (tmp_path / "fit").mkdir()
    model, history = fit_until_stopped(KEEPS_BEST.replace("FOLDER", str(tmp_path / "fit")))
    assert summary["phase"] == "Done"
    assert summary["reason"].startswith("EarlyStopping: val_number_mae has not improved for 3 evaluations")
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in events if line["event"] == "evaluation_ended"]
    assert max(steps) == STEPS * len(history["val_loss"]), "the evaluation after which fit stops"
    names = sorted(path.name for path in (tmp_path / "fit").glob("*.keras"))
    assert sorted(path.name for path in (tmp_path / "job").glob("*.keras")) == names
    import keras

    pairs = [(keras.models.load_model(run_dir / "export" / "model.keras"), model)]
    pairs += [tuple(keras.models.load_model(tmp_path / each / name) for each in ("job", "fit")) for name in names]
    for mine, theirs in pairs:
        for ours, expected in zip(mine.get_weights(), theirs.get_weights(), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4)
    restored = evaluate(run_dir / "export" / "model.keras")
    assert summary["metrics"]["number_mae"] == pytest.approx(restored["number_mae"], rel=1e-4)


WRITES_FILES = """
def callbacks():
    return [
        keras.callbacks.ModelCheckpoint("FOLDER/{epoch:02d}-{loss:.2f}.keras"),
        keras.callbacks.ModelCheckpoint("FOLDER/some-{epoch}.weights.h5", save_weights_only=True, save_freq=4),
        keras.callbacks.ModelCheckpoint("FOLDER/valued-{epoch}-{val_loss:.2f}.keras"),
    ]
"""


@pytest.mark.repetition
def test_all_reduce_writes_the_files_of_model_checkpoint_as_keras_fit_does(tmp_path: Path) -> None:
    """A step and an epoch are the whole data set. The worker that writes is killed."""
    folders = tmp_path / "job", tmp_path / "fit"
    epochs = 6
    job = job_folder(
        folders[0],
        MODULE + WRITES_FILES.replace("FOLDER", str(folders[0])),
        train={"epochs": epochs, "evaluation_steps": 1},
        workers=2,
        checkpoint={"every_steps": 1000, "keep": 1},
        strategy={"name": "AllReduce", "global_batch": RECORDS},
    )
    with job.run() as run:
        run.wait_event("callback_decided", callback="ModelCheckpoint", timeout=240.0)
        run.send("worker", 0, signal.SIGKILL)
        assert run.summary(timeout=240.0)["records_lost"] == 0
    folders[1].mkdir()
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(MODULE + WRITES_FILES.replace("FOLDER", str(folders[1])), scope)
    model = scope["custom_model"]()
    model.compile(scope["optimizer"], loss=scope["loss"], loss_weights=scope["loss_weights"])
    data = rows()
    x, y = data[:, :3], {"number": data[:, 3:4], "kind": data[:, 4].astype(np.int64)}
    weights = {"number": data[:, 5], "kind": data[:, 5]}
    model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=RECORDS,
        epochs=epochs,
        verbose=0,
        validation_data=(x, y, weights),
        callbacks=scope["callbacks"](),
    )
    names = sorted(path.name for pattern in ("*.keras", "*.h5") for path in folders[1].glob(pattern))
    assert len(names) == 2 * epochs + epochs // 4
    left = [path.name for pattern in ("*.keras", "*.h5", ".new*") for path in folders[0].glob(pattern)]
    assert sorted(left) == names, "nothing else is left, also of the writer that was killed"

    def load(path: Path) -> Any:
        if path.suffix == ".keras":
            return keras.models.load_model(path, compile=False)
        loaded = scope["custom_model"]()
        loaded.load_weights(path)
        return loaded

    for name in names:
        written, expected = (load(folder / name).get_weights() for folder in folders)
        for mine, theirs in zip(written, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


COMPILED = """
make = custom_model

def custom_model():
    model = make()
    model.compile(
        keras.optimizers.Adam(0.05),
        {"number": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"number": 0.5, "kind": 1.5},
        metrics={"number": ["mae"], "kind": ["accuracy"]},
    )
    return model

del loss, optimizer, loss_weights, eval_metrics_fn, weighted_metrics_fn
"""


@pytest.mark.repetition
def test_a_compiled_model_trains_as_its_functions_do(tmp_path: Path) -> None:
    """Plain Keras trains the functions here: a job of them would give the same, as another test shows."""
    job = job_folder(tmp_path, MODULE + COMPILED, train={"epochs": 12}, export={}, strategy={"name": "Local"})
    with job.run() as run:
        metrics = run.summary(timeout=240.0)["metrics"]
        export = run.run_dir / "export" / "model.keras"
    functions, expected = by_keras(12)
    import keras

    trained = keras.models.load_model(export).get_weights()
    for mine, theirs in zip(trained, functions.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert metrics == pytest.approx({name: expected[name] for name in metrics}, rel=1e-5)
    assert len(metrics) == 3


@pytest.mark.repetition
def test_one_of_two_workers_evaluates_exact_steps_while_the_other_trains(tmp_path: Path) -> None:
    """A minibatch is the whole data set, so the variables of a step are those of plain Keras whoever made it."""
    strategy = {"name": "AllReduce"}
    job = job_folder(
        tmp_path, MODULE, train={"epochs": 400, "evaluation_steps": 50}, workers=2, strategy=strategy, export={}
    )
    many = tmp_path / "many.csv"
    many.write_text((tmp_path / "data.csv").read_text() * 60)
    job.spec["data"]["validation"] = str(many)
    job.file.write_text(json.dumps(job.spec))
    with job.run() as run:
        summary, run_dir = run.summary(timeout=240.0), run.run_dir
    assert summary["phase"] == "Done"
    entries = read_entries(run_dir / "journal")
    evaluated = [entry for entry in entries if entry["kind"] == "evaluated" and not entry["final"]]
    begun = {entry["step"]: entry for entry in entries if entry["kind"] == "evaluation"}
    copied = [entry["step"] for entry in evaluated if begun[entry["step"]].get("of_copy")]
    assert copied
    steps_meanwhile = 0
    for step in copied:
        first = next(at for at, e in enumerate(entries) if e["kind"] == "evaluation" and e["step"] == step)
        last = next(at for at, e in enumerate(entries) if e["kind"] == "evaluated" and e["step"] == step)
        steps_meanwhile += sum(entry["kind"] == "steps" for entry in entries[first:last])
    assert steps_meanwhile > 0
    model = fit_steps(max(copied))
    for step, loss in model.items():
        losses = [entry["metrics"]["loss"] for entry in evaluated if entry["step"] == step]
        assert losses == [] or losses == [pytest.approx(loss, rel=2e-3)], step


def fit_steps(last: int) -> dict[int, float]:
    """The validation loss of plain Keras after every fifty steps."""
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(MODULE, scope)
    model = scope["custom_model"]()
    model.compile(scope["optimizer"], loss=scope["loss"], loss_weights=scope["loss_weights"])
    data = rows()
    labels = {"number": data[:, 3:4], "kind": data[:, 4].astype(np.int64)}
    weights = {"number": data[:, 5], "kind": data[:, 5]}
    losses = {}
    for step in range(1, last + 1):
        model.train_on_batch(data[:, :3], labels, sample_weight=weights)
        if step % 50 == 0:
            losses[step] = model.evaluate(
                data[:, :3], labels, sample_weight=weights, batch_size=RECORDS, verbose=0, return_dict=True
            )["loss"]
    return losses


OWN = """
class WarmUp(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.05 * min(1.0, (int(self.model.optimizer.iterations) + 1) / 10)

class StopAt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 37:
            self.model.stop_training = True

class Shrink(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if int(self.model.optimizer.iterations) == 37:
            kernel = self.model.trainable_variables[0]
            kernel.assign(kernel * 0.9)

    def on_train_end(self, logs=None):
        bias = self.model.trainable_variables[-1]
        bias.assign(bias + 1.0)

def callbacks():
    return [WarmUp(), StopAt(), Shrink()]
"""


STOPS = """
class StopAt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) >= 37:
            self.model.stop_training = True

def callbacks():
    return [StopAt()]
"""


@pytest.mark.repetition
def test_with_parameter_servers_a_callback_of_the_users_own_ends_the_job(tmp_path: Path) -> None:
    job = job_folder(tmp_path, MODULE + STOPS, train={"epochs": 100_000, "minibatches_per_task": 4}, workers=1)
    with job.run() as run:
        summary = run.summary(timeout=240.0)
    assert summary["phase"] == "Done"
    assert not missing_keys(summary["reason"], "model.stop_training")
    assert 0 < summary["records_done"] < summary["records_total"] // 100


@pytest.mark.repetition
def test_two_ranks_warm_up_and_stop_by_callbacks_of_the_users_own_as_keras_fit_does(tmp_path: Path) -> None:
    job = job_folder(
        tmp_path,
        MODULE + OWN,
        train={"epochs": 100_000},
        workers=2,
        export={},
        strategy={"name": "AllReduce"},
    )
    with job.run() as run:
        summary, run_dir = run.summary(timeout=240.0), run.run_dir
    assert summary["phase"] == "Done"
    assert not missing_keys(summary["reason"], "model.stop_training", "step 37")
    model, _ = fit_until_stopped(OWN)
    import keras

    exported = keras.models.load_model(run_dir / "export" / "model.keras")
    for mine, theirs in zip(exported.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)
