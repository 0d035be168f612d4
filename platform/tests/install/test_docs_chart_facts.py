"""The page that says how much the charts install counts right."""

from __future__ import annotations

import re
import shlex

import pytest
from install.chart_tools import ROOT, manifests, output

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
ROWS = ROW.findall((ROOT / "docs/benchmarks.md").read_text(encoding="utf-8"))


def test_there_are_rows_for_both_ways_to_install():
    assert {command.split()[0] for command, _, _ in ROWS} == {"helm", "kubectl"}


@pytest.mark.parametrize(("command", "objects", "everywhere"), ROWS, ids=[command for command, _, _ in ROWS])
def test_the_number_of_objects_is_right(command, objects, everywhere):
    made = [
        found
        for found in manifests(output(*shlex.split(command)))
        if "helm.sh/hook" not in (found["metadata"].get("annotations") or {})
    ]
    wide = [found for found in made if found["kind"] not in NAMESPACED]
    assert (len(made), len(wide)) == (int(objects), int(everywhere))
