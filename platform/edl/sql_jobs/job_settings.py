"""The job of a statement: what EDL chooses by the size of the data, and what ``WITH`` sets.

``WITH`` has names of three kinds: ``model.*``, arguments of the model; ``optimizer.*``, its class and arguments; and
every field of a job file. ``validation.share`` is the share of the rows that are for validation, ``validation.refit``
says whether the model trains again on all rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from io import StringIO
from typing import Any, TypeAlias, TypeGuard

from edl.api.job_spec import API_VERSION, JobSpec
from edl.jobfile.document_tree import SpecError, build_tree
from edl.jobfile.loader import read_job_tree
from edl.jobfile.scalar_types import AnyJsonType, MappingType, NullableType
from edl.jobfile.section_type import section_fields
from edl.sql_jobs.column_plan import CLASS_WEIGHT, ColumnPlan, ColumnUse, LabelKind, check_class_weight
from edl.sql_jobs.model_module import Optimizer
from edl.sql_jobs.statement_parser import statement_error
from edl.sql_jobs.statements import Attribute, AttributeValue, Select, TrainStatement
from edl.sql_jobs.stream_key import KEY_SETTING
from edl.sql_jobs.user_module import COLUMNS_MODULE, ZOO_SETTING, UserModule, find_user_module

ESTIMATORS = ("dnn", "wide_and_deep", "deepfm", "linear")
_ESTIMATOR_NAMES = dict(zip(ESTIMATORS, ESTIMATORS, strict=True)) | {
    # SQLFlow's, which are TensorFlow's.
    "dnnclassifier": "dnn",
    "dnnregressor": "dnn",
    "linearclassifier": "linear",
    "linearregressor": "linear",
    "dnnlinearcombinedclassifier": "wide_and_deep",
    "dnnlinearcombinedregressor": "wide_and_deep",
    "deepfmclassifier": "deepfm",
}
_SIZES = ("hidden", "dropout")
_MODEL_ARGUMENTS = {"dnn": (*_SIZES, "l2"), "wide_and_deep": _SIZES, "deepfm": ("factors", *_SIZES), "linear": ()}
_SQLFLOW_NAMES = {
    "model.hidden_units": "model.hidden",
    "model.dnn_hidden_units": "model.hidden",
    "model.batch_size": "train.minibatch_size",
    "train.batch_size": "train.minibatch_size",
    "train.epoch": "train.epochs",
    "train.max_steps": "train.max_steps",
    "model.optimizer": "optimizer.name",
}
_WITHOUT_EFFECT = {
    "train.verbose": "progress is always shown",
    "validation.throttle_secs": "evaluations follow a number of steps",
    "validation.start_delay_secs": "evaluations follow a number of steps",
}
"""Settings in SQLFlow's documentation that say nothing about the model, and why."""
_SMALL_TABLE_ROWS = 10_000
"""From so many rows on, the weights that are expected are lost in what the rows say, and so are the validation rows."""
_MOST_COMPARED_VALUES = 1_000_000
"""Rows times columns up to which a linear model trains beside a network: each of its steps has all of them."""
_LARGE_VECTORS = 1 << 24
"""Numbers in vectors of categories from which one process is slow: its optimizer looks at all of them in each step, and
a parameter server at those of the minibatch."""
_STRATEGY = "strategy.name"
_COMMON = ("learning_rate", "weight_decay", "clipnorm", "clipvalue", "global_clipnorm")
OPTIMIZERS = {
    "Adam": (*_COMMON, "beta_1", "beta_2", "epsilon", "amsgrad"),
    "AdamW": (*_COMMON, "beta_1", "beta_2", "epsilon", "amsgrad"),
    "SGD": (*_COMMON, "momentum", "nesterov"),
    "Adagrad": (*_COMMON, "initial_accumulator_value", "epsilon"),
    "RMSprop": (*_COMMON, "rho", "momentum", "epsilon", "centered"),
    "Ftrl": (*_COMMON, "learning_rate_power", "l1_regularization_strength", "l2_regularization_strength"),
}
_VALIDATION_SHARE, _VALIDATION_SELECT = "validation.share", "validation.select"
_REFIT = "validation.refit"
METRICS_SETTING, _CLASSES_SETTING = "validation.metrics", "model.n_classes"
NOT_ON_A_CLUSTER = "on a cluster a statement is one job"
"""Why a submitted model does not train again on all rows."""
_METRICS = {
    LabelKind.BINARY: ("accuracy", "auc", "logloss"),
    LabelKind.CLASSES: ("accuracy", "logloss"),
    LabelKind.NUMBER: ("meanabsoluteerror", "rootmeansquarederror", "r2"),
}
"""Metrics of the models that are written, as SQLFlow's ``validation.metrics`` names them."""
_TREES = ("xgboost", "boostedtrees", "randomforest")
_USE_INSTEAD = "use dnn for any table, or wide_and_deep for many categories"
_WRITTEN = ("apiVersion", "name", "task", "command", "data", "export")
"""Sections of the job file that the statement itself determines."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """What a statement trains, and how.

    Args:
        estimator: one of ``ESTIMATORS``.
        reason: why it was chosen.
        parameters: arguments of the model.
        optimizer: that trains it.
        validation_share: of the rows.
        patience: evaluations without improvement after which training ends.
        fields: of the job file, by dotted name, as ``WITH`` sets them.
        refits: after the training that is measured, the model trains again on all rows.
        compares: a linear model is trained, too, and kept unless the network is clearly better.
        refit_reason: of a small table, why it does not refit.
        without_effect: settings that only SQLFlow has, with the reason why they change nothing.
        strategy: of the job on this machine, unless ``fields`` has one.
        vector_numbers: in all vectors of categories.
    """

    estimator: str
    reason: str
    parameters: Mapping[str, object]
    optimizer: Optimizer
    validation_share: float
    patience: int
    fields: Mapping[str, Attribute] = field(default_factory=dict)
    refits: bool = False
    compares: bool = False
    refit_reason: str = ""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    strategy: str = "Local"
    vector_numbers: int = 0


def choose_estimator(statement: TrainStatement) -> tuple[str, str]:
    """The model, and why.

    Raises:
        BadInputError: there is no such model; the hint says which there are.
    """
    if statement.estimator is None:
        return "dnn", "the default for a table"
    wanted = statement.estimator.lower().removeprefix("tf.estimator.").removeprefix("sqlflow_models.")
    if wanted in _ESTIMATOR_NAMES:
        return _ESTIMATOR_NAMES[wanted], "TO TRAIN names it"
    place = statement.estimator_place or statement.into.place
    if wanted.startswith(_TREES):
        raise statement_error(f"{statement.estimator} is no Keras model, and EDL trains no trees", place, _USE_INSTEAD)
    module = find_user_module(statement, _ESTIMATOR_NAMES)
    if module is not None:
        return module.definition, "TO TRAIN names this module"
    near = get_close_matches(wanted, _ESTIMATOR_NAMES, 1)
    hint = f"did you mean {_ESTIMATOR_NAMES[near[0]]}? " if near else ""
    raise statement_error(
        f"there is no model {statement.estimator}",
        place,
        f"{hint}There are {', '.join(ESTIMATORS)}; a module of yours is named as my_module.py",
    )


def choose_settings(
    statement: TrainStatement, estimator: str, reason: str, plan: ColumnPlan, refit_obstacle: str = ""
) -> TrainingSettings:
    """The defaults by the size of the data, with what ``WITH`` sets.

    Args:
        statement: what is wanted.
        estimator: see ``choose_estimator``.
        reason: see ``choose_estimator``.
        plan: of the columns.
        refit_obstacle: why the model cannot train again on all rows here; empty: it can.

    Raises:
        BadInputError: ``WITH`` has a name or a value that is wrong; names its place.
    """
    rows = plan.label.facts.count
    given = _take_attributes(statement, estimator)
    parameters: dict[str, object] = {}
    if _MODEL_ARGUMENTS.get(estimator):
        parameters = {"hidden": [32, 16] if rows < 2000 else [64, 32] if rows < 100_000 else [128, 64], "dropout": 0.1}
    if estimator == "dnn" and rows < _SMALL_TABLE_ROWS:
        parameters["l2"] = float(f"{0.5 / max(1, rows):.2g}")
    # A linear model needs no care not to learn the rows by heart, and fewer steps. A network of few rows has l2.
    quick = rows < (1000 if estimator == "dnn" else 10_000)
    arguments = {"learning_rate": 0.005 if quick else 0.002, **given.optimizer_arguments}
    for name, attribute in statement.attributes.items():
        if name == METRICS_SETTING:
            find_metrics(attribute, plan.label.kind)
        elif name == _CLASSES_SETTING:
            _check_classes(attribute, plan)
    no_refit = _find_refit_obstacle(statement, rows, refit_obstacle)
    vectors = _count_vectors(plan) if estimator in ESTIMATORS else 0
    return TrainingSettings(
        estimator,
        reason,
        {**parameters, **given.parameters},
        Optimizer(given.optimizer, arguments),
        given.validation_share or (0.2 if rows < 50_000 else 0.1),
        8 if rows < 10_000 else 4,
        given.fields,
        refits=no_refit is None,
        compares=no_refit is None and statement.estimator is None and rows * len(plan.used) <= _MOST_COMPARED_VALUES,
        refit_reason=(no_refit or "") if rows < _SMALL_TABLE_ROWS else "",
        without_effect={name: why for name, why in _WITHOUT_EFFECT.items() if name in statement.attributes},
        strategy="ParameterServer" if vectors >= _LARGE_VECTORS and _STRATEGY not in given.fields else "Local",
        vector_numbers=vectors,
    )


def _count_vectors(plan: ColumnPlan) -> int:
    """The numbers in all vectors of categories."""
    embedded = [each for each in plan.used if each.use is ColumnUse.EMBEDDING]
    return sum((each.bins or len(each.vocabulary) + 1) * each.dimension for each in embedded)


@dataclass(frozen=True, slots=True)
class _Given:
    """What ``WITH`` sets, whatever the rows are.

    Attributes:
        parameters: arguments of the model.
        optimizer: name of its class.
        optimizer_arguments: of it.
        validation_share: None: it is not set.
        fields: of the job file.
    """

    parameters: Mapping[str, object]
    optimizer: str
    optimizer_arguments: Mapping[str, object]
    validation_share: float | None
    fields: Mapping[str, Attribute]


def check_settings(statement: TrainStatement, refit_obstacle: str = "") -> None:
    """Refuse what is wrong in ``WITH`` whatever the rows are, before these are read.

    Args:
        statement: what is wanted.
        refit_obstacle: see ``choose_settings``.

    Raises:
        BadInputError: see above; names the place.
    """
    _take_attributes(statement, choose_estimator(statement)[0])
    _find_refit_obstacle(statement, 0, refit_obstacle)


def check_job_fields(statement: TrainStatement) -> None:
    """Refuse wrong values of fields of the job file, of a training on this machine, before the rows are read.

    Raises:
        BadInputError: see above; names the place.
    """
    document = _plain_document(statement.into.name)
    fields = _take_attributes(statement, choose_estimator(statement)[0]).fields
    for name, attribute in fields.items():
        set_field(document, name, _plain(attribute.value))
    _check_document(document, fields)


def _take_attributes(statement: TrainStatement, estimator: str) -> _Given:
    module = None if estimator in ESTIMATORS else find_user_module(statement, ESTIMATORS)
    parameters, arguments = dict[str, object](), dict[str, object]()
    share, fields, optimizer = None, dict[str, Attribute](), "Adam"
    for written, attribute in statement.attributes.items():
        known = _SQLFLOW_NAMES.get(written, written)
        section, _, rest = known.partition(".")
        if known == _VALIDATION_SHARE:
            share = _take_share(attribute)
        elif known == _VALIDATION_SELECT:
            _take_validation(attribute)
        elif known == CLASS_WEIGHT:
            check_class_weight(attribute)
        elif (
            known in (METRICS_SETTING, _CLASSES_SETTING, KEY_SETTING, _REFIT)
            or known in _WITHOUT_EFFECT
            or (module and known == ZOO_SETTING)
        ):
            continue
        elif section == "model" and rest not in ("keras", "init_from"):
            if module is not None:
                # As it is written: model.hidden_units may be an argument.
                parameters[written.partition(".")[2]] = _plain(attribute.value)
                continue
            if rest not in _MODEL_ARGUMENTS[estimator]:
                raise _unknown(written, attribute, [f"model.{each}" for each in _MODEL_ARGUMENTS[estimator]], estimator)
            parameters[rest] = _check_value(written, rest, attribute)
        elif known == "optimizer.name":
            near = {each.lower(): each for each in OPTIMIZERS}
            if str(attribute.value).lower() not in near:
                raise statement_error(
                    f"there is no optimizer {attribute.value}", attribute.place, f"there are {', '.join(OPTIMIZERS)}"
                )
            optimizer = near[str(attribute.value).lower()]
        elif section == "optimizer":
            arguments[rest] = attribute.value  # checked when its class is known
        else:
            _check_field(written, known, attribute)
            fields[known] = attribute
    if module is not None:
        _check_module(module, statement)
    for argument in arguments:
        name = f"optimizer.{argument}"
        if argument not in OPTIMIZERS[optimizer]:
            known_names = [f"optimizer.{each}" for each in OPTIMIZERS[optimizer]]
            raise _unknown(name, statement.attributes[name], known_names, optimizer)
        _check_value(name, argument, statement.attributes[name])
    return _Given(parameters, optimizer, arguments, share, fields)


def _check_value(written: str, argument: str, attribute: Attribute) -> object:
    """The value of an argument of the model or of the optimizer, if it can be one."""
    is_possible, what = _VALUES[argument]
    if not is_possible(attribute.value):
        raise statement_error(f"{written} is {what}", attribute.place)
    return _plain(attribute.value)


def _is_number(value: AttributeValue) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: AttributeValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_IsPossible: TypeAlias = Callable[[AttributeValue], bool]
_POSITIVE: tuple[_IsPossible, str] = (lambda value: _is_number(value) and value > 0, "a number above 0")
_NOT_NEGATIVE: tuple[_IsPossible, str] = (lambda value: _is_number(value) and value >= 0, "a number from 0 on")
_BELOW_ONE: tuple[_IsPossible, str] = (lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to below 1")
_TRUTH: tuple[_IsPossible, str] = (lambda value: isinstance(value, bool), "true or false")
_OPTIONAL: tuple[_IsPossible, str] = (
    lambda value: value is None or (_is_number(value) and value > 0),
    "a number above 0, or NULL",
)
_VALUES: Mapping[str, tuple[_IsPossible, str]] = {
    "hidden": (
        lambda value: isinstance(value, tuple) and all(map(_is_size, value)),
        "a list of whole numbers from 1 on, such as [64, 32]",
    ),
    "factors": (_is_size, "a whole number from 1 on"),
    "learning_rate_power": (lambda value: _is_number(value) and value <= 0, "a number up to 0"),
    **dict.fromkeys(("learning_rate", "epsilon"), _POSITIVE),
    **dict.fromkeys(("weight_decay", "clipnorm", "clipvalue", "global_clipnorm"), _OPTIONAL),
    **dict.fromkeys(("dropout", "beta_1", "beta_2", "momentum", "rho"), _BELOW_ONE),
    **dict.fromkeys(("amsgrad", "nesterov", "centered"), _TRUTH),
    **dict.fromkeys(
        ("l2", "initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength"), _NOT_NEGATIVE
    ),
}
"""What a value of an argument of the model or of the optimizer can be."""


def _find_refit_obstacle(statement: TrainStatement, rows: int, here: str) -> str | None:
    """Why the model does not train again on all rows; None: it does.

    Raises:
        BadInputError: ``validation.refit`` is neither true nor false, or true where it cannot be.
    """
    given = statement.attributes
    wanted = given.get(_REFIT)
    if wanted is not None and not isinstance(wanted.value, bool):
        raise statement_error(f"{_REFIT} is true or false", wanted.place)
    obstacle = here or (f"{_VALIDATION_SELECT} names rows of their own" if _VALIDATION_SELECT in given else "")
    if choose_estimator(statement)[0] not in ESTIMATORS:
        obstacle = obstacle or "a module of yours has callbacks of its own"
    if wanted is not None:
        if wanted.value and obstacle:
            raise statement_error(f"{_REFIT} is not possible: {obstacle}", wanted.place, f"leave out {_REFIT}")
        return None if wanted.value else f"{_REFIT} is false"
    if obstacle:
        return obstacle
    if rows >= _SMALL_TABLE_ROWS:
        return "there are many rows"
    named = next(
        (name for name in given if _SQLFLOW_NAMES.get(name, name) in ("train.epochs", "train.max_steps")), None
    )
    return None if named is None else f"{named} is set"


def job_fields(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    """The fields of a job file that ``WITH`` sets, by dotted name.

    Raises:
        BadInputError: there is no such field, or the statement determines it.
    """
    fields: dict[str, Any] = {}
    for written, attribute in attributes.items():
        known = _SQLFLOW_NAMES.get(written, written)
        section, _, rest = known.partition(".")
        is_model = section == "model" and rest not in ("keras", "init_from")
        if (
            known not in (_VALIDATION_SHARE, _REFIT, KEY_SETTING, CLASS_WEIGHT, "optimizer.name", *_WITHOUT_EFFECT)
            and section != "optimizer"
            and not is_model
        ):
            _check_field(written, known, attribute)
            fields[known] = _plain(attribute.value)
    return fields


def _check_module(module: UserModule, statement: TrainStatement) -> None:
    """Refuse settings that a module of the user would not get."""
    given = statement.attributes
    arguments = {
        name.removeprefix("model."): each
        for name, each in given.items()
        if name.startswith("model.")
        and name not in (ZOO_SETTING, "model.keras", "model.init_from")
        and _SQLFLOW_NAMES.get(name, "model.").startswith("model.")
    }
    module.check_arguments(arguments, statement.estimator_place or statement.into.place)
    for name, attribute in given.items():
        if name == CLASS_WEIGHT:
            raise statement_error(
                f"{module.definition} has a loss of its own, in which {name} has no effect",
                attribute.place,
                "leave it out, and weigh the classes in the module",
            )
        if (name.startswith("optimizer.") or name == "model.optimizer") and not module.takes("optimizer"):
            raise statement_error(
                f"{module.definition} has an optimizer of its own",
                attribute.place,
                f"leave out {name}, or write in the module: from {COLUMNS_MODULE} import optimizer",
            )


def _take_share(attribute: Attribute) -> float:
    if not isinstance(attribute.value, float) or not 0 < attribute.value < 1:
        raise statement_error("validation.share is a number between 0 and 1, such as 0.2", attribute.place)
    return attribute.value


def _take_validation(attribute: Attribute) -> Select:
    if not isinstance(attribute.value, str) or not attribute.value.strip():
        raise statement_error(f"{_VALIDATION_SELECT} is a query in quotes", attribute.place)
    return Select(attribute.value, attribute.place)


def find_validation_query(statement: TrainStatement) -> Select | None:
    """The query whose rows are for validation, of SQLFlow's ``validation.select``; None: a share of the rows is.

    Raises:
        BadInputError: it is no query, or there is a share, too.
    """
    attribute = statement.attributes.get(_VALIDATION_SELECT)
    if attribute is None:
        return None
    if _VALIDATION_SHARE in statement.attributes:
        raise statement_error(f"{_VALIDATION_SHARE} is set, too", attribute.place, "leave out one of them")
    return _take_validation(attribute)


def find_metrics(attribute: Attribute, kind: LabelKind) -> tuple[str, ...]:
    """The metrics that ``validation.metrics`` names, in small letters and without underscores.

    All that there are for a kind of label are computed always.

    Raises:
        BadInputError: there is no such metric for this kind; names the place.
    """
    known, found = _METRICS[kind], list[str]()
    for name in filter(None, str(attribute.value).replace(" ", "").split(",")):
        found.append(name.lower().replace("_", ""))
        if found[-1] not in known:
            raise statement_error(
                f"there is no metric {name} for {kind}",
                attribute.place,
                f"leave out {METRICS_SETTING}: EDL computes {', '.join(known)}",
            )
    return tuple(found)


def _check_classes(attribute: Attribute, plan: ColumnPlan) -> None:
    if attribute.value != len(plan.label.classes):
        raise statement_error(
            f"model.n_classes is {attribute.value}, and the label has {len(plan.label.classes)} classes",
            attribute.place,
            "leave it out: EDL counts them",
        )


def _unknown(name: str, attribute: Attribute, known: list[str], whose: str) -> Exception:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return statement_error(
        f"{whose} has no setting {name}", attribute.place, f"{hint}It has {', '.join(known) or 'none'}"
    )


def _check_field(written: str, name: str, attribute: Attribute) -> None:
    """Refuse what is no field of a job file, or one that ``edl sql`` writes itself."""
    known = list(_field_names(JobSpec))
    if name.partition(".")[0] in _WRITTEN or name in ("model.definition", "model.zoo"):
        raise statement_error(f"{written} is set by the statement itself", attribute.place)
    # Below a field of free names, such as pod.env.X, everything may be a name.
    if any(name == each or (each.endswith(".*") and name.startswith(each[:-1])) for each in known):
        return
    choices = [
        *known,
        "model.hidden",
        "model.dropout",
        "optimizer.name",
        "optimizer.learning_rate",
        _VALIDATION_SHARE,
        _REFIT,
        CLASS_WEIGHT,
    ]
    near = get_close_matches(name, choices, 1) or [each for each in choices if each.rpartition(".")[2] == name][:1]
    hint = f"did you mean {near[0]}? " if near else ""
    raise statement_error(
        f"there is no setting {written}",
        attribute.place,
        f"{hint}There are fields of the job file, model.*, optimizer.* and {_VALIDATION_SHARE}",
    )


def _field_names(section: type, prefix: str = "") -> Any:
    for name, option in section_fields(section).items():
        kind = option.field_type
        if isinstance(kind, NullableType):
            kind = kind.inner_type
        below = getattr(kind, "section", None)
        if below is not None:
            yield from _field_names(below, f"{prefix}{name}.")
        yield f"{prefix}{name}"
        if isinstance(kind, MappingType | AnyJsonType):
            yield f"{prefix}{name}.*"


def _plain(value: AttributeValue) -> object:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


# --------------------------------------------------------------------------------------------------
# The job file.


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
            raise statement_error(
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
    for field_name, attribute in settings.fields.items():
        set_field(document, field_name, _plain(attribute.value))
    _check_document(document, settings.fields)
    return document


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


def _check_document(document: Mapping[str, Any], fields: Mapping[str, Attribute]) -> None:
    """Refuse wrong values, at their places in the statement."""
    try:
        read_job_tree(build_tree(document, "the job of the statement"))
    except SpecError as error:
        for problem in error.problems:
            for name, attribute in fields.items():
                if problem.field_path.startswith(name):
                    raise statement_error(f"{name}: {problem.message}", attribute.place, problem.hint) from None
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
