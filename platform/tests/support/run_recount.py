"""The ledger of a run on disk, counted a second time."""

from __future__ import annotations

from pathlib import Path

from support.journal_bytes import read_entries

from edl.simulation.ledger_recount import Recount


def recount(run_dir: Path) -> Recount:
    """Count the journal of a run, which may still be written.

    Raises:
        LedgerError: entries contradict each other.
        MalformedJournalError: the journal's bytes are not intact.
    """
    counted = Recount()
    for entry in read_entries(run_dir / "journal"):
        counted.enter(entry)
    return counted
