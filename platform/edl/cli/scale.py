"""``edl scale``: change the number of workers of a running job."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.job_choice import LocalOption, choose_local_run
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.cluster.local.desired_state_file import DesiredStateFile
from edl.cluster.status_port import DesiredState
from edl.ops.followup_command import command_arguments
from edl.ops.local_runs import LocalRun

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def scale(
    job: JobArgument,
    low: Annotated[
        int | None,
        typer.Option(
            "--min",
            metavar="N",
            min=0,
            help="Minimum number of running workers; with fewer the job is starved, and AllReduce waits.",
        ),
    ] = None,
    high: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Number of workers that the job requests.")
    ] = None,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Change the number of workers of a running job on a cluster, or of a run of this machine (JOB or JOB/RUN); nothing
    restarts.

    If both exist, the job on the cluster is changed. --local selects runs of this machine; -n and --context a cluster.
    """
    if low is None and high is None:
        raise BadInputError("--min or --max is missing", where="edl scale", hint=f"Such as: edl scale {job} --max 8")
    change = DesiredState(low, high)
    local_run = choose_local_run(job, local=local, context=context, namespace=namespace)
    if local_run is not None:
        name, (least, most) = f"{local_run.name}/{local_run.uid}", _scale_local_run(local_run, change)
        next_step = f"Watch them with: edl status {name} --watch"
    else:
        name, (least, most) = job, _scale_cluster_job(job, change, context, namespace)
        next_step = f"Wait for them with: edl wait {command_arguments(job, context, namespace)} --for workers={most}"
    if as_json:
        print(json.dumps({"job": job, "min": least, "max": most}))
        return
    print(f"{name}: {least} to {most} workers are wanted; the master applies this within seconds.")
    print(next_step)


def _scale_cluster_job(job: str, change: DesiredState, context: str | None, namespace: str | None) -> tuple[int, int]:
    """Change a job on a cluster; return the numbers of workers that are wanted now."""
    from edl.cluster.kubernetes import status_publisher
    from edl.ops import job_view

    api = connect_api(context, namespace, job)
    current = job_view.find_job(api, job)
    if current.has_ended:
        raise BadInputError(
            f"{job} is {current.phase} already",
            hint=f"See how it ended: edl status {command_arguments(job, context, namespace)}",
        )
    spec = job_view.read_job_spec(api, job)
    _check_global_batch(job, change.max, job_view.global_batch(spec))
    bounds = job_view.worker_bounds(spec)
    return _wanted_bounds(status_publisher.update_desired_state(api, job, change, bounds), bounds)


def _scale_local_run(local_run: LocalRun, change: DesiredState) -> tuple[int, int]:
    """Change a run of this machine; return the numbers of workers that are wanted now."""
    from edl.jobfile.document_tree import SpecError
    from edl.jobfile.loader import load_job_file

    name = f"{local_run.name}/{local_run.uid}"
    if not local_run.is_alive or local_run.has_ended:
        raise BadInputError(f"{name} is {local_run.phase} already", hint=f"See how it ended: edl status {name}")
    try:
        spec = load_job_file(local_run.run_dir.spec)
    except SpecError as error:
        raise BadInputError(str(error)) from error
    if spec.strategy.name == "Local":
        raise BadInputError(
            f"{name} has strategy Local, which runs one process without workers",
            where="edl scale",
            hint="With strategy ParameterServer or AllReduce, the number of workers can change.",
        )
    _check_global_batch(name, change.max, spec.strategy.global_batch)
    bounds = (spec.workers.min, spec.workers.max)
    return _wanted_bounds(DesiredStateFile(local_run.run_dir.desired_state).update(change, bounds), bounds)


def _check_global_batch(name: str, high: int | None, global_batch: int | None) -> None:
    if high is not None and global_batch is not None and high > global_batch:
        raise BadInputError(
            f"--max is {high}, but strategy.global_batch of {name} is {global_batch}: some workers would have no"
            " record in a step",
            where="edl scale",
            hint=f"give at most {global_batch}",
        )


def _wanted_bounds(desired: DesiredState, bounds: tuple[int, int]) -> tuple[int, int]:
    """The bounds in force: those of the job file, where the desired state has no others."""
    least, most = bounds
    return (least if desired.min is None else desired.min), (most if desired.max is None else desired.max)
