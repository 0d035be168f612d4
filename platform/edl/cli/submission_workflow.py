"""A submission from plan to start: ask the cluster, show the plan, ask the user, create, see the master start."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edl.api.errors import BadInputError, EdlError, JobFailedError
from edl.cli.job_resumption import Foreseen, check_resumable, tell_resumed
from edl.cli.options import agreed, api_of
from edl.cli.submission_plan import KubePlan
from edl.cli.submission_reporter import Voice
from edl.cluster.kubernetes.api_errors import ApiError
from edl.cluster.kubernetes.job_manifests import notes
from edl.cluster.kubernetes.names import AT_CHECKPOINT
from edl.jobfile.job_spec import JobSpec
from edl.ops.cluster_capacity import Room
from edl.ops.followup_command import called
from edl.ops.job_forecast import Forecast, forecast
from edl.ops.namespace_quotas import Quotas
from edl.ops.removal_progress import remove
from edl.ops.submission_request import Request, request_of
from edl.reporting.status_line import Ticker

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import Api
    from edl.ops.job_submission import Submitted
    from edl.ops.master_start import Sight
    from edl.ops.preflight import Survey

DECLINED, INTERRUPTED = 1, 130
_TOKEN_BYTES = 32
_NOT_IN_THE_IMAGE = ("executable file not found", "no such file or directory")
"""What container runtimes say of a command that is not there."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; see ``edl.cli.submit``."""

    job_file: Path
    settings: Sequence[str] = ()
    resume: str | None = None
    context: str | None = None
    namespace: str | None = None
    yes: bool = False
    watch: bool = False
    as_json: bool = False
    from_checkpoint: bool = False

    @property
    def run(self) -> str | None:
        """The run that the Job is to go on with, as its annotation says it."""
        return self.resume + AT_CHECKPOINT if self.resume is not None and self.from_checkpoint else self.resume

    def command(self, verb: str, job: str) -> str:
        """Another command about the job, with the same cluster and namespace."""
        return f"edl {verb} {called(job, self.context, self.namespace)}"

    def again(self) -> str:
        """This submission, to be gone on with: a run id may follow."""
        return f"edl submit {called(str(self.job_file), self.context, self.namespace, self.settings)} --resume"

    def rendered(self) -> str:
        """The command that prints the manifests of this submission; it asks no cluster, and so names none."""
        run = f" --resume {self.run}" if self.run else ""
        return f"edl render {called(str(self.job_file), None, self.namespace, self.settings)}{run}"


class StartError(JobFailedError):
    """The master did not start; nothing of the job is left in the cluster."""


class LostSightError(JobFailedError):
    """The cluster does not tell any more what becomes of a job that was submitted; the job goes on."""


def client_plan(spec: JobSpec, options: Options) -> KubePlan:
    """The plan as far as it is known without a cluster."""
    request = request_of(spec, namespace=options.namespace, run=options.run)
    outlook = forecast(request.crowds, None, Quotas(()))
    named = (options.job_file, options.namespace, options.context)
    return KubePlan(spec, *named, request.manifests, outlook, run=options.run, warnings=tuple(notes(spec)), asked=False)


def new_token() -> str:
    """The secret of a job."""
    return secrets.token_hex(_TOKEN_BYTES)


def submitted(spec: JobSpec, options: Options, voice: Voice, *, dry_run: bool) -> int:
    """Submit the job; returns the exit code of the command.

    Raises:
        PreflightError: the cluster would not take it; nothing was created.
        StartError: its master did not start; everything was removed.
        ApiError: the cluster refuses; everything was removed.
        LostSightError: it refuses, or is away, when the master was asked for already.
    """
    api = api_of(options.context, options.namespace)
    request = request_of(spec, namespace=api.namespace, token=new_token(), run=options.run)
    plan = planned(api, spec, options, request)
    voice.planned(plan)
    if dry_run:
        voice.note("The cluster would accept all of it. Nothing was created.")
        return 0
    if not options.yes and options.as_json:
        raise BadInputError("--json asks nobody", where="edl submit", hint="Say so beforehand: --yes.")
    if not agreed(f"Submit {spec.name}?", yes=options.yes, command="edl submit"):
        voice.note("Nothing was created.")
        return DECLINED
    return _carry_out(api, options, request, plan, voice)


def planned(api: Api, spec: JobSpec, options: Options, request: Request) -> KubePlan:
    """The plan, after the cluster was asked whether it would take the job.

    Raises:
        PreflightError: it would not.
        BadInputError: the run cannot be gone on with.
    """
    from edl.ops.existing_job import existing
    from edl.ops.preflight import survey

    with Ticker() as ticker:
        ticker.say(f"asking {api.host} …", lasting=False)
        answers = survey(api, request)
    foreseen = Foreseen()
    if options.resume is not None:
        foreseen = check_resumable(answers.there, spec, options.resume)
    quotas = Quotas(answers.quotas or ())
    left = None if answers.quotas is None else quotas.left()
    return KubePlan(
        spec,
        options.job_file,
        api.namespace,
        api.context,
        request.manifests,
        _outlook(api, request, answers, quotas),
        left,
        existing(answers.there),
        options.run,
        foreseen.changes,
        (*foreseen.warnings, *notes(spec), *answers.remarks),
    )


def _outlook(api: Api, request: Request, answers: Survey, quotas: Quotas) -> Forecast:
    from edl.ops.preflight import PreflightError
    from edl.ops.preflight_findings import merged, of_quota

    known = answers.nodes is not None and answers.tenants is not None
    room = Room(answers.nodes or (), answers.tenants or ()) if known else None
    outlook = forecast(answers.crowds, room, quotas)
    if refused := of_quota(outlook.fits, quotas):
        raise PreflightError(request.job, api.namespace, merged(refused))
    return outlook


def _carry_out(api: Api, options: Options, request: Request, plan: KubePlan, voice: Voice) -> int:
    from edl.ops.job_submission import create

    if plan.replaced is not None:
        remove(api, request.job)
        voice.note(f"The ended job {request.job} was removed.")
    made = create(api, request.job, request.manifests, uuid.uuid4().hex)
    facts = {"job": made.name, "namespace": made.namespace, "uid": made.uid, "run": options.resume or made.uid}
    voice.happened("submitted", facts, f"Job {made.name} submitted to namespace {made.namespace}.")
    try:
        return _see_it_start(api, options, made, voice)
    except KeyboardInterrupt:
        voice.note(f"The job goes on without this command. Remove it with: {options.command('delete', made.name)}")
        return INTERRUPTED
    except ApiError as error:
        hint = f"The job goes on without this command: {options.command('status', made.name)}"
        raise LostSightError(error.message, where=error.where, hint=hint) from error


def _see_it_start(api: Api, options: Options, made: Submitted, voice: Voice) -> int:
    from edl.ops.master_start import Lookout, Stage, await_start

    began = time.monotonic()
    with Ticker() as ticker:
        lookout = Lookout(api, made.name, made.uid)
        sight = await_start(lookout.look, lambda seen: ticker.say(said(seen)), time.monotonic, time.sleep)
    if sight.stage is Stage.FAILED:
        raise refusal(made.name, sight, _removed(api, options, made.name))
    seconds = time.monotonic() - began
    facts = {"stage": sight.stage.value, "reason": sight.reason, "message": sight.message, "seconds": round(seconds, 3)}
    run = options.resume or made.uid
    if sight.started:
        voice.happened("started", facts, f"The master started after {seconds:.0f} s.")
        if options.resume is not None:
            run = tell_resumed(api, made.name, voice) or run
    else:
        voice.happened("waiting", facts, f"Not started yet, after {seconds:.0f} s: {said(sight)}")
    if options.watch:
        from edl.ops.job_following import Watched, follow

        watched = Watched(made.name, run, options.again(), options.command("delete", made.name))
        return follow(api, watched, made.uid, as_json=options.as_json)
    voice.note("\n".join(next_steps(options, made.name, started=sight.started)))
    return 0


def said(sight: Sight) -> str:
    """Where the master is, in a line."""
    pod = f" ({sight.pod})" if sight.pod else ""
    why = ": ".join(part for part in (_about(sight), sight.reason, " ".join(sight.message.split())) if part)
    return f"master {_STAGES[sight.stage.value]}{pod}" + (f": {why}" if why else "")


_STAGES = {
    "no pod yet": "has no pod yet",
    "pending": "waits for a node",
    "creating": "is being created",
    "running": "runs",
    "serving": "is at work",
    "being replaced": "is being replaced",
    "ended": "has ended",
    "failed": "failed",
}
"""By the values of ``edl.ops.master_start.Stage``."""


def _about(sight: Sight) -> str:
    return f"init container {sight.container}" if sight.container else ""


def _removed(api: Api, options: Options, job: str) -> str:
    """Remove a job that did not start; whatever comes of that, its reason is what the user must see."""
    try:
        remove(api, job)
    except EdlError as error:
        return f"Not all of it could be removed ({error.message}): {options.command('delete', job)}"
    return "Everything was removed."


def refusal(job: str, sight: Sight, removed: str) -> StartError:
    """Why the master did not start, in the container's or the kubelet's own words; ``removed``: what is left of it."""
    code = "" if sight.exit_code is None else f"exit code {sight.exit_code}"
    reason = "" if code and sight.reason == "Error" else sight.reason
    how = ", ".join(part for part in (_about(sight), reason, code) if part)
    words = "\n".join(f"  {line}" for line in sight.message.splitlines())
    hint = f"{_remedy(sight)} {removed}".strip()
    return StartError(f"The master did not start ({how})" + (f":\n{words}" if words else ""), where=job, hint=hint)


def _remedy(sight: Sight) -> str:
    if sight.container and "mage" in sight.reason:
        return f"Check the image of {sight.container} in pod.overrides; the nodes must reach its registry."
    if "edl-role" in sight.message and any(words in sight.message for words in _NOT_IN_THE_IMAGE):
        return "The image has no edl-role: edl zoo build makes images that have it."
    if "mage" in sight.reason:
        return "Check image and pod.image_pull_secrets in the job file; the nodes must reach the registry."
    return ""


def next_steps(options: Options, job: str, *, started: bool) -> Sequence[str]:
    """What people do next."""
    first = [] if started else [f"  Why:     {options.command('why', job)}"]
    return [
        *first,
        f"  Watch:   {options.command('status', job)}",
        f"  Logs:    {options.command('logs', job)} -f",
        f"  Remove:  {options.command('delete', job)}",
    ]
