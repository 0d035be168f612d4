"""What a submitter sees of its release: submitter Jobs, and the master Jobs that these own."""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import Api
from edl.cluster.kubernetes.api_errors import NotFoundError
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.cluster.kubernetes.timestamps import created
from edl.ops.job_submission import is_begun
from edl.ops.release.submitter_decision import Master, Submitter, View
from edl.ops.release.submitter_identity import Identity

INSTANCE = "app.kubernetes.io/instance"
SUBMITTER = "submitter"
"""Value of ``edl.dev/role``."""
REVISION, SUBMITTED = "edl.dev/revision", "edl.dev/submitted"
"""Annotations of a submitter Job: the number of its release, by the chart; the master Job it has, by itself."""


def observe(api: Api, me: Identity) -> View:
    """Look once, in an order that tells the truth though others act meanwhile.

    The mark on this submitter's Job comes before the masters: whoever sets it has created its master before. The other
    submitters come after: whoever owns a master has been there before it.
    """
    mine = _mine(api, me)
    masters = [master for job in _jobs(api, me.release, Role.MASTER) if (master := master_of(job)) is not None]
    found = [submitter_of(job) for job in _jobs(api, me.release, SUBMITTER)]
    return View(mine, [each for each in found if each.uid != me.uid], masters)


def submitter_of(job: Manifest) -> Submitter:
    """A submitter Job."""
    meta = job["metadata"]
    notes = meta.get("annotations") or {}
    revision = str(notes.get(REVISION, ""))
    return Submitter(
        meta["name"],
        meta["uid"],
        created(job),
        int(revision) if revision.isdecimal() else 0,
        "deletionTimestamp" in meta,
        any(owner["kind"] == "CronJob" for owner in meta.get("ownerReferences") or ()),
        notes.get(SUBMITTED, ""),
    )


def master_of(job: Manifest) -> Master | None:
    """A master Job that a submitter owns; None for any other, such as one that ``edl submit`` made by that name."""
    meta = job["metadata"]
    owner = next((each["uid"] for each in meta.get("ownerReferences") or () if each["kind"] == JOBS.name), None)
    if owner is None:
        return None
    return Master(meta["labels"][names.JOB], meta["uid"], owner, is_begun(job), "deletionTimestamp" in meta)


def _mine(api: Api, me: Identity) -> Submitter | None:
    try:
        job = api.get(JOBS, me.job)
    except NotFoundError:
        return None
    return submitter_of(job) if job["metadata"]["uid"] == me.uid else None


def _jobs(api: Api, release: str, role: str) -> tuple[Manifest, ...]:
    return api.list(JOBS, labels=f"{names.ROLE}={role},{INSTANCE}={release}").items
