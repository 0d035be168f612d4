"""Values that travel as JSON objects: what every report has in common. Reading is strict."""

from __future__ import annotations

from typing import Self

from edl.spec.node import Json, Place, tree
from edl.spec.problem import Problem, SpecError
from edl.spec.section import Section


class Report:
    """A value that travels as a JSON object."""

    __slots__ = ()

    @classmethod
    def section(cls) -> Section:
        """What the JSON object looks like."""
        return Section(cls)

    def to_json(self) -> dict[str, Json]:
        """All fields; from_json gives an equal value back."""
        return self.section().write(self)

    @classmethod
    def from_json(cls, value: object, where: str = "status") -> Self:
        """The value of a JSON object; raises SpecError that names ``where`` and every wrong field."""
        problems: list[Problem] = []
        report: Self = cls.section().read(tree(value, where), Place("", problems))
        if problems:
            raise SpecError(problems)
        return report
