"""The life of a pod as a mermaid diagram, from the table that decides it.

``python -m support.pod_diagram docs/design/0004-pods.md`` renews the diagram in a document; a test says when to.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from edl.core.pod_lifecycle import TERMINAL_STATES, TRANSITIONS, PodState

_BLOCK = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def mermaid(transitions: Mapping[PodState, Mapping[PodState, PodState]] = TRANSITIONS) -> str:
    """The diagram; what changes nothing is left out, and how every live pod can end is drawn once."""
    live = {state: row for state, row in transitions.items() if state not in TERMINAL_STATES}
    ends = _ends(live)
    lines = ["stateDiagram-v2", "    state live {", f"        [*] --> {_name(PodState.ASKED)}"]
    lines += [
        f"        {_name(state)} --> {_name(becomes)}"
        for state, row in live.items()
        for what, becomes in row.items()
        if becomes is not state and (what, becomes) not in ends
    ]
    lines += ["    }", *(f"    live --> {_name(end)}" for _, end in ends)]
    lines += [f"    {_name(end)} --> [*]" for end in PodState if end in {end for _, end in ends}]
    return "\n".join(lines)


def _ends(live: Mapping[PodState, Mapping[PodState, PodState]]) -> list[tuple[PodState, PodState]]:
    """What ends a pod in the same way whatever it was before."""
    first = next(iter(live.values()))
    common = [(what, end) for what, end in first.items() if end in TERMINAL_STATES]
    return [(what, end) for what, end in common if all(row.get(what) is end for row in live.values())]


def _name(state: PodState) -> str:
    return state.value.replace(" ", "_")


def renewed(document: str) -> str:
    """The document with the diagram as it is now."""
    return _BLOCK.sub(lambda _: f"```mermaid\n{mermaid()}\n```", document, count=1)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
