"""A whole job with BatchNormalization, Dropout and an L2 regularizer: what it says is what plain Keras computes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest
from jobs.plain_keras import QUIET, assign, checkpoint_arrays, keras_metrics, without_edl
from support.job_folder import MODEL_ZOO, DigitsData, JobFolder, covers, newest_cut, predictions, write_module
from support.job_process import Line
from support.journal_bytes import read_entries

from edl.storage.checkpoint_manifest import cut_directory

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.timeout(400),
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings(QUIET),
]

RECORDS, HELD_BACK, EVERY = 640, 150, 20
PARAMS = {"filters": 4}

PROCESSOR = """
import json, os, time
from pathlib import Path
from model_zoo.mnist.mnist_functional_api import custom_model, loss, optimizer, eval_metrics_fn
from model_zoo.mnist.records import feed

class PredictionOutputsProcessor:
    def process(self, predictions, worker_id):
        with open(os.environ["PROCESSED"], "a") as file:
            file.write(json.dumps([worker_id, predictions.tolist()]) + "\\n")
"""

SLOW = """
import tensorflow as tf
from model_zoo.mnist.mnist_functional_api import custom_model, loss, optimizer, eval_metrics_fn
from model_zoo.mnist.records import feed as quick

def pause(image):
    import time
    time.sleep(0.02)
    return image

def feed(dataset, mode, metadata):
    def paused(image, *label):
        late = tf.ensure_shape(tf.numpy_function(pause, [image], tf.float32), [784])
        return (late, *label) if label else late

    return quick(dataset, mode, metadata).map(paused)
"""


@dataclass(frozen=True)
class TrainedDigits:
    """The job after its end."""

    job_folder: JobFolder
    held_back: DigitsData
    run_dir: Path
    summary: Line
    events: list[Line]
    outputs: Any


@pytest.fixture(scope="module")
def trained_digits(tmp_path_factory: pytest.TempPathFactory) -> TrainedDigits:
    folder = tmp_path_factory.mktemp("digits")
    DigitsData.write(folder / "train" / "a.recordio", RECORDS, seed=1)
    held_back = DigitsData.write(folder / "test.recordio", HELD_BACK, seed=2)
    job_folder = JobFolder.make(
        folder,
        "digits",
        "mnist.mnist_functional_api.custom_model",
        model={"zoo": str(MODEL_ZOO), "definition": "mnist.mnist_functional_api.custom_model", "params": PARAMS},
        data={
            "training": str(folder / "train"),
            "validation": str(held_back.file),
            "prediction": str(held_back.file),
        },
        train={"epochs": 3, "minibatch_size": 16, "minibatches_per_task": 2, "evaluation_steps": EVERY},
        checkpoint={"every_steps": EVERY, "keep": 100},
        export={},
        ps={"count": 2},
        workers={"max": 2},
    )
    with job_folder.run() as run:
        summary = run.summary()
    return TrainedDigits(job_folder, held_back, run.run_dir, summary, run.lines, final_outputs(run.run_dir, held_back))


def final_outputs(run_dir: Path, held_back: DigitsData) -> Any:
    model = assign(plain_model(), checkpoint_arrays(newest_cut(run_dir)))
    return model.predict(held_back.images, verbose=0)


def plain_model() -> Any:
    import sys

    import keras

    sys.path.insert(0, str(MODEL_ZOO.parent))
    from model_zoo.mnist import mnist_functional_api

    keras.utils.clear_session()
    return mnist_functional_api.custom_model(**PARAMS)


def test_the_job_is_done(trained_digits: TrainedDigits) -> None:
    summary = trained_digits.summary
    assert (summary["records_done"], summary["records_lost"], summary["records_repeated"]) == (3 * RECORDS, 0, 0)
    assert summary["workers_lost"] == 0
    assert summary["metrics"]["accuracy"] > 0.5


def test_workers_end_by_themselves(trained_digits: TrainedDigits) -> None:
    ends = {(e["role"], e["index"]): e["exit_code"] for e in trained_digits.events if e["event"] == "role_ended"}
    assert {code for (role, _), code in ends.items() if role == "worker"} == {0}, ends


def test_every_evaluation_covers_every_validation_record_once(trained_digits: TrainedDigits) -> None:
    rounds: list[list[tuple[int, int]]] = []
    entries = read_entries(trained_digits.run_dir / "journal")
    done = {entry["lease"] for entry in entries if entry["kind"] == "done"}
    for entry in entries:
        if entry["kind"] == "evaluation":
            rounds.append([])
        elif entry["kind"] == "leased" and entry["lease"] in done and str(entry["work"][1]).endswith("test.recordio"):
            rounds[-1].append(tuple(entry["work"][2:4]))
    assert len(rounds) == len([e for e in trained_digits.events if e["event"] == "evaluation_ended"])
    assert all(covers(sorted(ranges), HELD_BACK) for ranges in rounds), rounds


def test_metrics_are_those_of_plain_keras_at_the_pinned_version(trained_digits: TrainedDigits) -> None:
    cuts = {e["step"]: e["cut"] for e in trained_digits.events if e["event"] == "checkpoint_saved"}
    compared = []
    for event in trained_digits.events:
        if event["event"] == "evaluation_ended" and event["step"] in cuts:
            arrays = checkpoint_arrays(cut_directory(trained_digits.run_dir / "checkpoints", cuts[event["step"]]))
            model = assign(plain_model(), arrays)
            expected = keras_metrics(model, trained_digits.held_back.images, trained_digits.held_back.labels)
            assert event["metrics"] == pytest.approx(expected, rel=1e-4)
            compared.append(event["step"])
    assert compared[-1] == 3 * RECORDS // 16
    assert len(compared) >= 2, "one in the middle of training too"


def test_statistics_were_learned(trained_digits: TrainedDigits) -> None:
    arrays = checkpoint_arrays(newest_cut(trained_digits.run_dir))
    assert np.abs(arrays["dense/batch_normalization/moving_mean"]).min() > 0


def test_the_export_gives_the_final_versions_predictions(trained_digits: TrainedDigits, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", trained_digits.held_back.images)
    np.save(tmp_path / "expected.npy", trained_digits.outputs)
    code = """
        import keras, numpy as np, tensorflow as tf
        images, expected, export = np.load(sys.argv[1]), np.load(sys.argv[2]), sys.argv[3]
        model = keras.models.load_model(export + "/model.keras")
        np.testing.assert_allclose(model.predict(images, verbose=0), expected, rtol=1e-4, atol=1e-5)
        served = tf.saved_model.load(export + "/saved_model")
        np.testing.assert_allclose(served.serve(images), expected, rtol=1e-4, atol=1e-5)
    """
    export = trained_digits.summary["export"]
    without_edl(code, tmp_path / "images.npy", tmp_path / "expected.npy", export, cwd=tmp_path)


@pytest.mark.repetition
def test_predict_from_the_run_with_a_worker_killed_on_the_way(trained_digits: TrainedDigits, tmp_path: Path) -> None:
    zoo = write_module(trained_digits.job_folder.folder, "slow", SLOW)
    output = tmp_path / "predictions"
    model = [f"model.zoo={zoo}", "model.definition=slow.custom_model"]
    options = [option for setting in model for option in ("--set", setting)]
    with trained_digits.job_folder.predict(output, *options, "--workers", "2") as run:
        run.wait_status(lambda status: status["records_done"] > 0)
        run.send("worker", min(run.pids("worker")), SIGKILL)
        summary = run.summary()
    assert summary["records_done"] == summary["records_total"] == HELD_BACK
    assert (summary["records_lost"], summary["workers_lost"]) == (0, 1)
    outputs, ranges = predictions(output)
    assert covers(ranges, HELD_BACK)
    np.testing.assert_allclose(outputs, trained_digits.outputs, rtol=1e-4, atol=1e-5)


def exported_metrics(trained: TrainedDigits) -> dict[str, float]:
    """The metrics of ``keras.Model.evaluate`` on the exported model."""
    import keras

    model = keras.models.load_model(Path(trained.summary["export"]) / "model.keras")
    return keras_metrics(model, trained.held_back.images, trained.held_back.labels)


def test_evaluate_from_the_run_with_a_worker_killed_on_the_way(trained_digits: TrainedDigits) -> None:
    zoo = write_module(trained_digits.job_folder.folder, "slow", SLOW)
    model = ["--set", f"model.zoo={zoo}", "--set", "model.definition=slow.custom_model"]
    with trained_digits.job_folder.evaluate("--from", trained_digits.run_dir.name, *model, "--workers", "2") as run:
        status = run.wait_status(lambda now: now["records_done"] > 0 and bool(evaluating(now)))
        run.send("worker", evaluating(status)[0], SIGKILL)
        summary = run.summary()
    assert summary["records_done"] == summary["records_total"] == HELD_BACK
    assert (summary["records_lost"], summary["workers_lost"]) == (0, 1)
    # At most the task that it held, of two minibatches.
    assert 0 < summary["records_repeated"] <= 32
    assert summary["metrics"] == pytest.approx(exported_metrics(trained_digits), rel=1e-4)
    written = json.loads((run.run_dir / "metrics.json").read_text())
    assert written["metrics"] == summary["metrics"]
    assert (written["records"], written["step"]) == (HELD_BACK, 3 * RECORDS // 16)
    assert {event["role"] for event in run.events("role_started")} == {"master", "worker"}


def evaluating(status: Line) -> list[int]:
    return [worker["index"] for worker in status["workers"] if worker["state"] == "evaluating"]


@pytest.mark.repetition
def test_evaluate_from_an_export_whatever_the_strategy(trained_digits: TrainedDigits) -> None:
    export = trained_digits.summary["export"]
    with trained_digits.job_folder.evaluate("--from", export, "--set", "strategy.name=AllReduce") as run:
        summary = run.summary()
    assert (summary["records_done"], summary["records_repeated"]) == (HELD_BACK, 0)
    assert summary["metrics"] == pytest.approx(exported_metrics(trained_digits), rel=1e-4)


@pytest.mark.repetition
def test_predict_from_a_keras_file_with_a_processor(
    trained_digits: TrainedDigits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = write_module(trained_digits.job_folder.folder, "processed", PROCESSOR)
    monkeypatch.setenv("PROCESSED", str(tmp_path / "processed.jsonl"))
    file = Path(trained_digits.summary["export"]) / "model.keras"
    model = ["--set", f"model.zoo={zoo}", "--set", "model.definition=processed.custom_model"]
    fewer_than_train = ["--set", "strategy={mode: sync, grads_to_wait: 2}", "--workers", "1"]
    with trained_digits.job_folder.predict(tmp_path / "out", "--from", str(file), *model, *fewer_than_train) as run:
        summary = run.summary()
    assert summary["records_done"] == HELD_BACK
    assert not list((tmp_path / "out").glob("*.npz"))
    lines = [json.loads(line) for line in (tmp_path / "processed.jsonl").read_text().splitlines()]
    assert {worker for worker, _ in lines} == {0}
    processed_rows = sorted(row for _, outputs in lines for row in outputs)
    np.testing.assert_allclose(processed_rows, sorted(trained_digits.outputs.tolist()), rtol=1e-4, atol=1e-5)
