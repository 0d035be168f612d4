"""``edl stop``: stop a job so that it can be resumed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.job_choice import JobLookup, LocalOption, choose_local_run
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.cli.wait import WaitGoal, parse_timeout, wait_for_goal
from edl.ops.followup_command import command_arguments
from edl.ops.local_runs import LocalRun, interrupt_run, read_local_run
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
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Stop a job on a cluster, or a run of this machine (JOB or JOB/RUN): it takes a checkpoint, and its pods or
    processes end. Its run is kept and can be resumed.

    A job that evaluates or predicts has no checkpoints: it ends, and is not resumed. If a job on the cluster and a
    run exist, the job is stopped. --local selects runs of this machine; -n and --context a cluster.

    Exit codes: 0 stop requested, or with --wait ended; 1 it was deleted meanwhile, 124 timeout.
    """
    from edl.cluster.desired_state import ANY_BOUNDS
    from edl.cluster.kubernetes import status_publisher
    from edl.cluster.status_port import DesiredState
    from edl.ops import job_view

    seconds = _timeout_seconds(timeout, wait=wait)
    local_run = choose_local_run(job, local=local, context=context, namespace=namespace)
    if local_run is not None:
        _stop_local_run(local_run, seconds, wait=wait)
        return
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
        _wait_until_ended(lambda: job_view.find_job(api, job), job, seconds)
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


def _stop_local_run(local_run: LocalRun, seconds: float | None, *, wait: bool) -> None:
    """Stop a run of this machine: through its master or, under strategy Local, as Ctrl-C does."""
    from edl.cluster.desired_state import ANY_BOUNDS
    from edl.cluster.local.desired_state_file import DesiredStateFile
    from edl.cluster.status_port import DesiredState
    from edl.jobfile.loader import load_job_file

    name, run = f"{local_run.name}/{local_run.uid}", local_run.run_dir
    if local_run.has_ended:
        print(f"{name} is {local_run.phase} already.")
        return
    if load_job_file(run.spec).strategy.name == "Local":
        interrupt_run(run)
    else:
        DesiredStateFile(run.desired_state).update(DesiredState(stop=True), ANY_BOUNDS)
    trains = local_run.task not in _TASK_NOUNS
    print(
        f"Requested {name} to stop. {'It takes a checkpoint, then its' if trains else 'Its'} processes end.", flush=True
    )
    if wait:
        _wait_until_ended(lambda: read_local_run(run), name, seconds)
    if trains:
        when = "" if wait else " once it has ended (edl stop --wait waits for that)"
        print(f"Resume it{when}: edl run JOB.yaml --resume {local_run.uid}")
    else:
        print(f"{_TASK_NOUNS[local_run.task]} is not resumed. Begin it again: edl {local_run.task} JOB.yaml")


def _wait_until_ended(lookup: JobLookup, job: str, seconds: float | None) -> None:
    """Wait until the job has ended. Raises Exit if it does not end in time, or is deleted."""
    with StatusLine() as ticker:

        def find_running_job() -> JobView:
            view = lookup()
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
