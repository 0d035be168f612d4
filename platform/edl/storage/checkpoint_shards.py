"""Checkpoints: a folder for each cut, with a safetensors file of each parameter server and a manifest.

``<run>/checkpoints/cut-00000007/{ps-0.safetensors, ps-1.safetensors, manifest.json}``. Under strategy AllReduce, the
ranks that write a checkpoint name their files ``ps-0``, ``ps-1``, ..., too. The manifest is written last: a folder
without one is not a checkpoint. This module and the other two that read arrays need NumPy; a master uses
``checkpoint_manifest``, which does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from edl.api.errors import StorageError
from edl.storage.checkpoint_manifest import (
    ShardInfo,
    SkippedCheckpoint,
    check_shard_bytes,
    load_manifest,
    shard_name,
)
from edl.storage.safetensors_writer import AnyArray, ArrayShape, read_array_file, write_array_file, write_array_parts


def shard_path(directory: Path, ps_index: int) -> Path:
    """The file of a parameter server in the cut in ``directory``."""
    return directory / shard_name(ps_index)


def write_shard(
    directory: Path, ps_index: int, arrays: Mapping[str, AnyArray], metadata: Mapping[str, str] | None = None
) -> ShardInfo:
    """Write one parameter server's shard of a cut. The file is durable when this returns.

    The arrays must not change meanwhile.

    Args:
        directory: the cut's folder (``cut_directory``); created if it does not exist.
        ps_index: index of the parameter server.
        arrays: arrays by name, of any shape; dtypes are floats of 16 to 64 bits, integers and bool.
        metadata: strings stored with the arrays.

    Raises:
        StorageError: the shard cannot be written (the disk is full). No partial file is left.
        ValueError: an array's dtype cannot be stored.
    """
    path = shard_path(directory, ps_index)
    size, checksum = write_array_file(path, arrays, metadata or {})
    return ShardInfo(file=path.name, size=size, crc32=checksum)


def write_shard_parts(
    directory: Path,
    ps_index: int,
    arrays: Sequence[ArrayShape],
    parts: Iterable[tuple[str, AnyArray]],
    metadata: Mapping[str, str],
) -> ShardInfo:
    """Like ``write_shard``, for arrays in parts; see :func:`edl.storage.safetensors_writer.write_array_parts`."""
    path = shard_path(directory, ps_index)
    size, checksum = write_array_parts(path, arrays, parts, metadata)
    return ShardInfo(file=path.name, size=size, crc32=checksum)


def read_shard(path: Path) -> tuple[dict[str, AnyArray], dict[str, str]]:
    """The arrays and strings of a committed shard, after its checksum was compared with the manifest.

    Raises:
        StorageError: there is no manifest, the file differs from it, or cannot be read.
    """
    manifest = load_manifest(path.parent)
    if isinstance(manifest, SkippedCheckpoint):
        raise StorageError(f"cannot be used: {manifest.reason}", where=str(path.parent))
    expected = [shard for shard in manifest.shards if shard.file == path.name]
    if not expected:
        raise StorageError("the manifest of this checkpoint does not name this file", where=str(path))
    check_shard_bytes(path.parent, expected[0])
    return read_array_file(path)
