"""Follows a job on a cluster until its end, by what its master publishes; the job does not need whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl.api.events import Event, JobEnded
from edl.jobfile.published_status import Publication
from edl.ops.polling import polled
from edl.reporting.run_outcome import Failure, Outcome, decide
from edl.reporting.run_progress import Progress
from edl.reporting.run_renderer import Face, choose

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import Api
    from edl.ops.job_view import JobSeen

NEVER_SAID = "the master ended without a last word; see `edl why` and `edl logs`"
DELETED = "the job was deleted"
Check = Callable[["JobSeen | None"], object]


@dataclass(frozen=True, slots=True)
class Watched:
    """A job on a cluster, for a face.

    Attributes:
        remedy: the command that goes on with it.
        removal: the command that removes it.
    """

    job: str
    run_id: str
    remedy: str
    removal: str
    logs: str | None = None
    output: str | None = None

    def lines(self) -> list[str]:
        """Nothing: the plan was shown before the question."""
        return []

    def next_steps(self, outcome: Outcome) -> list[str]:
        """Go on with it, or remove what is left of it."""
        again = [] if outcome.phase == "Done" else [f"Go on when the cause is gone with: {self.remedy}"]
        return [*again, f"Its objects stay until: {self.removal}"]


class Following:
    """What has been seen of one job, and shown."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._known: Sequence[Event] = ()
        self._told = Publication()
        self.progress: Progress | None = None

    def see(self, seen: JobSeen | None) -> Outcome | None:
        """Show the job as it is now; None as long as it goes on.

        Args:
            seen: None: it is there no more.
        """
        if seen is None:
            return self._unsaid("Interrupted", DELETED)
        progress = self.progress or Progress(seen.created)
        for event in fresh(self._known, seen.told.events):
            progress = progress.after(event)
            self._face.happened(event, progress)
        self.progress = progress.at(seen.told.status) if seen.told.status else progress
        self._known, self._told = seen.told.events, seen.told
        self._face.refresh(self.progress, time.time())
        if progress.ended is not None:
            failure = self._told.failure
            return decide(progress.ended, Failure(failure.kind, failure.detail) if failure else Failure(), None)
        if seen.ended:
            return self._unsaid(seen.phase, "" if seen.phase == "Done" else NEVER_SAID)
        return None

    def _unsaid(self, phase: str, reason: str) -> Outcome:
        """The end of a job whose master did not publish it."""
        summary = self._told.summary or (self.progress or Progress(time.time())).so_far(time.time(), "")
        return decide(JobEnded(phase, reason, summary, time=time.time()), Failure(detail=self._told.detail), None)


def follow(api: Api, watched: Watched, uid: str, *, as_json: bool, check: Check = lambda _: None) -> int:
    """Show a job until its end; returns the exit code that ``edl run`` would have.

    Args:
        api: of the job's namespace.
        watched: the job.
        uid: of its Job.
        as_json: for programs.
        check: hears of each look, before it is shown; what it raises ends the watch.

    Raises:
        RetryableError: the API server is away for too long; the job goes on.
    """
    with choose(as_json=as_json) as face:
        face.planned(watched)
        following = Following(face)
        looks = polled(lambda: _look(api, watched.job, uid, check), answered=True)  # when the job was made
        ends = (following.see(seen) for seen in looks)
        outcome = next(end for end in ends if end is not None)
    face.ended(watched, outcome)
    return outcome.exit_code


def fresh(known: Sequence[Event], events: Sequence[Event]) -> Sequence[Event]:
    """The events after those that are known; all of them when none of these is left among the newest."""
    if known and known[-1] in events:
        at = len(events) - 1 - list(reversed(events)).index(known[-1])
        return events[at + 1 :]
    return events


def _look(api: Api, job: str, uid: str, check: Check) -> JobSeen | None:
    from edl.ops import job_view

    seen: JobSeen | None
    try:
        seen = job_view.find(api, job)
    except job_view.UnknownJobError:
        seen = None
    if seen is not None and seen.uid != uid:
        seen = None
    check(seen)
    return seen
