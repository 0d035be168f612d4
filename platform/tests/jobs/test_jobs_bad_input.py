"""What is wrong with a job is said at once, in a user's terms, with the exit code that goes with it.

All these jobs are short and independent; each test looks at what one of them said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.job_folder import JobFolder, write_examples, write_module
from support.job_process import Line, edl
from support.text_keys import missing_keys

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

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
WRONG_FEED = MODULE.replace('return found["x"], found["y"]', 'return found["x"], found["y"], found["x"], found["y"]')
UNPARSED = MODULE.replace('("x", "y")}', '("x", "y", "z")}')
WRONG_SHAPE = MODULE.replace("keras.Input((1,))", "keras.Input((3,))")
AVERAGING = MODULE.replace("SGD(0.01)", "SGD(0.01, use_ema=True)")
SUMMING = MODULE.replace(
    "def custom_model():\n    return keras.Sequential([keras.Input((1,)), ",
    "class Summing(keras.layers.Layer):\n    def call(self, x):\n        self.add_loss(tf.reduce_sum(x**2))\n"
    "        return x\n\n\ndef custom_model():\n    return keras.Sequential([keras.Input((1,)), Summing(), ",
)
LATE = MODULE.replace(
    "def custom_model():\n    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])",
    """
class Late(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1, name="late")

    def build(self, shape):
        self.first.build(shape)

    def call(self, x, training=False):
        return self.first(x) + self.second(x) if training else self.first(x)


def custom_model():
    return Late()
""",
)
NO_LOSS = MODULE.replace("def loss(", "def losses(")
NAN_AT, RECORDS, MINIBATCH = 37, 96, 8
DAMAGED = range(36, 54)
"""Records of the chunk that cannot be read; a task or a minibatch asks for a part of it."""

SAID = {
    "raising": ("FOLDER/zoo/raising.py:7", "custom_model", "LookupError: the dictionary was not downloaded"),
    "wrong-feed": ("FOLDER/zoo/wrong_feed.py", "feed", "float32(1,)", "features", "labels", "sample weights"),
    "unparsed": (
        "FOLDER/zoo/unparsed.py",
        "feed",
        "InvalidArgumentError",
        "Feature: z",
        "record 0",
        "FOLDER/good.recordio",
    ),
    "averaging": ("use_ema=True", "SGD"),
    "no-loss": ("FOLDER/zoo/no_loss.py", "'loss'", "losses", "custom_model, losses, optimizer, eval_metrics_fn, feed"),
    "summing": ("worker-0", "a layer adds a loss that is a sum over the records", "add a mean"),
    "late": ("worker-0", "'late/late/kernel'", "created by a training step"),
    "missing-model": ("FOLDER/zoo/missing_model.py", "'custom_model'", "my_model"),
    "corrupt-stop": (
        "FOLDER/bad.recordio",
        "chunk 2 at byte 1336",
        f"records {DAMAGED[0]} to {DAMAGED[-1]}",
        "checksum",
        "data.max_corrupt_records",
        f"{len(DAMAGED)}",
    ),
}
"""What standard error has to name."""
SHORT = ("raising", "corrupt-stop")
"""Those of `make test`; how the others are found is tested in one process, in tests of the worker."""


@dataclass(frozen=True)
class JobOutput:
    """What a job said: its exit code, standard error with FOLDER for the job's folder, and the JSON lines."""

    folder: Path
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


def places(folder: Path) -> Iterator[JobFolder]:
    good = write_examples(folder / "good.recordio", (record(i) for i in range(NAN_AT)))
    nan = write_examples(folder / "nan.recordio", map(record, range(RECORDS)))
    bad = corrupted(write_examples(folder / "bad.recordio", (record(0) for _ in range(RECORDS)), chunk_limit=600))
    modules = {
        "raising": RAISING,
        "wrong-feed": WRONG_FEED,
        "unparsed": UNPARSED,
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
    yield job(folder, "corrupt-stop", "good.custom_model", zoo, bad, allowed=1)
    skips: dict[str, Any] = {"allowed": len(DAMAGED), "epochs": 2, "on_nan": "skip"}
    yield job(folder, "skips", "good.custom_model", zoo, bad, nan, **skips)
    all_reduce = {"strategy": {"name": "AllReduce"}, "workers": {"max": 2}}
    zoo = write_module(folder, "summing", SUMMING)
    one = {"strategy": {"name": "AllReduce"}, "workers": {"max": 1}}
    yield job(folder, "summing", "summing.custom_model", zoo, good, more=one)
    zoo = write_module(folder, "late", LATE)
    yield job(folder, "late", "late.custom_model", zoo, good, more=one)
    yield job(folder, "nan-stop-together", "good.custom_model", zoo, nan, more=all_reduce)
    yield job(folder, "skips-together", "good.custom_model", zoo, bad, nan, more=all_reduce, **skips)


def job(
    folder: Path,
    name: str,
    definition: str,
    zoo: Path,
    *data: Path,
    allowed: int = 0,
    more: Mapping[str, Any] | None = None,
    **train: Any,
) -> JobFolder:
    return JobFolder.make(
        folder,
        name,
        definition,
        zoo=zoo,
        data={"training": [str(file) for file in data], "max_corrupt_records": allowed},
        # In the order of the files, so that messages name the same records in every run.
        train={"minibatch_size": MINIBATCH, "minibatches_per_task": 4, "shuffle": {"window": 0}, **train},
        **(more or {}),
    )


def run(job_folder: JobFolder) -> JobOutput:
    with job_folder.run() as process:
        code = process.wait(150)
        errors = process.errors.strip().replace(str(job_folder.folder), "FOLDER")
        assert not re.search(r'File "[^"]*/edl/', errors), "no frame of EDL is shown"
        return JobOutput(job_folder.folder, code, re.sub(r"0x[0-9a-f]+", "0x…", errors), process.lines)


class BadInputRuns:
    """Runs a job when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self._places = {job_folder.name: job_folder for job_folder in places(folder)}
        self._told: BadInputRuns = {}

    def __getitem__(self, name: str) -> JobOutput:
        if name not in self._told:
            self._told[name] = run(self._places[name])
        return self._told[name]


@pytest.fixture(scope="module")
def run_output(tmp_path_factory: pytest.TempPathFactory) -> BadInputRuns:
    return BadInputRuns(tmp_path_factory.mktemp("bad"))


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.repetition) for name in SAID]
)
@pytest.mark.first_cases(1)
def test_bad_input_ends_the_job_with_one_message(run_output: BadInputRuns, name: str) -> None:
    job = run_output[name]
    assert not missing_keys(job.errors, *SAID[name])
    assert job.code == 2
    assert job.ended("worker") <= 1, "it is not tried again and again"


@pytest.mark.repetition
def test_what_keras_says_of_the_users_model_is_told_without_frames(run_output: BadInputRuns) -> None:
    *_, last = run_output["wrong-shape"].errors.splitlines()
    assert run_output["wrong-shape"].code == 2
    assert not missing_keys(last, "FOLDER/zoo/wrong_shape.py", "ValueError", "value 3", "shape (None, 1)")


def test_all_frames_are_in_the_workers_log(run_output: BadInputRuns) -> None:
    logs = run_output["raising"].folder / ".edl" / "local" / "raising" / "r1" / "logs"
    log = next(logs.glob("worker-0*.log")).read_text()
    assert "LookupError: the dictionary was not downloaded" in log
    assert re.search(r'File "[^"]*/edl/worker/', log)


@pytest.mark.parametrize("name", ["skips", pytest.param("skips-together", marks=pytest.mark.repetition)])
@pytest.mark.repetition
def test_corrupt_records_and_losses_that_are_not_finite_may_be_skipped(run_output: BadInputRuns, name: str) -> None:
    job = run_output[name]
    assert job.code == 0, job.errors
    summary = job.summary
    assert summary["records_done"] == summary["records_total"] == 2 * 2 * RECORDS
    assert summary["records_lost"] == 0
    assert summary["records_skipped"] == 2 * len(DAMAGED), "in each of two epochs; as many as the hint says are allowed"
    assert summary["updates_skipped"] == 2, "the minibatch with the NaN, in each epoch"
    assert any("nan.recordio" in text and "this step is skipped" in text for text in summary["warnings"])


@pytest.mark.parametrize(
    ("name", "rank"), [("nan-stop", []), pytest.param("nan-stop-together", ["of rank"], marks=pytest.mark.repetition)]
)
def test_a_loss_that_is_not_finite_stops_the_job_and_names_its_records(
    run_output: BadInputRuns, name: str, rank: list[str]
) -> None:
    job = run_output[name]
    start = NAN_AT // MINIBATCH * MINIBATCH
    assert job.code == 1
    records = f"records {start} to {start + MINIBATCH - 1}"
    assert not missing_keys(job.errors, "FOLDER/nan.recordio", "loss nan", *rank, records, "train.on_nan: skip")


def test_an_unknown_module_is_said_before_a_process_starts(tmp_path: Path) -> None:
    zoo = write_module(tmp_path, "good", MODULE)
    data = write_examples(tmp_path / "good.recordio", map(record, range(9)))
    job_folder = job(tmp_path, "nothing", "goo.custom_model", zoo, data)
    done = edl("run", str(job_folder.file), cwd=tmp_path)
    assert done.returncode == 2
    assert "good" in done.stderr
    assert not (tmp_path / ".edl" / "local" / "nothing").exists()
