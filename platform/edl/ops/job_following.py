"""Follows a job on a cluster until its end, by the status that its master publishes.

The job does not depend on the command that follows it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from edl.api.errors import RetryableError
from edl.api.run_events import JobEnded, JobEvent
from edl.jobfile.published_status import PublishedStatus
from edl.reporting.run_progress import RunFailure, RunOutcome, RunProgress, decide_outcome
from edl.reporting.run_renderer import RunRenderer, choose_renderer

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.job_view import JobView


# --------------------------------------------------------------------------------------------------
# Polls the API server, and tolerates short outages of it.


POLL_SECONDS = 1.0
LONGEST_ABSENCE_SECONDS = 120.0
"""Longest outage of the API server that is tolerated."""

PolledValue = TypeVar("PolledValue")


def poll_repeatedly(
    look: Callable[[], PolledValue],
    seconds: float = POLL_SECONDS,
    *,
    server_answered: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[PolledValue]:
    """Yield the result of ``look`` every ``seconds``, until the caller stops.

    Args:
        look: asks the API server.
        seconds: time between two calls.
        server_answered: whether the server has answered before. If it never has, its address is
            probably wrong, and the first error is raised at once.
        clock: monotonic clock in seconds.
        sleep: waits for a number of seconds.

    Raises:
        RetryableError: all calls failed for LONGEST_ABSENCE_SECONDS, or the first call failed and
            the server has never answered.
    """
    failing_since: float | None = None
    while True:
        try:
            value = look()
        except RetryableError as error:
            if not server_answered:
                raise
            now = clock()
            if failing_since is None:
                failing_since = now
                print(f"{error.message}; retrying", file=sys.stderr, flush=True)
            if now - failing_since > LONGEST_ABSENCE_SECONDS:
                raise
        else:
            failing_since, server_answered = None, True
            yield value
        sleep(seconds)


UNEXPLAINED_END = "the master ended without a final status; see `edl why` and `edl logs`"
DELETED_REASON = "the job was deleted"
JobObserver = Callable[["JobView | None"], object]


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A job on a cluster, for a renderer.

    Attributes:
        resume_command: the command that resumes it.
        delete_command: the command that removes it.
    """

    job: str
    run_id: str
    resume_command: str
    delete_command: str
    logs: str | None = None
    output: str | None = None

    def plan_lines(self) -> list[str]:
        """No lines: the plan was shown before the user confirmed it."""
        return []

    def next_steps(self, outcome: RunOutcome) -> list[str]:
        """How to resume the job, or remove its objects."""
        again = [] if outcome.phase == "Done" else [f"Fix the cause, then continue with: {self.resume_command}"]
        return [*again, f"Its objects stay until: {self.delete_command}"]


class JobFollower:
    """The state of one job that has been shown so far."""

    def __init__(self, face: RunRenderer) -> None:
        self._renderer = face
        self._shown_events: Sequence[JobEvent] = ()
        self._published_status = PublishedStatus()
        self.progress: RunProgress | None = None

    def show_job(self, job_view: JobView | None) -> RunOutcome | None:
        """Show the current state of the job; returns None until the job has ended.

        Args:
            job_view: None if the job no longer exists.
        """
        if job_view is None:
            return self._unpublished_outcome("Interrupted", DELETED_REASON)
        progress = self.progress or RunProgress(job_view.created_at)
        for event in new_events(self._shown_events, job_view.published_status.events):
            progress = progress.with_event(event)
            self._renderer.show_event(event, progress)
        self.progress = (
            progress.with_status(job_view.published_status.status) if job_view.published_status.status else progress
        )
        self._shown_events, self._published_status = job_view.published_status.events, job_view.published_status
        self._renderer.refresh(self.progress, time.time())
        if progress.end_event is not None:
            failure = self._published_status.failure
            return decide_outcome(
                progress.end_event, RunFailure(failure.kind, failure.detail) if failure else RunFailure(), None
            )
        if job_view.has_ended:
            return self._unpublished_outcome(job_view.phase, "" if job_view.phase == "Done" else UNEXPLAINED_END)
        return None

    def _unpublished_outcome(self, phase: str, reason: str) -> RunOutcome:
        """The end of a job whose master did not publish it."""
        summary = self._published_status.summary or (self.progress or RunProgress(time.time())).partial_summary(
            time.time(), ""
        )
        return decide_outcome(
            JobEnded(phase, reason, summary, time=time.time()),
            RunFailure(detail=self._published_status.failure_detail),
            None,
        )


def follow_job(
    api: KubeClient, watched: WatchedJob, uid: str, *, as_json: bool, observe: JobObserver = lambda _: None
) -> int:
    """Show a job until its end; returns the exit code that ``edl run`` would have.

    Args:
        api: client for the job's namespace.
        watched: the job.
        uid: uid of its Job.
        as_json: whether to print JSON, for programs.
        observe: called with each view before it is shown; an exception from it ends the watch.

    Raises:
        RetryableError: the API server did not answer for too long; the job itself continues.
    """
    with choose_renderer(as_json=as_json) as renderer:
        renderer.show_plan(watched)
        following = JobFollower(renderer)
        looks = poll_repeatedly(
            lambda: _find_job(api, watched.job, uid, observe), server_answered=True
        )  # the server answered when the job was created
        ends = (following.show_job(look) for look in looks)
        outcome = next(end for end in ends if end is not None)
    renderer.show_outcome(watched, outcome)
    return outcome.exit_code


def new_events(shown: Sequence[JobEvent], events: Sequence[JobEvent]) -> Sequence[JobEvent]:
    """The events after the last one shown; all if the published list no longer contains it."""
    if shown and shown[-1] in events:
        last_shown = len(events) - 1 - list(reversed(events)).index(shown[-1])
        return events[last_shown + 1 :]
    return events


def _find_job(api: KubeClient, job: str, uid: str, observe: JobObserver) -> JobView | None:
    from edl.ops import job_view

    view: JobView | None
    try:
        view = job_view.find_job(api, job)
    except job_view.UnknownJobError:
        view = None
    if view is not None and view.uid != uid:
        view = None
    observe(view)
    return view
