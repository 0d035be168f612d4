"""Values that travel as JSON objects: how they are read, strictly, and written."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from edl.api.events import JobEvent
from edl.jobfile.document_tree import JsonValue, ReadContext, build_tree
from edl.jobfile.problems import SpecError, SpecProblem
from edl.jobfile.section_type import SectionType

T = TypeVar("T")


def section_of(report: type) -> SectionType:
    """What the JSON object of a class of ``edl.api.status`` or ``edl.api.events`` looks like; of an event, with its
    kind in front.
    """
    return SectionType(report, constants=(("event", report.kind),) if issubclass(report, JobEvent) else ())


def to_json(value: Any) -> dict[str, JsonValue]:
    """All fields; ``from_json`` gives an equal value back."""
    return section_of(type(value)).write(value)


def from_json(report: type[T], value: object, where: str = "status") -> T:
    """The value of a JSON object; raises SpecError that names ``where`` and every wrong field."""
    problems: list[SpecProblem] = []
    found: T = section_of(report).read(build_tree(value, where), ReadContext("", problems))
    if problems:
        raise SpecError(problems)
    return found


class JsonObject:
    """A value of this package that travels as a JSON object."""

    __slots__ = ()

    def to_json(self) -> dict[str, JsonValue]:
        """All fields; from_json gives an equal value back."""
        return to_json(self)

    @classmethod
    def from_json(cls, value: object, where: str = "status") -> Self:
        """The value of a JSON object; raises SpecError that names ``where`` and every wrong field."""
        return from_json(cls, value, where)
