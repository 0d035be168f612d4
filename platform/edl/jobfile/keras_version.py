"""Which version of Keras a job's model is written for: ``model.keras``, or the variable that TensorFlow reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol


class KerasChoice(Protocol):
    """``edl.api.job_spec.ModelSpec``, or what has its field."""

    @property
    def keras(self) -> int:
        """2 or 3."""


LEGACY_VARIABLE = "TF_USE_LEGACY_KERAS"
"""With the value 1, ``tf.keras`` is Keras 2. Source: https://github.com/keras-team/tf-keras"""


def uses_keras2(model: KerasChoice | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a model is for Keras 2; None asks for the environment alone."""
    return (model is not None and model.keras == 2) or environment.get(LEGACY_VARIABLE, "").lower() in ("1", "true")


def choose_keras(model: KerasChoice) -> None:
    """Let ``tf.keras`` be the model's version in this process. Call it before TensorFlow is imported."""
    if uses_keras2(model):
        os.environ[LEGACY_VARIABLE] = "1"
