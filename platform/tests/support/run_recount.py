"""The ledger of a run on disk, counted a second time."""

from __future__ import annotations

from pathlib import Path

from support.journal_bytes import read_entries

from edl.simulation.ledger_recount import LedgerRecount


def recount(run_dir: Path) -> LedgerRecount:
    """Count the journal of a run, which may still be written.

    Raises:
        LedgerError: entries contradict each other.
        MalformedJournalError: the journal's bytes are not intact.
    """
    counted = LedgerRecount()
    for entry in read_entries(run_dir / "journal"):
        counted.apply_entry(entry)
    return counted
