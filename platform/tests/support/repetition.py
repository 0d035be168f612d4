"""Parameters of a test that `make test` leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def repetition(*values: Any, name: str | None = None) -> Any:
    """A further case of the same kind: a third of these runs with `make third`, all with `make test-all`."""
    return pytest.param(*values, id=name, marks=pytest.mark.repetition)


def repetitions(values: Any) -> list[Any]:
    """Several of them, of one parameter each."""
    return [repetition(value) for value in values]
