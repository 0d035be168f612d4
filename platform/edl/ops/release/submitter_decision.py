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
        created: unix seconds, whole ones.
        revision: of the release that rendered it.
        leaving: whether it is being deleted.
        scheduled: whether a CronJob made it.
        submitted: the mark: uid of the master Job that it was about to let start; empty before.
    """

    name: str
    uid: str
    created: float
    revision: int = 0
    leaving: bool = False
    scheduled: bool = False
    submitted: str = ""

    @property
    def age(self) -> tuple[float, int, str]:
        """What tells the newer of two: a total order, the same for whoever compares."""
        return self.created, self.revision, self.name


@dataclass(frozen=True, slots=True)
class MasterJob:
    """A master Job of the release.

    Attributes:
        job: name of its job.
        owner: uid of the submitter Job that it belongs to.
        begun: whether it was allowed to start.
        leaving: whether it is being deleted.
    """

    job: str
    uid: str
    owner: str
    begun: bool = True
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """What is there of a release at one moment.

    Attributes:
        mine: the submitter Job that asks; None if it is gone.
        others: further submitter Jobs.
        masters: of any submitter of the release.
    """

    mine: SubmitterJob | None
    others: Sequence[SubmitterJob] = ()
    masters: Sequence[MasterJob] = ()


@dataclass(frozen=True, slots=True)
class SubmitterDecision:
    """A step, and why; ``masters`` are those that it is about."""

    step: SubmitterStep
    reason: str
    masters: tuple[MasterJob, ...] = ()


def decide_step(view: ReleaseView) -> SubmitterDecision:
    """The next step of a submitter."""
    mine = view.mine
    if mine is None or mine.leaving:
        return SubmitterDecision(SubmitterStep.REPLACED, "this submitter's Job is gone")
    if newer := _newest_rival(mine, view.others):
        return SubmitterDecision(SubmitterStep.REPLACED, f"submitter {newer.name} has replaced this one")
    own = next((master for master in view.masters if master.owner == mine.uid), None)
    if own is not None:
        return _decide_own_job(own, mine.submitted)
    if mine.submitted:
        return SubmitterDecision(SubmitterStep.DELETED, "the job was deleted by somebody")
    if view.masters and not mine.scheduled:
        jobs = ", ".join(dict.fromkeys(master.job for master in view.masters))
        return SubmitterDecision(
            SubmitterStep.CLEAR, f"the release has another job before this one: {jobs}", tuple(view.masters)
        )
    return SubmitterDecision(SubmitterStep.SUBMIT, "nothing was submitted yet")


def _decide_own_job(own: MasterJob, marked: str) -> SubmitterDecision:
    if own.leaving:
        return SubmitterDecision(SubmitterStep.DELETED, f"job {own.job} is being deleted by somebody", (own,))
    if marked not in ("", own.uid):  # a pod of this submitter was cut off before, and has not heard
        return SubmitterDecision(
            SubmitterStep.DELETED, f"an earlier job {own.job} of this submitter was deleted by somebody", (own,)
        )
    if own.begun:
        return SubmitterDecision(SubmitterStep.FOLLOW, f"job {own.job} was submitted", (own,))
    return SubmitterDecision(SubmitterStep.FINISH, f"the Job of {own.job} is there, what it needs comes next", (own,))


def _newest_rival(mine: SubmitterJob, others: Sequence[SubmitterJob]) -> SubmitterJob | None:
    """The newest submitter that has taken this one's place; the Jobs of a schedule stand side by side."""
    if mine.scheduled:
        return None
    rivals = [other for other in others if not other.scheduled and not other.leaving and other.age > mine.age]
    return max(rivals, key=lambda other: other.age, default=None)
