"""What plain Keras makes of a trained model: no EDL from the arrays on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
from safetensors import safe_open

QUIET = "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
"""Keras 3.15 with NumPy 2."""


def checkpoint_arrays(folder: Path) -> dict[str, Any]:
    """Every array of a checkpoint by name, of all parameter servers."""
    parts_by_name: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                parts = parts_by_name.setdefault(name, [])
                parts.append(file.get_tensor(name))
    return {
        name: np.concatenate(parts) if name.startswith("rows/") else parts[0] for name, parts in parts_by_name.items()
    }


def assign(model: Any, arrays: dict[str, Any]) -> Any:
    """Give a Keras model the dense values of a checkpoint, by name."""
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(arrays[f"dense/{weight.path}"])
    return model


def keras_metrics(model: Any, images: Any, labels: Any) -> dict[str, float]:
    """Loss and accuracy of a classifier over all records at once."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    model.compile(loss=loss, metrics=metrics, run_eagerly=True)  # one step, which is not worth a trace
    results = model.evaluate(images, labels, batch_size=len(labels), verbose=0, return_dict=True)
    return {name: float(value) for name, value in results.items()}


def without_edl(code: str, *arguments: Any, cwd: Path) -> None:
    """Run a program in which EDL cannot be imported."""
    # Without collections of garbage TensorFlow is imported in two thirds of the time.
    refuse = 'import gc, sys\ngc.disable()\nfor name in ("edl", "model_zoo"):\n    sys.modules[name] = None\n'
    command = [sys.executable, "-c", refuse + dedent(code), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
