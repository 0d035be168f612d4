"""Layers whose ``adapt`` computes variables, of which Keras makes constants.

``Normalization`` uses constants that it renews, in ``finalize_state``, when Keras itself loads its variables. EDL
assigns variables in several other ways (``model.init_from``, checkpoints, the values of parameter servers or of another
rank), and often after the steps were traced. So its models read the variables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any


def read_adapted_variables(model: Any) -> None:
    """Let each ``Normalization`` in a model of Keras 3 or Keras 2 use the present values of its variables."""
    for layer in model._flatten_layers():
        # With a given mean there are no variables.
        if getattr(layer, "input_mean", 0) is None and callable(getattr(layer, "finalize_state", None)):
            layer.call = _with_present_variables(layer)


def _with_present_variables(layer: Any) -> Callable[..., Any]:
    call = layer.call
    # An evaluation may be traced while training is.
    in_use = threading.RLock()

    @wraps(call)
    def call_with_present_variables(*args: Any, **kwargs: Any) -> Any:
        with in_use:
            constants = {name: getattr(layer, name, None) for name in ("mean", "variance")}
            layer.finalize_state()
            try:
                return call(*args, **kwargs)
            finally:
                # A tensor of the graph that is being traced has no meaning outside of it.
                for name, value in constants.items():
                    setattr(layer, name, value)

    return call_with_present_variables
