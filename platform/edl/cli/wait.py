"""``edl wait``: return when a job has reached a goal."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.api.exit_codes import TIMED_OUT_EXIT
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.ops.followup_command import command_arguments
from edl.reporting.unit_formats import format_duration

if TYPE_CHECKING:
    from edl.ops.job_view import JobView

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@dataclass(frozen=True, slots=True)
class WaitGoal:
    """The goal to wait for.

    Attributes:
        name: the goal as the command line names it.
        is_reached: whether a job has reached it.
    """

    name: str
    is_reached: Callable[[JobView], bool]


def parse_goal(text: str) -> WaitGoal:
    """The goal that ``--for`` names; raises BadInputError for anything else."""
    if text == "done":
        return WaitGoal(text, lambda job: job.phase == "Done")
    if text == "started":
        return WaitGoal(text, lambda job: job.status is not None and job.status.phase != "Starting")
    if match := re.fullmatch(r"workers=([0-9]+)", text):
        count = int(match[1])
        return WaitGoal(text, lambda job: job.status is not None and not job.has_ended and job.ready_workers == count)
    raise BadInputError(f"{text!r} is not a goal", where="--for", hint="Goals: done, started, workers=N")


@app.command()
def wait(
    job: JobArgument,
    what: Annotated[str, typer.Option("--for", metavar="GOAL", help="done, started, or workers=N.")] = "done",
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 90s or 1h30m; forever by default.")
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Wait until a job on a cluster is done, has completed its first step, or has exactly N workers that have started.

    Exit codes: 0 reached, 1 it ended otherwise or was deleted, 124 timeout.
    """
    wait_goal, seconds = parse_goal(what), None if timeout is None else parse_timeout(timeout)
    from edl.ops import job_view

    api = connect_api(context, namespace, job)
    code, message = wait_for_goal(lambda: job_view.find_job(api, job), wait_goal, seconds)
    more = f"\n  `edl why {command_arguments(job, context, namespace)}` shows the reason." if code else ""
    print(message + more, file=sys.stderr if code else sys.stdout)
    raise typer.Exit(code)


def wait_for_goal(
    look: Callable[[], JobView],
    wait_goal: WaitGoal,
    seconds: float | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, str]:
    """Poll until the result is known; return the exit code and a message.

    Raises UnknownJobError if the job does not exist at the first poll.
    """
    from edl.ops.job_following import poll_repeatedly
    from edl.ops.job_view import UnknownJobError

    began, job_view = clock(), None
    try:
        for job_view in poll_repeatedly(look, clock=clock, sleep=sleep):
            if wait_goal.is_reached(job_view):
                return 0, f"{job_view.name}: {wait_goal.name} after {format_duration(clock() - began)}"
            if job_view.has_ended:
                return (
                    1,
                    f"{job_view.name} is {job_view.phase}: it ended before the goal {wait_goal.name}",
                )
            if seconds is not None and clock() - began >= seconds:
                return (
                    TIMED_OUT_EXIT,
                    f"{job_view.name} is still {job_view.phase} after {format_duration(seconds)}"
                    f"{_workers_text(job_view)}",
                )
    except UnknownJobError:
        if job_view is None:
            raise
        return 1, f"{job_view.name} was deleted before the goal {wait_goal.name}"
    raise AssertionError("unreachable")


def _workers_text(job: JobView) -> str:
    if job.has_ended or job.status is None:
        return ""
    more = (
        f", {job.starting_workers} more {'start' if job.starting_workers > 1 else 'starts'}"
        if job.starting_workers
        else ""
    )
    return f"; {job.ready_workers} of {job.status.workers_wanted} workers run{more}"


def parse_timeout(text: str) -> float:
    """The value of ``--timeout`` in seconds; raises BadInputError if it is not a duration."""
    from edl.jobfile.quantities import parse_duration

    try:
        return float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise BadInputError(
            f"{text!r} is not a duration", where="--timeout", hint="Such as 90s, 5m or 1h30m."
        ) from error
