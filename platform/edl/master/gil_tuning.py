"""The interpreter, set for a server that answers many small requests."""

from __future__ import annotations

import gc
import sys

_SWITCH_SECONDS = 0.001
_YOUNG_OBJECTS = 20_000


def tune_interpreter() -> None:
    """Call once, when everything is imported.

    Threads change places sooner, because the journal's writer must not wait long for its turn. Garbage is looked for
    less often, and not among what the imports made: messages and entries are freed by their reference counts.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)
