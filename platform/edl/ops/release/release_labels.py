"""What makes a job one of a release: its Job's label and owner, and the note about it on the submitter Job."""

from __future__ import annotations

from collections.abc import Sequence

from edl.cluster.kubernetes.api_client import Api
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.ops.release.release_view import INSTANCE, SUBMITTED
from edl.ops.release.submitter_identity import Identity


def belonging(manifests: Sequence[Manifest], me: Identity) -> list[Manifest]:
    """Manifests of a job, the Job last, with the Job as the release's and owned by its submitter Job."""
    *parts, job = manifests
    meta = job["metadata"]
    labels = {**meta["labels"], INSTANCE: me.release}
    return [*parts, {**job, "metadata": {**meta, "labels": labels, "ownerReferences": [_owner(me)]}}]


def mark(api: Api, me: Identity, uid: str) -> None:
    """Note on the submitter Job which master Job it has, so that none is submitted again once that is deleted."""
    api.patch(JOBS, me.job, {"metadata": {"uid": me.uid, "annotations": {SUBMITTED: uid}}})


def _owner(me: Identity) -> Manifest:
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.name,
        "name": me.job,
        "uid": me.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }
