"""The page that says how much the charts install, and how long that takes, has it right."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from install.chart_tools import CHART, ROOT, manifests, output, rendered

pytestmark = pytest.mark.install

ROW = re.compile(r"^\| `((?:helm template|kubectl kustomize) [^`]+)` \| (\d+) \| (\d+) \|$", re.MULTILINE)
NAMESPACED = {
    "ConfigMap",
    "Job",
    "LimitRange",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "ResourceQuota",
    "RoleBinding",
    "ServiceAccount",
}
PAGE = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
ROWS = ROW.findall(PAGE)


def test_there_are_rows_for_both_ways_to_install():
    assert {command.split()[0] for command, _, _ in ROWS} == {"helm", "kubectl"}


@pytest.mark.parametrize(("command", "objects", "everywhere"), ROWS, ids=[command for command, _, _ in ROWS])
def test_the_number_of_objects_is_right(command, objects, everywhere):
    installed = [
        manifest
        for manifest in manifests(output(*shlex.split(command)))
        if "helm.sh/hook" not in (manifest["metadata"].get("annotations") or {})
    ]
    wide = [manifest for manifest in installed if manifest["kind"] not in NAMESPACED]
    assert (len(installed), len(wide)) == (int(objects), int(everywhere))


@pytest.mark.parametrize("name", ["install_helm", "install_kustomize", "upgrade"])
def test_how_long_installing_takes_is_told(name):
    """The row is there with a number; which, differs from one end-to-end run to the next."""
    what = json.loads((ROOT / "e2e/results/latest.json").read_text(encoding="utf-8"))[name]["what"]
    assert re.search(rf"^\| {re.escape(what)} \| reported (\| \d+\.\d+ s )+\|$", PAGE, re.MULTILINE)


def test_who_may_bind_the_roles_of_a_team_may_bind_all_of_them():
    """The role on the page for operators that lets somebody install a team's release who is no admin of the cluster."""
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    shown = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (role,) = (each for text in shown for each in manifests(text) if each.get("kind") == "ClusterRole")
    objects = rendered(CHART, "--set", "cluster.create=false,teamDefaults.dataCopy=true")
    bound = {each["roleRef"]["name"] for each in objects if each["kind"] == "RoleBinding"}
    (rule,) = role["rules"]
    assert (rule["verbs"], rule["resources"]) == (["bind"], ["clusterroles"])
    assert set(rule["resourceNames"]) == bound
