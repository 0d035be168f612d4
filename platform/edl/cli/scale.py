"""``edl scale``: change the number of workers of a running job."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.ops.followup_command import command_arguments

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def scale(
    job: JobArgument,
    low: Annotated[
        int | None,
        typer.Option("--min", metavar="N", min=0, help="With fewer running workers the job is called starved."),
    ] = None,
    high: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Number of workers that the job requests.")
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Change the number of workers of a running job; nothing restarts."""
    if low is None and high is None:
        raise BadInputError("nothing is to be changed", where="edl scale", hint=f"Such as: edl scale {job} --max 8")
    from edl.cluster.kubernetes import status_publisher
    from edl.cluster.status_port import DesiredState
    from edl.ops import job_view

    api = connect_api(context, namespace, job)
    current = job_view.find_job(api, job)
    if current.has_ended:
        raise BadInputError(
            f"{job} is {current.phase} already",
            hint=f"Its end: edl status {command_arguments(job, context, namespace)}",
        )
    spec = job_view.read_job_spec(api, job)
    global_batch = job_view.global_batch(spec)
    if high is not None and global_batch is not None and high > global_batch:
        raise BadInputError(
            f"--max is {high}, but strategy.global_batch of {job} is {global_batch}: some workers would have no record "
            "of a step",
            where="edl scale",
            hint=f"give at most {global_batch}",
        )
    bounds = job_view.worker_bounds(spec)
    desired = status_publisher.update_desired_state(api, job, DesiredState(low, high), bounds)
    least, most = (
        (bounds[0] if desired.min is None else desired.min),
        (bounds[1] if desired.max is None else desired.max),
    )
    if as_json:
        print(json.dumps({"job": job, "min": least, "max": most}))
        return
    print(f"{job}: {least} to {most} workers are wanted; the master hears of it within seconds.")
    print(f"Wait for them with: edl wait {command_arguments(job, context, namespace)} --for workers={most}")
