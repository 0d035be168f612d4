"""A file for each process, to which the moment of every applied step is added: one double, in unix seconds.

The files are in the folder that ``EDL_BENCH_STEP_TIMES`` names; ``bench/world_changes.py`` reads them.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

_TIME = struct.Struct("<d")
_FILE = (Path(os.environ["EDL_BENCH_STEP_TIMES"]) / str(os.getpid())).open("ab", buffering=0)


def note_step() -> None:
    """A step has been applied in this process."""
    _FILE.write(_TIME.pack(time.time()))
