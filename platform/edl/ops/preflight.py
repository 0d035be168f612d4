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
from edl.cluster.kubernetes.api_client import EVERYWHERE, Api, Listing
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, NoRightError, NotFoundError
from edl.cluster.kubernetes.resource_kinds import (
    CLAIMS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Kind,
    Manifest,
)
from edl.ops.existing_job import existing
from edl.ops.job_deletion import Remains, remains
from edl.ops.job_forecast import Crowd
from edl.ops.preflight_findings import Finding, merged, of_missing, of_name, of_pod, of_refusal
from edl.ops.submission_request import Request

THREADS = 8
"""As many as the connections that are kept open."""
_LISTED = (NODES, QUOTAS, PRIORITY_CLASSES, SERVICE_ACCOUNTS)
_ALIVE = "status.phase!=Succeeded,status.phase!=Failed"


class PreflightError(BadInputError):
    """The cluster would not take the job; ``findings`` holds every reason."""

    def __init__(self, job: str, namespace: str, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        lines = [f"Job {job} cannot be submitted to namespace {namespace}; nothing was created.", *map(str, findings)]
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Survey:
    """What the server answered.

    Attributes:
        there: what the namespace has of a job of that name: something only if it may be replaced.
        crowds: with the pods as the server admits them: priority, tolerations and LimitRange defaults filled in.
        nodes: None if they may not be listed.
        tenants: the cluster's pods that have not ended; None if they may not be listed.
        quotas: of the namespace; None if they may not be listed.
        remarks: what could not be checked, or works with a limit; a sentence each.
    """

    there: Remains
    crowds: tuple[Crowd, ...]
    nodes: tuple[Manifest, ...] | None
    tenants: tuple[Manifest, ...] | None
    quotas: tuple[Manifest, ...] | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answers:
    """Of each question, in the order of what was asked about; None: this user may not ask it."""

    objects: Sequence[list[Finding]]
    pods: Sequence[Crowd | ApiError]
    checked: Sequence[Finding | str | None]
    nodes: tuple[Manifest, ...] | None
    tenants: tuple[Manifest, ...] | None
    quotas: tuple[Manifest, ...] | None
    classes: tuple[Manifest, ...] | None
    accounts: tuple[Manifest, ...] | None


def survey(api: Api, request: Request) -> Survey:
    """Ask for everything.

    Raises:
        PreflightError: with every reason for which the server would not take the job.
        ApiError: the server cannot be asked.
    """
    there = remains(api, request.job)  # first and alone: one clear error when there is no such server
    answers = _ask(api, request, there)
    if findings := merged(_findings(request, there, answers)):
        raise PreflightError(request.job, api.namespace, findings)
    crowds = tuple(crowd for crowd in answers.pods if isinstance(crowd, Crowd))
    remarks = tuple(answer for answer in answers.checked if isinstance(answer, str))
    return Survey(there, crowds, answers.nodes, answers.tenants, answers.quotas, remarks)


def _ask(api: Api, request: Request, there: Remains) -> _Answers:
    """All questions, a few at a time."""
    with ThreadPoolExecutor(THREADS) as pool:
        objects = [pool.submit(_dry_run, api, thing, there) for thing in request.manifests]
        pods = [pool.submit(_admit, api, crowd) for crowd in request.crowds]
        checked = [pool.submit(_check, api, CLAIMS, name) for name in request.claims]
        checked += [pool.submit(_check, api, SECRETS, name) for name in request.pull_secrets]
        tenants = pool.submit(_listed, partial(api.list, PODS, namespace=EVERYWHERE, fields=_ALIVE))
        lists = [pool.submit(_listed, partial(api.list, kind)) for kind in _LISTED]
        nodes, quotas, classes, accounts = (answer.result() for answer in lists)
        return _Answers(
            [answer.result() for answer in objects],
            [answer.result() for answer in pods],
            [answer.result() for answer in checked],
            nodes,
            tenants.result(),
            quotas,
            classes,
            accounts,
        )


def _findings(request: Request, there: Remains, answers: _Answers) -> Iterator[Finding]:
    """Everything that is in the way, what concerns the whole job first; some of it several times."""
    classes, accounts = _names(answers.classes) or (), _names(answers.accounts)
    yield from of_name(request.job, existing(there), there, replaces=request.replaces)
    for refused in answers.objects:
        yield from refused
    for crowd, admitted in zip(request.crowds, answers.pods, strict=True):
        if isinstance(admitted, ApiError):
            yield of_refusal(admitted, crowd, classes)
    for crowd in request.crowds:
        yield from of_pod(crowd, classes, accounts)
    yield from (answer for answer in answers.checked if isinstance(answer, Finding))


def _dry_run(api: Api, thing: Manifest, there: Remains) -> list[Finding]:
    name = thing["metadata"]["name"]
    try:
        api.create(thing, dry_run=True)
    except ConflictError as error:
        known = any((old["kind"], old["metadata"]["name"]) == (thing["kind"], name) for old in there.objects)
        own = existing(there)
        if known or (own is not None and thing["kind"].lower() + "s" in there.unseen):
            return []  # of_name speaks of it, or it is replaced
        return [of_refusal(error, None, ())]
    except RetryableError:
        raise
    except ApiError as error:
        return [of_refusal(error, None, ())]
    return []


def _admit(api: Api, crowd: Crowd) -> Crowd | ApiError:
    """The crowd with its pod as the server would have it; under a name of its own, whatever else there is."""
    meta = crowd.pod["metadata"]
    unnamed = {key: value for key, value in meta.items() if key not in ("name", "ownerReferences")}
    pod = {**crowd.pod, "metadata": {**unnamed, "generateName": f"{meta['name']}-"}}
    try:
        return Crowd(crowd.role, crowd.count, api.create(pod, dry_run=True))
    except RetryableError:
        raise
    except ApiError as error:
        return error


def _check(api: Api, kind: Kind, name: str) -> Finding | str | None:
    """A finding if there is no such object, a remark if it is not known or has its limits, None if all is well."""
    try:
        found = api.get(kind, name)
    except NotFoundError:
        return of_missing(kind, name, api.namespace)
    except NoRightError:
        return f"it is not known whether {kind.name} {name} exists: you may not read {kind.plural}"
    if found.get("status", {}).get("phase") == "Lost":
        return Finding(f"PersistentVolumeClaim {name} has lost its volume", "Its admin must restore or replace it.")
    modes = found.get("spec", {}).get("accessModes") or ()
    if kind is CLAIMS and "ReadWriteMany" not in modes:
        return f"claim {name} is {' and '.join(modes)}, not ReadWriteMany: pods on other nodes may wait for it forever"
    return None


def _listed(ask: Callable[[], Listing]) -> tuple[Manifest, ...] | None:
    try:
        return ask().items
    except NoRightError:
        return None


def _names(found: Sequence[Manifest] | None) -> tuple[str, ...] | None:
    return None if found is None else tuple(sorted(each["metadata"]["name"] for each in found))
