"""A writer that is SIGKILLed at any moment, again and again: what it acknowledged is there."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from edl.storage.journal_reader import read_journal

WRITER = """
import pathlib, sys, threading
from edl.storage.journal import Journal
journal, found = Journal.open(pathlib.Path(sys.argv[1]), holder="writer")
seen = [*(found.snapshot or {"seen": []})["seen"], *(entry["n"] for entry in found.entries)]
ledger = threading.Lock()

def work():
    while True:
        with ledger:
            seen.append(len(seen))
            number, lsn = seen[-1], journal.append({"n": seen[-1]})
            if journal.size_bytes > 2000:
                journal.compact({"seen": seen})
        journal.wait_until_durable(lsn)
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()

for _ in range(6):
    threading.Thread(target=work).start()
"""


def test_every_acknowledged_entry_survives_sigkill(tmp_path: Path) -> None:
    dice = random.Random(7)
    for incarnation in range(1, 6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        with writer:
            lines = [writer.stdout.readline() for _ in range(dice.randrange(1, 400))]
            writer.kill()
            lines += writer.stdout.readlines()
        acknowledged = {int(line) for line in lines if line.endswith("\n")}

        journal_content = read_journal(tmp_path)
        numbers = [
            *(journal_content.snapshot or {"seen": []})["seen"],
            *(entry["n"] for entry in journal_content.entries),
        ]

        assert journal_content.incarnation == incarnation
        assert numbers == list(range(len(numbers)))
        assert acknowledged <= set(numbers)
