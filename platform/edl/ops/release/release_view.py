"""What a submitter sees of its release: submitter Jobs, and the master Jobs that these own."""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import NotFoundError
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.cluster.kubernetes.timestamps import creation_time
from edl.ops.job_submission import is_begun
from edl.ops.release.submitter_decision import MasterJob, ReleaseView, SubmitterJob
from edl.ops.release.submitter_identity import SubmitterIdentity

INSTANCE_LABEL = "app.kubernetes.io/instance"
SUBMITTER_ROLE = "submitter"
"""Value of ``edl.dev/role``."""
REVISION_ANNOTATION, SUBMITTED_ANNOTATION = "edl.dev/revision", "edl.dev/submitted"
"""Annotations of a submitter Job: the number of its release, by the chart; the master Job it has, by itself."""


def read_release_view(api: KubeClient, me: SubmitterIdentity) -> ReleaseView:
    """Look once, in an order that tells the truth though others act meanwhile.

    The mark on this submitter's Job comes before the masters: whoever sets it has created its master before. The other
    submitters come after: whoever owns a master has been there before it.
    """
    mine = _read_own_submitter(api, me)
    masters = [
        master
        for job in _list_release_jobs(api, me.release, Role.MASTER)
        if (master := parse_master_job(job)) is not None
    ]
    found = [parse_submitter_job(job) for job in _list_release_jobs(api, me.release, SUBMITTER_ROLE)]
    return ReleaseView(mine, [each for each in found if each.uid != me.uid], masters)


def parse_submitter_job(job: Manifest) -> SubmitterJob:
    """A submitter Job."""
    meta = job["metadata"]
    notes = meta.get("annotations") or {}
    revision = str(notes.get(REVISION_ANNOTATION, ""))
    return SubmitterJob(
        meta["name"],
        meta["uid"],
        creation_time(job),
        int(revision) if revision.isdecimal() else 0,
        "deletionTimestamp" in meta,
        any(owner["kind"] == "CronJob" for owner in meta.get("ownerReferences") or ()),
        notes.get(SUBMITTED_ANNOTATION, ""),
    )


def parse_master_job(job: Manifest) -> MasterJob | None:
    """A master Job that a submitter owns; None for any other, such as one that ``edl submit`` made by that name."""
    meta = job["metadata"]
    owner = next((each["uid"] for each in meta.get("ownerReferences") or () if each["kind"] == JOBS.name), None)
    if owner is None:
        return None
    return MasterJob(meta["labels"][names.JOB_LABEL], meta["uid"], owner, is_begun(job), "deletionTimestamp" in meta)


def _read_own_submitter(api: KubeClient, me: SubmitterIdentity) -> SubmitterJob | None:
    try:
        job = api.get(JOBS, me.job)
    except NotFoundError:
        return None
    return parse_submitter_job(job) if job["metadata"]["uid"] == me.uid else None


def _list_release_jobs(api: KubeClient, release: str, role: str) -> tuple[Manifest, ...]:
    return api.list(JOBS, labels=f"{names.ROLE_LABEL}={role},{INSTANCE_LABEL}={release}").items
