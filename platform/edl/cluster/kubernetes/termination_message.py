"""Of what a container wrote last, the line that says why it ended.

Kubernetes passes on the end of a failed container's log, and that of a process that uses TensorFlow is mostly noise.
"""

from __future__ import annotations

import re

_LOG_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} \d\d:\d\d:"  # absl: I0000 00:00:1763...
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "  # TensorFlow
    r"|To enable the following instructions: "
)
_INDENTED = re.compile(r"\s")


def last_error_line(text: str) -> str:
    """The last line that begins a statement, such as an exception's; empty when there is nothing but noise.

    Indented lines go on with one before them: a traceback, or the hint of an error of EDL's.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    told = (line for line in reversed(lines) if line and not _INDENTED.match(line) and not _LOG_NOISE.match(line))
    return next(told, "")
