"""A job that begins with the weights of another one trains as Keras does that begins with them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs.plain_keras import QUIET, checkpoint_arrays
from support.job_folder import EXAMPLE_FEED, JobFolder, newest_cut, write_example_arrays, write_module
from support.job_process import edl
from support.repetition import repetition

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(600), pytest.mark.tensorflow, pytest.mark.filterwarnings(QUIET)]

WIDTH, IDS, ROWS, RECORDS, BATCH, STEPS = 3, 2, 50, 64, 8, 6
MODULE = (
    """
import keras
import tensorflow as tf


def custom_model():
    x, ids = keras.Input((WIDTH,), name="x"), keras.Input((IDS,), dtype="int32", name="ids")
    rows = keras.layers.Flatten()(keras.layers.Embedding(ROWS, 4, name="items")(ids))
    hidden = keras.layers.Dense(5, activation="tanh", name="hidden")(keras.layers.Concatenate()([x, rows]))
    return keras.Model([x, ids], keras.layers.Dense(1, name="out")(hidden))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))


def optimizer():
    return keras.optimizers.SGD(0.05)


def eval_metrics_fn():
    return {}
"""
    + EXAMPLE_FEED
)
ON_SERVERS = {"count": 1, "embedding_threshold": 0}
PAIR_OF_SERVERS = {"count": 2, "embedding_threshold": 0}


@dataclass(frozen=True)
class TrainedJob:
    """A job that was trained, and its weights as a checkpoint has them.

    Attributes:
        folder: of the job and its data; other jobs in it have the same storage.
        run_dir: of its run, with checkpoint and export.
    """

    folder: Path
    run_dir: Path

    def begin(self, name: str, init_from: str, *, module: str = "model", **fields: Any) -> JobFolder:
        return _make_job(self.folder, name, module=module, init_from=init_from, **fields)


def _make_job(
    folder: Path, name: str, *, module: str = "model", init_from: str | None = None, **fields: Any
) -> JobFolder:
    model = {"zoo": str(folder / "zoo"), "definition": f"{module}.custom_model", "init_from": init_from}
    # One lease in order, so that Keras can train on the same minibatches.
    # SGD, because only with it a row that no minibatch names stays as it is, in Keras and on parameter servers.
    train = {"epochs": 1, "minibatch_size": BATCH, "minibatches_per_task": 64, "max_steps": STEPS, "seed": 5}
    return JobFolder.make(
        folder,
        name,
        f"{module}.custom_model",
        **{
            "model": model,
            "data": {"training": str(folder / "train.recordio")},
            "train": {**train, "shuffle": {"window": 0}},
            "checkpoint": {"every_steps": 1_000_000, "keep": 5},
            "ps": ON_SERVERS,
            **fields,
        },
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainedJob]:
    folder = tmp_path_factory.mktemp("init")
    constants = {"WIDTH": WIDTH, "IDS": IDS, "ROWS": ROWS}
    write_module(folder, "model", MODULE, constants)
    write_module(folder, "wider", MODULE.replace("Dense(5,", "Dense(6,"), constants)
    write_module(folder, "renamed", MODULE.replace('name="items"', 'name="goods"'), constants)
    x, ids, y = _records()
    write_example_arrays(folder / "train.recordio", x, ids, y, chunk_limit=1 << 20)
    job = _make_job(folder, "first", export={}, train={"epochs": 4, "minibatch_size": BATCH, "seed": 9})
    with job.run() as run:
        run.summary()
        yield TrainedJob(folder, run.run_dir)


def _records() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(2)
    x = random.normal(size=(RECORDS, WIDTH)).astype(np.float32)
    ids = random.integers(0, ROWS, (RECORDS, IDS))
    return x, ids, (x.sum(1, keepdims=True) + (ids[:, :1] % 3)).astype(np.float32)


def _keras_weights(trained: TrainedJob) -> dict[str, np.ndarray]:
    """What Keras makes of the exported model with a new optimizer, on the first minibatches."""
    import keras

    path = trained.folder / "zoo" / "model.py"
    module_spec = importlib.util.spec_from_file_location("init_from_model", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    keras.utils.clear_session()
    model = module.custom_model()
    model.load_weights(trained.run_dir / "export" / "model.keras")
    model.compile(module.optimizer(), module.loss)
    x, ids, y = _records()
    for start in range(0, STEPS * BATCH, BATCH):
        at = slice(start, start + BATCH)
        model.train_on_batch([x[at], ids[at]], y[at])
    return {weight.path: np.asarray(weight) for weight in model.weights}


def _weights(folder: Path) -> dict[str, np.ndarray]:
    """The weights of a checkpoint; of a table on parameter servers, the rows that are stored, else zeros."""
    arrays = checkpoint_arrays(folder)
    weights = {name.removeprefix("dense/"): array for name, array in arrays.items() if name.startswith("dense/")}
    for name in {name for name in arrays if name.startswith("rows/") and name.endswith("/ids")}:
        table = name.removeprefix("rows/").removesuffix("/ids")
        weights[table] = np.zeros((ROWS, 4), np.float32)
        weights[table][arrays[name]] = arrays[f"rows/{table}/values"]
    return weights


@pytest.mark.parametrize(
    ("name", "source", "fields"),
    [
        repetition("local", "run", {"strategy": {"name": "Local"}}),
        pytest.param("local-keras", "export", {"strategy": {"name": "Local"}}, marks=pytest.mark.repetition),
        repetition("ranks", "checkpoint", {"strategy": {"name": "AllReduce"}}),
        pytest.param("ranks-keras", "export", {"strategy": {"name": "AllReduce"}}, marks=pytest.mark.repetition),
        ("servers", "job", {"ps": PAIR_OF_SERVERS}),
        pytest.param("servers-keras", "export", {"ps": PAIR_OF_SERVERS}, marks=pytest.mark.repetition),
        pytest.param("servers-dense", "run", {"ps": {"count": 2}}, marks=pytest.mark.repetition),
    ],
)
def test_a_job_that_begins_with_weights_of_another_equals_keras(
    trained: TrainedJob, name: str, source: str, fields: dict[str, Any]
) -> None:
    sources = {
        "job": "first",
        "run": "first/r1",
        "checkpoint": str(newest_cut(trained.run_dir)),
        "export": str(trained.run_dir / "export" / "model.keras"),
    }
    job = trained.begin(name, sources[source], **fields)
    with job.run() as run:
        summary = run.summary()
        weights = _weights(newest_cut(run.run_dir))
        assert not (run.run_dir / "weights").exists()
    assert summary["records_done"] == STEPS * BATCH
    assert str(trained.run_dir) in summary["began_with"]
    expected = _keras_weights(trained)
    assert weights.keys() == expected.keys()
    trained_rows = np.unique(_records()[1])
    for path, values in expected.items():
        rows = trained_rows if path == "items/embeddings" else slice(None)
        np.testing.assert_allclose(weights[path][rows], values[rows], rtol=2e-4, atol=2e-5, err_msg=path)


@pytest.mark.repetition
def test_a_job_with_tables_in_memory_continues_on_parameter_servers_with_its_rows(trained: TrainedJob) -> None:
    with trained.begin("in-memory", "first", strategy={"name": "Local"}).run() as run:
        run.summary()
        in_memory_weights = _weights(newest_cut(run.run_dir))
    train = {"epochs": 1, "minibatch_size": BATCH, "max_steps": 1}
    with trained.begin("on-servers", "in-memory", ps=PAIR_OF_SERVERS, train=train).run() as run:
        run.summary()
        first = _weights(run.run_dir / "checkpoints" / "cut-00000001")
    assert first.keys() == in_memory_weights.keys()
    for path, values in in_memory_weights.items():
        np.testing.assert_array_equal(first[path], values, err_msg=path)


@pytest.mark.parametrize(
    ("module", "strategy", "named"),
    [
        ("wider", "Local", ("hidden/kernel", "[11, 6]", "[11, 5]")),
        repetition("renamed", "ParameterServer", ("goods", "items")),
    ],
)
@pytest.mark.repetition
def test_weights_of_another_model_are_refused_by_name(
    trained: TrainedJob, module: str, strategy: str, named: tuple[str, ...]
) -> None:
    job = trained.begin(f"{module}-{strategy.lower()}", "first", module=module, strategy={"name": strategy})
    done = edl("run", str(job.file), cwd=trained.folder, timeout=240.0)
    assert done.returncode == 2
    assert "model.init_from" in done.stdout + done.stderr
    for name in named:
        assert name in done.stdout + done.stderr


def test_a_source_that_does_not_exist_is_refused_before_a_run_begins(trained: TrainedJob) -> None:
    job = trained.begin("nowhere", "first/r9")
    done = edl("run", str(job.file), cwd=trained.folder, timeout=240.0)
    assert done.returncode == 2
    assert "r9" in done.stderr
    assert not (trained.folder / ".edl" / "local" / "nowhere").exists()


@pytest.mark.repetition
@pytest.mark.parametrize("strategy", ["AllReduce", "ParameterServer", "Local"])
def test_a_run_that_continues_does_not_begin_again(trained: TrainedJob, tmp_path: Path, strategy: str) -> None:
    shutil.copytree(trained.run_dir / "export", tmp_path / "export")
    job = trained.begin(
        f"resumed-{strategy.lower()}",
        str(tmp_path / "export"),
        strategy={"name": strategy},
        train={"epochs": 100_000, "minibatch_size": BATCH},
    )
    with job.run() as run:
        run.wait_step(20, timeout=240.0)
        run.interrupt()
        assert run.wait() == 130
        stopped = run.status()
        before = _weights(newest_cut(run.run_dir))
        shutil.rmtree(tmp_path / "export")
        shutil.rmtree(run.run_dir / "weights", ignore_errors=True)
    job.spec["train"]["max_steps"] = stopped["step"] + 1
    job.file.write_text(json.dumps(job.spec))
    with job.run("--resume") as run:
        run.summary(timeout=240.0)
        after = _weights(newest_cut(run.run_dir))
    for path, values in before.items():
        # One step more. To begin again would end the run: what it began with is gone.
        assert np.abs(after[path] - values).max() < 0.2, path


@pytest.mark.repetition
def test_the_plan_says_with_what_the_job_begins(trained: TrainedJob) -> None:
    job = trained.begin("planned", "first", strategy={"name": "Local"})
    validated = edl("validate", str(job.file), cwd=trained.folder, timeout=240.0)
    assert validated.returncode == 0, validated.stderr
    assert "begins with the weights of first" in validated.stdout
    done = edl("run", str(job.file), cwd=trained.folder, timeout=240.0)
    assert done.returncode == 0, done.stderr
    assert f"begins with {newest_cut(trained.run_dir)}" in done.stdout
    assert "init from" in done.stdout
