"""``edl wait``: come back when a job is where it is waited for."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, api_of
from edl.ops.followup_command import called

if TYPE_CHECKING:
    from edl.ops.job_view import JobSeen

app = typer.Typer(rich_markup_mode=None, add_completion=False)
TIMED_OUT = 124
"""As timeout(1) has it."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is waited for.

    Attributes:
        reached: whether a job is there.
        name: as the command line has it.
    """

    name: str
    reached: Callable[[JobSeen], bool]


def goal(text: str) -> Goal:
    """The goal that ``--for`` names; raises BadInputError for anything else."""
    if text == "done":
        return Goal(text, lambda job: job.phase == "Done")
    if text == "started":
        return Goal(text, lambda job: job.status is not None and job.status.phase != "Starting")
    if match := re.fullmatch(r"workers=([0-9]+)", text):
        count = int(match[1])
        return Goal(text, lambda job: job.status is not None and not job.ended and job.working == count)
    raise BadInputError(f"nobody can wait for {text!r}", where="--for", hint="Wait for: done, started, workers=N")


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
    """Wait until a job is done, has started its first step, or has exactly so many workers that have started.

    Exit codes: 0 it is, 1 it ended otherwise or was deleted, 124 the time is over.
    """
    aim, seconds = goal(what), None if timeout is None else seconds_of(timeout)
    from edl.ops import job_view

    api = api_of(context, namespace, job)
    code, said = await_goal(lambda: job_view.find(api, job), aim, seconds)
    more = f"\n  `edl why {called(job, context, namespace)}` says more." if code else ""
    print(said + more, file=sys.stderr if code else sys.stdout)
    raise typer.Exit(code)


def await_goal(
    look: Callable[[], JobSeen],
    aim: Goal,
    seconds: float | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, str]:
    """Exit code and what is said, once it is known; raises UnknownJobError if there is no such job to begin with."""
    from edl.ops.job_view import UnknownJobError
    from edl.ops.polling import polled

    began, seen = clock(), None
    try:
        for seen in polled(look, clock=clock, sleep=sleep):
            if aim.reached(seen):
                return 0, f"{seen.name}: {aim.name} after {clock() - began:.0f} s"
            if seen.ended:
                return (
                    1,
                    f"{seen.name} is {seen.phase}, and was waited for: {aim.name}",
                )
            if seconds is not None and clock() - began >= seconds:
                return (
                    TIMED_OUT,
                    f"{seen.name} is still {seen.phase} after {seconds:g} s{_starting(seen)}",
                )
    except UnknownJobError:
        if seen is None:
            raise
        return 1, f"{seen.name} was deleted while it was waited for: {aim.name}"
    raise AssertionError("unreachable")


def _starting(job: JobSeen) -> str:
    if job.ended or job.status is None:
        return ""
    more = f", {job.starting} more {'start' if job.starting > 1 else 'starts'}" if job.starting else ""
    return f"; {job.working} of {job.status.workers_wanted} workers work{more}"


def seconds_of(text: str) -> float:
    """The seconds that ``--timeout`` says; raises BadInputError for what is no time."""
    from edl.jobfile.quantities import duration

    try:
        return float(text) if text.replace(".", "", 1).isdigit() else duration(text)
    except ValueError as error:
        raise BadInputError(f"{text!r} is no time", where="--timeout", hint="Such as 90s, 5m or 1h30m.") from error
