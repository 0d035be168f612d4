"""The job file of a statement on a cluster: what is known before its rows are read. Nothing here has a credential.

``cluster_commands`` completes it, in the run directory, when they are.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ruamel.yaml import YAML

from edl.api.errors import BadInputError
from edl.api.job_spec import API_VERSION
from edl.api.pod_spec import VolumeSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_template import apply_strategic_merge
from edl.jobfile.path_resolution import find_volume
from edl.sql_jobs.cluster_request import ClusterRequest
from edl.sql_jobs.estimators import ESTIMATORS, choose_estimator
from edl.sql_jobs.job_document import job_fields, job_name, set_field
from edl.sql_jobs.job_settings import REFIT_SETTING
from edl.sql_jobs.statement_folders import refuse_attributes, take_metrics, take_probabilities
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import (
    EvaluateStatement,
    ExplainStatement,
    JobStatement,
    PredictStatement,
    QueryStatement,
    Statement,
    TrainStatement,
)
from edl.sql_jobs.training_settings import LARGE_VECTORS, SMALL_TABLE_ROWS, check_settings, refits_small_table
from edl.sql_jobs.user_module import UserModule, find_user_module

FOLDER = "edl-sql"
"""On the first volume: models, and copies of databases."""
CREDENTIALS = ("EDL_DATABASE", "EDL_DATABASE_USER", "EDL_DATABASE_PASSWORD")
"""Keys of the Secret, which are the names of the variables, too."""
_COMMAND = ("python", "-P", "-m", "edl.sql_jobs.cluster_commands")
_OF_THE_STATEMENT = ("model", "data", "task", "command", "export")
_WRITTEN = (
    "task", "command", "export", "model.zoo", "model.definition", "model.params", "model.weights",
    "data.training", "data.validation", "data.prediction", "data.schema",
)  # fmt: skip
"""What the statement determines, or writes when its rows are read, over what ``--set`` says."""
_WORKERS = 2
_VERBS = {EvaluateStatement: "evaluate", PredictStatement: "predict", ExplainStatement: "explain"}


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
        modules: folder on a volume with the module of the user that the statement names.
    """

    database: str
    base: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    secret: str | None = None
    models: str | None = None
    replaces: bool = False
    query_seconds: float | None = None
    modules: str = ""


def cluster_job(statement: Statement, text: str, options: ClusterOptions, mount: str) -> dict[str, Any]:
    """The job file of a statement.

    Args:
        statement: TO TRAIN, TO EVALUATE, TO PREDICT or TO EXPLAIN.
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
    for setting in options.settings:
        name = setting.partition("=")[0]
        if name in ("model", "data") or any(name == each or name.startswith(f"{each}.") for each in _WRITTEN):
            raise BadInputError(
                f"sets {name}, which is the statement's", where=f"--set {setting}", hint="leave it out, or use WITH"
            )
    folder = posixpath.join(mount, FOLDER)
    module = find_module(statement)
    request = ClusterRequest(
        text,
        options.database,
        options.models or posixpath.join(folder, "models"),
        options.replaces,
        options.query_seconds,
        options.settings,
        dict(options.base.get("train") or {}),
        options.modules,
        "" if module is None else module.definition,
        _chooses_strategy(statement, options),
    )
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "name": name_of(statement),
        # Until the rows are read, these paths only say where what they name will be.
        "model": {"zoo": folder, "definition": "model.custom_model" if module is None else module.definition},
        "data": {},
        **options.base,
    }
    if isinstance(statement, TrainStatement):
        document["data"] = {part: posixpath.join(folder, "rows", part) for part in ("training", "validation")}
        document["export"] = {}
        document.setdefault("strategy", {"name": "AllReduce"})
        document.setdefault("workers", {"max": _WORKERS})
        for name, value in job_fields(statement).items():
            set_field(document, name, value)
    else:
        predicts = isinstance(statement, PredictStatement | ExplainStatement)
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


def plan_notes(statement: JobStatement, options: ClusterOptions) -> list[str]:
    """What the plan of a job cannot say yet, because it depends on the rows."""
    if not isinstance(statement, TrainStatement) or choose_estimator(statement)[0] not in ESTIMATORS:
        return []
    notes = list[str]()
    if _chooses_strategy(statement, options):
        notes.append(
            f"If the vectors of categories have {LARGE_VECTORS:,} numbers or more, the master takes the strategy "
            "ParameterServer, and starts parameter servers (ps.count), which are not in this plan."
        )
    length = find_length(options.base.get("train") or {}, options.settings)
    if refits_small_table(statement) and (REFIT_SETTING in statement.attributes or not length):
        what = "trains the model again on all rows"
        if statement.estimator is None:
            what = "compares the model with a linear one, and trains the better one again on all rows"
        notes.append(f"If there are fewer than {SMALL_TABLE_ROWS:,} rows, the master then {what}, in its own pod.")
    return notes


def find_length(train: Mapping[str, Any], settings: Sequence[str]) -> str:
    """What the user said, in the job file or by ``--set``, of how long the model trains; empty: nothing.

    Args:
        train: section of the job file.
        settings: of ``--set``.
    """
    named = [f"train.{name}" for name in train]
    for name, _, value in (each.partition("=") for each in settings):
        section = YAML(typ="safe", pure=True).load(value) if name == "train" else None
        named += [f"train.{each}" for each in section] if isinstance(section, dict) else [name]
    return next((f"{name} is set" for name in ("train.epochs", "train.max_steps") if name in named), "")


def _chooses_strategy(statement: JobStatement, options: ClusterOptions) -> bool:
    """Whether the number of ids decides the strategy of a training: nobody named one, or a field of AllReduce only."""
    if not isinstance(statement, TrainStatement):
        return False
    named = [*statement.attributes, *options.base, *(each.partition("=")[0] for each in options.settings)]
    return not any(name.partition(".")[0] in ("strategy", "evaluation") for name in named)


def require_job(statement: Statement) -> JobStatement:
    """The statement, if a cluster can run it; what would fail there for its own reasons is refused now.

    Raises:
        BadInputError: it cannot.
    """
    if isinstance(statement, TrainStatement):
        check_settings(statement)
        return statement
    if isinstance(statement, PredictStatement):
        take_probabilities(statement)
        return statement
    if isinstance(statement, EvaluateStatement):
        take_metrics(statement)
        return statement
    if isinstance(statement, ExplainStatement):
        refuse_attributes(statement.attributes)
        return statement
    if isinstance(statement, QueryStatement):
        raise StatementError(
            "a query makes no job, and runs on this machine only",
            statement.select.place,
            "leave out --submit; edl data cp brings a copy of a file of SQLite or DuckDB back",
        )
    raise BadInputError("SHOW and DROP MODEL make no job")


def find_module(statement: Statement) -> UserModule | None:
    """The module of the user that a training names; None: it trains a model of EDL's.

    Raises:
        BadInputError: there is no such model.
    """
    if not isinstance(statement, TrainStatement) or choose_estimator(statement)[0] in ESTIMATORS:
        return None
    return find_user_module(statement, ESTIMATORS)


def name_of(statement: JobStatement) -> str:
    """The job's name, by which one can tell a training from what uses its model."""
    if isinstance(statement, TrainStatement):
        return job_name(statement.into.name)
    end = f"-{_VERBS[type(statement)]}"
    return job_name(statement.model.name)[: 40 - len(end)].rstrip("-") + end


def _credentials(secret: str | None) -> list[dict[str, Any]]:
    """The variables of the master's container, which alone sees the database. A key may be missing."""
    return [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
        for key in CREDENTIALS
    ]


# --------------------------------------------------------------------------------------------------
# What is copied to a volume: the file of an embedded database, and modules.


@dataclass(frozen=True, slots=True)
class VolumeCopy:
    """Where something of this machine goes on a volume.

    Attributes:
        claim: of the volume.
        claim_path: of the file or the folder, from the top of the claim.
        pod_path: of it, as pods see it.
    """

    claim: str
    claim_path: str
    pod_path: str


def copy_target(volumes: tuple[VolumeSpec, ...], what: str, name: str, digest: str, where: str) -> VolumeCopy:
    """Where a file or a folder of this machine is copied: other content gets another folder.

    Args:
        volumes: of the job.
        what: ``databases`` or ``modules``.
        name: of the file; empty for a folder.
        digest: of the content.
        where: the option that names it, for messages.

    Raises:
        BadInputError: the first volume is no claim, to which files could be copied.
    """
    volume = volumes[0]
    if volume.claim is None:
        hint = f"copy it yourself to a path below {volume.mount}, and name that path"
        raise BadInputError(
            f"{name or what} of this machine cannot be copied: the first volume is no claim",
            where=where,
            hint=hint if name else "put a volume with a claim first",
        )
    below = posixpath.join(FOLDER, what, digest[:12], name).rstrip("/")
    return VolumeCopy(
        volume.claim, posixpath.join("/", volume.sub_path or "", below), posixpath.join(volume.mount, below)
    )


def lies_on_volume(path: str, volumes: tuple[VolumeSpec, ...]) -> bool:
    """Whether pods find a path in a volume."""
    return PurePosixPath(path).is_absolute() and find_volume(path, volumes) is not None
