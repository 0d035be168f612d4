"""Imports TensorFlow, the longest part of a worker's start, without modules that no worker needs.

If scikit-learn is installed, Keras imports it, and with it most of SciPy, for ``keras.wrappers``, which makes a
scikit-learn estimator of a model. This takes about a tenth of the import's time, so EDL prevents it. A model module can
still import scikit-learn; only ``keras.wrappers`` reports that it is not installed. IPython, which Keras imports for
its editor of files in notebooks, takes another twentieth.

The garbage collector is off meanwhile, because it would examine the growing number of objects again and again, a third
of the import's processor time.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def import_tensorflow() -> Any:
    """Import TensorFlow. Call it in the main thread, before other code imports TensorFlow or Keras."""
    if "tensorflow" not in sys.modules:
        with _no_garbage_collection(), _hidden_module("sklearn"), _hidden_module("IPython"):
            importlib.import_module("tensorflow")
    return sys.modules["tensorflow"]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off inside this block; what exists at the end is never examined.

    Modules, classes and functions stay until the process ends.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


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
