"""Asks the API server, before anything is created, whether it would take a job: all its objects, a pod of each role.

Pod Security, quotas, LimitRanges and priorities refuse pods, not Jobs: without this a job would be taken and then never
start. Everything is asked at once, from a few threads, and everything that is refused is told in one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

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
from edl.ops.existing_job import find_existing_job
from edl.ops.job_deletion import JobObjects, list_job_objects
from edl.ops.job_forecast import PodGroup
from edl.ops.preflight_findings import (
    PreflightFinding,
    check_job_name,
    check_pod_references,
    merge_findings,
    missing_object_finding,
    refusal_finding,
)
from edl.ops.submission_request import SubmissionRequest

PREFLIGHT_THREADS = 8
"""As many as the connections that are kept open."""
_LISTED_KINDS = (NODES, RESOURCE_QUOTAS, PRIORITY_CLASSES, SERVICE_ACCOUNTS)
_ALIVE_PODS_SELECTOR = "status.phase!=Succeeded,status.phase!=Failed"


class PreflightError(BadInputError):
    """The cluster would not take the job; ``findings`` holds every reason."""

    def __init__(self, job: str, namespace: str, findings: Sequence[PreflightFinding]) -> None:
        self.findings = tuple(findings)
        lines = [f"Job {job} cannot be submitted to namespace {namespace}; nothing was created.", *map(str, findings)]
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """What the server answered.

    Attributes:
        there: what the namespace has of a job of that name: something only if it may be replaced.
        pod_groups: with the pods as the server admits them: priority, tolerations and LimitRange defaults filled in.
        nodes: None if they may not be listed.
        running_pods: the cluster's pods that have not ended; None if they may not be listed.
        quotas: of the namespace; None if they may not be listed.
        remarks: what could not be checked, or works with a limit; a sentence each.
    """

    there: JobObjects
    pod_groups: tuple[PodGroup, ...]
    nodes: tuple[Manifest, ...] | None
    running_pods: tuple[Manifest, ...] | None
    quotas: tuple[Manifest, ...] | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _PreflightAnswers:
    """Of each question, in the order of what was asked about; None: this user may not ask it."""

    objects: Sequence[list[PreflightFinding]]
    pods: Sequence[PodGroup | ApiError]
    object_checks: Sequence[PreflightFinding | str | None]
    nodes: tuple[Manifest, ...] | None
    running_pods: tuple[Manifest, ...] | None
    quotas: tuple[Manifest, ...] | None
    classes: tuple[Manifest, ...] | None
    accounts: tuple[Manifest, ...] | None


def run_preflight(api: KubeClient, request: SubmissionRequest) -> PreflightResult:
    """Ask for everything.

    Raises:
        PreflightError: with every reason for which the server would not take the job.
        ApiError: the server cannot be asked.
    """
    there = list_job_objects(api, request.job)  # first and alone: one clear error when there is no such server
    answers = _ask_all(api, request, there)
    if findings := merge_findings(_collect_findings(request, there, answers)):
        raise PreflightError(request.job, api.namespace, findings)
    crowds = tuple(crowd for crowd in answers.pods if isinstance(crowd, PodGroup))
    remarks = tuple(answer for answer in answers.object_checks if isinstance(answer, str))
    return PreflightResult(there, crowds, answers.nodes, answers.running_pods, answers.quotas, remarks)


def _ask_all(api: KubeClient, request: SubmissionRequest, there: JobObjects) -> _PreflightAnswers:
    """All questions, a few at a time."""
    with ThreadPoolExecutor(PREFLIGHT_THREADS) as pool:
        objects = [pool.submit(_dry_run_create, api, thing, there) for thing in request.manifests]
        pods = [pool.submit(_admit_group, api, crowd) for crowd in request.pod_groups]
        checked = [pool.submit(_check_object, api, VOLUME_CLAIMS, name) for name in request.claims]
        checked += [pool.submit(_check_object, api, SECRETS, name) for name in request.pull_secrets]
        tenants = pool.submit(
            _list_if_allowed, partial(api.list, PODS, namespace=ALL_NAMESPACES, fields=_ALIVE_PODS_SELECTOR)
        )
        lists = [pool.submit(_list_if_allowed, partial(api.list, kind)) for kind in _LISTED_KINDS]
        nodes, quotas, classes, accounts = (answer.result() for answer in lists)
        return _PreflightAnswers(
            [answer.result() for answer in objects],
            [answer.result() for answer in pods],
            [answer.result() for answer in checked],
            nodes,
            tenants.result(),
            quotas,
            classes,
            accounts,
        )


def _collect_findings(
    request: SubmissionRequest, there: JobObjects, answers: _PreflightAnswers
) -> Iterator[PreflightFinding]:
    """Everything that is in the way, what concerns the whole job first; some of it several times."""
    classes, accounts = _object_names(answers.classes) or (), _object_names(answers.accounts)
    yield from check_job_name(request.job, find_existing_job(there), there, replaces=request.replaces_ended)
    for refused in answers.objects:
        yield from refused
    for crowd, admitted in zip(request.pod_groups, answers.pods, strict=True):
        if isinstance(admitted, ApiError):
            yield refusal_finding(admitted, crowd, classes)
    for crowd in request.pod_groups:
        yield from check_pod_references(crowd, classes, accounts)
    yield from (answer for answer in answers.object_checks if isinstance(answer, PreflightFinding))


def _dry_run_create(api: KubeClient, thing: Manifest, there: JobObjects) -> list[PreflightFinding]:
    name = thing["metadata"]["name"]
    try:
        api.create(thing, dry_run=True)
    except ConflictError as error:
        known = any((old["kind"], old["metadata"]["name"]) == (thing["kind"], name) for old in there.objects)
        own = find_existing_job(there)
        if known or (own is not None and thing["kind"].lower() + "s" in there.unlistable_kinds):
            return []  # of_name speaks of it, or it is replaced
        return [refusal_finding(error, None, ())]
    except RetryableError:
        raise
    except ApiError as error:
        return [refusal_finding(error, None, ())]
    return []


def _admit_group(api: KubeClient, crowd: PodGroup) -> PodGroup | ApiError:
    """The crowd with its pod as the server would have it; under a name of its own, whatever else there is."""
    meta = crowd.pod["metadata"]
    unnamed = {key: value for key, value in meta.items() if key not in ("name", "ownerReferences")}
    pod = {**crowd.pod, "metadata": {**unnamed, "generateName": f"{meta['name']}-"}}
    try:
        return PodGroup(crowd.role, crowd.count, api.create(pod, dry_run=True))
    except RetryableError:
        raise
    except ApiError as error:
        return error


def _check_object(api: KubeClient, kind: ResourceKind, name: str) -> PreflightFinding | str | None:
    """A finding if there is no such object, a remark if it is not known or has its limits, None if all is well."""
    try:
        found = api.get(kind, name)
    except NotFoundError:
        return missing_object_finding(kind, name, api.namespace)
    except RbacDeniedError:
        return f"it is not known whether {kind.name} {name} exists: you may not read {kind.plural}"
    if found.get("status", {}).get("phase") == "Lost":
        return PreflightFinding(
            f"PersistentVolumeClaim {name} has lost its volume", "Its admin must restore or replace it."
        )
    modes = found.get("spec", {}).get("accessModes") or ()
    if kind is VOLUME_CLAIMS and "ReadWriteMany" not in modes:
        return f"claim {name} is {' and '.join(modes)}, not ReadWriteMany: pods on other nodes may wait for it forever"
    return None


def _list_if_allowed(ask: Callable[[], ResourceList]) -> tuple[Manifest, ...] | None:
    try:
        return ask().items
    except RbacDeniedError:
        return None


def _object_names(found: Sequence[Manifest] | None) -> tuple[str, ...] | None:
    return None if found is None else tuple(sorted(each["metadata"]["name"] for each in found))
