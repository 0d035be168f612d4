"""The page for ElasticDL's users has each of its flags, and what it names on our side exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from install.elasticdl_flags import FLAGS

from edl.cli.app import COMMANDS
from edl.cli.elasticdl import app as elasticdl
from edl.cli.elasticdl.flags import EXTRA_FLAGS, JOB_FLAGS, BecomesFields
from edl.cli.elasticdl.job_translation import translate_job
from edl.cli.elasticdl.parser import parse_command_line
from edl.cluster.kubernetes.spec_validation import find_spec_problems
from edl.jobfile.json_schema import build_job_schema
from edl.jobfile.loader import diff_job_specs, load_job_file

PAGE = Path(__file__).resolve().parents[3] / "docs/migrating-from-elasticdl.md"
CODE = re.compile(r"`([^`]+)`")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    """The cells of each row of the tables of flags and commands: what it is in ElasticDL, what it is here, a remark."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == 3]


@pytest.fixture(scope="module")
def job_fields() -> set[str]:
    return set(fields(build_job_schema()))


def fields(schema: Any, path: str = "") -> Iterator[str]:
    """The paths of all fields, sections included."""
    for choice in (schema, *schema.get("anyOf", ())):
        for name, inner in choice.get("properties", {}).items():
            yield (here := f"{path}.{name}" if path else name)
            yield from fields(inner, here)
        if "items" in choice:
            yield from fields(choice["items"], f"{path}[]")


def test_every_flag_has_its_row(rows):
    named = [flag for row in rows for flag in CODE.findall(row[0])]
    assert sorted(set(FLAGS) - set(named)) == []
    assert sorted(flag for flag in named if flag.startswith("--") and flag not in FLAGS) == []
    assert sorted({flag for flag in named if named.count(flag) > 1}) == []


def test_a_flag_that_is_nothing_here_has_a_reason(rows):
    assert [row[0] for row in rows if not row[1] and len(row[-1]) < len("not needed")] == []


def test_fields_that_the_page_names_exist(rows, job_fields):
    named = [code for row in rows for code in CODE.findall(row[1]) if not code.startswith("edl ")]
    assert len(named) > 40
    assert [name for name in named if name.partition(":")[0] not in job_fields] == []


def test_the_page_names_the_fields_that_the_command_sets(rows):
    """What `elasticdl` makes of a flag, and what the page says to write, are the same."""
    named_fields = {flag: CODE.findall(row[1]) for row in rows for flag in CODE.findall(row[0])}
    for flag in (*JOB_FLAGS, *EXTRA_FLAGS):
        if isinstance(flag.effect, BecomesFields):
            fields_set = {re.sub(r"^model\.functions\..*", "model.functions", name) for name in flag.effect.fields}
            named = {re.sub(r"\[\]\..*", "", code) for code in named_fields[flag.option]}
            assert fields_set & named, flag.option


def test_remarks_name_no_field_that_is_not_there(rows, job_fields):
    tops = {name for name in job_fields if "." not in name}
    named = [code for row in rows for code in CODE.findall(row[-1]) if code.partition(".")[0] in tops and "." in code]
    assert named
    assert [name for name in named if name.partition(":")[0] not in job_fields] == []


def test_commands_and_options_that_the_page_names_exist():
    text = BLOCK.sub("", PAGE.read_text(encoding="utf-8"))
    named = [code for code in CODE.findall(text) if code.startswith("edl ")]
    assert len(named) > 20
    for line in named:
        words = line.split()[1:]
        command = typer.main.get_command(import_module(f"edl.cli.{words[0]}").app)
        assert words[0] in COMMANDS
        while words[1:] and words[1] in getattr(command, "commands", {}):
            command, words = command.commands[words[1]], words[1:]
        options = {option for parameter in command.params for option in parameter.opts}
        assert [word for word in words[1:] if word.startswith("--") and word not in options] == [], line


def test_the_translated_command_is_a_job_file_for_a_cluster(tmp_path):
    (tmp_path / "job.yaml").write_text(re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    spec = load_job_file(tmp_path / "job.yaml", required_datasets=("training",), extra_rules=find_spec_problems)
    flags = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert set(re.findall(r"--\w+", flags)) <= set(FLAGS)
    flag_values = dict(re.findall(r"--(\w+)=(\d+)\b", flags))
    spec_values = {
        "num_epochs": spec.train.epochs,
        "minibatch_size": spec.train.minibatch_size,
        "num_minibatches_per_task": spec.train.minibatches_per_task,
        "evaluation_steps": spec.train.evaluation_steps,
        "num_workers": spec.workers.max,
        "num_ps_pods": spec.ps.count,
        "checkpoint_steps": spec.checkpoint and spec.checkpoint.every_steps,
        "keep_checkpoint_max": spec.checkpoint and spec.checkpoint.keep,
    }
    assert {name: int(value) for name, value in flag_values.items()} == spec_values


def test_the_command_as_it_stands_makes_the_translated_job(tmp_path):
    """The page shows one job twice. It differs in what only ElasticDL's users need: names of pods, and defaults."""
    (tmp_path / "job.yaml").write_text(re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    shown = load_job_file(tmp_path / "job.yaml", required_datasets=("training",), extra_rules=find_spec_problems)
    text = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    program, command, *words = shlex.split(text.replace("\\\n", " "))
    assert (program, command) == ("elasticdl", "train")
    translated = translate_job(parse_command_line(command, words), Path(), find_spec_problems).spec
    differences = {field: (old, new) for field, old, new in diff_job_specs(shown, translated)}
    assert differences == {
        "image": ("gcr.io/my-project/edl:mnist", "gcr.io/my-project/elasticdl:mnist"),
        "model.zoo": ("/model_zoo", "model_zoo"),  # the same folder in a pod
        "export": ({"path": None}, None),
        "workers.oom_memory_factor": (1.0, 1.5),
        "log.loss_every_steps": (None, 100),
        "master.log_pod": (False, True),
        "pod.name_prefix": ("edl", "elasticdl"),
        "pod.identity_labels.job": (None, "elasticdl-job-name"),
        "pod.identity_labels.role": (None, "elasticdl-replica-type"),
        "pod.identity_labels.index": (None, "elasticdl-replica-index"),
        "pod.identity_labels.status": (None, "status"),
        "pod.labels.app": (None, "elasticdl"),
        "pod.image_pull_policy": (None, "Always"),
    }


def test_the_command_line_of_the_gke_tutorial_stands_beside_its_job_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (PAGE.parent / "tutorials/on-gke.md").read_text(encoding="utf-8")
    command, job_file = re.findall(r"```sh\n(elasticdl train .*?)```.*?```yaml\n(.*?)```", text, re.DOTALL)[0]
    words = shlex.split(command.replace("\\\n", " ").replace("$REGISTRY", "registry.example"))
    with pytest.raises(SystemExit) as ended:
        elasticdl.main([*words[1:], "--dry-run"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.replace("registry.example", "REGISTRY") == job_file
