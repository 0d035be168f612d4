"""What holds for every chart below helm/, and what bad values of the chart edl are answered with."""

from __future__ import annotations

import base64
import json
import re
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from install.chart_tools import CHART, ROOT, Manifest, attempt, output, rendered, rendered_case
from ruamel.yaml import YAML

pytestmark = pytest.mark.install

CHARTS = sorted(path.parent for path in (ROOT / "helm").glob("*/Chart.yaml"))
CASES = [(chart, case) for chart in CHARTS for case in sorted((chart / "ci").glob("*-values.yaml"))]
charts = pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
cases = pytest.mark.parametrize(("chart", "case"), CASES, ids=[f"{chart.name}-{case.stem}" for chart, case in CASES])

CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "Namespace",
    "PersistentVolume",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
CONVENTION = {
    "helm.sh/chart",
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/managed-by",
}
KEPT = {"Namespace", "PersistentVolume", "PersistentVolumeClaim"}


def loaded(path: Path) -> Any:
    return YAML(typ="safe").load(path)


@cases
def test_every_case_is_clean_for_helm_lint(chart: Path, case: Path) -> None:
    output("helm", "lint", "--strict", "--values", case, chart)


@charts
def test_the_suites_pass(chart: Path) -> None:
    done = attempt("helm-unittest", "--strict", "--file", "tests/*_test.yaml", chart)
    assert done.returncode == 0, done.stdout + done.stderr


@charts
def test_the_readme_is_what_helm_docs_writes(chart: Path) -> None:
    written = output("helm-docs", "--chart-search-root", chart, "--sort-values-order", "file", "--dry-run")
    assert (chart / "README.md").read_text() == written, f"write it: helm-docs -c helm/{chart.name} -s file"


@charts
def test_every_value_is_described(chart: Path) -> None:
    rows = re.findall(r"^\| (\S+) \| [^|]+ \| `.*` \|(.*)\|$", (chart / "README.md").read_text(), re.MULTILINE)
    assert rows
    assert [name for name, description in rows if not description.strip()] == []


@charts
def test_the_chart_says_what_catalogues_show(chart: Path) -> None:
    about = loaded(chart / "Chart.yaml")
    assert about["icon"] == "data:image/svg+xml;base64," + base64.b64encode((chart / "icon.svg").read_bytes()).decode()
    assert about["kubeVersion"].startswith(">=")
    assert about["appVersion"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {"artifacthub.io/category", "artifacthub.io/changes"} <= about["annotations"].keys()
    assert "artifacthub.io/images" not in about["annotations"], "ours are built by who uses them"
    assert about["maintainers"]


@charts
def test_a_package_has_what_people_need_and_no_tests_of_the_chart(chart: Path, tmp_path: Path) -> None:
    output("helm", "package", chart, "--destination", tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as package:
        names = {name.partition("/")[2] for name in package.getnames()}
    assert {"Chart.yaml", "README.md", "values.yaml", "values.schema.json", "templates/NOTES.txt"} <= names
    assert not [name for name in names if name.startswith(("ci/", "tests/")) or name.endswith(".gotmpl")]
    assert "](../" not in (chart / "README.md").read_text(), "what lies beside the chart is not in the package"


@cases
def test_objects_are_named_once_labelled_and_in_a_namespace(chart: Path, case: Path) -> None:
    objects = rendered_case(chart, case)
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))
    for each in objects:
        assert each["metadata"].get("labels", {}).keys() >= CONVENTION, (each["kind"], each["metadata"]["name"])
        if chart == CHART:
            assert ("namespace" in each["metadata"]) == (each["kind"] not in CLUSTER_WIDE)


@cases
def test_rendering_twice_gives_the_same(chart: Path, case: Path) -> None:
    assert rendered(chart, "--values", case) == rendered_case(chart, case)


@pytest.mark.parametrize("case", sorted((CHART / "ci").glob("*-values.yaml")), ids=lambda case: case.stem)
def test_what_holds_data_outlives_the_release(case: Path) -> None:
    for each in rendered_case(CHART, case):
        if each["kind"] in KEPT:
            annotations = each["metadata"]["annotations"]
            assert annotations["helm.sh/resource-policy"] == "keep", each
            assert annotations["argocd.argoproj.io/sync-options"] == "Prune=false,Delete=false", each


def test_everything_is_something_else_than_its_default() -> None:
    """ci/everything-values.yaml is what one reads to see every value in use: it must not fall behind."""
    everything = set(leaves(loaded(CHART / "ci" / "everything-values.yaml")))
    # these are set in the teams there; the cluster's part is in every other case but one
    elsewhere = {"cluster", "teamDefaults.members", "teamDefaults.volume", "teamDefaults.accounts.create"}
    elsewhere |= {
        "priorityClasses.create",
        "priorityClasses.high.create",
        "priorityClasses.low.create",
        "tests.enabled",
    }
    elsewhere |= {"admission.enabled", "teamDefaults.networkPolicies.enabled"}
    missing = {
        leaf
        for leaf in leaves(loaded(CHART / "values.yaml"))
        if not any(leaf == set_elsewhere or leaf.startswith(f"{set_elsewhere}.") for set_elsewhere in elsewhere)
        and not any(set_there == leaf or set_there.startswith(f"{leaf}.") for set_there in everything)
        and not leaf.startswith("teamDefaults.networkPolicies.dns.namespaceLabels.")
    }
    assert missing == set()


def leaves(values: Any, where: str = "") -> Iterator[str]:
    """Paths of all values that are no maps, or empty ones."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, f"{where}.{key}" if where else key)
    else:
        yield where


def test_the_schema_knows_every_value_and_no_more() -> None:
    """Of maps with fixed keys; a value without a default would be a value without documentation."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def differences(part: dict[str, Any], values: Any, where: str) -> Iterator[str]:
        part = resolved(part, schema)
        if "properties" in part and isinstance(values, dict):
            for key in part["properties"].keys() ^ values.keys():
                yield f"{where}.{key}"
            for key in part["properties"].keys() & values.keys():
                yield from differences(part["properties"][key], values[key], f"{where}.{key}")

    # objects that have no defaults
    no_defaults = {f".teamDefaults.limitRange.{key}" for key in schema["definitions"]["limitRange"]["properties"]}
    assert set(differences(schema, loaded(CHART / "values.yaml"), "")) == no_defaults


def resolved(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("/")[2]
    return schema["definitions"][name] if name else part


FREE = {
    "/properties/global",  # Helm's own
    # parts of a JobSpec that a model, a reader and Kubernetes define
    "/properties/model/properties/params",
    "/properties/data/properties/reader",
    "/properties/pod/properties/tolerations/items",
    "/properties/pod/properties/affinity",
    *(f"/properties/{of}/properties/overrides" for of in ("pod", "master", "ps", "workers")),
    "/properties/master/properties/service_overrides",
    # what the charts pass on to Kubernetes as it is
    "/properties/extraObjects/items",
    *(f"/properties/{of}/properties/affinity" for of in ("tests", "submitter")),
    *(f"/properties/{of}/properties/topologySpreadConstraints/items" for of in ("tests", "submitter")),
    "/properties/tests/properties/tolerations/items",
}


@charts
def test_no_object_takes_unknown_keys(chart: Path) -> None:
    """Maps with keys of the user constrain the values instead."""
    schema = json.loads((chart / "values.schema.json").read_text())
    loose = [
        where
        for where, part in parts(schema, "")
        if "object" in types(part) and part.get("additionalProperties", True) in (True, {}) and where not in FREE
    ]
    assert loose == []


def types(part: dict[str, Any]) -> list[str]:
    allowed_types = part.get("type", [])
    return allowed_types if isinstance(allowed_types, list) else [allowed_types]


def parts(part: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, by its JSON pointer."""
    if isinstance(part, dict):
        if "type" in part and not isinstance(part["type"], dict):
            yield where, part
        for key, value in part.items():
            yield from parts(value, f"{where}/{key}")
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from parts(value, f"{where}/{index}")


BAD = [
    ({"priorityClases": {}}, "additional properties 'priorityClases' not allowed"),
    ({"teamDefaults": {"volume": {"sorageClass": "a"}}}, "additional properties 'sorageClass' not allowed"),
    ({"teams": [{"namespace": "a", "member": {}}]}, "at '/teams/0': additional properties 'member' not allowed"),
    ({"teams": [{"create": True}]}, "at '/teams/0': missing property 'namespace'"),
    ({"teams": {"namespace": "a"}}, "at '/teams': got object, want array"),
    ({"teams": [{"namespace": "Team_A"}]}, "at '/teams/0/namespace': 'Team_A' does not match pattern"),
    ({"cluster": {"create": "yes"}}, "at '/cluster/create': got string, want boolean"),
    ({"priorityClasses": {"high": {"value": "1000000"}}}, "at '/priorityClasses/high/value': got string, want integer"),
    ({"priorityClasses": {"high": {"value": 2000000000}}}, "at '/priorityClasses/high/value': maximum"),
    (
        {"priorityClasses": {"low": {"preemptionPolicy": "never"}}},
        "value must be one of 'Never', 'PreemptLowerPriority'",
    ),
    ({"commonLabels": {"owner": 1}}, "at '/commonLabels/owner': got number, want string"),
    ({"commonLabels": {"owner": "a b"}}, "at '/commonLabels/owner': 'a b' does not match pattern"),
    ({"teamDefaults": {"volume": {"size": "100 GB"}}}, "'100 GB' does not match pattern"),
    ({"teamDefaults": {"quota": {"low": {"gpu": 1}}}}, "at '/teamDefaults/quota/low': additional properties 'gpu'"),
    ({"teamDefaults": {"quota": {"low": 5}}}, "at '/teamDefaults/quota/low': got number, want object"),
    ({"teamDefaults": {"networkPolicies": {"dns": {"cidrs": ["10.0.0.1"]}}}}, "'10.0.0.1' does not match pattern"),
    ({"teamDefaults": {"networkPolicies": {"extra": {"a": {"roles": ["masters"]}}}}}, "value must be one of 'master'"),
    ({"admission": {"podAccounts": []}}, "at '/admission/podAccounts': minItems: got 0, want 1"),
    ({"commonLabels": {"the owner": "a"}}, "at '/commonLabels': additional properties 'the owner' not allowed"),
    ({"commonAnnotations": {"a/b/c": "d"}}, "at '/commonAnnotations': additional properties 'a/b/c' not allowed"),
    ({"teamDefaults": {"quota": {"Low": {"pods": 1}}}}, "at '/teamDefaults/quota': additional properties 'Low' not"),
    (
        {"teamDefaults": {"limitRange": {"default": {"CPU": 1}}}},
        "at '/teamDefaults/limitRange/default': additional properties 'CPU' not allowed",
    ),
    (
        {"teamDefaults": {"networkPolicies": {"extra": {"my_store": {"roles": ["worker"], "egress": [{}]}}}}},
        "at '/teamDefaults/networkPolicies/extra': additional properties 'my_store' not allowed",
    ),
    ({"teams": [{"namespace": "a"}, {"namespace": "a"}]}, "the namespace a"),
    ({"teams": [{"namespace": "edl-system", "create": True}]}, "namespace edl-system"),
]


@pytest.mark.parametrize(("values", "answer"), BAD, ids=[answer[:60] for _, answer in BAD])
def test_a_mistake_is_named_before_anything_is_installed(values: Manifest, answer: str, tmp_path: Path) -> None:
    values_file = tmp_path / "values.json"
    values_file.write_text(json.dumps(values))
    done = attempt("helm", "template", "edl", CHART, "--namespace", "edl-system", "--values", values_file)
    assert done.returncode != 0
    assert answer in done.stderr


def test_a_cluster_that_is_too_old_is_refused() -> None:
    done = attempt("helm", "template", "edl", CHART, "--kube-version", "1.29.0")
    assert "requires kubeVersion: >=1.30.0-0" in done.stderr
