"""What a statement of ``edl sql`` asks for: SQLFlow's grammar, and the short form ``SELECT ... LABEL ... INTO ...``.

A SELECT is text of the database's own dialect. Nothing here knows a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

AttributeValue: TypeAlias = "bool | int | float | str | tuple[AttributeValue, ...] | None"


@dataclass(frozen=True, slots=True)
class TextPosition:
    """Where something begins in the text of the statements: line and column, from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclass(frozen=True, slots=True)
class SelectQuery:
    """A query of the database's own dialect, and where it begins."""

    text: str
    place: TextPosition


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model of the registry.

    Args:
        name: without the name of a database before it, which SQLFlow's statements have.
        version: from 1; None: the newest.
        place: in the statement.
    """

    name: str
    version: int | None
    place: TextPosition

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of the database, with the names of its catalog and schema before it, if they were written."""

    parts: tuple[str, ...]
    place: TextPosition

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column of the SELECT."""

    name: str
    place: TextPosition


@dataclass(frozen=True, slots=True)
class ColumnCall:
    """What becomes of columns: ``EMBEDDING(CATEGORY_HASH(town, 1000), 8)``.

    Args:
        function: in capital letters.
        arguments: columns, calls, and values.
        place: in the statement.
    """

    function: str
    arguments: tuple[ColumnExpression | AttributeValue, ...]
    place: TextPosition


ColumnExpression: TypeAlias = ColumnName | ColumnCall


@dataclass(frozen=True, slots=True)
class Attribute:
    """A setting of ``WITH``: a field of the job, of the model or of the optimizer."""

    value: AttributeValue
    place: TextPosition


@dataclass(frozen=True, slots=True)
class TrainStatement:
    """Train a model on the rows of a query.

    Args:
        select: the rows.
        label: the column that the model predicts.
        into: the model's name.
        estimator: what ``TO TRAIN`` names: a model of EDL's or of the user's module; None: chosen by the label.
        attributes: of ``WITH``, by name.
        columns: of ``COLUMN``, by the part of the model (``FOR``); the empty name stands for all of it.
        estimator_place: where the estimator stands.
    """

    select: SelectQuery
    label: ColumnName
    into: ModelName
    estimator: str | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    columns: Mapping[str, tuple[ColumnExpression, ...]] = field(default_factory=dict)
    estimator_place: TextPosition | None = None


@dataclass(frozen=True, slots=True)
class EvaluateStatement:
    """Metrics of a model on the rows of a query, printed or written into a table."""

    select: SelectQuery
    model: ModelName
    label: ColumnName | None = None
    into: TableName | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PredictStatement:
    """Predictions for the rows of a query, written into a column of a table."""

    select: SelectQuery
    into: TableName
    column: str
    model: ModelName
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExplainStatement:
    """How much each column of a query matters to a model, printed or written into a table."""

    select: SelectQuery
    model: ModelName
    into: TableName | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShowTrainStatement:
    """The statement that trained a model."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class ShowModelsStatement:
    """The models of the registry."""


@dataclass(frozen=True, slots=True)
class DropModelStatement:
    """Remove a model, or one version of it."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class QueryStatement:
    """A query whose rows are printed."""

    select: SelectQuery


Statement: TypeAlias = (
    TrainStatement
    | EvaluateStatement
    | PredictStatement
    | ExplainStatement
    | ShowTrainStatement
    | ShowModelsStatement
    | DropModelStatement
    | QueryStatement
)
JobStatement: TypeAlias = TrainStatement | EvaluateStatement | PredictStatement | ExplainStatement
"""Statements for which a model trains or runs."""
