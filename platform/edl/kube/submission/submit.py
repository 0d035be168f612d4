"""Creates the objects of a job so that nothing is ever left half-made.

The Job comes first, suspended; what it needs is owned by it; then it may start. Whatever fails on the way, the Job is
deleted again and everything with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edl.core.errors import EdlError
from edl.kube.api import Api
from edl.kube.errors import ApiError, ConflictError, NotFoundError
from edl.kube.kinds import JOBS, Manifest, kind_of
from edl.kube.manifests.render import owner

SUBMISSION = "edl.dev/submission"
"""Annotation of the Job: which call of ``edl submit`` made it. Tells a request that arrived twice from a taken name."""


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
        manifests: of ``edl.kube.manifests.render.render_job``; the Job is the last.
        submission: unique to this call.
        told: hears of each object that was created.

    Raises:
        ApiError: the server refuses; everything that had been created is deleted again.
    """
    *parts, rendered = manifests
    try:
        made = _create_job(api, _suspended(rendered, submission), submission)
        uid, name = made["metadata"]["uid"], made["metadata"]["name"]
        told(made)
        for part in parts:
            told(_create_part(api, _owned(part, owner(job, uid)), uid))
        api.patch(JOBS, name, {"spec": {"suspend": False}})
    except BaseException as error:
        _withdraw(api, rendered["metadata"]["name"], submission, error)
        raise
    return Submitted(job, name, uid, str(made["metadata"].get("namespace") or api.namespace))


def _suspended(job: Manifest, submission: str) -> Manifest:
    meta = job["metadata"]
    marked = {**meta, "annotations": {**(meta.get("annotations") or {}), SUBMISSION: submission}}
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
        there = api.get(kind_of(part), part["metadata"]["name"])
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
    return (job["metadata"].get("annotations") or {}).get(SUBMISSION) == submission
