"""Whole jobs with other models and data: served rows, a subclass with a reader and callbacks of its own, CSV, Local."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs.plain_keras import QUIET, checkpoint_arrays, without_edl
from support.job_folder import (
    MODEL_ZOO,
    DigitsData,
    JobFolder,
    covers,
    newest_cut,
    predictions,
    write_examples,
    write_module,
)

from edl.data.reader_factory import open_reader

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow, pytest.mark.filterwarnings(QUIET)]

USERS, ITEMS, DIM = 3000, 20, 8
RATINGS, ASKED = 400, 60

OWN = """
import json, os
import keras
import numpy as np
import tensorflow as tf
from edl.data.reader import Metadata
from edl.data.recordio.reader import RecordIOReader
from edl.core.record_ranges import RecordSource
from model_zoo.mnist.mnist_subclass import CustomModel
from model_zoo.mnist.records import eval_metrics_fn, loss


def optimizer():
    return keras.optimizers.Adam(0.005)


class Arrays:
    def __init__(self, origin, size):
        with np.load(origin) as file:
            self.images, self.labels = file["images"][:size], file["labels"][:size]

    metadata = Metadata("arrays")

    def sources(self):
        return [RecordSource("digits", len(self.labels))]

    def read(self, source, start, end, on_corrupt=None):
        rows = np.column_stack([self.images[start:end], self.labels[start:end]]).astype(np.float32)
        return [row.tobytes() for row in rows]


def custom_data_reader(origin, size):
    return Arrays(origin, size)


def feed(dataset, mode, metadata):
    assert metadata.format == "arrays"

    def parsed(record):
        row = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [785])
        return row[:784] if mode == "prediction" else (row[:784], tf.cast(row[784], tf.int64))

    return dataset.map(parsed)


class CallbackLog(keras.callbacks.Callback):
    def write(self, *words):
        with open(os.environ["CALLBACK_LOG"], "a") as file:
            file.write(json.dumps(words) + "\\n")

    def on_train_begin(self, logs=None):
        self.write("train_begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.write("epoch_begin", epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.write("epoch_end", epoch)
        self.model.optimizer.learning_rate = 0.0  # what comes then must not change a parameter

    def on_train_batch_end(self, batch, logs=None):
        self.write("batch_end", batch, logs["loss"])

    def on_train_end(self, logs=None):
        self.write("train_end")


def callbacks():
    return [CallbackLog()]
"""


def ratings(count: int, seed: int, users: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    pairs = zip(random.integers(0, users, count).tolist(), random.integers(0, ITEMS, count).tolist(), strict=True)
    return [{"user": user, "item": item, "liked": float((user + item) % 2)} for user, item in pairs]


def test_the_zoos_ratings_can_be_written(tmp_path: Path) -> None:
    script = MODEL_ZOO / "recommender" / "synthesize.py"
    subprocess.run([sys.executable, str(script), str(tmp_path), "50"], check=True, timeout=60)
    assert [source.records for source in open_reader(tmp_path / "train").sources()] == [50]
    assert [source.records for source in open_reader(tmp_path / "test").sources()] == [5]


@pytest.mark.repetition
def test_a_recommender_with_served_rows(tmp_path: Path) -> None:
    """Trained users are below 200: of the asked ones most have rows that nobody ever touched."""
    prediction_records = ratings(ASKED, 2, USERS)
    write_examples(tmp_path / "train.recordio", ratings(RATINGS, 1, 200))
    write_examples(tmp_path / "asked.recordio", prediction_records)
    job_folder = JobFolder.make(
        tmp_path,
        "ratings",
        "recommender.ratings.custom_model",
        model={
            "zoo": str(MODEL_ZOO),
            "definition": "recommender.ratings.custom_model",
            "params": {"users": USERS, "items": ITEMS, "dim": DIM},
        },
        data={"training": str(tmp_path / "train.recordio"), "prediction": str(tmp_path / "asked.recordio")},
        train={"epochs": 2, "minibatch_size": 16, "minibatches_per_task": 8},
        export={},
        ps={"count": 2, "embedding_threshold": "64Ki"},
    )
    with job_folder.run() as run:
        summary, run_dir = run.summary(), run.run_dir
    arrays = checkpoint_arrays(newest_cut(run_dir))
    ids = arrays["rows/users/embeddings/ids"]
    assert 0 < len(ids) <= 200, "rows that were never touched are not stored"
    with job_folder.predict(tmp_path / "out") as run:
        assert run.summary()["records_done"] == ASKED
    outputs, ranges = predictions(tmp_path / "out")
    assert covers(ranges, ASKED)
    np.savez(
        tmp_path / "asked.npz",
        user=np.array([record["user"] for record in prediction_records]),
        item=np.array([record["item"] for record in prediction_records]),
        outputs=outputs,
        ids=ids,
        values=arrays["rows/users/embeddings/values"],
    )
    code = """
        import keras, numpy as np, tensorflow as tf
        asked, export = np.load(sys.argv[1]), sys.argv[2]
        features = {name: asked[name] for name in ("user", "item")}
        model = keras.models.load_model(export + "/model.keras")
        np.testing.assert_allclose(model.predict(features, verbose=0), asked["outputs"], rtol=1e-4, atol=1e-5)
        served = tf.saved_model.load(export + "/saved_model")
        np.testing.assert_allclose(served.serve(features), asked["outputs"], rtol=1e-4, atol=1e-5)
        table = np.asarray(model.get_layer("users").embeddings)
        np.testing.assert_array_equal(table[asked["ids"]], asked["values"])
        np.save(sys.argv[3], table)
    """
    without_edl(code, tmp_path / "asked.npz", summary["export"], tmp_path / "table.npy", cwd=tmp_path)
    untouched = np.setdiff1d(np.arange(USERS), ids)
    table = np.load(tmp_path / "table.npy")
    assert len(np.unique(table[untouched], axis=0)) == len(untouched), "untouched rows hold their initial values"
    assert np.abs(table[untouched]).max() <= 0.05


@pytest.mark.repetition
def test_a_subclass_with_its_own_reader_and_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = DigitsData.write(tmp_path / "unused.recordio", 256, seed=3)
    np.savez(tmp_path / "digits.npz", images=digits.images, labels=digits.labels)
    monkeypatch.setenv("CALLBACK_LOG", str(tmp_path / "callbacks.jsonl"))
    job_folder = JobFolder.make(
        tmp_path,
        "own",
        "own.CustomModel",
        zoo=write_module(tmp_path, "own", OWN),
        data={
            "training": str(tmp_path / "digits.npz"),
            "validation": str(tmp_path / "digits.npz"),
            "prediction": str(tmp_path / "digits.npz"),
            "reader": {"size": 192},
        },
        train={"epochs": 4, "minibatch_size": 32, "minibatches_per_task": 6},
        checkpoint={"every_steps": 3, "keep": 20},
        export={},
    )
    with job_folder.run() as run:
        summary, run_dir = run.summary(), run.run_dir
    assert summary["records_done"] == 4 * 192
    log = [json.loads(line) for line in (tmp_path / "callbacks.jsonl").read_text().splitlines()]
    epochs = [[f"epoch_{what}", epoch] for epoch in range(4) for what in ("begin", "end")]
    assert [words for words in log if words[0] != "batch_end"] == [["train_begin"], *epochs, ["train_end"]]
    assert [words[1] for words in log if words[0] == "batch_end"] == list(range(24))
    check_learning_rate(run_dir)
    with job_folder.predict(tmp_path / "out") as run:
        assert run.summary()["records_done"] == 192
    outputs, ranges = predictions(tmp_path / "out")
    assert covers(ranges, 192)
    np.savez(tmp_path / "expected.npz", images=digits.images[:192], outputs=outputs)
    code = """
        import numpy as np, tensorflow as tf
        expected = np.load(sys.argv[1])
        served = tf.saved_model.load(sys.argv[2])
        found = served.serve(expected["images"])
        np.testing.assert_allclose(found, expected["outputs"], rtol=1e-4, atol=1e-5)
    """
    without_edl(code, tmp_path / "expected.npz", f"{summary['export']}/saved_model", cwd=tmp_path)


def check_learning_rate(run_dir: Path) -> None:
    """The callback set it to 0 after the first epoch: parameters stay, statistics go on."""
    cuts = sorted((run_dir / "checkpoints").glob("cut-*"))
    steps = {json.loads((cut / "manifest.json").read_text())["version"]: cut for cut in cuts}
    middle, end = (checkpoint_arrays(steps[choose(step for step in steps if step >= 6)]) for choose in (min, max))
    for name in end:
        if name.startswith("dense/"):
            same = np.array_equal(middle[name], end[name])
            assert same is not ("moving" in name), name


def iris(folder: Path, **fields: Any) -> JobFolder:
    random = np.random.default_rng(4)
    folder.mkdir(exist_ok=True)
    for name, count in (("train", 90), ("test", 30)):
        classes = random.integers(0, 3, count)
        rows = [",".join([*(f"{v:.2f}" for v in random.normal(c, 0.2, 4)), str(c)]) for c in classes]
        (folder / f"{name}.csv").write_text("a,b,c,d,class\n" + "\n".join(rows) + "\n")
    return JobFolder.make(
        folder,
        "iris",
        "iris.iris_dnn.custom_model",
        model={"zoo": str(MODEL_ZOO), "definition": "iris.iris_dnn.custom_model"},
        data={"training": str(folder / "train.csv"), "validation": str(folder / "test.csv")},
        **{"train": {"epochs": 12, "minibatch_size": 16, "minibatches_per_task": 2}, "export": {}, **fields},
    )


@pytest.mark.repetition
def test_csv_rows_distributed_and_local_give_the_same_summary(tmp_path: Path) -> None:
    with iris(tmp_path / "distributed").run() as run:
        distributed = run.summary()
    job_folder = iris(tmp_path / "local", strategy={"name": "Local"})
    with job_folder.run() as run:
        local = run.summary()
    for summary in (distributed, local):
        assert summary["records_done"] == summary["records_total"] == 12 * 90
        assert summary["records_lost"] == 0
        assert summary["metrics"]["accuracy"] > 0.6
        assert Path(summary["export"], "model.keras").is_file()
    assert distributed.keys() == local.keys()


@pytest.mark.repetition
def test_a_local_run_is_interrupted_and_resumed(tmp_path: Path) -> None:
    job_folder = iris(
        tmp_path,
        strategy={"name": "Local"},
        checkpoint={"every_steps": 50, "keep": 2},
        train={"epochs": 3000, "minibatch_size": 16, "minibatches_per_task": 2},
        export=None,
    )
    with job_folder.run() as run:
        run.wait_step(120)
        run.interrupt()
        assert run.wait() == 130
        (summary,) = run.events("summary")
        step = json.loads((newest_cut(run.run_dir) / "manifest.json").read_text())["version"]
        assert step == run.status()["step"] >= 120, "what was done until then is in a checkpoint"
        assert summary["reason"] == f"stopped by its user: checkpoint {step} contains all {step} steps"
        run_id = run.run_dir.name
    with job_folder.run("--resume", run_id, "--set", f"train.max_steps={step + 60}") as run:
        summary = run.summary()
    assert summary["run"] == run_id
    status = json.loads((run.run_dir / "status.json").read_text())
    assert status["step"] == step + 60


@pytest.mark.repetition
def test_breakpoint_stops_on_the_terminal_under_local(tmp_path: Path) -> None:
    source = (MODEL_ZOO / "iris" / "iris_dnn.py").read_text()
    zoo = write_module(
        tmp_path, "stops", source.replace("    def parse(row):", "    breakpoint()\n\n    def parse(row):")
    )
    job_folder = iris(tmp_path, strategy={"name": "Local"}, train={"epochs": 1}, export=None)
    job_folder.spec["model"] = {"zoo": str(zoo), "definition": "stops.custom_model"}
    job_folder.spec["data"].pop("validation")
    job_folder.file.write_text(json.dumps(job_folder.spec))
    terminal, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("edl")), "run", str(job_folder.file)]
    with subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        output = read_until(terminal, "(Pdb) ")
        assert "stops.py" in output
        os.write(terminal, b"p mode\n")
        assert "'training'" in read_until(terminal, "(Pdb) ")
        os.write(terminal, b"continue\n")
        rest = read_until(terminal, None)
        assert process.wait(60) == 0, rest
    os.close(terminal)
    assert "Done" in rest


def read_until(terminal: int, wanted: str | None) -> str:
    """What a terminal shows until ``wanted``, or until its last process has ended."""
    output = ""
    while wanted is None or wanted not in output:
        try:
            chunk = os.read(terminal, 4096)
        except OSError as error:  # Linux: nobody has the other side open any more
            if error.errno != errno.EIO:
                raise
            chunk = b""
        if not chunk:
            assert wanted is None, output
            break
        output += chunk.decode(errors="replace")
    return output
