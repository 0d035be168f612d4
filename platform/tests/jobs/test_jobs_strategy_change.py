"""A run changes its strategy with ``--resume``, twice: its result is that of a run that does not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from jobs.plain_keras import checkpoint_arrays
from jobs.test_jobs_models import iris
from support.job_folder import JobFolder, newest_cut
from support.job_process import JobProcess, edl

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(600), pytest.mark.tensorflow]

STEPS = 1600
ALL_REDUCE = ("--set", "strategy.name=AllReduce")


def make_job(folder: Path) -> JobFolder:
    train = {"epochs": 100_000, "max_steps": STEPS, "minibatch_size": 16, "minibatches_per_task": 8}
    return iris(folder, train=train, checkpoint={"every_steps": 1_000_000}, export=None, ps={"count": 2})


def stop_at(run: JobProcess, step: int) -> dict[str, int]:
    """Stop a run after a step; returns its status."""
    run.wait_step(step, timeout=240.0)
    run.interrupt()
    assert run.wait() == 130
    return run.status()


@pytest.mark.repetition
def test_parameter_servers_and_all_reduce_continue_each_others_checkpoints(tmp_path: Path) -> None:
    with make_job(tmp_path / "straight").run() as run:
        run.summary()
        expected = checkpoint_arrays(newest_cut(run.run_dir))
    job = make_job(tmp_path / "changed")
    with job.run() as run:
        first = stop_at(run, 150)
    with job.run("--resume", *ALL_REDUCE) as run:
        started = run.wait_event("run_started")
        assert any("AllReduce" in line and "checkpoint" in line for line in started["changes"])
        status = run.wait_step(first["step"] + 1)
        assert status["records_done"] > first["records_done"]
        second = stop_at(run, first["step"] + 150)
        assert run.pids("ps") == {}
        inspected = edl("checkpoint", "inspect", str(newest_cut(run.run_dir)), "--json", cwd=tmp_path)
        assert inspected.returncode == 0, inspected.stderr
    with job.run("--resume") as run:
        summary = run.summary()
        arrays = checkpoint_arrays(newest_cut(run.run_dir))
        ledger = json.loads((newest_cut(run.run_dir) / "manifest.json").read_text())["ledger"]
    assert second["step"] < ledger["done_steps"] == STEPS
    assert summary["records_rolled_back"] == 0
    assert arrays.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(arrays[name], values, rtol=2e-3, atol=2e-4, err_msg=name)


LOCAL = ("--set", "strategy.name=Local")


@pytest.mark.repetition
def test_local_and_all_reduce_continue_each_others_checkpoints(tmp_path: Path) -> None:
    """A single worker makes the steps of strategy Local."""

    def make(folder: Path) -> JobFolder:
        job = make_job(folder)
        job.spec["train"]["max_steps"] = 800
        job.spec["workers"] = {"max": 1}
        job.file.write_text(json.dumps(job.spec))
        return job

    with make(tmp_path / "straight").run(*LOCAL) as run:
        run.summary(timeout=240.0)
        expected = checkpoint_arrays(newest_cut(run.run_dir))
    job = make(tmp_path / "changed")
    with job.run(*LOCAL) as run:
        first = stop_at(run, 100)
    with job.run("--resume", *ALL_REDUCE) as run:
        started = run.wait_event("run_started", timeout=240.0)
        assert any("strategy AllReduce continues at checkpoint" in line for line in started["changes"])
        second = stop_at(run, first["step"] + 100)
        assert second["records_done"] > first["records_done"]
    with job.run("--resume", *LOCAL) as run:
        summary = run.summary(timeout=240.0)
        arrays = checkpoint_arrays(newest_cut(run.run_dir))
        ledger = json.loads((newest_cut(run.run_dir) / "manifest.json").read_text())["ledger"]
    assert second["step"] < ledger["done_steps"] == 800
    assert summary["records_done"] == ledger["done_records"]
    assert arrays.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(arrays[name], values, rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.repetition
def test_an_optimizer_that_servers_do_not_have_is_named(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "averaged.py").write_text(
        "import keras\nfrom model_zoo.iris.iris_dnn import *\n\n\n"
        "def optimizer():\n    return keras.optimizers.SGD(0.01, use_ema=True)\n"
    )
    job.spec["model"] = {"zoo": str(zoo), "definition": "averaged.custom_model"}
    job.file.write_text(json.dumps(job.spec))
    with job.run(*ALL_REDUCE) as run:
        stop_at(run, 50)
    refused = edl("run", str(job.file), "--resume", cwd=tmp_path)
    assert refused.returncode == 2
    assert "use_ema" in refused.stderr
    with job.run("--resume", *ALL_REDUCE) as run:
        stop_at(run, 100)


LARGE = """
import keras
from model_zoo.iris.iris_dnn import *


def custom_model():
    layers = keras.layers
    return keras.Sequential([keras.Input([4], name="lengths"), layers.Dense(1500), layers.Dense(8000), layers.Dense(3)])


def optimizer():
    return keras.optimizers.Adam(1e-5)
"""
"""A state of 144 MB: 12 million weights with two slots each."""


@pytest.mark.repetition
def test_two_workers_write_a_large_checkpoint_and_all_commands_read_it(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/large.py").write_text(LARGE)
    job.spec["model"] = {"zoo": str(tmp_path / "zoo"), "definition": "large.custom_model"}
    job.spec["checkpoint"] = {"every_steps": 20, "keep": 2}
    job.spec["workers"] = {"min": 2, "max": 2}
    job.file.write_text(json.dumps(job.spec))
    with job.run(*ALL_REDUCE) as run:
        run.wait_event("checkpoint_saved", after=1)
        stop_at(run, 30)
        cut = newest_cut(run.run_dir)
    assert sorted(path.name for path in cut.iterdir()) == ["manifest.json", "ps-0.safetensors", "ps-1.safetensors"]
    sizes = [(cut / f"ps-{index}.safetensors").stat().st_size for index in range(2)]
    assert max(sizes) < 2.1 * min(sizes)
    for command in (
        ("inspect", str(cut), "--json"),
        ("ls", str(run.run_dir), "--verify"),
        ("export", str(cut), "all.npz", "--slots"),
    ):
        done = edl("checkpoint", *command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
    with job.predict(tmp_path / "out", "--from", "r1", "--set", f"data.prediction={tmp_path / 'test.csv'}") as run:
        run.summary()
    with job.run("--resume", *ALL_REDUCE) as run:
        before = stop_at(run, 60)
        inspected = checkpoint_arrays(newest_cut(run.run_dir))
    assert before["step"] >= 60
    with job.run("--resume", "--set", "workers.min=1") as run:
        # Parameter servers count the minibatches of both workers.
        assert run.wait_status(lambda status: status["records_done"] > before["records_done"])["step"] > before["step"]
        stop_at(run, before["step"])
        after = checkpoint_arrays(newest_cut(run.run_dir))
    for name in (name for name in inspected if name.startswith("dense/")):
        np.testing.assert_allclose(after[name], inspected[name], rtol=0, atol=2e-3, err_msg=name)
