"""Making a cut real, and removing old ones: the master's half of checkpoints, which looks into no array.

Apart from module ``checkpoint``, which offers all of it, because NumPy costs a starting master a tenth of a second.
"""

from __future__ import annotations

from pathlib import Path

from edl.api.errors import StorageError
from edl.storage.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    ShardInfo,
    cut_directory,
    list_cuts,
    load_manifest,
)
from edl.storage.durable_files import sync_directory, translate_os_errors
from edl.storage.json_files import write_json


def commit_checkpoint(directory: Path, manifest: CheckpointManifest) -> None:
    """Make the cut in ``directory`` real: from here on it survives, and ``newest`` finds it.

    Raises:
        StorageError: a shard is missing or of another size, or the manifest cannot be written: the cut never happened.
    """
    for shard in manifest.shards:
        check_shard_size(directory, shard)
    with translate_os_errors(directory, "commit a checkpoint"):
        sync_directory(directory.parent)
    write_json(directory / MANIFEST_NAME, manifest.to_json(), fsync=True)


def prune_checkpoints(checkpoints_dir: Path, keep: int, protect: set[int] | frozenset[int] = frozenset()) -> list[int]:
    """Remove all but the ``keep`` newest committed cuts, and what older unfinished ones left behind.

    Unfinished cuts newer than the newest committed one are being written, and stay.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        keep: how many committed cuts stay, at least 1.
        protect: numbers of cuts that stay in any case (a pinned version).

    Returns:
        The numbers of the removed cuts, oldest first.

    Raises:
        StorageError: one cannot be removed.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    cuts = list_cuts(checkpoints_dir)
    committed = committed_cuts(checkpoints_dir)
    if not committed:
        return []
    stay = {*committed[-keep:], *protect}
    removed = [cut for cut in cuts if cut < committed[-1] and cut not in stay]
    for cut in removed:
        _remove_cut(cut_directory(checkpoints_dir, cut))
    return removed


def remove_unfinished_cuts(checkpoints_dir: Path, below: int) -> list[int]:
    """Remove cuts that were never committed and have a lower number than ``below``; returns their numbers.

    Raises:
        StorageError: one cannot be removed.
    """
    older = [cut for cut in list_cuts(checkpoints_dir) if cut < below]
    # One whose manifest is damaged was committed once: it is not taken for unfinished.
    unfinished = [cut for cut in older if not (cut_directory(checkpoints_dir, cut) / MANIFEST_NAME).exists()]
    for cut in unfinished:
        _remove_cut(cut_directory(checkpoints_dir, cut))
    return unfinished


def committed_cuts(checkpoints_dir: Path) -> list[int]:
    """The numbers of the cuts with an intact manifest, oldest first."""
    found = list_cuts(checkpoints_dir)
    return [cut for cut in found if isinstance(load_manifest(cut_directory(checkpoints_dir, cut)), CheckpointManifest)]


def _remove_cut(directory: Path) -> None:
    """The manifest goes first: a crash in between leaves an unfinished cut, not a damaged one."""
    with translate_os_errors(directory, "remove an old checkpoint"):
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
        sync_directory(directory)
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def check_shard_size(directory: Path, shard: ShardInfo) -> None:
    """Raise StorageError unless the shard is there and as large as the manifest says."""
    path = directory / shard.file
    with translate_os_errors(path, "read a checkpoint"):
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise StorageError("is missing", where=str(path)) from error
    if size != shard.size:
        raise StorageError(f"has {size} bytes instead of {shard.size}", where=str(path))
