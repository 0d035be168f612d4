"""Whether a disk has room for a checkpoint, asked before the first byte is written.

A checkpoint that fills the disk takes the journal with it, and a master that cannot write its journal ends the job.
"""

from __future__ import annotations

import os
from pathlib import Path

from edl.api.errors import StorageError

RESERVE_BYTES = 16 << 20
RESERVE_SHARE = 0.01
"""What is left to the journal: the lesser of both, in bytes and as a share of the file system."""


def ensure_free_space(folder: Path, size: int) -> None:
    """Refuse to write ``size`` bytes to a disk that has not so many and a reserve.

    A file system that does not say how large it is passes: writing will tell.

    Raises:
        StorageError: there is no room; says how much there is.
        OSError: the folder cannot be asked.
    """
    disk = os.statvfs(folder)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    reserve = min(RESERVE_BYTES, int(total * RESERVE_SHARE))
    if total and size + reserve > free:
        raise StorageError(
            f"no space left on the disk: {size:,} bytes are to be written, {free:,} are free, and {reserve:,} of them "
            "are left to the journal",
            where=str(folder),
            hint="Make room there, or keep fewer checkpoints (checkpoint.keep).",
        )
