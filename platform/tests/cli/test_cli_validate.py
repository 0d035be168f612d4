"""edl --help, edl validate, edl schema: what they print, how they end, what they import."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from cli.cli_harness import run_edl
from support.text_keys import missing_keys

from edl.api.job_spec import TrainSpec
from edl.cli import app
from edl.jobfile.json_schema import JOB_SCHEMA, read_published_schema
from edl.ops import job_checks
from edl.ops.local_run_start import check_storage

JOB = """\
name: mnist
model: {definition: mnist.mnist_functional_api.custom_model}
data: {training: /data/train, validation: /data/test}
train: {epochs: 5, evaluation_steps: 200}
ps: {count: 2}
workers: {min: 1, max: 4}
"""
SMALL = """\
import keras, os, tensorflow as tf

def custom_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

def loss(labels, predictions):
    return tf.square(labels - predictions)

def optimizer():
    return keras.optimizers.SGD(0.1)

def eval_metrics_fn():
    return {}

def feed(dataset, mode, metadata):
    return dataset.map(lambda row: tf.strings.to_number(row)).map(lambda row: (row[:1], row[1:]))
"""
HEAVY = ("tensorflow", "keras", "numpy", "grpc", "google.protobuf", "kubernetes", "jsonschema")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    return Path("job.yaml")


def imported(*args: str) -> set[str]:
    """The modules that the command imports in a process of its own."""
    code = (
        f"import sys; from edl.cli import app\ntry: app.main({args!r})\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_validate_says_what_would_run(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("validate", "job.yaml") == 0
    first, name, training, evaluation, strategy, checkpoints, export, unchecked = capsys.readouterr().out.splitlines()
    assert first == "job.yaml: ok"
    assert not missing_keys(name, "job mnist", "mnist.mnist_functional_api.custom_model", "model_zoo")
    assert not missing_keys(training, "/data/train", "5 epochs", "minibatches of 64")
    assert not missing_keys(evaluation, "/data/test", "every 200 steps", "end")
    assert not missing_keys(strategy, "ParameterServer", "async", "1 to 4 workers", "2 parameter servers")
    assert not missing_keys(checkpoints, "3 checkpoints", "1,000 steps")
    assert not missing_keys(export, "export/")
    assert not missing_keys(unchecked, "not checked", "--model")


def test_what_is_not_on_this_machine_is_a_warning(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("validate", "job.yaml") == 0
    zoo, training, validation = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert zoo.startswith("warning: job.yaml:2: ")
    assert not missing_keys(zoo, "model zoo", "model_zoo")
    assert "job.yaml:3: data.training: /data/train" in training
    assert "job.yaml:3: data.validation: /data/test" in validation


def test_a_function_that_is_missing_is_a_warning(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("model_zoo/mnist").mkdir(parents=True)
    Path("model_zoo/mnist/mnist_functional_api.py").write_text("def custom_model(): ...\n", encoding="utf-8")
    assert run_edl("validate", "job.yaml") == 0
    assert not missing_keys(capsys.readouterr().err, "'loss'")


@pytest.mark.parametrize(
    ("setting", "keys"),
    [
        ("data.training=absent.csv", ["data.training", "absent.csv"]),
        ("data.validation=empty", ["data.validation", "empty"]),
        ("model.zoo=absent", ["absent", "zoo"]),
        ("model.definition=smal.custom_model", ["'smal'", "small"]),
        ("model.definition=small.custom_modell", ["custom_modell", "custom_model"]),
        ("model.params={layers: 3}", ["model.params", "custom_model()", "'layers'", "small.py:3"]),
        ("export.path=data.csv", ["export.path", "is a file"]),
    ],
)
def test_a_job_with_relative_paths_runs_only_here_so_what_is_missing_is_an_error(
    small_job: Path, setting: str, keys: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    assert run_edl("validate", "job.yaml") == 0
    assert capsys.readouterr().err == ""
    assert run_edl("validate", "job.yaml", "--set", setting) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert not missing_keys(captured.err, *keys)


def test_an_import_of_elasticdl_that_is_not_there_is_found(small_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_job.write_text(f"from elasticdl.python.master import main\n{SMALL}", encoding="utf-8")
    assert run_edl("validate", "job.yaml") == 2
    err = capsys.readouterr().err
    assert missing_keys(err, "small.py:1", "elasticdl.python.master", "docs/migrating-from-elasticdl.md") == []


def test_a_module_that_is_no_python_is_an_error(small_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_job.write_text("def custom_model(:\n", encoding="utf-8")
    assert run_edl("validate", "job.yaml") == 2
    assert not missing_keys(capsys.readouterr().err, "small.py:1", "not valid Python")


def test_what_is_there_or_in_a_volume_that_is_elsewhere_is_no_warning(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = ("custom_model", "loss", "optimizer", "eval_metrics_fn", "feed")
    Path("model_zoo/mnist").mkdir(parents=True)
    module = "".join(f"def {name}(): ...\n" for name in functions)
    Path("model_zoo/mnist/mnist_functional_api.py").write_text(module, encoding="utf-8")
    Path("train.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    volume = "volumes=[{claim: data, mount: /not-mounted-here}]"
    data = "data={training: train.csv, validation: /not-mounted-here/test, prediction: 's3://bucket/x'}"
    assert run_edl("validate", "job.yaml", "--set", volume, "--set", data) == 0
    assert capsys.readouterr().err == ""


def test_validate_with_settings(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["strategy.name=Local", "train.max_steps=1", "export=null", "checkpoint=null", "train.epochs=1"]
    assert run_edl("validate", "job.yaml", *(word for setting in settings for word in ("--set", setting))) == 0
    out = capsys.readouterr().out
    assert not missing_keys(out, "/data/train", "1 epoch", "minibatches of 64", "at most 1 step")
    strategy, unused, workers, _ = out.splitlines()[-4:]
    assert not missing_keys(strategy, "strategy Local", "one process")
    assert not missing_keys(unused, "ps.count")
    assert not missing_keys(workers, "workers.max", "one process")


def test_validate_names_what_all_reduce_does_not_use(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    global_batch = ("--set", "strategy.global_batch=256")
    assert run_edl("validate", "job.yaml", "--set", "strategy.name=AllReduce", *global_batch) == 0
    assert "5 epochs in steps of 256 records" in capsys.readouterr().out
    assert run_edl("validate", "job.yaml", "--set", "strategy.name=AllReduce") == 0
    *_, strategy, unused, _checkpoints, export, _ = capsys.readouterr().out.splitlines()
    assert not missing_keys(strategy, "AllReduce", "1 to 4 workers")
    assert "parameter server" not in strategy
    assert not missing_keys(unused, "ps.count")
    assert not missing_keys(export, "export/")
    settings = ("--set", "strategy.name=AllReduce", "--set", "data.max_corrupt_records=1")
    assert run_edl("validate", "job.yaml", *settings) == 0


def test_validate_of_a_job_that_only_predicts(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("validate", "job.yaml", "--set", "data={prediction: /x}", "--set", "train={}") == 0
    assert not missing_keys(capsys.readouterr().out, "predicts /x", "edl predict")


def test_mistakes_go_to_stderr_and_exit_2(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(JOB.replace("epochs", "epoch"), encoding="utf-8")
    assert run_edl("validate", "job.yaml") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("job.yaml:4: train.epoch: ")
    assert not missing_keys(captured.err, "'epochs'", *(field.name for field in fields(TrainSpec)))


def test_missing_file(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("validate", "absent.yaml") == 2
    assert capsys.readouterr().err == "absent.yaml: no such file\n"


@pytest.mark.parametrize("args", [["validate"], ["validate", "job.yaml", "--sat", "x"], ["vlidate"], ["--wrong"], []])
def test_wrong_usage_exits_2(job: Path, args: list[str]) -> None:
    assert run_edl(*args) == 2


def test_a_misspelt_command_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    run_edl("vlidate")
    assert "Did you mean 'validate'" in capsys.readouterr().err


def test_interruption_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edl.cli.validate.load_job_file", interrupted)
    assert run_edl("validate", "job.yaml") == 130


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("--version") == 0
    assert capsys.readouterr().out.startswith("edl 0.")


def test_schema_is_the_published_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("schema") == 0
    out = capsys.readouterr().out
    assert out == read_published_schema(JOB_SCHEMA)
    assert json.loads(out)["title"] == "JobSpec edl.dev/v1"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("--help") == 0
    out = capsys.readouterr().out
    for name, line in app.COMMANDS.items():
        assert f"  {name} " in out
        assert line in out


def test_help_imports_next_to_nothing() -> None:
    modules = imported("--help")
    assert not modules & {*HEAVY, "rich", "asyncio", "ruamel.yaml"}
    assert {name for name in modules if name.startswith("edl.")} == {
        "edl.cli",
        "edl.cli.app",
        "edl.reporting",
        "edl.api.errors",
        "edl.api.exit_codes",
        "edl.api",
        "edl.reporting.terminal_text",  # between each print, of the help too, and the terminal
    }


@pytest.mark.parametrize("command", ["validate", "schema", "data"])
def test_commands_never_import_what_roles_need(command: str) -> None:
    assert not imported(command, "--help") & {"tensorflow", "keras", "grpc"}


def test_validate_imports_no_heavy_module(job: Path) -> None:
    assert not imported("validate", "job.yaml") & set(HEAVY)


def test_a_folder_without_validation_data_is_not_called_training_data(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    empty = Path("empty").resolve()
    assert run_edl("validate", "job.yaml", "--set", f"data.validation={empty}") == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "data.validation" in line]
    assert line.startswith(f"warning: --set data.validation={empty}: data.validation: ")
    assert not missing_keys(line, "empty", "no data files")


@pytest.fixture
def small_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("zoo").mkdir()
    Path("data.csv").write_text("x,y\n" + "1,2\n" * 40, encoding="utf-8")
    Path("job.yaml").write_text(
        "name: small\nmodel: {zoo: zoo, definition: small.custom_model}\ndata: {training: data.csv}\n"
        "train: {minibatch_size: 8}\n",
        encoding="utf-8",
    )
    module = Path("zoo/small.py")
    module.write_text(SMALL, encoding="utf-8")
    return module


@pytest.mark.tensorflow
@pytest.mark.repetition
def test_validate_model_says_what_ended_the_process_that_tried_it(
    small_job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # As a model does that calls os._exit(0), without the import of TensorFlow before.
        patch.setattr(job_checks, "_CHECK_PROGRAM", ("-c", "pass"))
        assert run_edl("validate", "job.yaml", "--model") == 1, "a process that says nothing found nothing"
    assert not missing_keys(capsys.readouterr().err, "exit code 0")

    small_job.write_text(SMALL.replace("Dense(1)", "Dense(1, missing=2)"), encoding="utf-8")
    assert run_edl("validate", "job.yaml", "--model") == 2
    captured = capsys.readouterr()
    assert "job.yaml: ok" not in captured.out
    assert 'small.py", line 4' in captured.err, "the user's line"
    assert "custom_model() raised" in captured.err


@pytest.mark.tensorflow
def test_validate_model_tries_it_and_modules_of_the_current_folder_stand_for_nobodys(
    small_job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_zoo = Path("job/zoo")
    job_zoo.mkdir(parents=True)
    small_job.rename(job_zoo / "small.py")
    ran = "open('was_run', 'w').close()\n"
    for stranger in (Path("zoo/__init__.py"), small_job, Path("csv.py"), Path("edl.py")):
        stranger.write_text(ran, encoding="utf-8")
    code = run_edl("validate", "job.yaml", "--model", "--set", "model.zoo=job/zoo")
    captured = capsys.readouterr()
    assert (code, Path("was_run").exists()) == (0, False), captured.err
    assert captured.out.startswith("job.yaml: ok\n  job small: ")
    assert not missing_keys(captured.out, "minibatch", "records 0 to 7")


@pytest.mark.parametrize("place", ["/proc/nope", "data.csv/runs"])
def test_validate_model_tries_the_place_of_the_runs_as_edl_run_does(
    small_job: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = []
    for command in (("validate", "--model"), ("run",)):
        assert run_edl(*command, "job.yaml", "--set", f"storage.path={place}") == 2
        errors.append(capsys.readouterr().err)
    assert errors[0] == errors[1]
    assert errors[0].startswith("storage.path: ")


def test_trying_the_place_of_the_runs_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    check_storage(tmp_path / "there" / "runs" / "local" / "job")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    (tmp_path / "there" / "file").touch()
    check_storage(tmp_path / "there")
    assert (tmp_path / "there" / "file").exists()


def test_validate_model_needs_data_and_module(small_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.csv").unlink()
    assert run_edl("validate", "job.yaml", "--model") == 2
    assert "data.training" in capsys.readouterr().err


@pytest.mark.parametrize("data", ["data.csv", "absent.csv", "folder", "plain"])
def test_an_option_that_the_reader_does_not_know_is_refused(
    job: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("zoo").mkdir()
    Path("zoo", "small.py").write_text(SMALL)
    Path("folder").mkdir()
    for name in ("data.csv", "folder/data.csv"):
        Path(name).write_text("a,b\n1,2\n")
    path = Path(data).resolve()  # a relative path that is not here would be an error of its own
    settings = [
        "model.zoo=zoo",
        "model.definition=small.custom_model",
        f"data.training={path}",
        f"data.validation={path}",
    ]
    known = [argument for setting in settings for argument in ("--set", setting)]
    assert run_edl("validate", str(job), *known, "--set", "data.reader.sep=;") == 0
    capsys.readouterr()
    unknown = run_edl("validate", str(job), *known, "--set", "data.reader.seperator=;")
    assert unknown == (0 if data == "plain" else 2), "nobody knows the format of a file without suffix that is not here"
    assert data == "plain" or not missing_keys(capsys.readouterr().err, "seperator", "data.reader", "sep")
    Path("zoo", "small.py").write_text(SMALL + "def custom_data_reader(path, **options): ...\n")
    assert run_edl("validate", str(job), *known, "--set", "data.reader.seperator=;") == 0
