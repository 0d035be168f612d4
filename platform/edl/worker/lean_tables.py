"""Large Embeddings without their tables, while the user's model is made.

A served table may be larger than the memory of a worker, and a worker never reads it: only its name, its shape and its
initializer are wanted. So the variables of large Embeddings are made without values, and get them later if the
Embedding stays dense after all. A model that cannot be made like that (it gives a table values of its own) is made
once more, with all values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras


def made_lean(make: Callable[[], Any], threshold: int) -> Any:
    """What ``make`` gives: a model whose Embeddings of ``threshold`` bytes and more may lack values.

    Whatever ``make`` raises with ordinary tables is raised.
    """
    with _lean(threshold) as lean:
        try:
            return make()
        except Exception:  # the user's, who gets it below if it was not for the missing values
            if not lean:
                raise
    return make()


def is_lean(layer: Any) -> bool:
    """Whether an Embedding's table has no values yet."""
    return layer.embeddings._value is None


def fill(layer: Any) -> None:
    """Give a table that has none its initial values."""
    if is_lean(layer):
        type(layer.embeddings)._deferred_initialize(layer.embeddings)


@contextmanager
def _lean(threshold: int) -> Iterator[list[Any]]:
    """Change how Embeddings are built; yields those without values, as they come."""
    lean: list[Any] = []
    build = keras.layers.Embedding.build

    @functools.wraps(build)
    def build_lean(layer: Any, input_shape: Any = None) -> None:
        if type(layer) is not keras.layers.Embedding or 4 * layer.input_dim * layer.output_dim < threshold:
            build(layer, input_shape)
            return
        # In such a scope Keras puts off the values of new variables, until a scope ends that would make them all: the
        # attribute on this variable keeps it out of that.
        with keras.StatelessScope(initialize_variables=False):
            build(layer, input_shape)
        layer.embeddings._deferred_initialize = lambda: None
        lean.append(layer)

    keras.layers.Embedding.build = build_lean
    try:
        yield lean
    finally:
        keras.layers.Embedding.build = build
