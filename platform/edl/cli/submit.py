"""``edl submit``: train a job on a cluster."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from edl.api.errors import BadInputError, EdlError
from edl.cli.options import ContextOption, NamespaceOption, YesOption
from edl.cli.resume_option import FromCheckpointOption, ResumeMayStandAlone, check_from_checkpoint
from edl.cli.submission_reporter import Voice, voice
from edl.cli.submission_workflow import Options, client_plan, submitted
from edl.cluster.kubernetes.job_manifests import problems
from edl.cluster.kubernetes.names import LATEST
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.loader import load
from edl.jobfile.path_resolution import is_shared

_JOB_FILES = (".yaml", ".yml", ".json")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class DryRun(StrEnum):
    """Who is asked whether a job could be submitted."""

    CLIENT = "client"
    SERVER = "server"


class RunMayBeLatest(ResumeMayStandAlone):
    """Whatever is neither an option nor a job file is a run, be it a wrong one: better refused than misunderstood."""

    run_id = re.compile(rf"{LATEST}|r[1-9][0-9]*|[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
    """Runs on a cluster have the uid of the Job that began them."""
    newest = LATEST

    def names_run(self, word: str) -> bool:
        """Whether the word after ``--resume`` is meant as a run."""
        is_file = Path(word).suffix in _JOB_FILES or Path(word).is_file()
        return bool(word) and not word.startswith("-") and (super().names_run(word) or not is_file)


@app.command(cls=RunMayBeLatest)
def submit(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, such as train.epochs=3; repeatable."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="[RUN]", help="Go on with a run of the job; the newest by default.")
    ] = None,
    from_checkpoint: FromCheckpointOption = False,
    dry_run: Annotated[
        DryRun | None,
        typer.Option("--dry-run", help="Create nothing: client asks no cluster, server asks whether it would accept."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch/--detach", help="Stay until the job has ended.")] = False,
    yes: YesOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line; needs --yes.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Train a job on a cluster: shows a plan, asks, and waits until the master has started.

    Exit codes: 0 submitted (with --watch: done), 1 it did not start or failed, 2 bad input or refused by the cluster.
    """
    speaker = voice(as_json=as_json)
    check_from_checkpoint(resume, from_checkpoint=from_checkpoint)
    options = Options(
        job,
        settings or (),
        resume,
        context,
        namespace,
        yes=yes,
        watch=watch,
        as_json=as_json,
        from_checkpoint=from_checkpoint,
    )
    try:
        _submit(options, speaker, dry_run)
    except EdlError as error:
        speaker.failed(error)
        raise


def _submit(options: Options, speaker: Voice, dry_run: DryRun | None) -> None:
    job = options.job_file
    spec = load(job, options.settings, required=("training",), demands=problems)
    _check_resume(spec, job, options.resume)
    if dry_run is DryRun.CLIENT:
        speaker.planned(client_plan(spec, options))
        speaker.note(f"No cluster was asked. The manifests: {options.rendered()}")
        return
    raise typer.Exit(submitted(spec, options, speaker, dry_run=dry_run is DryRun.SERVER))


def _check_resume(spec: JobSpec, job: Path, resume: str | None) -> None:
    if resume is not None and not is_shared(spec):
        raise BadInputError(
            "--resume needs the volume that holds the earlier run, and the job has none",
            where=str(job),
            hint="Without volumes a run is gone with its master's pod.",
        )
    if resume is not None and not RunMayBeLatest.run_id.fullmatch(resume):
        raise BadInputError(
            f"no run has the name {resume!r}: runs on a cluster have the uid of the Job that began them",
            where="--resume",
            hint="edl status and edl stop tell it; --resume alone goes on with the newest run.",
        )
