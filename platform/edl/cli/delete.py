"""``edl delete``: remove jobs from a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.api.exit_codes import FAILED_EXIT
from edl.cli.options import ContextOption, NamespaceOption, YesOption, complete_jobs, confirm_action, connect_api
from edl.ops.removal_progress import remove_job
from edl.reporting.unit_formats import format_duration

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.job_deletion import JobObjects

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def delete(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", help="The jobs' names.", show_default=False, autocompletion=complete_jobs),
    ] = None,
    phases: Annotated[
        list[str] | None,
        typer.Option("--phase", metavar="PHASE", help="All jobs in this phase, as edl list shows it; repeatable."),
    ] = None,
    yes: YesOption = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing of the jobs is left.")] = True,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="How long to wait for each; the cluster continues after that."),
    ] = 300.0,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Remove jobs from a cluster: their pods and all other objects with their label. Files on volumes are kept.

    Pods on dead nodes are removed too.

    Exit codes: 0 removed, or no job in that phase; 1 something is left or you declined; 2 no such job.
    """
    from edl.ops.job_deletion import JobDeletion, list_job_objects

    if bool(jobs) == bool(phases):
        raise BadInputError("Give the jobs to remove, or their phase", hint="Such as: edl delete --phase Done")
    api = connect_api(context, namespace, jobs[0] if jobs else None)
    names = list(dict.fromkeys(jobs)) if jobs else jobs_in_phases(api, phases or [])
    if not names:
        return
    if jobs:
        _require_known_jobs(api, names)
    for job in names:
        typer.echo("\n".join(deletion_outline(job, list_job_objects(api, job))))
    if not confirm_action("Delete all these objects?", yes=yes, command="edl delete"):
        typer.echo("Nothing was deleted.")
        raise typer.Exit(FAILED_EXIT)
    if not wait or len(names) > 1:  # all of them go at the same time, and each is waited for afterwards
        for job in names:
            JobDeletion(api, job).delete_round()
    if not wait:
        typer.echo("The deletion continues in the cluster. Check its progress with: edl list")
        return
    for job in names:
        began = time.monotonic()
        remove_job(api, job, timeout)
        typer.echo(f"Job {job} was deleted after {format_duration(time.monotonic() - began)}.")


def _require_known_jobs(api: KubeClient, names: list[str]) -> None:
    """Raise UnknownJobError if one of the jobs does not exist, before any of them is deleted."""
    from edl.ops import job_view
    from edl.ops.job_deletion import list_job_objects, token_secret_exists

    for job in names:
        if not list_job_objects(api, job) and not token_secret_exists(api, job):
            job_view.find_job(api, job)  # its error lists the existing jobs


def jobs_in_phases(api: KubeClient, phases: list[str]) -> list[str]:
    """Names of the namespace's jobs in one of the phases. Prints a message if there are none.

    Raises:
        BadInputError: a phase does not exist.
    """
    from edl.ops import job_view

    known = {phase.lower(): phase for phase in job_view.JOB_PHASES}
    if unknown := [phase for phase in phases if phase.lower() not in known]:
        raise BadInputError(
            f"there is no phase {unknown[0]}", where="--phase", hint=f"Phases: {', '.join(job_view.JOB_PHASES)}."
        )
    selected_phases = {known[phase.lower()] for phase in phases}
    job_names = [job.name for job in job_view.list_jobs(api) if job.phase in selected_phases]
    if not job_names:
        typer.echo(f"No job in namespace {api.namespace} is {' or '.join(sorted(selected_phases))}.")
    return job_names


def deletion_outline(job: str, leftovers: JobObjects) -> list[str]:
    """A summary of the objects to delete.

    If no object can be listed, the token's Secret is all that is left.
    """
    from edl.ops.job_deletion import count_by_kind
    from edl.ops.job_view import find_existing_job, format_submit_time

    job_view = find_existing_job(leftovers)
    if job_view is None:
        head = f"{job}: the Job was deleted; these of its objects still exist:"
    else:
        head = f"{job}: {job_view.phase}, submitted {format_submit_time(job_view)}"
    lines = [head, f"  {count_by_kind(leftovers.objects) or '1 Secret'}"]
    if job_view is not None and job_view.status is not None and not job_view.has_ended and job_view.phase != "Deleting":
        lines.append(
            "  It is active: progress since its newest checkpoint will be lost. edl stop takes a checkpoint first."
        )
    return lines
