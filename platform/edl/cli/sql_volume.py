"""What ``edl sql --submit`` copies to a volume, reads there and removes: databases, modules, models and results."""

from __future__ import annotations

import hashlib
import json
import posixpath
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.jobfile.database_address import database_file, with_database_file
from edl.jobfile.path_resolution import find_volume
from edl.sql_jobs.cluster_commands import DONE_FILE, FOLDER, PREDICTIONS_FILE
from edl.sql_jobs.cluster_job import VolumeCopy, copy_target, lies_on_volume
from edl.sql_jobs.model_registry import DESCRIPTION_FILE, ModelRegistry, read_description
from edl.sql_jobs.permutation_importance import ColumnImportance
from edl.sql_jobs.statement_runner import (
    ExplainResult,
    MetricsResult,
    PredictResult,
    Result,
    StatementRunner,
    TrainResult,
)
from edl.sql_jobs.statements import (
    DropModelStatement,
    EvaluateStatement,
    ExplainStatement,
    JobStatement,
    PredictStatement,
    Statement,
    TrainStatement,
)
from edl.sql_jobs.user_module import UserModule

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.file_transfer import VolumeFiles, VolumeSession

# --------------------------------------------------------------------------------------------------
# Copied there before a job is created.


@dataclass(frozen=True, slots=True)
class VolumeUpload:
    """What is copied to a volume.

    Attributes:
        what: for people.
        copy: where it goes.
        files: of this machine, by their path below ``copy``; the empty path is ``copy`` itself.
    """

    what: str
    copy: VolumeCopy
    files: dict[str, Path]


def place_database(database: str, spec: JobSpec, folder: Path) -> tuple[str, VolumeUpload | None]:
    """The address as pods see it; of a file of this machine also what must be copied.

    Args:
        database: its address.
        spec: of the job, with its volumes.
        folder: for files of this machine that are made.

    Raises:
        BadInputError: there is no such file, or it cannot be copied.
    """
    path = database_file(database)
    if path is None or (lies_on_volume(path, spec.volumes) and not Path(path).exists()):
        return database, None
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
    copy = copy_target(spec.volumes, "databases", Path(path).name, digest, "--database")
    return with_database_file(database, copy.pod_path), VolumeUpload(f"The file {file.name}", copy, {"": file})


def place_module(module: UserModule | None, spec: JobSpec) -> tuple[str, VolumeUpload | None]:
    """The folder of a module as pods see it, and what must be copied; an empty name: there is no module.

    Raises:
        BadInputError: it cannot be copied.
    """
    if module is None:
        return "", None
    texts = module.files()
    digest = hashlib.sha256(json.dumps(sorted(texts.items())).encode()).hexdigest()
    copy = copy_target(spec.volumes, "modules", "", digest, "--submit")
    what = f"The module {module.definition.rpartition('.')[0]} ({len(texts)} files)"
    return copy.pod_path, VolumeUpload(what, copy, {name: module.zoo / name for name in texts})


def upload(api: KubeClient, spec: JobSpec, uploads: list[VolumeUpload]) -> None:
    """Copy what is not there: a database may have tables of predictions by now."""
    from edl.ops.file_transfer import CopyItem, CopyPlan

    if not uploads:
        return
    with _open_claim(api, spec, uploads[0].copy.claim, "copies files of the statement", read_only=False) as session:
        for each in uploads:
            items = [
                CopyItem(file, posixpath.join(each.copy.claim_path, name).rstrip("/"), file.stat().st_size)
                for name, file in each.files.items()
            ]
            folders = tuple(dict.fromkeys(posixpath.dirname(item.volume_path) for item in items))
            # A file that is there has this content: its folder is named after it.
            missing = [item for item in items if _kind_of(session, item.volume_path) != "file"]
            session.copy_files(CopyPlan(tuple(missing), volume_directories=folders), upload=True)


def _kind_of(session: VolumeSession, path: str) -> str:
    return session.run_with_retries(lambda files: files.stat_path(path).kind)


@contextmanager
def _open_claim(
    api: KubeClient, spec: JobSpec, claim: str, purpose: str, *, read_only: bool = True
) -> Iterator[VolumeSession]:
    from edl.ops.file_transfer import open_volume
    from edl.ops.helper_pod import HelperPodSpec

    assert spec.image is not None
    visit = HelperPodSpec(
        claim,
        spec.image,
        spec.security.run_as,
        read_only=read_only,
        purpose=purpose,
        pull_secrets=spec.pod.image_pull_secrets,
    )
    with open_volume(api, visit) as session:
        yield session


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


# --------------------------------------------------------------------------------------------------
# Models on the volume.


def run_on_models(api: KubeClient, spec: JobSpec, place: str, statement: Statement, text: str, folder: Path) -> Result:
    """What ``SHOW`` and ``DROP MODEL`` return for the models on a volume. Only their descriptions are fetched.

    Args:
        api: of the cluster.
        spec: of a job, with its image and its volumes.
        place: folder of the models, as pods see it.
        statement: the statement.
        text: of the statement.
        folder: for the descriptions.

    Raises:
        EdlError: the volume cannot be read, or there is no such model.
    """
    volume = find_volume(place, spec.volumes)
    if volume is None or volume.claim is None or spec.image is None:
        raise BadInputError(
            "needs an image, and models on a claim: a pod reads them", where=text, hint="add them with --job-file"
        )
    path = _claim_path(spec, place)
    drops = isinstance(statement, DropModelStatement)
    registry = folder / "models"
    registry.mkdir()
    purpose = "removes the model" if drops else "reads the models"
    with _open_claim(api, spec, volume.claim, purpose, read_only=not drops) as session:
        descriptions = session.run_with_retries(lambda files: _list_descriptions(files, path))
        for each in descriptions:
            (registry / each.path).parent.mkdir(parents=True, exist_ok=True)
        if descriptions:
            from edl.ops.file_transfer import plan_download

            plan = plan_download(path, descriptions, registry, is_file=False, into_directory=False)
            session.copy_files(plan, upload=False)
        # Of the copy: so the same models are found, and the same errors said.
        before = {each.path for each in descriptions}
        result = StatementRunner(None, ModelRegistry(registry)).run(statement, text)
        gone = [name for name in before if not (registry / name).exists()]
        for name in sorted(gone):
            session.run_with_retries(partial(_remove_tree, path=posixpath.join(path, posixpath.dirname(name))))
    return result


def _remove_tree(files: VolumeFiles, path: str) -> None:
    files.remove_tree(path)


def _list_descriptions(files: VolumeFiles, path: str) -> list[Any]:
    if files.stat_path(path).kind == "missing":
        return []
    # NAME/VERSION/model.json: not what is being written
    return [each for each in files.list_entries(path, recursive=True) if _is_description(each.path)]


def _is_description(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and parts[1].isdecimal() and parts[2] == DESCRIPTION_FILE and ".." not in parts


def _claim_path(spec: JobSpec, path: str) -> str:
    """A path of pods, from the top of the claim that has it."""
    volume = find_volume(path, spec.volumes)
    assert volume is not None
    return posixpath.join("/", volume.sub_path or "", posixpath.relpath(path, volume.mount))


# --------------------------------------------------------------------------------------------------
# Results of a job that has ended.


def fetch_result(
    api: KubeClient, spec: JobSpec, run_dir: str, statement: JobStatement, folder: Path
) -> tuple[Result, list[Any]]:
    """What a statement returned, and the rows with predictions of ``TO PREDICT``.

    Args:
        api: of the cluster.
        spec: of the job.
        run_dir: of its run, as pods see it.
        statement: of the job.
        folder: for the files.

    Raises:
        EdlError: they cannot be read.
    """
    from edl.ops.file_transfer import CopyItem, CopyPlan

    volume = find_volume(run_dir, spec.volumes)
    if volume is None or volume.claim is None:
        raise BadInputError("is on no claim, from which its result could be fetched", where=f"the run {run_dir}")
    names = [DONE_FILE, DESCRIPTION_FILE, *([PREDICTIONS_FILE] if isinstance(statement, PredictStatement) else [])]
    path = _claim_path(spec, posixpath.join(run_dir, FOLDER))
    # Named otherwise than a file that the submission has made.
    target = folder / "result"
    items = tuple(CopyItem(target / name, posixpath.join(path, name), 0) for name in names)
    with _open_claim(api, spec, volume.claim, "reads the result") as session:
        session.copy_files(CopyPlan(items, local_directories=(target,)), upload=False)
    result = _read_result(statement, target)
    if not isinstance(statement, PredictStatement):
        return result, []
    return result, list(pq.ParquetFile(target / PREDICTIONS_FILE).iter_batches())


def _read_result(statement: JobStatement, folder: Path) -> Result:
    content = json.loads((folder / DONE_FILE).read_text(encoding="utf-8"))
    model = read_description(folder / DESCRIPTION_FILE)
    if isinstance(statement, TrainStatement):
        return TrainResult(model)
    if isinstance(statement, EvaluateStatement):
        return MetricsResult(model, content["metrics"], content["rows"], statement.into)
    if isinstance(statement, ExplainStatement):
        importance = [ColumnImportance(*each) for each in content["importance"]]
        return ExplainResult(model, importance, content["rows"], statement.into)
    return PredictResult(model, statement.into, statement.column, content["rows"])
