"""The job file of a statement on a cluster: what is known before its rows are read. Nothing here has a credential.

``cluster_commands`` completes it, in the run directory, when they are.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from edl.api.errors import BadInputError
from edl.api.job_spec import API_VERSION
from edl.api.pod_spec import VolumeSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_template import apply_strategic_merge
from edl.jobfile.path_resolution import find_volume
from edl.sql_jobs.cluster_request import ClusterRequest
from edl.sql_jobs.job_settings import ESTIMATORS, choose_estimator, job_fields, job_name, set_field
from edl.sql_jobs.statement_folders import refuse_attributes, take_probabilities
from edl.sql_jobs.statement_parser import statement_error
from edl.sql_jobs.statements import (
    DropModelStatement,
    EvaluateStatement,
    ExplainStatement,
    PredictStatement,
    QueryStatement,
    ShowTrainStatement,
    Statement,
    TrainStatement,
)

FOLDER = "edl-sql"
"""On the first volume: models, and copies of databases."""
CREDENTIALS = ("EDL_DATABASE", "EDL_DATABASE_USER", "EDL_DATABASE_PASSWORD")
"""Keys of the Secret, which are the names of the variables, too."""
_COMMAND = ("python", "-P", "-m", "edl.sql_jobs.cluster_commands")
_OF_THE_STATEMENT = ("model", "data", "task", "command", "export")
_WORKERS = 2


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a statement is submitted.

    Attributes:
        database: its address, as pods see it.
        base: fields of a job file: image, volumes, resources and the like.
        settings: ``FIELD=VALUE``, as for ``edl submit``; they count most.
        secret: name of the Secret with the credentials.
        models: folder of models on a volume; None: that of the first volume.
        replaces: a model that exists gets a new version, and a table that exists is replaced.
        query_seconds: what the query may take in the database; None: no limit.
    """

    database: str
    base: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    secret: str | None = None
    models: str | None = None
    replaces: bool = False
    query_seconds: float | None = None


def cluster_job(statement: Statement, text: str, options: ClusterOptions, mount: str) -> dict[str, Any]:
    """The job file of a statement.

    Args:
        statement: TO TRAIN, TO EVALUATE or TO PREDICT.
        text: of the statement.
        options: of the submission.
        mount: where pods mount the first volume.

    Raises:
        BadInputError: the statement cannot run on a cluster, or the base has a field that is the statement's.
    """
    statement = require_job(statement)
    for name in _OF_THE_STATEMENT:
        if name in options.base:
            raise BadInputError(
                f"has the field {name}, which is the statement's", where="--job-file", hint=f"leave {name} out"
            )
    folder = posixpath.join(mount, FOLDER)
    request = ClusterRequest(
        text,
        options.database,
        options.models or posixpath.join(folder, "models"),
        options.replaces,
        options.query_seconds,
        options.settings,
        dict(options.base.get("train") or {}),
    )
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "name": name_of(statement),
        # Until the rows are read, these paths only say where what they name will be.
        "model": {"zoo": folder, "definition": "model.custom_model"},
        "data": {},
        **options.base,
    }
    if isinstance(statement, TrainStatement):
        document["data"] = {part: posixpath.join(folder, "rows", part) for part in ("training", "validation")}
        document["export"] = {}
        document.setdefault("strategy", {"name": "AllReduce"})
        document.setdefault("workers", {"max": _WORKERS})
        for name, value in job_fields(statement.attributes).items():
            set_field(document, name, value)
    else:
        predicts = isinstance(statement, PredictStatement)
        document["task"] = "predict" if predicts else "evaluate"
        document["data"] = {"prediction" if predicts else "validation": posixpath.join(folder, "rows")}
        version = str(statement.model.version or "NEWEST")
        document["model"]["weights"] = posixpath.join(request.models, statement.model.name, version, "model.keras")
    overrides = {"spec": {"containers": [{"name": names.ROLE_CONTAINER, "env": _credentials(options.secret)}]}}
    master = dict(document.get("master") or {})
    if options.secret is not None:
        master["overrides"] = apply_strategic_merge(master.get("overrides") or {}, overrides)
    prepare, finish = [*_COMMAND, "prepare", request.to_text()], [*_COMMAND, "finish"]
    document["master"] = {**master, "prepare": prepare, "finish": finish}
    return document


def require_job(statement: Statement) -> TrainStatement | EvaluateStatement | PredictStatement:
    """The statement, if a cluster can run it; what would fail there for its own reasons is refused now.

    Raises:
        BadInputError: it cannot.
    """
    if isinstance(statement, TrainStatement):
        estimator, _ = choose_estimator(statement)
        if estimator not in ESTIMATORS:
            raise statement_error(
                f"{statement.estimator} is a module of this machine, and trains here only",
                statement.estimator_place or statement.into.place,
                "leave out --submit; or --export, and edl submit with an image of edl zoo build",
            )
        return statement
    if isinstance(statement, PredictStatement):
        take_probabilities(statement)
        return statement
    if isinstance(statement, EvaluateStatement):
        refuse_attributes(statement.attributes)
        return statement
    message, hint = "runs on this machine only", "leave out --submit"
    if isinstance(statement, ExplainStatement | QueryStatement):
        raise statement_error(message, statement.select.place, hint)
    if isinstance(statement, ShowTrainStatement | DropModelStatement):
        raise statement_error(message, statement.model.place, hint)
    raise BadInputError(f"SHOW MODELS {message}", hint=hint)


def name_of(statement: TrainStatement | EvaluateStatement | PredictStatement) -> str:
    """The job's name, by which one can tell a training from what uses its model."""
    if isinstance(statement, TrainStatement):
        return job_name(statement.into.name)
    end = "-predict" if isinstance(statement, PredictStatement) else "-evaluate"
    return job_name(statement.model.name)[: 40 - len(end)].rstrip("-") + end


def _credentials(secret: str | None) -> list[dict[str, Any]]:
    """The variables of the master's container, which alone sees the database. A key may be missing."""
    return [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
        for key in CREDENTIALS
    ]


# --------------------------------------------------------------------------------------------------
# The file of an embedded database.


@dataclass(frozen=True, slots=True)
class DatabaseCopy:
    """Where the file of a database goes on a volume.

    Attributes:
        claim: of the volume.
        claim_path: of the file, from the top of the claim.
        pod_path: of the file, as pods see it.
    """

    claim: str
    claim_path: str
    pod_path: str


def copy_target(volumes: tuple[VolumeSpec, ...], name: str, digest: str) -> DatabaseCopy:
    """Where a file of this machine is copied: a file with another content gets another folder.

    Raises:
        BadInputError: the first volume is no claim, to which files could be copied.
    """
    volume = volumes[0]
    if volume.claim is None:
        raise BadInputError(
            f"the file {name} is on this machine, and the first volume is no claim to which it could be copied",
            where="--database",
            hint=f"copy it yourself to a path below {volume.mount}, and name that path",
        )
    below = posixpath.join(FOLDER, "databases", digest[:12], name)
    return DatabaseCopy(
        volume.claim, posixpath.join("/", volume.sub_path or "", below), posixpath.join(volume.mount, below)
    )


def lies_on_volume(path: str, volumes: tuple[VolumeSpec, ...]) -> bool:
    """Whether pods find a path in a volume."""
    return PurePosixPath(path).is_absolute() and find_volume(path, volumes) is not None
