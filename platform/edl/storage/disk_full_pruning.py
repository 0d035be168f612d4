"""What may be removed from a run directory when the disk is full and a checkpoint is to be written."""

from __future__ import annotations

from pathlib import Path

from edl.storage.checkpoint_commit import committed_cuts, prune_checkpoints, remove_unfinished_cuts
from edl.storage.checkpoint_verification import newest_intact_checkpoint


def prune_for_full_disk(checkpoints_dir: Path, keep: int, protect: set[int], *, failed: int) -> list[int]:
    """Remove what a full disk need not hold, after a cut could not be written.

    These are the unfinished cuts up to the one that failed, each of which may hold whole shards, and of the committed
    ones those that would go anyway once a new one is written. The newest that is intact to the last byte stays.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        keep: how many committed cuts stay when there is room.
        protect: numbers of cuts that stay in any case.
        failed: number of the cut that could not be written; no parameter server writes it any more.

    Returns:
        The numbers of the removed cuts, oldest first.

    Raises:
        StorageError: one cannot be removed.
    """
    removed = remove_unfinished_cuts(checkpoints_dir, failed + 1)
    stay = max(1, keep - 1)
    if len(committed_cuts(checkpoints_dir)) > stay:
        intact = newest_intact_checkpoint(
            checkpoints_dir
        )  # reads all bytes of it: only when something is there to be removed
        removed += prune_checkpoints(checkpoints_dir, stay, protect | ({intact.cut} if intact else set()))
    return sorted(removed)
