"""Checkpoints: one folder per cut, one safetensors file per parameter server, and a manifest that makes the cut real.

``<run>/checkpoints/cut-00000007/{ps-0.safetensors, ps-1.safetensors, manifest.json}``. The manifest is written last: a
folder without one is a cut that never happened. This module and arrayfile are the only ones here that need NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from edl.core.errors import StorageError
from edl.store.arrayfile import Array, crc32_of, read_arrays, write_arrays
from edl.store.durable import sync_directory, translated
from edl.store.jsonfiles import write_json
from edl.store.manifest import MANIFEST, Manifest, ShardInfo, Skipped, cut_directory, cuts_in, load_manifest

__all__ = [
    "Array",
    "Manifest",
    "ShardInfo",
    "Skipped",
    "commit",
    "cut_directory",
    "load_manifest",
    "newest",
    "prune",
    "read_shard",
    "shard_path",
    "verify",
    "write_shard",
]


def shard_path(directory: Path, ps_index: int) -> Path:
    """Where a parameter server's part of the cut in ``directory`` is."""
    return directory / f"ps-{ps_index}.safetensors"


def write_shard(
    directory: Path, ps_index: int, arrays: Mapping[str, Array], meta: Mapping[str, str] | None = None
) -> ShardInfo:
    """Write one parameter server's part of a cut, durable under its name when this returns.

    The arrays must not change meanwhile.

    Args:
        directory: the cut's folder (``cut_directory``); created when it is missing.
        ps_index: which parameter server.
        arrays: by name; any shape; dtypes are floats of 16 to 64 bits, integers and bool.
        meta: strings kept beside the arrays.

    Raises:
        StorageError: it cannot be written (the disk is full); nothing of it is left.
        ValueError: an array's dtype cannot be stored.
    """
    path = shard_path(directory, ps_index)
    size, checksum = write_arrays(path, arrays, meta or {})
    return ShardInfo(file=path.name, size=size, crc32=checksum)


def commit(directory: Path, manifest: Manifest) -> None:
    """Make the cut in ``directory`` real: from here on it survives, and ``newest`` finds it.

    Raises:
        StorageError: a shard is missing or of another size, or the manifest cannot be written: the cut never happened.
    """
    for shard in manifest.shards:
        _check_size(directory, shard)
    with translated(directory, "commit a checkpoint"):
        sync_directory(directory.parent)
    write_json(directory / MANIFEST, manifest.to_json(), fsync=True)


def newest(checkpoints_dir: Path, on_skip: Callable[[Skipped], None] | None = None) -> Manifest | None:
    """The newest cut of which every byte is intact; None when there is none.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        on_skip: told each newer cut that cannot be used, with the reason.

    Raises:
        StorageError: the folder cannot be read, or a newer EDL wrote the cut.
    """
    for cut in reversed(cuts_in(checkpoints_dir)):
        directory = cut_directory(checkpoints_dir, cut)
        found = load_manifest(directory)
        reason = found.reason if isinstance(found, Skipped) else verify(directory, found)
        if isinstance(found, Manifest) and reason is None:
            return found
        if on_skip is not None:
            on_skip(Skipped(cut, directory, reason or "unknown"))
    return None


def verify(directory: Path, manifest: Manifest) -> str | None:
    """Read every shard of a cut; the reason why it cannot be used, or None when every byte is as it was written."""
    try:
        for shard in manifest.shards:
            _check_bytes(directory, shard)
    except StorageError as error:
        return f"{Path(error.where or '').name} {error.message}"
    return None


def read_shard(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the strings of a committed shard, after its checksum was compared with the manifest beside it.

    Raises:
        StorageError: there is no manifest, the file is not as it was written, or it cannot be read.
    """
    manifest = load_manifest(path.parent)
    if isinstance(manifest, Skipped):
        raise StorageError(f"cannot be used: {manifest.reason}", where=str(path.parent))
    expected = [shard for shard in manifest.shards if shard.file == path.name]
    if not expected:
        raise StorageError("the manifest of this checkpoint does not name this file", where=str(path))
    _check_bytes(path.parent, expected[0])
    return read_arrays(path)


def prune(checkpoints_dir: Path, keep: int, protect: set[int] | frozenset[int] = frozenset()) -> list[int]:
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
    cuts = cuts_in(checkpoints_dir)
    committed = [cut for cut in cuts if isinstance(load_manifest(cut_directory(checkpoints_dir, cut)), Manifest)]
    if not committed:
        return []
    stay = {*committed[-keep:], *protect}
    removed = [cut for cut in cuts if cut < committed[-1] and cut not in stay]
    for cut in removed:
        _remove(cut_directory(checkpoints_dir, cut))
    return removed


def _remove(directory: Path) -> None:
    """The manifest goes first: a crash in between leaves an unfinished cut, not a damaged one."""
    with translated(directory, "remove an old checkpoint"):
        (directory / MANIFEST).unlink(missing_ok=True)
        sync_directory(directory)
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def _check_size(directory: Path, shard: ShardInfo) -> None:
    path = directory / shard.file
    with translated(path, "read a checkpoint"):
        size = path.stat().st_size
    if size != shard.size:
        raise StorageError(f"has {size} bytes instead of {shard.size}", where=str(path))


def _check_bytes(directory: Path, shard: ShardInfo) -> None:
    _check_size(directory, shard)
    path = directory / shard.file
    if crc32_of(path) != shard.crc32:
        raise StorageError("is damaged: its checksum is not the one in the manifest", where=str(path))
