"""The model that callbacks see where parameter servers hold the weights: it has the initial ones, and says so."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

_WEIGHT_METHODS = (
    "evaluate",
    "export",
    "fit",
    "get_weights",
    "load_weights",
    "predict",
    "save",
    "save_weights",
    "set_weights",
)
"""Methods of a Keras model that use or change its weights."""


def block_weight_methods(model: Any) -> None:
    """Let methods of ``model`` raise that would use the initial weights; those that the user's class defines stay."""
    import keras

    for name in _WEIGHT_METHODS:
        if getattr(type(model), name) is getattr(keras.Model, name):
            setattr(model, name, partial(_raise_untrained_weights, name))


def _raise_untrained_weights(method: str, *_: Any, **__: Any) -> NoReturn:
    """Not an error of EDL: what the user's code raises is shown with the user's lines."""
    raise RuntimeError(
        f"model.{method}: the model of a callback has the initial weights, the trained ones are on the parameter "
        "servers; checkpoint.every_steps keeps them, the export is a model that has them"
    )


def is_blocked_method(model: Any, method: str) -> bool:
    """Whether a method of this model raises because of :func:`block_weight_methods`."""
    own = vars(model).get(method)
    return isinstance(own, partial) and own.func is _raise_untrained_weights
