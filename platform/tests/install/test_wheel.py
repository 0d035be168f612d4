"""The wheel of ``make dist``, in an empty environment without extras: the light client that submits jobs.

``make dist-test`` builds it and runs these. The packages that it needs come from pip's index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from support.doc_commands import ROOT, run, script
from support.readme_job import write_readme_job

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

HEAVY = {"tensorflow", "tensorflow-cpu", "keras", "grpcio", "numpy", "protobuf"}
"""Distributions that the light client must do without."""
INSTALLED = """
import importlib.metadata, json
print(json.dumps([found.metadata["Name"].lower() for found in importlib.metadata.distributions()]))
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = list((ROOT / "dist").glob("edl_platform-*.whl"))
    assert len(wheels) == 1, f"`make dist` leaves one wheel in dist/; found {len(wheels)}"
    return wheels[0]


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder, with_pip=True)
    pinned = ["--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([folder / "bin/python", "-m", "pip", "install", *pinned, wheel], check=True, timeout=500)
    return folder


def edl(environment: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KUBE", "EDL_"))}
    return subprocess.run(
        [environment / "bin/edl", *args], cwd=cwd, env=outside, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def zoo(environment: Path, tmp_path: Path) -> Path:
    """A folder with a model and its job, as the client writes it."""
    initialised = edl(environment, "zoo", "init", "zoo", cwd=tmp_path)
    assert initialised.returncode == 0, initialised.stderr
    return tmp_path / "zoo"


def test_the_wheel_has_native_code_types_and_license_and_no_sources_of_native_code(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    stubs = [Path(name) for name in names if Path(name).match("_*.pyi")]
    assert len(stubs) >= 2
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    for stub in stubs:  # each extension has one
        assert any(name.startswith(f"{stub.with_suffix('')}.{tag}") for name in names), stub
    assert "edl/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert [name for name in names if name.endswith((".cpp", ".hpp", ".cmake", ".proto", ".pyc"))] == []
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"edl"}


def test_elasticdl_compat_is_installed_beside_it(environment: Path, tmp_path: Path) -> None:
    (compat,) = (ROOT / "dist").glob("elasticdl_compat-*-py3-none-any.whl")
    with zipfile.ZipFile(compat) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {
        "elasticdl",
        "elasticdl_compat",
        "elasticdl_preprocessing",
        "recordio",
    }
    assert [name for name in names if not name.endswith((".py", "/py.typed"))] == []
    subprocess.run([environment / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", compat], check=True)
    program = "from elasticdl.python.common.constants import Mode; print(Mode.TRAINING)"
    shown = subprocess.run(
        [environment / "bin/python", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "training\n"


def test_nothing_that_trains_is_installed(environment: Path) -> None:
    listed = subprocess.run([environment / "bin/python", "-c", INSTALLED], capture_output=True, text=True, check=True)
    installed = set(json.loads(listed.stdout))
    assert "edl-platform" in installed
    assert installed & HEAVY == set()


def test_every_command_has_its_help(environment: Path, tmp_path: Path) -> None:
    shown = edl(environment, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    _, _, commands = shown.stdout.partition("Commands:\n")
    names = [line.split()[0] for line in commands.splitlines() if line.startswith("  ") and line[2:3].strip()]
    assert {"run", "submit", "validate", "zoo"} <= set(names)
    for name in names:
        assert edl(environment, name, "--help", cwd=tmp_path).returncode == 0, name


def test_the_second_command_writes_a_job_file(environment: Path, tmp_path: Path) -> None:
    words = ["train", "--job_name=j", "--image_name=i:1", "--model_def=m.f", "--training_data=/data", "--yaml=job.yaml"]
    done = subprocess.run(
        [environment / "bin/elasticdl", *words], cwd=tmp_path, capture_output=True, timeout=60, check=True
    )
    assert b"job.yaml" in done.stdout
    assert edl(environment, "render", "job.yaml", cwd=tmp_path).returncode == 0


def test_a_job_is_checked_planned_and_rendered(environment: Path, zoo: Path) -> None:
    checked = edl(environment, "validate", "job.yaml", cwd=zoo)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith("job.yaml: ok")
    planned = edl(environment, "submit", "job.yaml", "--dry-run", "client", cwd=zoo)
    assert planned.returncode == 0, planned.stderr
    assert "worker" in planned.stdout
    rendered = edl(environment, "render", "job.yaml", cwd=zoo)
    assert rendered.returncode == 0, rendered.stderr
    assert "kind: Job" in rendered.stdout
    schema = edl(environment, "schema", cwd=zoo)
    assert json.loads(schema.stdout)["$schema"]


def test_a_mistake_in_a_job_is_named(environment: Path, zoo: Path) -> None:
    refused = edl(environment, "validate", "job.yaml", "--set", "train.epochs=none", cwd=zoo)
    assert refused.returncode == 2
    assert "train.epochs" in refused.stderr


@pytest.mark.parametrize("command", [["run", "job.yaml"], ["validate", "job.yaml", "--model"]], ids=lambda c: c[0])
def test_what_trains_is_refused_with_the_extra_that_it_needs(environment: Path, zoo: Path, command: list[str]) -> None:
    refused = edl(environment, *command, cwd=zoo)
    assert refused.returncode == 2
    assert "edl-platform[train]" in refused.stderr
    assert "Traceback" not in refused.stderr


KERAS2_MODEL = """
import tensorflow as tf

def custom_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(4, activation="relu"), tf.keras.layers.Dense(1)])

def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))

def optimizer():
    return tf.keras.optimizers.SGD(0.05)

def feed(dataset, mode, metadata):
    numbers = dataset.map(tf.strings.to_number)
    return numbers.map(lambda row: row[:2] if mode == "prediction" else (row[:2], row[2:]))

def eval_metrics_fn():
    return {"mae": tf.keras.metrics.MeanAbsoluteError()}
"""


def install_extra(wheel: Path, extra: str, folder: Path) -> None:
    venv.create(folder, with_pip=True)
    install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, f"{wheel}[{extra}]"], check=True, timeout=580)


def test_the_readmes_job_trains_with_the_extra_for_training_alone(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    install_extra(wheel, "train", folder)
    commands = write_readme_job(tmp_path)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KUBE", "EDL_"))}
    run(script(commands), folder=tmp_path, env={**outside, "PATH": f"{folder}/bin:{os.environ['PATH']}"}, seconds=180)
    summary = json.loads((tmp_path / ".edl/local/flowers/r1/summary.json").read_text())
    assert (summary["phase"], summary["records_lost"]) == ("Done", 0)


def test_models_of_keras_2_train_with_their_extra_alone(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    install_extra(wheel, "keras2", folder)
    listed = json.loads(subprocess.check_output([folder / "bin/python", "-c", INSTALLED]))
    assert {name for name in listed if name.startswith("tensorflow") and "board" not in name} == {"tensorflow"}
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/old.py").write_text(KERAS2_MODEL)
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "1,2,3\n0,1,1\n" * 32)
    (tmp_path / "job.yaml").write_text(
        "name: old\nmodel: {zoo: zoo, definition: old.custom_model, keras: 2}\n"
        "data: {training: rows.csv, validation: rows.csv}\ntrain: {epochs: 3, minibatch_size: 8}\nworkers: {max: 1}\n"
    )
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KUBE", "EDL_"))}
    ended = subprocess.run(
        [folder / "bin/edl", "run", "job.yaml"],
        cwd=tmp_path,
        env=outside,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "tf_keras.models.load_model" in ended.stderr + ended.stdout
