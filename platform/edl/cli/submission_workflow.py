"""A submission from plan to start: preflight checks, the plan, confirmation, creation, and the master's start."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl.api.errors import BadInputError, EdlError, JobFailedError
from edl.api.exit_codes import INTERRUPTED_EXIT
from edl.api.job_spec import JobSpec
from edl.api.run_events import RunStarted
from edl.cli.options import confirm_action, connect_api
from edl.cli.submission_plan import SubmissionPlan, SubmissionReporter
from edl.cluster.kubernetes.api_errors import ApiError
from edl.cluster.kubernetes.job_manifests import new_job_token
from edl.cluster.kubernetes.spec_validation import find_spec_warnings
from edl.ops.cluster_capacity import ClusterCapacity
from edl.ops.followup_command import command_arguments
from edl.ops.job_forecast import JobForecast, NamespaceQuotas, forecast_job
from edl.ops.removal_progress import remove_job
from edl.ops.submission_request import SubmissionRequest, build_request
from edl.reporting.text_table import StatusLine
from edl.reporting.unit_formats import format_duration
from edl.storage.run_directory import FROM_CHECKPOINT_SUFFIX, NEWEST_RUN

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.job_deletion import JobObjects
    from edl.ops.job_submission import MasterPodStatus, SubmittedJob
    from edl.ops.preflight import PreflightResult

DECLINED = 1
_COMMAND_NOT_FOUND = ("executable file not found", "no such file or directory")
"""Parts of container runtimes' messages for a command that does not exist in the image."""


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The options of ``edl submit``; see ``edl.cli.submit``."""

    job_file: Path
    field_settings: Sequence[str] = ()
    resume_run: str | None = None
    context: str | None = None
    namespace: str | None = None
    skips_confirmation: bool = False
    watches_job: bool = False
    as_json: bool = False
    from_checkpoint: bool = False

    @property
    def resumed_run(self) -> str | None:
        """The run to resume, as the Job's annotation names it."""
        return (
            self.resume_run + FROM_CHECKPOINT_SUFFIX
            if self.resume_run is not None and self.from_checkpoint
            else self.resume_run
        )

    @property
    def replaces_ended(self) -> bool:
        """Whether an ended job of the same name is removed."""
        return self.resume_run is not None

    def followup_command(self, verb: str, job: str) -> str:
        """A command ``verb`` for the job, with the same cluster and namespace."""
        return f"edl {verb} {command_arguments(job, self.context, self.namespace)}"

    def resume_command(self) -> str:
        """The command that resumes this submission; a run id may follow."""
        arguments = command_arguments(str(self.job_file), self.context, self.namespace, self.field_settings)
        return f"edl submit {arguments} --resume"

    def render_command(self) -> str:
        """The command that prints the manifests of this submission. It needs no cluster, so it names no context."""
        run = f" --resume {self.resumed_run}" if self.resumed_run else ""
        return f"edl render {command_arguments(str(self.job_file), None, self.namespace, self.field_settings)}{run}"


class MasterStartError(JobFailedError):
    """The master did not start; nothing of the job is left in the cluster."""


class JobStateUnknownError(JobFailedError):
    """The state of a submitted job can no longer be read from the cluster; the job continues."""


def plan_without_cluster(spec: JobSpec, options: SubmitOptions) -> SubmissionPlan:
    """The plan without the parts that need a cluster."""
    request = build_request(spec, namespace=options.namespace, run=options.resumed_run)
    pods_forecast = forecast_job(request.pod_groups, None, NamespaceQuotas(()))
    named = (options.job_file, options.namespace, options.context)
    return SubmissionPlan(
        spec,
        *named,
        request.manifests,
        pods_forecast,
        resumed_run=options.resumed_run,
        resume_warnings=tuple(find_spec_warnings(spec)),
        cluster_asked=False,
    )


def plan_and_submit(
    spec: JobSpec,
    options: SubmitOptions,
    reporter: SubmissionReporter,
    *,
    dry_run: bool,
    before_creation: Callable[[KubeClient], object] = lambda api: None,
) -> int:
    """Submit the job; returns the exit code of the command.

    Args:
        before_creation: what is done after the user has confirmed, and before anything of the job is created.

    Raises:
        PreflightError: the cluster would not accept the job; nothing was created.
        MasterStartError: the master did not start; everything was removed.
        ApiError: the cluster refused an object; everything was removed.
        JobStateUnknownError: the cluster refused a request, or did not answer, after the Job was created.
    """
    api = connect_api(options.context, options.namespace)
    request = build_request(spec, namespace=api.namespace, token=new_job_token(), run=options.resumed_run)
    request = replace(request, replaces_ended=options.replaces_ended)
    plan = plan_submission(api, spec, options, request)
    reporter.report_plan(plan)
    if dry_run:
        reporter.report_note("The cluster would accept the job. Nothing was created.")
        return 0
    if not options.skips_confirmation and options.as_json:
        raise BadInputError("--json cannot ask for confirmation", where="edl submit", hint="Add --yes.")
    if not confirm_action(f"Submit {spec.name}?", yes=options.skips_confirmation, command="edl submit"):
        reporter.report_note("Nothing was created.")
        return DECLINED
    before_creation(api)
    return _create_job(api, options, request, plan, reporter)


def plan_submission(
    api: KubeClient, spec: JobSpec, options: SubmitOptions, request: SubmissionRequest
) -> SubmissionPlan:
    """Check that the cluster would accept the job, and return the plan.

    Raises:
        PreflightError: the cluster would not accept the job.
        BadInputError: the run cannot be resumed.
    """
    from edl.ops.job_view import find_existing_job
    from edl.ops.preflight import run_preflight

    with StatusLine() as ticker:
        ticker.show_text(f"checking the job with {api.host} …", permanent=False)
        answers = run_preflight(api, request)
    resume_check = ResumeCheck()
    if options.resume_run is not None:
        resume_check = check_resumable(answers.job_objects, spec, options.resume_run)
    quotas = NamespaceQuotas(answers.quotas or ())
    quota_left = None if answers.quotas is None else quotas.remaining_amounts()
    return SubmissionPlan(
        spec,
        options.job_file,
        api.namespace,
        api.context,
        request.manifests,
        _forecast_pods(api, request, answers, quotas),
        quota_left,
        find_existing_job(answers.job_objects),
        options.resumed_run,
        resume_check.field_changes,
        (*resume_check.warnings, *find_spec_warnings(spec), *answers.remarks),
    )


def _forecast_pods(
    api: KubeClient, request: SubmissionRequest, answers: PreflightResult, quotas: NamespaceQuotas
) -> JobForecast:
    from edl.ops.preflight import PreflightError, check_quotas, merge_findings

    known = answers.nodes is not None and answers.running_pods is not None
    room = ClusterCapacity(answers.nodes or (), answers.running_pods or ()) if known else None
    pods_forecast = forecast_job(answers.pod_groups, room, quotas)
    if refused := check_quotas(pods_forecast.placements, quotas):
        raise PreflightError(request.job_name, api.namespace, merge_findings(refused))
    return pods_forecast


def _create_job(
    api: KubeClient,
    options: SubmitOptions,
    request: SubmissionRequest,
    plan: SubmissionPlan,
    reporter: SubmissionReporter,
) -> int:
    from edl.ops.job_submission import submit_job

    if plan.replaced_job is not None:
        remove_job(api, request.job_name)
        reporter.report_note(f"The ended job {request.job_name} was removed.")
    submitted_job = submit_job(api, request.job_name, request.manifests, uuid.uuid4().hex)
    facts = {
        "job": submitted_job.name,
        "namespace": submitted_job.namespace,
        "uid": submitted_job.uid,
        "run": options.resume_run or submitted_job.uid,
    }
    reporter.report_event(
        "submitted", facts, f"Job {submitted_job.name} submitted to namespace {submitted_job.namespace}."
    )
    try:
        return _wait_for_start(api, options, submitted_job, reporter)
    except KeyboardInterrupt:
        reporter.report_note(
            "The job continues without this command. "
            f"Remove it with: {options.followup_command('delete', submitted_job.name)}"
        )
        return INTERRUPTED_EXIT
    except ApiError as error:
        hint = f"The job continues without this command: {options.followup_command('status', submitted_job.name)}"
        raise JobStateUnknownError(error.message, where=error.where, hint=hint) from error


def _wait_for_start(
    api: KubeClient, options: SubmitOptions, submitted_job: SubmittedJob, reporter: SubmissionReporter
) -> int:
    from edl.ops.job_submission import MasterStage, MasterStatusReader, wait_for_start

    began = time.monotonic()
    with StatusLine() as ticker:
        status_reader = MasterStatusReader(api, submitted_job.name, submitted_job.uid)
        master_status = wait_for_start(
            status_reader.read_status,
            lambda status: ticker.show_text(master_status_text(status)),
            time.monotonic,
            time.sleep,
        )
    if master_status.stage is MasterStage.FAILED:
        raise start_error(submitted_job.name, master_status, _remove_failed_job(api, options, submitted_job.name))
    seconds = time.monotonic() - began
    facts = {
        "stage": master_status.stage.value,
        "reason": master_status.reason,
        "message": master_status.message,
        "seconds": round(seconds, 3),
    }
    run = options.resume_run or submitted_job.uid
    if master_status.has_started:
        reporter.report_event("started", facts, f"The master started after {format_duration(seconds)}.")
        if options.resume_run is not None:
            run = report_resumed(api, submitted_job.name, reporter) or run
    else:
        reporter.report_event(
            "waiting", facts, f"Not started after {format_duration(seconds)}: {master_status_text(master_status)}"
        )
    if options.watches_job:
        from edl.ops.job_following import WatchedJob, follow_job

        watched = WatchedJob(
            submitted_job.name, run, options.resume_command(), options.followup_command("delete", submitted_job.name)
        )
        return follow_job(api, watched, submitted_job.uid, as_json=options.as_json)
    reporter.report_note("\n".join(next_step_lines(options, submitted_job.name, started=master_status.has_started)))
    return 0


def master_status_text(master_status: MasterPodStatus) -> str:
    """The state of the master, in one line."""
    pod = f" ({master_status.pod_name})" if master_status.pod_name else ""
    details = ": ".join(
        part
        for part in (_container_text(master_status), master_status.reason, " ".join(master_status.message.split()))
        if part
    )
    return f"master {_STAGE_WORDS[master_status.stage.value]}{pod}" + (f": {details}" if details else "")


_STAGE_WORDS = {
    "no pod yet": "has no pod yet",
    "pending": "waits for a node",
    "creating": "is being created",
    "running": "is running",
    "serving": "is serving",
    "being replaced": "is being replaced",
    "ended": "has ended",
    "failed": "failed",
}
"""By the values of ``edl.ops.job_submission.MasterStage``."""


def _container_text(master_status: MasterPodStatus) -> str:
    return f"init container {master_status.container_name}" if master_status.container_name else ""


def _remove_failed_job(api: KubeClient, options: SubmitOptions, job: str) -> str:
    """Remove a job that did not start; returns the result as text."""
    # An error here must not hide the reason why the master did not start.
    try:
        remove_job(api, job)
    except EdlError as error:
        return f"Some objects could not be removed ({error.message}): {options.followup_command('delete', job)}"
    return "Everything was removed."


def start_error(job: str, master_status: MasterPodStatus, removal_text: str) -> MasterStartError:
    """The error for a master that did not start, with the message of the container or the kubelet.

    Args:
        job: the job's name.
        master_status: the last observed status.
        removal_text: the result of removing the job.
    """
    code = "" if master_status.exit_code is None else f"exit code {master_status.exit_code}"
    reason = "" if code and master_status.reason == "Error" else master_status.reason
    cause = ", ".join(part for part in (_container_text(master_status), reason, code) if part)
    message = "\n".join(f"  {line}" for line in master_status.message.splitlines())
    hint = f"{_start_remedy(master_status)} {removal_text}".strip()
    return MasterStartError(
        f"The master did not start ({cause})" + (f":\n{message}" if message else ""), where=job, hint=hint
    )


def _start_remedy(master_status: MasterPodStatus) -> str:
    from edl.ops.pod_problems import waiting_remedy

    if master_status.container_name and "mage" in master_status.reason:
        return f"Check the image of {master_status.container_name} in pod.overrides; the nodes must reach its registry."
    if "edl-role" in master_status.message and any(words in master_status.message for words in _COMMAND_NOT_FOUND):
        return "The image has no program edl-role: build the image with edl zoo build."
    return waiting_remedy(master_status.reason)


def next_step_lines(options: SubmitOptions, job: str, *, started: bool) -> Sequence[str]:
    """The commands that a user usually needs next."""
    first = [] if started else [f"  Why:     {options.followup_command('why', job)}"]
    return [
        *first,
        f"  Watch:   {options.followup_command('status', job)}",
        f"  Logs:    {options.followup_command('logs', job)} -f",
        f"  Remove:  {options.followup_command('delete', job)}",
    ]


# --------------------------------------------------------------------------------------------------
# ``edl submit --resume``: checks before the earlier job is removed, and the report of the resumed
# run.


@dataclass(frozen=True, slots=True)
class ResumeCheck:
    """The result of the checks before a job is resumed.

    Attributes:
        field_changes: the fields of the job file that differ from the earlier submission, as text.
        warnings: consequences that the user may not expect.
    """

    field_changes: Sequence[str] = ()
    warnings: Sequence[str] = ()


def check_resumable(leftovers: JobObjects, spec: JobSpec, run: str) -> ResumeCheck:
    """Refuse a resumption that the new master would refuse, if the old job's objects already show it.

    Args:
        leftovers: the old job's objects on the cluster.
        spec: the new job's spec.
        run: a run id, or ``latest``: the run of the old job if its master ever started.

    Raises:
        BadInputError: the run is done, or ``spec`` differs in fields that must not change.
    """
    from edl.ops.job_view import find_existing_job, read_submitted_spec
    from edl.storage.run_resumption import check_spec_changes, describe_nothing_to_do, format_change

    job = find_existing_job(leftovers)
    if job is None or job.status is None or run not in (NEWEST_RUN, job.status.run):
        return ResumeCheck()
    before = read_submitted_spec(leftovers, job.name)
    if before is not None and before.task != "train" and run == NEWEST_RUN:
        # The newest run that trains is another one, which only the master sees.
        return ResumeCheck()
    if job.phase == "Done":
        hint = f"To start a new run, use edl submit without --resume, after: edl delete {job.name}"
        raise BadInputError(f"run {job.status.run} is done; nothing was removed", where=job.name, hint=hint)
    changes = () if before is None else check_spec_changes(job.status.run, before, spec)
    end = describe_nothing_to_do(job.status, spec)
    return ResumeCheck(tuple(map(format_change, changes)), (end,) if end else ())


def report_resumed(api: KubeClient, job: str, reporter: SubmissionReporter) -> str | None:
    """Report the resumed run, its progress, and the changes of the job file.

    Returns:
        The run id; None if the master has not published its status yet.
    """
    from edl.ops.job_view import find_job

    job_view = find_job(api, job)
    if job_view.status is None:
        return None
    status = job_view.status
    started = [event for event in job_view.published_status.events if isinstance(event, RunStarted) and event.resumed]
    changes = started[-1].changes if started else ()
    total, done = status.records_total, status.records_done
    facts: dict[str, Any] = {"run": status.run, "records_done": done, "records_total": total, "changes": [*changes]}
    share = f", {100 * done // total} % done" if total else ""
    lines = [f"It continues run {status.run}{share}.", *(f"  changed: {change}" for change in changes)]
    reporter.report_event("resumed", facts, "\n".join(lines))
    return status.run
