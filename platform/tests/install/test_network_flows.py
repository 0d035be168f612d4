"""The NetworkPolicies of the chart and of Kustomize allow what ``network/*.txt`` say, and nothing besides."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster.kubernetes.cluster_jobs import MNIST
from install.chart_tools import CHART, KUSTOMIZE, ROOT, built, rendered
from install.flow_table import FlowTable, NetworkFlow, read

from edl.api.cluster_port import Role
from edl.api.pod_spec import RunAsSpec
from edl.api.strategy import Strategy
from edl.cluster.kubernetes.job_manifests import render_pod
from edl.ops.cluster_capacity import matches_expression
from edl.ops.helper_pod import HelperPodSpec, render_helper_pod

pytestmark = pytest.mark.install

TABLES = {path.stem: read(path.read_text()) for path in sorted((Path(__file__).parent / "network").glob("*.txt"))}
TEAM = "team-a"
PAGE = ROOT / "docs" / "reference" / "network.md"


def of_chart(values: dict[str, Any]) -> list[dict[str, Any]]:
    teams = [{"namespace": TEAM, "networkPolicies": values}]
    return policies(rendered(CHART, "--set-json", f"teams={json.dumps(teams)}"))


def of_component() -> list[dict[str, Any]]:
    return policies(built(KUSTOMIZE / "overlays" / "kind"))


def policies(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == "NetworkPolicy"]


def wrong(table: FlowTable, found: list[dict[str, Any]]) -> list[str]:
    """Flows whose verdict is not the table's: denied, where no line says anything."""
    network = table.network(found)
    verdicts = {flow: network.verdict(table.connection(flow)) for flow in table.all_flows(TEAM)}
    assert set(table.verdicts) <= set(verdicts), "the table has flows that no endpoints or ports are named for"
    return [
        f"{flow}: {verdict.reason}"
        for flow, verdict in verdicts.items()
        if verdict.allowed != table.verdicts.get(flow, False)
    ]


@pytest.mark.parametrize("name", TABLES)
def test_the_charts_policies_allow_what_the_table_says(name: str) -> None:
    assert wrong(TABLES[name], of_chart(TABLES[name].values)) == []


def test_kustomizes_component_allows_what_the_table_says() -> None:
    assert wrong(TABLES["defaults"], of_component()) == []


def test_a_table_notices_a_policy_that_is_missing_and_one_that_is_too_wide() -> None:
    table = TABLES["defaults"]
    team_policies = of_chart({})
    for gone in team_policies:
        assert wrong(table, [one for one in team_policies if one is not gone]), gone["metadata"]["name"]
    wide = {
        "metadata": {"name": "wide", "namespace": TEAM},
        "spec": {"podSelector": {}, "egress": [{}], "ingress": [{}]},
    }
    assert wrong(table, [*team_policies, wide])


def test_the_ports_that_roles_listen_at_are_those_that_are_allowed() -> None:
    all_reduce = replace(MNIST, strategy=Strategy(name="AllReduce"))
    pods = [
        (role, render_pod(spec, role, 0, namespace=TEAM, job_uid="", run_dir="/data"))
        for spec in (MNIST, all_reduce)
        for role in Role
    ]
    listening = {
        (role.value, str(port["containerPort"])) for role, pod in pods for port in pod["spec"]["containers"][0]["ports"]
    }
    of_job = {role.value for role in Role}
    allowed = {_by_role(flow) for flow, verdict in TABLES["defaults"].verdicts.items() if verdict}
    assert {(flow.target, flow.port) for flow in allowed if {flow.source, flow.target} <= of_job} == listening


def test_the_page_for_people_says_the_same() -> None:
    rows = re.findall(r"^\| ([a-z, -]+) \| ([a-z-]+) \| ([0-9, ]+) \|", PAGE.read_text(), re.MULTILINE)
    on_page = {(who, to, port) for sources, to, ports in rows for who in words(sources) for port in words(ports)}
    subjects = {name for who, to, _ in on_page for name in (who, to)}
    allowed = {_by_role(flow) for flow, verdict in TABLES["defaults"].verdicts.items() if verdict}
    assert on_page == {
        (flow.source, flow.target, flow.port)
        for flow in allowed
        if {flow.source, flow.target} <= subjects and "/" not in flow.port and not _open_by_default(flow)
    }


def _by_role(flow: NetworkFlow) -> NetworkFlow:
    """A flow of a role's second pod, such as ``worker-1``, as one of its role."""
    return replace(flow, source=flow.source.removesuffix("-1"), target=flow.target.removesuffix("-1"))


def words(text: str) -> list[str]:
    return text.split(", ")


def _open_by_default(flow: NetworkFlow) -> bool:
    """Of the API server's rule, as long as nobody has said where it is; the page says so beside its table."""
    return flow.port in ("443", "6443") and flow.target != "api-server"


def test_a_release_without_teams_isolates_edls_pods_and_no_others() -> None:
    """Other things may live in the release's namespace."""
    release_policies = policies(rendered(CHART))
    ours = {**render_pod(MNIST, Role.WORKER, 0, namespace=TEAM, job_uid="", run_dir="/data")["metadata"]["labels"]}
    copying = render_helper_pod(HelperPodSpec("files", "img", RunAsSpec()), "edl-data-01234567")["metadata"]["labels"]
    for labels, isolated in ((ours, True), (copying, True), ({"app": "notebook"}, False)):
        chosen = [one for one in release_policies if _chooses(one["spec"]["podSelector"], labels)]
        denied = any(one["metadata"]["name"] == "edl-default-deny" for one in chosen)
        assert (denied, bool(chosen)) == (isolated, isolated)


def test_a_release_without_teams_allows_what_one_with_a_team_does() -> None:
    """Only the first policy is narrower."""
    alone, team = policies(rendered(CHART)), of_chart({})
    assert {one["metadata"]["name"] for one in alone} == {one["metadata"]["name"] for one in team}
    by_name = {one["metadata"]["name"]: one["spec"] for one in team}
    for one in alone:
        wanted = by_name[one["metadata"]["name"]]
        narrower = {"podSelector": one["spec"]["podSelector"]} if one["metadata"]["name"] == "edl-default-deny" else {}
        assert one["spec"] == wanted | narrower


def _chooses(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        matches_expression(expression, labels.get(expression["key"]))
        for expression in selector.get("matchExpressions", ())
    )
