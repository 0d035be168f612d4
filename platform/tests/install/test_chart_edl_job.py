"""The chart ``edl-job``: a job file goes in as values, and the submitter's pod reads the very same job."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from install.chart_tools import JOB_CHART, ROOT, Manifest, attempt, rendered
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from support.examples import examples

from edl.api.job_spec import JobSpec
from edl.api.pod_spec import RunAsSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_template import container_security_context, pod_security_context
from edl.jobfile.json_schema import build_job_schema
from edl.jobfile.loader import dump_job_spec, load_job_file, load_job_text

JOB_FILES = sorted((ROOT / "model_zoo").glob("*/job*.yaml"))
MINIMAL = JOB_CHART / "ci" / "minimal-values.yaml"
SUBMITTER = "submitter.image.repository=registry.example/edl/submitter"
IMAGE = "image=registry.example/zoo:1"
"""Which files of the zoo leave to who submits them."""
LONGEST_KUBERNETES_NAME = 63


def kinds(*args: str | Path, release: str = "train") -> dict[str, Manifest]:
    """What the chart renders, by kind."""
    objects = rendered(JOB_CHART, "--set", SUBMITTER, *args, release=release, namespace="vision")
    return {each["kind"]: each for each in objects}


def submitted(*args: str | Path, release: str = "train") -> JobSpec:
    """The job that the submitter's pod reads."""
    objects = rendered(JOB_CHART, "--set", SUBMITTER, *args, release=release, namespace="vision")
    (job,) = (each["data"] for each in objects if names.SPEC_KEY in each.get("data", {}))
    return load_job_text(job[names.SPEC_KEY], "the ConfigMap")


def job_name(*args: str | Path) -> str:
    """Name of the submitter's Job."""
    return str(kinds(*args)["Job"]["metadata"]["name"])


@cache
def minimal_job_name() -> str:
    """Name of the submitter's Job without further values."""
    return job_name("-f", MINIMAL)


def refusal_of(*args: str | Path, release: str = "train") -> str:
    """What Helm says of values that it does not render."""
    done = attempt("helm", "template", release, JOB_CHART, *args)
    assert done.returncode != 0, done.stdout
    return done.stderr


def schema_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_schema", ROOT / "helm" / "schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def published() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((JOB_CHART / "values.schema.json").read_text())
    return schema


# ---------------------------------------------------------------------- the schema


def test_the_schema_is_what_is_generated() -> None:
    assert (JOB_CHART / "values.schema.json").read_text() == schema_script().generated(), "make chart-schema"


def test_every_field_of_a_job_has_the_schema_of_the_command_line() -> None:
    fields = published()["properties"]
    own = json.loads((JOB_CHART / "values.own.schema.json").read_text())["properties"]
    assert {name: fields[name] for name in fields.keys() - own.keys()} == build_job_schema()["properties"]


def test_the_template_knows_which_values_are_no_part_of_the_job() -> None:
    own = json.loads((JOB_CHART / "values.own.schema.json").read_text())["properties"]
    define = re.search(
        r'define "edl-job.own" -}}(.*?){{- end', (JOB_CHART / "templates" / "_job.tpl").read_text(), re.S
    )
    assert define is not None
    assert set(YAML(typ="safe").load(define[1])) == set(own)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(published())


def closed(schema: Any, path: str) -> list[str]:
    """Where an object takes names that nobody declared, and has no say about their values."""
    if isinstance(schema, list):
        return [open_path for index, item in enumerate(schema) for open_path in closed(item, f"{path}[{index}]")]
    if not isinstance(schema, dict):
        return []
    open_object = schema.get("type") == "object" and schema.get("additionalProperties", True) in (True, {})
    inner = [open_path for name, item in schema.items() for open_path in closed(item, f"{path}.{name}")]
    return ([path] if open_object else []) + inner


def test_no_object_of_the_chart_itself_takes_what_it_does_not_know() -> None:
    own = json.loads((JOB_CHART / "values.own.schema.json").read_text())
    not_ours = {
        ".properties.global",  # what a parent chart shares
        # passed on as they are: Kubernetes defines them, and the API server checks them
        ".properties.submitter.properties.affinity",
        ".properties.submitter.properties.topologySpreadConstraints.items",
    }
    assert set(closed(own, "")) == not_ours


def test_the_defaults_that_the_schema_tells_are_those_of_the_values() -> None:
    values = YAML(typ="safe").load((JOB_CHART / "values.yaml").read_text())
    defaults = {name: field["default"] for name, field in published()["properties"].items() if "default" in field}
    assert {name: defaults[name] for name in values if name in defaults} == {
        name: value for name, value in values.items() if name in defaults
    }
    assert not values.keys() & build_job_schema()["properties"].keys(), "a default here would hide the job file's own"


# ---------------------------------------------------------------------- the job


@pytest.mark.parametrize("file", JOB_FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_job_file_is_submitted_as_it_is(file: Path) -> None:
    assert submitted("-f", file, "--set", IMAGE) == load_job_file(file, [IMAGE])


def test_every_kind_of_value_arrives(tmp_path: Path) -> None:
    full = JOB_CHART / "ci" / "full-values.yaml"
    own = json.loads((JOB_CHART / "values.own.schema.json").read_text())["properties"]
    values = YAML(typ="safe").load(full.read_text())
    file = tmp_path / "job.json"
    file.write_text(json.dumps({name: value for name, value in values.items() if name not in own}))
    spec = submitted("-f", full)
    assert spec == load_job_file(file)
    assert spec.checkpoint is None, "null is not the default"
    assert spec.ps.embedding_threshold == 2 << 20
    assert spec.train.seed == 2**53 - 1
    assert spec.model.params["deep"] == {"er": {"a": None}}


def test_the_name_of_the_release_is_that_of_a_job_without_one() -> None:
    assert submitted("-f", MINIMAL, release="mnist").name == "mnist"


def test_a_field_of_the_command_line_is_one_of_the_job() -> None:
    exact = 2**53 + 1
    spec = submitted("-f", MINIMAL, "--set", f"workers.max=8,train.seed={exact}", "--set", "checkpoint=null")
    assert (spec.workers.max, spec.train.seed, spec.checkpoint) == (8, exact, None)


def test_nested_overrides_are_merged_as_helm_merges_files(tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text("workers: {resources: {memory: 3Gi}}\nmodel: {params: {hidden: 64}}\n")
    spec = submitted("-f", MINIMAL, "--set", "workers.resources.cpu=500m", "-f", more)
    assert (spec.workers.resources.cpu, spec.workers.resources.memory) == (0.5, 3 << 30)
    assert spec.model.definition == "mnist.mnist_functional_api.custom_model"
    assert spec.model.params == {"hidden": 64}


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=8)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # between the two, Helm's numbers and ours are written alike and mean different things
    .filter(lambda number: abs(number) < 2**53 or abs(number) >= 1e21)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(params=st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), _VALUES, max_size=4))
def test_whatever_a_model_is_given_arrives(tmp_path: Path, params: dict[str, Any]) -> None:
    file = tmp_path / "params.json"
    file.write_text(json.dumps({"model": {"definition": "a.b", "params": params}}, ensure_ascii=False))
    assert submitted("-f", MINIMAL, "-f", file).model.params == params


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63, 10**20])
def test_a_number_that_helm_rounds_is_refused(tmp_path: Path, number: int) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(f"model: {{definition: a.b, params: {{deep: [{{seed: {number}}}]}}}}\n")
    assert "model.params.deep[0].seed: " in refusal_of("-f", MINIMAL, "-f", file)


# ---------------------------------------------------------------------- the Job's name


def test_the_same_values_give_the_same_name() -> None:
    assert job_name("-f", MINIMAL) == minimal_job_name()
    assert job_name("-f", MINIMAL, "--is-upgrade") == minimal_job_name(), "or an upgrade would run it again"


@pytest.mark.parametrize(
    "change",
    ["workers.max=3", "name=other", "submitter.rerun=2", "submitter.image.tag=x", "submitter.env.A=b", "resume=latest"],
)
def test_other_values_give_another_name(change: str) -> None:
    assert job_name("-f", MINIMAL, "--set", change) != minimal_job_name()


def test_a_newer_chart_with_the_same_pods_does_not_replace_a_job(tmp_path: Path) -> None:
    """Its version is in labels of the Job, which may change, and in nothing that is hashed."""
    newer = tmp_path / "edl-job"
    shutil.copytree(JOB_CHART, newer)
    about = newer / "Chart.yaml"
    about.write_text(re.sub(r"^version: .*$", "version: 9.9.9", about.read_text(), flags=re.M))
    (submitter,) = (one for one in rendered(newer, "-f", MINIMAL, release="train") if one["kind"] == "Job")
    assert submitter["metadata"]["name"] == minimal_job_name()
    assert submitter["metadata"]["labels"]["helm.sh/chart"] == "edl-job-9.9.9"
    assert "9.9.9" not in json.dumps(submitter["spec"])


def test_the_longest_names_that_are_taken_fit() -> None:
    once = kinds("-f", MINIMAL, "--set", "name=mnist", release="r" * 47)
    assert len(once["Job"]["metadata"]["name"]) == LONGEST_KUBERNETES_NAME
    scheduled = kinds("-f", MINIMAL, "--set", f"schedule=@daily,name={'j' * 31}", release="r" * 45)
    assert len(scheduled["CronJob"]["metadata"]["name"]) == 52, "the controller adds 11"
    assert len(names.master_name(f"{'j' * 31}-29000000")) <= LONGEST_KUBERNETES_NAME


# ---------------------------------------------------------------------- the pod


def test_the_pod_is_as_safe_as_those_of_jobs() -> None:
    pod = kinds("-f", MINIMAL)["Job"]["spec"]["template"]["spec"]
    expected = pod_security_context(RunAsSpec(1000, 1000))
    # it has no volume that could be large
    del expected["fsGroupChangePolicy"]
    assert pod["securityContext"] == expected
    assert pod["containers"][0]["securityContext"] == container_security_context()


def test_the_pod_mounts_what_the_entry_point_reads() -> None:
    pod = kinds("-f", MINIMAL)["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["submit", f"{names.SPEC_DIR}/{names.SPEC_KEY}"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {names.SPEC_DIR, names.HOME_DIR}


def test_no_label_makes_a_submitter_part_of_a_job() -> None:
    """Or whoever waits for a job's pods to go would wait for the submitter, which is itself."""
    for args in ([], ["--set", "schedule=@daily"]):
        assert f"{names.JOB_LABEL}:" not in json.dumps(kinds("-f", MINIMAL, *args)).replace('"', "")


# ---------------------------------------------------------------------- what is refused


def test_without_a_job_the_answer_says_once_how_to_give_one() -> None:
    refusal = refusal_of()
    assert refusal.splitlines()[0].count("-f job.yaml") == refusal.count("-f job.yaml") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("trian.epochs=3", "additional properties 'trian' not allowed"),
        ("train.epochs=many", "/train/epochs"),
        ("workers.max=0", "/workers/max"),
        ("submitter.image.name=x", "additional properties 'name' not allowed"),
        ("submitter.env.EDL_RELEASE=x", "/submitter/env/EDL_RELEASE"),
        ("submitter.podLabels.app\\.kubernetes\\.io/instance=x", "/submitter/podLabels/app.kubernetes.io~1instance"),
        ("schedule=daily", "/schedule"),
        ("concurrencyPolicy=Never", "/concurrencyPolicy"),
        ("apiVersion=edl.dev/v9", "/apiVersion"),
        ("image=a b", "/image"),
        ("storage.claim=Bad_", "/storage/claim"),
        ("pod.labels.bad key=x", "at '/pod/labels': additional properties 'bad key' not allowed"),
        ("pod.labels.team=a b", "/pod/labels/team"),
    ],
)
def test_a_mistake_is_told_when_it_is_rendered(change: str, said: str) -> None:
    assert said in refusal_of("-f", MINIMAL, "--set", change)


@pytest.mark.parametrize(
    "field", ["concurrencyPolicy", "successfulJobsHistoryLimit", "submitter", "submitter.image", "submitter.runAs.user"]
)
def test_a_default_of_the_chart_cannot_be_taken_away(field: str) -> None:
    """Kubernetes would put its own in the place, such as Allow for Forbid."""
    refusal = refusal_of("-f", MINIMAL, "--set", f"schedule=@daily,{field}=null")
    assert f"missing property '{field.rpartition('.')[2]}'" in refusal


@pytest.mark.parametrize("file", JOB_FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_a_job_dumps_is_taken_too(file: Path, tmp_path: Path) -> None:
    """All defaults written out, as `edl submit` stores them."""
    dumped = tmp_path / "job.json"
    dumped.write_text(json.dumps(dump_job_spec(load_job_file(file, [IMAGE]))))
    assert submitted("-f", dumped) == load_job_file(file, [IMAGE])


# ---------------------------------------------------------------------- notes and looks


GOOD_SCHEDULES = [
    "0 3 * * *",
    "*/15 0-23/2 1,15 jan-MAR Mon-fri",
    "5/7 00-09 ? 01 0-6",
    "@midnight",
    "@every 1h30m",
]
BAD_SCHEDULES = {
    "60 * * * *": ('"60"', "minute"),
    "5-1 * * * *": ('"5-1"', "minute"),
    "*/0 * * * *": ('"*/0"', "minute"),
    "*/ * * * *": ('"*/"', "minute"),
    "1/2/3 * * * *": ('"1/2/3"', "minute"),
    "1,,2 * * * *": ('""', "minute"),
    "-5 * * * *": ('"-5"', "minute"),
    "0 24 * * *": ('"24"', "hour"),
    "0 0 0 * *": ('"0"', "day of the month"),
    "0 0 * 13 *": ('"13"', "month"),
    "* * * mon *": ('"mon"', "month"),
    "0 0 * * 7": ('"7"', "day of the week"),
    "* * * * sunday": ('"sunday"', "day of the week"),
    "* * * *": ("/schedule",),
    "@never": ("/schedule",),
    "CRON_TZ=UTC 0 3 * * *": ("/schedule",),
}
"""As Kubernetes reads them (robfig/cron, without seconds): Sunday is 0 only, and ranges do not wrap around."""


@pytest.mark.parametrize("schedule", GOOD_SCHEDULES)
def test_a_schedule_that_kubernetes_takes_is_taken(schedule: str, tmp_path: Path) -> None:
    values_file = tmp_path / "values.json"
    values_file.write_text(json.dumps({"schedule": schedule}))
    assert kinds("-f", MINIMAL, "-f", values_file)["CronJob"]["spec"]["schedule"] == schedule


@pytest.mark.parametrize(("schedule", "named"), BAD_SCHEDULES.items())
def test_a_schedule_that_kubernetes_would_refuse_is_refused(
    schedule: str, named: tuple[str, ...], tmp_path: Path
) -> None:
    values_file = tmp_path / "values.json"
    values_file.write_text(json.dumps({"schedule": schedule}))
    refusal = refusal_of("-f", MINIMAL, "-f", values_file)
    assert "schedule" in refusal
    assert [each for each in named if each not in refusal] == []


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/Argentina/Ushuaia", "Etc/GMT+1", "GMT", "UTC", "Etc/UTC"])
def test_a_time_zone_that_exists_is_taken(zone: str) -> None:
    objects = kinds("-f", MINIMAL, "--set", "schedule=@daily", "--set", f"timeZone={zone}")
    assert objects["CronJob"]["spec"]["timeZone"] == zone


def test_the_notes_say_how_to_wait() -> None:
    done = attempt("helm", "install", "train", JOB_CHART, "-f", MINIMAL, "--dry-run=client")
    assert "--wait --wait-for-jobs --timeout" in done.stdout


def test_the_icon_is_the_picture_beside_it() -> None:
    about = YAML(typ="safe").load((JOB_CHART / "Chart.yaml").read_text())
    kind, _, content = about["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(content) == (JOB_CHART / "icon.svg").read_bytes()
