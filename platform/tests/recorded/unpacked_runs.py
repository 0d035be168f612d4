"""The recorded runs at the place where they were made, for one test at a time."""

from __future__ import annotations

import fcntl
import shutil
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from recorded.make import ARCHIVES, HERE, PLACE, lay_out


@contextmanager
def unpacked() -> Iterator[None]:
    """All recorded runs, with zoo and data."""
    if sys.platform != "linux":
        pytest.skip(f"runs name {PLACE}, which is another folder here")
    with Path(f"{PLACE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lay_out()
        for name in ARCHIVES:
            with tarfile.open(HERE / name) as archive:
                archive.extractall(PLACE, filter="data")
        yield
        shutil.rmtree(PLACE)
