"""What is said of a field beside its type: one sentence for people, its unit, and what its values may be.

    step: Annotated[int, Field("Updates of the parameters since the job began.", unit="steps")]

These are declarations. ``edl.jobfile.section_type`` makes readers, writers and JSON Schemas of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a value that travels as a JSON object.

    Attributes:
        doc: one sentence for the user.
        unit: of its value, where it has one.
        minimum: the smallest number it may be, or hold; None: any.
        measured: a number that may turn out not to be finite, such as a loss: it is null in JSON then.
        choices: the names it may be; empty: any text.
        later: names that are known and not built yet.
        named: text that must not be empty.
        required: it must be there when it is read, though the dataclass has a default.
    """

    doc: str
    unit: str | None = None
    minimum: int | None = 0
    measured: bool = False
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    named: bool = False
    required: bool = False
