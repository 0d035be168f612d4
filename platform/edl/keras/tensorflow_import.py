"""Imports TensorFlow, the longest part of a worker's start, without modules that no worker needs.

If scikit-learn is installed, Keras imports it, and with it most of SciPy, for ``keras.wrappers``, which makes a
scikit-learn estimator of a model. This takes about a tenth of the import's time, so EDL prevents it. A model module can
still import scikit-learn; only ``keras.wrappers`` reports that it is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def import_tensorflow() -> Any:
    """Import TensorFlow. Call it in the main thread, before other code imports TensorFlow or Keras."""
    with _hidden_module("sklearn"):
        import tensorflow
    return tensorflow


@contextmanager
def _hidden_module(name: str) -> Iterator[None]:
    """Make imports of ``name`` fail inside this block as if it were not installed, unless it is already imported."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented: the import raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules[name]
