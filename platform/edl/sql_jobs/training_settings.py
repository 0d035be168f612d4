"""What a statement trains: the defaults that EDL chooses by the size of the data, and what ``WITH`` sets instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.sql_jobs.column_plan import ColumnPlan, ColumnUse
from edl.sql_jobs.estimators import ESTIMATORS, MODEL_ARGUMENTS, choose_estimator
from edl.sql_jobs.job_settings import (
    REFIT_SETTING,
    VALIDATION_SELECT,
    WITHOUT_EFFECT,
    check_label_settings,
    edl_name,
    find_validation_query,
    read_settings,
)
from edl.sql_jobs.model_module import Optimizer
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import Attribute, TrainStatement

SMALL_TABLE_ROWS = 10_000
"""From so many rows on, the weights that are expected are lost in what the rows say, and so are the validation rows."""
_MOST_COMPARED_VALUES = 1_000_000
"""Rows times columns up to which a linear model trains beside a network: each of its steps has all of them."""
LARGE_VECTORS = 1 << 24
"""Numbers in vectors of categories from which one process is slow: its optimizer looks at all of them in each step, and
a parameter server at those of the minibatch."""
STRATEGY_SETTING = "strategy.name"
TOO_MANY_TO_REFIT = f"on a cluster the master does that, and there are {SMALL_TABLE_ROWS:,} rows or more"
"""Why the submitted model of a large table does not train again on all rows."""


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


def choose_settings(
    statement: TrainStatement, estimator: str, reason: str, plan: ColumnPlan, refit_obstacle: str = ""
) -> TrainingSettings:
    """The defaults by the size of the data, with what ``WITH`` sets.

    Args:
        statement: what is wanted.
        estimator: see ``choose_estimator``.
        reason: see ``choose_estimator``.
        plan: of the columns.
        refit_obstacle: why the model of a large table cannot train again on all rows here; empty: it can.

    Raises:
        BadInputError: ``WITH`` has a name or a value that is wrong; names its place.
    """
    rows = plan.label.facts.count
    given = read_settings(statement, estimator)
    parameters: dict[str, object] = {}
    if MODEL_ARGUMENTS.get(estimator):
        parameters = {"hidden": [32, 16] if rows < 2000 else [64, 32] if rows < 100_000 else [128, 64], "dropout": 0.1}
    if estimator == "dnn" and rows < SMALL_TABLE_ROWS:
        parameters["l2"] = float(f"{0.5 / max(1, rows):.2g}")
    # A linear model needs no care not to learn the rows by heart, and fewer steps. A network of few rows has l2.
    quick = rows < (1000 if estimator == "dnn" else 10_000)
    arguments = {"learning_rate": 0.005 if quick else 0.002, **given.optimizer_arguments}
    check_label_settings(statement, plan)
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
        refit_reason=(no_refit or "") if rows < SMALL_TABLE_ROWS else "",
        without_effect={name: why for name, why in WITHOUT_EFFECT.items() if name in statement.attributes},
        strategy="ParameterServer" if vectors >= LARGE_VECTORS and STRATEGY_SETTING not in given.fields else "Local",
        vector_numbers=vectors,
    )


def check_settings(statement: TrainStatement) -> None:
    """Refuse what is wrong in ``WITH`` whatever the rows are, before these are read.

    Args:
        statement: what is wanted.

    Raises:
        BadInputError: see above; names the place.
    """
    read_settings(statement, choose_estimator(statement)[0])
    find_validation_query(statement)
    _find_refit_obstacle(statement, 0, "")


def refits_small_table(statement: TrainStatement) -> bool:
    """Whether a model of few rows trains again on all rows.

    Raises:
        BadInputError: see ``check_settings``.
    """
    return _find_refit_obstacle(statement, 0, "") is None


def _find_refit_obstacle(statement: TrainStatement, rows: int, here: str) -> str | None:
    """Why the model does not train again on all rows; None: it does.

    Raises:
        BadInputError: ``validation.refit`` is neither true nor false, or true where it cannot be.
    """
    given = statement.attributes
    wanted = given.get(REFIT_SETTING)
    if wanted is not None and not isinstance(wanted.value, bool):
        raise StatementError(f"{REFIT_SETTING} is true or false", wanted.place)
    obstacle = (here if rows >= SMALL_TABLE_ROWS else "") or (
        f"{VALIDATION_SELECT} names rows of their own" if VALIDATION_SELECT in given else ""
    )
    if choose_estimator(statement)[0] not in ESTIMATORS:
        obstacle = obstacle or "a module of yours has callbacks of its own"
    if wanted is not None:
        if wanted.value and obstacle:
            message = f"{REFIT_SETTING} is not possible: {obstacle}"
            raise StatementError(message, wanted.place, f"leave out {REFIT_SETTING}")
        return None if wanted.value else f"{REFIT_SETTING} is false"
    if obstacle:
        return obstacle
    if rows >= SMALL_TABLE_ROWS:
        return "there are many rows"
    named = next((name for name in given if edl_name(name) in ("train.epochs", "train.max_steps")), None)
    return None if named is None else f"{named} is set"


def _count_vectors(plan: ColumnPlan) -> int:
    """The numbers in all vectors of categories."""
    embedded = [each for each in plan.used if each.use is ColumnUse.EMBEDDING]
    return sum((each.bins or len(each.vocabulary) + 1) * each.dimension for each in embedded)
