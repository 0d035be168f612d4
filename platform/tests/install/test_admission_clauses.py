"""Every clause of the admission policies is there: what a clause refuses is tried on a cluster only, by e2e."""

from __future__ import annotations

from typing import Any

import pytest
from install.chart_tools import CHART, Manifest, rendered

pytestmark = pytest.mark.install

Rule = tuple[str, tuple[str, ...], tuple[str, ...]]

RULES: dict[str, list[Rule]] = {
    "edl-data-scientist-pods": [("", ("pods",), ("CREATE",))],
    "edl-data-scientist-jobs": [("batch", ("jobs",), ("CREATE", "UPDATE"))],
    "edl-data-scientist-services": [("", ("services",), ("CREATE", "UPDATE"))],
    "edl-data-scientist-secrets": [("", ("secrets",), ("CREATE", "DELETE"))],
    "edl-data-scientist-exec": [("", ("pods/exec", "pods/attach", "pods/portforward"), ("CONNECT",))],
    "edl-job-master-pods": [("", ("pods",), ("CREATE",))],
    "edl-job-master-objects": [
        ("", ("pods",), ("UPDATE", "DELETE")),
        ("", ("configmaps", "services"), ("UPDATE",)),
        ("", ("secrets",), ("UPDATE", "DELETE")),
        ("batch", ("jobs",), ("UPDATE",)),
        ("coordination.k8s.io", ("leases",), ("CREATE", "UPDATE")),
    ],
}
"""Which requests each policy is asked about: API group, resources, operations."""

MAKE_PODS = ("edl-data-scientist-pods", "edl-data-scientist-jobs", "edl-job-master-pods")
OF_EVERY_POD = [
    "variables.pod.containers + variables.pod.?initContainers.orValue([])",
    "variables.pod.?priorityClassName.orValue('') in",
    "has(v.secret) ? v.secret.?secretName.orValue('') in variables.secrets :",
    "!has(s.secret) || s.secret.?name.orValue('') in variables.secrets",
    "!has(v.csi) || !has(v.csi.nodePublishSecretRef)",
    "!variables.pod.?hostNetwork.orValue(false) && !variables.pod.?hostPID.orValue(false) &&",
    "!variables.pod.?hostIPC.orValue(false) &&",
    "variables.containers.all(c, !c.?securityContext.?privileged.orValue(false))",
    "!has(v.hostPath) || [].exists(p,",
    "e.?valueFrom.?secretKeyRef.?name.orValue('') in [''] + variables.secrets",
    "f.?secretRef.?name.orValue('') in [''] + variables.secrets",
    "(variables.job == '' ? [] : ['edl-' + variables.job + '-token'])",
]
CLAUSES = [
    *((policy, clause) for policy in MAKE_PODS for clause in OF_EVERY_POD),
    ("edl-data-scientist-pods", "request.?dryRun.orValue(false) && variables.account in [\"edl-job-master\"]"),
    ("edl-data-scientist-pods", "exists(o, o.kind == 'Job' && o.apiVersion == 'batch/v1')"),
    ("edl-data-scientist-pods", "object.metadata.name.matches('^edl-data-[0-9a-f]{8}$')"),
    ("edl-data-scientist-jobs", "variables.job != '' && variables.job == variables.ownJob"),
    ("edl-data-scientist-jobs", "object.metadata.name == 'edl-' + variables.job + '-master'"),
    ("edl-data-scientist-jobs", "object.metadata.?labels[?'edl.dev/role'].orValue('') == 'master'"),
    ("edl-data-scientist-jobs", "object.spec.template.?metadata.?labels[?'edl.dev/role'].orValue('') == 'master'"),
    ("edl-data-scientist-jobs", "(variables.master && variables.account in [\"edl-job-master\"])"),
    (
        "edl-data-scientist-jobs",
        "!(variables.account in [\"edl-job-master\"]) || object.spec.?parallelism.orValue(1) == 1",
    ),
    ("edl-data-scientist-services", "object.spec.?type.orValue('ClusterIP') == 'ClusterIP'"),
    ("edl-data-scientist-services", "object.spec.?externalIPs.orValue([]).size() == 0"),
    (
        "edl-job-master-objects",
        "request.resource.resource != 'jobs' || dyn(object).?spec.?parallelism.orValue(1) == 1",
    ),
    ("edl-data-scientist-secrets", "variables.secret.?type.orValue('Opaque') == 'Opaque'"),
    (
        "edl-data-scientist-secrets",
        "variables.secret.metadata.name =="
        " 'edl-' + variables.secret.metadata.?labels[?'edl.dev/job'].orValue('') + '-token'",
    ),
    ("edl-data-scientist-exec", "request.name.matches('^edl-data-[0-9a-f]{8}$')"),
    ("edl-job-master-pods", "object.metadata.?labels[?'edl.dev/job'].orValue('') == variables.job"),
    ("edl-job-master-pods", "o.name == 'edl-' + variables.job + '-master'"),
    (
        "edl-job-master-pods",
        "o.kind == 'ConfigMap' && o.apiVersion == 'v1' && o.name == 'edl-' + variables.job + '-spec'",
    ),
    ("edl-job-master-pods", "variables.account in [\"edl-none\"]"),
    *(
        (policy, clause)
        for policy in ("edl-job-master-pods", "edl-job-master-objects")
        for clause in (
            "request.userInfo.?extra[?'authentication.kubernetes.io/pod-name'].orValue([''])[0]",
            "variables.asker.matches('^edl-[a-z0-9-]+-master-[a-z0-9]{5}$')",
            "variables.job != ''",
        )
    ),
    ("edl-job-master-objects", "variables.after.metadata.name == 'edl-' + variables.job + '-master'"),
    ("edl-job-master-objects", "variables.before.metadata.?labels[?'edl.dev/job'].orValue('') == variables.job"),
    ("edl-job-master-objects", "variables.after.metadata.?labels[?'edl.dev/job'].orValue('') == variables.job"),
    (
        "edl-job-master-objects",
        "request.resource.resource != 'secrets' ||"
        " (request.operation == 'DELETE' && oldObject.metadata.name == 'edl-' + variables.job + '-token')",
    ),
    ("edl-job-master-objects", "request.resource.resource != 'services' || (dyn(object).?spec == dyn(oldObject).?spec"),
    *(("edl-job-master-objects", f"object.metadata.?{field} == oldObject.metadata.?{field}") for field in
      ("labels", "annotations", "finalizers")),
]  # fmt: skip
VOLUMES = ["configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"]
"""Kinds of volumes that are allowed; clauses of their own look at hostPath, and at what uses a Secret."""


@pytest.fixture(scope="module")
def policies() -> dict[str, Manifest]:
    """The specs of the policies, by name."""
    objects = rendered(CHART)
    return {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "ValidatingAdmissionPolicy"}


def expressions(policy: Manifest) -> list[str]:
    """All CEL of a policy but its match conditions, each in one line."""
    parts: list[dict[str, Any]] = [*policy.get("variables", []), *policy["validations"]]
    return [" ".join(part["expression"].split()) for part in parts]


def test_each_policy_is_asked_about_these_requests(policies: dict[str, Manifest]) -> None:
    def told(rule: Manifest) -> Rule:
        (group,) = rule["apiGroups"]
        return group, tuple(rule["resources"]), tuple(rule["operations"])

    assert {
        name: [told(rule) for rule in spec["matchConstraints"]["resourceRules"]] for name, spec in policies.items()
    } == RULES


@pytest.mark.parametrize(("policy", "clause"), CLAUSES)
def test_a_clause_is_there(policies: dict[str, Manifest], policy: str, clause: str) -> None:
    assert any(clause in expression for expression in expressions(policies[policy])), expressions(policies[policy])


@pytest.mark.parametrize("policy", MAKE_PODS)
def test_no_other_volumes_are_allowed(policies: dict[str, Manifest], policy: str) -> None:
    allowed = " || ".join(f"has(v.{kind})" for kind in ("hostPath", *VOLUMES))
    assert f"variables.volumes.all(v, {allowed})" in expressions(policies[policy])


@pytest.mark.parametrize("policy", MAKE_PODS)
def test_a_pod_without_a_priority_class_is_refused(policies: dict[str, Manifest], policy: str) -> None:
    """No quota of a class would count it."""
    wanted = 'variables.pod.?priorityClassName.orValue(\'\') in ["high","low"]'
    assert wanted in expressions(policies[policy])
