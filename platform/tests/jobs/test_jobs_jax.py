"""Programs in JAX, and in Keras on JAX, under a job: all workers take steps together, and one is killed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support.job_process import JobProcess
from support.program_environment import install_packages, make_environment, use_environment

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[3] / "docs" / "programs.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"<!-- test: (.+?) -->\n```python\n(.*?)```", PAGE, re.S))
PACE = """            if not os.path.exists("hurry"):
                time.sleep(0.1)
"""
PROGRAM = "import os, time\n" + PROGRAMS["jax/train.py"].replace("        with step:\n", f"        with step:\n{PACE}")
"""That of the page, paced."""
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


KERAS = """
import os, time
os.environ["KERAS_BACKEND"] = "jax"
import jax, keras, numpy as np
from edl.sharding import Client

model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(32, "tanh"), keras.layers.Dropout(0.1, seed=1), keras.layers.Dense(10)]
)
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
weights = model.trainable_variables
variables = [*weights, *optimizer.variables]


def compute(trainable, others, images, labels):
    predictions, _ = model.stateless_call(trainable, others, images, training=True)
    return loss_of(labels, predictions)


differentiate = jax.jit(jax.value_and_grad(compute))


def load(state):
    for variable, value in zip(variables, state):
        variable.assign(value)


def values(of):
    return [variable.value for variable in of]


with Client.from_env() as client:
    for step in client.steps(values(weights), lambda: values(variables), load):
        with step:
            loss = gradients = None
            if step.batch is not None:
                columns = step.batch.records.columns
                others = values(model.non_trainable_variables)
                loss, gradients = differentiate(values(weights), others, columns["image"], columns["label"])
            optimizer.apply(step.allreduce(gradients, loss=loss), weights)
            if not os.path.exists("hurry"):
                time.sleep(0.1)
    if client.world is not None:
        hidden, bias, out, last = (np.asarray(each) for each in values(weights))
        np.savez(f"weights-{client.world.rank}.npz", hidden=hidden, bias=bias, out=out, last=last)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with JAX."""
    return make_environment(tmp_path_factory.mktemp("environment"), sys.executable, "jax[cpu]")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("jax", marks=[pytest.mark.repetition, pytest.mark.in_third(1)]),
        pytest.param("keras", marks=pytest.mark.repetition),
    ],
)
def test_a_network_is_trained_by_two_workers_one_of_which_is_killed(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    if program == "keras":
        install_packages(python, "keras")
    use_environment(python, monkeypatch)
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", image=(digits.data / 16).astype(np.float32), label=digits.target)
    (tmp_path / "train.py").write_text({"jax": PROGRAM, "keras": KERAS}[program])
    (tmp_path / "job.yaml").write_text(JOB)
    with JobProcess(tmp_path / "job.yaml", cwd=tmp_path, started=True) as run:
        run.wait_event("world_changed", workers=2)
        run.wait_step(20)
        run.send("worker", 0, SIGKILL)
        run.wait_event("world_changed", workers=2, reason="worker-2 joins")
        (tmp_path / "hurry").touch()
        summary = run.summary(200)
        assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == 20 * len(digits.target)
    assert summary["records_lost"] == 0
    first, second = (dict(np.load(tmp_path / f"weights-{rank}.npz")) for rank in range(2))
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
    hidden = np.tanh(digits.data / 16 @ first["hidden"] + first.get("bias", 0.0))
    guessed = (hidden @ first["out"] + first.get("last", 0.0)).argmax(axis=1)
    assert (guessed == digits.target).mean() > 0.93
