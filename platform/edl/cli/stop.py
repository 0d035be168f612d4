"""``edl stop``: end a job now, in a way that can be gone on with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, api_of
from edl.cli.wait import Goal, await_goal, seconds_of
from edl.ops.followup_command import called
from edl.reporting.status_line import Ticker

if TYPE_CHECKING:
    from edl.api.status import Status
    from edl.cluster.kubernetes.api_client import Api
    from edl.ops.job_view import JobSeen

app = typer.Typer(rich_markup_mode=None, add_completion=False)
ENDED = Goal("stopped", lambda job: job.ended)


@app.command()
def stop(
    job: JobArgument,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it has ended and can be resumed.")] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long to stay, such as 90s or 5m; forever by default.")
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """End a job now: its pods go, its run stays and can be resumed.

    Exit codes: 0 it is asked to stop, or with --wait has ended; 1 it was deleted meanwhile, 124 the time is over.
    """
    from edl.cluster.kubernetes import desired_state
    from edl.cluster.status_port import Desired
    from edl.ops import job_view

    seconds = _patience(timeout, wait=wait)
    api = api_of(context, namespace, job)
    seen = job_view.find(api, job)
    if seen.ended:
        print(f"{job} is {seen.phase} already.")
        return
    desired_state.pin(api, job, Desired(stop=True), desired_state.ANY)
    print(f"{job} is asked to stop; its pods go once a checkpoint is taken.", flush=True)
    if seen.status is None:
        print(
            f"Its master has not said anything yet; remove the job with: edl delete {called(job, context, namespace)}",
            flush=True,
        )
    if wait:
        _await_end(api, job, seconds)
    if seen.status is not None:
        print(_kept(api, job, seen.status, ended=wait))


def _patience(timeout: str | None, *, wait: bool) -> float | None:
    if timeout is None:
        return None
    if not wait:
        raise BadInputError("--timeout says how long --wait stays", where="--timeout", hint="Give both, or none.")
    return seconds_of(timeout)


def _await_end(api: Api, job: str, seconds: float | None) -> None:
    """Stay until the job has ended; raises Exit if it does not, or is deleted."""
    from edl.ops import job_view

    with Ticker() as ticker:

        def look() -> JobSeen:
            seen = job_view.find(api, job)
            if not seen.ended:
                ticker.say(f"{job} is {seen.phase}, and stops")
            return seen

        code, said = await_goal(look, ENDED, seconds)
    print(said, file=sys.stderr if code else sys.stdout)
    if code:
        raise typer.Exit(code)


def _kept(api: Api, job: str, status: Status, *, ended: bool) -> str:
    """What is there to go on with."""
    from edl.ops.job_view import spec_of

    spec = spec_of(api, job)
    if not (spec["volumes"] or spec["storage"]["claim"]):
        return "It has no volume, so nothing of it is kept; it cannot be resumed."
    when = "later" if ended else "once it has ended (edl stop --wait waits for that)"
    return (
        "A checkpoint is taken first, if that takes no longer than 30 s: nothing that is done is trained on again.\n"
        f"Go on with it {when}: edl submit JOB.yaml --resume {status.run}"
    )
