"""``edl stop``: stop a job so that it can be resumed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.cli.wait import WaitGoal, parse_timeout, wait_for_goal
from edl.ops.followup_command import command_arguments
from edl.reporting.text_table import StatusLine

if TYPE_CHECKING:
    from edl.api.status import Status
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.job_view import JobView

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_TASK_NOUNS = {"evaluate": "An evaluation", "predict": "A prediction"}
ENDED_GOAL = WaitGoal("stopped", lambda job: job.has_ended)


@app.command()
def stop(
    job: JobArgument,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it has ended and can be resumed.")] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long to wait, such as 90s or 5m; forever by default.")
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Stop a job on a cluster: it takes a checkpoint and its pods are removed. Its run is kept and can be resumed.

    A job that evaluates or predicts has no checkpoints: it ends, and is not resumed.

    Exit codes: 0 stop requested, or with --wait ended; 1 it was deleted meanwhile, 124 timeout.
    """
    from edl.cluster.desired_state import ANY_BOUNDS
    from edl.cluster.kubernetes import status_publisher
    from edl.cluster.status_port import DesiredState
    from edl.ops import job_view

    seconds = _timeout_seconds(timeout, wait=wait)
    api = connect_api(context, namespace, job)
    view = job_view.find_job(api, job)
    if view.has_ended:
        print(f"{job} is {view.phase} already.")
        return
    status_publisher.update_desired_state(api, job, DesiredState(stop=True), ANY_BOUNDS)
    what = "Its" if view.task in _TASK_NOUNS else "The master takes a checkpoint, then its"
    print(f"Requested {job} to stop. {what} pods are removed.", flush=True)
    if view.status is None:
        print(
            "Its master has not reported yet; remove the job with: edl delete"
            f" {command_arguments(job, context, namespace)}",
            flush=True,
        )
    if wait:
        _wait_until_ended(api, job, seconds)
    if view.task in _TASK_NOUNS:
        again = f"edl {view.task} {command_arguments('JOB.yaml', context, api.namespace)}"
        print(f"{_TASK_NOUNS[view.task]} is not resumed. Begin it again: {again}")
    elif view.status is not None:
        print(_kept_text(api, job, view.status, ended=wait))


def _timeout_seconds(timeout: str | None, *, wait: bool) -> float | None:
    if timeout is None:
        return None
    if not wait:
        raise BadInputError("is the time limit of --wait", where="--timeout", hint="Add --wait, or remove --timeout.")
    return parse_timeout(timeout)


def _wait_until_ended(api: KubeClient, job: str, seconds: float | None) -> None:
    """Wait until the job has ended. Raises Exit if it does not end in time, or is deleted."""
    from edl.ops import job_view

    with StatusLine() as ticker:

        def find_running_job() -> JobView:
            view = job_view.find_job(api, job)
            if not view.has_ended:
                ticker.show_text(f"{job} is {view.phase}, and is stopping")
            return view

        code, said = wait_for_goal(find_running_job, ENDED_GOAL, seconds)
    print(said, file=sys.stderr if code else sys.stdout)
    if code:
        raise typer.Exit(code)


def _kept_text(api: KubeClient, job: str, status: Status, *, ended: bool) -> str:
    """Text about the state from which the stopped run can be resumed."""
    from edl.ops.job_view import read_job_spec

    spec = read_job_spec(api, job)
    if not (spec["volumes"] or spec["storage"]["claim"]):
        return "It has no volume: its run is lost when its pods are removed, and cannot be resumed."
    when = "later" if ended else "once it has ended (edl stop --wait waits for that)"
    return (
        "The master first takes a checkpoint, for at most 30 s, so that a resumed run repeats no record.\n"
        f"Resume it {when}: edl submit JOB.yaml --resume {status.run}"
    )
