"""A pytest plugin: native extensions come from the folder EDL_INSTRUMENTED, which ``sanitizers.py`` sets."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

EXTENSIONS = ("edl.numerics._native", "edl.numerics._distinct", "edl.data._records", "edl.collective._ring")

for name in EXTENSIONS:
    package, _, own = name.rpartition(".")
    parent = import_module(package)
    assert name not in sys.modules, f"{name} was imported before its instrumented build"
    spec = PathFinder.find_spec(name, [os.environ["EDL_INSTRUMENTED"]])
    assert spec is not None, f"{name} was not built with the sanitizers"
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    setattr(parent, own, module)
