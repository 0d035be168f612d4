"""Checkpoints: one folder per cut, one safetensors file per parameter server, and a manifest that makes the cut real.

``<run>/checkpoints/cut-00000007/{ps-0.safetensors, ps-1.safetensors, manifest.json}``. The manifest is written last: a
folder without one is a cut that never happened. This module and arrayfile are the only ones here that need NumPy;
what a master needs is in ``commits``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from edl.core.errors import StorageError
from edl.store.arrayfile import Array, crc32_of, read_arrays, write_arrays
from edl.store.commits import check_size, commit, prune
from edl.store.manifest import Manifest, ShardInfo, Skipped, cut_directory, cuts_in, load_manifest

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


def _check_bytes(directory: Path, shard: ShardInfo) -> None:
    check_size(directory, shard)
    path = directory / shard.file
    if crc32_of(path) != shard.crc32:
        raise StorageError("is damaged: its checksum is not the one in the manifest", where=str(path))
