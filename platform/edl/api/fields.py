"""What is said of a field beside its type: one sentence for people, its unit, and what its values may be.

    step: Annotated[int, Field("Updates of the parameters since the job began.", unit="steps")]

These are declarations. ``edl.jobfile.section_type`` makes readers, writers and JSON Schemas of them: a type of Python
and a Field say together what may be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

ScalarValue: TypeAlias = str | int | float | bool | None
# not recursive: dataclass annotations that name it are evaluated in other modules, where forward references fail
JsonValue: TypeAlias = ScalarValue | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class TextForm:
    """What a text may be.

    Attributes:
        description: in words, to stand after 'must be'.
        pattern: of the whole text, as both Python and JSON Schema read it; not empty, if nothing is said.
    """

    description: str
    pattern: str = r"^[\s\S]+$"


ANY_TEXT = TextForm("text", r"^[\s\S]*$")
NAME = TextForm("a name")
PATH = TextForm("a path without control characters", r"^[^\x00-\x1f\x7f]+$")


class Quantity(Enum):
    """A number in the field's unit that people may also write as text with a unit of its own: ``2Mi``, ``500m``."""

    SIZE = auto()
    POSITIVE_SIZE = auto()
    POSITIVE_CORES = auto()
    DURATION = auto()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a value that travels as a JSON object, or of a job file.

    What is said of numbers and texts holds for each member where the field is a list or a mapping.

    Attributes:
        doc: one sentence for the user.
        unit: of its value, where it has one.
        minimum: the smallest number it may be; None: any.
        maximum: the largest whole number it may be; None: any.
        quantity: how people write the number, if not as a number alone; ``minimum`` does not count then.
        measured: a number that may turn out not to be finite, such as a loss: it is null in JSON then.
        choices: the names it may be; empty: any text.
        later: names that are known and not built yet.
        text: what a text may be.
        keys: what a mapping's keys may be; None: any text.
        paths: a list of paths, of which one may be written without the list, and null for none.
        built: the values whose behaviour exists in this version; None: of all that may be written.
        required: it must be there when it is read, though the dataclass has a default.
    """

    doc: str
    unit: str | None = None
    minimum: int | None = 0
    maximum: int | None = None
    quantity: Quantity | None = None
    measured: bool = False
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    text: TextForm = ANY_TEXT
    keys: TextForm | None = None
    paths: bool = False
    built: tuple[Any, ...] | None = None
    required: bool = False
