"""``python -m edl.cli.submitter SPEC``: the program in a submitter's pod; see ``edl.ops.release``.

Without a release (``EDL_RELEASE``) it runs ``edl submit SPEC --yes --watch``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from edl.api.errors import EdlError, JobFailedError, RetryableError
from edl.api.exit_codes import REFUSED_EXIT, SIGTERM_EXIT, TRY_AGAIN_EXIT
from edl.api.job_spec import JobSpec
from edl.cli.options import connect_api
from edl.cli.submission_plan import TextReporter
from edl.cli.submission_workflow import SubmitOptions, master_status_text, plan_submission, start_error
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import ApiError, NotFoundError
from edl.cluster.kubernetes.job_manifests import new_job_token
from edl.cluster.kubernetes.resource_kinds import JOBS
from edl.cluster.kubernetes.spec_validation import find_submission_problems
from edl.jobfile.loader import load_job_file
from edl.ops.job_deletion import DeletionTimeoutError, JobObjects, format_object_list
from edl.ops.job_following import WatchedJob, follow_job
from edl.ops.job_submission import (
    MasterStatusReader,
    SubmittedJob,
    create_dependents,
    create_suspended_job,
    roll_back_submission,
    unsuspend_job,
)
from edl.ops.job_view import job_conditions
from edl.ops.preflight import PreflightError
from edl.ops.release.release_view import (
    ReleaseCleanup,
    SubmitterIdentity,
    add_release_labels,
    mark_submitted,
    read_identity,
    read_release_view,
)
from edl.ops.release.submitter_decision import (
    CLEANUP_TIMEOUT_SECONDS,
    CleanupTimeout,
    MasterJob,
    RetryDeadline,
    StartTimeout,
    SubmitterDecision,
    SubmitterStep,
    decide_step,
)
from edl.ops.removal_progress import leftovers_text
from edl.ops.submission_request import SubmissionRequest, build_request
from edl.reporting.terminal_text import sanitize_standard_streams
from edl.reporting.text_table import StatusLine
from edl.reporting.unit_formats import format_duration

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.job_view import JobView


POLL_SECONDS = 1.0
MASTER_END_SECONDS = 30.0
"""Seconds that a master may take after the end of its job, to store its last logs and exit."""
# The codes that a job's end is reduced to, because the Job controller acts on them: see exit_code.
_FAILED, _REFUSED = 1, 2


class JobVanishedError(JobFailedError):
    """The job no longer exists. The next decision finds out who removed it."""


@dataclass(frozen=True, slots=True)
class SubmitterClock:
    """A monotonic clock in seconds, and a sleep that matches it. Tests replace both."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class ReleaseSubmitter:
    """Submits the job of one release and follows it to its end.

    Args:
        api: client for the release's namespace.
        identity: the release and the Job of this submitter.
        spec: the job under its name in the cluster; see ``SubmitterIdentity.derive_job_name``.
        source: the file that the job was read from.
    """

    def __init__(
        self,
        api: KubeClient,
        identity: SubmitterIdentity,
        spec: JobSpec,
        source: Path,
        time: SubmitterClock | None = None,
    ) -> None:
        self._api, self._identity, self._spec, self._clock = api, identity, spec, time or SubmitterClock()
        self._submit_options = SubmitOptions(
            source, resume_run=identity.resume_run, namespace=api.namespace, skips_confirmation=True, watches_job=True
        )
        self._release_cleanup = ReleaseCleanup(api, spec.name)
        self._failure_timeout, self._cleanup_timeout = RetryDeadline(), CleanupTimeout()
        self._reporter, self._decision_line, self._progress_line = (
            TextReporter(),
            StatusLine(sys.stdout),
            StatusLine(sys.stdout),
        )

    def follow_release(self) -> int:
        """Run until the job has ended or was replaced; return the exit code.

        Raises:
            RetryableError: the API server was unavailable for too long.
            DeletionTimeoutError: objects of an earlier job were not deleted in time.
            EdlError: the job was refused or failed.
        """
        # Each round reads the release anew and takes one step. Two submitters of one release cannot
        # both keep a job, because each decides again before its suspended Job may start.
        while True:
            try:
                decision = decide_step(read_release_view(self._api, self._identity))
                if decision.step is SubmitterStep.DELETED:
                    raise JobFailedError(decision.reason, where=f"release {self._identity.release}")
                self._decision_line.show_text(f"release {self._identity.release}: {decision.reason}")
                if decision.step is SubmitterStep.REPLACED:
                    return 0
                if decision.step is SubmitterStep.FOLLOW:
                    return self._follow_job(decision.master_jobs[0])
                self._take_step(decision)
                self._failure_timeout.reset()
            except JobVanishedError:
                continue  # the next decision says why
            except (ApiError, PreflightError, RetryableError) as error:
                self._wait_or_raise(error)

    def _wait_or_raise(self, error: EdlError) -> None:
        """Wait before the next attempt. Raise the error if it has lasted for too long."""
        if self._failure_timeout.may_retry(error, self._clock.clock()):
            self._progress_line.show_text(f"{error.message.splitlines()[0]}; retrying")
            self._clock.sleep(POLL_SECONDS)
            return
        # After a retryable error a new pod continues with the suspended Job.
        if not isinstance(error, RetryableError):
            self._roll_back_job(error)
        raise error

    def _roll_back_job(self, cause: EdlError) -> None:
        """Remove the suspended Job of a submission that cannot be completed."""
        name = names.master_name(self._spec.name)
        try:
            roll_back_submission(self._api, name, self._identity.submission_id)
        except ApiError as error:
            cause.hint = f"The suspended Job {name} may still exist ({error.message}); it is deleted with the release."

    def _take_step(self, decision: SubmitterDecision) -> None:
        """Take one step towards a running job."""
        if decision.step is SubmitterStep.FINISH:
            self._complete_job(decision.master_jobs[0])
        elif self._is_cleanup_pending(self._release_cleanup.delete_round(decision.master_jobs)):
            self._clock.sleep(POLL_SECONDS)
        elif decision.step is SubmitterStep.SUBMIT:
            self._reserve_job()

    def _is_cleanup_pending(self, left: JobObjects) -> bool:
        """Whether objects of an earlier job still exist.

        Raises:
            DeletionTimeoutError: they still exist after the timeout.
        """
        if self._cleanup_timeout.has_expired(left=bool(left), now=self._clock.clock()):
            raise DeletionTimeoutError(
                f"After {format_duration(CLEANUP_TIMEOUT_SECONDS)} these objects still exist: "
                f"{format_object_list(left.objects)}",
                where=f"release {self._identity.release}",
                hint="A new pod will try again. `kubectl describe pod` shows why an old pod is not deleted.",
            )
        if left:
            self._progress_line.show_text(f"an earlier job is {leftovers_text(left)}")
        return bool(left)

    def _build_request(self) -> SubmissionRequest:
        request = build_request(
            self._spec, namespace=self._api.namespace, token=new_job_token(), run=self._identity.resume_run
        )
        return replace(request, manifests=add_release_labels(request.manifests, self._identity), replaces_ended=False)

    def _reserve_job(self) -> None:
        """Check that the cluster would accept the job, and reserve its name with a suspended Job.

        The next decision completes the job or gives it up.
        """
        request = self._build_request()
        plan = plan_submission(self._api, self._spec, self._submit_options, request)
        self._reporter.report_plan(plan)
        create_suspended_job(self._api, request.job_name, request.manifests[-1], self._identity.submission_id)

    def _complete_job(self, own: MasterJob) -> None:
        # The dependents and the mark exist before the Job may start. The mark names the Job, so a
        # later pod of this submitter can tell it from a Job that replaced it.
        *parts, job = self._build_request().manifests
        submitted = SubmittedJob(own.job_name, job["metadata"]["name"], own.uid, self._api.namespace)
        create_dependents(self._api, submitted, parts)
        mark_submitted(self._api, self._identity, own.uid)
        unsuspend_job(self._api, submitted)
        self._reporter.report_note(f"Job {submitted.name} submitted to namespace {submitted.namespace}.")

    def _follow_job(self, own: MasterJob) -> int:
        """Follow the job to its end. A restarted submitter shows the newest events again."""
        release, where = self._identity.release, f"-n {self._api.namespace}"
        resume_command = f"helm upgrade {release} … {where} --set resume=latest"
        watched = WatchedJob(
            own.job_name, self._identity.resume_run or own.uid, resume_command, f"helm uninstall {release} {where}"
        )
        code = follow_job(self._api, watched, own.uid, as_json=False, observe=self._start_observer(own))
        self._wait_for_master_end(own)
        return code if code in (0, _REFUSED) else _FAILED

    def _wait_for_master_end(self, own: MasterJob) -> None:
        """Wait until the master's Job has ended.

        A CronJob without history deletes this submitter's Job when it ends, and the master's Job
        with it.
        """
        end = self._clock.clock() + MASTER_END_SECONDS
        while self._clock.clock() < end:
            with suppress(ApiError, RetryableError):
                if self._has_master_ended(own):
                    return
            self._clock.sleep(POLL_SECONDS)

    def _has_master_ended(self, own: MasterJob) -> bool:
        try:
            job = self._api.get(JOBS, names.master_name(own.job_name))
        except NotFoundError:
            return True
        return job["metadata"]["uid"] != own.uid or bool({"Complete", "Failed"} & set(job_conditions(job)))

    def _start_observer(self, own: MasterJob) -> Callable[[JobView | None], None]:
        """A callback that ends the watch of a job that is gone, or whose master does not start."""
        reader, timeout = MasterStatusReader(self._api, own.job_name, own.uid), StartTimeout()

        def check_master_start(view: JobView | None) -> None:
            self._failure_timeout.reset()
            if view is None:
                raise JobVanishedError(f"the job {own.job_name} was deleted")
            if view.status is not None or view.has_ended:
                return
            sight = reader.read_status()
            self._progress_line.show_text(master_status_text(sight))
            if timeout.has_expired(sight, self._clock.clock()):
                self._release_cleanup.delete_round([own])
                raise start_error(own.job_name, sight, "Its objects are being removed.")

        return check_master_start


_RETRYABLE_ERRORS = (RetryableError, DeletionTimeoutError)


def main(arguments: Sequence[str] | None = None, variables: Mapping[str, str] | None = None) -> NoReturn:
    """Run the submitter. Exit codes: 0 done or replaced, 1 failed, 2 refused, 75 retry, 143 SIGTERM."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if len(words) != 1:
        print("usage: python -m edl.cli.submitter SPEC", file=sys.stderr)
        sys.exit(REFUSED_EXIT)
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    with sanitize_standard_streams():
        try:
            sys.exit(_run_submitter(Path(words[0]), os.environ if variables is None else variables))
        except EdlError as error:
            print(error, file=sys.stderr, flush=True)
            sys.exit(exit_code(error))


def exit_code(error: EdlError) -> int:
    """The exit code for an error. It tells the Job controller whether a new pod may succeed."""
    if isinstance(error, _RETRYABLE_ERRORS):
        return TRY_AGAIN_EXIT
    return REFUSED_EXIT if isinstance(error, ApiError) else min(error.exit_code, REFUSED_EXIT)


def _run_submitter(source: Path, variables: Mapping[str, str]) -> int:
    identity = read_identity(variables)
    if identity is None:
        from edl.cli import app

        app.main(["submit", str(source), "--yes", "--watch"])
        raise AssertionError("unreachable")
    return ReleaseSubmitter(connect_api(None, None), identity, _load_spec(source, identity), source).follow_release()


def _load_spec(source: Path, identity: SubmitterIdentity) -> JobSpec:
    """The job under the name that it has in the cluster."""
    spec = load_job_file(source, extra_rules=find_submission_problems)
    name = identity.derive_job_name(spec.name)
    return spec if name == spec.name else load_job_file(source, [f"name={name}"], extra_rules=find_submission_problems)


def _exit_on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    """Exit at once, because process 1 has no default action for SIGTERM.

    There is nothing to clean up, and waiting for a pending request could take too long.
    """
    # os.write: the signal may interrupt a print, and Python's streams are not reentrant.
    os.write(sys.stderr.fileno(), b"received SIGTERM: the job continues\n")
    os._exit(SIGTERM_EXIT)


if __name__ == "__main__":
    main()
