"""What ``WITH`` sets, and which of it is wrong.

``WITH`` has names of three kinds: ``model.*``, arguments of the model; ``optimizer.*``, its class and arguments; and
every field of a job file. ``validation.share`` is the share of the rows that are for validation, ``validation.refit``
says whether the model trains again on all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeGuard

from edl.api.job_spec import JobSpec
from edl.jobfile.scalar_types import AnyJsonType, MappingType, NullableType
from edl.jobfile.section_type import section_fields
from edl.sql_jobs.column_plan import CLASS_WEIGHT, ColumnPlan, LabelKind, check_class_weight
from edl.sql_jobs.estimators import ESTIMATORS, MODEL_ARGUMENTS
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import Attribute, AttributeValue, SelectQuery, TrainStatement
from edl.sql_jobs.stream_key import KEY_SETTING
from edl.sql_jobs.user_module import COLUMNS_MODULE, ZOO_SETTING, UserModule, find_user_module

_SQLFLOW_NAMES = {
    "model.hidden_units": "model.hidden",
    "model.dnn_hidden_units": "model.hidden",
    "model.batch_size": "train.minibatch_size",
    "train.batch_size": "train.minibatch_size",
    "train.epoch": "train.epochs",
    "train.max_steps": "train.max_steps",
    "model.optimizer": "optimizer.name",
}
WITHOUT_EFFECT = {
    "train.verbose": "progress is always shown",
    "validation.throttle_secs": "evaluations follow a number of steps",
    "validation.start_delay_secs": "evaluations follow a number of steps",
}
"""Settings in SQLFlow's documentation that say nothing about the model, and why."""
_COMMON = ("learning_rate", "weight_decay", "clipnorm", "clipvalue", "global_clipnorm")
OPTIMIZERS = {
    "Adam": (*_COMMON, "beta_1", "beta_2", "epsilon", "amsgrad"),
    "AdamW": (*_COMMON, "beta_1", "beta_2", "epsilon", "amsgrad"),
    "SGD": (*_COMMON, "momentum", "nesterov"),
    "Adagrad": (*_COMMON, "initial_accumulator_value", "epsilon"),
    "RMSprop": (*_COMMON, "rho", "momentum", "epsilon", "centered"),
    "Ftrl": (*_COMMON, "learning_rate_power", "l1_regularization_strength", "l2_regularization_strength"),
}
_VALIDATION_SHARE, VALIDATION_SELECT = "validation.share", "validation.select"
REFIT_SETTING = "validation.refit"
METRICS_SETTING, _CLASSES_SETTING = "validation.metrics", "model.n_classes"
_METRICS = {
    LabelKind.BINARY: ("accuracy", "auc", "logloss"),
    LabelKind.CLASSES: ("accuracy", "logloss"),
    LabelKind.NUMBER: ("meanabsoluteerror", "rootmeansquarederror", "r2"),
}
"""Metrics of the models that are written, as SQLFlow's ``validation.metrics`` names them."""
_WRITTEN = ("apiVersion", "name", "task", "command", "data", "export")
"""Sections of the job file that the statement itself determines."""


@dataclass(frozen=True, slots=True)
class StatementSettings:
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


def read_settings(statement: TrainStatement, estimator: str) -> StatementSettings:
    """What ``WITH`` sets, checked as far as that needs no rows.

    Raises:
        BadInputError: a name or a value is wrong; names its place.
    """
    module = None if estimator in ESTIMATORS else find_user_module(statement, ESTIMATORS)
    parameters, arguments = dict[str, object](), dict[str, object]()
    share, fields, optimizer = None, dict[str, Attribute](), "Adam"
    names = dict[str, str]()
    for written, attribute in statement.attributes.items():
        known = edl_name(written)
        if module is None and names.setdefault(known, written) != written:
            raise StatementError(
                f"{names[known]} and {written} are one setting, {known}", attribute.place, "leave out one of them"
            )
        section, _, rest = known.partition(".")
        if known == _VALIDATION_SHARE:
            share = _take_share(attribute)
        elif known == VALIDATION_SELECT:
            _take_validation(attribute)
        elif known == CLASS_WEIGHT:
            check_class_weight(attribute)
        elif (
            known in (METRICS_SETTING, _CLASSES_SETTING, KEY_SETTING, REFIT_SETTING)
            or known in WITHOUT_EFFECT
            or (module and known == ZOO_SETTING)
        ):
            continue
        elif section == "model" and rest not in ("keras", "init_from"):
            if module is not None:
                # As it is written: model.hidden_units may be an argument.
                parameters[written.partition(".")[2]] = field_value(attribute.value)
                continue
            if rest not in MODEL_ARGUMENTS[estimator]:
                raise _unknown(written, attribute, [f"model.{each}" for each in MODEL_ARGUMENTS[estimator]], estimator)
            parameters[rest] = _check_value(written, rest, attribute)
        elif known == "optimizer.name":
            optimizer = _find_optimizer(attribute)
        elif known == "optimizer":
            raise StatementError(
                "there is no setting optimizer",
                attribute.place,
                "write optimizer.name='Adam', or optimizer.learning_rate=0.01",
            )
        elif section == "optimizer":
            arguments[rest] = attribute.value  # checked when its class is known
        else:
            _check_field(written, known, attribute)
            fields[known] = attribute
    if module is not None:
        _check_module(module, statement)
    for argument in arguments:
        _check_optimizer_argument(argument, optimizer, statement.attributes[f"optimizer.{argument}"])
    return StatementSettings(parameters, optimizer, arguments, share, fields)


def edl_name(written: str) -> str:
    """The name of a setting that has another one in SQLFlow."""
    return _SQLFLOW_NAMES.get(written, written)


def _find_optimizer(attribute: Attribute) -> str:
    names = {each.lower(): each for each in OPTIMIZERS}
    name = names.get(str(attribute.value).lower())
    if name is None:
        raise StatementError(
            f"there is no optimizer {attribute.value}", attribute.place, f"there are {', '.join(OPTIMIZERS)}"
        )
    return name


def _check_optimizer_argument(argument: str, optimizer: str, attribute: Attribute) -> None:
    name = f"optimizer.{argument}"
    if argument not in OPTIMIZERS[optimizer]:
        raise _unknown(name, attribute, [f"optimizer.{each}" for each in OPTIMIZERS[optimizer]], optimizer)
    _check_value(name, argument, attribute)


def _check_value(written: str, argument: str, attribute: Attribute) -> object:
    """The value of an argument of the model or of the optimizer, if it can be one."""
    is_possible, what = _VALUES[argument]
    if not is_possible(attribute.value):
        raise StatementError(f"{written} is {what}", attribute.place)
    return field_value(attribute.value)


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
            raise StatementError(
                f"{module.definition} has a loss of its own, in which {name} has no effect",
                attribute.place,
                "leave it out, and weigh the classes in the module",
            )
        if (name.startswith("optimizer.") or name == "model.optimizer") and not module.takes("optimizer"):
            raise StatementError(
                f"{module.definition} has an optimizer of its own",
                attribute.place,
                f"leave out {name}, or write in the module: from {COLUMNS_MODULE} import optimizer",
            )


def _take_share(attribute: Attribute) -> float:
    if not isinstance(attribute.value, float) or not 0 < attribute.value < 1:
        raise StatementError("validation.share is a number between 0 and 1, such as 0.2", attribute.place)
    return attribute.value


def _take_validation(attribute: Attribute) -> SelectQuery:
    if not isinstance(attribute.value, str) or not attribute.value.strip():
        raise StatementError(f"{VALIDATION_SELECT} is a query in quotes", attribute.place)
    return SelectQuery(attribute.value, attribute.place)


def find_validation_query(statement: TrainStatement) -> SelectQuery | None:
    """The query whose rows are for validation, of SQLFlow's ``validation.select``; None: a share of the rows is.

    Raises:
        BadInputError: it is no query, or there is a share, too.
    """
    attribute = statement.attributes.get(VALIDATION_SELECT)
    if attribute is None:
        return None
    if _VALIDATION_SHARE in statement.attributes:
        raise StatementError(f"{_VALIDATION_SHARE} is set, too", attribute.place, "leave out one of them")
    return _take_validation(attribute)


def find_metrics(attribute: Attribute, kind: LabelKind) -> tuple[str, ...]:
    """The metrics that ``validation.metrics`` names, in small letters and without underscores.

    All that there are for a kind of label are computed always.

    Raises:
        BadInputError: there is no such metric for this kind; names the place.
    """
    known, metrics = _METRICS[kind], list[str]()
    given = attribute.value if isinstance(attribute.value, tuple) else (attribute.value,)
    for name in filter(None, ",".join(map(str, given)).replace(" ", "").split(",")):
        metrics.append(name.lower().replace("_", ""))
        if metrics[-1] not in known:
            raise StatementError(
                f"there is no metric {name} for {kind}",
                attribute.place,
                f"leave out {METRICS_SETTING}: EDL computes {', '.join(known)}",
            )
    return tuple(metrics)


def check_label_settings(statement: TrainStatement, plan: ColumnPlan) -> None:
    """Refuse metrics and a number of classes that do not fit the label.

    Raises:
        BadInputError: see above; names the place.
    """
    for name, attribute in statement.attributes.items():
        if name == METRICS_SETTING:
            find_metrics(attribute, plan.label.kind)
        elif name == _CLASSES_SETTING:
            _check_classes(attribute, plan)


def _check_classes(attribute: Attribute, plan: ColumnPlan) -> None:
    if attribute.value != len(plan.label.classes):
        raise StatementError(
            f"model.n_classes is {attribute.value!r}, and the label has {len(plan.label.classes)} classes",
            attribute.place,
            "leave it out: EDL counts them",
        )


def _unknown(name: str, attribute: Attribute, known: list[str], whose: str) -> Exception:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return StatementError(
        f"{whose} has no setting {name}", attribute.place, f"{hint}It has {', '.join(known) or 'none'}"
    )


def _check_field(written: str, name: str, attribute: Attribute) -> None:
    """Refuse what is no field of a job file, or one that ``edl sql`` writes itself."""
    known = list(_field_names(JobSpec))
    if name.partition(".")[0] in _WRITTEN or name in ("model.definition", "model.zoo"):
        raise StatementError(f"{written} is set by the statement itself", attribute.place)
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
        REFIT_SETTING,
        CLASS_WEIGHT,
    ]
    near = get_close_matches(name, choices, 1) or [each for each in choices if each.rpartition(".")[2] == name][:1]
    hint = f"did you mean {near[0]}? " if near else ""
    raise StatementError(
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


def field_value(value: AttributeValue) -> object:
    """The value of an attribute, as a job file has it."""
    return [field_value(each) for each in value] if isinstance(value, tuple) else value
