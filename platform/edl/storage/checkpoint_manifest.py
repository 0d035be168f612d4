"""Manifests of checkpoints: reading, writing and verifying them, and removing old checkpoints.

This module needs no NumPy, which would cost a starting master a tenth of a second. ``checkpoint_shards`` reads and
writes arrays.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edl.api.errors import StorageError
from edl.core.cuts import WORLD_STEP_KEY
from edl.core.strict_json import decode_json_file
from edl.numerics.checksum import crc32
from edl.storage.durable_files import sync_directory, translate_os_errors, write_json

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
DATASET_KEY = "dataset"
"""Key in a manifest's ledger with the content of the journal's ``dataset`` entry; absent in older manifests."""
_MAX_MANIFEST_BYTES = 256 << 20
"""The limit of a journal entry, which contains the same ledger."""
_CUT_NAME = re.compile(r"cut-([0-9]{8,})")


@dataclass(frozen=True)
class ShardInfo:
    """One file of a cut: its name, its size in bytes and its CRC-32."""

    file: str
    size: int
    crc32: int

    def __post_init__(self) -> None:
        # a name with a folder would let a manifest refer to files outside of the checkpoint
        if not isinstance(self.size, int) or not isinstance(self.crc32, int) or Path(self.file).name != self.file:
            raise ValueError(f"{self.file!r} of {self.size!r} bytes with the checksum {self.crc32!r} is not a shard")


@dataclass(frozen=True)
class CheckpointManifest:
    """A committed cut."""

    cut: int
    """Number that the master announced."""
    version: int
    """Version of the parameters: number of updates that were applied before the cut."""
    created: str
    """UTC, ISO 8601."""
    shards: tuple[ShardInfo, ...]
    ledger: Any
    """Ledger at the cut, as JSON that only the master interprets."""
    directory: Path | None = None
    """The folder that it was read from; None if it is not committed yet."""

    def to_json(self) -> dict[str, Any]:
        """The content of the file, with a checksum of everything else."""
        body = {
            "format_version": FORMAT_VERSION,
            "cut": self.cut,
            "version": self.version,
            "created": self.created,
            "shards": [asdict(shard) for shard in self.shards],
            "ledger": self.ledger,
        }
        plain = json.loads(json.dumps(body))  # as a reader sees it, with keys as strings and tuples as lists
        return {**plain, "crc32": _body_checksum(plain)}

    @property
    def step(self) -> int:
        """Number of steps that are done at the cut."""
        # under AllReduce a step contains a minibatch of each worker, and the ledger counts minibatches; the ledger of
        # strategy Local has neither
        ledger = self.ledger if isinstance(self.ledger, dict) else {}
        own = ledger.get(WORLD_STEP_KEY, ledger.get("done_steps"))
        return own if isinstance(own, int) else self.version

    def shard_path(self, ps_index: int) -> Path | None:
        """The file of a parameter server, in a manifest that was read; None if the cut has none for it."""
        name = shard_name(ps_index)
        known = self.directory is not None and any(shard.file == name for shard in self.shards)
        return self.directory / name if known and self.directory else None


@dataclass(frozen=True)
class SkippedCheckpoint:
    """A cut that cannot be used, and the reason."""

    cut: int
    directory: Path
    reason: str


def shard_name(index: int) -> str:
    """The name of the file that a parameter server writes, or a rank of AllReduce by its place among the writers."""
    return f"ps-{index}.safetensors"


def cut_directory(checkpoints_dir: Path, cut: int) -> Path:
    """The folder of cut ``cut``."""
    return checkpoints_dir / f"cut-{cut:08d}"


def list_cuts(checkpoints_dir: Path) -> list[int]:
    """The numbers of all cuts that have a folder, committed or not; ascending."""
    with translate_os_errors(checkpoints_dir, "list the checkpoints"):
        try:
            names = os.listdir(checkpoints_dir)
        except FileNotFoundError:
            return []
    return sorted(int(match[1]) for name in names if (match := _CUT_NAME.fullmatch(name)))


def load_manifest(directory: Path) -> CheckpointManifest | SkippedCheckpoint:
    """The manifest of the cut in ``directory``, or the reason why there is none.

    Raises:
        StorageError: it cannot be read, or has another format version (the message has both).
    """
    match = _CUT_NAME.fullmatch(directory.name)
    cut = int(match[1]) if match else -1
    path = directory / MANIFEST_NAME
    with translate_os_errors(path, "read a checkpoint"):
        try:
            with path.open("rb") as file:
                # one byte more than the limit tells a larger file without reading all of it
                data = file.read(_MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            return SkippedCheckpoint(cut, directory, "it was never completed: it has no manifest")
    if len(data) > _MAX_MANIFEST_BYTES:
        return SkippedCheckpoint(
            cut, directory, f"its manifest is damaged: it has more than {_MAX_MANIFEST_BYTES >> 20} MiB"
        )
    try:
        return _parse_manifest(decode_json_file(data), path)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return SkippedCheckpoint(cut, directory, f"its manifest is damaged: {error}")


def _parse_manifest(value: dict[str, Any], path: Path) -> CheckpointManifest:
    if value.pop("crc32") != _body_checksum(value):
        raise ValueError("the checksum is wrong")
    if value["format_version"] != FORMAT_VERSION:
        raise StorageError(
            f"this checkpoint has format version {value['format_version']}; this EDL reads version {FORMAT_VERSION}",
            where=str(path),
            hint="Resume the run with the EDL version that wrote it.",
        )
    if (
        not isinstance(value["cut"], int)
        or not isinstance(value["version"], int)
        or not isinstance(value["created"], str)
    ):
        raise TypeError("cut, version or time have a wrong type")
    return CheckpointManifest(
        cut=value["cut"],
        version=value["version"],
        created=value["created"],
        shards=tuple(ShardInfo(**shard) for shard in value["shards"]),
        ledger=value["ledger"],
        directory=path.parent,
    )


def _body_checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


# Committing a checkpoint, and removing old ones: the master's part, which does not read arrays.


def commit_checkpoint(directory: Path, manifest: CheckpointManifest) -> None:
    """Write the manifest, the last file of a checkpoint: from now on ``newest_intact_checkpoint`` finds it.

    Raises:
        StorageError: a shard is missing or has another size, or the manifest cannot be written. The cut is not
            committed.
    """
    for shard in manifest.shards:
        check_shard_size(directory, shard)
    # the folder's name must be durable before the manifest says that the cut exists
    with translate_os_errors(directory, "commit a checkpoint"):
        sync_directory(directory.parent)
    write_json(directory / MANIFEST_NAME, manifest.to_json(), fsync=True)


def prune_checkpoints(
    checkpoints_dir: Path, keep_count: int, protected_cuts: set[int] | frozenset[int] = frozenset()
) -> list[int]:
    """Remove all but the ``keep_count`` newest committed cuts, and the files of older unfinished cuts.

    Unfinished cuts that are newer than the newest committed one are kept: they are being written.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        keep_count: number of committed cuts to keep, at least 1.
        protected_cuts: numbers of cuts that are always kept (a pinned version).

    Returns:
        The numbers of the removed cuts, oldest first.

    Raises:
        StorageError: a cut cannot be removed.
    """
    if keep_count < 1:
        raise ValueError(f"keep must be at least 1, not {keep_count}")
    cuts = list_cuts(checkpoints_dir)
    committed = committed_cuts(checkpoints_dir)
    if not committed:
        return []
    # newer cuts without a manifest are being written by parameter servers: only older ones are
    # removed
    stay = {*committed[-keep_count:], *protected_cuts}
    removed = [cut for cut in cuts if cut < committed[-1] and cut not in stay]
    for cut in removed:
        _remove_cut(cut_directory(checkpoints_dir, cut))
    return removed


def remove_unfinished_cuts(checkpoints_dir: Path, below_cut: int) -> list[int]:
    """Remove cuts that were never committed and have a lower number than ``below_cut``; return their numbers.

    Raises:
        StorageError: a cut cannot be removed.
    """
    older = [cut for cut in list_cuts(checkpoints_dir) if cut < below_cut]
    # a cut with a damaged manifest was committed once, so it is not unfinished
    unfinished = [cut for cut in older if not (cut_directory(checkpoints_dir, cut) / MANIFEST_NAME).exists()]
    for cut in unfinished:
        _remove_cut(cut_directory(checkpoints_dir, cut))
    return unfinished


def committed_cuts(checkpoints_dir: Path) -> list[int]:
    """The numbers of all cuts with an intact manifest, oldest first."""
    cuts = list_cuts(checkpoints_dir)
    return [cut for cut in cuts if isinstance(load_manifest(cut_directory(checkpoints_dir, cut)), CheckpointManifest)]


def _remove_cut(directory: Path) -> None:
    """Remove a cut, its manifest first: a crash in between leaves an unfinished cut, not a damaged one."""
    with translate_os_errors(directory, "remove an old checkpoint"):
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
        sync_directory(directory)
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def check_shard_size(directory: Path, shard: ShardInfo) -> None:
    """Raise StorageError unless the shard exists and has the size in the manifest."""
    path = directory / shard.file
    with translate_os_errors(path, "read a checkpoint"):
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise StorageError("is missing", where=str(path)) from error
    if size != shard.size:
        raise StorageError(f"has {size} bytes instead of {shard.size}", where=str(path))


# --------------------------------------------------------------------------------------------------
# Verifying that checkpoints are intact to the last byte, and finding the newest one that is.


_CHUNK = 8 << 20  # bytes read at a time for a checksum


def newest_intact_checkpoint(
    checkpoints_dir: Path, on_skip: Callable[[SkippedCheckpoint], None] | None = None, *, below_cut: int | None = None
) -> CheckpointManifest | None:
    """The newest cut of which every byte is intact; None if there is none.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        on_skip: called with each newer cut that cannot be used, and the reason.
        below_cut: consider only cuts with a lower number.

    Raises:
        StorageError: the folder cannot be read, or a cut has another format version.
    """
    # newest first: verifying reads every byte, and usually the first one is intact
    for cut in reversed([cut for cut in list_cuts(checkpoints_dir) if below_cut is None or cut < below_cut]):
        directory = cut_directory(checkpoints_dir, cut)
        manifest = load_manifest(directory)
        reason = manifest.reason if isinstance(manifest, SkippedCheckpoint) else verify_checkpoint(directory, manifest)
        if isinstance(manifest, CheckpointManifest) and reason is None:
            return manifest
        if on_skip is not None:
            on_skip(SkippedCheckpoint(cut, directory, reason or "unknown"))
    return None


def verify_checkpoint(
    directory: Path, manifest: CheckpointManifest, check_shard: Callable[[Path, ShardInfo], None] | None = None
) -> str | None:
    """Check every shard of a cut; return why the cut cannot be used, or None if it can.

    Args:
        directory: folder of the cut.
        manifest: manifest of the cut.
        check_shard: raises StorageError for a damaged shard. The default, ``check_shard_bytes``, reads every byte.
    """
    try:
        for shard in manifest.shards:
            (check_shard or check_shard_bytes)(directory, shard)
    except StorageError as error:
        return f"{Path(error.where or '').name} {error.message}"
    return None


def check_shard_bytes(directory: Path, shard: ShardInfo) -> None:
    """Raise StorageError unless a shard has the size and the checksum in the manifest."""
    check_shard_size(directory, shard)
    path = directory / shard.file
    if file_crc32(path) != shard.crc32:
        raise StorageError("is damaged: its checksum differs from the one in the manifest", where=str(path))


def file_crc32(path: Path) -> int:
    """The CRC-32 of a whole file.

    Raises:
        StorageError: the file cannot be read.
    """
    checksum = 0
    with translate_os_errors(path, "read a checkpoint"), path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            checksum = crc32(chunk, checksum)
    return checksum


def prune_for_full_disk(checkpoints_dir: Path, keep: int, protected_cuts: set[int], *, failed_cut: int) -> list[int]:
    """Free space after a full disk made a cut fail.

    Removes the unfinished cuts up to the failed one, each of which may have whole shards, and the committed cuts that
    the next successful cut would remove. The newest cut of which every byte is intact is always kept.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        keep: number of committed cuts that are kept if the disk is not full.
        protected_cuts: numbers of cuts that are always kept.
        failed_cut: number of the cut that could not be written; no parameter server writes it any more.

    Returns:
        The numbers of the removed cuts, oldest first.

    Raises:
        StorageError: a cut cannot be removed.
    """
    removed = remove_unfinished_cuts(checkpoints_dir, failed_cut + 1)
    stay = max(1, keep - 1)
    if len(committed_cuts(checkpoints_dir)) > stay:
        # this reads all bytes of a checkpoint, so it is done only if there is something to remove
        intact = newest_intact_checkpoint(checkpoints_dir)
        removed += prune_checkpoints(checkpoints_dir, stay, protected_cuts | ({intact.cut} if intact else set()))
    return sorted(removed)
