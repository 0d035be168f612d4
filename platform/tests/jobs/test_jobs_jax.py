"""A program in JAX under a job: a network whose steps all workers take together, and a killed worker."""

from __future__ import annotations

import sys
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support.job_process import JobProcess
from support.program_environment import make_environment, use_environment

pytestmark = [pytest.mark.jobs, pytest.mark.thorough, pytest.mark.timeout(900)]

PROGRAM = """
import os, time
import jax, jax.numpy as jnp, numpy as np
from edl.sharding import Client

first, second = jax.random.split(jax.random.key(0))
weights = {"hidden": jax.random.normal(first, (64, 32)) / 8, "out": jax.random.normal(second, (32, 10)) / 6}


def loss_of(weights, images, labels):
    scores = jax.nn.log_softmax(jnp.tanh(images @ weights["hidden"]) @ weights["out"])
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


differentiate = jax.jit(jax.value_and_grad(loss_of))


def load(state):
    weights.update({name: jnp.asarray(array) for name, array in state.items()})


with Client.from_env() as client:
    for step in client.steps(weights, lambda: weights, load):
        with step:
            loss = gradients = None
            if step.batch is not None:
                columns = step.batch.records.columns
                loss, gradients = differentiate(weights, columns["image"], columns["label"])
            means = step.allreduce(gradients, loss=loss)
            load({name: weights[name] - 0.3 * means[name] for name in means})
            if not os.path.exists("hurry"):
                time.sleep(0.02)
    if client.world is not None:
        np.savez(f"weights-{client.world.rank}.npz", **weights)
"""
JOB = """
apiVersion: edl.dev/v1
name: jax
command: [python, train.py]
model: {zoo: .}
data: {training: digits.npz}
train: {epochs: 20, minibatch_size: 64, minibatches_per_task: 4}
strategy: {name: AllReduce}
workers: {max: 2}
"""


def test_a_network_in_jax_is_trained_by_two_workers_one_of_which_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_environment(tmp_path / "environment", sys.executable, "jax[cpu]")
    use_environment(python, monkeypatch)
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", image=(digits.data / 16).astype(np.float32), label=digits.target)
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(JOB)
    with JobProcess(tmp_path / "job.yaml", cwd=tmp_path) as run:
        run.wait_event("world_changed", workers=2)
        run.wait_step(20)
        run.send("worker", 0, SIGKILL)
        run.wait_event("world_changed", workers=2, reason="worker-2 joins")
        (tmp_path / "hurry").touch()
        summary = run.summary(200)
        assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == 20 * len(digits.target)
    assert summary["records_lost"] == 0
    first, second = (np.load(tmp_path / f"weights-{rank}.npz") for rank in range(2))
    for name in ("hidden", "out"):
        np.testing.assert_array_equal(first[name], second[name])
    guessed = (np.tanh(digits.data / 16 @ first["hidden"]) @ first["out"]).argmax(axis=1)
    assert (guessed == digits.target).mean() > 0.93
