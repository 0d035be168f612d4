"""Asks the API server whether it would accept a job: all its objects, and a pod of each role.

Nothing is created. Pod Security, quotas, LimitRanges and priorities refuse pods, not Jobs: without
this check a job would be accepted and then never start. A few threads send all requests at once,
and one message reports all refusals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, RetryableError
from edl.cluster.kubernetes.api_client import ALL_NAMESPACES, KubeClient, ResourceList
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, NotFoundError, RbacDeniedError
from edl.cluster.kubernetes.resource_kinds import (
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    VOLUME_CLAIMS,
    Manifest,
    ResourceKind,
)
from edl.ops.job_deletion import JobObjects, format_object_list, list_job_objects
from edl.ops.job_forecast import GroupPlacement, NamespaceQuotas, PodGroup, QuotaRefusal
from edl.ops.job_view import JobView, find_existing_job, format_submit_time
from edl.ops.resource_quantities import format_amount
from edl.ops.submission_request import SubmissionRequest
from edl.reporting.unit_formats import join_words

# --------------------------------------------------------------------------------------------------
# Why a cluster would refuse a job, in terms of the job file: the problem, and who can fix it.


QUOTA_HINT = "Request less, wait until other jobs of the namespace have ended, or have its admin raise the quota."
_FORBIDDEN_PREFIX = re.compile(r'^\S+ "[^"]*" is forbidden: ')
_MISSING_CLASS = re.compile(r"no PriorityClass with name (\S+) was found")
_MISSING_ACCOUNT = re.compile(r'serviceaccount "([^"]+)" not found')
_MISSING_NAMESPACE = re.compile(r'namespaces "([^"]+)" not found')


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One reason why the cluster would refuse the job.

    Attributes:
        message: the problem.
        hint: what to do, and who can do it.
        affected_roles: roles of the affected pods; empty for the job.
    """

    message: str
    hint: str = ""
    affected_roles: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        pods_text = f"{join_words(self.affected_roles)} pods: " if self.affected_roles else ""
        return f"  {pods_text}{self.message}" + (f"\n    {self.hint}" if self.hint else "")


def merge_findings(findings: Iterable[PreflightFinding]) -> list[PreflightFinding]:
    """Merge equal reasons and their affected pods, in the order of first appearance."""
    merged: dict[tuple[str, str], PreflightFinding] = {}
    for finding in findings:
        key = (finding.message, finding.hint)
        known = merged.get(key, replace(finding, affected_roles=()))
        merged[key] = replace(
            known, affected_roles=tuple(dict.fromkeys([*known.affected_roles, *finding.affected_roles]))
        )
    return list(merged.values())


def check_job_name(
    job: str, old: JobView | None, job_objects: JobObjects, *, replaces_ended: bool
) -> list[PreflightFinding]:
    """A finding if the job's name is taken by another job, or by leftover objects of one."""
    if old is None:
        if not job_objects:
            return []
        message = f"an earlier job {job} has left objects behind: {format_object_list(job_objects.objects)}"
        return [PreflightFinding(message, f"Remove it first: edl delete {job}")]
    name_text = f"the name {job} is taken by a job of {format_submit_time(old)}"
    if old.phase == "Deleting":
        return [PreflightFinding(f"{name_text}, which is being deleted", f"Wait until it is deleted: edl delete {job}")]
    if not old.has_ended:
        hint = (
            f"See edl status {job}; end it with edl stop {job} --wait or remove it with edl delete {job}, "
            "or choose another name: --set name=…"
        )
        return [PreflightFinding(f"{name_text}, which is active ({old.phase})", hint)]
    if replaces_ended:
        return []
    hint = f"Remove its objects with edl delete {job} (files on volumes are kept), or continue it with --resume"
    return [PreflightFinding(f"{name_text}, which has ended ({old.phase})", hint)]


def check_quotas(placements: Sequence[GroupPlacement], quotas: NamespaceQuotas) -> list[PreflightFinding]:
    """Findings for quotas that do not admit the minimum pods of the job.

    A job needs its master, all parameter servers and one worker to make progress.

    Args:
        placements: placements of all pods of the job.
        quotas: the quotas with which the placements were computed.
    """
    works = any(placement.allowed_pods for placement in placements if placement.group.role is Role.WORKER)
    refused = [
        (placement.group, placement.quota_refusal)
        for placement in placements
        if not (works and placement.group.role is Role.WORKER)
    ]
    return [
        _quota_finding(refusal, _minimum_pods(placements, group), quotas)
        for group, refusal in refused
        if refusal is not None
    ]


def _quota_finding(
    refusal: QuotaRefusal, minimum_pods: Sequence[tuple[PodGroup, int]], quotas: NamespaceQuotas
) -> PreflightFinding:
    resource, pods = refusal.resource, [group.pod for group, count in minimum_pods for _ in range(count)]
    room = format_amount(resource, quotas.initial_room(refusal.quota, resource))
    need = format_amount(resource, quotas.requested_amount(refusal.quota, resource, pods))
    groups_text = ", ".join(
        group.role.value if group.role is Role.MASTER else f"{n} {group.role}" for group, n in minimum_pods
    )
    message = f"quota {refusal.quota} has {room} of {resource} left; the job needs at least {need} ({groups_text})"
    return PreflightFinding(message, QUOTA_HINT)


def _minimum_pods(placements: Iterable[GroupPlacement], refused: PodGroup) -> list[tuple[PodGroup, int]]:
    """The minimum pods of a working job: the number for each group.

    The one worker is of the refused group if that is a group of workers.
    """
    groups = [placement.group for placement in placements]
    workers = [group for group in (refused, *groups) if group.role is Role.WORKER][:1]
    others = [(group, group.count) for group in groups if group.role is not Role.WORKER]
    return [*others, *((group, 1) for group in workers)]


def missing_object_finding(kind: ResourceKind, name: str, namespace: str) -> PreflightFinding:
    """The finding for a missing object that the job names."""
    if kind is VOLUME_CLAIMS:
        return PreflightFinding(
            f"there is no PersistentVolumeClaim {name} in namespace {namespace}",
            "Create it, or change volumes or storage.claim in the job file; kubectl get pvc lists the claims.",
        )
    return PreflightFinding(
        f"there is no {kind.name} {name} in namespace {namespace}",
        "Create it, or change pod.image_pull_secrets in the job file.",
    )


def check_pod_references(
    group: PodGroup, classes: Sequence[str], service_accounts: Sequence[str] | None
) -> list[PreflightFinding]:
    """Findings for all missing objects that a pod names; admission would report only the first.

    Args:
        group: the pods as rendered.
        classes: the existing PriorityClasses; empty if they are not known.
        service_accounts: the namespace's ServiceAccounts; None if they are not known.
    """
    spec, about = group.pod["spec"], (group.role.value,)
    priority, account = spec.get("priorityClassName"), spec.get("serviceAccountName")
    findings = [_missing_class_finding(priority, classes, about)] if classes and priority not in classes else []
    return findings + (
        [_missing_account_finding(account, about)]
        if service_accounts is not None and account not in service_accounts
        else []
    )


def _missing_class_finding(name: str, classes: Sequence[str], about: tuple[str, ...]) -> PreflightFinding:
    own = [known for known in classes if not known.startswith("system-")]
    known = f"the cluster has {', '.join(own)}" if own else "kubectl get priorityclasses lists them"
    hint = f"Have an admin create it (kustomize/base has high and low), or change the job file's priorities: {known}."
    return PreflightFinding(f"there is no PriorityClass {name}", hint, about)


def _missing_account_finding(name: str, about: tuple[str, ...]) -> PreflightFinding:
    hint = "Have an admin create it (kustomize/base), or change security in the job file."
    return PreflightFinding(f"there is no ServiceAccount {name}", hint, about)


def refusal_finding(error: ApiError, group: PodGroup | None, classes: Sequence[str]) -> PreflightFinding:
    """The finding for the server's refusal of an object, or of a pod of ``group``.

    Args:
        classes: the existing PriorityClasses, as far as known.
    """
    about = () if group is None else (group.role.value,)
    message = _FORBIDDEN_PREFIX.sub("", error.message)
    if namespace := _MISSING_NAMESPACE.search(message):
        hint = "Choose another with -n, or have an admin create it."
        return PreflightFinding(f"there is no namespace {namespace[1]}", hint)
    if name := _MISSING_CLASS.search(message):
        return _missing_class_finding(name[1], classes, about)
    if account := _MISSING_ACCOUNT.search(message):
        return _missing_account_finding(account[1], about)
    if isinstance(error, ConflictError):
        hint = (
            "Choose another name, --set name=…; or remove the objects of an earlier job with this name: edl delete JOB"
        )
        return PreflightFinding(f"{message}, and does not belong to this job", hint)
    return PreflightFinding(message, error.hint or "", about)


PREFLIGHT_THREADS = 8
"""Equals the number of connections that the client keeps open."""
_LISTED_KINDS = (NODES, RESOURCE_QUOTAS, PRIORITY_CLASSES, SERVICE_ACCOUNTS)
_ALIVE_PODS_SELECTOR = "status.phase!=Succeeded,status.phase!=Failed"


class PreflightError(BadInputError):
    """The cluster would refuse the job; ``findings`` has every reason."""

    def __init__(self, job: str, namespace: str, findings: Sequence[PreflightFinding]) -> None:
        self.findings = tuple(findings)
        lines = [f"Job {job} cannot be submitted to namespace {namespace}; nothing was created.", *map(str, findings)]
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """The server's answers.

    Attributes:
        job_objects: existing objects of a job with this name; not empty only if it may be replaced.
        pod_groups: the pods as the server admits them, with priority, tolerations and LimitRange
            defaults.
        nodes: all nodes; None if the user may not list them.
        running_pods: the cluster's pods that have not ended; None if the user may not list them.
        quotas: quotas of the namespace; None if the user may not list them.
        remarks: what could not be checked, or has limitations; one sentence each.
    """

    job_objects: JobObjects
    pod_groups: tuple[PodGroup, ...]
    nodes: tuple[Manifest, ...] | None
    running_pods: tuple[Manifest, ...] | None
    quotas: tuple[Manifest, ...] | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _PreflightAnswers:
    """The answers to each request, in the order of the requests; None: the user lacks the right."""

    object_findings: Sequence[list[PreflightFinding]]
    admitted_groups: Sequence[PodGroup | ApiError]
    object_checks: Sequence[PreflightFinding | str | None]
    nodes: tuple[Manifest, ...] | None
    running_pods: tuple[Manifest, ...] | None
    quotas: tuple[Manifest, ...] | None
    priority_classes: tuple[Manifest, ...] | None
    service_accounts: tuple[Manifest, ...] | None


def run_preflight(api: KubeClient, request: SubmissionRequest) -> PreflightResult:
    """Check everything that a submission needs.

    Raises:
        PreflightError: the server would refuse the job.
        ApiError: the server cannot be reached.
    """
    # first and alone, so that an unreachable server gives one clear error
    job_objects = list_job_objects(api, request.job_name)
    answers = _ask_all(api, request, job_objects)
    if findings := merge_findings(_collect_findings(request, job_objects, answers)):
        raise PreflightError(request.job_name, api.namespace, findings)
    groups = tuple(group for group in answers.admitted_groups if isinstance(group, PodGroup))
    remarks = tuple(answer for answer in answers.object_checks if isinstance(answer, str))
    return PreflightResult(job_objects, groups, answers.nodes, answers.running_pods, answers.quotas, remarks)


def _ask_all(api: KubeClient, request: SubmissionRequest, job_objects: JobObjects) -> _PreflightAnswers:
    """Send all requests, PREFLIGHT_THREADS at a time."""
    with ThreadPoolExecutor(PREFLIGHT_THREADS) as pool:
        objects = [pool.submit(_dry_run_create, api, manifest, job_objects) for manifest in request.manifests]
        pods = [pool.submit(_admit_group, api, group) for group in request.pod_groups]
        checked = [pool.submit(_check_object, api, VOLUME_CLAIMS, name) for name in request.claims]
        checked += [pool.submit(_check_object, api, SECRETS, name) for name in request.pull_secrets]
        running_pods = pool.submit(
            _list_if_allowed, partial(api.list, PODS, namespace=ALL_NAMESPACES, fields=_ALIVE_PODS_SELECTOR)
        )
        lists = [pool.submit(_list_if_allowed, partial(api.list, kind)) for kind in _LISTED_KINDS]
        nodes, quotas, classes, service_accounts = (answer.result() for answer in lists)
        return _PreflightAnswers(
            [answer.result() for answer in objects],
            [answer.result() for answer in pods],
            [answer.result() for answer in checked],
            nodes,
            running_pods.result(),
            quotas,
            classes,
            service_accounts,
        )


def _collect_findings(
    request: SubmissionRequest, job_objects: JobObjects, answers: _PreflightAnswers
) -> Iterator[PreflightFinding]:
    """All findings, those about the whole job first; some occur several times."""
    classes, service_accounts = _object_names(answers.priority_classes) or (), _object_names(answers.service_accounts)
    yield from check_job_name(
        request.job_name, find_existing_job(job_objects), job_objects, replaces_ended=request.replaces_ended
    )
    for refused in answers.object_findings:
        yield from refused
    for group, admitted in zip(request.pod_groups, answers.admitted_groups, strict=True):
        if isinstance(admitted, ApiError):
            yield refusal_finding(admitted, group, classes)
    for group in request.pod_groups:
        yield from check_pod_references(group, classes, service_accounts)
    yield from (answer for answer in answers.object_checks if isinstance(answer, PreflightFinding))


def _dry_run_create(api: KubeClient, thing: Manifest, job_objects: JobObjects) -> list[PreflightFinding]:
    name = thing["metadata"]["name"]
    try:
        api.create(thing, dry_run=True)
    except ConflictError as error:
        known = any((old["kind"], old["metadata"]["name"]) == (thing["kind"], name) for old in job_objects.objects)
        own = find_existing_job(job_objects)
        if known or (own is not None and thing["kind"].lower() + "s" in job_objects.unlistable_kinds):
            return []  # check_job_name reports it, or it is replaced
        return [refusal_finding(error, None, ())]
    except RetryableError:
        raise
    except ApiError as error:
        return [refusal_finding(error, None, ())]
    return []


def _admit_group(api: KubeClient, group: PodGroup) -> PodGroup | ApiError:
    """The group with its pod as the server admits it.

    A new name avoids conflicts with other pods.
    """
    meta = group.pod["metadata"]
    unnamed = {key: value for key, value in meta.items() if key not in ("name", "ownerReferences")}
    pod = {**group.pod, "metadata": {**unnamed, "generateName": f"{meta['name']}-"}}
    try:
        return PodGroup(group.role, group.count, api.create(pod, dry_run=True))
    except RetryableError:
        raise
    except ApiError as error:
        return error


def _check_object(api: KubeClient, kind: ResourceKind, name: str) -> PreflightFinding | str | None:
    """A finding if the object is missing, a remark if it is unknown or limited, otherwise None."""
    try:
        manifest = api.get(kind, name)
    except NotFoundError:
        return missing_object_finding(kind, name, api.namespace)
    except RbacDeniedError:
        return f"it is unknown whether {kind.name} {name} exists: you may not read {kind.plural}"
    if manifest.get("status", {}).get("phase") == "Lost":
        return PreflightFinding(
            f"PersistentVolumeClaim {name} has lost its volume", "Its admin must restore or replace it."
        )
    modes = manifest.get("spec", {}).get("accessModes") or ()
    if kind is VOLUME_CLAIMS and "ReadWriteMany" not in modes:
        return f"claim {name} is {' and '.join(modes)}, not ReadWriteMany: pods on other nodes may wait for it forever"
    return None


def _list_if_allowed(list_objects: Callable[[], ResourceList]) -> tuple[Manifest, ...] | None:
    try:
        return list_objects().items
    except RbacDeniedError:
        return None


def _object_names(manifests: Sequence[Manifest] | None) -> tuple[str, ...] | None:
    return None if manifests is None else tuple(sorted(each["metadata"]["name"] for each in manifests))
