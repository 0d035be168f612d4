"""What the command elasticdl does with a job: it shows, writes, runs or submits it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_harness import CliHarness, LocalRunHarness, cli_in_job_folder, exit_code_of
from cli.test_cli_predict import checkpoint, keras_file
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.cli.elasticdl import app
from edl.cluster.kubernetes.job_manifests import render_pod
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS
from edl.jobfile.loader import load_job_file
from edl.storage.run_directory import RunDirectory

HERE = [
    "--job_name=digits",
    "--model_def=small.model",
    "--model_zoo=model_zoo",
    "--distribution_strategy=ParameterServerStrategy",
    "--minibatch_size=4",
]
IMAGE = [
    "--job_name=mnist",
    "--image_name=registry.example/mnist:1",
    "--model_def=mnist.model.custom_model",
    "--volume=claim_name=files,mount_path=/data",
]
ON_CLUSTER = [*IMAGE, "--training_data=/data/train"]


def elasticdl(*words: str) -> int:
    return exit_code_of(lambda: app.main(words))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    return cli_in_job_folder(tmp_path, monkeypatch, capsys)


# ------------------------------------------------------------------ without a job


@pytest.mark.parametrize("words", [(), ("zoo",)])
def test_without_a_command_it_prints_its_help_and_ends_with_1(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert elasticdl(*words) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert not missing_keys(captured.err, "train", "evaluate", "predict", "zoo init", "--dry-run")


def test_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert elasticdl("--help") == 0
    assert "zoo push" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "did you mean train?"),
        (["zoo", "inti"], "did you mean zoo init?"),
        (["clean"], "edl delete"),
        (["--job_name=j"], "train"),
    ],
)
def test_commands_that_are_not_there(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert elasticdl(*words) == 2
    assert said in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from edl.cli.elasticdl import app\n"
        "try: app.main(['train', '-h'])\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"tensorflow", "keras", "numpy", "grpc", "kubernetes", "ruamel.yaml", "typer", "rich", "jsonschema"}
    assert not heavy & set(done.stderr.split())


# ------------------------------------------------------------------ job files


def test_a_dry_run_prints_the_job_file_and_writes_none(cli: CliHarness) -> None:
    assert elasticdl("train", *ON_CLUSTER, "--restart_policy=Never", "--dry-run") == 0
    captured = cli.capsys.readouterr()
    (cli.folder / "shown.yaml").write_text(captured.out)
    assert load_job_file(cli.folder / "shown.yaml").name == "mnist"
    assert captured.err.startswith("--num_ps_pods") or "--restart_policy=Never" in captured.err
    assert not (cli.folder / ".edl").exists()
    assert cli.cluster.created == []


def test_what_a_job_file_does_not_have_is_mentioned(cli: CliHarness) -> None:
    assert elasticdl("train", *ON_CLUSTER, "--namespace=team", "--dry_run", "--yaml=job2.yaml") == 0
    err = cli.capsys.readouterr().err
    assert not missing_keys(err, "--namespace=team", "edl submit -n", "--yaml=job2.yaml", "--dry-run")
    assert not (cli.folder / "job2.yaml").exists()


def test_a_job_file_of_another_folder_has_absolute_paths(local_run: LocalRunHarness) -> None:
    words = ["train", *HERE, "--training_data=train.csv", "--output=out"]
    assert elasticdl(*words, "--yaml=here.yaml") == 0
    assert elasticdl(*words, "--yaml=jobs/there.yaml") == 0
    modes = {Path(name).stat().st_mode & 0o777 for name in ("here.yaml", "jobs/there.yaml")}
    assert modes == {0o600}, "a command line may have secrets"
    here, elsewhere = load_job_file("here.yaml"), load_job_file("jobs/there.yaml")
    assert here.data.training == ("train.csv",)
    assert elsewhere.data.training == (str(local_run.folder / "train.csv"),)
    assert elsewhere.model.zoo == str(local_run.folder / "model_zoo")


def test_a_file_that_cannot_be_written(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    assert elasticdl("train", *HERE, "--training_data=train.csv", "--yaml=train.csv/job.yaml") == 1
    assert "train.csv/job.yaml" in capsys.readouterr().err


# ------------------------------------------------------------------ runs of this machine


def test_without_an_image_it_does_what_edl_run_does(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    assert elasticdl("train", *HERE, "--training_data=train.csv", "--validation_data=test.csv", "--num_workers=3") == 0
    captured = capsys.readouterr()
    assert not missing_keys(captured.out, "10 records", "3 workers", "run r1")
    assert ".edl/elasticdl/digits.yaml" in captured.err
    spec = json.loads((local_run.run_dir() / "spec.json").read_text())
    assert spec["data"]["training"] == [str(local_run.folder / "train.csv")]


def test_the_run_can_be_continued_with_its_job_file(local_run: LocalRunHarness) -> None:
    assert elasticdl("train", *HERE, "--training_data=train.csv") == 0
    assert local_run.edl("run", ".edl/elasticdl/digits.yaml") == 0
    assert local_run.run_dir("r2").is_dir()


def test_a_missing_file_is_bad_input(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    assert elasticdl("train", *HERE, "--training_data=nowhere.csv") == 2
    assert not missing_keys(capsys.readouterr().err, "data.training", "nowhere.csv")


def test_variables_are_those_of_the_processes(local_run: LocalRunHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", dict(__import__("os").environ))
    assert elasticdl("train", *HERE, "--training_data=train.csv", "--envs=TEST_ONLY=a,b") == 0
    assert __import__("os").environ["TEST_ONLY"] == "a,b"


def test_flags_for_pods_are_named(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [
        "--worker_pod_priority=high",
        "--namespace=team",
        "--image_pull_policy=Never",
        "--master_resource_limit=cpu=1",
    ]
    assert elasticdl("train", *HERE, "--training_data=train.csv", *pods, "--dry-run") == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "no effect on this machine" in line]
    assert not missing_keys(line, *pods)


def test_a_prediction(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    model = keras_file(local_run.folder / "model.keras")
    words = ["predict", *HERE, "--prediction_data=test.csv", f"--checkpoint_dir_for_init={model}"]
    assert elasticdl(*words, "--output=out") == 0
    assert not missing_keys(capsys.readouterr().out, "predicts 5 records", str(model), f"{local_run.folder}/out")


def test_an_exported_folder_is_a_trained_model(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    (local_run.folder / "export").mkdir()
    keras_file(local_run.folder / "export" / "model.keras")
    words = ["predict", *HERE, "--prediction_data=test.csv", "--checkpoint_dir_for_init=export"]
    assert elasticdl(*words) == 0
    assert "export/model.keras" in capsys.readouterr().out


def test_an_evaluation(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    model = keras_file(local_run.folder / "model.keras")
    words = ["evaluate", *HERE, "--validation_data=test.csv", "--checkpoint_dir_for_init=model.keras"]
    assert elasticdl(*words, "--num_workers=3") == 0
    assert not missing_keys(capsys.readouterr().out, "evaluates 5 records", str(model), "3 workers")


def test_a_run_is_a_trained_model(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    assert elasticdl("train", *HERE, "--training_data=train.csv") == 0
    wanted = checkpoint(RunDirectory(local_run.run_dir()), 2)
    assert elasticdl("evaluate", *HERE, "--validation_data=test.csv", "--checkpoint_dir_for_init=r1") == 0
    assert str(wanted) in capsys.readouterr().out


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_checkpoint_of_elasticdl_is_refused(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    data = "--validation_data" if command == "evaluate" else "--prediction_data"
    assert elasticdl(command, *HERE, f"{data}=test.csv", "--checkpoint_dir_for_init=/ckpt/version-110") == 2
    assert not missing_keys(capsys.readouterr().err, "/ckpt/version-110: no run in /ckpt", ".keras", "ElasticDL")
    assert not (local_run.folder / ".edl/local").exists()


def test_files_of_a_checkpoint_of_elasticdl_are_refused(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    (local_run.folder / "kept").mkdir()
    (local_run.folder / "kept" / "variables-0-of-2.ckpt").touch()
    assert elasticdl("train", *HERE, "--training_data=train.csv", "--checkpoint_dir_for_init=kept") == 2
    assert not missing_keys(capsys.readouterr().err, "--checkpoint_dir_for_init=kept", "checkpoint of ElasticDL")


@pytest.mark.parametrize(
    ("weights", "said"),
    [("nosuch", "no run 'nosuch'"), ("./nosuch", "{0}/nosuch: no such"), ("no.keras", "{0}/no.keras: no such")],
)
def test_weights_that_are_not_there_are_named_as_they_were_looked_for(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], weights: str, said: str
) -> None:
    words = ["evaluate", *HERE, "--validation_data=test.csv", f"--checkpoint_dir_for_init={weights}"]
    assert elasticdl(*words) == 2
    assert not missing_keys(capsys.readouterr().err, said.format(local_run.folder))


# ------------------------------------------------------------------ clusters


def test_with_an_image_it_does_what_edl_submit_does(cli: CliHarness) -> None:
    assert elasticdl("train", *ON_CLUSTER) == 0
    out = cli.capsys.readouterr().out
    assert "ElasticDL job mnist was successfully submitted. The master pod is: elasticdl-mnist-master." in out
    assert load_job_file(".edl/elasticdl/mnist.yaml").image == "registry.example/mnist:1"
    (spec,) = [each for each in cli.cluster.objects_of_kind(CONFIGMAPS) if each["metadata"]["name"] == "edl-mnist-spec"]
    assert json.loads(spec["data"]["job.json"])["pod"]["name_prefix"] == "elasticdl"


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_jobs_that_do_not_train_are_submitted_without_parameter_servers(cli: CliHarness, command: str) -> None:
    data = "--validation_data" if command == "evaluate" else "--prediction_data"
    words = [*IMAGE, f"{data}=/data/test", "--checkpoint_dir_for_init=trained", "--num_ps_pods=2"]
    assert elasticdl(command, *words) == 0
    assert "no parameter servers" in cli.capsys.readouterr().err
    (spec,) = [each for each in cli.cluster.objects_of_kind(CONFIGMAPS) if each["metadata"]["name"] == "edl-mnist-spec"]
    document = json.loads(spec["data"]["job.json"])
    assert (document["task"], document["model"]["weights"]) == (command, "trained")


def test_an_evaluation_needs_a_volume(cli: CliHarness) -> None:
    words = [*IMAGE[:-1], "--validation_data=/data/test", "--checkpoint_dir_for_init=trained"]
    assert elasticdl("evaluate", *words) == 2
    assert not missing_keys(cli.capsys.readouterr().err, "elasticdl evaluate", "no volume")


def test_keras_2_of_the_environment_is_that_of_the_job(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert elasticdl("train", *ON_CLUSTER, "--yaml=job.yaml") == 0
    assert "TF_USE_LEGACY_KERAS" in cli.capsys.readouterr().err
    assert load_job_file("job.yaml").model.keras == 2


def test_pods_have_the_names_and_labels_of_the_tutorials(cli: CliHarness) -> None:
    assert elasticdl("train", *ON_CLUSTER, "--image_pull_policy=Never", "--yaml=job.yaml") == 0
    spec = load_job_file("job.yaml")
    for role, kind in ((Role.WORKER, "worker"), (Role.PS, "ps")):
        pod = render_pod(spec, role, 3, namespace="team", job_uid="", run_dir="/data/edl")
        assert pod["metadata"]["name"] == f"elasticdl-mnist-{kind}-3"
        labels = pod["metadata"]["labels"]
        assert {name: value for name, value in labels.items() if "/" not in name} == {
            "app": "elasticdl",
            "elasticdl-job-name": "mnist",
            "elasticdl-replica-type": kind,
            "elasticdl-replica-index": "3",
        }
        assert pod["spec"]["containers"][0]["imagePullPolicy"] == "Never"


def test_the_namespace_is_that_of_the_kubeconfig_or_of_the_flag(
    cli: CliHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespaces: list[str | None] = []

    def connect(context: str | None, namespace: str | None, **_: object) -> object:
        namespaces.append(namespace)
        return cli.cluster

    monkeypatch.setattr("edl.cluster.kubernetes.kubeconfig.make_client", connect)
    assert elasticdl("train", *ON_CLUSTER) == 0
    assert elasticdl("train", *ON_CLUSTER, "--job_name=other", "--namespace=team") == 0
    assert namespaces == [None, "team"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*ON_CLUSTER, "--num_workers=0"], ("--num_workers=0", "workers.max")),
        ([*ON_CLUSTER, "--grads_to_wait=3"], ("--grads_to_wait=3", "--num_workers=2")),
        ([*ON_CLUSTER, "--job_name=Not_A_Name"], ("--job_name=Not_A_Name", "a-z")),
        ([*ON_CLUSTER, "--image_name=Upper:1"], ("--image_name=Upper:1", "image")),
        ([*ON_CLUSTER, "--training_data=data/train"], ("--training_data=data/train", "absolute path")),
        ([*ON_CLUSTER, "--worker_resource_request=cpu=1,mem=2Gi"], ("--worker_resource_request", "memory")),
        ([*ON_CLUSTER, "--worker_resource_limit=cpu=0.1"], ("--worker_resource_limit=cpu=0.1", "limits.cpu")),
        ([*ON_CLUSTER, "--master_resource_request=cpu=1,gpu=1"], ("--master_resource_request", "gpu")),
        ([*ON_CLUSTER, "--ps_image=other:1"], ("--ps_image=other:1", "one image")),
        ([*ON_CLUSTER, "--need_pod_manager=false"], ("--need_pod_manager=false",)),
        ([*ON_CLUSTER, "--distribution_strategy=Local"], ("--distribution_strategy=Local", "--image_name")),
        ([*ON_CLUSTER, "--data_reader_params=reader_type='ODPS'"], ("reader_type", "CSV")),
        ([*ON_CLUSTER, "--output=/elsewhere"], ("--output=/elsewhere", "volume")),
        ([*ON_CLUSTER, "--feed=not-a-name"], ("--feed=not-a-name",)),
        (IMAGE, ("--training_data is missing",)),
        (ON_CLUSTER[1:], ("--job_name is missing",)),
        ([each for each in ON_CLUSTER if "model_def" not in each], ("--model_def is missing",)),
    ],
)
def test_bad_input_names_the_flag_and_submits_nothing(cli: CliHarness, words: list[str], said: tuple[str, ...]) -> None:
    assert elasticdl("train", *words) == 2
    assert not missing_keys(cli.capsys.readouterr().err, *said)
    assert cli.cluster.created == []
    assert not (cli.folder / ".edl").exists()


@pytest.mark.parametrize(
    ("kind", "reader"),
    [("Text", {"format": "text"}), ("CSV", {"format": "csv"}), ("RecordIO", {"format": "recordio"})],
)
def test_reader_types_of_elasticdl_are_formats(cli: CliHarness, kind: str, reader: dict[str, str]) -> None:
    assert elasticdl("train", *ON_CLUSTER, f"--data_reader_params=reader_type='{kind}'", "--yaml=job.yaml") == 0
    assert load_job_file(cli.folder / "job.yaml").data.reader == reader
    assert "reader_type" not in cli.capsys.readouterr().err


def test_an_unknown_reader_type_is_refused_with_the_nearest_one(cli: CliHarness) -> None:
    assert elasticdl("train", *ON_CLUSTER, "--data_reader_params=reader_type='CSVV'") == 2
    assert not missing_keys(cli.capsys.readouterr().err, "--data_reader_params", "reader_type", "did you mean CSV?")


def test_variables_that_edl_run_does_not_take_from_the_job_file_are_mentioned(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *HERE, "--training_data=train.csv", "--envs=TEST_ONLY=a"]
    errors = []
    for more in (["--yaml=job.yaml"], ["--dry-run"], ["--image_name=a:b", "--training_data=/data/x", "--dry-run"]):
        elasticdl(*words, *more)
        errors.append(capsys.readouterr().err)
    assert not missing_keys(errors[0], "--envs=TEST_ONLY=a", "edl run", "export")
    assert not missing_keys(errors[1], "--envs=TEST_ONLY=a", "edl run", "export")
    assert "export" not in errors[2]


def test_a_folder_for_predictions_has_no_effect_on_a_cluster_and_is_given_to_no_other_command(cli: CliHarness) -> None:
    trained = ["--prediction_data=/data/new", "--checkpoint_dir_for_init=trained"]
    assert elasticdl("predict", *IMAGE, *trained, "--output=/data/out", "--dry-run") == 0
    lines = [line for line in cli.capsys.readouterr().err.splitlines() if "--output" in line]
    assert len(lines) == 1
    assert not missing_keys(lines[0], "no effect on a cluster", "predictions/")


def test_empty_weights_are_mentioned(cli: CliHarness) -> None:
    assert elasticdl("evaluate", *IMAGE, "--validation_data=/data/t", "--checkpoint_dir_for_init=", "--dry-run") == 0
    assert not missing_keys(cli.capsys.readouterr().err, "--checkpoint_dir_for_init=", "is empty", "own newest")


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--image_name=a:b", "--training_data=/data/x", "--dry-run"]])
def test_variables_that_edl_sets_are_refused_on_this_machine_too(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    words = ["train", *HERE, "--training_data=train.csv", "--envs=A=1,EDL_TOKEN=x"]
    assert elasticdl(*words, *more) == 2
    assert not missing_keys(capsys.readouterr().err, "--envs=A=1,EDL_TOKEN=x", "pod.env.EDL_TOKEN", "EDL sets itself")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--envs=A=1,B=2,A=3"], ("--envs=A=1,B=2,A=3", "A", "twice", "last")),
        (["--data_reader_params=label='x'; label_col='y'"], ("--data_reader_params", "label_col", "label", "one of")),
        (["--data_reader_params=format='csv'; reader_type='Text'"], ("--data_reader_params", "reader_type", "one of")),
    ],
)
def test_what_a_flag_says_twice_is_mentioned_or_refused(
    cli: CliHarness, words: list[str], said: tuple[str, ...]
) -> None:
    code = elasticdl("train", *ON_CLUSTER, *words, "--dry-run")
    assert code == (0 if words[0].startswith("--envs") else 2)
    assert not missing_keys(cli.capsys.readouterr().err, *said)


@pytest.mark.parametrize("more", [["--dry-run"], ["--yaml=job.yaml"], ["--image_name=a:b", "--dry-run"]])
def test_a_function_that_the_module_does_not_define_is_refused_before_a_job_file_is_made(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    words = ["train", *HERE, "--training_data=/data/train.csv", "--job_name=a"]
    assert elasticdl(*words, "--loss=my_loss", *more) == 2
    assert not missing_keys(capsys.readouterr().err, "--loss=my_loss", "does not define my_loss", "did you mean loss?")
    assert elasticdl(*words, "--loss=other.my_loss", *more) == 0


@pytest.mark.parametrize("more", [["--dry-run"], ["--yaml=job.yaml"], ["--image_name=a:b", "--dry-run"]])
def test_a_model_that_the_module_does_not_define_is_refused_before_a_job_file_is_made(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    words = ["train", "--model_zoo=model_zoo", "--training_data=/data/train.csv", "--job_name=a", *more]
    assert elasticdl(*words, "--model_def=small.modle") == 2
    assert not missing_keys(capsys.readouterr().err, "--model_def=small.modle", "small.py", "did you mean model?")
    assert elasticdl(*words, "--model_def=of_the_image.model") == 0


@pytest.mark.parametrize("more", [["--dry-run"], ["--yaml=job.yaml"], ["--image_name=a:b", "--dry-run"]])
def test_a_module_that_is_not_in_the_zoo_is_mentioned_because_the_job_may_be_for_another_place(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    words = ["train", "--model_zoo=model_zoo", "--training_data=/data/train.csv", "--job_name=a", *more]
    assert elasticdl(*words, "--model_def=smal.model") == 0
    assert not missing_keys(
        capsys.readouterr().err, "--model_def=smal.model", "no module 'smal'", "did you mean small?"
    )
    assert elasticdl(*words, "--model_def=small.model", "--model_zoo=elsewhere") == 0
    assert ("model zoo is not a directory" in capsys.readouterr().err) == (len(more) == 1), "an image has its own"


@pytest.mark.parametrize("model", ["version-7", "/elsewhere/version-7"])
def test_a_version_that_is_on_no_volume_is_refused(cli: CliHarness, model: str) -> None:
    words = [*ON_CLUSTER, f"--checkpoint_dir_for_init={model}", "--dry-run"]
    assert elasticdl("train", *words, "--volume=") == 2
    err = cli.capsys.readouterr().err
    assert not missing_keys(err, f"--checkpoint_dir_for_init={model}", "is on no volume", "--volume", "ElasticDL")


def test_parameters_with_commas_between_them_are_mentioned(cli: CliHarness) -> None:
    assert elasticdl("train", *ON_CLUSTER, "--model_params=width=3, depth=2; name=a,b", "--dry-run") == 0
    lines = [line for line in cli.capsys.readouterr().err.splitlines() if "--model_params" in line]
    assert len(lines) == 1
    assert not missing_keys(lines[0], "width", "taken as text: 3, depth=2", "separated by ;")


def test_an_empty_request_is_mentioned(cli: CliHarness) -> None:
    assert elasticdl("train", *ON_CLUSTER, "--worker_resource_request=", "--dry-run") == 0
    assert not missing_keys(cli.capsys.readouterr().err, "--worker_resource_request=: is empty", "workers.resources")


def test_a_limit_of_gpus_that_is_not_the_request_is_refused(cli: CliHarness) -> None:
    words = ["--worker_resource_request=cpu=1,memory=1Gi,gpu=1", "--worker_resource_limit=gpu=2", "--dry-run"]
    assert elasticdl("train", *ON_CLUSTER, *words) == 2
    assert not missing_keys(
        cli.capsys.readouterr().err, "--worker_resource_limit=gpu=2", "--worker_resource_request has gpu=1", "same"
    )
    assert elasticdl("train", *ON_CLUSTER, *words, "--worker_resource_limit=gpu=1") == 0


def test_a_limit_of_disk_that_is_not_the_request_is_mentioned(cli: CliHarness) -> None:
    words = ["--ps_resource_request=cpu=1,memory=1Gi,disk=1Gi", "--ps_resource_limit=disk=2Gi", "--dry-run"]
    assert elasticdl("train", *ON_CLUSTER, *words) == 0
    assert not missing_keys(cli.capsys.readouterr().err, "--ps_resource_request=cpu=1", "disk is 2Gi, the limit")


@pytest.mark.parametrize("more", [[], ["--image_name=a:b"]])
def test_parameters_that_the_model_does_not_have_are_refused_before_a_job_file_is_made(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    (local_run.folder / "model_zoo" / "sized.py").write_text("def model(units=4): ...\n")
    words = ["train", "--model_zoo=model_zoo", "--training_data=/data/train.csv", "--job_name=a", *more, "--dry-run"]
    assert elasticdl(*words, "--model_def=sized.model", "--model_params=unit=8") == 2
    assert not missing_keys(capsys.readouterr().err, "--model_params=unit=8", "sized.py:1", "did you mean units?")
    assert elasticdl(*words, "--model_def=sized.model", "--model_params=units=8") == 0
    assert elasticdl(*words, "--model_def=elsewhere.model", "--model_params=unit=8") == 0


def test_a_parameter_with_a_bracket_missing_is_mentioned(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    (local_run.folder / "model_zoo" / "sized.py").write_text("def model(units=4, kind=''): ...\n")
    words = ["train", "--model_zoo=model_zoo", "--training_data=/data/train.csv", "--job_name=a", "--dry-run"]
    assert elasticdl(*words, "--model_def=sized.model", "--model_params=units=[1,2; kind=wide") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "text" in line]
    assert len(lines) == 1
    assert not missing_keys(lines[0], "--model_params", "units", "[1,2")


def test_a_misspelt_reader_parameter_is_refused_or_if_the_module_may_have_a_reader_mentioned(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *HERE, "--training_data=/data/train.csv", "--data_reader_params=label_co='y'", "--dry-run"]
    assert elasticdl(*words) == 2
    assert not missing_keys(capsys.readouterr().err, "--data_reader_params", "label_co", "did you mean label_col?")
    assert elasticdl(*words, "--model_def=of_the_image.model") == 0
    assert not missing_keys(capsys.readouterr().err, "--data_reader_params", "did you mean label_col?")


def test_a_reader_parameter_with_a_bracket_missing_is_mentioned(cli: CliHarness) -> None:
    words = ["--data_reader_params=columns=['a', 'b'; records_per_task=4*64", "--dry-run"]
    assert elasticdl("train", *ON_CLUSTER, *words) == 0
    lines = [line for line in cli.capsys.readouterr().err.splitlines() if "is taken as text" in line]
    assert len(lines) == 2
    assert not missing_keys("\n".join(lines), "--data_reader_params", "columns", "records_per_task", "4*64")
