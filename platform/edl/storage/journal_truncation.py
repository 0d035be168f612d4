"""Whether a journal has its end: what it knows of checkpoints, held against those that are there.

A journal whose newest segment is cut short reads like one whose writer was interrupted: nothing in it is damaged. But a
cut is announced in the journal before any of its files are written, and a checkpoint is pruned only after the journal
names a newer one. So checkpoints that the journal cannot have left behind prove that entries are lost. To go on from
what is left would bring old numbers, leases and records back beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from edl.api.errors import StorageError
from edl.core.saved_checkpoint import SavedCheckpoint
from edl.storage.checkpoint_manifest import CheckpointManifest, cut_directory, list_cuts, load_manifest
from edl.storage.journal_replay import JournalDamagedError, JournalReplay
from edl.storage.run_directory import RunDirectory

_TRUNCATED_HINT = (
    "The disk lost or changed data that was safe. `--resume RUN --from-checkpoint` of edl run or edl submit goes on "
    "from the newest checkpoint; or bring back the whole file."
)


@dataclass(frozen=True, slots=True)
class JournaledCuts:
    """What a journal says of cuts.

    Attributes:
        checkpoint: the newest, from which the run goes on.
        highest: number of the last cut that was announced.
    """

    checkpoint: SavedCheckpoint | None
    highest: int

    @classmethod
    def of(cls, told: JournalReplay) -> Self:
        """From all entries of a journal."""
        # 45 ms that the start of a new run does not need
        from edl.api import journal_entries as entries
        from edl.core.compaction import snapshot_cut_number

        saved = {e.kind for e in (entries.CheckpointWritten, entries.CheckpointReplaced, entries.BestWeightsRestored)}
        numbered = saved | {e.kind for e in (entries.CutAnnounced, entries.CutTaken, entries.CutCalledOff)}
        was = told.snapshot["checkpoint"] if told.snapshot else None
        found = SavedCheckpoint(*was) if was else None
        highest = snapshot_cut_number(told.snapshot) if told.snapshot else 0
        for entry in told.entries:
            if entry["kind"] in saved:
                found = SavedCheckpoint(entry["cut"], entry["step"], entry["version"], entry["ledger"])
            if entry["kind"] in numbered:
                highest = max(highest, entry["cut"])
        return cls(found, highest)


def check_not_truncated(run: RunDirectory, told: JournalReplay) -> JournaledCuts:
    """Refuse to go on with a journal that lost its end; returns what it knows.

    Raises:
        JournalDamagedError: there are checkpoints that it cannot have left behind.
        StorageError: the checkpoint that it names is not there, nor is any other; or the folder cannot be read.
    """
    known, there = JournaledCuts.of(told), list_cuts(run.checkpoints)
    newer = [cut for cut in there if cut > known.highest]
    if newer:
        knows = f"it knows of no checkpoint after {known.highest}" if known.highest else "it knows of no checkpoint"
        raise JournalDamagedError(
            f"the journal lost its end: {knows}, and there is {newer[-1]}", where=str(run.journal), hint=_TRUNCATED_HINT
        )
    named = known.checkpoint
    if named is None or _has_manifest(run, named.cut):
        return known
    complete = [cut for cut in there if _has_manifest(run, cut)]
    if complete and complete[-1] > named.cut:
        raise JournalDamagedError(
            f"the journal goes on from checkpoint {named.cut}, which cannot be used, and does not know of "
            f"{complete[-1]}",
            where=str(run.journal),
            hint=_TRUNCATED_HINT,
        )
    if not complete:
        raise StorageError(
            f"checkpoint {named.cut}, from which the run goes on, is not there, and no other is",
            where=str(run.checkpoints),
            hint="Bring the folder back, or start a new run, without --resume.",
        )
    return known


def usable_checkpoint(run: RunDirectory, named: SavedCheckpoint) -> SavedCheckpoint:
    """The checkpoint that a run goes on from when its journal names this one: an older one, if its manifest is gone.

    A damaged byte in a file is found later, when it is loaded.
    """
    if _has_manifest(run, named.cut):
        return named
    older = [cut for cut in list_cuts(run.checkpoints) if cut < named.cut and _has_manifest(run, cut)]
    found = load_manifest(cut_directory(run.checkpoints, older[-1])) if older else None
    return (
        SavedCheckpoint(found.cut, found.step, found.version, found.ledger)
        if isinstance(found, CheckpointManifest)
        else named
    )


def _has_manifest(run: RunDirectory, cut: int) -> bool:
    return isinstance(load_manifest(cut_directory(run.checkpoints, cut)), CheckpointManifest)
