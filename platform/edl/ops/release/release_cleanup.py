"""Removes what an earlier submitter of the release has left, and never anything that a later one has made.

Unlike ``edl delete``, which means a name, this means Jobs by uid: deleting something twice, or late, harms nobody. What
such a Job owns goes with it; pods that a dead node holds are taken from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ConflictError, NotFoundError
from edl.cluster.kubernetes.resource_kinds import JOBS, PODS, Manifest, ResourceKind
from edl.ops.job_deletion import JobObjects, is_deletion_stuck, list_job_objects
from edl.ops.release.submitter_decision import MasterJob


class ReleaseCleanup:
    """Round by round, until nothing is left of jobs that are going.

    Args:
        job: the name that is wanted: what still goes of an earlier job of that name is waited for, too.
    """

    def __init__(self, api: KubeClient, job: str) -> None:
        self._api, self._job_names = api, [job]
        self._deleted_uids: set[str] = set()
        self._asked: set[tuple[str, int | None]] = set()

    def round(self, masters: Sequence[MasterJob] = ()) -> JobObjects:
        """Ask for the deletion of ``masters``, and of what nobody has asked for yet; returns what still goes."""
        for master in masters:
            self._deleted_uids.add(master.uid)
            self._delete(JOBS, names.master_name(master.job), master.uid)
            if master.job not in self._job_names:
                self._job_names.append(master.job)
        left = [select_departing(list_job_objects(self._api, job), self._deleted_uids) for job in self._job_names]
        for there in left:
            for pod in there.of(PODS):
                self._force_delete(pod, there.now)
        return replace(left[0], objects=tuple(thing for there in left for thing in there.objects))

    def _force_delete(self, pod: Manifest, now: float) -> None:
        meta = pod["metadata"]
        if "deletionTimestamp" not in meta:
            # the others follow their Job; a master that lived on would ask for new ones
            if meta["labels"].get(names.ROLE_LABEL) == Role.MASTER and _owner_uids(pod) & self._deleted_uids:
                self._delete(PODS, meta["name"], meta["uid"])
        elif is_deletion_stuck(pod, None, now):
            self._delete(PODS, meta["name"], meta["uid"], grace=0)

    def _delete(self, kind: ResourceKind, name: str, uid: str, grace: int | None = None) -> None:
        if (uid, grace) in self._asked:
            return
        with suppress(NotFoundError, ConflictError):  # it is gone already, or another has its name
            self._api.delete(kind, name, uid=uid, grace=grace)
        self._asked.add((uid, grace))


def select_departing(there: JobObjects, going: Iterable[str] = ()) -> JobObjects:
    """What of a job's objects goes away: deleted, owned by one of the Jobs ``going``, or by none that is there.

    An object that was made after the Jobs were listed looks as if its owner were gone; who only waits does no harm.
    """
    gone = frozenset(going)
    alive = {job["metadata"]["uid"] for job in there.of(JOBS)} - gone

    def goes(thing: Manifest) -> bool:
        meta, owners = thing["metadata"], _owner_uids(thing)
        if "deletionTimestamp" in meta or meta["uid"] in gone:
            return True
        return thing["kind"] != JOBS.name and bool(owners) and not owners & alive

    return replace(there, objects=tuple(thing for thing in there.objects if goes(thing)))


def _owner_uids(thing: Manifest) -> set[str]:
    return {owner["uid"] for owner in thing["metadata"].get("ownerReferences") or ()}
