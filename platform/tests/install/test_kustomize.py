"""kustomize/ is the chart: its base is written from it, its overlays equal it object by object."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from install.chart_tools import CHART, KUSTOMIZE, Manifest, attempt, built, manifests, program, rendered

pytestmark = pytest.mark.install

TEAM = "team-a"
OVERLAYS: dict[str, dict[str, Any]] = {
    "kind": {"volume": {"existing": True}},
    "on-prem": {
        "volume": {
            "size": "1Ti",
            "nfs": {
                "server": "nfs.example.internal",
                "path": "/srv/edl/team-a",
                "mountOptions": ["nfsvers=4.1", "hard", "noatime"],
            },
        }
    },
    "gke": {
        "volume": {
            "size": "1Ti",
            "filestore": {"volumeHandle": "modeInstance/europe-west4-a/edl/edl", "ip": "192.0.2.2", "share": "edl"},
        }
    },
}
"""Values of a team, for which the chart renders what the overlay of this name builds."""

HELM_LABELS = {
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
}
CLUSTER_WIDE = {
    "ClusterRole",
    "PersistentVolume",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def of_chart(team: dict[str, Any] | None = None, *args: str) -> list[Manifest]:
    """What Helm installs, without the pods of its tests; without a team, in the release's own namespace."""
    teams = () if team is None else ("--set-json", f"teams={json.dumps([{'namespace': TEAM, **team}])}")
    objects = rendered(CHART, *teams, *args, namespace=TEAM)
    return [one for one in objects if "helm.sh/hook" not in one["metadata"].get("annotations", {})]


def by_name(found: list[Manifest]) -> dict[str, Manifest]:
    """Objects by kind, namespace and name; no two are the same."""
    named = {f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one for one in found}
    assert len(named) == len(found)
    return named


def without_helm(found: Manifest) -> Manifest:
    """An object without what only Helm has, and with what Kubernetes would add."""
    metadata = dict(found["metadata"])
    metadata["labels"] = {key: value for key, value in metadata["labels"].items() if key not in HELM_LABELS}
    annotations = {
        key: value for key, value in metadata.pop("annotations", {}).items() if not key.startswith("helm.sh/")
    }
    if annotations:
        metadata["annotations"] = annotations
    changed = {**found, "metadata": metadata}
    if "subjects" in found:
        changed["subjects"] = [{"namespace": metadata["namespace"], **subject} for subject in found["subjects"]]
    return changed


def assert_same(chart: list[Manifest], kustomized: list[Manifest]) -> None:
    expected, actual = by_name([without_helm(one) for one in chart]), by_name([without_helm(one) for one in kustomized])
    assert actual.keys() == expected.keys()
    for name, manifest in expected.items():
        assert actual[name] == manifest, name


def test_what_is_generated_is_what_is_there() -> None:
    program("helm")
    done = attempt(sys.executable, KUSTOMIZE / "generate.py", "--check")
    assert done.returncode == 0, f"`make kustomize` has something to write: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_the_chart_with_values(overlay: str) -> None:
    assert_same(of_chart(OVERLAYS[overlay]), built(KUSTOMIZE / "overlays" / overlay))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_team_is_what_another_release_adds_to_the_cluster(overlay: str) -> None:
    chart = of_chart(OVERLAYS[overlay], "--set", "cluster.create=false")
    assert_same(chart, built(KUSTOMIZE / "overlays" / overlay / "team"))


def test_base_is_the_chart_without_values_and_leaves_the_namespace_to_kubectl() -> None:
    objects = built(KUSTOMIZE / "base")
    assert not [one for one in objects if "namespace" in one["metadata"]]
    placed = [_placed(one) for one in objects]
    assert_same(of_chart(), placed)


def test_base_is_its_two_halves() -> None:
    halves = [*built(KUSTOMIZE / "base" / "cluster"), *built(KUSTOMIZE / "base" / "team")]
    assert by_name(halves) == by_name(built(KUSTOMIZE / "base"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_what_has_a_namespace_is_given_one(overlay: str) -> None:
    objects = built(KUSTOMIZE / "overlays" / overlay)
    assert {one["kind"] for one in objects if "namespace" not in one["metadata"]} <= CLUSTER_WIDE
    assert {one["metadata"]["namespace"] for one in objects if one["kind"] not in CLUSTER_WIDE} == {TEAM}


def test_every_file_is_listed() -> None:
    """A file that no kustomization names would not be applied, and nobody would notice."""
    for path in KUSTOMIZE.rglob("kustomization.yaml"):
        text = path.read_text()
        beside = {one.name for one in Path(path.parent).glob("*.yaml")} - {path.name}
        assert not [name for name in beside if f"- {name}" not in text], path


def overlaid(folder: Path, base: Path, **fields: Any) -> dict[str, Manifest]:
    """What an admin's own overlay of a directory builds, with more fields in its kustomization.yaml."""
    content = {"resources": [os.path.relpath(base, folder.resolve())], **fields}
    (folder / "kustomization.yaml").write_text(json.dumps(content))
    return by_name(built(folder))


def test_the_patch_that_the_readme_shows_narrows_the_api_server(tmp_path: Path) -> None:
    (fence,) = re.findall(r"```yaml\n(.*?)```", (KUSTOMIZE / "README.md").read_text(), re.DOTALL)
    (content,) = manifests(fence)
    objects = overlaid(tmp_path, KUSTOMIZE / "overlays" / "kind" / "team", **content)
    narrowed = {"apiServer": {"cidrs": ["172.18.0.2/32"], "ports": [6443]}}
    assert_same(of_chart({"networkPolicies": narrowed}, "--set", "cluster.create=false"), list(objects.values()))


def test_a_priority_class_that_the_cluster_has_can_be_left_out(tmp_path: Path) -> None:
    patch = json.dumps({"$patch": "delete", "kind": "PriorityClass", "metadata": {"name": "high"}})
    target = {"kind": "PriorityClass", "name": "high"}
    left = overlaid(tmp_path, KUSTOMIZE / "overlays" / "kind", patches=[{"target": target, "patch": patch}])
    assert [name for name in left if name.startswith("PriorityClass")] == ["PriorityClass /low"]


def _placed(found: Manifest) -> Manifest:
    """What ``kubectl apply -n`` does."""
    if found["kind"] in CLUSTER_WIDE:
        return found
    return {**found, "metadata": {**found["metadata"], "namespace": TEAM}}
