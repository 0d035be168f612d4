"""``edl submit``: train a job on a cluster."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from edl.api.errors import BadInputError, EdlError
from edl.api.job_spec import JobSpec
from edl.cli.options import (
    ContextOption,
    NamespaceOption,
    YesOption,
)
from edl.cli.resume_option import FromCheckpointOption, OptionalRunCommand, check_from_checkpoint
from edl.cli.submission_plan import make_reporter
from edl.cli.submission_workflow import SubmitOptions, plan_and_submit, plan_without_cluster
from edl.cluster.kubernetes.spec_validation import find_submission_problems
from edl.jobfile.loader import load_job_file
from edl.jobfile.path_resolution import JOB_FILE_SUFFIXES, has_shared_storage
from edl.storage.run_directory import NEWEST_RUN

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class DryRunMode(StrEnum):
    """Who is asked whether a job could be submitted."""

    CLIENT = "client"
    SERVER = "server"


class OptionalClusterRunCommand(OptionalRunCommand):
    """Whatever is neither an option nor a job file is a run, be it a wrong one: better refused than misunderstood."""

    run_id_pattern = re.compile(rf"{NEWEST_RUN}|r[1-9][0-9]*|[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
    """Runs on a cluster have the uid of the Job that began them."""

    def is_run_id(self, word: str) -> bool:
        """Whether the word after ``--resume`` is meant as a run."""
        is_file = Path(word).suffix in JOB_FILE_SUFFIXES or Path(word).is_file()
        return bool(word) and not word.startswith("-") and (super().is_run_id(word) or not is_file)


@app.command(cls=OptionalClusterRunCommand)
def submit(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, such as train.epochs=3; repeatable."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="[RUN]", help="Continue a run of the job; the newest by default.")
    ] = None,
    from_checkpoint: FromCheckpointOption = False,
    dry_run: Annotated[
        DryRunMode | None,
        typer.Option(
            "--dry-run",
            help="Create nothing. client: contact no cluster; server: check that the API server would accept the job.",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch/--detach", help="Wait until the job has ended.")] = False,
    yes: YesOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line; needs --yes.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Train a job on a cluster: show a plan, ask, create the job and wait until its master has started.

    Exit codes: 0 submitted (with --watch: done), 1 it did not start or failed, 2 bad input or refused by the cluster.
    """
    check_from_checkpoint(resume, from_checkpoint=from_checkpoint)
    options = SubmitOptions(
        job,
        settings or (),
        resume,
        context,
        namespace,
        skips_confirmation=yes,
        watches_job=watch,
        as_json=as_json,
        from_checkpoint=from_checkpoint,
    )
    submit_job_file(options, dry_run)


def submit_job_file(options: SubmitOptions, dry_run: DryRunMode | None = None) -> NoReturn:
    """Submit a job file, or show the plan; ends with the exit code of the command.

    Raises:
        EdlError: it cannot be submitted; this was reported.
    """
    reporter = make_reporter(as_json=options.as_json)
    job, code = options.job_file, 0
    try:
        spec = load_job_file(job, options.field_settings, extra_rules=find_submission_problems)
        _check_resume_option(spec, job, options.resume_run)
        if dry_run is DryRunMode.CLIENT:
            reporter.report_plan(plan_without_cluster(spec, options))
            reporter.report_note(f"No cluster was contacted. To print the manifests: {options.render_command()}")
        else:
            code = plan_and_submit(spec, options, reporter, dry_run=dry_run is DryRunMode.SERVER)
    except EdlError as error:
        reporter.report_failure(error)
        raise
    raise typer.Exit(code)


def _check_resume_option(spec: JobSpec, job: Path, resume: str | None) -> None:
    if resume is not None and spec.task != "train":
        raise BadInputError(
            f"--resume continues training, and the job's task is {spec.task}",
            where=str(job),
            hint="Submit it without --resume; model.weights names what it works with.",
        )
    if resume is not None and not has_shared_storage(spec):
        raise BadInputError(
            "--resume needs the volume that holds the earlier run, and the job has none",
            where=str(job),
            hint="Without a volume, a run is lost with its master's pod.",
        )
    if resume is not None and not OptionalClusterRunCommand.run_id_pattern.fullmatch(resume):
        raise BadInputError(
            f"{resume!r} is not the name of a run: a run on a cluster is named by the uid of the Job that started it",
            where="--resume",
            hint="edl status and edl stop show it; --resume alone continues the newest run.",
        )
