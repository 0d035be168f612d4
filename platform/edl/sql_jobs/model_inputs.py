"""What a model takes: an input for each column, as a number or as text. ``prepared_rows`` writes rows in this form.

A wide table has matrices instead while it trains: all numbers side by side, and all texts. Inputs cost time in each
step, however few rows it has. The exported model takes the columns one by one all the same.

A number is float32, and NULL is NaN. Times are days since 1970-01-01. A text is a string, and NULL is empty.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edl.sql_jobs.column_plan import ColumnFacts, ColumnPlan, ColumnUse, FeaturePlan, IdSource

NUMBER, TEXT = "float32", "string"
MATRICES = {NUMBER: "numbers", TEXT: "texts"}
"""Names of the matrices of a wide table."""
WIDE_INPUTS = 100
"""Inputs from which a table is wide."""
_NAMES_OF_LAYERS = frozenset(
    (
        *("activation", "add", "cast", "category_encoding", "clip", "concatenate", "cos", "dense", "discretization"),
        *("divide", "dropout", "embedding", "equal", "flatten", "floor", "functional", "get_item", "hashed_crossing"),
        *("hashing", "input_layer", "isfinite", "is_nan", "isnan", "log1p", "maximum", "minimum", "multiply"),
        *("normalization", "power", "rescaling", "reshape", "sin", "string_lookup", "subtract", "sum"),
        *("text_vectorization", "true_divide", "where"),
    )
)
"""Keras gives these names, with numbers after them, to the layers of written models. Inputs are layers, too."""
_SPELLED = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"}


@dataclass(frozen=True, slots=True)
class InputColumn:
    """An input of a model.

    Args:
        name: as Keras and TensorFlow take it: letters, digits and underscores.
        column: of the query.
        dtype: ``float32`` or ``string``.
        kind: of the column, as ``ColumnFacts`` has it.
        matrix: of a wide table: the matrix that has the column; empty: it is an input of its own.
    """

    name: str
    column: str
    dtype: str
    kind: str
    matrix: str = ""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """All inputs of a model, and the column of its label in prepared rows."""

    inputs: tuple[InputColumn, ...]
    label: str

    def names(self) -> Mapping[tuple[str, str], str]:
        """The input that has a column in a form."""
        return {(each.column, each.dtype): each.name for each in self.inputs}

    def matrices(self) -> Mapping[str, list[str]]:
        """The inputs that each matrix has, in the order of its columns; empty for a table that is not wide."""
        names_by_matrix: dict[str, list[str]] = {}
        for each in self.inputs:
            if each.matrix:
                names_by_matrix.setdefault(each.matrix, []).append(each.name)
        return names_by_matrix

    def one_by_one(self) -> ModelInputs:
        """The same inputs without matrices."""
        return ModelInputs(tuple(replace(each, matrix="") for each in self.inputs), self.label)


def choose_inputs(plan: ColumnPlan, *, may_be_wide: bool = True) -> ModelInputs:
    """The inputs of a plan, in the order of its columns.

    Args:
        plan: of the columns.
        may_be_wide: many columns become matrices, which a module of the user does not know.
    """
    wanted = dict.fromkeys((facts.name, dtype, facts.kind) for feature in plan.used for facts, dtype in _forms(feature))
    is_wide = may_be_wide and len(wanted) >= WIDE_INPUTS
    taken = set(MATRICES.values()) if is_wide else set[str]()
    forms = Counter(column for column, _, _ in wanted)
    inputs = []
    for column, dtype, kind in wanted:
        suffix = "_text" if dtype == TEXT and forms[column] > 1 else ""
        name = _free_name(plain_name(column) + suffix, taken)
        inputs.append(InputColumn(name, column, dtype, kind, MATRICES[dtype] if is_wide else ""))
    return ModelInputs(tuple(inputs), _free_name(plain_name(plan.label.name), taken))


def form_of(feature: FeaturePlan, number: int = 0) -> str:
    """The form in which a feature takes its column, or one of those that it crosses."""
    if feature.ids is IdSource.CROSS:
        return NUMBER if feature.boundaries[number] else TEXT
    if feature.use is ColumnUse.TEXT or feature.ids in (IdSource.VOCABULARY, IdSource.HASH):
        return TEXT
    return NUMBER


def _forms(feature: FeaturePlan) -> Iterable[tuple[ColumnFacts, str]]:
    return ((facts, form_of(feature, number)) for number, facts in enumerate(feature.columns))


def plain_name(text: str) -> str:
    """A name of ASCII letters, digits and underscores that resembles a text."""
    letters = "".join(_SPELLED.get(letter, letter) for letter in text)
    ascii_text = unicodedata.normalize("NFKD", letters).encode("ascii", "ignore").decode()
    plain = re.sub(r"\W+", "_", ascii_text).strip("_")
    if re.sub(r"_\d+$", "", plain).lower() in _NAMES_OF_LAYERS or keyword.iskeyword(plain) or plain == "self":
        return f"{plain}_column"
    return plain if plain[:1].isalpha() else f"column_{plain}".rstrip("_")


def _free_name(wanted: str, taken: set[str]) -> str:
    # A SavedModel has no two inputs that differ in upper case alone.
    name, number = wanted, 2
    while name.lower() in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name.lower())
    return name
