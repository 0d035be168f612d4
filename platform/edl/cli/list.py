"""``edl list``: the jobs of a namespace."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl.api.errors import BadInputError
from edl.cli.job_choice import LocalOption, has_kubeconfig
from edl.cli.options import ContextOption, NamespaceOption, connect_api
from edl.cluster.kubernetes.api_errors import ForbiddenError, NotFoundError
from edl.cluster.kubernetes.resource_kinds import NAMESPACES
from edl.jobfile.section_type import to_json
from edl.ops import job_view
from edl.ops.followup_command import command_arguments
from edl.ops.local_runs import list_local_runs
from edl.reporting.terminal_text import to_single_line
from edl.reporting.text_table import align_columns
from edl.reporting.unit_formats import format_age

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.job_view import JobView

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_RIGHT_ALIGNED = ("PROGRESS", "WORKERS", "SAMPLES/S", "AGE")


@app.command("list")
def list_jobs(
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the jobs of a namespace and the runs of this machine: phase, progress, workers, pace, age.

    Runs of this machine are those below ./.edl. With -n, -A or --context only jobs of the cluster are listed; with
    --local, or without a kubeconfig, only runs of this machine.
    """
    of_cluster = everywhere or context is not None or namespace is not None
    if local and of_cluster:
        raise BadInputError("--local selects runs of this machine, but -n, -A and --context select a cluster")
    now, local_runs = time.time(), [] if of_cluster else list_local_runs()
    if local or (local_runs and not of_cluster and not has_kubeconfig()):
        _print_local_runs(local_runs, now, as_json=as_json)
        return
    api = connect_api(context, namespace)
    cluster_jobs = job_view.list_jobs(api, all_namespaces=everywhere)
    if not cluster_jobs and not everywhere:
        _require_namespace(api)
    if as_json:
        print(json.dumps([job_json(job) for job in [*cluster_jobs, *local_runs]]))
        return
    for line in job_table([*cluster_jobs, *local_runs], now, everywhere=everywhere):
        print(line)
    if not cluster_jobs:
        where = "the cluster" if everywhere else f"namespace {api.namespace}"
        print(
            f"There are no jobs in {where}. Submit one with: edl submit"
            f" {command_arguments('JOB.yaml', context, namespace)}"
        )


def _print_local_runs(local_runs: Sequence[JobView], now: float, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([job_json(run) for run in local_runs]))
        return
    for line in job_table(local_runs, now, everywhere=False):
        print(line)
    if not local_runs:
        print("There are no runs of this machine below ./.edl. Start one with: edl run JOB.yaml")


def _require_namespace(api: KubeClient) -> None:
    """Raise BadInputError if the namespace does not exist.

    For a missing namespace the API server returns an empty list, like for one without jobs. The
    check needs the right to read namespaces; without it nothing is raised.
    """
    try:
        api.get(NAMESPACES, api.namespace)
    except NotFoundError as error:
        hint = "Choose another with -n. kubectl get namespaces lists all namespaces; edl list -A lists all jobs."
        raise BadInputError(f"There is no namespace {api.namespace}", hint=hint) from error
    except ForbiddenError:  # many users may not read namespaces; then it stays unknown
        return


def job_table(job_views: Sequence[JobView], now: float, *, everywhere: bool) -> list[str]:
    """The jobs as lines with a heading; empty without jobs. Marks runs of this machine."""
    if not job_views:
        return []
    head = ["JOB", "PHASE", "PROGRESS", "WORKERS", "SAMPLES/S", "AGE"]
    rows = [_job_row(job, now) for job in job_views]
    if everywhere:
        head, rows = ["NAMESPACE", *head], [[job.namespace, *row] for job, row in zip(job_views, rows, strict=True)]
    elif any(job.is_local for job in job_views):
        head = ["WHERE", *head]
        rows = [["this machine" if job.is_local else "cluster", *row] for job, row in zip(job_views, rows, strict=True)]
    lines = align_columns([head, *rows], right=[at for at, name in enumerate(head) if name in _RIGHT_ALIGNED])
    return [
        *lines,
        *(f"{job.name} is stalled: {to_single_line(job.stall_reason)}" for job in job_views if job.stall_reason),
    ]


def _job_row(job: JobView, now: float) -> list[str]:
    status = job.status
    if status is None:
        return [_display_name(job), job.phase, "-", "-", "-", format_age(now - job.created_at)]
    percent_done = f"{100 * status.records_done // status.records_total} %" if status.records_total else "-"
    if job.has_ended:
        return [_display_name(job), job.phase, percent_done, "-", "-", format_age(now - job.created_at)]
    starved = " starved" if status.starved else ""
    workers = f"{job.ready_workers}/{status.workers_wanted}" + (
        f" ({job.starting_workers} starting)" if job.starting_workers else ""
    )
    return [
        _display_name(job),
        job.phase + starved,
        percent_done,
        workers,
        f"{status.samples_per_second:,.0f}",
        format_age(now - job.created_at),
    ]


def _display_name(job: JobView) -> str:
    kind = {"evaluate": " (evaluation)", "predict": " (prediction)"}.get(job.task, "")
    return f"{job.name}/{job.uid}{kind}" if job.is_local else f"{job.name}{kind}"


def job_json(job: JobView) -> dict[str, Any]:
    """A job as JSON: the facts that Kubernetes has, and the status that its master published."""
    return {
        "job": job.name,
        "namespace": job.namespace,
        "local": job.is_local,
        "uid": job.uid,
        "task": job.task,
        "phase": job.phase,
        "stall": job.stall_reason or None,
        "created": job.created_at,
        "ended": job.ended_at,
        "desired": {"min": job.desired_state.min, "max": job.desired_state.max, "stop": job.desired_state.stop},
        "status": to_json(job.status) if job.status else None,
        "summary": to_json(job.published_status.summary) if job.published_status.summary else None,
        "unreadable": job.unreadable_reason or None,
    }
