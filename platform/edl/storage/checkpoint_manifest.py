"""What a checkpoint's manifest says, and whether it says it intact."""

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
from edl.core.strict_json import decode_json_file
from edl.numerics.checksum import crc32
from edl.storage.durable_files import sync_directory, translate_os_errors, write_json

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
DATASET_KEY = "dataset"
"""Key of the ledger under which a manifest says what the journal's ``dataset`` entry does; absent in old ones."""
_MAX_MANIFEST_BYTES = 256 << 20
"""Bytes of a manifest: as many as the journal takes for one entry, which carries the same ledger."""
_CUT_NAME = re.compile(r"cut-([0-9]{8,})")


@dataclass(frozen=True)
class ShardInfo:
    """One file of a cut: its name, its size in bytes and the crc32 of them all."""

    file: str
    size: int
    crc32: int

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or not isinstance(self.crc32, int) or Path(self.file).name != self.file:
            raise ValueError(f"{self.file!r} of {self.size!r} bytes with the checksum {self.crc32!r} is no shard")


@dataclass(frozen=True)
class CheckpointManifest:
    """A cut that happened."""

    cut: int
    """The number the master announced."""
    version: int
    """The parameters' version: updates applied before the cut."""
    created: str
    """UTC, ISO 8601."""
    shards: tuple[ShardInfo, ...]
    ledger: Any
    """The ledger at the cut, as JSON; its meaning belongs to the master."""
    directory: Path | None = None
    """Where it was read from; None for one that is still to be committed."""

    def to_json(self) -> dict[str, Any]:
        """The file's content, with a checksum over all the rest."""
        body = {
            "format_version": FORMAT_VERSION,
            "cut": self.cut,
            "version": self.version,
            "created": self.created,
            "shards": [asdict(shard) for shard in self.shards],
            "ledger": self.ledger,
        }
        plain = json.loads(json.dumps(body))  # what a reader will see: keys are strings, tuples are lists
        return {**plain, "crc32": _body_checksum(plain)}

    @property
    def step(self) -> int:
        """Steps that are done in it."""
        own = self.ledger.get("done_steps") if isinstance(self.ledger, dict) else None
        return own if isinstance(own, int) else self.version

    def shard_path(self, ps_index: int) -> Path | None:
        """The file of a parameter server in a manifest that was read; None when the cut has none for it."""
        name = f"ps-{ps_index}.safetensors"
        known = self.directory is not None and any(shard.file == name for shard in self.shards)
        return self.directory / name if known and self.directory else None


@dataclass(frozen=True)
class SkippedCheckpoint:
    """A cut that cannot be used, and why."""

    cut: int
    directory: Path
    reason: str


def cut_directory(checkpoints_dir: Path, cut: int) -> Path:
    """The folder of cut ``cut``."""
    return checkpoints_dir / f"cut-{cut:08d}"


def list_cuts(checkpoints_dir: Path) -> list[int]:
    """The numbers of all cuts, committed or not, that have a folder; ascending."""
    with translate_os_errors(checkpoints_dir, "list the checkpoints"):
        try:
            names = os.listdir(checkpoints_dir)
        except FileNotFoundError:
            return []
    return sorted(int(match[1]) for name in names if (match := _CUT_NAME.fullmatch(name)))


def load_manifest(directory: Path) -> CheckpointManifest | SkippedCheckpoint:
    """The manifest of the cut in ``directory``, or why there is none.

    Raises:
        StorageError: it cannot be read, or another version of the format wrote it (both are named).
    """
    match = _CUT_NAME.fullmatch(directory.name)
    cut = int(match[1]) if match else -1
    path = directory / MANIFEST_NAME
    with translate_os_errors(path, "read a checkpoint"):
        try:
            with path.open("rb") as file:
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
        raise TypeError("cut, version or time are of another type")
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


# --------------------------------------------------------------------------------------------------
# Making a cut real, and removing old ones: the master's half of checkpoints, which looks into no array.
#
# Apart from module ``checkpoint``, which offers all of it, because NumPy costs a starting master a tenth of a second.


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


def prune_checkpoints(
    checkpoints_dir: Path, keep_count: int, protected_cuts: set[int] | frozenset[int] = frozenset()
) -> list[int]:
    """Remove all but the ``keep_count`` newest committed cuts, and the files of older unfinished cuts.

    Unfinished cuts newer than the newest committed one are being written, and stay.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        keep_count: how many committed cuts stay, at least 1.
        protected_cuts: numbers of cuts that always stay (a pinned version).

    Returns:
        The numbers of the removed cuts, oldest first.

    Raises:
        StorageError: one cannot be removed.
    """
    if keep_count < 1:
        raise ValueError(f"keep must be at least 1, not {keep_count}")
    cuts = list_cuts(checkpoints_dir)
    committed = committed_cuts(checkpoints_dir)
    if not committed:
        return []
    stay = {*committed[-keep_count:], *protected_cuts}
    removed = [cut for cut in cuts if cut < committed[-1] and cut not in stay]
    for cut in removed:
        _remove_cut(cut_directory(checkpoints_dir, cut))
    return removed


def remove_unfinished_cuts(checkpoints_dir: Path, below_cut: int) -> list[int]:
    """Remove cuts that were never committed and have a lower number than ``below_cut``; returns their numbers.

    Raises:
        StorageError: one cannot be removed.
    """
    older = [cut for cut in list_cuts(checkpoints_dir) if cut < below_cut]
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


# --------------------------------------------------------------------------------------------------
# Whether a checkpoint is as it was written, to the last byte; and which is the newest that is. Without NumPy.


_CHUNK = 8 << 20  # bytes read at a time for a checksum


def newest_intact_checkpoint(
    checkpoints_dir: Path, on_skip: Callable[[SkippedCheckpoint], None] | None = None, *, below_cut: int | None = None
) -> CheckpointManifest | None:
    """The newest cut of which every byte is intact; None when there is none.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        on_skip: called with each newer cut that cannot be used, and the reason.
        below_cut: consider only cuts with a lower number.

    Raises:
        StorageError: the folder cannot be read, or a newer EDL wrote the cut.
    """
    for cut in reversed([cut for cut in list_cuts(checkpoints_dir) if below_cut is None or cut < below_cut]):
        directory = cut_directory(checkpoints_dir, cut)
        found = load_manifest(directory)
        reason = found.reason if isinstance(found, SkippedCheckpoint) else verify_checkpoint(directory, found)
        if isinstance(found, CheckpointManifest) and reason is None:
            return found
        if on_skip is not None:
            on_skip(SkippedCheckpoint(cut, directory, reason or "unknown"))
    return None


def verify_checkpoint(
    directory: Path, manifest: CheckpointManifest, check_shard: Callable[[Path, ShardInfo], None] | None = None
) -> str | None:
    """Check every shard of a cut; return why the cut cannot be used, or None if it can.

    Args:
        directory: of the cut.
        manifest: of the cut.
        check_shard: raises StorageError for a damaged shard. The default, ``check_shard_bytes``, reads every byte.
    """
    try:
        for shard in manifest.shards:
            (check_shard or check_shard_bytes)(directory, shard)
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


def prune_for_full_disk(checkpoints_dir: Path, keep: int, protected_cuts: set[int], *, failed_cut: int) -> list[int]:
    """Free space after a full disk made a cut fail.

    Removes the unfinished cuts up to the failed one, each of which may hold whole shards, and the committed cuts that
    the next successful cut would remove. The newest cut whose every byte is intact always stays.

    Args:
        checkpoints_dir: the run's ``checkpoints``.
        keep: how many committed cuts stay when the disk is not full.
        protected_cuts: numbers of cuts that always stay.
        failed_cut: number of the cut that could not be written; no parameter server writes it any more.

    Returns:
        The numbers of the removed cuts, oldest first.

    Raises:
        StorageError: one cannot be removed.
    """
    removed = remove_unfinished_cuts(checkpoints_dir, failed_cut + 1)
    stay = max(1, keep - 1)
    if len(committed_cuts(checkpoints_dir)) > stay:
        intact = newest_intact_checkpoint(
            checkpoints_dir
        )  # reads all bytes of it: only when something is there to be removed
        removed += prune_checkpoints(checkpoints_dir, stay, protected_cuts | ({intact.cut} if intact else set()))
    return sorted(removed)
