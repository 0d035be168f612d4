"""Imports TensorFlow, the longest part of a worker's start, without modules that no worker needs.

Keras imports scikit-learn, and with it most of SciPy, where they are installed: for ``keras.wrappers``, which make a
scikit-learn estimator of a model. They are about a tenth of the whole import, so they are kept out of it. A model's
module may import scikit-learn itself; only ``keras.wrappers`` says that it is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def import_tensorflow() -> Any:
    """Import TensorFlow; call from the main thread, before anything else imports TensorFlow or Keras."""
    with _hidden_module("sklearn"):
        import tensorflow
    return tensorflow


@contextmanager
def _hidden_module(name: str) -> Iterator[None]:
    """Make importing ``name`` fail in this context as if it were not installed, unless it is already imported."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented: the import raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules[name]
