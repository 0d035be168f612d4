"""Gradients of a model that computes in float16: those below 6e-8 are 0, unless something scales its loss.

``keras.fit`` puts a ``LossScaleOptimizer`` around the optimizer of a ``mixed_float16`` model. EDL takes the optimizer
as it is: parameter servers reproduce no scaling one, strategy Local uses what the user's ``optimizer()`` gives.
"""

from __future__ import annotations

import logging
from typing import Any

import keras

_LOG = logging.getLogger(__name__)


def uses_dynamic_loss_scaling(optimizer: Any) -> bool:
    """Whether the optimizer lowers its scale where gradients are not finite, and skips that step."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def warn_if_loss_unscaled(model: Any, optimizer: Any, *, local: bool) -> None:
    """Name a layer that computes in float16 if nothing scales the loss.

    Args:
        model: the user's.
        optimizer: the user's.
        local: whether the optimizer itself is used.
    """
    if uses_dynamic_loss_scaling(optimizer) or getattr(optimizer, "loss_scale_factor", None):
        return
    containers = (keras.Model, keras.layers.InputLayer)
    half = (layer for layer in model._flatten_layers(include_self=False) if layer.compute_dtype == "float16")
    layer = next((layer for layer in half if not isinstance(layer, containers)), None)
    if layer is None and not (model.compute_dtype == "float16" and model.trainable_weights):
        return
    named = f"the layer '{layer.name}'" if layer is not None else "the model"
    policy = (layer or model).dtype_policy.name
    scaling = ", or return a keras.optimizers.LossScaleOptimizer from optimizer()" if local else ""
    _LOG.warning(
        "%s computes in float16 (policy %s), and nothing scales the loss, as keras.fit would: gradients below 6e-8 are "
        "lost. Use the policy mixed_bfloat16, which needs no scaling%s",
        named,
        policy,
        scaling,
    )
