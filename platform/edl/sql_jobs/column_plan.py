"""Decides how each column of a query enters a model, from the statistics of one pass over its rows.

Each decision carries its reason, which is printed before training, and each can be overridden in ``COLUMN``. Pure:
statistics in, a plan out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

from edl.core.short_list import format_short_list
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import Attribute, ColumnName

MOST_WORDS = 1000
"""Different texts up to which each gets an entry of a vocabulary; more are hashed."""
MOST_ONE_HOT = 32
"""Different values up to which each is an input of its own; more get a vector each."""
MOST_CLASSES = 100
"""Different texts up to which a label has classes."""
FEW_NUMBERS = 10
"""Different whole numbers up to which a label has classes and is no quantity."""
TEXT_WORDS = 4
"""Words of a text, on average, from which it is language and not a category."""
SKEWED = 20.0
"""How many times the 99th percentile is above the median, from which logarithms are taken."""
_LONGEST_CLASS = 255
"""Bytes of a class; statistics compare no more."""
MOST_DEVIATION = 1e18
"""Up to which numbers are scaled: models compute in float32, in which the square of a larger one is infinite."""
RARE_CLASS = 0.5
"""Classes are weighted if the rarest has less than this part of an equal share."""
CLASS_WEIGHT = "train.class_weight"
"""The setting that weighs classes, or does not."""
_NAMES_OF_CODES = ("id", "code", "zip", "class", "type", "kind", "category", "group", "no", "key")
ColumnT = TypeVar("ColumnT")
_NAMES_LISTED = 20
"""Columns that a message lists; a table may have thousands."""


class ColumnUse(StrEnum):
    """What becomes of a column within the model."""

    NUMBER = "scaled"
    LOG_NUMBER = "scaled logarithm"
    BOOLEAN = "0 or 1"
    DATE = "parts of the date"
    ONE_HOT = "one input for each value"
    EMBEDDING = "a vector for each value"
    TEXT = "vectors of its words"
    DROPPED = "dropped"


class IdSource(StrEnum):
    """Where the number of a category comes from."""

    VOCABULARY = "vocabulary"
    HASH = "hash"
    IDENTITY = "identity"
    RANGES = "ranges"
    CROSS = "cross"


class LabelKind(StrEnum):
    """What the model predicts."""

    BINARY = "one of two classes"
    CLASSES = "one of several classes"
    NUMBER = "a number"


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What one pass over the rows tells of a column.

    Args:
        name: of the column.
        kind: ``number``, ``integer``, ``boolean``, ``text``, ``date`` or ``other``, which no model takes.
        count: values that are there.
        missing: values that are NULL.
        distinct: estimated number of different values.
        type_name: of the column in Parquet.
        has_time: of a date: there are hours.
        words: of a text, on average.
        vocabulary: the most frequent words of a text.
        minimum: the least value of numbers.
        maximum: the greatest one.
        mean: of numbers.
        deviation: standard deviation of numbers.
        log_mean: mean of the logarithms of 1 + x.
        log_deviation: their standard deviation.
        median: of numbers.
        high: 99th percentile of numbers.
        values: the most frequent values with their counts, as texts; all of them if there are few.
        copies_label: each value of the column stands beside one value of the label only, and the other way around.
    """

    name: str
    kind: str
    count: int
    missing: int
    distinct: int
    type_name: str = ""
    has_time: bool = True
    words: float = 1.0
    vocabulary: tuple[str, ...] = ()
    minimum: float = 0.0
    maximum: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0
    log_mean: float = 0.0
    log_deviation: float = 1.0
    median: float = 0.0
    high: float = 0.0
    values: tuple[tuple[str, int], ...] = ()
    copies_label: bool = False


@dataclass(frozen=True, slots=True)
class FeaturePlan:
    """A column, or several that are crossed, what becomes of them, and why.

    Args:
        columns: one; several of a cross.
        use: what becomes of them.
        reason: as a clause.
        has_indicator: a NULL is an input of its own.
        ids: of categories: where their numbers come from.
        vocabulary: of categories with a vocabulary, or the words of a text.
        bins: of hashes, identities and crosses.
        boundaries: of ranges; of a cross those of each of its columns, empty for one that is a category.
        dimension: of vectors.
        part: of the model that gets it; empty: all.
    """

    columns: tuple[ColumnFacts, ...]
    use: ColumnUse
    reason: str
    has_indicator: bool = False
    ids: IdSource | None = None
    vocabulary: tuple[str, ...] = ()
    bins: int = 0
    boundaries: tuple[tuple[float, ...], ...] = ()
    dimension: int = 0
    part: str = ""

    @property
    def facts(self) -> ColumnFacts:
        """The statistics of the column, or of the first one."""
        return self.columns[0]

    @property
    def name(self) -> str:
        """The names of its columns."""
        return " x ".join(each.name for each in self.columns)


@dataclass(frozen=True, slots=True)
class LabelPlan:
    """The label, what kind of a model it asks for, and why.

    Args:
        facts: of its column.
        kind: of the model.
        reason: as a clause.
        classes: as texts, in the order of their numbers.
        class_weights: of each class by its number; empty: all weigh the same.
    """

    facts: ColumnFacts
    kind: LabelKind
    reason: str
    classes: tuple[str, ...] = ()
    class_weights: Mapping[int, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its column."""
        return self.facts.name


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """The label and all columns, in the order of the query."""

    label: LabelPlan
    features: tuple[FeaturePlan, ...]

    @property
    def used(self) -> tuple[FeaturePlan, ...]:
        """What the model gets."""
        return tuple(each for each in self.features if each.use is not ColumnUse.DROPPED)


def find_column(columns: Mapping[str, ColumnT], wanted: ColumnName) -> ColumnT:
    """The column of a name; capital letters do not matter where this is unambiguous, as in SQL.

    Raises:
        BadInputError: the query has no such column; names the place, and what was probably meant.
    """
    if wanted.name in columns:
        return columns[wanted.name]
    same = [column for name, column in columns.items() if name.lower() == wanted.name.lower()]
    if len(same) == 1:
        return same[0]
    near = get_close_matches(wanted.name, columns, 1)
    # As it has to be written.
    meant = [name if re.fullmatch(r"\w+", name) else f'"{name}"' for name in near]
    hint = f"did you mean {meant[0]}? " if meant else ""
    raise StatementError(
        f"the query has no column {wanted.name}", wanted.place, f"{hint}It has {list_names(tuple(columns))}"
    )


def list_names(names: Sequence[str]) -> str:
    """Names for a message, not too many of them."""
    return format_short_list(names, _NAMES_LISTED)


def plan_columns(
    columns: Sequence[ColumnFacts],
    label: ColumnName,
    class_weight: Attribute | None = None,
    quote: Callable[[str], str] = str,
) -> ColumnPlan:
    """How the columns of a query become a model's inputs.

    Args:
        columns: all of them.
        label: which of them the model predicts.
        class_weight: the setting ``train.class_weight``; None: rare classes decide.
        quote: writes the name of a column as a query must.

    Raises:
        BadInputError: the label cannot be learnt, or its classes not so weighted.
    """
    facts = find_column({each.name: each for each in columns}, label)
    planned = _weigh_classes(plan_label(facts, label, quote), class_weight)
    return ColumnPlan(planned, tuple(plan_feature(each) for each in columns if each.name != facts.name))


def check_features(plan: ColumnPlan, label: ColumnName) -> None:
    """Refuse a plan in which no column is left to learn from.

    Raises:
        BadInputError: see above.
    """
    if not plan.used:
        reasons = [f"{each.name}: {each.reason}" for each in plan.features[:_NAMES_LISTED]]
        dropped = "; ".join(reasons) or "the query has no other column"
        raise StatementError(f"no column is left to predict {plan.label.name} from: {dropped}", label.place)


def plan_label(facts: ColumnFacts, label: ColumnName, quote: Callable[[str], str] = str) -> LabelPlan:
    """What a model of this label predicts.

    Raises:
        BadInputError: the label has NULLs, only one value, or too many different texts.
    """
    if not facts.count + facts.missing:
        raise StatementError("the query has no rows", label.place, "nothing can be learnt from it")
    if facts.missing:
        what = "only NULL" if not facts.count else f"{facts.missing:,} NULLs"
        hint = "choose another column" if not facts.count else f"add WHERE {quote(facts.name)} IS NOT NULL to the query"
        raise StatementError(f"the label {facts.name} has {what}", label.place, hint)
    if facts.kind in ("date", "other"):
        raise StatementError(
            f"the label {facts.name} is {facts.type_name}, which no model predicts",
            label.place,
            "make it a number or a text in the query",
        )
    if facts.distinct < 2:
        value = facts.values[0][0] if facts.values else ""
        raise StatementError(
            f"the label {facts.name} has one value, {value!r}: there is nothing to learn",
            label.place,
            "choose another column, or rows with different values",
        )
    if facts.kind == "text" and any(len(value.encode()) > _LONGEST_CLASS for value, _ in facts.values):
        raise StatementError(
            f"the label {facts.name} has texts of more than {_LONGEST_CLASS} bytes",
            label.place,
            "make short names of them in the query",
        )
    if facts.kind == "boolean" or facts.distinct == 2:
        return _plan_classes(facts, LabelKind.BINARY, "it has two values")
    if facts.kind == "text":
        if facts.distinct > MOST_CLASSES:
            raise StatementError(
                f"the label {facts.name} has {facts.distinct:,} different texts, more than {MOST_CLASSES}",
                label.place,
                "choose a column with fewer values, or group them in the query",
            )
        return _plan_classes(facts, LabelKind.CLASSES, f"it has {facts.distinct} different texts")
    if facts.deviation > MOST_DEVIATION:
        raise StatementError(
            f"the label {facts.name} has numbers from {facts.minimum:g} to {facts.maximum:g}, which are too large "
            "for float32",
            label.place,
            "divide it in the query, or take its logarithm",
        )
    if facts.kind == "integer" and facts.distinct <= FEW_NUMBERS and facts.minimum in (0, 1):
        return _plan_classes(facts, LabelKind.CLASSES, f"it has {facts.distinct} whole numbers from {facts.minimum:g}")
    return LabelPlan(facts, LabelKind.NUMBER, f"it is a number with {facts.distinct:,} values")


def _plan_classes(facts: ColumnFacts, kind: LabelKind, reason: str) -> LabelPlan:
    counts = dict(facts.values)
    # Numbers in their own order: 10 comes after 9.
    classes = tuple(sorted(counts) if facts.kind in ("text", "boolean") else sorted(counts, key=float))
    return LabelPlan(facts, kind, reason, classes)


def check_class_weight(wanted: Attribute) -> None:
    """Refuse another value than ``balanced`` and ``none``.

    Raises:
        BadInputError: see above; names the place.
    """
    # Without quotes, none is read as NULL.
    if wanted.value not in ("balanced", "none", None):
        raise StatementError(f"{CLASS_WEIGHT} is balanced or none", wanted.place)


def _weigh_classes(label: LabelPlan, wanted: Attribute | None) -> LabelPlan:
    """Give each class of a label with rare ones the same total weight, or do what a setting says.

    Raises:
        BadInputError: the setting is neither ``balanced`` nor ``none``, or the label is a number.
    """
    if wanted is not None:
        check_class_weight(wanted)
    if label.kind is LabelKind.NUMBER:
        if wanted is not None:
            raise StatementError(f"{label.name} is a number and has no classes", wanted.place, "leave it out")
        return label
    counts = dict(label.facts.values)
    shares = {value: counts[value] / label.facts.count for value in label.classes}
    rarest = min(label.classes, key=shares.__getitem__)
    weights = {number: round(1 / (len(shares) * share), 6) for number, share in enumerate(shares.values())}
    if wanted is not None:
        is_balanced = wanted.value == "balanced"
        reason = f"{label.reason}; all {'classes' if is_balanced else 'rows'} weigh the same"
        return replace(label, reason=reason, class_weights=weights if is_balanced else {})
    if shares[rarest] >= RARE_CLASS / len(shares):
        return label
    reason = f"{label.reason}; {rarest!r} has {shares[rarest]:.1%} of the rows, so rare classes weigh more"
    return replace(label, reason=reason, class_weights=weights)


def plan_feature(facts: ColumnFacts) -> FeaturePlan:
    """What becomes of a column."""
    if not facts.count:
        return _drop(facts, "it has only NULL")
    if facts.kind == "other":
        return _drop(facts, f"it is {facts.type_name}, which no model takes")
    if facts.copies_label:
        return _drop(facts, "it is a copy of the label: each of its values is one of the label's")
    if facts.distinct < 2 and not facts.missing:
        return _drop(facts, "all rows have the same value")
    # A vector that one row trains says nothing of others, and knows the label of that row.
    if facts.kind == "text" and facts.words < TEXT_WORDS and facts.distinct > max(MOST_ONE_HOT, 0.9 * facts.count):
        return _drop(facts, "almost every row has another text")
    if facts.kind == "integer" and _is_called_code(facts) and facts.distinct > 0.95 * facts.count:
        return _drop(facts, "it numbers the rows: almost every row has another value")
    if is_too_large(facts) and facts.minimum < 0:
        return _drop(facts, f"{_range(facts)} are too large for float32; divide them in the query")
    return plan_by_kind(facts)


def is_too_large(facts: ColumnFacts) -> bool:
    """Whether numbers cannot be scaled."""
    return facts.kind in ("number", "integer") and facts.deviation > MOST_DEVIATION


def _range(facts: ColumnFacts) -> str:
    return f"its numbers, from {facts.minimum:g} to {facts.maximum:g},"


def plan_by_kind(facts: ColumnFacts) -> FeaturePlan:
    """How a column enters the model, if it does."""
    planned = _plan_present(facts)
    if not facts.missing:
        return planned
    return replace(planned, has_indicator=True, reason=f"{planned.reason}; {facts.missing:,} NULLs are an input")


def _drop(facts: ColumnFacts, reason: str) -> FeaturePlan:
    return FeaturePlan((facts,), ColumnUse.DROPPED, reason)


def _plan_present(facts: ColumnFacts) -> FeaturePlan:
    if facts.kind == "boolean":
        return FeaturePlan((facts,), ColumnUse.BOOLEAN, "it is true or false")
    if facts.kind == "date":
        return FeaturePlan((facts,), ColumnUse.DATE, "it is a time")
    if facts.kind == "text":
        if facts.words >= TEXT_WORDS and facts.distinct > MOST_ONE_HOT:
            return plan_text(facts, f"it has {facts.words:.1f} words a row")
        return plan_category(facts, f"it has {facts.distinct:,} different text{'' if facts.distinct == 1 else 's'}")
    if facts.kind == "integer" and _is_called_code(facts) and facts.distinct > 2:
        return plan_category(facts, f"its name is that of a code, and it has {facts.distinct:,} values")
    if facts.minimum >= 0 and is_too_large(facts):
        return FeaturePlan((facts,), ColumnUse.LOG_NUMBER, f"{_range(facts)} are too large for float32")
    if facts.minimum >= 0 and facts.high > SKEWED * max(facts.median, 1.0):
        return FeaturePlan(
            (facts,),
            ColumnUse.LOG_NUMBER,
            f"it is skewed: the 99th percentile is {facts.high:g}, the median {facts.median:g}",
        )
    return FeaturePlan((facts,), ColumnUse.NUMBER, "it is a number")


def plan_text(facts: ColumnFacts, reason: str, dimension: int = 16) -> FeaturePlan:
    """Vectors of the words of a text."""
    words = facts.vocabulary or ("",)
    return FeaturePlan((facts,), ColumnUse.TEXT, reason, vocabulary=words, dimension=dimension)


def plan_category(facts: ColumnFacts, reason: str) -> FeaturePlan:
    """Values as categories: one-hot if there are few, with vectors from a vocabulary or of hashes if there are more."""
    values = tuple(sorted(value for value, _ in facts.values))
    if facts.distinct > MOST_WORDS or len(values) < facts.distinct:
        bins = hash_bins(facts.distinct)
        dimension = vector_size(facts.distinct)
        return FeaturePlan(
            (facts,), ColumnUse.EMBEDDING, f"{reason}, hashed to {bins:,}", ids=IdSource.HASH, bins=bins,
            dimension=dimension,
        )  # fmt: skip
    vocabulary = with_null_text(facts, values)
    if facts.distinct <= MOST_ONE_HOT:
        return FeaturePlan((facts,), ColumnUse.ONE_HOT, reason, ids=IdSource.VOCABULARY, vocabulary=vocabulary)
    return FeaturePlan(
        (facts,), ColumnUse.EMBEDDING, reason, ids=IdSource.VOCABULARY, vocabulary=vocabulary,
        dimension=vector_size(facts.distinct),
    )  # fmt: skip


def with_null_text(facts: ColumnFacts, values: tuple[str, ...]) -> tuple[str, ...]:
    """A vocabulary, with the empty text that stands for NULL if there are NULLs."""
    return ("", *values) if facts.missing and "" not in values else values


def vector_size(values: int) -> int:
    """Components of a category's vector: twice the fourth root of their number, as guides of TensorFlow recommend."""
    return max(4, min(64, 2 * math.ceil(math.sqrt(math.sqrt(values)))))


def hash_bins(values: int) -> int:
    """A power of two at least twice the number of values, so that few share one."""
    return 1 << max(10, math.ceil(math.log2(2 * max(1, values))))


def _is_called_code(facts: ColumnFacts) -> bool:
    words = facts.name.lower().replace("-", "_").replace(" ", "_").split("_")
    return words[-1] in _NAMES_OF_CODES
