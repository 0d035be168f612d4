"""A journal that is damaged, begun again from the newest intact checkpoint: ``--resume RUN --from-checkpoint``.

A checkpoint holds parameters and ledger of one moment, and since it says what the data set is, it is all that a run
needs to go on. What was done after it is done again. The new journal is one segment whose fence is empty, so that it
makes the older ones void at the moment in which it gets its name; these are then moved aside, for whoever wants to know
what happened to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError, StorageError
from edl.api.status import Status
from edl.jobfile.json_object import from_json
from edl.jobfile.problems import SpecError
from edl.storage.checkpoint_manifest import DATASET_KEY, CheckpointManifest, SkippedCheckpoint, list_cuts
from edl.storage.checkpoint_verification import newest_intact_checkpoint
from edl.storage.durable_files import sync_directory, translate_os_errors
from edl.storage.file_lock import FileLock
from edl.storage.journal_replay import JournalDamagedError
from edl.storage.json_files import read_json
from edl.storage.run_directory import RunDirectory
from edl.storage.segment_format import SegmentId, encode_record, list_segments
from edl.storage.segment_writer import SegmentWriter

_WORKER_LOG = re.compile(r"worker-(\d+)\.log")
_ONE_WRITER_HINT = "A journal has one writer. Stop the job first."


@dataclass(frozen=True, slots=True)
class CheckpointRestart:
    """What going back to the newest intact checkpoint means.

    Attributes:
        run: the run.
        checkpoint: the newest that is intact to the last byte.
        records: done after it, as far as the run's status says; they are done again.
        skipped: newer checkpoints that cannot be used.
    """

    run: RunDirectory
    checkpoint: CheckpointManifest
    records: int
    skipped: tuple[SkippedCheckpoint, ...] = ()

    @property
    def step(self) -> int:
        """Training steps that the checkpoint holds."""
        return int(self.checkpoint.ledger["done_steps"])

    def lines(self) -> list[str]:
        """What is lost, for people."""
        told = [f"checkpoint {one.cut} cannot be used: {one.reason}" for one in self.skipped]
        return [
            f"its journal is not read: it goes back to checkpoint {self.checkpoint.cut} at step {self.step:,}",
            f"{self.records:,} records were done after that and are done again",
            "counts of repeated records, corrupt records and lost workers begin at 0",
            *told,
        ]


@contextmanager
def explain_journal_damage(run: RunDirectory) -> Iterator[None]:
    """Opens the run's journal: one that is damaged is told with what going back to a checkpoint would cost.

    Who resumes a run on a cluster sees no more of its volume than this before they decide.
    """
    try:
        yield
    except JournalDamagedError as error:
        try:
            costs = "; ".join(plan_restart(run).lines())
        except (BadInputError, StorageError) as none:
            costs = none.message
        raise JournalDamagedError(error.message, where=error.where, hint=f"{error.hint}\n  {costs}") from error


def plan_restart(run: RunDirectory) -> CheckpointRestart:
    """Find the checkpoint to go back to; changes nothing.

    Raises:
        BadInputError: there is none that is intact, or it does not say what the data set is.
        StorageError: the folder cannot be read.
    """
    skipped: list[SkippedCheckpoint] = []
    found = newest_intact_checkpoint(run.checkpoints, skipped.append)
    if found is None:
        told = "".join(f"\n  checkpoint {one.cut}: {one.reason}" for one in skipped)
        raise BadInputError(
            f"run {run.run_id} has no intact checkpoint to go back to{told}",
            where=str(run.checkpoints),
            hint="Start a new run, without --resume.",
        )
    if not found.ledger.get(DATASET_KEY):
        raise BadInputError(
            f"checkpoint {found.cut} was written by a version of EDL that did not note the data set in it",
            where=str(found.directory),
            hint="Resume with the journal, without --from-checkpoint, or start a new run.",
        )
    return CheckpointRestart(run, found, max(0, _read_done_records(run) - found.ledger["done_records"]), tuple(skipped))


def restart_journal(planned: CheckpointRestart, holder: str, *, exclusive: bool = True) -> Path:
    """Make the journal one that begins at the checkpoint; returns where the old segments are now.

    Doing it again, after a crash in between, gives the same.

    Args:
        planned: what ``plan_restart`` found.
        holder: who does it, one line of text.
        exclusive: take the journal's lock, which a volume that several nodes mount may not have.

    Raises:
        RefusedError: a master has the journal open.
        StorageError: it cannot be written; the old journal is as it was.
    """
    run = planned.run
    lock = FileLock(run.journal / "LOCK", holder, what="the journal", hint=_ONE_WRITER_HINT) if exclusive else None
    try:
        old = list_segments(run.journal)
        segment = SegmentId(old[-1].incarnation + 1 if old else 1, 1)
        entries = b"".join(encode_record(entry) for entry in _initial_entries(planned))
        SegmentWriter(run.journal, segment, encode_record({"holder": holder, "fence": {}}), entries).close()
        return _move_segments_aside(run, old, segment)
    finally:
        if lock is not None:
            lock.close()


def _initial_entries(planned: CheckpointRestart) -> list[Mapping[str, Any]]:
    """What a master would have journaled that had lost everything but this checkpoint."""
    from edl.api.journal_entries import (  # 15 ms that only such a run needs
        CheckpointReplaced,
        CutCalledOff,
        DatasetEntered,
        JournalEntry,
        ParametersRolledBack,
        WorkerChanged,
    )

    found, run = planned.checkpoint, planned.run
    ledger = {name: value for name, value in found.ledger.items() if name != DATASET_KEY}
    reason = "the run goes on from this checkpoint, without its journal"
    workers = [int(match[1]) for path in run.logs.glob("worker-*.log") if (match := _WORKER_LOG.fullmatch(path.name))]
    written: list[JournalEntry] = [
        DatasetEntered.from_fields(found.ledger[DATASET_KEY]),
        CutCalledOff(cut=max(list_cuts(run.checkpoints)), reason=reason),  # so far numbers are used
        *(WorkerChanged(index=max(workers)) for _ in workers[:1]),
        CheckpointReplaced(cut=found.cut, step=planned.step, version=found.version, ledger=ledger, reason=reason),
        ParametersRolledBack(cut=found.cut, records=planned.records, ledger=ledger, reason=reason),
    ]
    return [entry.to_json() for entry in written]


def _move_segments_aside(run: RunDirectory, old: list[SegmentId], segment: SegmentId) -> Path:
    aside = run.path / f"journal-set-aside-{segment.incarnation:06d}"
    with translate_os_errors(aside, "move the old journal aside"):
        if old:
            aside.mkdir(exist_ok=True)
        for one in old:
            (run.journal / one.name).rename(aside / one.name)
        sync_directory(run.journal)
        sync_directory(run.path)
    return aside


def _read_done_records(run: RunDirectory) -> int:
    """Records that the run had done, as its status says; 0 where that cannot be read."""
    with suppress(StorageError, SpecError):
        if run.status.exists():
            return from_json(Status, read_json(run.status), str(run.status)).records_done
    return 0
