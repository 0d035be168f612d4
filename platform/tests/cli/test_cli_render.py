"""``edl render``: YAML that kubectl reads as it was meant, with a token of its own."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from support.text_keys import missing_keys
from typer.testing import CliRunner

from edl.api.errors import BadInputError
from edl.cli.render import app, manifests_yaml

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["yes", "No", "on", "y", "~", "null", "0777", "1:30", "1e3", "0x1f", "2Gi", "500m", ".5", "2001-01-01", "<<", "=",
     "a: b", "- a", "# a", "a #b", "%a", "@a", "a\n", " a\n", "\n", "a\n\n", "true", "", "*a", "&a", "!a", "{", "[]"]
)  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


def read(text: str, version: tuple[int, int]) -> list[Any]:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = version  # type: ignore[assignment]
    return list(yaml.load_all(io.StringIO(text)))


@pytest.mark.parametrize("version", [(1, 1), (1, 2)])
@given(manifests=st.lists(st.dictionaries(_TEXT, _VALUES, min_size=1, max_size=3), min_size=1, max_size=2))
def test_yaml_means_what_was_written(manifests: list[dict[str, Any]], version: tuple[int, int]) -> None:
    assert read(manifests_yaml(manifests), version) == manifests


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: mnist\nimage: team/mnist:v3\nmodel: {definition: mnist.model.custom_model}\n"
        "data: {training: /data/train}\nvolumes: [{claim: datasets, mount: /data}]\n"
    )
    return file


def rendered(*arguments: object) -> tuple[str, list[Any]]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, read(done.stdout, (1, 1))


def test_all_of_a_job(job: Path) -> None:
    text, documents = rendered(job, "-n", "team-a", "--set", "workers.max=9")
    assert [document["kind"] for document in documents] == ["ConfigMap", "ConfigMap", "Service", "Job", "Secret"]
    assert {document["metadata"]["namespace"] for document in documents} == {"team-a"}
    assert '"max": 9' in documents[0]["data"]["job.json"]
    assert documents[-2]["spec"]["suspend"] is False
    assert "do not commit it" in text.partition("---")[0]


def test_every_token_is_new(job: Path) -> None:
    tokens = {rendered(job)[1][-1]["stringData"]["token"] for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) == 64 for token in tokens)


def test_a_secret_that_exists(job: Path) -> None:
    text, documents = rendered(job, "--token-secret", "mine")
    assert "Secret" not in [document["kind"] for document in documents]
    assert "do not commit" not in text
    assert "secretName: mine" in text


def test_a_run_to_go_on_with(job: Path) -> None:
    (manifest,) = (each for each in rendered(job, "--resume", "latest")[1] if each["kind"] == "Job")
    assert manifest["metadata"]["annotations"] == {"edl.dev/run": "latest"}


def test_what_it_costs_to_have_no_volume_is_said(job: Path) -> None:
    settings = ("--set", "volumes=[]", "--set", "data.training=odps://a/b")
    done = CliRunner().invoke(app, [str(job), *settings], catch_exceptions=False)
    assert not missing_keys(done.stderr, "warning", "no volume")


def test_what_cannot_be_on_a_cluster_has_its_line(job: Path) -> None:
    job.write_text(job.read_text().replace("/data/train", "data/train"))
    with pytest.raises(BadInputError, match=r"job.yaml:4: data.training: .*'data/train'.*absolute"):
        CliRunner().invoke(app, [str(job)], catch_exceptions=False)


def test_how_it_is_submitted_needs_no_right_to_read_secrets(job: Path) -> None:
    text, _ = rendered(job)
    assert not missing_keys(text, "kubectl create -f FILE", "read Secrets")
    assert "kubectl create -f -" in CliRunner().invoke(app, ["--help"], catch_exceptions=False).stdout
