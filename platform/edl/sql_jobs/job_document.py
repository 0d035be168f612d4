"""The job file of a training, and names of jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from typing import Any

from edl.api.job_spec import API_VERSION
from edl.jobfile.document_tree import SpecError, build_tree
from edl.jobfile.loader import read_job_tree
from edl.sql_jobs.column_plan import ColumnPlan, LabelKind
from edl.sql_jobs.estimators import ESTIMATORS, choose_estimator
from edl.sql_jobs.job_settings import field_value, read_settings
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import Attribute, TrainStatement
from edl.sql_jobs.training_settings import TrainingSettings


def job_document(name: str, plan: ColumnPlan, settings: TrainingSettings, label: str, rows: int) -> dict[str, Any]:
    """The job file as a mapping.

    Args:
        name: of the model, from which the job's is made.
        plan: of the columns.
        settings: of the statement.
        label: column of the label in prepared rows.
        rows: to train on.

    Raises:
        BadInputError: ``WITH`` sets a wrong value; names its place.
    """
    minibatch = min(32, max(1, rows)) if rows < 5000 else 128 if rows < 50_000 else 512
    if (wanted := settings.fields.get("train.minibatch_size")) is not None and isinstance(wanted.value, int):
        minibatch = max(1, wanted.value)
        if minibatch > rows:
            raise StatementError(
                f"train.minibatch_size is {minibatch:,}, and there are {rows:,} rows to train on",
                wanted.place,
                "lower it, or leave it out",
            )
    steps = -(-rows // minibatch)
    schema: dict[str, Any] = {"label": label}
    if plan.label.classes:
        mode = "binary" if plan.label.kind is LabelKind.BINARY else "int"
        schema |= {"classes": list(plan.label.classes), "label_mode": mode}
    # EDL writes the module of its own estimators; another name is that of a function of the user's.
    definition = "model.custom_model" if settings.estimator in ESTIMATORS else settings.estimator
    model: dict[str, Any] = {"zoo": ".", "definition": definition}
    if settings.parameters:
        model["params"] = dict(settings.parameters)
    document = _plain_document(name)
    document["model"] = model
    document["data"]["schema"] = schema
    document["train"] = {
        "epochs": max(5, min(120, 6000 // steps)),
        "minibatch_size": minibatch,
        "evaluation_steps": steps,
    }
    document["strategy"] = {"name": settings.strategy}
    # The model that is kept comes from the second training, if there is one.
    document["export"] = {"path": "measured" if settings.refits else "export"}
    _set_fields(document, settings.fields)
    return document


def check_job_fields(statement: TrainStatement) -> None:
    """Refuse wrong values of fields of the job file, of a training on this machine, before the rows are read.

    Raises:
        BadInputError: see above; names the place.
    """
    document = _plain_document(statement.into.name)
    fields = read_settings(statement, choose_estimator(statement)[0]).fields
    _set_fields(document, fields)


def job_fields(statement: TrainStatement) -> dict[str, object]:
    """The fields of a job file that ``WITH`` sets, by dotted name.

    Raises:
        BadInputError: there is no such field, or the statement determines it; names its place.
    """
    settings = read_settings(statement, choose_estimator(statement)[0])
    return {name: field_value(attribute.value) for name, attribute in settings.fields.items()}


def _plain_document(name: str) -> dict[str, Any]:
    """What the job files of all trainings on this machine have."""
    return {
        "apiVersion": API_VERSION,
        "name": job_name(name),
        "model": {"zoo": ".", "definition": "model.custom_model"},
        "data": {"training": "data/training", "validation": "data/validation"},
        "train": {},
        "strategy": {"name": "Local"},
        "export": {"path": "export"},
    }


def set_field(document: dict[str, Any], name: str, value: object) -> None:
    """Set a field of a job file by its dotted name."""
    *sections, last = name.split(".")
    for section in sections:
        inner = document.get(section)
        document[section] = document = inner if isinstance(inner, dict) else {}
    document[last] = value


def _set_fields(document: dict[str, Any], fields: Mapping[str, Attribute]) -> None:
    """Set what ``WITH`` sets, and refuse wrong values at their places in the statement."""
    for name, attribute in fields.items():
        set_field(document, name, field_value(attribute.value))
    try:
        read_job_tree(build_tree(document, "the job of the statement"))
    except SpecError as error:
        for problem in error.problems:
            for name, attribute in fields.items():
                if problem.field_path.startswith(name):
                    raise StatementError(f"{name}: {problem.message}", attribute.place, problem.hint) from None
        raise


def job_name(model: str) -> str:
    """A name of jobs, which are labels of Kubernetes, that resembles a model's."""
    plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:40].rstrip("-")
    return plain if plain[:1].isalpha() else f"model-{plain}"[:40].rstrip("-")


def dump_job(document: Mapping[str, Any]) -> str:
    """The text of a job file, with short mappings on one line."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 110
    stream = StringIO()
    yaml.dump(dict(document), stream)
    return stream.getvalue()
