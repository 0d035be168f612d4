"""Creates the objects of a job so that nothing is ever left half-made.

The Job comes first, suspended; what it needs is owned by it; then it may start. Whatever fails on the way of
``create``, the Job is deleted again and everything with it. Its steps, ``create_suspended_job``,
``create_dependents`` and ``begin``, can each be done twice, also from two places at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edl.api.errors import EdlError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, NotFoundError, RbacDeniedError
from edl.cluster.kubernetes.job_manifests import owner_reference
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest, manifest_kind

BEGUN_ANNOTATION = "edl.dev/begun"
"""Annotation of a Job that was whole and allowed to start: if it is suspended now, somebody wanted that."""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that the cluster has."""

    name: str
    job_object_name: str
    uid: str
    namespace: str


def submit_job(
    api: KubeClient,
    job: str,
    manifests: Sequence[Manifest],
    submission: str,
    told: Callable[[Manifest], Any] = lambda _: None,
) -> SubmittedJob:
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
        made = create_suspended_job(api, job, rendered, submission, told)
        create_dependents(api, made, parts, told)
        unsuspend_job(api, made)
    except BaseException as error:
        _roll_back_on_error(api, rendered["metadata"]["name"], submission, error)
        raise
    return made


def create_suspended_job(
    api: KubeClient, job: str, rendered: Manifest, submission: str, told: Callable[[Manifest], Any] = lambda _: None
) -> SubmittedJob:
    """Create the Job of a job, suspended.

    Raises:
        ConflictError: a Job of another submission has its name.
    """
    made = _create_or_get_job(api, _with_suspend(rendered, submission), submission)
    told(made)
    meta = made["metadata"]
    return SubmittedJob(job, meta["name"], meta["uid"], str(meta.get("namespace") or api.namespace))


def create_dependents(
    api: KubeClient, made: SubmittedJob, parts: Sequence[Manifest], told: Callable[[Manifest], Any] = lambda _: None
) -> None:
    """Create what is missing of the rest of a job."""
    for part in parts:
        told(_create_or_get_part(api, _with_owner(part, owner_reference(made.name, made.uid)), made.uid))


def unsuspend_job(api: KubeClient, made: SubmittedJob) -> None:
    """Let a built job start.

    Raises:
        NotFoundError: the Job was deleted.
        ApiError: another Job has its name by now.
    """
    # the server refuses a patch with a uid for any other object
    meta = {"uid": made.uid, "annotations": {BEGUN_ANNOTATION: "true"}}
    api.patch(JOBS, made.job_object_name, {"metadata": meta, "spec": {"suspend": False}})


def roll_back_submission(api: KubeClient, name: str, submission: str) -> None:
    """Delete the Job of a submission, if it is there and was not begun; what it owns goes with it.

    Args:
        name: of the Job.
    """
    try:
        there = api.get(JOBS, name)
        if _has_submission(there, submission) and not is_begun(there):
            api.delete(JOBS, name, uid=there["metadata"]["uid"])
    except (NotFoundError, ConflictError):
        return


def is_begun(job: Manifest) -> bool:
    """Whether a Job was allowed to start."""
    return not job["spec"].get("suspend") or BEGUN_ANNOTATION in (job["metadata"].get("annotations") or {})


def _with_suspend(job: Manifest, submission: str) -> Manifest:
    meta = job["metadata"]
    marked = {**meta, "annotations": {**(meta.get("annotations") or {}), names.SUBMISSION_ANNOTATION: submission}}
    return {**job, "metadata": marked, "spec": {**job["spec"], "suspend": True}}


def _with_owner(manifest: Manifest, reference: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def _create_or_get_job(api: KubeClient, job: Manifest, submission: str) -> Manifest:
    try:
        return api.create(job)
    except ConflictError:
        there = api.get(JOBS, job["metadata"]["name"])
        if not _has_submission(there, submission):
            raise
        return there


def _create_or_get_part(api: KubeClient, part: Manifest, uid: str) -> Manifest:
    try:
        return api.create(part)
    except ConflictError:
        try:
            there = api.get(manifest_kind(part), part["metadata"]["name"])
        except RbacDeniedError:  # Secrets; the name was free when the cluster was asked, and the Job is ours since then
            return part
        if not any(reference.get("uid") == uid for reference in there["metadata"].get("ownerReferences") or ()):
            raise
        return there


def _roll_back_on_error(api: KubeClient, name: str, submission: str, cause: BaseException) -> None:
    """Delete the Job of this submission, if it came to be; what it owns goes with it."""
    try:
        there = api.get(JOBS, name)
        if _has_submission(there, submission):
            api.delete(JOBS, name, uid=there["metadata"]["uid"])
    except NotFoundError:
        return
    except ApiError as error:
        if isinstance(cause, EdlError):
            cause.hint = f"The Job {name} may be left, suspended: {error.message}. Delete it when the cluster answers."


def _has_submission(job: Manifest, submission: str) -> bool:
    return (job["metadata"].get("annotations") or {}).get(names.SUBMISSION_ANNOTATION) == submission
