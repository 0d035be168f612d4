"""Command lines of ElasticDL's tutorials train on this machine, and the logs have what the tutorials search for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_harness import run_edl
from support.job_folder import MODEL_ZOO

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(300), pytest.mark.tensorflow]

MODEL = ["--model_zoo=model_zoo", "--model_def=mnist.mnist_functional_api.custom_model"]
DATA = ["--training_data=data/mnist/train", "--validation_data=data/mnist/test"]
LOSS = re.compile(r"Loss = \d+(\.\d+)?, steps = \d+")
"""`kubectl logs POD | grep Loss` in the tutorials."""
EVALUATION = re.compile(r"Evaluation metrics\[v=\d+\]: \{.*'accuracy': 0\.\d+\}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tutorial = tmp_path_factory.mktemp("tutorial")
    (tutorial / "model_zoo").symlink_to(MODEL_ZOO)
    assert run_edl("data", "mnist", str(tutorial / "data/mnist"), "--source", "digits") == 0
    return tutorial


def elasticdl(folder: Path, *words: str) -> str:
    program = [sys.executable, "-m", "edl.cli.elasticdl.app", *words]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def logs_of(folder: Path, job: str, role: str) -> str:
    return "".join(path.read_text() for path in (folder / ".edl/local" / job).glob(f"r1/logs/{role}*"))


@pytest.mark.repetition
def test_a_job_with_parameter_servers_then_an_evaluation_and_a_prediction(folder: Path) -> None:
    roles = ["--distribution_strategy=ParameterServerStrategy", "--num_ps=2", "--num_workers=2", "--use_async"]
    steps = ["--num_epochs=3", "--evaluation_steps=20", "--log_loss_steps=10", "--output=output"]
    out = elasticdl(folder, "train", *MODEL, *DATA, *roles, *steps, "--job_name=test-mnist")
    assert "0 lost, 0 repeated" in out
    assert LOSS.search(logs_of(folder, "test-mnist", "worker"))
    assert EVALUATION.search(logs_of(folder, "test-mnist", "master"))
    trained = ["--validation_data=data/mnist/test", "--checkpoint_dir_for_init=test-mnist"]
    assert "accuracy" in elasticdl(folder, "evaluate", *MODEL, *trained, "--job_name=test-evaluate")
    trained = ["--prediction_data=data/mnist/test", "--checkpoint_dir_for_init=output"]
    elasticdl(folder, "predict", *MODEL, *trained, "--job_name=test-predict")
    assert list((folder / "predictions").glob("*.npz"))


@pytest.mark.repetition
@pytest.mark.parametrize("strategy", [[], ["--distribution_strategy=AllreduceStrategy", "--num_workers=2"]])
def test_without_parameter_servers(folder: Path, strategy: list[str]) -> None:
    job = f"test-{'allreduce' if strategy else 'local'}"
    out = elasticdl(folder, "train", *MODEL, *DATA, *strategy, f"--job_name={job}", "--log_loss_steps=5")
    assert "0 lost, 0 repeated" in out
    assert LOSS.search(logs_of(folder, job, "worker") or out)


WITHOUT_FEED = """
import keras
import tensorflow as tf

def custom_model():
    given = {name: keras.Input((1,), name=name) for name in ("x", "y")}
    return keras.Model(given, keras.layers.Dense(1)(keras.layers.Concatenate()(list(given.values()))))

def loss(labels, predictions):
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions)

def optimizer():
    return keras.optimizers.SGD(1.0)

def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy(threshold=0.0)}
"""


@pytest.mark.repetition
@pytest.mark.parametrize("strategy", ["ParameterServerStrategy", "Local", "AllreduceStrategy"])
def test_a_table_needs_no_feed(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "table.py").write_text(WITHOUT_FEED)
    rows = [f"{x},{int(x > y)},{y},a" for x in range(-9, 10) for y in range(-9, 10) if x != y]
    (tmp_path / "all.csv").write_text("\n".join(["x,label,y,note", *rows, ""]))
    words = ["--model_zoo=.", "--model_def=table.custom_model", "--job_name=table", "--num_epochs=5", "--output=out"]
    data = ["--training_data=all.csv", "--validation_data=all.csv", "--data_reader_params=label_col='label'"]
    out = elasticdl(tmp_path, "train", *words, *data, f"--distribution_strategy={strategy}", "--minibatch_size=16")
    accuracy = re.search(r"accuracy (0\.\d+|1)", out)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9
    trained = ["--prediction_data=all.csv", "--checkpoint_dir_for_init=out", "--data_reader_params=label_col='label'"]
    elasticdl(tmp_path, "predict", *words[:2], "--job_name=new", *trained)


@pytest.mark.repetition
def test_a_program_of_the_zoo_gets_every_record_by_edl_sharding(tmp_path: Path) -> None:
    package = tmp_path / "model_zoo/own"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "rates.py").write_text("RATE = 0.5\n")
    (package / "program.py").write_text(
        "import sys\nfrom model_zoo.own.rates import RATE\nfrom edl.sharding import Client\n"
        "with Client.from_env() as client:\n    for batch in client.batches():\n        print(sys.argv[1], *batch)\n"
    )
    (tmp_path / "lines.txt").write_text("".join(f"record-{number}\n" for number in range(300)))
    program = "--job_command=python -m model_zoo.own.program --rate=1"
    out = elasticdl(tmp_path, "train", "--model_zoo=model_zoo", program, "--training_data=lines.txt")
    assert "300 of 300 records" in out
    numbers = re.findall(r"record-(\d+)", logs_of(tmp_path, "program", "worker"))
    assert sorted(map(int, numbers)) == list(range(300))
    assert "--rate=1" in logs_of(tmp_path, "program", "worker")
