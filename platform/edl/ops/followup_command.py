"""The command to call next, with the cluster, the namespace and the settings of the one that names it.

What a shell would read otherwise is quoted: the command can be copied as it is.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command_arguments(job: str, context: str | None, namespace: str | None, settings: Sequence[str] = ()) -> str:
    """A job, or a job file with its settings, as the next command names it: ``mnist -n team``."""
    words = [job]
    for setting in settings:
        words += ["--set", setting]
    if context:
        words += ["--context", context]
    if namespace:
        words += ["-n", namespace]
    return shlex.join(words)


def program_name() -> str:
    """``edl``, or where it is if a shell would not find it: in an environment that is not active, as of `make demo`."""
    here = sys.argv[0]
    return shlex.quote(here) if Path(here).name == "edl" and shutil.which("edl") is None else "edl"
