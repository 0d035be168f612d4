"""The manifests for Argo CD and Flux on the page for operators: the chart takes their values, and the job can run."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from install.chart_tools import JOB_CHART, ROOT, Manifest, manifests, rendered
from jsonschema import Draft202012Validator
from support.doc_commands import DOCS

from edl.api.job_spec import JobSpec
from edl.cluster.kubernetes.spec_validation import find_spec_problems
from edl.jobfile.loader import load_job_file

pytestmark = pytest.mark.install

FENCE = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")
KINDS = {"argoproj.io/v1alpha1": "Application", "helm.toolkit.fluxcd.io/v2": "HelmRelease"}


def on_page(kind: str) -> Manifest:
    """The one manifest of this kind."""
    (manifest,) = (each for text in FENCE.findall(PAGE) for each in manifests(text) if each.get("kind") == kind)
    return manifest


def values_of(release: Manifest) -> dict[str, Any]:
    """The chart's values, wherever the tool has them."""
    spec: dict[str, Any] = release["spec"]
    values: dict[str, Any] = spec["values"] if "values" in spec else spec["source"]["helm"]["valuesObject"]
    return values


def merged(defaults: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """As Helm does it."""
    inner = {key: merged(defaults[key], values[key]) for key in defaults if isinstance(values.get(key), dict)}
    return defaults | values | inner


@pytest.fixture(params=KINDS.values())
def release(request: pytest.FixtureRequest) -> Manifest:
    return on_page(request.param)


@pytest.fixture
def values_file(release: Manifest, tmp_path: Path) -> Path:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values_of(release)))
    return file


def test_they_are_manifests_of_these_tools(release: Manifest) -> None:
    assert KINDS[release["apiVersion"]] == release["kind"]
    assert set(release) == {"apiVersion", "kind", "metadata", "spec"}


def test_they_name_the_chart() -> None:
    named = on_page("Application")["spec"]["source"]["path"], on_page("HelmRelease")["spec"]["chart"]["spec"]["chart"]
    assert {ROOT / path for path in named} == {JOB_CHART}


def test_their_values_are_what_the_schema_says(release: Manifest) -> None:
    schema = json.loads((JOB_CHART / "values.schema.json").read_text(encoding="utf-8"))
    (defaults,) = manifests((JOB_CHART / "values.yaml").read_text(encoding="utf-8"))
    values = merged(defaults, values_of(release))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(values)] == []


def test_the_chart_makes_one_submitter_of_them(release: Manifest, values_file: Path) -> None:
    objects = rendered(JOB_CHART, "--values", values_file, release=release["metadata"]["name"], namespace="team-a")
    assert sorted(manifest["kind"] for manifest in objects) == ["ConfigMap", "Job"]


def test_the_job_in_them_can_run_on_a_cluster(release: Manifest, tmp_path: Path) -> None:
    known = {field.name for field in fields(JobSpec)}
    job = {key: value for key, value in values_of(release).items() if key in known}
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({"apiVersion": "edl.dev/v1", "name": release["metadata"]["name"], **job}))
    assert load_job_file(file, required_datasets=("training",), extra_rules=find_spec_problems).workers.max == 4


def test_nothing_in_them_makes_a_job_run_again(release: Manifest) -> None:
    assert "ttlSecondsAfterFinished" not in values_of(release)["submitter"]
    for act in ("install", "upgrade"):
        assert release["spec"].get(act, {}).get("remediation", {}).get("retries", 0) == 0
