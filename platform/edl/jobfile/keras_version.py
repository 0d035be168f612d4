"""Which Keras a job's model is written for: its version (``model.keras``), and its backend."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from edl.api.errors import BadInputError


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


BACKEND_VARIABLE = "KERAS_BACKEND"
BACKEND_REMEDY = (
    "set it to tensorflow. A model on another backend trains as a program: command in the job file, and client.steps() "
    "of edl.sharding (docs/programs.md)"
)


def find_backend(environment: Mapping[str, str]) -> tuple[str, str]:
    """The backend that Keras will use, and what says so: ``KERAS_BACKEND``, or Keras' own file.

    Source: https://keras.io/getting_started/#configuring-your-backend
    """
    if backend := environment.get(BACKEND_VARIABLE):
        return backend, BACKEND_VARIABLE
    file = Path(environment.get("KERAS_HOME") or Path(environment.get("HOME", "/"), ".keras"), "keras.json")
    try:
        backend = json.loads(file.read_bytes()).get("backend")
    except (OSError, ValueError, AttributeError):
        backend = None
    return str(backend or "tensorflow"), str(file)


def check_backend(environment: Mapping[str, str]) -> None:
    """Refuse a backend of Keras under which no strategy of EDL trains. Imports nothing.

    Raises:
        BadInputError: it is not TensorFlow.
    """
    backend, where = find_backend(environment)
    if backend != "tensorflow":
        raise BadInputError(
            f"found '{backend}', but EDL trains Keras models with the backend TensorFlow",
            where=where,
            hint=BACKEND_REMEDY,
        )
