"""The options of ``data.reader``, checked by name, type and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from edl.api.errors import BadInputError

_WHERE = "data.reader"


class ReaderOptions:
    """What the user wrote under ``data.reader``, less ``format``.

    Args:
        given: names and values.
        allowed: every name that the format knows.

    Raises:
        BadInputError: a name is unknown.
    """

    def __init__(self, given: Mapping[str, object], *, allowed: Sequence[str]) -> None:
        self._given = given
        for name in given:
            if name not in allowed:
                near = get_close_matches(name, allowed, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise BadInputError(
                    f"unknown option {name!r}", where=_WHERE, hint=f"{hint}Allowed: format, {', '.join(allowed)}"
                )

    def get_choice(self, name: str, values: Sequence[str]) -> str:
        """One of ``values``; the first is the default."""
        value = self._given.get(name, values[0])
        if not isinstance(value, str) or value not in values:
            raise self._invalid_option_error(name, value, f"one of {', '.join(values)}")
        return value

    def get_boolean(self, name: str, *, default: bool) -> bool:
        """A yes or no."""
        value = self._given.get(name, default)
        if not isinstance(value, bool):
            raise self._invalid_option_error(name, value, "true or false")
        return value

    def get_character(self, name: str, default: str) -> str:
        """A text of one character."""
        value = self._given.get(name, default)
        if not isinstance(value, str) or len(value) != 1:
            raise self._invalid_option_error(name, value, "one character")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of names without repetition; empty when absent."""
        value = self._given.get(name, ())
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise self._invalid_option_error(name, value, "a list of names")
        if len(set(value)) != len(value):
            raise self._invalid_option_error(name, value, "names that differ")
        return tuple(value)

    def _invalid_option_error(self, name: str, value: object, allowed: str) -> BadInputError:
        return BadInputError(f"{value!r} is not allowed", where=f"{_WHERE}.{name}", hint=f"allowed: {allowed}")
