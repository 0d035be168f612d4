"""The command to call next, with the cluster, the namespace and the settings of the one that names it.

What a shell would read otherwise is quoted: the command can be copied as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def called(job: str, context: str | None, namespace: str | None, settings: Sequence[str] = ()) -> str:
    """A job, or a job file with its settings, as the next command names it: ``mnist -n team``."""
    words = [job]
    for setting in settings:
        words += ["--set", setting]
    if context:
        words += ["--context", context]
    if namespace:
        words += ["-n", namespace]
    return shlex.join(words)
