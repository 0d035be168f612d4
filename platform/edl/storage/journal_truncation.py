"""Detects a journal that lost its end, by comparing the checkpoints that it mentions with those on disk.

A journal with a truncated newest segment looks like one whose writer was interrupted: nothing in it is damaged. But a
cut is announced in the journal before any of its files is written, and a checkpoint is pruned only after the journal
has a newer one. So checkpoints on disk can prove that entries are lost. Continuing from the rest would reuse numbers,
leases and records that already exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from edl.api.errors import BadInputError, StorageError
from edl.api.status import Status
from edl.core.cuts import WORLD_STEP_KEY, SavedCheckpoint, checkpoint_step
from edl.jobfile.document_tree import SpecError
from edl.jobfile.section_type import from_json
from edl.storage.checkpoint_manifest import (
    DATASET_KEY,
    CheckpointManifest,
    SkippedCheckpoint,
    cut_directory,
    list_cuts,
    load_manifest,
    newest_intact_checkpoint,
)
from edl.storage.durable_files import FileLock, read_json, sync_directory, translate_os_errors
from edl.storage.journal_reader import JournalContent, JournalDamagedError
from edl.storage.run_directory import RunDirectory
from edl.storage.segment_chain import SegmentId, SegmentWriter, encode_record, list_segments

_TRUNCATED_HINT = (
    "The disk lost or changed data that was durable. `--resume RUN --from-checkpoint` of edl run or edl submit "
    "continues from the newest checkpoint. Or restore the complete file."
)


@dataclass(frozen=True, slots=True)
class JournaledCuts:
    """The cuts that a journal mentions.

    Attributes:
        checkpoint: the newest checkpoint, from which the run continues.
        highest_cut: highest number of a cut that was announced.
    """

    checkpoint: SavedCheckpoint | None
    highest_cut: int

    @classmethod
    def from_content(cls, journal_content: JournalContent) -> Self:
        """Collect them from the entries of a journal."""
        # imported here: it takes 45 ms, which a new run saves
        from edl.api import journal_entries as entries
        from edl.core.state_snapshot import snapshot_cut_number

        saved = {e.kind for e in (entries.CheckpointWritten, entries.CheckpointReplaced, entries.BestWeightsRestored)}
        numbered = saved | {e.kind for e in (entries.CutAnnounced, entries.CutTaken, entries.CutCalledOff)}
        saved_checkpoint = journal_content.snapshot["checkpoint"] if journal_content.snapshot else None
        checkpoint = SavedCheckpoint(*saved_checkpoint) if saved_checkpoint else None
        highest = snapshot_cut_number(journal_content.snapshot) if journal_content.snapshot else 0
        for entry in journal_content.entries:
            if entry["kind"] in saved:
                checkpoint = SavedCheckpoint(entry["cut"], entry["step"], entry["version"], entry["ledger"])
            if entry["kind"] in numbered:
                highest = max(highest, entry["cut"])
        return cls(checkpoint, highest)


def check_not_truncated(run: RunDirectory, journal_content: JournalContent) -> JournaledCuts:
    """Refuse to continue with a journal that lost its end; otherwise return its cuts.

    Raises:
        JournalDamagedError: there are checkpoints that the journal should mention and does not.
        StorageError: the checkpoint that the journal names is missing, and so are all others; or the folder cannot be
            read.
    """
    journaled_cuts, existing_cuts = JournaledCuts.from_content(journal_content), list_cuts(run.checkpoints)
    # every cut is announced in the journal before its first file is written
    newer = [cut for cut in existing_cuts if cut > journaled_cuts.highest_cut]
    if newer:
        knows = (
            f"it has no checkpoint after {journaled_cuts.highest_cut}"
            if journaled_cuts.highest_cut
            else "it has no checkpoint"
        )
        raise JournalDamagedError(
            f"the journal lost its end: {knows}, and there is {newer[-1]}", where=str(run.journal), hint=_TRUNCATED_HINT
        )
    journaled_checkpoint = journaled_cuts.checkpoint
    if journaled_checkpoint is None or _has_manifest(run, journaled_checkpoint.cut):
        return journaled_cuts
    # a checkpoint is pruned only after the journal has a newer one, so the named one must exist if
    # a newer one does
    complete = [cut for cut in existing_cuts if _has_manifest(run, cut)]
    if complete and complete[-1] > journaled_checkpoint.cut:
        raise JournalDamagedError(
            f"the journal continues from checkpoint {journaled_checkpoint.cut}, which cannot be used, and does not "
            f"have checkpoint {complete[-1]}",
            where=str(run.journal),
            hint=_TRUNCATED_HINT,
        )
    if not complete:
        raise StorageError(
            f"checkpoint {journaled_checkpoint.cut}, from which the run continues, is missing, and so are all others",
            where=str(run.checkpoints),
            hint="Restore the folder, or start a new run, without --resume.",
        )
    return journaled_cuts


def usable_checkpoint(run: RunDirectory, named: SavedCheckpoint) -> SavedCheckpoint:
    """The checkpoint from which a run continues, if its journal names ``named``: an older one if its manifest is gone.

    Only the manifest is checked here. Damaged shards are found when they are loaded.
    """
    if _has_manifest(run, named.cut):
        return named
    older = [cut for cut in list_cuts(run.checkpoints) if cut < named.cut and _has_manifest(run, cut)]
    manifest = load_manifest(cut_directory(run.checkpoints, older[-1])) if older else None
    return (
        SavedCheckpoint(manifest.cut, manifest.step, manifest.version, manifest.ledger)
        if isinstance(manifest, CheckpointManifest)
        else named
    )


def _has_manifest(run: RunDirectory, cut: int) -> bool:
    return isinstance(load_manifest(cut_directory(run.checkpoints, cut)), CheckpointManifest)


# --------------------------------------------------------------------------------------------------
# Replacing a damaged journal by one that begins at the newest intact checkpoint: ``--resume RUN
# --from-checkpoint``.
#
# A checkpoint has the parameters, the ledger and the description of the data set, so it is all that
# a run needs to continue. Records that were done after it are done again. The new journal is one
# segment without counted lengths, so it voids the older segments at the moment in which it gets its
# name. These are then moved aside, for analysis.


_MISSING_UPDATES_KEY = "lacking"
"""Key in the ledger of parameter servers: updates that a server has lost."""
_LOCAL_KEYS = (
    "records_done",
    "records_skipped",
    "updates_skipped",
    "records_not_trained",
    "window",
    "evaluated",
    "callbacks",
)
"""What only strategy Local has in the ledger of a checkpoint."""
_WORKER_LOG = re.compile(r"worker-(\d+)\.log")
_ONE_WRITER_HINT = "A journal has one writer. Stop the job first."


@dataclass(frozen=True, slots=True)
class CheckpointRestart:
    """The consequences of going back to the newest intact checkpoint.

    Attributes:
        run: the run.
        checkpoint: the newest checkpoint of which every byte is intact.
        repeated_records: records that were done after it, according to the run's status; they are done again.
        skipped_checkpoints: newer checkpoints that cannot be used.
        old_strategy, new_strategy: the strategies before and after, if it changes; else empty.
        carried_entries: entries of the old journal that the new one repeats.
    """

    run: RunDirectory
    checkpoint: CheckpointManifest
    repeated_records: int
    skipped_checkpoints: tuple[SkippedCheckpoint, ...] = ()
    old_strategy: str = ""
    new_strategy: str = ""
    carried_entries: tuple[Mapping[str, Any], ...] = ()

    @property
    def ledger(self) -> Mapping[str, Any]:
        """The ledger position, without what only the old strategy needs."""
        own = {DATASET_KEY, *((WORLD_STEP_KEY, _MISSING_UPDATES_KEY, *_LOCAL_KEYS) if self.new_strategy else ())}
        return {name: value for name, value in self.checkpoint.ledger.items() if name not in own}

    @property
    def step(self) -> int:
        """Number of training steps in the checkpoint, as the strategy counts them."""
        return checkpoint_step(self.ledger)

    def describe_losses(self) -> list[str]:
        """What is lost, as lines for people."""
        skipped_lines = [f"checkpoint {one.cut} cannot be used: {one.reason}" for one in self.skipped_checkpoints]
        what = f"the journal is ignored: the run goes back to checkpoint {self.checkpoint.cut} at step {self.step:,}"
        if self.new_strategy:
            journal = "without a journal" if self.new_strategy == "Local" else "with a new journal"
            what = (
                f"strategy {self.new_strategy} continues at checkpoint {self.checkpoint.cut} of strategy "
                f"{self.old_strategy}, {journal}, at step {self.step:,}"
            )
        if self.step != self.checkpoint.step:
            what += f": it counts minibatches, of which the {self.checkpoint.step:,} steps had several"
        return [
            what,
            *self._describe_change(),
            f"{self.repeated_records:,} records were done after that and will be done again",
            "the counts of repeated records, corrupt records and lost workers start at 0",
            *skipped_lines,
        ]

    def _describe_change(self) -> list[str]:
        """What another strategy takes over, and what it cannot."""
        if not self.new_strategy:
            return []
        taken = "values of the model's variables, the state of the optimizer, the position in the data"
        anew = "random numbers of layers such as Dropout"
        if "Local" in (self.old_strategy, self.new_strategy):
            # Keras' own callbacks decide there, and otherwise the master.
            return [f"taken over: {taken}", f"begins anew: {anew}; the callbacks with what they have decided"]
        return [f"taken over: {taken}, what callbacks have decided", f"begins anew: {anew}"]


@contextmanager
def explain_journal_damage(run: RunDirectory) -> Iterator[None]:
    """Add to the error of a damaged journal what going back to a checkpoint would cost.

    A user who resumes a run on a cluster cannot look at its volume before deciding.
    """
    try:
        yield
    except JournalDamagedError as error:
        try:
            costs = "; ".join(plan_restart(run).describe_losses())
        except (BadInputError, StorageError) as none:
            costs = none.message
        raise JournalDamagedError(error.message, where=error.where, hint=f"{error.hint}\n  {costs}") from error


def plan_restart(run: RunDirectory) -> CheckpointRestart:
    """Find the checkpoint to go back to. Changes nothing.

    Raises:
        BadInputError: no checkpoint is intact, or the newest one does not describe the data set.
        StorageError: the folder cannot be read.
    """
    skipped: list[SkippedCheckpoint] = []
    checkpoint = newest_intact_checkpoint(run.checkpoints, skipped.append)
    if checkpoint is None:
        skipped_text = "".join(f"\n  checkpoint {one.cut}: {one.reason}" for one in skipped)
        raise BadInputError(
            f"run {run.run_id} has no intact checkpoint to go back to{skipped_text}",
            where=str(run.checkpoints),
            hint="Start a new run, without --resume.",
        )
    if not checkpoint.ledger.get(DATASET_KEY):
        raise BadInputError(
            f"checkpoint {checkpoint.cut} was written by a version of EDL that did not store the data set in it",
            where=str(checkpoint.directory),
            hint="Resume with the journal, without --from-checkpoint, or start a new run.",
        )
    return CheckpointRestart(
        run, checkpoint, max(0, _read_done_records(run) - checkpoint.ledger["done_records"]), tuple(skipped)
    )


def restart_journal(restart: CheckpointRestart, holder: str, *, exclusive: bool = True) -> Path:
    """Replace the journal by one that begins at the checkpoint; return the folder with the old segments.

    Strategy Local continues without a journal. Idempotent: after a crash in between, calling it again gives the same
    result.

    Args:
        restart: the result of ``plan_restart``.
        holder: name of the holder of the lock, one line of text.
        exclusive: take the journal's lock, which a volume that several nodes mount may not support.

    Raises:
        RefusedError: a master has the journal open.
        StorageError: it cannot be written; the old journal is unchanged.
    """
    run = restart.run
    lock = (
        FileLock(run.journal / "LOCK", holder, protected_thing="the journal", hint=_ONE_WRITER_HINT)
        if exclusive
        else None
    )
    try:
        old = list_segments(run.journal)
        # above all others, so that lease numbers, which contain the incarnation, are not reused
        segment = SegmentId(old[-1].incarnation + 1 if old else 1, 1)
        if restart.new_strategy != "Local":
            entries = b"".join(encode_record(entry) for entry in _initial_entries(restart))
            SegmentWriter(run.journal, segment, encode_record({"holder": holder, "fence": {}}), entries).close()
        return _move_segments_aside(run, old, segment)
    finally:
        if lock is not None:
            lock.close()


def _initial_entries(planned: CheckpointRestart) -> list[Mapping[str, Any]]:
    """The entries of a master that lost everything except this checkpoint."""
    from edl.api.journal_entries import (  # imported here: it takes 15 ms, and only this case needs it
        CheckpointReplaced,
        CutCalledOff,
        DatasetEntered,
        JournalEntry,
        ParametersRolledBack,
        WorkerChanged,
    )

    manifest, run = planned.checkpoint, planned.run
    ledger = planned.ledger
    reason = "the run continues from this checkpoint, without its journal"
    workers = [int(match[1]) for path in run.logs.glob("worker-*.log") if (match := _WORKER_LOG.fullmatch(path.name))]
    written: list[JournalEntry] = [
        DatasetEntered.from_fields(manifest.ledger[DATASET_KEY]),
        CutCalledOff(cut=max(list_cuts(run.checkpoints)), reason=reason),  # marks all numbers with a folder as used
        # likewise for indexes of workers, which are never reused: the highest one that has a log
        *(WorkerChanged(index=max(workers)) for _ in workers[:1]),
        CheckpointReplaced(cut=manifest.cut, step=planned.step, version=manifest.version, ledger=ledger, reason=reason),
        ParametersRolledBack(cut=manifest.cut, records=planned.repeated_records, ledger=ledger, reason=reason),
    ]
    return [*(entry.to_json() for entry in written), *planned.carried_entries]


def _move_segments_aside(run: RunDirectory, old: list[SegmentId], segment: SegmentId) -> Path:
    # named after the new incarnation, so that several restarts do not overwrite each other's files
    aside = run.path / f"journal-set-aside-{segment.incarnation:06d}"
    with translate_os_errors(aside, "move the old journal aside"):
        if old:
            aside.mkdir(exist_ok=True)
        for one in old:
            (run.journal / one.file_name).rename(aside / one.file_name)
        sync_directory(run.journal)
        sync_directory(run.path)
    return aside


def _read_done_records(run: RunDirectory) -> int:
    """Number of records that the run had done, according to its status; 0 if that cannot be read."""
    with suppress(StorageError, SpecError):
        if run.status.exists():
            return from_json(Status, read_json(run.status), str(run.status)).records_done
    return 0
