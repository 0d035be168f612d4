"""What a submitter sees of its release: submitter Jobs, and the master Jobs that these own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ConflictError, NotFoundError
from edl.cluster.kubernetes.resource_kinds import JOBS, PODS, Manifest, ResourceKind, creation_time, is_being_deleted
from edl.ops.job_deletion import JobObjects, is_deletion_stuck, list_job_objects
from edl.ops.job_submission import is_begun
from edl.ops.release.submitter_decision import MasterJob, ReleaseView, SubmitterJob

# --------------------------------------------------------------------------------------------------
# Who a submitter is, as its pod is told, and what its job is called.


_CRON_MINUTES = re.compile(r"[0-9]{1,8}")
"""What the CronJob controller puts behind the last dash of a Job's name: minutes since 1970."""
_DIGEST_CHARS = 8
_BOOLEAN_WORDS = {"": False, "false": False, "true": True}


@dataclass(frozen=True, slots=True)
class SubmitterIdentity:
    """A submitter, as its environment names it; see the package's docstring.

    Attributes:
        release: of the chart.
        submitter_job: name of the submitter Job.
        submitter_uid: of the submitter Job; also the name of its one submission.
        is_scheduled: whether a CronJob made it.
        resume_run: the run to go on with: its id, or ``latest``; None for a new one.
    """

    release: str
    submitter_job: str
    submitter_uid: str
    is_scheduled: bool = False
    resume_run: str | None = None

    @property
    def submission_id(self) -> str:
        """What all pods of this submitter call their one submission."""
        return self.submitter_uid

    def derive_job_name(self, name: str) -> str:
        """The name of the job: that of its spec; of a scheduled one, another for each date."""
        if not self.is_scheduled:
            return name
        tail = self.submitter_job.rpartition("-")[2]
        if not _CRON_MINUTES.fullmatch(tail):  # kubectl create job --from=cronjob/…
            tail = hashlib.sha256(self.submitter_job.encode()).hexdigest()[:_DIGEST_CHARS]
        return f"{name}-{tail}"


def read_identity(environment: Mapping[str, str]) -> SubmitterIdentity | None:
    """The submitter that the environment names; None if it names no release.

    Raises:
        BadInputError: something is missing, or contradicts itself.
    """
    release = environment.get("EDL_RELEASE", "")
    if not release:
        return None
    names = ("EDL_SUBMITTER_JOB", "EDL_SUBMITTER_UID")
    if missing := [name for name in names if not environment.get(name)]:
        raise _environment_error(f"the environment of the submitter lacks {' and '.join(missing)}")
    flag = environment.get("EDL_SCHEDULED", "")
    if flag not in _BOOLEAN_WORDS:
        raise _environment_error(f"EDL_SCHEDULED must be true or false, not {flag!r}")
    resume = environment.get("EDL_RESUME") or None
    if resume is not None and _BOOLEAN_WORDS[flag]:
        raise _environment_error("EDL_RESUME is set, but each date of a schedule starts a new job without earlier runs")
    job, uid = (environment[name] for name in names)
    return SubmitterIdentity(release, job, uid, _BOOLEAN_WORDS[flag], resume)


def _environment_error(message: str) -> BadInputError:
    return BadInputError(message, where="edl-role submit", hint="The chart edl-job sets these variables.")


INSTANCE_LABEL = "app.kubernetes.io/instance"
SUBMITTER_ROLE = "submitter"
"""Value of ``edl.dev/role``."""
REVISION_ANNOTATION, SUBMITTED_ANNOTATION = "edl.dev/revision", "edl.dev/submitted"
"""Annotations of a submitter Job: the number of its release, by the chart; the master Job it has, by itself."""


def read_release_view(api: KubeClient, identity: SubmitterIdentity) -> ReleaseView:
    """Look once, in an order that tells the truth though others act meanwhile.

    The mark on this submitter's Job comes before the masters: whoever sets it has created its master before. The other
    submitters come after: whoever owns a master has been there before it.
    """
    own_submitter = _read_own_submitter(api, identity)
    masters = [
        master
        for job in _list_release_jobs(api, identity.release, Role.MASTER)
        if (master := parse_master_job(job)) is not None
    ]
    submitters = [parse_submitter_job(job) for job in _list_release_jobs(api, identity.release, SUBMITTER_ROLE)]
    return ReleaseView(own_submitter, [each for each in submitters if each.uid != identity.submitter_uid], masters)


def parse_submitter_job(job: Manifest) -> SubmitterJob:
    """What a submitter Job's labels, annotations and owners say."""
    meta = job["metadata"]
    notes = meta.get("annotations") or {}
    revision = str(notes.get(REVISION_ANNOTATION, ""))
    return SubmitterJob(
        meta["name"],
        meta["uid"],
        creation_time(job),
        int(revision) if revision.isdecimal() else 0,
        is_being_deleted(job),
        any(owner["kind"] == "CronJob" for owner in meta.get("ownerReferences") or ()),
        notes.get(SUBMITTED_ANNOTATION, ""),
    )


def parse_master_job(job: Manifest) -> MasterJob | None:
    """A master Job that a submitter owns; None for any other, such as one that ``edl submit`` made by that name."""
    meta = job["metadata"]
    owner = next((each["uid"] for each in meta.get("ownerReferences") or () if each["kind"] == JOBS.name), None)
    if owner is None:
        return None
    return MasterJob(meta["labels"][names.JOB_LABEL], meta["uid"], owner, is_begun(job), is_being_deleted(job))


def _read_own_submitter(api: KubeClient, identity: SubmitterIdentity) -> SubmitterJob | None:
    try:
        job = api.get(JOBS, identity.submitter_job)
    except NotFoundError:
        return None
    return parse_submitter_job(job) if job["metadata"]["uid"] == identity.submitter_uid else None


def _list_release_jobs(api: KubeClient, release: str, role: str) -> tuple[Manifest, ...]:
    return api.list(JOBS, labels=f"{names.ROLE_LABEL}={role},{INSTANCE_LABEL}={release}").items


# --------------------------------------------------------------------------------------------------
# What makes a job one of a release: its Job's label and owner, and the note about it on the submitter Job.


def add_release_labels(manifests: Sequence[Manifest], identity: SubmitterIdentity) -> list[Manifest]:
    """Manifests of a job, the Job last, with the Job as the release's and owned by its submitter Job."""
    *parts, job = manifests
    meta = job["metadata"]
    labels = {**meta["labels"], INSTANCE_LABEL: identity.release}
    return [
        *parts,
        {**job, "metadata": {**meta, "labels": labels, "ownerReferences": [_submitter_reference(identity)]}},
    ]


def mark_submitted(api: KubeClient, identity: SubmitterIdentity, uid: str) -> None:
    """Note on the submitter Job which master Job it has, so that none is submitted again once that is deleted."""
    api.patch(
        JOBS,
        identity.submitter_job,
        {"metadata": {"uid": identity.submitter_uid, "annotations": {SUBMITTED_ANNOTATION: uid}}},
    )


def _submitter_reference(identity: SubmitterIdentity) -> Manifest:
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.name,
        "name": identity.submitter_job,
        "uid": identity.submitter_uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


# --------------------------------------------------------------------------------------------------
# Removes what an earlier submitter of the release has left, and never anything that a later one has made.
#
# Unlike ``edl delete``, which means a name, this means Jobs by uid: deleting something twice, or late, harms nobody.
# What
# such a Job owns goes with it; pods that a dead node holds are taken from it.


class ReleaseCleanup:
    """Round by round, until nothing is left of jobs that are going.

    Args:
        job: the name that is wanted: what still goes of an earlier job of that name is waited for, too.
    """

    def __init__(self, api: KubeClient, job: str) -> None:
        self._api, self._job_names = api, [job]
        self._deleted_uids: set[str] = set()
        self._requested_deletions: set[tuple[str, int | None]] = set()

    def delete_round(self, masters: Sequence[MasterJob] = ()) -> JobObjects:
        """Ask for the deletion of ``masters``, and of what nobody has asked for yet; returns what still goes."""
        for master in masters:
            self._deleted_uids.add(master.uid)
            self._delete_once(JOBS, names.master_name(master.job_name), master.uid)
            if master.job_name not in self._job_names:
                self._job_names.append(master.job_name)
        left = [select_departing(list_job_objects(self._api, job), self._deleted_uids) for job in self._job_names]
        for objects in left:
            for pod in objects.select_kind(PODS):
                self._force_delete(pod, objects.server_time)
        return replace(left[0], objects=tuple(thing for objects in left for thing in objects.objects))

    def _force_delete(self, pod: Manifest, now: float) -> None:
        meta = pod["metadata"]
        if not is_being_deleted(pod):
            # the others follow their Job; a master that lived on would ask for new ones
            if meta["labels"].get(names.ROLE_LABEL) == Role.MASTER and _owner_uids(pod) & self._deleted_uids:
                self._delete_once(PODS, meta["name"], meta["uid"])
        elif is_deletion_stuck(pod, None, now):
            self._delete_once(PODS, meta["name"], meta["uid"], grace=0)

    def _delete_once(self, kind: ResourceKind, name: str, uid: str, grace: int | None = None) -> None:
        if (uid, grace) in self._requested_deletions:
            return
        with suppress(NotFoundError, ConflictError):  # it is gone already, or another has its name
            self._api.delete(kind, name, uid=uid, grace=grace)
        self._requested_deletions.add((uid, grace))


def select_departing(job_objects: JobObjects, deleted_uids: Iterable[str] = ()) -> JobObjects:
    """What of a job's objects goes away: deleted, owned by one of the Jobs ``deleted_uids``, or by none that is there.

    An object that was made after the Jobs were listed looks as if its owner were gone; who only waits does no harm.
    """
    deleted = frozenset(deleted_uids)
    alive = {job["metadata"]["uid"] for job in job_objects.select_kind(JOBS)} - deleted

    def is_departing(thing: Manifest) -> bool:
        owners = _owner_uids(thing)
        if is_being_deleted(thing) or thing["metadata"]["uid"] in deleted:
            return True
        return thing["kind"] != JOBS.name and bool(owners) and not owners & alive

    return replace(job_objects, objects=tuple(thing for thing in job_objects.objects if is_departing(thing)))


def _owner_uids(thing: Manifest) -> set[str]:
    return {owner["uid"] for owner in thing["metadata"].get("ownerReferences") or ()}
