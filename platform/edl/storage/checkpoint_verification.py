"""Whether a checkpoint is as it was written, to the last byte; and which is the newest that is. Without NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edl.api.errors import StorageError
from edl.numerics.checksum import crc32
from edl.storage.checkpoint_commit import check_size
from edl.storage.checkpoint_manifest import Manifest, ShardInfo, Skipped, cut_directory, cuts_in, load_manifest
from edl.storage.durable_files import translated

_CHUNK = 8 << 20  # bytes read at a time for a checksum


def newest(
    checkpoints_dir: Path, on_skip: Callable[[Skipped], None] | None = None, *, below: int | None = None
) -> Manifest | None:
    """The newest cut of which every byte is intact; None when there is none.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        on_skip: told each newer cut that cannot be used, with the reason.
        below: only cuts with a lower number are looked at.

    Raises:
        StorageError: the folder cannot be read, or a newer EDL wrote the cut.
    """
    for cut in reversed([cut for cut in cuts_in(checkpoints_dir) if below is None or cut < below]):
        directory = cut_directory(checkpoints_dir, cut)
        found = load_manifest(directory)
        reason = found.reason if isinstance(found, Skipped) else verify(directory, found)
        if isinstance(found, Manifest) and reason is None:
            return found
        if on_skip is not None:
            on_skip(Skipped(cut, directory, reason or "unknown"))
    return None


def verify(directory: Path, manifest: Manifest, check: Callable[[Path, ShardInfo], None] | None = None) -> str | None:
    """Look at every shard of a cut; the reason why it cannot be used, or None.

    Args:
        directory: of the cut.
        manifest: of the cut.
        check: raises StorageError for a shard that is not as it was written; by default ``check_bytes``, after which
            every byte is.
    """
    try:
        for shard in manifest.shards:
            (check or check_bytes)(directory, shard)
    except StorageError as error:
        return f"{Path(error.where or '').name} {error.message}"
    return None


def check_bytes(directory: Path, shard: ShardInfo) -> None:
    """Raise StorageError unless a shard has the size and the checksum that the manifest says."""
    check_size(directory, shard)
    path = directory / shard.file
    if crc32_of(path) != shard.crc32:
        raise StorageError("is damaged: its checksum is not the one in the manifest", where=str(path))


def crc32_of(path: Path) -> int:
    """The checksum of a whole file.

    Raises:
        StorageError: it cannot be read.
    """
    checksum = 0
    with translated(path, "read a checkpoint"), path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            checksum = crc32(chunk, checksum)
    return checksum
