"""``--job_command``: programs of any framework, which take their records with edl.sharding."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.cli.elasticdl.job_translation import TranslatedJob, translate_job
from edl.cli.elasticdl.parser import parse_command_line

ON_CLUSTER = ("--job_name=own", "--image_name=registry.example/own:1", "--training_data=/data/train")
PROGRAM = "--job_command=python train.py --rate '0.1 0.2'"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def translate(*words: str) -> TranslatedJob:
    return translate_job(parse_command_line("train", words), Path())


def refusal(*words: str) -> str:
    with pytest.raises(BadInputError) as caught:
        translate(*words)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_job_command_becomes_the_command_of_the_job_file() -> None:
    job = translate(*ON_CLUSTER, PROGRAM, "--num_epochs=3", "--max_step=9")
    assert job.spec.command == ("python", "train.py", "--rate", "0.1 0.2")
    assert (job.spec.model.zoo, job.spec.workers.max, job.spec.train.epochs) == ("/model_zoo", 2, 3)
    assert (job.spec.train.minibatches_per_task, job.spec.train.max_steps) == (8, 9)
    assert set(job.document) >= {"command", "image", "workers", "pod"}
    assert not {"strategy", "ps", "checkpoint", "export"} & set(job.document)
    assert not missing_keys("\n".join(job.notes), "--job_command=python train.py", "/model_zoo", "edl.sharding")


def test_without_an_image_its_workers_are_processes_of_this_machine() -> None:
    job = translate(PROGRAM, "--training_data=train.csv", "--num_workers=3")
    assert (job.spec.name, job.spec.model.zoo, job.spec.workers.max) == ("train", ".", 3)
    notes = "\n".join(job.notes)
    assert not missing_keys(notes, "--image_name is missing", "3 workers", "processes on this machine")
    assert "strategy Local" not in notes


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m zoo.mnist.mnist_pytorch --epochs=3", "mnist-pytorch"),
        ("./run.sh fast", "run"),
        ("python3 -u code/My_Train.py", "my-train"),
        ("torchlike", "torchlike"),
    ],
)
def test_a_job_without_a_name_is_called_like_its_program(command: str, name: str) -> None:
    assert translate(f"--job_command={command}", "--training_data=train.csv").spec.name == name


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--loss=my_loss", "the program"),
        ("--feed=my_feed", "the program"),
        ("--model_params=a=1", "the program"),
        ("--validation_data=/data/test", "evaluates itself"),
        ("--evaluation_steps=10", "evaluates itself"),
        ("--distribution_strategy=AllreduceStrategy", "combines gradients itself"),
        ("--distribution_strategy=CustomStrategy", "combines gradients itself"),
        ("--use_async=true", "combines gradients itself"),
        ("--grads_to_wait=2", "combines gradients itself"),
        ("--num_ps_pods=2", "no parameter servers"),
        ("--ps_resource_request=cpu=1", "no parameter servers"),
        ("--ps_pod_priority=high", "no parameter servers"),
        ("--checkpoint_steps=100", "its own checkpoints"),
        ("--keep_checkpoint_max=4", "its own checkpoints"),
        ("--checkpoint_dir_for_init=/data/old", "weights itself"),
        ("--output=/data/model", "its own model"),
        ("--log_loss_steps=10", "loss"),
        ("--need_elasticdl_job_service=true", "always"),
    ],
)
def test_what_a_program_does_itself_is_said_to_have_no_effect(flag: str, why: str) -> None:
    plain = translate(*ON_CLUSTER, PROGRAM)
    job = translate(*ON_CLUSTER, PROGRAM, flag)
    assert job.spec == plain.spec
    notes = [note for note in job.notes if note.startswith(flag)]
    assert len(notes) == 1
    assert not missing_keys(notes[0], "no effect", why)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ((PROGRAM, "--model_def=m.custom_model"), ("--job_command", "--model_def=m.custom_model", "leave one")),
        (("--job_command=python 'train.py",), ("--job_command", "quotation")),
        (("--job_command=  ",), ("--job_command", "no program")),
        (("--job_command=cd /code && python train.py",), ("--job_command", "&&", "sh -c")),
        (("--job_command=python train.py > log",), ("--job_command", ">", "sh -c")),
        (("--job_command=RATE=1 python train.py",), ("--job_command", "RATE=1", "--envs")),
        ((PROGRAM, "--need_tf_config=true"), ("--need_tf_config=true", "TF_CONFIG", "edl.sharding")),
        ((PROGRAM, "--need_task_manager=false"), ("--need_task_manager=false",)),
        (
            ("--need_elasticdl_job_service=true", "--model_def=m.custom_model"),
            ("--need_elasticdl_job_service=true", "--job_command"),
        ),
    ],
)
def test_what_no_program_can_be_made_of_is_refused_with_what_to_write(
    words: tuple[str, ...], keys: tuple[str, ...]
) -> None:
    assert not missing_keys(refusal(*ON_CLUSTER, *words), *keys)


def test_operators_within_quotes_are_for_the_program() -> None:
    job = translate(*ON_CLUSTER, "--job_command=sh -c 'cd code && python train.py > $LOG; ls'")
    assert job.spec.command == ("sh", "-c", "cd code && python train.py > $LOG; ls")
    assert not [note for note in job.notes if "$LOG" in note and "no shell" in note]


def test_variables_that_no_shell_replaces_are_mentioned() -> None:
    notes = "\n".join(translate(*ON_CLUSTER, "--job_command=python train.py $HOME/x").notes)
    assert not missing_keys(notes, "no shell", "$HOME", "sh -c")


def test_a_program_without_data_is_told_what_its_records_are() -> None:
    words = ("--job_name=own", "--image_name=own:1")
    refusal_text = refusal(*words, "--job_command=python -m a.b --training_data=/data/mnist/train")
    assert not missing_keys(
        refusal_text, "--training_data is missing", "edl.sharding", "--training_data=/data/mnist/train"
    )


def test_keras_2_of_the_environment_is_a_variable_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    job = translate(*ON_CLUSTER, PROGRAM)
    assert job.spec.pod.env == {"TF_USE_LEGACY_KERAS": "1"}


def test_a_cluster_spec_sees_no_parameter_servers_of_a_program() -> None:
    job = translate(*ON_CLUSTER, PROGRAM, '--cluster_spec_json={"pod_spec": {"labels": {"team": "a"}}}')
    assert "ps" not in job.document
    assert job.spec.pod.overrides == {"metadata": {"labels": {"team": "a"}}}
