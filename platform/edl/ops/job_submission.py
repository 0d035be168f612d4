"""Creates the objects of a job so that nothing is ever left half-made.

The Job comes first, suspended; what it needs is owned by it; then it may start. Whatever fails on the way of
``create``, the Job is deleted again and everything with it. Its steps, ``reserve``, ``furnish`` and ``begin``, can each
be done twice, also from two places at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edl.api.errors import EdlError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import Api
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, NoRightError, NotFoundError
from edl.cluster.kubernetes.job_manifests import owner
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest, kind_of

BEGUN = "edl.dev/begun"
"""Annotation of a Job that was whole and allowed to start: if it is suspended now, somebody wanted that."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that the cluster has."""

    name: str
    job_name: str
    uid: str
    namespace: str


def create(
    api: Api,
    job: str,
    manifests: Sequence[Manifest],
    submission: str,
    told: Callable[[Manifest], Any] = lambda _: None,
) -> Submitted:
    """Create a rendered job and let it start.

    Args:
        job: its name.
        manifests: of ``edl.cluster.kubernetes.job_manifests.render_job``; the Job is the last.
        submission: unique to this call.
        told: hears of each object that was created.

    Raises:
        ApiError: the server refuses; everything that had been created is deleted again.
    """
    *parts, rendered = manifests
    try:
        made = reserve(api, job, rendered, submission, told)
        furnish(api, made, parts, told)
        begin(api, made)
    except BaseException as error:
        _withdraw(api, rendered["metadata"]["name"], submission, error)
        raise
    return made


def reserve(
    api: Api, job: str, rendered: Manifest, submission: str, told: Callable[[Manifest], Any] = lambda _: None
) -> Submitted:
    """Create the Job of a job, suspended.

    Raises:
        ConflictError: a Job of another submission has its name.
    """
    made = _create_job(api, _suspended(rendered, submission), submission)
    told(made)
    meta = made["metadata"]
    return Submitted(job, meta["name"], meta["uid"], str(meta.get("namespace") or api.namespace))


def furnish(
    api: Api, made: Submitted, parts: Sequence[Manifest], told: Callable[[Manifest], Any] = lambda _: None
) -> None:
    """Create what is missing of the rest of a job."""
    for part in parts:
        told(_create_part(api, _owned(part, owner(made.name, made.uid)), made.uid))


def begin(api: Api, made: Submitted) -> None:
    """Let a built job start.

    Raises:
        NotFoundError: the Job was deleted.
        ApiError: another Job has its name by now.
    """
    # the server refuses a patch with a uid for any other object
    meta = {"uid": made.uid, "annotations": {BEGUN: "true"}}
    api.patch(JOBS, made.job_name, {"metadata": meta, "spec": {"suspend": False}})


def withdraw(api: Api, name: str, submission: str) -> None:
    """Delete the Job of a submission, if it is there and was not begun; what it owns goes with it.

    Args:
        name: of the Job.
    """
    try:
        there = api.get(JOBS, name)
        if _is_of(there, submission) and not is_begun(there):
            api.delete(JOBS, name, uid=there["metadata"]["uid"])
    except (NotFoundError, ConflictError):
        return


def is_begun(job: Manifest) -> bool:
    """Whether a Job was allowed to start."""
    return not job["spec"].get("suspend") or BEGUN in (job["metadata"].get("annotations") or {})


def _suspended(job: Manifest, submission: str) -> Manifest:
    meta = job["metadata"]
    marked = {**meta, "annotations": {**(meta.get("annotations") or {}), names.SUBMISSION: submission}}
    return {**job, "metadata": marked, "spec": {**job["spec"], "suspend": True}}


def _owned(manifest: Manifest, reference: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def _create_job(api: Api, job: Manifest, submission: str) -> Manifest:
    try:
        return api.create(job)
    except ConflictError:
        there = api.get(JOBS, job["metadata"]["name"])
        if not _is_of(there, submission):
            raise
        return there


def _create_part(api: Api, part: Manifest, uid: str) -> Manifest:
    try:
        return api.create(part)
    except ConflictError:
        try:
            there = api.get(kind_of(part), part["metadata"]["name"])
        except NoRightError:  # Secrets; the name was free when the cluster was asked, and the Job is ours since then
            return part
        if not any(reference.get("uid") == uid for reference in there["metadata"].get("ownerReferences") or ()):
            raise
        return there


def _withdraw(api: Api, name: str, submission: str, cause: BaseException) -> None:
    """Delete the Job of this submission, if it came to be; what it owns goes with it."""
    try:
        there = api.get(JOBS, name)
        if _is_of(there, submission):
            api.delete(JOBS, name, uid=there["metadata"]["uid"])
    except NotFoundError:
        return
    except ApiError as error:
        if isinstance(cause, EdlError):
            cause.hint = f"The Job {name} may be left, suspended: {error.message}. Delete it when the cluster answers."


def _is_of(job: Manifest, submission: str) -> bool:
    return (job["metadata"].get("annotations") or {}).get(names.SUBMISSION) == submission
