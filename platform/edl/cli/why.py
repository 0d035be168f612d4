"""``edl why``: why a job waits, is slow or has failed, and what the user can do."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from edl.cli.job_choice import LocalOption, choose_local_run
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.ops.followup_command import command_arguments
from edl.reporting.unit_formats import format_utc

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.cluster.kubernetes.resource_kinds import Manifest
    from edl.ops.diagnosis import JobEvidence
    from edl.ops.job_findings import JobFinding
    from edl.ops.job_view import JobView

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_DETAIL_LINES = 30


@app.command()
def why(
    job: JobArgument,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain why a job on a cluster, or a run of this machine (JOB or JOB/RUN), waits, is slower than it could be, or
    has failed, and what you can do.

    If both exist, the job on the cluster is explained. --local selects runs of this machine; -n and --context a
    cluster.
    """
    local_run = choose_local_run(job, local=local, context=context, namespace=namespace)
    if local_run is not None:
        from edl.ops.local_run_diagnosis import diagnose_local_run

        run = local_run.run_dir
        explained: JobView = local_run
        findings = diagnose_local_run(local_run, run, f"{local_run.name}/{run.run_id}")
    else:
        from edl.ops.diagnosis import diagnose_job

        api = connect_api(context, namespace, job)
        evidence = gather_evidence(api, job, command_arguments(job, context, namespace))
        explained, findings = evidence.job, diagnose_job(evidence)
    if as_json:
        print(json.dumps([_finding_json(finding) for finding in findings]))
        return
    for line in finding_lines(explained, findings):
        print(line)


def _finding_json(finding: JobFinding) -> dict[str, str]:
    return {
        "about": finding.subject,
        "text": finding.text,
        "remedy": finding.remedy,
        "said": finding.cluster_message,
    }


def gather_evidence(api: KubeClient, job: str, job_arguments: str) -> JobEvidence:
    """Collect the input of a diagnosis; raises UnknownJobError."""
    from edl.ops import job_view
    from edl.ops.diagnosis import JobEvidence
    from edl.ops.job_view import list_job_events

    return JobEvidence(
        job_view.find_job(api, job),
        job_view.list_job_pods(api, job),
        list_job_events(api, job),
        _list_nodes(api),
        job_arguments,
    )


def finding_lines(job_view: JobView, findings: Sequence[JobFinding]) -> Iterator[str]:
    """The findings, for people."""
    if job_view.unreadable_reason:
        yield f"The master's status cannot be read: {job_view.unreadable_reason}"
    if job_view.phase == "Done":
        yield (
            f"{job_view.name} is Done{_ended_at_text(job_view)}; "
            f"{'these problems cost it time:' if findings else 'no problem was found.'}"
        )
    elif not findings:
        yield f"{job_view.name} is {job_view.phase}; nothing blocks it."
    for each in findings:
        yield f"{each.subject}: {each.text}"
        if each.remedy:
            yield textwrap.indent(each.remedy, "  -> ", lambda _: True)
        if each.cluster_message:
            yield from (f"     {line}" for line in each.cluster_message.strip().splitlines()[-_DETAIL_LINES:])


def _ended_at_text(job: JobView) -> str:
    ended_at = job.ended_at
    return "" if ended_at is None else f" since {format_utc(ended_at)}"


def _list_nodes(api: KubeClient) -> list[Manifest] | None:
    from edl.cluster.kubernetes.api_errors import ForbiddenError
    from edl.cluster.kubernetes.resource_kinds import NODES

    # Many users may not list nodes. The diagnosis then cannot tell a pod that can never fit from
    # one that waits for capacity.
    with suppress(ForbiddenError):
        return list(api.list(NODES).items)
    return None
