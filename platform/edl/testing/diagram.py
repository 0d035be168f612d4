"""The life of a pod as a mermaid diagram, from the table that decides it.

``python -m edl.testing.diagram docs/design/0004-pods.md`` renews the diagram in a document; a test says when to.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from edl.core.pods import TERMINAL, TRANSITIONS, Seen, State

_BLOCK = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def mermaid(transitions: Mapping[State, Mapping[Seen, State]] = TRANSITIONS) -> str:
    """The diagram; what changes nothing is left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.ASKED}"]
    lines += [
        f"    {state} --> {becomes}: {what}"
        for state, row in transitions.items()
        for what, becomes in row.items()
        if becomes is not state
    ]
    lines += [f"    {end} --> [*]" for end in State if end in TERMINAL]
    return "\n".join(lines)


def renewed(document: str) -> str:
    """The document with the diagram as it is now."""
    return _BLOCK.sub(lambda _: f"```mermaid\n{mermaid()}\n```", document, count=1)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
