"""``edl sql --submit``: a statement as a job on a cluster."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shlex
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from edl.api.errors import BadInputError, EdlError
from edl.api.job_spec import JobSpec
from edl.cli.options import connect_api
from edl.cli.submission_plan import make_reporter
from edl.cli.submission_workflow import SubmitOptions, plan_and_submit
from edl.cluster.kubernetes.spec_validation import find_submission_problems
from edl.jobfile.database_address import SERVER_SCHEMES, database_file, has_password, with_database_file
from edl.jobfile.loader import load_job_file
from edl.jobfile.path_resolution import find_volume
from edl.sql_jobs.cluster_job import (
    FOLDER,
    ClusterOptions,
    DatabaseCopy,
    cluster_job,
    copy_target,
    lies_on_volume,
    require_job,
)
from edl.sql_jobs.statements import ShowModelsStatement, ShowTrainStatement

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.sql_jobs.statements import Statement

_SHOWN = (ShowModelsStatement, ShowTrainStatement)
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


def submit_statements(
    parsed: Sequence[tuple[Statement, str]],
    database: str | None,
    target: SubmissionTarget,
    *,
    models: Path | None,
    replaces: bool,
    query_seconds: float | None,
) -> NoReturn:
    """Submit statements one after the other; ends with the exit code of the command.

    Raises:
        EdlError: one cannot be submitted; this was reported.
    """
    if len(parsed) > 1 and not target.watches_job:
        raise BadInputError(
            f"is for one statement, and there are {len(parsed)}", where="--detach", hint="the next one waits for it"
        )
    jobs = [statement for statement, _ in parsed if not isinstance(statement, _SHOWN)]
    for each in jobs:
        require_job(each)  # before the first one runs
    if jobs and database is None:
        raise BadInputError("is missing", where="--database", hint="give --database or set EDL_DATABASE")
    if jobs:
        _check_credentials(database or "", target.secret)
    base = _read_base(target.job_file)
    options = ClusterOptions(database or "", base, target.settings, target.secret, None, replaces, query_seconds)
    for statement, text in parsed:
        with tempfile.TemporaryDirectory(prefix="edl-sql-") as folder:
            if isinstance(statement, _SHOWN):
                _show_models(statement, text, base, target, models, Path(folder))
                continue
            code = _submit(statement, text, options, target, models, Path(folder))
        if code:
            raise typer.Exit(code)
    raise typer.Exit


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


def _submit(
    statement: Statement,
    text: str,
    options: ClusterOptions,
    target: SubmissionTarget,
    models: Path | None,
    folder: Path,
) -> int:
    spec = _require_volume(_load(cluster_job(statement, text, options, "/"), target, folder, checked=False))
    mount = spec.volumes[0].mount
    options = replace(options, models=_models_folder(models, spec))
    with _database_on_volume(options.database, spec, folder) as (address, file, copy):
        spec = _load(cluster_job(statement, text, replace(options, database=address), mount), target, folder)
        if target.dry_run:
            _print_manifests(spec, target, file, copy)
            return 0
        reporter = make_reporter(as_json=False)
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
                before_creation=lambda api: _copy_database(api, spec, file, copy),
            )
        except EdlError as error:
            reporter.report_failure(error)
            raise
    if code == 0 and target.watches_job and copy is not None and spec.task != "train":
        reporter.report_note(f"Its database is a copy: edl data cp {copy.claim}:{copy.claim_path} FILE brings it back.")
    return code


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


@contextmanager
def _database_on_volume(
    database: str, spec: JobSpec, folder: Path
) -> Iterator[tuple[str, Path | None, DatabaseCopy | None]]:
    """The address as pods see it; of a file of this machine also a copy of it, and where that goes."""
    path = database_file(database)
    if path is None:
        yield database, None, None
        return
    if lies_on_volume(path, spec.volumes) and not Path(path).exists():
        yield database, None, None
        return
    if not Path(path).is_file():
        mounts = ", ".join(volume.mount for volume in spec.volumes)
        raise BadInputError(
            f"the file {path} is neither on this machine nor in a volume of the job",
            where="--database",
            hint=f"name a file that is there, or a path below {mounts}",
        )
    file = _snapshot_file(Path(path), folder, is_sqlite=database.lower().startswith("sqlite"))
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    copy = copy_target(spec.volumes, Path(path).name, digest)
    yield with_database_file(database, copy.pod_path), file, copy


def _snapshot_file(path: Path, folder: Path, *, is_sqlite: bool) -> Path:
    """A file with one state of the database, also while another program writes it."""
    if not is_sqlite:
        if Path(f"{path}.wal").exists():
            raise BadInputError(
                "another program has it open, or it has changes that are not in its file yet",
                where=str(path),
                hint="close it, or run CHECKPOINT in it",
            )
        return path
    target = folder / path.name
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(target)) as copied,
        ):
            source.backup(copied)
    except sqlite3.Error as error:
        raise BadInputError(f"cannot be copied: {error}", where=str(path)) from error
    return target


def _copy_database(api: KubeClient, spec: JobSpec, file: Path | None, copy: DatabaseCopy | None) -> None:
    """Copy the file of a database to the volume, unless it is there: it may have tables of predictions by now."""
    from edl.ops.file_transfer import CopyItem, CopyPlan, VolumeSession, open_volume
    from edl.ops.helper_pod import HelperPodSpec

    if file is None or copy is None:
        return
    assert spec.image is not None
    visit = HelperPodSpec(
        copy.claim,
        spec.image,
        spec.security.run_as,
        purpose="copies the database",
        pull_secrets=spec.pod.image_pull_secrets,
    )
    plan = CopyPlan(
        (CopyItem(file, copy.claim_path, file.stat().st_size),),
        volume_directories=(posixpath.dirname(copy.claim_path),),
    )

    def transfer(session: VolumeSession) -> None:
        if session.run_with_retries(lambda files: files.stat_path(copy.claim_path).kind) != "file":
            session.copy_files(plan, upload=True)

    with open_volume(api, visit) as session:
        transfer(session)


def _show_models(
    statement: Statement,
    text: str,
    base: dict[str, Any],
    target: SubmissionTarget,
    models: Path | None,
    folder: Path,
) -> None:
    """Print what ``SHOW`` asks about the models on the volume. Only their descriptions are fetched."""
    from edl.cli.sql_output import print_result
    from edl.ops.file_transfer import VolumeFiles, open_volume, plan_download
    from edl.ops.helper_pod import HelperPodSpec
    from edl.sql_jobs.model_registry import DESCRIPTION_FILE, ModelRegistry
    from edl.sql_jobs.statement_runner import StatementRunner

    if target.dry_run:
        raise BadInputError("is for statements that are jobs", where="--dry-run", hint="leave it out")
    document = {"name": "edl-sql", **base, "model": {"definition": "model.custom_model"}, "data": {"training": "/"}}
    spec = _require_volume(_load(document, target, folder, checked=False))
    place = _models_folder(models, spec) or posixpath.join(spec.volumes[0].mount, FOLDER, "models")
    volume = find_volume(place, spec.volumes)
    if volume is None or volume.claim is None or spec.image is None:
        raise BadInputError(
            "needs an image, and models on a claim: a pod reads them", where=text, hint="add them with --job-file"
        )
    path = posixpath.join("/", volume.sub_path or "", posixpath.relpath(place, volume.mount))

    def list_descriptions(files: VolumeFiles) -> list[Any]:
        if files.stat_path(path).kind == "missing":
            return []
        entries = files.list_entries(path, recursive=True)
        # NAME/VERSION/model.json: not what is being written
        return [each for each in entries if _is_description(each.path, DESCRIPTION_FILE)]

    visit = HelperPodSpec(
        volume.claim,
        spec.image,
        spec.security.run_as,
        read_only=True,
        purpose="reads the models",
        pull_secrets=spec.pod.image_pull_secrets,
    )
    registry = folder / "models"
    registry.mkdir()
    with open_volume(connect_api(target.context, target.namespace), visit) as session:
        found = session.run_with_retries(list_descriptions)
        for each in found:
            (registry / each.path).parent.mkdir(parents=True, exist_ok=True)
        if found:
            plan = plan_download(path, found, registry, is_file=False, into_directory=False)
            session.copy_files(plan, upload=False)
    print_result(StatementRunner(None, ModelRegistry(registry)).run(statement, text))


def _is_description(path: str, name: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and parts[1].isdecimal() and parts[2] == name and ".." not in parts


def _print_manifests(spec: JobSpec, target: SubmissionTarget, file: Path | None, copy: DatabaseCopy | None) -> None:
    from edl.cli.render import manifests_yaml
    from edl.cluster.kubernetes.job_manifests import render_job

    if file is not None and copy is not None:
        typer.echo(f"# The file {file.name} would be copied to {copy.claim}:{copy.claim_path} first.")
    typer.echo("# No cluster was contacted. The token of the job is made when it is submitted.")
    typer.echo(manifests_yaml(render_job(spec, namespace=target.namespace, token="not shown")), nl=False)  # noqa: S106
