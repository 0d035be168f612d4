"""A pytest plugin: the native extension comes from the file EDL_INSTRUMENTED, which ``sanitizers.py`` sets."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

import edl.ps

NAME = "edl.ps._native"
_path = os.environ["EDL_INSTRUMENTED"]
_spec = spec_from_file_location(NAME, _path, loader=ExtensionFileLoader(NAME, _path))
assert _spec is not None
assert _spec.loader is not None
_module = module_from_spec(_spec)
_spec.loader.exec_module(_module)
sys.modules[NAME] = _module
edl.ps._native = _module
