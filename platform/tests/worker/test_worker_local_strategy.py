"""Strategy Local: whole runs in this process, with real Keras."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gan_model import ADVERSARIAL, train_plainly, write_gan
from support.repetition import repetition
from support.text_keys import missing_keys

from edl.core import record_ranges, shuffle
from edl.jobfile.event_json import parse_event_line
from edl.jobfile.loader import dump_job_spec, load_job_file, load_job_text
from edl.storage.checkpoint_manifest import newest_intact_checkpoint
from edl.storage.checkpoint_shards import read_shard, shard_path
from edl.storage.run_directory import RunDirectory, create_run

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

MODEL = """
import keras, tensorflow as tf

def custom_model():
    return keras.Sequential([
        keras.Input((2,)),
        keras.layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01)),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ])

def loss(labels, predictions):
    return tf.square(labels - predictions)

def optimizer():
    return keras.optimizers.RMSprop(0.01)

def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}

def feed(dataset, mode, metadata):
    return dataset.map(lambda row: tf.strings.to_number(row)).map(lambda row: (row[:2], row[2:]))
"""


class LocalTraining:
    def __init__(self, folder: Path, model: str = MODEL, bad_rows: tuple[int, ...] = ()) -> None:
        self.folder = folder
        self.validation: str | None = str(folder / "data.csv")
        (folder / "zoo").mkdir(exist_ok=True)
        (folder / "zoo" / "small.py").write_text(model)
        x = np.random.default_rng(0).normal(size=(50, 2))
        lines = [f"{a:.4f},{b:.4f},{a - b:.4f}" for a, b in x]
        for row in bad_rows:
            lines[row] = '"broken'
        (folder / "data.csv").write_text("\n".join(lines) + "\n")

    def run(
        self,
        run: RunDirectory | None = None,
        *,
        export: dict[str, Any] | None = None,
        plain: bool = False,
        **train: Any,
    ) -> tuple[RunDirectory, int]:
        from edl.worker.local_strategy.local_main import main

        run = run or create_run(self.folder / "runs" / "local" / "job")
        csv = str(self.folder / "data.csv")
        spec = {
            "apiVersion": "edl.dev/v1",
            "name": "job",
            "model": {"zoo": str(self.folder / "zoo"), "definition": "small.custom_model"},
            "data": {"training": csv, "validation": self.validation, "reader": {"header": False}},
            "train": {"minibatch_size": 4, "minibatches_per_task": 3, "epochs": 2, "evaluation_steps": 10, **train},
            "checkpoint": {"every_steps": 7, "keep": 2},
            "export": export,
            "strategy": {"name": "Local"},
        }
        path = self.folder / "job.json"
        path.write_text(json.dumps(spec))
        run.spec.write_text(json.dumps(dump_job_spec(load_job_file(path))))
        return run, main({"EDL_RUN_DIR": str(run.path), "EDL_JSON": "0" if plain else "1"})


@pytest.fixture
def train_locally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalTraining]:
    from edl.worker import worker_process

    monkeypatch.setattr(worker_process, "set_thread_counts", lambda workers: None)  # once a process only
    return lambda *arguments, **more: LocalTraining(tmp_path, *arguments, **more)


def arrays(run: RunDirectory) -> dict[str, Any]:
    checkpoint = newest_intact_checkpoint(run.checkpoints)
    assert checkpoint is not None
    assert checkpoint.directory is not None
    return read_shard(shard_path(checkpoint.directory, 0))[0]


def events(run: RunDirectory) -> Iterator[Any]:
    return (parse_event_line(line) for line in run.events.read_text().splitlines())


def test_a_run_trains_evaluates_keeps_checkpoints_and_exports(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    run, code = train_locally().run(export={})

    out = capsys.readouterr()
    assert code == 0, out.err
    summary = json.loads(out.out.splitlines()[-1])
    assert (summary["event"], summary["exit_code"]) == ("summary", 0)
    assert (summary["records_done"], summary["records_total"], summary["records_lost"]) == (100, 100, 0)
    assert set(summary["metrics"]) == {"loss", "mae"}
    assert [e.step for e in events(run) if e.kind == "evaluation_ended"] == [10, 20, 26]
    assert [e.step for e in events(run) if e.kind == "checkpoint_saved"] == [7, 14, 21, 26]
    assert json.loads(run.status.read_text())["phase"] == "Done"
    assert Path(summary["export"], "model.keras").exists()


def test_a_minibatch_above_the_records_of_an_epoch_is_refused(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    run, code = train_locally().run(minibatch_size=51)
    assert code == 2
    assert not missing_keys(capsys.readouterr().err, "train.minibatch_size", "51", "data.training", "50 records")
    assert not newest_intact_checkpoint(run.checkpoints)


@pytest.mark.parametrize(("condition", "code"), [("tf.math.is_nan(x[0])", 2), ("x[0] > 0.0", 0)])
@pytest.mark.first_cases(1)
def test_a_feed_that_drops_every_record_is_refused(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str], condition: str, code: int
) -> None:
    filtered = f"(row[:2], row[2:])).filter(lambda x, y: {condition})"
    _, exit_code = train_locally(MODEL.replace("(row[:2], row[2:]))", filtered)).run()
    assert exit_code == code
    assert bool(missing_keys(capsys.readouterr().err, "feed", "50 records")) == (not code)


@pytest.mark.repetition
def test_a_job_that_evaluates_nothing_needs_no_metrics(train_locally: Callable[..., LocalTraining]) -> None:
    silent = MODEL.replace("def eval_metrics_fn", "def not_needed")
    job = train_locally(silent)
    _, code = job.run()
    assert code == 2, "it evaluates"
    job.validation = None
    _, code = job.run(evaluation_steps=None)
    assert code == 0


def test_the_process_is_the_runs_only_worker(train_locally: Callable[..., LocalTraining]) -> None:
    run, _ = train_locally().run(max_steps=2)
    first, *_, ended, last = events(run)
    assert (first.kind, first.role, first.index, first.pid) == ("role_started", "worker", 0, os.getpid())
    assert (ended.kind, ended.role, ended.pid, ended.reason) == ("role_ended", "worker", os.getpid(), "Completed")
    assert last.kind == "job_ended"


@pytest.mark.repetition
def test_max_steps_ends_a_run_as_it_does_a_distributed_one(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    run, code = train_locally().run(max_steps=13)
    assert code == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not missing_keys(summary["reason"], "13 steps", "max_steps")
    assert (summary["records_done"], summary["records_total"]) == (50, 52), "an epoch ends with a short step"
    assert summary["logs"] is None, "it prints to its terminal"
    saved_summary = json.loads((run.path / "summary.json").read_text())
    assert saved_summary == {name: summary[name] for name in saved_summary}
    run, _ = train_locally().run(max_steps=1000)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["reason"], summary["records_total"]) == ("all records are done", 100)


@pytest.mark.repetition
def test_people_read_the_same_end_as_of_a_distributed_run(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    train_locally().run(plain=True)
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if "epoch 0" in line]
    heading, records, metrics = lines[-3:]
    assert re.match(r"Done after \d+ s: 100 of 100 records", heading)
    assert records == "  records   0 lost, 0 repeated, 0 rolled back"
    assert re.match(r"  evaluated .*mae [0-9.]+", metrics)


def test_a_resumed_run_is_bit_for_bit_an_uninterrupted_one(train_locally: Callable[..., LocalTraining]) -> None:
    job = train_locally()
    uninterrupted, _ = job.run()
    resumed, code = job.run(max_steps=11)
    assert code == 0
    _, code = job.run(resumed)
    assert code == 0

    expected, resumed_arrays = arrays(uninterrupted), arrays(resumed)
    assert expected.keys() == resumed_arrays.keys()
    for name in expected:
        np.testing.assert_array_equal(resumed_arrays[name], expected[name], err_msg=name)


@pytest.mark.repetition
def test_a_learning_rate_that_the_user_corrects_counts_when_the_run_is_resumed(
    train_locally: Callable[..., LocalTraining], monkeypatch: pytest.MonkeyPatch
) -> None:
    parted, _ = train_locally().run(max_steps=11)
    for name in [name for name in sys.modules if name.partition(".")[0] == "zoo"]:
        monkeypatch.delitem(sys.modules, name)  # a resumed run is another process
    _, code = train_locally(MODEL.replace("RMSprop(0.01)", "RMSprop(0.003)")).run(parted, max_steps=12)
    assert code == 0
    rates = [float(values) for values in arrays(parted).values() if values.shape == () and values.dtype == np.float32]
    assert rates == [pytest.approx(0.003)]


def test_a_run_is_not_resumed_on_other_records_of_the_same_number(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    job = train_locally()
    parted, _ = job.run(max_steps=7)
    data = job.folder / "data.csv"
    data.write_text(data.read_text().replace("1", "2"))
    _, code = job.run(parted, max_steps=8)
    assert code == 2
    assert not missing_keys(capsys.readouterr().err, str(data), "the data has changed since this run started")


@pytest.mark.repetition
def test_a_run_from_before_there_were_windows_goes_on_without_one(
    train_locally: Callable[..., LocalTraining], monkeypatch: pytest.MonkeyPatch
) -> None:
    from edl.worker.local_strategy import local_training

    def older(*arguments: Any) -> Any:
        checkpoint = newest_intact_checkpoint(*arguments)
        assert checkpoint is not None
        assert checkpoint.ledger["window"] == 0
        # Neither had they a position in the data other than the number of steps.
        return replace(
            checkpoint, ledger={name: checkpoint.ledger[name] for name in ("records_done", "records_skipped")}
        )

    job = train_locally()
    uninterrupted, _ = job.run(shuffle={"window": 0})
    resumed, _ = job.run(max_steps=11, shuffle={"window": 0})
    monkeypatch.setattr(local_training.checkpoint_manifest, "newest_intact_checkpoint", older)
    job.run(resumed)
    monkeypatch.undo()
    expected, resumed_arrays = arrays(uninterrupted), arrays(resumed)
    for name in expected:
        np.testing.assert_array_equal(resumed_arrays[name], expected[name], err_msg=name)


def test_steps_come_in_the_order_in_which_shards_are_planned(train_locally: Callable[..., LocalTraining]) -> None:
    from edl.worker.local_strategy.local_training import make_ledger, steps

    job = train_locally()
    run, _ = job.run(max_steps=1)
    spec = load_job_file(run.spec)
    sources = [record_ranges.RecordSource("a", 30), record_ranges.RecordSource("b", 7)]
    planned = list(steps(make_ledger(spec.train, sources, None)))
    for epoch in range(2):
        windows = [(p.task.source, *p.task.step_range(p.step)) for p in planned if p.epoch == epoch]
        covered = [(s, i) for s, start, end in windows for i in range(start, end)]
        assert sorted(covered) == [(s.name, i) for s in sources for i in range(s.records)]
        plan = record_ranges.ShardPlan(tuple(sources), 12, spec.train.seed)
        shards = [plan.shard(epoch, index) for index in range(plan.shard_count)]
        order = [(shard.source, shard.start) for shard in shards]
        assert list(dict.fromkeys((p.task.source, p.task.start) for p in planned if p.epoch == epoch)) == order


@pytest.mark.parametrize("window", [0, 4, 24])
def test_a_position_in_the_data_is_a_ledger_from_which_the_same_steps_follow(window: int) -> None:
    """Also within a window of several leases, which only the holder of a lease continues."""
    from edl.worker.local_strategy.local_training import ledger_position, make_ledger, steps

    spec = load_job_text(
        "name: job\nmodel: {zoo: ., definition: m.f}\ndata: {training: t.csv}\n"
        "train: {minibatch_size: 4, minibatches_per_task: 2, epochs: 2}\n",
        "job.yaml",
    )
    sources = [record_ranges.RecordSource("a", 50), record_ranges.RecordSource("b", 7)]
    order = shuffle.ShuffleOrder(tuple(sources), (((50, 1),), ((7, 1),)), window, 3) if window else None

    def ranges(planned: Any) -> list[Any]:
        return [(each.epoch, each.task.source, *each.task.step_range(each.step)) for each in planned]

    all_ranges = ranges(steps(make_ledger(spec.train, sources, order)))
    assert sum(end - start for *_, start, end in all_ranges) == 2 * 57
    for done in range(len(all_ranges)):
        ledger = make_ledger(spec.train, sources, order)
        first = list(islice(steps(ledger), done))
        position = json.loads(json.dumps(ledger_position(ledger, first[-1] if first else None)))
        assert position["done_steps"] == done
        assert not position["leases"]
        resumed = make_ledger(spec.train, sources, order)
        resumed.restore_snapshot(position)
        assert resumed.count_remaining_records() == 2 * 57 - position["done_records"]
        assert ranges(first) + ranges(steps(resumed)) == all_ranges


def test_nan_stops_and_names_the_records(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODEL.replace("tf.square(labels - predictions)", "tf.math.log(labels * 0.0 - 1.0)")
    _, code = train_locally(model).run()
    assert code == 1
    out = capsys.readouterr()
    assert "loss nan from records" in out.err
    assert json.loads(out.out.splitlines()[-1])["phase"] == "Failed"


def test_a_gradient_that_is_not_finite_is_named_though_the_loss_is_finite(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODEL.replace("tf.square(labels - predictions)", "tf.sqrt(predictions - tf.stop_gradient(predictions))")
    _, code = train_locally(model).run()
    assert code == 1
    assert re.search(r"the gradient of '\S+' is not finite, loss 0\.\d+, from records", capsys.readouterr().err)


def test_an_id_that_no_embedding_has_is_told_with_its_records(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODEL.replace(
        "keras.layers.Dense(8,",
        """keras.layers.Lambda(lambda x: tf.cast(x * 0, "int32") + 7), keras.layers.Embedding(5, 3, name="emb"),
        keras.layers.Flatten(), keras.layers.Dense(8,""",
    )
    _, code = train_locally(model).run()
    assert code == 2
    pattern = (
        r"records [\d, to]+ of \S+data\.csv: id 7 is outside of the embedding 'sequential/emb/embeddings' \(5 x 3\)"
    )
    assert re.search(pattern, capsys.readouterr().err)


def test_nan_may_be_skipped_and_is_counted(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODEL.replace("tf.square(labels - predictions)", "tf.math.log(labels * 0.0 - 1.0)")
    run, code = train_locally(model).run(on_nan="skip", max_steps=3)
    assert code == 0
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert (events[-1]["event"], events[-1]["updates_skipped"]) == ("summary", 3)
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    assert events[-1]["warnings"] == warnings
    assert [text for text in warnings if "loss nan; this step is skipped (1 skipped" in text]
    assert "skipped so far" not in err, "the report says it"
    for name, array in arrays(run).items():
        assert np.isfinite(array).all(), name
    moving = [array for name, array in arrays(run).items() if name.endswith("moving_mean")]
    assert len(moving) == 1
    assert not moving[0].any()


def test_the_users_error_is_shown_with_the_users_lines(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = MODEL.partition("def feed")[0] + 'def feed(dataset, mode, metadata):\n    raise KeyError("lable")\n'
    _, code = train_locally(broken).run()
    assert code == 2
    shown = capsys.readouterr().err
    assert "small.py" in shown
    assert 'raise KeyError("lable")' in shown
    assert "platform/edl" not in shown


def test_a_loss_of_each_label_with_every_prediction_trains_nothing(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    _, code = train_locally(MODEL.replace("row[2:]", "row[2]")).run()
    assert code == 2
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["records_done"] == 0
    assert re.search(r"small\.py: loss\(\) .*shape \(n, n\)", err)


def test_an_interrupt_ends_with_130(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODEL.replace(
        "def loss(labels, predictions):", "def loss(labels, predictions):\n    raise KeyboardInterrupt"
    )
    run, code = train_locally(model).run()
    assert code == 130
    assert [e.phase for e in events(run) if e.kind == "job_ended"] == ["Interrupted"]
    assert [e.reason for e in events(run) if e.kind == "role_ended"] == ["Completed"], "as a stopped distributed run"


def test_callbacks_see_the_trained_model_and_may_stop_the_run(
    train_locally: Callable[..., LocalTraining],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    import keras

    weights_file = tmp_path / "kept.weights.h5"
    callbacks = f"""
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 2

def callbacks():
    return [Stop(), keras.callbacks.ModelCheckpoint({str(weights_file)!r}, save_weights_only=True)]
"""
    run, code = train_locally(MODEL + callbacks).run(export={})
    assert code == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["reason"] == "a callback stopped training"
    assert [e.step for e in events(run) if e.kind == "checkpoint_saved"] == [3]
    assert "no effect" not in caplog.text
    exported = keras.models.load_model(run.path / "export" / "model.keras")
    expected = exported.get_weights()
    exported.load_weights(weights_file)
    for exported_weight, weight in zip(exported.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(exported_weight, weight)


PLAIN = """
import keras, tensorflow as tf

def custom_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])

loss = "mse"

def optimizer():
    return keras.optimizers.Adam(0.3)

def eval_metrics_fn():
    return ["mae"]

def feed(dataset, mode, metadata):
    return dataset.map(lambda row: tf.strings.to_number(row)).map(lambda row: (row[:2], row[2:]))

class Mine(keras.callbacks.EarlyStopping):
    pass

def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_lr=0.01, cooldown=1),
        keras.callbacks.ModelCheckpoint({best!r}, monitor="val_mae", save_best_only=True),
        keras.callbacks.ModelCheckpoint({best!r}.replace(".keras", "-{epoch:02d}-{val_loss:.1f}.keras")),
        Mine(monitor="val_loss", patience=3, restore_best_weights=True),
    ]
"""


def test_callbacks_decide_at_evaluations_as_at_the_epochs_of_keras_fit(
    train_locally: Callable[..., LocalTraining], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An epoch is one minibatch of all records, and evaluated: the order of records plays no part."""
    import keras

    mine, theirs = tmp_path / "mine.keras", tmp_path / "theirs.keras"
    job = train_locally(PLAIN.replace("{best!r}", repr(str(mine))))
    fields = {"minibatch_size": 50, "minibatches_per_task": 1, "epochs": 30, "evaluation_steps": 1}
    run, code = job.run(export={}, **fields)
    out = capsys.readouterr()
    assert code == 0, out.err
    summary = json.loads(out.out.splitlines()[-1])

    rows = np.loadtxt(job.folder / "data.csv", delimiter=",", dtype=np.float32)
    x, y = rows[:, :2], rows[:, 2:]
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(PLAIN.replace("{best!r}", repr(str(theirs))), scope)
    model = scope["custom_model"]()
    model.compile(scope["optimizer"](), loss="mse", metrics=["mae"], run_eagerly=True)
    history = model.fit(
        x, y, batch_size=50, epochs=30, validation_data=(x, y), callbacks=scope["callbacks"](), verbose=0
    ).history

    evaluated = [event.metrics for event in events(run) if event.kind == "evaluation_ended"]
    assert 4 < len(evaluated) == len(history["val_loss"]) < 30
    for name in ("loss", "mae"):
        np.testing.assert_allclose([each[name] for each in evaluated], history[f"val_{name}"], rtol=2e-4)
    exported = keras.models.load_model(run.path / "export" / "model.keras")
    saved, expected = keras.models.load_model(mine), keras.models.load_model(theirs)
    for loaded, wanted in ((exported, model), (saved, expected)):
        for a, b in zip(loaded.get_weights(), wanted.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5)
    assert summary["reason"].startswith("Mine: val_loss has not improved for 3 evaluations")
    valued = [sorted(each.name.partition("-")[2] for each in tmp_path.glob(f"{w}-*")) for w in ("mine", "theirs")]
    assert valued[0] == valued[1]
    assert len(valued[0]) == len(evaluated)
    assert summary["metrics"]["loss"] == min(each["loss"] for each in evaluated)
    rates = [event.decision for event in events(run) if event.kind == "callback_decided" and "rate" in event.decision]
    assert "the learning rate" in rates[0]
    assert "0.15" in rates[0]
    assert rates[-1] == f"the learning rate is now {float(model.optimizer.learning_rate):.6g}"


@pytest.mark.parametrize("name", ["EarlyStopping", repetition("ReduceLROnPlateau")])
def test_a_callback_whose_metric_an_evaluation_does_not_have_is_refused(
    train_locally: Callable[..., LocalTraining], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """R2Score without averaging has a value for each output."""
    source = PLAIN.split("class Mine")[0].replace(
        'return ["mae"]', 'return {"r": keras.metrics.R2Score(class_aggregation=None)}'
    )
    source += f"def callbacks():\n    return [keras.callbacks.{name}('val_r', mode='max')]\n"
    fields = {"minibatch_size": 50, "minibatches_per_task": 1, "epochs": 5, "evaluation_steps": 1}
    _, code = train_locally(source).run(**fields)
    assert code == 2
    assert not missing_keys(capsys.readouterr().err, f"{name} monitors 'val_r'", "val_loss, val_r_0")


@pytest.mark.repetition
def test_averaged_weights_are_what_is_evaluated_and_exported_as_by_keras_fit(
    train_locally: Callable[..., LocalTraining],
) -> None:
    import keras

    source = PLAIN.split("class Mine")[0].replace("Adam(0.3)", "Adam(0.3, use_ema=True, ema_momentum=0.8)")
    job = train_locally(source)
    run, code = job.run(export={}, minibatch_size=50, minibatches_per_task=1, epochs=10)
    assert code == 0
    rows = np.loadtxt(job.folder / "data.csv", delimiter=",", dtype=np.float32)
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(source, scope)
    model = scope["custom_model"]()
    model.compile(scope["optimizer"](), loss="mse", metrics=["mae"], run_eagerly=True)
    model.fit(rows[:, :2], rows[:, 2:], batch_size=50, epochs=10, verbose=0)
    exported = keras.models.load_model(run.path / "export" / "model.keras")
    for exported_weight, expected in zip(exported.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(exported_weight, expected, rtol=2e-3, atol=1e-5)
    last = [event.metrics for event in events(run) if event.kind == "evaluation_ended"][-1]
    assert last["mae"] == pytest.approx(np.abs(model(rows[:, :2]) - rows[:, 2:]).mean(), rel=1e-4)


ENDS = """
import pathlib

class Ends(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.begun = epoch

    def on_epoch_end(self, epoch, logs=None):
        with pathlib.Path({log!r}).open("a") as log:
            weights = [float(weight.sum()) for weight in self.model.get_weights()]
            log.write(json.dumps([epoch, self.begun, int(self.model.optimizer.iterations), weights]) + "\\n")
        self.model.stop_training = epoch == 2

def callbacks():
    return [Ends()]
"""


def test_an_epoch_ends_before_another_step_and_before_weights_are_averaged(
    train_locally: Callable[..., LocalTraining], tmp_path: Path
) -> None:
    """As in ``fit``: a stop there is the end, and ``use_ema`` makes the averages the weights after it."""
    import keras

    source = PLAIN.split("class Mine")[0].replace("Adam(0.3)", "Adam(0.3, use_ema=True, ema_momentum=0.8)")
    source = "import json\n" + source + ENDS
    mine, theirs = tmp_path / "mine.jsonl", tmp_path / "theirs.jsonl"
    job = train_locally(source.replace("{log!r}", repr(str(mine))))
    run, code = job.run(minibatch_size=50, minibatches_per_task=1, epochs=9)
    assert code == 0
    assert [e.step for e in events(run) if e.kind == "checkpoint_saved"] == [3]
    rows = np.loadtxt(job.folder / "data.csv", delimiter=",", dtype=np.float32)
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(source.replace("{log!r}", repr(str(theirs))), scope)
    model = scope["custom_model"]()
    model.compile(scope["optimizer"](), loss="mse", run_eagerly=True)
    model.fit(rows[:, :2], rows[:, 2:], batch_size=50, epochs=9, verbose=0, callbacks=scope["callbacks"]())
    entries, expected = ([json.loads(line) for line in path.read_text().splitlines()] for path in (mine, theirs))
    assert [each[:3] for each in entries] == [each[:3] for each in expected] == [[0, 0, 1], [1, 1, 2], [2, 2, 3]]
    for ours, wanted in zip(entries, expected, strict=True):
        np.testing.assert_allclose(ours[3], wanted[3], rtol=2e-3, atol=1e-5)


STOPS = """
import os, signal

class Stops(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.begun = True

    def on_test_begin(self, logs=None):
        assert self.begun

    def on_train_batch_end(self, batch, logs=None):
        if str(batch + 1) == os.environ.get("STOP_AFTER"):
            os.kill(os.getpid(), signal.SIGTERM)

def callbacks():
    return [*decide(), keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.97), Stops()]
"""
SEVERAL = {"minibatch_size": 16, "minibatches_per_task": 1, "epochs": 9, "evaluation_steps": 2}


def deciding(folder: Path, *, restore: bool) -> str:
    model = PLAIN.replace("{best!r}", repr(str(folder / "best.keras"))).replace("def callbacks", "def decide")
    return model.replace("restore_best_weights=True", f"restore_best_weights={restore}") + STOPS


def values(run: RunDirectory) -> list[Any]:
    """What evaluations gave, and what callbacks made of it."""
    attributes = {"evaluation_ended": "metrics", "callback_decided": "decision"}
    return [(event.step, getattr(event, attributes[event.kind])) for event in events(run) if event.kind in attributes]


def assert_same(parted: RunDirectory, whole: RunDirectory) -> None:
    assert values(parted) == values(whole)
    assert len([event for event in events(whole) if event.kind == "callback_decided"]) > 2
    expected, resumed_arrays = arrays(whole), arrays(parted)
    assert expected.keys() == resumed_arrays.keys()
    for name in expected:
        np.testing.assert_array_equal(resumed_arrays[name], expected[name], err_msg=name)


@pytest.mark.repetition
def test_what_callbacks_have_seen_survives_a_stop_in_between(
    train_locally: Callable[..., LocalTraining], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops before an evaluation that is due, between two of them, and before the evaluation that ends training."""
    job = train_locally(deciding(tmp_path, restore=True))
    uninterrupted, _ = job.run(**SEVERAL)
    resumed = None
    for step in ("6", "7", "14", "16"):
        monkeypatch.setenv("STOP_AFTER", step)
        resumed, code = job.run(resumed, **SEVERAL)
        assert code == 128 + signal.SIGTERM
    monkeypatch.delenv("STOP_AFTER")
    _, code = job.run(resumed, **SEVERAL)
    assert code == 0
    assert resumed is not None
    assert_same(resumed, uninterrupted)
    assert any(name.startswith("best/") for name in arrays(uninterrupted))


@pytest.mark.repetition
def test_what_callbacks_have_seen_survives_an_end_in_between(
    train_locally: Callable[..., LocalTraining], tmp_path: Path
) -> None:
    """Ends at evaluations; with ``restore_best_weights`` a run that ended goes on from the best weights instead."""
    job = train_locally(deciding(tmp_path, restore=False))
    uninterrupted, _ = job.run(**SEVERAL)
    resumed = None
    for steps in (6, 8, 14, None):
        resumed, code = job.run(resumed, max_steps=steps, **SEVERAL)
        assert code == 0
    assert resumed is not None
    assert_same(resumed, uninterrupted)


@pytest.mark.repetition
def test_a_run_that_ended_goes_on_from_the_best_weights(
    train_locally: Callable[..., LocalTraining], tmp_path: Path
) -> None:
    """As a second ``fit`` would; the evaluation at step 4 is better than that at step 6."""
    job = train_locally(deciding(tmp_path, restore=True))
    four, _ = job.run(max_steps=4, **SEVERAL)
    six, _ = job.run(max_steps=6, **SEVERAL)
    losses = {event.step: event.metrics["loss"] for event in events(six) if event.kind == "evaluation_ended"}
    assert losses[4] < losses[6]
    best = [name for name in arrays(four) if name.startswith("best/")]
    assert best
    for name in best:
        np.testing.assert_array_equal(arrays(six)[name], arrays(four)[name])
    trained = [name for name in arrays(four) if "dense" in name and "adam" not in name.lower() and name not in best]
    assert trained
    for name in trained:
        np.testing.assert_array_equal(arrays(six)[name], arrays(four)[name], err_msg=name)


# --------------------------------------------------------------------------------------------------
# A train_step of the user's own, in float64, with all records in each step.

FEED = """
def feed(dataset, mode, metadata):
    def parse(line):
        row = tf.strings.to_number(line, tf.float64)
        return {"real": row, "noise": row[:2]}, row[2:]

    return dataset.map(parse)

import os, signal

class Stops(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if str(batch + 1) == os.environ.get("STOP_AFTER"):
            os.kill(os.getpid(), signal.SIGTERM)

def callbacks():
    return [Stops()]
"""
ONE_UPDATE = """
x, y = data
with tf.GradientTape() as tape:
    loss = tf.reduce_mean((self(x, training=True) - y) ** 2) + tf.reduce_mean(tf.abs(self.generator(x["noise"])))
weights = [*self.discriminator.trainable_weights, *self.generator.trainable_weights]
self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
return {"loss": loss}
"""
STEPS: dict[str, tuple[str, dict[str, str]]] = {
    "one update": (
        ONE_UPDATE,
        {
            "gan.compile(": "keras.Model.compile(gan, 'adam', 'mse'); return gan\n    gan.compile(",
            "return [self.d_loss_metric, self.g_loss_metric]": "return []",
        },
    ),
    "a GAN": (ADVERSARIAL, {}),
}


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("kind", STEPS)
def test_a_step_of_the_users_own_trains_as_in_keras_also_when_it_is_stopped(
    train_locally: Callable[..., LocalTraining], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    step, changes = STEPS[kind]
    write_gan(tmp_path, step, {"def feed(dataset, mode, metadata):\n    return dataset\n": FEED, **changes})
    job = train_locally((tmp_path / "gan.py").read_text())
    job.validation = None
    fields = {"minibatch_size": 50, "minibatches_per_task": 1, "epochs": 6, "evaluation_steps": None}
    monkeypatch.setenv("STOP_AFTER", "4")
    run, code = job.run(**fields)
    assert code == 128 + signal.SIGTERM
    monkeypatch.delenv("STOP_AFTER")
    _, code = job.run(run, **fields)
    assert code == 0
    trained_arrays = arrays(run)

    rows = np.loadtxt(tmp_path / "data.csv", delimiter=",")
    data = {"real": rows, "noise": rows[:, :2]}, rows[:, 2:]
    plain, _ = train_plainly(tmp_path, [], [data] * 6)
    for weight in plain.trainable_weights:
        np.testing.assert_allclose(trained_arrays[f"dense/{weight.path}"], weight.numpy(), rtol=1e-9, atol=1e-12)
    names = {"one update": ["slot"], "a GAN": ["slot/d_optimizer", "slot/g_optimizer"]}[kind]
    assert [int(trained_arrays[f"{name}/0"]) for name in names] == [6] * len(names)
