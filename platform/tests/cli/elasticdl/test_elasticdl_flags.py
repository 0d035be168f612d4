"""The table of flags: that of elasticdl-client 1.0.0, and no flag in it is ignored without a word."""

from __future__ import annotations

import json
import subprocess
import venv
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from install.elasticdl_flags import FLAGS as FLAGS_OF_ALL_VERSIONS

from edl.api.errors import BadInputError
from edl.cli.elasticdl.flags import (
    COMMANDS,
    EXTRA_FLAGS,
    FLAGS,
    JOB_COMMANDS,
    PUBLIC_INDEX,
    RETIRED_FLAGS,
    DirectsCommand,
    Flag,
    Kind,
    flags_of,
)
from edl.cli.elasticdl.job_translation import TranslatedJob, translate_job
from edl.cli.elasticdl.parser import parse_command_line

HERE = Path(__file__).parent
RECORDED = HERE / "elasticdl_client_1.0.0.json"
CLIENT = ("elasticdl-client==1.0.0", "markupsafe<2.1", "setuptools")
"""Its pinned Jinja2 does not start with a newer MarkupSafe."""
NUMBERS = {"train": 77, "evaluate": 55, "predict": 56, "zoo init": 5, "zoo build": 2, "zoo push": 1}


def table() -> dict[str, dict[str, dict[str, Any]]]:
    """Our table, as ``introspect_client`` describes a client."""
    return {command: {f.name: describe(f, command) for f in FLAGS if command in f.commands} for command in COMMANDS}


def describe(flag: Flag, command: str) -> dict[str, Any]:
    is_index = flag.name == "extra_pypi_index" and flag.default == PUBLIC_INDEX
    return {
        "type": str(flag.kind),
        "default": "(pip's own index)" if is_index else flag.default,
        "required": command in flag.required,
        "choices": list(flag.choices),
        "bare": not flag.default if flag.kind is Kind.BOOLEAN else None,
        "positional": flag.is_positional,
    }


def test_the_table_is_that_of_the_client() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert {command: len(flags) for command, flags in recorded.items()} == NUMBERS
    assert table() == recorded


@pytest.mark.repetition
def test_the_recorded_flags_are_those_of_an_installed_client(tmp_path: Path) -> None:
    """Needs a package index. The client has an environment of its own: it pins packages of 2020."""
    venv.create(tmp_path / "client", with_pip=True)
    python = tmp_path / "client/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *CLIENT], check=True, timeout=170)
    introspected = subprocess.run([python, HERE / "introspect_client.py"], check=True, capture_output=True, timeout=60)
    assert json.loads(introspected.stdout) == json.loads(RECORDED.read_text())


def test_flags_of_all_versions_are_known() -> None:
    known = {flag.name for flag in (*FLAGS, *EXTRA_FLAGS, *RETIRED_FLAGS)}
    assert sorted(name for name in FLAGS_OF_ALL_VERSIONS if name.removeprefix("--") not in known) == []


# --------------------------------------------------------------------------------------------------
# No flag is ignored without a word


ON_CLUSTER = [
    "--job_name=mnist",
    "--image_name=registry.example/mnist:1",
    "--model_def=mnist.model.custom_model",
    "--volume=claim_name=files,mount_path=/data",
]
NEEDED = {
    "train": ["--training_data=/data/train"],
    "evaluate": ["--validation_data=/data/test", "--checkpoint_dir_for_init=trained"],
    "predict": ["--prediction_data=/data/new", "--checkpoint_dir_for_init=trained"],
}
OTHER_VALUES = {
    "job_name": "other",
    "image_name": "registry.example/other:2",
    "namespace": "team",
    "training_data": "/data/other",
    "validation_data": "/data/other",
    "prediction_data": "/data/other",
    "data_reader_params": "sep=';'",
    "evaluation_steps": "10",
    "output": "/data/out",
    "model_zoo": "/other",
    "model_def": "other.model.custom_model",
    "model_params": "size=3",
    "distribution_strategy": "AllreduceStrategy",
    "num_ps_pods": "3",
    "cluster_spec": str(HERE / "cluster_spec_example.py"),
    "cluster_spec_json": '{"pod_spec": {"labels": {"team": "a"}}}',
    "volume": "claim_name=other,mount_path=/data",
    "envs": "A=1",
    "populate_env_names": "EDL_TEST_.*",
    "image_pull_policy": "Never",
    "restart_policy": "Always",
    "aux_params": "disable_relaunch=True",
    "checkpoint_dir": "/data/kept",
    "log_level": "debug",
    "master_pod_priority": "other",
    "worker_pod_priority": "high=0.5",
    "ps_pod_priority": "other",
}
"""A value of each flag that is neither a number nor a boolean, and is not read as a resource string."""
DIRECTING = {"namespace", "yaml", "output"}
"""Flags about what the command does, with tests of their own in test_elasticdl_app."""


def other_value(flag: Flag) -> str:
    """A valid value that is not the default."""
    if flag.name in OTHER_VALUES:
        return OTHER_VALUES[flag.name]
    match flag.kind:
        case Kind.WHOLE_NUMBER:
            return str(int(flag.default or 0) + 1)
        case Kind.BOOLEAN:
            return str(not flag.default)
        case _:
            is_resource = flag.name.endswith(("_resource_request", "_resource_limit"))
            return "cpu=3,memory=9Gi" if is_resource else "something"


def translate(command: str, *words: str) -> TranslatedJob:
    return translate_job(parse_command_line(command, [*ON_CLUSTER, *NEEDED[command], *words]), Path())


@cache
def translate_before(command: str, *words: str) -> TranslatedJob:
    """What most tests compare with; nobody changes it."""
    return translate(command, *words)


def try_translation(command: str, *words: str) -> tuple[TranslatedJob | None, str]:
    """The job, or what the refusal says, which ends the command with 2."""
    try:
        return translate(command, *words), ""
    except BadInputError as error:
        return None, str(error) if error.exit_code == 2 else ""


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in JOB_COMMANDS for name in flags_of(command)]
)
def test_a_flag_changes_the_job_or_says_why_not(command: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_TEST_VARIABLE", "1")
    flag = flags_of(command)[name]
    validation = ["--validation_data=/data/test"] if name == "evaluation_steps" else []
    before = translate_before(command, *validation)
    after, refusal = try_translation(command, *validation, f"{flag.option}={other_value(flag)}")
    if after is None:
        assert flag.option in refusal
        return
    if isinstance(flag.effect, DirectsCommand):
        assert name in DIRECTING
        return
    changed = before.spec != after.spec
    notes = [line for line in after.notes if flag.option in line and line not in before.notes]
    assert changed or notes, f"{command} ignores {flag.option}"


@pytest.mark.parametrize("retired", RETIRED_FLAGS, ids=lambda retired: retired.name)
def test_an_old_spelling_is_never_ignored(retired: Any) -> None:
    for command in set(retired.commands) & set(JOB_COMMANDS):
        base = translate_before(command)
        after, refusal = try_translation(command, f"--{retired.name}=128")
        lines = refusal.splitlines() if after is None else set(after.notes) - set(base.notes)
        assert [line for line in lines if f"--{retired.name}" in line]


def test_help_has_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            parse_command_line(command, ["-h"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert [name for name, flag in flags_of(command).items() if flag.option not in text] == []


def test_workers_of_a_job_that_is_one_process_are_named_as_without_effect(tmp_path: Path) -> None:
    words = "--model_zoo=zoo --model_def=m.custom_model --training_data=/x --job_name=j --num_workers=4"
    line = parse_command_line("train", [*words.split(), "--distribution_strategy=Local"])
    notes = translate_job(line, tmp_path).notes
    assert [note for note in notes if "--num_workers" in note and "no effect" in note]
