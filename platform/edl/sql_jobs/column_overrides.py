"""What ``COLUMN`` says of columns, in place of the decisions of the plan.

``COLUMN`` overrides the columns that it names, and the others enter the model as planned. With ``FOR``, each part of
the model gets what stands before it, and nothing else. A plain name takes the column as planned, also if it would be
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edl.api.errors import BadInputError
from edl.sql_jobs.column_plan import (
    ColumnFacts,
    ColumnPlan,
    ColumnUse,
    FeaturePlan,
    IdSource,
    find_column,
    is_too_large,
    plan_by_kind,
    plan_category,
    plan_text,
    vector_size,
    with_null_text,
)
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import AttributeValue, ColumnCall, ColumnExpression, ColumnName

_STATED = "COLUMN says so"
_USAGES = {
    "NUMERIC": "NUMERIC(column)",
    "BUCKET": "BUCKET(column, [18, 30, 65])",
    "CROSS": "CROSS([first, second], 1000)",
    "EMBEDDING": "EMBEDDING(column, 16), EMBEDDING(CATEGORY_HASH(column, 1000), 16)",
    "INDICATOR": "INDICATOR(column), INDICATOR(CATEGORY_HASH(column, 100))",
    "CATEGORY_HASH": "CATEGORY_HASH(column, 1000)",
    "CATEGORY_ID": "CATEGORY_ID(column, 100), for whole numbers from 0 to 99",
    "VOCABULARIZE": "VOCABULARIZE(column), VOCABULARIZE(column, ['a', 'b'])",
}
_MOST_ARGUMENTS = dict.fromkeys(("NUMERIC", "BUCKET", "CATEGORY_HASH", "CATEGORY_ID", "VOCABULARIZE"), 2)
_MOST_ARGUMENTS |= {"EMBEDDING": 3, "INDICATOR": 1}
_COMBINERS = ("mean", "sum", "sqrtn")
"""Third argument of ``EMBEDDING`` in SQLFlow: of one value in a row, all are the same."""
_PARTS = {"": ""}
_PARTS |= dict.fromkeys(("wide", "linear", "linear_feature_columns"), "wide")
_PARTS |= dict.fromkeys(("deep", "dnn", "dnn_feature_columns", "feature_columns"), "deep")


def override_columns(plan: ColumnPlan, columns: Mapping[str, Sequence[ColumnExpression]], estimator: str) -> ColumnPlan:
    """The plan with what ``COLUMN`` says of it.

    Args:
        plan: of the statistics.
        columns: the expressions of each part of the model.
        estimator: the model; only ``wide_and_deep`` has parts.

    Raises:
        BadInputError: a column or a part does not exist, or an expression has wrong arguments; names the place.
    """
    facts = {each.facts.name: each.facts for each in plan.features} | {plan.label.name: plan.label.facts}
    stated = list[FeaturePlan]()
    for part, expressions in columns.items():
        known = part.lower() in _PARTS
        if not known or (part and _PARTS[part.lower()] == "wide" and estimator != "wide_and_deep"):
            raise StatementError(
                f"{estimator} has no part {part}",
                expressions[0].place,
                "wide_and_deep has the parts wide and deep; write COLUMN without FOR for other models",
            )
        planned = [_plan_expression(each, facts, plan) for each in expressions]
        stated += [replace(each, part=_PARTS[part.lower()] if estimator == "wide_and_deep" else "") for each in planned]
    if any(part for part in columns):
        if estimator == "wide_and_deep":
            _require_parts(stated, columns)
        return replace(plan, features=tuple(stated))
    named = {each.facts.name for each in stated if len(each.columns) == 1}
    return replace(plan, features=(*(each for each in plan.features if each.name not in named), *stated))


def _require_parts(stated: Sequence[FeaturePlan], columns: Mapping[str, Sequence[ColumnExpression]]) -> None:
    """Refuse a part of ``wide_and_deep`` that gets no column."""
    for part in ("deep", "wide"):
        if not any(each.part in ("", part) for each in stated):
            raise StatementError(
                f"the part {part} gets no column",
                next(iter(columns.values()))[0].place,
                f"add COLUMN … FOR {part}, or leave FOR out: then both parts get all columns",
            )


def _plan_expression(expression: ColumnExpression, facts: Mapping[str, ColumnFacts], plan: ColumnPlan) -> FeaturePlan:
    if isinstance(expression, ColumnName):
        planned = plan_by_kind(_take_column(expression, facts, plan))
        if planned.use is ColumnUse.NUMBER:
            _check_size(planned.facts, expression)
        return replace(planned, reason="COLUMN names it")
    call = _ColumnFunction(expression, facts, plan)
    made = call.make_feature()
    if made.facts.missing and made.use in (ColumnUse.NUMBER, ColumnUse.ONE_HOT, ColumnUse.EMBEDDING):
        return replace(made, has_indicator=True)
    return made


def _take_column(wanted: ColumnName, facts: Mapping[str, ColumnFacts], plan: ColumnPlan) -> ColumnFacts:
    column = find_column(facts, wanted)
    if column.name == plan.label.name:
        raise StatementError(f"{column.name} is the label, which the model must not see", wanted.place)
    if not column.count or column.kind == "other":
        reason = "has only NULL" if not column.count else f"is {column.type_name}, which no model takes"
        raise StatementError(f"the column {column.name} {reason}", wanted.place)
    return column


def _check_size(facts: ColumnFacts, expression: ColumnExpression) -> None:
    """Refuse numbers that cannot be scaled."""
    if is_too_large(facts):
        raise StatementError(
            f"the column {facts.name} has numbers from {facts.minimum:g} to {facts.maximum:g}, too large for float32",
            expression.place,
            "divide it in the query, or take its logarithm",
        )


class _ColumnFunction:
    """A function of ``COLUMN`` with its arguments."""

    def __init__(self, call: ColumnCall, facts: Mapping[str, ColumnFacts], plan: ColumnPlan) -> None:
        self._call = call
        self._facts = facts
        self._plan = plan
        if len(call.arguments) > _MOST_ARGUMENTS.get(call.function, len(call.arguments)):
            raise self._error()

    def make_feature(self) -> FeaturePlan:
        function = self._call.function
        if function == "NUMERIC":
            if self._call.arguments[1:] not in ((), (1,), ((1,),)):  # the shape, as SQLFlow writes it
                raise self._error()
            column = self._column(0, numeric=True)
            _check_size(column, self._call)
            return FeaturePlan((column,), ColumnUse.NUMBER, _STATED)
        if function == "EMBEDDING":
            return self._embed()
        if function == "INDICATOR":
            return replace(self._category(0), use=ColumnUse.ONE_HOT, dimension=0)
        made = self._make_category()
        # A cross and a hash have many values: a vector each. Ranges and a vocabulary: an input each.
        size = made.bins or len(made.vocabulary)
        if size <= 100 or made.ids is IdSource.RANGES:
            return made
        return replace(made, use=ColumnUse.EMBEDDING, dimension=vector_size(size))

    def _embed(self) -> FeaturePlan:
        first = self._argument(0)
        dimension = self._whole_number(1, least=1)
        if len(self._call.arguments) > 2 and _text_of(self._argument(2)) not in _COMBINERS:
            raise self._error()
        if isinstance(first, ColumnName):
            column = _take_column(first, self._facts, self._plan)
            if column.kind == "text" and column.vocabulary:
                return plan_text(column, _STATED, dimension)
        return replace(self._category(0), use=ColumnUse.EMBEDDING, dimension=dimension)

    def _category(self, number: int) -> FeaturePlan:
        """An argument that is a category: a call, or a column with its values."""
        argument = self._argument(number)
        if isinstance(argument, ColumnCall):
            if argument.function in ("NUMERIC", "EMBEDDING", "INDICATOR"):
                raise StatementError(
                    f"{self._call.function} takes a category, and {argument.function} makes none",
                    argument.place,
                    f"write {_USAGES[self._call.function]}",
                )
            return _ColumnFunction(argument, self._facts, self._plan)._make_category()
        if not isinstance(argument, ColumnName):
            raise self._error()
        return _look_up(_take_column(argument, self._facts, self._plan))

    def _make_category(self) -> FeaturePlan:
        function = self._call.function
        if function == "BUCKET":
            return self._bucket()
        if function == "CROSS":
            return self._cross()
        if function == "VOCABULARIZE":
            return self._vocabularize()
        if function not in ("CATEGORY_HASH", "CATEGORY_ID"):
            raise self._error()
        source = IdSource.HASH if function == "CATEGORY_HASH" else IdSource.IDENTITY
        column = self._column(0, numeric=source is IdSource.IDENTITY)
        bins = self._whole_number(1, least=2)
        if source is IdSource.IDENTITY and _has_fractions(column):
            raise StatementError(
                f"CATEGORY_ID takes whole numbers, and the column {column.name} has others",
                self._call.place,
                f"write BUCKET({column.name}, […]), or CAST it to an integer in the query",
            )
        if source is IdSource.IDENTITY and not 0 <= column.minimum <= column.maximum < bins:
            wanted = f"CATEGORY_ID({column.name}, {column.maximum + 1:.0f})"
            raise StatementError(
                f"CATEGORY_ID takes whole numbers from 0 to {bins - 1}, and the column {column.name} has "
                f"{column.minimum:.0f} to {column.maximum:.0f}",
                self._call.place,
                f"write {wanted if column.minimum >= 0 else f'CATEGORY_HASH({column.name}, {bins})'}",
            )
        return FeaturePlan((column,), ColumnUse.ONE_HOT, _STATED, ids=source, bins=bins)

    def _bucket(self) -> FeaturePlan:
        first = self._argument(0)
        if isinstance(first, ColumnCall) and first.function == "NUMERIC":  # as SQLFlow writes it
            column = _ColumnFunction(first, self._facts, self._plan)._column(0, numeric=True)
        else:
            column = self._column(0, numeric=True)
        listed = self._argument(1)
        if not isinstance(listed, tuple) or not listed or not all(_is_number(each) for each in listed):
            raise self._error()
        boundaries = tuple(float(each) for each in listed if isinstance(each, int | float))
        if list(boundaries) != sorted(set(boundaries)):
            raise StatementError("the boundaries of BUCKET must ascend", self._call.place)
        return FeaturePlan((column,), ColumnUse.ONE_HOT, _STATED, ids=IdSource.RANGES, boundaries=(boundaries,))

    def _cross(self) -> FeaturePlan:
        crossed = self._call.arguments[:-1]
        bins = self._whole_number(len(self._call.arguments) - 1, least=2)
        columns, boundaries = list[ColumnFacts](), list[tuple[float, ...]]()
        for each in crossed:
            if isinstance(each, ColumnCall) and each.function == "BUCKET":
                made = _ColumnFunction(each, self._facts, self._plan)._bucket()
                columns.append(made.facts)
                boundaries.append(made.boundaries[0])
            elif isinstance(each, str | ColumnName):
                name = each if isinstance(each, ColumnName) else ColumnName(each, self._call.place)
                columns.append(_take_column(name, self._facts, self._plan))
                boundaries.append(())
            else:
                raise self._error()
        if len(columns) < 2:
            raise self._error()
        return FeaturePlan(
            tuple(columns), ColumnUse.ONE_HOT, _STATED, ids=IdSource.CROSS, bins=bins, boundaries=tuple(boundaries)
        )

    def _vocabularize(self) -> FeaturePlan:
        column = self._column(0)
        if len(self._call.arguments) == 1:
            return _look_up(column)
        listed = self._argument(1)
        if not isinstance(listed, tuple) or not listed:
            raise self._error()
        words = tuple(dict.fromkeys(str(each) for each in listed))
        return FeaturePlan(
            (column,), ColumnUse.ONE_HOT, _STATED, ids=IdSource.VOCABULARY, vocabulary=with_null_text(column, words)
        )

    # -- arguments -------------------------------------------------------------------------------

    def _argument(self, number: int) -> ColumnExpression | AttributeValue:
        if number >= len(self._call.arguments):
            raise self._error()
        return self._call.arguments[number]

    def _column(self, number: int, *, numeric: bool = False) -> ColumnFacts:
        argument = self._argument(number)
        if not isinstance(argument, ColumnName):
            raise self._error()
        column = _take_column(argument, self._facts, self._plan)
        if numeric and column.kind == "text":
            raise StatementError(
                f"{self._call.function} takes a number, and the column {column.name} is {column.type_name}",
                argument.place,
                "convert it in the query: CAST(... AS DOUBLE PRECISION)",
            )
        return column

    def _whole_number(self, number: int, *, least: int) -> int:
        argument = self._argument(number)
        if not isinstance(argument, int) or isinstance(argument, bool) or argument < least:
            raise self._error()
        return argument

    def _error(self) -> BadInputError:
        function = self._call.function
        return StatementError(f"{function} has wrong arguments", self._call.place, f"write {_USAGES[function]}")


def _look_up(column: ColumnFacts) -> FeaturePlan:
    """A column with a vocabulary of all its values, or of hashes if they are too many."""
    return replace(plan_category(column, _STATED), reason=_STATED)


def _text_of(argument: ColumnExpression | AttributeValue) -> object:
    """A text, which may stand without quotes."""
    return argument.name if isinstance(argument, ColumnName) else argument


def _has_fractions(facts: ColumnFacts) -> bool:
    """Whether not all numbers are whole, as far as statistics tell: of few ones, or of more than could be whole."""
    if facts.kind != "number":
        return False
    values = [float(value) for value, _ in facts.values]
    # The number of different values is an estimate.
    return not all(map(float.is_integer, values)) or facts.distinct > 1.1 * (facts.maximum - facts.minimum + 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
