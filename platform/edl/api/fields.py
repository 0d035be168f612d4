"""Declarations of fields: the description, the unit and the valid values of a field, beside its Python type.

    step: Annotated[int, Field("Updates of the parameters since the job began.", unit="steps")]

``edl.jobfile.section_type`` makes readers, writers and JSON Schemas from a field's type and its ``Field``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

ScalarValue: TypeAlias = str | int | float | bool | None
# not recursive: get_type_hints() evaluates annotations of dataclasses in other modules, where the forward reference
# that a recursive alias needs cannot be resolved
JsonValue: TypeAlias = ScalarValue | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class TextForm:
    """The form of a text.

    Attributes:
        description: the form in words, phrased to follow "must be" in a message.
        pattern: regular expression that the whole text matches, in the syntax that Python and JSON Schema share. The
            default accepts any text that is not empty.
    """

    description: str
    pattern: str = r"^[\s\S]+$"


ANY_TEXT = TextForm("text", r"^[\s\S]*$")
NAME = TextForm("a name")
PATH = TextForm("a path without control characters", r"^[^\x00-\x1f\x7f]+$")


class Quantity(Enum):
    """Numbers that people may also write as text with a unit, such as ``2Mi`` or ``500m``; read in the field's unit."""

    SIZE = auto()
    POSITIVE_SIZE = auto()
    POSITIVE_CORES = auto()
    DURATION = auto()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a job file or of a value that is written as a JSON object.

    For a list or a mapping, the limits of numbers and texts apply to each member.

    Attributes:
        doc: description for users, in one sentence.
        unit: unit of the value, if it has one.
        minimum: smallest valid number; None: no limit.
        maximum: largest valid whole number; None: no limit.
        quantity: the number may be written as text with a unit; ``minimum`` is then ignored.
        measured: a measured number, such as a loss, which may be NaN or infinite: JSON then has null.
        choices: the valid names; empty: any text.
        text: form of a text.
        keys: form of a mapping's keys; None: any text.
        paths: a list of paths. One path may be written without the list, and null means an empty list.
        built: the values that this version supports; None: all valid values.
        required: the field must be present when it is read, although the dataclass has a default.
    """

    doc: str
    unit: str | None = None
    minimum: int | None = 0
    maximum: int | None = None
    quantity: Quantity | None = None
    measured: bool = False
    choices: tuple[str, ...] = ()
    text: TextForm = ANY_TEXT
    keys: TextForm | None = None
    paths: bool = False
    built: tuple[Any, ...] | None = None
    required: bool = False
