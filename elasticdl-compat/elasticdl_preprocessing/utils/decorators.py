"""Declares the inputs of a subclassed model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from elasticdl_compat.missing_names import explain_missing_names

ModelT = TypeVar("ModelT")


def declare_model_inputs(*args: str) -> Callable[[ModelT], ModelT]:
    """A decorator that keeps the names of a model's inputs in its attribute ``_model_inputs``.

    Raises:
        ValueError: there is no name, or one is not text.
    """
    names = list(args)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"declare_model_inputs takes the names of the inputs, not {names}")

    def declare(model: ModelT) -> ModelT:
        model._model_inputs = names  # type: ignore[attr-defined]
        return model

    return declare


__getattr__ = explain_missing_names(__name__)
