"""Parameters of a test that `make test` leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def repetition(*values: Any, name: str | None = None) -> Any:
    """A further case of the same kind: a third of these runs with `make third`, all with `make test-all`."""
    return pytest.param(*values, id=name, marks=pytest.mark.repetition)


def repetitions(values: Any) -> list[Any]:
    """Several of them, of one parameter each."""
    return [repetition(value) for value in values]


def in_thirds(values: Iterable[T], name_of: Callable[[T], str] = str) -> list[Any]:
    """All cases of a test whose cases take long, a third of them in each run of `make third`."""
    return [
        pytest.param(value, id=name_of(value), marks=pytest.mark.in_third(number % 3))
        for number, value in enumerate(values)
    ]
