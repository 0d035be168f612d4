"""What a checkpoint's manifest says, and whether it says it intact."""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edl.api.errors import StorageError
from edl.storage.durable_files import translate_os_errors

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

    def shard(self, ps_index: int) -> Path | None:
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
        return _parse_manifest(json.loads(data), path)
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
