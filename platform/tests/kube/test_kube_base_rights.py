"""kustomize/base: who may do what, against a table; least rights stay least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from edl.kube import names
from edl.kube.copying.copying import ROLE as COPY_ROLE
from edl.kube.doctor.rights import MASTERS, NEEDED

BASE = Path(__file__).parents[3] / "kustomize" / "base"

RIGHTS = {
    "edl-job-master": {
        "pods": "create get list watch patch delete",
        "configmaps": "get watch patch",
        "services": "patch",
        "secrets": "patch",
        "jobs.batch": "get list watch patch",
        "leases.coordination.k8s.io": "create get update patch",
        "events": "create",
        "jobs.edl.dev": "coordinate",
    },
    "edl-data-scientist": {
        "jobs.batch": "create get list watch patch delete",
        "configmaps": "create get list watch patch delete",
        "services": "create get list watch patch delete",
        "secrets": "create delete",
        "pods": "create get list watch delete",
        "pods/log": "get",
        "events": "get list watch",
        "leases.coordination.k8s.io": "get list",
        "persistentvolumeclaims": "get list",
        "resourcequotas": "get list",
        "limitranges": "get list",
        "serviceaccounts": "get list",
        "pods.metrics.k8s.io": "get list",
        "jobs.edl.dev": "submit",
    },
    "edl-data-copy": {"pods/exec": "create get"},
    "edl-cluster-viewer": {
        "nodes": "get list",
        "pods": "get list",
        "namespaces": "get",
        "priorityclasses.scheduling.k8s.io": "get list",
    },
}


def objects() -> list[dict[str, Any]]:
    yaml = YAML(typ="safe")
    files = [path for path in sorted(BASE.glob("*/*.yaml")) if path.name != "kustomization.yaml"]
    return [found for path in files for found in yaml.load_all(path)]


def of(*kinds: str) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for found in objects() if found["kind"] in kinds}


def rights(role: dict[str, Any]) -> dict[str, str]:
    """Verbs by resource, as ``resource[/subresource][.group]``."""
    found: dict[str, str] = {}
    for rule in role["rules"]:
        assert rule.keys() == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                key = f"{resource}.{group}" if group else resource
                assert key not in found
                found[key] = " ".join(rule["verbs"])
    return found


def test_the_rights_are_those_of_the_table() -> None:
    assert {name: rights(role) for name, role in of("ClusterRole").items()} == RIGHTS


def test_nobody_gets_or_lists_secrets_and_nothing_is_a_wildcard() -> None:
    """Not that nobody sees one: a patch answers with the object, and a pod may mount it (kustomize/README.md)."""
    for granted in RIGHTS.values():
        assert not {"get", "list", "watch"} & set(granted.get("secrets", "").split())
        assert "*" not in " ".join((*granted, *granted.values()))


def test_what_the_commands_need_is_granted() -> None:
    granted = rights(of("ClusterRole")["edl-data-scientist"])
    missing = [
        str(right)
        for right in NEEDED
        if right.verb
        not in granted.get(f"{right.resource}.{right.group}" if right.group else right.resource, "").split()
    ]
    assert missing == []


def test_the_doctor_asks_for_all_rights_of_a_master() -> None:
    granted = rights(of("ClusterRole")[names.MASTER_ACCOUNT])
    asked = {(f"{right.resource}.{right.group}" if right.group else right.resource, right.verb) for right in MASTERS}
    of_policies = {("jobs.edl.dev", "coordinate")}  # by which admission policies know masters; nothing needs it
    assert asked == {(resource, verb) for resource, verbs in granted.items() for verb in verbs.split()} - of_policies


def test_the_accounts_are_those_that_manifests_name() -> None:
    accounts = of("ServiceAccount")
    assert set(accounts) == {names.MASTER_ACCOUNT, names.POD_ACCOUNT, "edl-data-scientist"}
    assert accounts[names.POD_ACCOUNT]["automountServiceAccountToken"] is False


def test_only_the_master_and_the_data_scientist_are_bound() -> None:
    bound = {
        name: (found["roleRef"]["name"], [(each["kind"], each["name"]) for each in found["subjects"]])
        for name, found in of("RoleBinding", "ClusterRoleBinding").items()
    }
    assert bound == {name: (name, [("ServiceAccount", name)]) for name in (names.MASTER_ACCOUNT, "edl-data-scientist")}
    assert COPY_ROLE in of("ClusterRole")


@pytest.mark.parametrize(("name", "value", "preempts"), [("high", 1_000_000, None), ("low", 1000, "Never")])
def test_priorities(name: str, value: int, preempts: str | None) -> None:
    found = of("PriorityClass")[name]
    assert (found["value"], found.get("preemptionPolicy")) == (value, preempts)


def test_no_object_has_a_namespace_of_its_own() -> None:
    assert [found["metadata"]["name"] for found in objects() if "namespace" in found["metadata"]] == []
    assert "namespace" not in str([found.get("subjects") for found in objects()])
