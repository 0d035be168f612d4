"""kustomize/base: who may do what, against the table of the docs; least rights stay least."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support import rights_page

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import AdmissionPolicyError, error_from_response
from edl.ops.access_reviews import MASTER_RIGHTS, REQUIRED_RIGHTS
from edl.ops.helper_pod import DATA_COPY_ROLE as COPY_ROLE

BASE = Path(__file__).parents[3] / "kustomize" / "base"


def objects() -> list[dict[str, Any]]:
    yaml = YAML(typ="safe")
    files = [path for path in sorted(BASE.glob("*/*.yaml")) if path.name != "kustomization.yaml"]
    return [manifest for path in files for manifest in yaml.load_all(path)]


def objects_of_kinds(*kinds: str) -> dict[str, dict[str, Any]]:
    return {manifest["metadata"]["name"]: manifest for manifest in objects() if manifest["kind"] in kinds}


def rights(role: dict[str, Any]) -> dict[str, str]:
    """Verbs by resource, as ``resource[/subresource][.group]``."""
    verbs_by_resource: dict[str, str] = {}
    for rule in role["rules"]:
        assert rule.keys() == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                key = f"{resource}.{group}" if group else resource
                assert key not in verbs_by_resource
                verbs_by_resource[key] = " ".join(rule["verbs"])
    return verbs_by_resource


def test_the_rights_are_those_of_the_table() -> None:
    page = rights_page.rights()
    page.pop(rights_page.EVERYBODY)
    granted = {name: rights(role) for name, role in objects_of_kinds("ClusterRole").items()}
    assert {
        name: {resource: set(verbs.split()) for resource, verbs in resources.items()}
        for name, resources in granted.items()
    } == page


def test_nobody_gets_or_lists_secrets_and_nothing_is_a_wildcard() -> None:
    """Not that nobody sees one: who may patch a Secret can read it (docs/reference/rights.md)."""
    for resources in rights_page.rights().values():
        assert not {"get", "list", "watch", "update"} & resources.get("secrets", set())
        assert "*" not in {*resources, *(verb for verbs in resources.values() for verb in verbs)}


def test_every_policy_of_the_page_is_there_and_in_force() -> None:
    policies = objects_of_kinds("ValidatingAdmissionPolicy")
    assert set(policies) == rights_page.policies()
    assert all(policy["spec"]["failurePolicy"] == "Fail" for policy in policies.values())
    bindings = objects_of_kinds("ValidatingAdmissionPolicyBinding")
    assert {name: binding["spec"] for name, binding in bindings.items()} == {
        name: {"policyName": name, "validationActions": ["Deny"]} for name in policies
    }


def test_every_refusal_is_one_sentence_that_the_errors_take_for_what_it_is() -> None:
    """403, and not in the words of RBAC or of quotas (``edl.cluster.kubernetes.api_errors``)."""
    for name, policy in objects_of_kinds("ValidatingAdmissionPolicy").items():
        for validation in policy["spec"]["validations"]:
            message = validation["message"]
            assert validation["reason"] == "Forbidden"
            assert re.fullmatch(r"[A-Z][^\n]*[^.]\.", message), message
            assert not re.search(r"\. [A-Z]", message), message
            response = {
                "message": f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {message}"
            }
            assert type(error_from_response(403, json.dumps(response).encode(), where="pods")) is AdmissionPolicyError


def test_what_the_commands_need_is_granted() -> None:
    granted = rights(objects_of_kinds("ClusterRole")["edl-data-scientist"])
    missing = [
        str(right)
        for right in REQUIRED_RIGHTS
        if right.verb
        not in granted.get(f"{right.resource}.{right.group}" if right.group else right.resource, "").split()
    ]
    assert missing == []


def test_the_doctor_asks_for_all_rights_that_a_job_needs() -> None:
    granted = rights(objects_of_kinds("ClusterRole")[names.MASTER_ACCOUNT])
    doctor_rights = {
        (f"{right.resource}.{right.group}" if right.group else right.resource, right.verb) for right in MASTER_RIGHTS
    }
    of_policies = {("jobs.edl.dev", "coordinate")}  # by which admission policies know masters; nothing needs it
    tidying = {("secrets", "delete")}  # not granted where no policy keeps masters to their token
    all_of_them = {(resource, verb) for resource, verbs in granted.items() for verb in verbs.split()}
    assert doctor_rights == all_of_them - of_policies - tidying


def test_the_accounts_are_those_that_manifests_name() -> None:
    accounts = objects_of_kinds("ServiceAccount")
    assert set(accounts) == {names.MASTER_ACCOUNT, names.POD_ACCOUNT, "edl-data-scientist"}
    assert accounts[names.POD_ACCOUNT]["automountServiceAccountToken"] is False


def test_only_the_master_and_the_data_scientist_are_bound() -> None:
    bound = {
        name: (binding["roleRef"]["name"], [(each["kind"], each["name"]) for each in binding["subjects"]])
        for name, binding in objects_of_kinds("RoleBinding", "ClusterRoleBinding").items()
    }
    assert bound == {name: (name, [("ServiceAccount", name)]) for name in (names.MASTER_ACCOUNT, "edl-data-scientist")}
    assert COPY_ROLE in objects_of_kinds("ClusterRole")


@pytest.mark.parametrize(("name", "value", "preempts"), [("high", 1_000_000, None), ("low", 1000, "Never")])
def test_priorities(name: str, value: int, preempts: str | None) -> None:
    priority_class = objects_of_kinds("PriorityClass")[name]
    assert (priority_class["value"], priority_class.get("preemptionPolicy")) == (value, preempts)


def test_no_object_has_a_namespace_of_its_own() -> None:
    assert [manifest["metadata"]["name"] for manifest in objects() if "namespace" in manifest["metadata"]] == []
    assert "namespace" not in str([manifest.get("subjects") for manifest in objects()])
