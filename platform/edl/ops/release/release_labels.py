"""What makes a job one of a release: its Job's label and owner, and the note about it on the submitter Job."""

from __future__ import annotations

from collections.abc import Sequence

from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.ops.release.release_view import INSTANCE_LABEL, SUBMITTED_ANNOTATION
from edl.ops.release.submitter_identity import SubmitterIdentity


def add_release_labels(manifests: Sequence[Manifest], me: SubmitterIdentity) -> list[Manifest]:
    """Manifests of a job, the Job last, with the Job as the release's and owned by its submitter Job."""
    *parts, job = manifests
    meta = job["metadata"]
    labels = {**meta["labels"], INSTANCE_LABEL: me.release}
    return [*parts, {**job, "metadata": {**meta, "labels": labels, "ownerReferences": [_submitter_reference(me)]}}]


def mark_submitted(api: KubeClient, me: SubmitterIdentity, uid: str) -> None:
    """Note on the submitter Job which master Job it has, so that none is submitted again once that is deleted."""
    api.patch(JOBS, me.job, {"metadata": {"uid": me.uid, "annotations": {SUBMITTED_ANNOTATION: uid}}})


def _submitter_reference(me: SubmitterIdentity) -> Manifest:
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.name,
        "name": me.job,
        "uid": me.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }
