"""Jobs with ``command``: what they may set, and where the program is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec, ModelSpec
from edl.jobfile.command_rules import describe_program, find_program
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import load_job_file
from edl.jobfile.strategy_choice import count_parameter_servers, has_own_state, uses_all_reduce

JOB = {"apiVersion": "edl.dev/v1", "name": "p", "command": ["python", "a b.py"], "data": {"training": "/d"}}


def load(folder: Path, **sections: Any) -> JobSpec:
    file = folder / "job.json"
    file.write_text(json.dumps({name: value for name, value in {**JOB, **sections}.items() if value is not ...}))
    return load_job_file(file)


def test_a_job_with_a_command_needs_no_model_and_has_no_parameter_servers(tmp_path: Path) -> None:
    spec = load(tmp_path, export=None, checkpoint=None)
    assert spec.command == ("python", "a b.py")
    assert count_parameter_servers(spec) == 0
    assert not uses_all_reduce(spec)
    assert describe_program(spec, "/model_zoo") == "python 'a b.py' in /model_zoo"


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"ps": {"count": 2}}, ["ps: has no effect with a command", "no parameter servers"]),
        ({"strategy": {"mode": "sync"}}, ["strategy: has no effect with a command", "AllReduce"]),
        ({"strategy": {"name": "Local"}}, ["strategy: has no effect with a command", "AllReduce"]),
        ({"strategy": {"name": "AllReduce", "mode": "sync"}}, ["strategy.mode: found sync", "leave it out"]),
        (
            {"strategy": {"name": "AllReduce", "max_dense_gradient": "1Gi"}},
            ["strategy.max_dense_gradient: has no effect"],
        ),
        (
            {"strategy": {"name": "AllReduce", "learning_rate_scaling": "linear", "reference_world": 2}},
            ["strategy.learning_rate_scaling: has no effect with a command", "world.size"],
        ),
        ({"strategy": {"name": "AllReduce"}, "export": {"path": "/out"}}, ["export: has no effect"]),
        ({"strategy": {"name": "AllReduce"}, "ps": {"count": 2}}, ["ps: has no effect"]),
        ({"export": {"path": "/out"}}, ["export: has no effect", "writes its own model"]),
        ({"checkpoint": {"every_steps": 7}}, ["checkpoint: has no effect"]),
        ({"evaluation": {"max_workers": 2}}, ["evaluation: has no effect"]),
        ({"model": {"definition": "a.b"}}, ["model.definition: has no effect with a command"]),
        ({"model": {"keras": 2}}, ["model.keras: has no effect"]),
        ({"task": "predict"}, ["task: found 'predict'", "only trains"]),
        ({"data": {"training": "/d", "validation": "/v"}}, ["data.validation: has no effect"]),
        ({"data": {"prediction": "/d"}}, ["data.training: is missing", "data.prediction: has no effect"]),
        ({"train": {"on_nan": "skip"}}, ["train.on_nan: has no effect", "its loss"]),
        ({"train": {"evaluation_steps": 5}}, ["train.evaluation_steps: has no effect"]),
        ({"command": []}, ["model.definition: is missing", "command"]),
        ({"command": ...}, ["model.definition: is missing", "command"]),
        ({"command": ["a\nb"]}, ["command[0]", "a word of a command line"]),
    ],
)
def test_what_has_no_effect_is_refused_by_name(tmp_path: Path, sections: dict[str, Any], keys: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        load(tmp_path, **sections)
    assert not missing_keys(str(error.value), *keys)


def test_a_program_takes_steps_with_others_under_all_reduce(tmp_path: Path) -> None:
    sections = {"checkpoint": {"every_steps": 7}, "train": {"on_nan": "skip"}, "log": {"loss_every_steps": 5}}
    spec = load(tmp_path, strategy={"name": "AllReduce", "gradient_compression": "bfloat16"}, **sections)
    assert uses_all_reduce(spec)
    assert not has_own_state(spec)
    assert count_parameter_servers(spec) == 0
    assert has_own_state(load(tmp_path))


def program_of(folder: Path, *command: str, zoo: Path | None = None) -> JobSpec:
    return JobSpec("p", ModelSpec(zoo=str(zoo or folder)), command=command)


def test_a_program_is_found_on_the_path_or_in_its_directory(tmp_path: Path) -> None:
    elsewhere = tmp_path / "bin"
    elsewhere.mkdir()
    for file in (tmp_path / "train.sh", elsewhere / "trainer"):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    assert find_program(program_of(tmp_path, "./train.sh", "x"), str(elsewhere)) == str(tmp_path / "train.sh")
    assert find_program(program_of(tmp_path, "trainer"), str(elsewhere)) == str(elsewhere / "trainer")


@pytest.mark.parametrize(
    ("word", "zoo", "keys"),
    [
        ("train.sh", "", ["command", "'train.sh'", "./train.sh"]),
        ("./absent.sh", "", ["command", "'./absent.sh'", "chmod +x"]),
        ("./plain.sh", "", ["command", "'./plain.sh'", "chmod +x"]),
        ("sh", "nowhere", ["model.zoo", "nowhere", "no directory"]),
    ],
)
def test_a_program_that_is_not_there_is_named(tmp_path: Path, word: str, zoo: str, keys: list[str]) -> None:
    (tmp_path / "plain.sh").write_text("#!/bin/sh\n")
    with pytest.raises(BadInputError) as error:
        find_program(program_of(tmp_path, word, zoo=tmp_path / zoo), "/nothing")
    assert not missing_keys(str(error.value), *keys)
