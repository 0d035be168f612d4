"""What is wrong with a job is said at once, in a user's terms, with the exit code that goes with it.

All these jobs are short and independent: they run side by side, and each test looks at what one of them said.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs.places import Place, write_examples, write_module

from edl.testing.jobs import Line, edl

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

AT_ONCE = 3

MODULE = """
import keras
import tensorflow as tf


def custom_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))


def optimizer():
    return keras.optimizers.SGD(0.01)


def eval_metrics_fn():
    return {"error": keras.metrics.MeanAbsoluteError()}


def feed(dataset, mode, metadata):
    shapes = {name: tf.io.FixedLenFeature((1,), tf.float32) for name in ("x", "y")}

    def parsed(record):
        found = tf.io.parse_single_example(record, shapes)
        return found["x"], found["y"]

    return dataset.map(parsed)
"""
RAISING = MODULE.replace(
    "    return keras.Sequential",
    '    raise LookupError("the dictionary was not downloaded")\n    return keras.Sequential',
)
WRONG_FEED = MODULE.replace('return found["x"], found["y"]', 'return found["x"], found["y"], found["x"]')
WRONG_SHAPE = MODULE.replace("keras.Input((1,))", "keras.Input((3,))")
AVERAGING = MODULE.replace("SGD(0.01)", "SGD(0.01, use_ema=True)")
NO_LOSS = MODULE.replace("def loss(", "def losses(")
NAN_AT, RECORDS, MINIBATCH = 37, 96, 8


@dataclass(frozen=True)
class Told:
    """What a job said: its exit code, standard error, and the JSON lines."""

    code: int
    errors: str
    lines: list[Line]

    @property
    def summary(self) -> Line:
        return self.lines[-1]

    def ended(self, role: str) -> int:
        """How many processes of a role ended."""
        return sum(line["event"] == "role_ended" and line["role"] == role for line in self.lines)


def record(index: int) -> dict[str, Any]:
    return {"x": [index / RECORDS], "y": [float("nan") if index == NAN_AT else 2 * index / RECORDS]}


def corrupted(file: Path) -> Path:
    """A byte in the middle of the file is changed: one of its chunks cannot be read."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    return file


def places(folder: Path) -> Iterator[Place]:
    good = write_examples(folder / "good.recordio", (record(i) for i in range(NAN_AT)))
    nan = write_examples(folder / "nan.recordio", map(record, range(RECORDS)))
    bad = corrupted(write_examples(folder / "bad.recordio", (record(0) for _ in range(RECORDS)), chunk_limit=600))
    modules = {
        "raising": RAISING,
        "wrong-feed": WRONG_FEED,
        "wrong-shape": WRONG_SHAPE,
        "averaging": AVERAGING,
        "no-loss": NO_LOSS,
        "missing-model": MODULE.replace("custom_model", "my_model"),
    }
    for name, text in modules.items():
        module = name.replace("-", "_")
        zoo = write_module(folder, module, text)
        yield job(folder, name, f"{module}.custom_model", zoo, good)
    zoo = write_module(folder, "good", MODULE)
    yield job(folder, "nan-stop", "good.custom_model", zoo, nan)
    yield job(folder, "corrupt-stop", "good.custom_model", zoo, bad)
    yield job(folder, "corrupt-many", "good.custom_model", zoo, bad, allowed=1)
    yield job(folder, "skips", "good.custom_model", zoo, bad, nan, allowed=40, epochs=2, on_nan="skip")


def job(folder: Path, name: str, definition: str, zoo: Path, *data: Path, allowed: int = 0, **train: Any) -> Place:
    return Place.make(
        folder,
        name,
        definition,
        zoo=zoo,
        data={"training": [str(file) for file in data], "max_corrupt_records": allowed},
        train={"minibatch_size": MINIBATCH, "minibatches_per_task": 4, **train},
    )


def run(place: Place) -> Told:
    with place.run() as process:
        code = process.wait(150)
        return Told(code, process.errors, process.lines)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    found = list(places(tmp_path_factory.mktemp("bad")))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip([place.name for place in found], pool.map(run, found), strict=True))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raising", "custom_model() raised LookupError: the dictionary was not downloaded"),
        ("wrong-feed", "expected (features, labels)"),
        ("wrong-shape", "the model"),
        ("averaging", "use_ema"),
        ("no-loss", "'loss'"),
        ("missing-model", "custom_model"),
        ("corrupt-stop", "cannot be read"),
        ("corrupt-many", "corrupt"),
    ],
)
def test_bad_input_ends_the_job_with_one_message(told: dict[str, Told], name: str, said: str) -> None:
    job = told[name]
    assert said in job.errors
    assert job.code == 2, job.errors
    assert job.ended("worker") <= 1, "it is not tried again and again"


def test_the_users_own_traceback_comes_first(told: dict[str, Told]) -> None:
    errors = told["raising"].errors
    assert errors.lstrip().startswith("Traceback (most recent call last), your code:"), errors
    assert "raising.py" in errors.splitlines()[1]
    # ahead of every frame of EDL, Keras and TensorFlow
    assert "All frames" not in errors[: errors.index("LookupError")]


def test_a_corrupt_record_is_named_by_file_and_index(told: dict[str, Told]) -> None:
    assert "bad.recordio" in told["corrupt-stop"].errors
    assert "records " in told["corrupt-stop"].errors
    assert "max_corrupt_records" in told["corrupt-stop"].errors


def test_corrupt_records_and_losses_that_are_not_finite_may_be_skipped(told: dict[str, Told]) -> None:
    job = told["skips"]
    assert job.code == 0, job.errors
    summary = job.summary
    assert summary["records_done"] == summary["records_total"] == 2 * 2 * RECORDS
    assert summary["records_lost"] == 0
    assert 0 < summary["records_skipped"] <= 2 * 40, "in each of two epochs at most as many as allowed"
    assert summary["records_skipped"] % 2 == 0


def test_a_loss_that_is_not_finite_stops_the_job_and_names_its_records(told: dict[str, Told]) -> None:
    job = told["nan-stop"]
    start = NAN_AT // MINIBATCH * MINIBATCH
    assert job.code == 1
    assert f"records {start} to {start + MINIBATCH - 1}" in job.errors
    assert "nan.recordio" in job.errors
    assert "on_nan: skip" in job.errors


def test_an_unknown_module_is_said_before_a_process_starts(tmp_path: Path) -> None:
    zoo = write_module(tmp_path, "good", MODULE)
    data = write_examples(tmp_path / "good.recordio", map(record, range(9)))
    place = job(tmp_path, "nothing", "goo.custom_model", zoo, data)
    done = edl("run", str(place.file), cwd=tmp_path)
    assert done.returncode == 2
    assert "good" in done.stderr
    assert not (tmp_path / ".edl" / "local" / "nothing").exists()
