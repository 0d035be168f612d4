"""The checkpoints of a run: one line each, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from edl.api.errors import StorageError
from edl.reporting.text_table import align_columns, format_age
from edl.storage.checkpoint_commit import check_shard_size
from edl.storage.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    SkippedCheckpoint,
    cut_directory,
    list_cuts,
    load_manifest,
)
from edl.storage.checkpoint_verification import check_shard_bytes, verify_checkpoint

_RIGHT_ALIGNED = (0, 1, 2, 3, 4, 5)
_UNITS = ("kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """A checkpoint.

    Attributes:
        cut: its number.
        directory: of its files.
        state: ``intact`` (every byte was compared), ``complete`` (all files are there in their sizes), ``unfinished``
            or ``damaged``.
        problem: why it cannot be used; empty if it can.
        manifest: None if that cannot be read.
    """

    cut: int
    directory: Path
    state: str
    problem: str = ""
    manifest: CheckpointManifest | None = None

    @property
    def usable(self) -> bool:
        """As far as was looked."""
        return not self.problem

    @property
    def size(self) -> int | None:
        """Bytes of its shards."""
        return None if self.manifest is None else sum(shard.size for shard in self.manifest.shards)

    def position(self, *names: str) -> int | None:
        """A number of the ledger by the first of these names that it has."""
        ledger = self.manifest.ledger if self.manifest else None
        found = next((ledger[name] for name in names if name in ledger), None) if isinstance(ledger, dict) else None
        return found if isinstance(found, int) else None

    @property
    def step(self) -> int | None:
        """Steps that are done in it."""
        return self.manifest.step if self.manifest else None

    @property
    def records(self) -> int | None:
        """Records that are done in it."""
        return self.position("done_records", "records_done")

    @property
    def created(self) -> float | None:
        """Unix seconds."""
        return parse_created(self.manifest.created) if self.manifest else None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "checkpoint": self.cut,
            "step": self.step,
            "records": self.records,
            "size": self.size,
            "shards": len(self.manifest.shards) if self.manifest else None,
            "created": self.manifest.created if self.manifest else None,
            "state": self.state,
            "problem": self.problem or None,
            "path": str(self.directory),
        }


def list_checkpoints(directory: Path, *, verified: bool) -> list[ListedCheckpoint]:
    """The checkpoints in ``directory``, oldest first.

    Args:
        directory: a run's ``checkpoints``.
        verified: read every byte; otherwise only manifests and sizes are looked at.

    Raises:
        StorageError: the folder cannot be read.
    """
    return [_list_checkpoint(directory, cut, verified=verified) for cut in list_cuts(directory)]


def newest_usable(found: Sequence[ListedCheckpoint]) -> ListedCheckpoint | None:
    """The newest that nothing is known to be wrong with."""
    return next((each for each in reversed(found) if each.usable), None)


def checkpoint_table(found: Sequence[ListedCheckpoint], now: float) -> list[str]:
    """Lines, with a head; the newest usable one has a star."""
    best = newest_usable(found)
    head = ["CHECKPOINT", "STEP", "RECORDS", "SIZE", "SHARDS", "AGE", "STATE"]
    return align_columns(
        [head, *(_checkpoint_row(each, now, newest=each is best) for each in found)], right=_RIGHT_ALIGNED
    )


def format_size(size: int) -> str:
    """Bytes for people: ``110 kB``."""
    value, unit = float(size), "bytes"
    for larger in _UNITS:
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "bytes" and value < 100 else f"{value:,.0f} {unit}"


def parse_created(created: str) -> float | None:
    """Unix seconds of a manifest's ``created``; None when it is not a time."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, TypeError):
        return None


def _list_checkpoint(checkpoints: Path, cut: int, *, verified: bool) -> ListedCheckpoint:
    directory = cut_directory(checkpoints, cut)
    try:
        found = load_manifest(directory)
    except StorageError as error:  # of another version, or not to be read
        return ListedCheckpoint(cut, directory, "damaged", error.message)
    if isinstance(found, SkippedCheckpoint):
        if (directory / MANIFEST_NAME).exists():
            return ListedCheckpoint(cut, directory, "damaged", found.reason)
        return ListedCheckpoint(cut, directory, "unfinished", "it has no manifest: being written, or never completed")
    problem = verify_checkpoint(directory, found, check_shard_bytes if verified else check_shard_size)
    if problem:
        return ListedCheckpoint(cut, directory, "damaged", problem, found)
    return ListedCheckpoint(cut, directory, "intact" if verified else "complete", manifest=found)


def _checkpoint_row(each: ListedCheckpoint, now: float, *, newest: bool) -> list[str]:
    counts = [f"{value:,}" if value is not None else "-" for value in (each.step, each.records)]
    size = "-" if each.size is None else format_size(each.size)
    shards = str(len(each.manifest.shards)) if each.manifest else "-"
    how_old = "-" if each.created is None else format_age(now - each.created)
    state = f"{each.state}: {each.problem}" if each.problem else each.state
    return [str(each.cut), *counts, size, shards, how_old, f"{state}, newest usable" if newest else state]
