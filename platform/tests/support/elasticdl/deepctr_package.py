"""deepctr, which two modules of ElasticDL's model zoo import, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.elasticdl.modules import DEEPCTR

_NOWHERE = "http://127.0.0.1:9"


def install_deepctr(folder: Path) -> Path:
    """Install it with pip, which needs a package index; returns the folder for PYTHONPATH.

    Without its dependencies: it demands other versions than those that it works with.
    """
    package = DEEPCTR.replace(" ", "==")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, package]
    subprocess.run(words, check=True, timeout=170)
    return folder


def deepctr_environment(folder: Path) -> Mapping[str, str]:
    """Variables for processes that import it.

    It asks the public index for newer versions in a thread, and a process does not end before that is answered.
    """
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "HTTPS_PROXY": _NOWHERE, "HTTP_PROXY": _NOWHERE}
