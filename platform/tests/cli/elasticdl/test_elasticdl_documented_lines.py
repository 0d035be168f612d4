"""ElasticDL's documented command lines become job files, or are refused with what to write instead."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import exit_code_of
from cli.elasticdl.documented_lines import LINES, ZOO_LINES, DocumentedLine
from support.text_keys import missing_keys

from edl.cli.elasticdl import app
from edl.jobfile.loader import dump_job_spec, load_job_file


def run_line(text: str, *more: str) -> int:
    program, *words = shlex.split(text)
    assert program == "elasticdl"
    return exit_code_of(lambda: app.main([*words, *more]))


def field_of(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document[name]
    return document


def without_nulls(value: Any) -> Any:
    """A list of sections without the fields that are null."""
    if isinstance(value, list):
        return [
            {name: each for name, each in item.items() if each is not None} if isinstance(item, dict) else item
            for item in value
        ]
    return value


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def has_job_file(line: DocumentedLine) -> bool:
    return bool(line.fields) or not line.refusal


@pytest.mark.parametrize("line", [each for each in LINES if has_job_file(each)], ids=lambda line: line.name)
def test_the_job_file(line: DocumentedLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_line(line.text, "--yaml=job.yaml") == 0
    captured = capsys.readouterr()
    assert "YAML has been dumped into file job.yaml" in captured.out
    assert not missing_keys(captured.err, *line.says)
    command = shlex.split(line.text)[1]
    needed = {"train": "training", "evaluate": "validation", "predict": "prediction"}[command]
    document = dump_job_spec(load_job_file("job.yaml", required_datasets=(needed,)))
    fields = {path: without_nulls(field_of(document, path)) for path in line.fields}
    if "model.weights" in fields:  # a relative path is one below the current folder
        fields["model.weights"] = fields["model.weights"].removeprefix(f"{os.getcwd()}/")
    assert fields == line.fields


@pytest.mark.parametrize("line", [each for each in LINES if each.refusal], ids=lambda line: line.name)
def test_the_refusal(line: DocumentedLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_line(line.text) == 2
    assert not missing_keys(capsys.readouterr().err, *line.refusal)
    assert list(Path().rglob("*.yaml")) == []


@pytest.mark.parametrize("text", ZOO_LINES)
def test_the_dockerfile(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("model_zoo/mnist", "wheels"):
        Path(folder).mkdir(parents=True)
    Path("model_zoo/mnist/model.py").write_text("def custom_model(): ...\n")
    assert run_line(text) == 0
    lines = Path("Dockerfile").read_text().splitlines()
    assert lines[0].startswith("ARG BASE=registry.example/edl:gpu" if "edl:gpu" in text else "ARG BASE=edl/edl:")
    assert any(line.startswith("COPY ") and line.endswith(" /model_zoo") for line in lines)
    options = {word.partition("=")[0] for word in shlex.split(text)[3:]}
    err = capsys.readouterr().err
    assert ("--base_image" in err) == ("--base_image" in options and "edl:gpu" not in text)
    assert ("--cluster_spec" in err) == ("--cluster_spec" in options)
