"""A bit of a run's journal flips on the volume: it goes on from its newest checkpoint, by the command that is named."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from e2e.jobs import EPOCHS, MINIBATCH, RECORDS, ClusterJob, digits, in_container
from e2e.ledger import STORAGE
from e2e.namespaces import Namespace
from e2e.volume import MOUNT, READER
from support.journal_bytes import read_entries

from edl.simulation.ledger_recount import LedgerRecount

FLIP = """
import pathlib, sys
segment = max(pathlib.Path(sys.argv[1]).glob("*.edlj"), key=lambda path: path.stat().st_size)
data = bytearray(segment.read_bytes())
data[len(data) // 2] ^= 4
segment.write_bytes(data)
"""
"""In the middle of the segment in which the entries are."""
HISTORY = ("rolled_back", "cut_taken", "saved")
"""Entries about steps before the checkpoint, too, of which a journal that begins there says nothing."""


@pytest.mark.in_turn(1)
def test_a_run_goes_on_from_its_checkpoint(namespace: Namespace) -> None:
    """`--resume` fails and names the way; `--from-checkpoint` says what is lost, and every record is done once."""
    job = ClusterJob.write(namespace, digits("damaged", image=namespace.images.zoo, seconds=80, workers=1))
    job.submit()
    job.wait_step(100)
    run = job.status()["run"]
    job.run_edl("delete", "--yes")  # as a stop by somebody in a hurry: there is no checkpoint of the last steps
    path = f"{STORAGE}/{namespace.name}/{job.name}/{run}"
    in_container(namespace, READER, "python3", "-c", FLIP, f"{MOUNT}{path}/journal")

    refused = job.edl("submit", "--yes", "--resume", run)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "the journal is damaged" in refused.stderr
    assert "--resume RUN --from-checkpoint" in refused.stderr
    costs = re.search(r"checkpoint (\d+) at step (\d+).*?([\d,]+) records", " ".join(refused.stderr.split()))
    assert costs, refused.stderr
    job.wait_removed()

    output = job.run_edl("submit", "--yes", "--detach", "--resume", run, "--from-checkpoint")
    assert "without its journal" in output.partition("submitted to namespace")[0], "before anything is done"
    goes_back = f"goes back to checkpoint {costs[1]} at step {costs[2]}"
    assert goes_back in output
    assert f"{costs[3]} records were done after that" in output
    job.finish_quickly()
    assert job.wait_end() == "Complete"
    summary = job.wait_for("its summary", lambda: job.page("summary.json"), 10)
    assert summary["records_done"] == summary["records_total"] == EPOCHS * RECORDS
    assert summary["records_lost"] == 0
    assert summary["records_rolled_back"] == int(costs[3].replace(",", "")) <= 2 * 40 * MINIBATCH
    folder = namespace.volume.fetch_folder(path, namespace.folder / "runs" / job.name)
    _each_record_once(folder, int(costs[2]) * MINIBATCH)
    job.run_edl("delete", "--yes")


def _each_record_once(folder: Path, before: int) -> None:
    """The checkpoint's records and those of the new journal are all there are, and no two leases did the same ones."""
    counted = LedgerRecount()
    for entry in read_entries(folder / "journal"):
        if entry["kind"] not in HISTORY:
            counted.apply_entry(entry)
    assert before + sum(step.records for step in counted.counted_steps) == EPOCHS * RECORDS
    done = sorted((step.epoch, step.source, step.start, step.end) for step in counted.counted_steps)
    assert [pair for pair in pairwise(done) if pair[0][:2] == pair[1][:2] and pair[0][3] > pair[1][2]] == []
