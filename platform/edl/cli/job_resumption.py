"""``edl submit --resume``: what can be known before the earlier job is removed, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edl.api.errors import BadInputError
from edl.api.events import RunStarted
from edl.api.job_spec import JobSpec
from edl.cluster.kubernetes.names import LATEST_RUN

if TYPE_CHECKING:
    from edl.cli.submission_reporter import SubmissionReporter
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.job_deletion import JobObjects


@dataclass(frozen=True, slots=True)
class ResumeCheck:
    """What is known of a resumption beforehand, in words.

    Attributes:
        changes: fields of the job file that are not as at the start before.
        warnings: what the user may not have meant.
    """

    changes: Sequence[str] = ()
    warnings: Sequence[str] = ()


def check_resumable(leftovers: JobObjects, spec: JobSpec, run: str) -> ResumeCheck:
    """Refuse what the new master would refuse, as far as the job that is to be replaced tells it.

    Args:
        there: what the cluster has of the job.
        spec: that it is to go on with.
        run: an id, or ``latest``, which is the run of that job if its master has lived.

    Raises:
        BadInputError: the run is done, or ``spec`` is about other work.
    """
    from edl.ops.job_view import find_existing_job, read_submitted_spec
    from edl.storage.run_resumption import check_spec_changes, describe_nothing_to_do, format_change

    job = find_existing_job(leftovers)
    if job is None or job.status is None or run not in (LATEST_RUN, job.status.run):
        return ResumeCheck()
    if job.phase == "Done":
        hint = f"edl submit without --resume starts anew, after: edl delete {job.name}"
        raise BadInputError(f"run {job.status.run} is done; nothing was removed", where=job.name, hint=hint)
    before = read_submitted_spec(leftovers, job.name)
    changes = () if before is None else check_spec_changes(job.status.run, before, spec)
    end = describe_nothing_to_do(job.status, spec)
    return ResumeCheck(tuple(map(format_change, changes)), (end,) if end else ())


def report_resumed(api: KubeClient, job: str, reporter: SubmissionReporter) -> str | None:
    """Say which run it became, how far that is, and what of the job file has changed.

    Returns:
        The run; None if its master has not said so yet.
    """
    from edl.ops.job_view import find_job

    job_view = find_job(api, job)
    if job_view.status is None:
        return None
    status = job_view.status
    started = [event for event in job_view.told.events if isinstance(event, RunStarted) and event.resumed]
    changes = started[-1].changes if started else ()
    total, done = status.records_total, status.records_done
    facts: dict[str, Any] = {"run": status.run, "records_done": done, "records_total": total, "changes": [*changes]}
    share = f", {100 * done // total} % done" if total else ""
    lines = [f"It goes on with run {status.run}{share}.", *(f"  changed: {change}" for change in changes)]
    reporter.report_event("resumed", facts, "\n".join(lines))
    return status.run
