"""Formats the next command to call, with cluster, namespace and settings of the current one.

Arguments are quoted for a shell, so that the command can be copied as it is.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command_arguments(job: str, context: str | None, namespace: str | None, settings: Sequence[str] = ()) -> str:
    """The arguments that name a job, or a job file with its settings: ``mnist -n team``."""
    words = [job]
    for setting in settings:
        words += ["--set", setting]
    if context:
        words += ["--context", context]
    if namespace:
        words += ["-n", namespace]
    return shlex.join(words)


def program_name() -> str:
    """``edl``, or its path if a shell would not find it.

    That is the case in an environment that is not active, such as that of `make demo`.
    """
    here = sys.argv[0]
    return shlex.quote(here) if Path(here).name == "edl" and shutil.which("edl") is None else "edl"
