"""The page *Bring your own data*: every program of it runs, and its modules train."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.job_folder import JobFolder, write_module

from edl.data import open_reader, serialize_example

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

PAGE = Path(__file__).parents[3] / "docs" / "bring-your-own-data.md"
PROGRAMS = dict(re.findall(r"<!-- test: (.+?) -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S))
TRAIN = {"epochs": 1, "minibatch_size": 10}


def test_every_program_of_the_page_is_tried() -> None:
    assert PAGE.read_text(encoding="utf-8").count("```python") == len(PROGRAMS) == 6


def run(folder: Path, program: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAMS[program]], cwd=folder, check=True, timeout=100)


def count(path: Path) -> int:
    return sum(source.records for source in open_reader(str(path)).sources())


def test_conversions(tmp_path: Path) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(tmp_path / "data.tfrecord")) as writer:
        for number in range(7):
            writer.write(serialize_example({"x": number}))
    run(tmp_path, "converts data.tfrecord")
    assert count(tmp_path / "data.recordio") == 7
    np.savez(tmp_path / "data.npz", x=np.zeros((5, 2)), y=np.arange(5))
    run(tmp_path, "converts data.npz")
    assert count(tmp_path / "arrays.recordio") == 5
    (tmp_path / "pets" / "cat").mkdir(parents=True)
    (tmp_path / "pets" / "cat" / "a.png").write_bytes(b"\x89PNG")
    run(tmp_path, "converts pets/")
    assert count(tmp_path / "pets.recordio") == 1


def test_what_the_writer_wrote_is_trained_on(tmp_path: Path) -> None:
    run(tmp_path, "writes houses.recordio")
    zoo = write_module(tmp_path, "houses", PROGRAMS["a module that trains on houses.recordio"])
    data = {"training": str(tmp_path / "houses.recordio")}
    job_folder = JobFolder.make(tmp_path, "houses", "houses.custom_model", zoo=zoo, data=data, train=TRAIN)
    with job_folder.run() as job:
        assert job.summary()["records_done"] == 120


def readings(folder: Path, change: tuple[str, str] = ("", "")) -> JobFolder:
    np.savez(folder / "readings.npz", rows=np.linspace(0, 1, 80, dtype=np.float32).reshape(40, 2))
    zoo = write_module(folder, "own", PROGRAMS["a module that reads readings.npz"].replace(*change))
    data = dict.fromkeys(("training", "validation", "prediction"), str(folder / "readings.npz"))
    return JobFolder.make(folder, "own", "own.custom_model", zoo=zoo, data=data, train=TRAIN)


def test_a_reader_of_ones_own(tmp_path: Path) -> None:
    with readings(tmp_path).run() as job:
        assert job.summary()["records_done"] == 40


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('[Source("readings", len(self.rows))]', '[("readings", 40)]'), "is ('readings', 40) of type tuple"),
        pytest.param(
            ("return self.rows[start:end]", "return self.rows[start + 1 : end]"),
            "of the custom reader returned 9 records",
            marks=pytest.mark.repetition,
        ),
    ],
)
def test_a_wrong_return_ends_the_job_at_once(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with readings(tmp_path, change).run() as job:
        assert job.wait() == 2
        (ended,) = job.events("job_ended")
        workers = [event for event in job.events("role_started") if event["role"] == "worker"]
    assert said in ended["reason"]
    assert str(tmp_path / "zoo" / "own.py") in ended["reason"]
    assert len(workers) == 1


@pytest.mark.repetition
def test_a_processor_that_raises_ends_the_job_at_once(tmp_path: Path) -> None:
    job_folder = readings(tmp_path)
    with job_folder.run("--set", "data.validation=null") as job:
        job.summary()
    with (tmp_path / "zoo" / "own.py").open("a") as module:
        module.write(
            "\n\nclass PredictionOutputsProcessor:\n    def process(self, predictions, worker_id):\n"
            "        raise KeyError('table')\n"
        )
    with job_folder.predict(tmp_path / "out") as job:
        assert job.wait() == 2
        (ended,) = job.events("job_ended")
        workers = [event for event in job.events("role_started") if event["role"] == "worker"]
        assert "raise KeyError('table')" in json.loads(json.dumps(job.errors))
    assert "PredictionOutputsProcessor.process() raised KeyError: 'table'" in ended["reason"]
    assert len(workers) == 1
