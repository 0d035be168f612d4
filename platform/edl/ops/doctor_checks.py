"""The checks of ``edl doctor``: what a cluster lacks for EDL, and who can fix it.

A ``check_`` function asks the API server and passes the answers to a ``judge_`` function, which
makes no requests. A check that lacks the right to ask reports that as a finding instead of failing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from edl.api.errors import EdlError, RetryableError
from edl.api.pod_spec import RunAsSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import ALL_NAMESPACES, KubeClient
from edl.cluster.kubernetes.api_errors import (
    AdmissionPolicyError,
    ApiError,
    ForbiddenError,
    NotFoundError,
    PodSecurityError,
    QuotaExceededError,
    RbacDeniedError,
    install_hint,
)
from edl.cluster.kubernetes.resource_kinds import (
    NAMESPACES,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    VOLUME_CLAIMS,
    Manifest,
)
from edl.core.short_list import format_short_list
from edl.ops.access_reviews import (
    MASTER_RIGHTS,
    OPTIONAL_RIGHTS,
    READ_SECRETS_RIGHT,
    REQUIRED_RIGHTS,
    AccessRight,
    has_right,
    master_has_right,
)
from edl.ops.helper_pod import HelperPodSpec, new_pod_name, render_helper_pod, run_helper_pod

# --------------------------------------------------------------------------------------------------
# The judge functions: one finding for each property that was checked. They make no requests.


MIN_KUBERNETES_VERSION = (1, 30)
"""The first Kubernetes with ValidatingAdmissionPolicy v1, the newest API that EDL uses."""
_ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
_MASTER_ACCOUNT_TEXT = f"the masters' ServiceAccount {names.MASTER_ACCOUNT}"


class FindingLevel(StrEnum):
    """The severity of a finding."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check.

    Attributes:
        level: the severity.
        subject: the property that was checked.
        text: the result.
        remedy: what to do, and who can do it; empty if there is nothing to do.
    """

    level: FindingLevel
    subject: str
    text: str
    remedy: str = ""


def judge_version(version: dict[str, Any]) -> DoctorFinding:
    """Whether the server is new enough."""
    text = str(version.get("gitVersion", "of an unknown version"))
    digits = [int(number) for number in re.findall(r"\d+", f"{version.get('major', '')}.{version.get('minor', '')}")]
    if len(digits) < 2:
        return DoctorFinding(
            FindingLevel.WARN, "server", f"Kubernetes {text}: EDL cannot tell whether it is new enough"
        )
    if tuple(digits[:2]) < MIN_KUBERNETES_VERSION:
        return DoctorFinding(
            FindingLevel.FAIL,
            "server",
            f"Kubernetes {text} is too old",
            f"EDL needs {MIN_KUBERNETES_VERSION[0]}.{MIN_KUBERNETES_VERSION[1]} or newer.",
        )
    return DoctorFinding(FindingLevel.OK, "server", f"Kubernetes {text}")


def judge_pod_security(namespace: Manifest) -> DoctorFinding:
    """Which pods the namespace admits."""
    name, labels = namespace["metadata"]["name"], namespace["metadata"].get("labels") or {}
    level = labels.get(_ENFORCE_LABEL)
    if namespace.get("status", {}).get("phase") == "Terminating":
        return DoctorFinding(
            FindingLevel.FAIL, "namespace", f"namespace {name} is being deleted", "Choose another one with -n."
        )
    if level == "restricted":
        return DoctorFinding(
            FindingLevel.OK,
            "namespace",
            f"namespace {name} enforces the Pod Security level restricted, and EDL's pods comply",
        )
    return DoctorFinding(
        FindingLevel.WARN,
        "namespace",
        f"namespace {name} enforces {f'the Pod Security level {level}' if level else 'no Pod Security level'}",
        f"EDL's pods comply with restricted; an admin can enforce it: kubectl label ns {name}"
        f" {_ENFORCE_LABEL}=restricted",
    )


def judge_pod_security_dry_run(namespace: str, refusal: ForbiddenError | None) -> DoctorFinding:
    """The enforced Pod Security level, by the dry run of a pod that only ``restricted`` refuses.

    For users who may not read namespaces.

    Args:
        namespace: of the pod.
        refusal: the server's error; None if it would admit the pod.
    """
    if isinstance(refusal, PodSecurityError):
        return DoctorFinding(
            FindingLevel.OK,
            "namespace",
            f"namespace {namespace} enforces the Pod Security level restricted, and EDL's pods comply",
        )
    if refusal is None:
        text = f"namespace {namespace} enforces no Pod Security level, or one below restricted"
        remedy = (
            f"EDL's pods comply with restricted; an admin can enforce it: kubectl label ns {namespace}"
            f" {_ENFORCE_LABEL}=restricted"
        )
        return DoctorFinding(FindingLevel.WARN, "namespace", text, remedy)
    text = f"it is unknown whether namespace {namespace} enforces a Pod Security level: {refusal.message}"
    return DoctorFinding(FindingLevel.WARN, "namespace", text)


def judge_user_rights(
    namespace: str, missing: Sequence[AccessRight], missing_optional: Sequence[AccessRight]
) -> Iterator[DoctorFinding]:
    """The rights that the user lacks, grouped by what they are needed for."""
    for needed_for, role, verbs in _group_rights(missing):
        yield DoctorFinding(
            FindingLevel.FAIL,
            "rights",
            f"you may not {verbs} in namespace {namespace}, needed for {needed_for}",
            f"An admin can bind the ClusterRole {role} to you in that namespace.",
        )
    if not missing:
        yield DoctorFinding(
            FindingLevel.OK, "rights", f"you may submit, watch and delete jobs in namespace {namespace}"
        )
    for needed_for, role, verbs in _group_rights(missing_optional):
        text = f"you may not {verbs}; unavailable without this right: {needed_for}"
        yield DoctorFinding(FindingLevel.WARN, "rights", text, f"An admin can bind the ClusterRole {role} to you.")


def judge_master_rights(namespace: str, missing: Sequence[AccessRight]) -> DoctorFinding:
    """The rights that the service account of masters lacks."""
    if not missing:
        return DoctorFinding(
            FindingLevel.OK, "rights", f"{_MASTER_ACCOUNT_TEXT} has all its rights in namespace {namespace}"
        )
    text = f"{_MASTER_ACCOUNT_TEXT} may not {format_short_list(missing)} in namespace {namespace}: no job can run"
    remedy = f"The ClusterRole {names.MASTER_ACCOUNT} or its RoleBinding is missing. {install_hint(namespace)}"
    return DoctorFinding(FindingLevel.FAIL, "rights", text, remedy)


def judge_master_bindings(namespace: str, bindings: Iterable[Manifest]) -> DoctorFinding:
    """Whether any Role is bound to the service account of masters; its rules are not checked."""
    roles = [each["roleRef"]["name"] for each in bindings if _binds_master_account(each, namespace)]
    if roles:
        return DoctorFinding(FindingLevel.OK, "rights", f"{_MASTER_ACCOUNT_TEXT} is bound to {', '.join(roles)}")
    text = f"no RoleBinding of namespace {namespace} binds {_MASTER_ACCOUNT_TEXT}: no job can run"
    return DoctorFinding(FindingLevel.FAIL, "rights", text, install_hint(namespace))


def _binds_master_account(binding: Manifest, namespace: str) -> bool:
    subjects = binding.get("subjects") or ()
    return any(
        (each["kind"], each["name"], each.get("namespace", namespace))
        == ("ServiceAccount", names.MASTER_ACCOUNT, namespace)
        for each in subjects
    )


def judge_uninstall(release: str, namespace: str, bindings: Iterable[Manifest]) -> Iterator[DoctorFinding]:
    """The teams that would lose their ClusterRoles and PriorityClasses if a release were
    uninstalled.

    A release that installs the cluster-wide part also serves the teams of other releases.

    Args:
        release: name of the Helm release.
        namespace: where it is installed.
        bindings: RoleBindings of all namespaces.
    """
    teams: dict[str, str] = {}
    for each in bindings:
        meta, role = each["metadata"], each["roleRef"]
        if (role["kind"], role["name"]) != ("ClusterRole", names.MASTER_ACCOUNT):
            continue
        annotations = meta.get("annotations") or {}
        owner = (annotations.get("meta.helm.sh/release-name"), annotations.get("meta.helm.sh/release-namespace"))
        if owner != (release, namespace):
            teams[meta["namespace"]] = f"release {owner[0]}" if owner[0] else "no release"
    for team, maker in sorted(teams.items()):
        text = f"namespace {team}, a team of {maker}, needs the ClusterRoles and PriorityClasses of {release}"
        remedy = (
            "Remove that team first, or hand the cluster's part to another release (docs/operations.md). "
            f"`helm uninstall {release} -n {namespace} --no-hooks` skips this check."
        )
        yield DoctorFinding(FindingLevel.FAIL, "uninstall", text, remedy)
    if not teams:
        yield DoctorFinding(
            FindingLevel.OK, "uninstall", f"no other team needs the cluster-wide objects of release {release}"
        )


def unknown_master_rights() -> DoctorFinding:
    """The finding for a user who may check neither the rights nor the bindings."""
    remedy = f"An admin can check: kubectl describe rolebinding {names.MASTER_ACCOUNT}"
    return DoctorFinding(
        FindingLevel.WARN,
        "rights",
        f"it is unknown whether {_MASTER_ACCOUNT_TEXT} has its rights: you may not check them",
        remedy,
    )


def judge_secret_admission(namespace: str, refusal: ForbiddenError | None) -> DoctorFinding:
    """Whether the server refuses a pod that mounts another job's Secret.

    Args:
        namespace: of the pod.
        refusal: the server's error; None if it would admit the pod.
    """
    if refusal is None:
        text = f"your pods may use every Secret of namespace {namespace}: no admission policy refuses them"
        return DoctorFinding(
            FindingLevel.WARN, "admission", text, f"Admission policies refuse them. {install_hint(namespace)}"
        )
    if isinstance(refusal, AdmissionPolicyError):
        return DoctorFinding(
            FindingLevel.OK,
            "admission",
            f"your pods may use only the Secrets of their own job in namespace {namespace}",
        )
    text = f"it is unknown whether your pods may use every Secret of namespace {namespace}: {refusal.message}"
    return DoctorFinding(FindingLevel.WARN, "admission", text)


def judge_priority_admission(namespace: str, refusal: ForbiddenError | None) -> DoctorFinding:
    """Whether the server refuses a pod without a PriorityClass.

    Quotas of PriorityClasses would not count such a pod.

    Args:
        namespace: of the pod.
        refusal: the server's error; None if it would admit the pod.
    """
    if refusal is None:
        text = (
            f"pods of namespace {namespace} may omit a PriorityClass: quotas of PriorityClasses do not count such pods"
        )
        return DoctorFinding(
            FindingLevel.WARN, "admission", text, f"Admission policies refuse them. {install_hint(namespace)}"
        )
    if isinstance(refusal, AdmissionPolicyError | QuotaExceededError):
        return DoctorFinding(FindingLevel.OK, "admission", f"pods of namespace {namespace} must name a PriorityClass")
    text = f"it is unknown whether pods of namespace {namespace} must name a PriorityClass: {refusal.message}"
    return DoctorFinding(FindingLevel.WARN, "admission", text)


def _group_rights(lacking: Iterable[AccessRight]) -> list[tuple[str, str, str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for right in lacking:
        where = "" if right.namespaced else " in all namespaces"
        groups.setdefault((right.needed_for, right.cluster_role), []).append(f"{right}{where}")
    return [(needed_for, role, ", ".join(said)) for (needed_for, role), said in groups.items()]


@dataclass(frozen=True, slots=True)
class PriorityClassNames:
    """The PriorityClasses of masters and parameter servers (high) and of workers (low)."""

    high: str = "high"
    low: str = "low"


def judge_priorities(classes: PriorityClassNames, high: int, low: int) -> DoctorFinding:
    """Whether masters and parameter servers can preempt workers, by the values of their
    PriorityClasses.
    """
    if high > low:
        text = f"PriorityClasses {classes.high} ({high:,}) and {classes.low} ({low:,})"
        return DoctorFinding(FindingLevel.OK, "priorities", text)
    return DoctorFinding(
        FindingLevel.FAIL,
        "priorities",
        f"PriorityClass {classes.high} ({high:,}) is not above {classes.low} ({low:,}): workers would not be preempted",
        "An admin must delete one and create it again: the value of a PriorityClass is immutable.",
    )


def judge_claims(claims: Iterable[Manifest], namespace: str) -> Iterator[DoctorFinding]:
    """The PersistentVolumeClaims that jobs can use."""
    existing = list(claims)
    if not existing:
        yield DoctorFinding(
            FindingLevel.WARN,
            "claims",
            f"there is no PersistentVolumeClaim in namespace {namespace}: jobs keep no checkpoints, logs or models",
            "Create one with accessModes ReadWriteMany.",
        )
    for claim in existing:
        yield _judge_claim(claim)


def _judge_claim(claim: Manifest) -> DoctorFinding:
    name, phase = claim["metadata"]["name"], claim.get("status", {}).get("phase", "Pending")
    modes = claim.get("spec", {}).get("accessModes") or []
    if phase == "Lost":
        return DoctorFinding(
            FindingLevel.FAIL, "claims", f"{name} has lost its volume", "Its data is lost; create the claim again."
        )
    if phase != "Bound":
        return DoctorFinding(
            FindingLevel.WARN,
            "claims",
            f"{name} has no volume yet ({phase})",
            f"Some StorageClasses create it with the first pod; `kubectl describe pvc {name}` shows the reason.",
        )
    if "ReadWriteMany" not in modes:
        return DoctorFinding(
            FindingLevel.WARN,
            "claims",
            f"{name} is {' and '.join(modes)}: pods on other nodes than the first cannot use it",
            "Jobs on more than one node need ReadWriteMany.",
        )
    return DoctorFinding(FindingLevel.OK, "claims", f"{name} is bound, ReadWriteMany")


UNPULLABLE_IMAGE = "registry.invalid/none"
"""Image of a pod for dry runs.

``.invalid`` never resolves, so nothing runs even if the pod were created.
"""

DoctorCheck = Callable[[KubeClient], Iterable[DoctorFinding]]


def examine_cluster(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
    """Check a cluster and one of its namespaces; yields each finding as soon as it is known.

    Args:
        api: the cluster and namespace.
        classes: the PriorityClasses that jobs use.

    Raises:
        ApiError: the API server cannot be reached at all.
    """
    yield judge_version(api.request("GET", "/version").body)
    checks: tuple[tuple[str, DoctorCheck], ...] = (
        ("namespace", partial(_check_namespace, classes=classes)),
        ("rights", _check_user_rights),
        ("accounts", _check_accounts),
        ("rights", _check_master_rights),
        ("admission", partial(_check_admission, classes=classes)),
        ("priorities", partial(_check_priorities, classes=classes)),
        ("claims", _check_claims),
    )
    for about, check in checks:
        try:
            yield from check(api)
        except ForbiddenError as error:
            yield DoctorFinding(FindingLevel.WARN, about, f"cannot be checked: {error.message}", error.hint or "")
        except ApiError as error:
            yield DoctorFinding(FindingLevel.FAIL, about, error.message, error.hint or "")


def check_uninstall(api: KubeClient, release: str) -> Iterator[DoctorFinding]:
    """Whether uninstalling a Helm release would remove the cluster-wide part that other teams use.

    Args:
        api: the cluster, and the release's namespace.
        release: the release's name.

    Raises:
        ApiError: RoleBindings of all namespaces cannot be listed.
    """
    yield from judge_uninstall(release, api.namespace, api.list(ROLE_BINDINGS, namespace=ALL_NAMESPACES).items)


def _check_namespace(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
    try:
        yield judge_pod_security(api.get(NAMESPACES, api.namespace))
    except RbacDeniedError:  # most users may not read namespaces; a dry run shows the same
        probe_pod = _render_probe_pod(classes)
        del probe_pod["spec"]["securityContext"], probe_pod["spec"]["containers"][0]["securityContext"]
        yield judge_pod_security_dry_run(api.namespace, _dry_run_refusal(api, probe_pod))
    except NotFoundError:
        yield DoctorFinding(
            FindingLevel.FAIL,
            "namespace",
            f"there is no namespace {api.namespace}",
            "Choose one with -n, or have an admin create it.",
        )


def _check_user_rights(api: KubeClient) -> Iterator[DoctorFinding]:
    missing = [right for right in REQUIRED_RIGHTS if not has_right(api, right)]
    missing_optional = [right for right in OPTIONAL_RIGHTS if not has_right(api, right)]
    yield from judge_user_rights(api.namespace, missing, missing_optional)


def _check_accounts(api: KubeClient) -> Iterator[DoctorFinding]:
    for name in (names.MASTER_ACCOUNT, names.POD_ACCOUNT):
        try:
            api.get(SERVICE_ACCOUNTS, name)
            yield DoctorFinding(FindingLevel.OK, "accounts", f"ServiceAccount {name} exists")
        except NotFoundError:
            text = f"there is no ServiceAccount {name} in namespace {api.namespace}"
            yield DoctorFinding(FindingLevel.FAIL, "accounts", text, install_hint(api.namespace))


def _check_master_rights(api: KubeClient) -> Iterator[DoctorFinding]:
    """Whether masters have their rights: checked one by one, or derived from the bindings, or
    unknown.
    """
    try:
        yield judge_master_rights(api.namespace, [right for right in MASTER_RIGHTS if not master_has_right(api, right)])
    except ForbiddenError:
        try:
            yield judge_master_bindings(api.namespace, api.list(ROLE_BINDINGS).items)
        except ForbiddenError:
            yield unknown_master_rights()


def _render_probe_pod(classes: PriorityClassNames) -> Manifest:
    """A pod for dry runs."""
    return render_helper_pod(
        HelperPodSpec(None, UNPULLABLE_IMAGE, RunAsSpec(), priority_class=classes.low), new_pod_name()
    )


def _dry_run_refusal(api: KubeClient, pod: Manifest) -> ForbiddenError | None:
    """Why the server would refuse a pod; None if it would admit it. The pod is not created."""
    try:
        api.create(pod, dry_run=True)
    except ForbiddenError as error:
        return error
    return None


def _check_admission(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
    """Check the admission policies by a dry run: listing policies needs rights in the whole
    cluster.
    """
    if has_right(api, READ_SECRETS_RIGHT):
        yield DoctorFinding(
            FindingLevel.OK, "admission", f"you may read the Secrets of namespace {api.namespace} anyway"
        )
        return
    probe_pod = _render_probe_pod(classes)
    probe_pod["spec"]["volumes"] = [{"name": "foreign", "secret": {"secretName": "foreign"}}]
    yield judge_secret_admission(api.namespace, _dry_run_refusal(api, probe_pod))
    probe_pod = _render_probe_pod(classes)
    del probe_pod["spec"]["priorityClassName"]
    yield judge_priority_admission(api.namespace, _dry_run_refusal(api, probe_pod))


def _check_priorities(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
    classes_found = {}
    for name in (classes.high, classes.low):
        try:
            classes_found[name] = int(api.get(PRIORITY_CLASSES, name).get("value", 0))
        except NotFoundError:
            yield DoctorFinding(
                FindingLevel.FAIL, "priorities", f"there is no PriorityClass {name}", install_hint(api.namespace)
            )
    if len(classes_found) == 2:
        yield judge_priorities(classes, classes_found[classes.high], classes_found[classes.low])


def _check_claims(api: KubeClient) -> Iterator[DoctorFinding]:
    yield from judge_claims(api.list(VOLUME_CLAIMS).items, api.namespace)


def check_image_pull(
    api: KubeClient, image: str, classes: PriorityClassNames, on_wait: Callable[[str], None]
) -> DoctorFinding:
    """Whether nodes can pull an image: starts a pod with it, at a worker's priority, and deletes
    the pod.
    """
    helper_spec = HelperPodSpec(
        None, image, RunAsSpec(), lifetime_seconds=600, purpose="tries the image", priority_class=classes.low
    )
    try:
        with run_helper_pod(api, helper_spec, on_wait):
            return DoctorFinding(FindingLevel.OK, "images", f"{image} was pulled, and its container started")
    except RetryableError as error:
        return DoctorFinding(FindingLevel.WARN, "images", f"{image}: {error.message}", error.hint or "")
    except EdlError as error:
        return DoctorFinding(FindingLevel.FAIL, "images", f"{image}: {error.message}", error.hint or "")
