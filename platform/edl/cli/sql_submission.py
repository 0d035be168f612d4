"""``edl sql --submit``: a statement as a job on a cluster."""

from __future__ import annotations

import io
import json
import os
import posixpath
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from edl.api.errors import BadInputError, EdlError, JobFailedError
from edl.api.job_spec import JobSpec
from edl.cli.options import connect_api
from edl.cli.sql_volume import VolumeUpload, fetch_result, place_database, place_module, run_on_models, upload
from edl.cli.submission_plan import make_reporter
from edl.cli.submission_workflow import SubmitOptions, plan_and_submit
from edl.cluster.kubernetes.spec_validation import find_submission_problems
from edl.jobfile.database_address import (
    DATABASE_VARIABLE,
    ENVIRONMENT_SCHEME,
    SERVER_SCHEMES,
    address_to_store,
    has_password,
)
from edl.jobfile.loader import load_job_file
from edl.ops.followup_command import command_arguments
from edl.sql_jobs.cluster_job import (
    FOLDER,
    ClusterOptions,
    cluster_job,
    find_module,
    lies_on_volume,
    plan_notes,
    require_job,
)
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statement_runner import Result, dialect_of
from edl.sql_jobs.statements import (
    DropModelStatement,
    ExplainStatement,
    JobStatement,
    ShowModelsStatement,
    ShowTrainStatement,
    Statement,
)

if TYPE_CHECKING:
    import pandas as pd

_OF_MODELS = (ShowModelsStatement, ShowTrainStatement, DropModelStatement)
_LAST_LINES = 5
_PASSWORD_VARIABLE = "EDL_DATABASE_PASSWORD"  # noqa: S105  its name
_CREDENTIALS_HINT = (
    "make a Secret with the keys EDL_DATABASE_USER and EDL_DATABASE_PASSWORD (or EDL_DATABASE, the whole address, for "
    "--database env://EDL_DATABASE), have an admin allow it with admission.allowedSecrets, and name it with "
    "--database-secret"
)


@dataclass(frozen=True, slots=True)
class StatementSubmission(SubmitOptions):
    """The options of a statement; its job file is made of the statement."""

    again: str = ""

    @property
    def replaces_ended(self) -> bool:
        """What came out of an ended job is on the volume."""
        return True

    def resume_command(self) -> str:
        """A statement has no run to continue: it is submitted again."""
        return self.again


@dataclass(frozen=True, slots=True)
class SubmissionTarget:
    """What the command line says about the cluster.

    Attributes:
        job_file: with image, volumes and the like.
        settings: of ``--set``.
        secret: name of the Secret with the credentials of the database.
        dry_run: print the manifests.
    """

    job_file: Path | None = None
    settings: tuple[str, ...] = ()
    secret: str | None = None
    context: str | None = None
    namespace: str | None = None
    skips_confirmation: bool = False
    watches_job: bool = True
    dry_run: bool = False


def cluster_dialect(database: str | None) -> str | None:
    """The dialect of a database. A cluster may know the address that a variable has, and this machine not."""
    scheme, _, variable = (database or "").partition("://")
    return None if scheme == ENVIRONMENT_SCHEME and variable not in os.environ else dialect_of(database)


@dataclass
class StatementSubmitter:
    """Runs statements on a cluster.

    Attributes:
        database: its address; None: only statements that need none can run.
        target: the cluster.
        models: folder of models on a volume; None: that of the first volume.
        replaces: a model that exists gets a new version, and a table that exists is replaced.
        query_seconds: what a query may take in the database; None: no limit.
        fetches_results: the result of each statement is fetched from the volume.
        result: of the last statement, if it was fetched.
        batches: rows with predictions of the last statement.
    """

    database: str | None
    target: SubmissionTarget
    models: Path | None = None
    replaces: bool = False
    query_seconds: float | None = None
    fetches_results: bool = False
    result: Result | None = None
    batches: list[Any] = field(default_factory=list)

    def submit(self, parsed: Sequence[tuple[Statement, str]]) -> int:
        """Submit statements one after the other, until one fails; returns the exit code of the command.

        Raises:
            EdlError: one cannot be submitted; if its job was planned, this was reported.
        """
        target = self.target
        if len(parsed) > 1 and not target.watches_job:
            raise BadInputError(
                f"is for one statement, and there are {len(parsed)}", where="--detach", hint="the next one waits for it"
            )
        jobs = [require_job(statement) for statement, _ in parsed if not isinstance(statement, _OF_MODELS)]
        if jobs and self.database is None:
            raise BadInputError("is missing", where="--database", hint="give --database or set EDL_DATABASE")
        if jobs:
            _check_credentials(self.database or "", target.secret)
        base = _read_base(target.job_file)
        for statement, text in parsed:
            with tempfile.TemporaryDirectory(prefix="edl-sql-") as folder:
                if isinstance(statement, _OF_MODELS):
                    self._run_on_models(statement, text, base, Path(folder))
                    continue
                code = self._submit(require_job(statement), text, base, Path(folder))
            if code:
                return code
        return 0

    def _submit(self, statement: JobStatement, text: str, base: dict[str, Any], folder: Path) -> int:
        target, database = self.target, self.database or ""
        options = ClusterOptions(
            database, base, target.settings, target.secret, None, self.replaces, self.query_seconds
        )
        spec = _require_volume(_load(cluster_job(statement, text, options, "/"), target, folder, checked=False))
        address, database_copy = place_database(database, spec, folder)
        modules, module_copy = place_module(find_module(statement), spec)
        options = replace(options, database=address, models=_models_folder(self.models, spec), modules=modules)
        spec = _load(cluster_job(statement, text, options, spec.volumes[0].mount), target, folder)
        uploads = [each for each in (database_copy, module_copy) if each is not None]
        notes = plan_notes(statement, options)
        if target.dry_run:
            _print_manifests(spec, target, uploads, notes)
            return 0
        reporter = make_reporter(as_json=False)
        for note in notes:
            reporter.report_note(note)
        # The default of a command line is the same statement again.
        submission = StatementSubmission(
            folder / "job.json",
            (),
            None,
            target.context,
            target.namespace,
            skips_confirmation=target.skips_confirmation,
            watches_job=target.watches_job,
            again=f"edl sql --submit {shlex.quote(text)}",
        )
        try:
            code = plan_and_submit(
                spec,
                submission,
                reporter,
                dry_run=False,
                before_creation=lambda api: upload(api, spec, uploads),
            )
        except EdlError as error:
            reporter.report_failure(error)
            raise
        if code or not target.watches_job:
            return code
        if self.fetches_results or isinstance(statement, ExplainStatement):
            self._fetch(spec, statement, folder)
        if database_copy is not None and spec.task != "train":
            place = f"{database_copy.copy.claim}:{database_copy.copy.claim_path}"
            arguments = command_arguments(place, target.context, target.namespace)
            reporter.report_note(
                f"Its database is a copy: edl data cp {arguments} --image {spec.image} FILE brings it back."
            )
        return code

    def _fetch(self, spec: JobSpec, statement: JobStatement, folder: Path) -> None:
        from edl.cli.sql_output import print_result
        from edl.ops.job_view import find_job

        api = connect_api(self.target.context, self.target.namespace)
        status = find_job(api, spec.name).status
        if status is None:
            raise JobFailedError("its master published no status", where=spec.name, hint=f"edl why {spec.name}")
        self.result, self.batches = fetch_result(api, spec, status.run_dir, statement, folder)
        if isinstance(statement, ExplainStatement):
            print_result(self.result)

    def _run_on_models(self, statement: Statement, text: str, base: dict[str, Any], folder: Path) -> None:
        from edl.cli.sql_output import print_result

        target = self.target
        if target.dry_run:
            raise BadInputError("is for statements that are jobs", where="--dry-run", hint="leave it out")
        document = {"name": "edl-sql", **base, "model": {"definition": "model.custom_model"}, "data": {"training": "/"}}
        spec = _require_volume(_load(document, target, folder, checked=False))
        place = _models_folder(self.models, spec) or posixpath.join(spec.volumes[0].mount, FOLDER, "models")
        api = connect_api(target.context, target.namespace)
        self.result, self.batches = run_on_models(api, spec, place, statement, text, folder), []
        print_result(self.result)


def submit_quietly(submitter: StatementSubmitter, parsed: Sequence[tuple[Statement, str]]) -> None:
    """Submit statements, and print nothing.

    Raises:
        EdlError: one cannot be submitted, or its job failed; the message has the last lines of what was said.
    """
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = submitter.submit(parsed)
    if code:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise JobFailedError("\n".join(lines[-_LAST_LINES:]) or f"it ended with exit code {code}", where="the job")


def submit_to_frame(
    statements: str,
    database: str | None,
    *,
    replace: bool,
    models: str | Path | None,
    export: str | Path | None,
    query_timeout: float | None,
    job_file: str | Path | None,
    settings: tuple[str, ...],
    database_secret: str | None,
    context: str | None,
    namespace: str | None,
) -> pd.DataFrame:
    """What ``edl.sql`` does with ``submit``; its docstring has the arguments."""
    from edl.sql_jobs.data_frames import require_pandas, result_frame

    require_pandas()
    if export is not None:
        raise BadInputError("is for a training on this machine", where="export", hint="leave out submit")
    database = address_to_store(database or os.environ.get(DATABASE_VARIABLE))
    parsed = parse_with_texts(statements, cluster_dialect(database))
    if not parsed:
        raise BadInputError("has no statement", where="the text", hint='write edl.sql("SHOW MODELS", submit=True)')
    target = SubmissionTarget(
        None if job_file is None else Path(job_file), settings, database_secret, context, namespace,
        skips_confirmation=True,
    )  # fmt: skip
    folder = None if models is None else Path(models)
    submitter = StatementSubmitter(database, target, folder, replace, query_timeout, fetches_results=True)
    submit_quietly(submitter, parsed)
    assert submitter.result is not None
    return result_frame(submitter.result, submitter.batches)


def _check_credentials(database: str, secret: str | None) -> None:
    if has_password(database):
        raise BadInputError(
            "the address of the database contains a password", where="--database", hint=_CREDENTIALS_HINT
        )
    is_server = database.partition("://")[0].lower() in (*SERVER_SCHEMES, "env")
    if is_server and secret is None and (database.startswith("env://") or os.environ.get(_PASSWORD_VARIABLE)):
        raise BadInputError(
            "the credentials of the database are in this machine's environment, and pods take them from a Secret",
            where="--database-secret",
            hint=_CREDENTIALS_HINT,
        )


def _read_base(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        content = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise BadInputError(f"cannot be read: {error}", where=str(file)) from error
    if not isinstance(content, dict):
        raise BadInputError("must be a mapping of fields of a job file", where=str(file), hint="such as image: NAME")
    return content


def _require_volume(spec: JobSpec) -> JobSpec:
    if not spec.volumes:
        raise BadInputError(
            "is missing: rows, models and predictions are on a volume",
            where="volumes",
            hint="add --set 'volumes=[{claim: NAME, mount: /data}]', or name a file that has it with --job-file",
        )
    return spec


def _load(document: dict[str, Any], target: SubmissionTarget, folder: Path, *, checked: bool = True) -> JobSpec:
    file = folder / "job.json"
    file.write_text(json.dumps(document, indent=1, default=str), encoding="utf-8")
    if not checked:
        return load_job_file(file, target.settings)
    return load_job_file(file, target.settings, extra_rules=find_submission_problems)


def _models_folder(models: Path | None, spec: JobSpec) -> str | None:
    if models is None or lies_on_volume(str(models), spec.volumes):
        return None if models is None else str(models)
    if os.environ.get("EDL_MODELS") == str(models):
        return None  # that of this machine
    raise BadInputError(
        "is not in a volume of the job", where=f"--models {models}", hint=f"name one below {spec.volumes[0].mount}"
    )


def _print_manifests(
    spec: JobSpec, target: SubmissionTarget, uploads: Sequence[VolumeUpload], notes: Sequence[str]
) -> None:
    from edl.cli.render import manifests_yaml
    from edl.cluster.kubernetes.job_manifests import render_job

    for each in uploads:
        typer.echo(f"# {each.what} would be copied to {each.copy.claim}:{each.copy.claim_path} first.")
    for note in notes:
        typer.echo(f"# {note}")
    typer.echo("# No cluster was contacted. The token of the job is made when it is submitted.")
    typer.echo(manifests_yaml(render_job(spec, namespace=target.namespace, token="not shown")), nl=False)  # noqa: S106
