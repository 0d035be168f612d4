"""Whether a checkpoint is as it was written, to the last byte; and which is the newest that is. Without NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edl.api.errors import StorageError
from edl.numerics.checksum import crc32
from edl.storage.checkpoint_commit import check_shard_size
from edl.storage.checkpoint_manifest import (
    CheckpointManifest,
    ShardInfo,
    SkippedCheckpoint,
    cut_directory,
    list_cuts,
    load_manifest,
)
from edl.storage.durable_files import translate_os_errors

_CHUNK = 8 << 20  # bytes read at a time for a checksum


def newest_intact_checkpoint(
    checkpoints_dir: Path, on_skip: Callable[[SkippedCheckpoint], None] | None = None, *, below: int | None = None
) -> CheckpointManifest | None:
    """The newest cut of which every byte is intact; None when there is none.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        on_skip: told each newer cut that cannot be used, with the reason.
        below: only cuts with a lower number are looked at.

    Raises:
        StorageError: the folder cannot be read, or a newer EDL wrote the cut.
    """
    for cut in reversed([cut for cut in list_cuts(checkpoints_dir) if below is None or cut < below]):
        directory = cut_directory(checkpoints_dir, cut)
        found = load_manifest(directory)
        reason = found.reason if isinstance(found, SkippedCheckpoint) else verify_checkpoint(directory, found)
        if isinstance(found, CheckpointManifest) and reason is None:
            return found
        if on_skip is not None:
            on_skip(SkippedCheckpoint(cut, directory, reason or "unknown"))
    return None


def verify_checkpoint(
    directory: Path, manifest: CheckpointManifest, check: Callable[[Path, ShardInfo], None] | None = None
) -> str | None:
    """Look at every shard of a cut; the reason why it cannot be used, or None.

    Args:
        directory: of the cut.
        manifest: of the cut.
        check: raises StorageError for a shard that is not as it was written; by default ``check_shard_bytes``, after
            which every byte is.
    """
    try:
        for shard in manifest.shards:
            (check or check_shard_bytes)(directory, shard)
    except StorageError as error:
        return f"{Path(error.where or '').name} {error.message}"
    return None


def check_shard_bytes(directory: Path, shard: ShardInfo) -> None:
    """Raise StorageError unless a shard has the size and the checksum that the manifest says."""
    check_shard_size(directory, shard)
    path = directory / shard.file
    if file_crc32(path) != shard.crc32:
        raise StorageError("is damaged: its checksum is not the one in the manifest", where=str(path))


def file_crc32(path: Path) -> int:
    """The checksum of a whole file.

    Raises:
        StorageError: it cannot be read.
    """
    checksum = 0
    with translate_os_errors(path, "read a checkpoint"), path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            checksum = crc32(chunk, checksum)
    return checksum
