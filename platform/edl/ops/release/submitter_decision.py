"""What a submitter does next, decided from what it sees of its release; see the table.

====================  ============================  ===============================  ===========================
submitter Job         its master Job                the release's other master Jobs  step
====================  ============================  ===============================  ===========================
gone or leaving       any                           any                              REPLACED: touch nothing
not the newest one    any                           any                              REPLACED: touch nothing
newest                allowed to start              any                              FOLLOW it
newest                not yet allowed to start      any                              FINISH it
newest                leaving; gone after its mark  any                              DELETED, by somebody else
newest                not the one that was marked   any                              DELETED, by somebody else
newest, unscheduled   none                          some                             CLEAR them
newest                none                          none                             SUBMIT
scheduled             none                          any                              SUBMIT, under a name of its own
====================  ============================  ===============================  ===========================

Two submitters of one release cannot both keep a job: each creates its Job suspended, and decides once more before it
may start. The later submitter Job is there before its own first look; so either the earlier submitter sees the later
one and stops, or the later one sees the earlier one's job and clears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from edl.api.errors import RetryableError
from edl.cluster.kubernetes.pod_status import PERMANENT_WAIT_REASONS
from edl.ops.job_submission import (
    PULL_FAILED_REASON,
    SETTLE_SECONDS,
    MasterPodStatus,
    MasterStage,
)


class SubmitterStep(StrEnum):
    """What to do."""

    REPLACED = "replaced"
    FOLLOW = "follow"
    FINISH = "finish"
    DELETED = "deleted"
    CLEAR = "clear"
    SUBMIT = "submit"


@dataclass(frozen=True, slots=True)
class SubmitterJob:
    """A submitter Job.

    Attributes:
        created_at: unix seconds, whole ones.
        revision: of the release that rendered it.
        being_deleted: whether it is being deleted.
        is_scheduled: whether a CronJob made it.
        submitted_uid: the mark: uid of the master Job that it was about to let start; empty before.
    """

    name: str
    uid: str
    created_at: float
    revision: int = 0
    being_deleted: bool = False
    is_scheduled: bool = False
    submitted_uid: str = ""

    @property
    def age_key(self) -> tuple[float, int, str]:
        """What tells the newer of two: a total order, the same for whoever compares."""
        return self.created_at, self.revision, self.name


@dataclass(frozen=True, slots=True)
class MasterJob:
    """A master Job of the release.

    Attributes:
        job_name: name of its job.
        owner_uid: uid of the submitter Job that it belongs to.
        has_begun: whether it was allowed to start.
        being_deleted: whether it is being deleted.
    """

    job_name: str
    uid: str
    owner_uid: str
    has_begun: bool = True
    being_deleted: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """What is there of a release at one moment.

    Attributes:
        own_submitter: the submitter Job that asks; None if it is gone.
        other_submitters: further submitter Jobs.
        master_jobs: of any submitter of the release.
    """

    own_submitter: SubmitterJob | None
    other_submitters: Sequence[SubmitterJob] = ()
    master_jobs: Sequence[MasterJob] = ()


@dataclass(frozen=True, slots=True)
class SubmitterDecision:
    """A step, and why; ``master_jobs`` are those that it is about."""

    step: SubmitterStep
    reason: str
    master_jobs: tuple[MasterJob, ...] = ()


def decide_step(view: ReleaseView) -> SubmitterDecision:
    """The next step of a submitter."""
    own_submitter = view.own_submitter
    if own_submitter is None or own_submitter.being_deleted:
        return SubmitterDecision(SubmitterStep.REPLACED, "this submitter's Job is gone")
    if newer := _newest_rival(own_submitter, view.other_submitters):
        return SubmitterDecision(SubmitterStep.REPLACED, f"submitter {newer.name} has replaced this one")
    own = next((master for master in view.master_jobs if master.owner_uid == own_submitter.uid), None)
    if own is not None:
        return _decide_own_job(own, own_submitter.submitted_uid)
    if own_submitter.submitted_uid:
        return SubmitterDecision(SubmitterStep.DELETED, "another client deleted the job")
    if view.master_jobs and not own_submitter.is_scheduled:
        jobs = ", ".join(dict.fromkeys(master.job_name for master in view.master_jobs))
        return SubmitterDecision(
            SubmitterStep.CLEAR, f"the release still has an earlier job: {jobs}", tuple(view.master_jobs)
        )
    return SubmitterDecision(SubmitterStep.SUBMIT, "nothing was submitted yet")


def _decide_own_job(own: MasterJob, marked: str) -> SubmitterDecision:
    if own.being_deleted:
        return SubmitterDecision(SubmitterStep.DELETED, f"another client is deleting job {own.job_name}", (own,))
    if marked not in ("", own.uid):  # a pod of this submitter was cut off before, and has not heard
        return SubmitterDecision(
            SubmitterStep.DELETED, f"another client deleted the earlier job {own.job_name} of this submitter", (own,)
        )
    if own.has_begun:
        return SubmitterDecision(SubmitterStep.FOLLOW, f"job {own.job_name} was submitted", (own,))
    return SubmitterDecision(
        SubmitterStep.FINISH, f"the Job {own.job_name} exists; its other objects are created next", (own,)
    )


def _newest_rival(own_submitter: SubmitterJob, others: Sequence[SubmitterJob]) -> SubmitterJob | None:
    """The newest submitter that has taken this one's place; the Jobs of a schedule stand side by side."""
    if own_submitter.is_scheduled:
        return None
    rivals = [
        other
        for other in others
        if not other.is_scheduled and not other.being_deleted and other.age_key > own_submitter.age_key
    ]
    return max(rivals, key=lambda other: other.age_key, default=None)


# --------------------------------------------------------------------------------------------------
# How long a submitter puts up with what fails: absences, refusals that may pass, a master that does not start.


API_AWAY_SECONDS = 120.0
"""An absence of the API server that is waited out within one pod."""
REFUSAL_RETRY_SECONDS = 15.0
"""A refusal that is looked at again: what goes counts in quotas a little longer, RBAC is late after a restart of the
server, and claims and accounts of the same installation may come a moment later."""
FAILED_START_SECONDS = 30.0
"""For a master that fails before its first word: registries, networks and RBAC have bad moments, and Kubernetes tries
again."""
CLEANUP_TIMEOUT_SECONDS = 300.0
"""How long one pod of a submitter waits until the pods of an earlier job are gone."""
_SIGNAL_EXIT_BASE = 128
"""Above this exit code a signal ended the master."""


class RetryDeadline:
    """Counts since the first failure of a row."""

    def __init__(self) -> None:
        self._failing_since: tuple[bool, float] | None = None

    def reset(self) -> None:
        """Something worked: the row is over."""
        self._failing_since = None

    def may_retry(self, error: Exception, now: float) -> bool:
        """Whether to try again after ``error``; ``now``: monotonic seconds."""
        away = isinstance(error, RetryableError)
        if self._failing_since is None or self._failing_since[0] != away:
            self._failing_since = away, now
        return now - self._failing_since[1] < (API_AWAY_SECONDS if away else REFUSAL_RETRY_SECONDS)


class CleanupTimeout:
    """Counts since an earlier job began to go; the next one that goes has its own time."""

    def __init__(self) -> None:
        self._leaving_since: float | None = None

    def has_expired(self, *, left: bool, now: float) -> bool:
        """Whether it does not go; ``left``: something of it is still there, ``now``: monotonic seconds."""
        if not left:
            self._leaving_since = None
        elif self._leaving_since is None:
            self._leaving_since = now
        return self._leaving_since is not None and now - self._leaving_since >= CLEANUP_TIMEOUT_SECONDS


class StartTimeout:
    """Judges the sights of a master that has published nothing yet."""

    def __init__(self) -> None:
        self._failing_since: tuple[bool, float] | None = None
        """Whether a container was created at all, and since when it fails."""
        self._running_since: float | None = None

    def has_expired(self, status: MasterPodStatus, now: float) -> bool:
        """Whether the master will not start; a pod that was taken from its node says nothing about that."""
        if status.stage is not MasterStage.FAILED or not _is_job_failure(status):
            self._record_progress(status, now)
            return False
        self._running_since, created = None, status.exit_code is not None
        if self._failing_since is None or self._failing_since[0] != created:
            self._failing_since = created, now
        return now - self._failing_since[1] >= FAILED_START_SECONDS

    def _record_progress(self, status: MasterPodStatus, now: float) -> None:
        """A container that comes to be had its image; one that crashes again and again runs for moments between.

        A pull that failed once more is the same failure that a back-off is: it neither ends one nor begins one.
        """
        if status.reason == PULL_FAILED_REASON:
            return
        if status.stage is not MasterStage.RUNNING:
            self._running_since = None
        elif self._running_since is None:
            self._running_since = now
        settled = self._running_since is not None and now - self._running_since >= SETTLE_SECONDS
        if settled or (self._failing_since is not None and not self._failing_since[0]):
            self._failing_since = None


def _is_job_failure(status: MasterPodStatus) -> bool:
    """Whether the failure is the job's; an eviction or a lost node is not."""
    if status.exit_code is None:
        return status.reason in PERMANENT_WAIT_REASONS
    return status.exit_code <= _SIGNAL_EXIT_BASE
