"""What must be true of a job at its end: from its journal on the volume, counted anew, and from the API."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.jobs import EPOCHS, MINIBATCH, RECORDS, TASK, ClusterJob
from support.run_recount import recount

from edl.simulation.ledger_recount import LedgerRecount, find_ledger_problems

STORAGE = "/edl"
"""Below the claim: where runs go by default."""


@dataclass(frozen=True)
class FetchedRun:
    """A run's directory, fetched from the volume.

    Attributes:
        folder: of this machine.
        ledger: its journal, counted by a reader that shares no code with the master.
        events: of the run, oldest first.
    """

    folder: Path
    ledger: LedgerRecount
    events: list[Mapping[str, Any]]

    @classmethod
    def fetch_run(cls, job: ClusterJob, run_id: str | None = None) -> FetchedRun:
        """Bring the run's directory here and count its journal."""
        run = run_id or job.uid
        folder = job.namespace.folder / "runs" / job.name / run
        job.namespace.volume.fetch_folder(f"{STORAGE}/{job.namespace.name}/{job.name}/{run}", folder)
        lines = (folder / "events.jsonl").read_text().splitlines()
        return cls(folder, recount(folder), [json.loads(line) for line in lines])

    def events_of(self, kind: str, **fields: Any) -> list[Mapping[str, Any]]:
        """The events of one kind with these fields."""
        wanted = {"event": kind, **fields}
        return [event for event in self.events if wanted.items() <= event.items()]

    def first_event(self, kind: str, after: float = 0.0, **fields: Any) -> Mapping[str, Any]:
        """The first event of one kind with these fields that happened at or after a moment."""
        events = [event for event in self.events_of(kind, **fields) if event["time"] >= after]
        assert events, f"no event {kind} {fields} after {after}: {self.events_of(kind)[-10:]}"
        return events[0]

    def log(self, role: str, index: int) -> str:
        """What one pod of the job wrote, all its containers one after the other."""
        return (self.folder / "logs" / f"{role}-{index}.log").read_text()

    def incarnations(self) -> list[int]:
        """Numbers of the masters that wrote the journal, in order: each has segments of its own."""
        return sorted({int(path.name.partition("-")[0]) for path in (self.folder / "journal").glob("*.edlj")})


def finish_and_count(
    job: ClusterJob, *, lost: int = 0, rolled_back: int = 0, epochs: int = EPOCHS, seconds: float = 240.0
) -> tuple[Mapping[str, Any], FetchedRun]:
    """Hurry to the end; every record is done exactly once, little is repeated, summary and journal agree.

    Args:
        job: must end as Complete.
        lost: workers that ended, or fell silent, before their work did: each may cost a minibatch.
        rolled_back: records that may go back to a checkpoint, when a parameter server was lost.
        epochs: of the job.
        seconds: the bound.
    """
    job.finish_quickly()
    how = job.wait_end(seconds)
    summary = job.wait_for("its summary", lambda: job.page("summary.json"), 10)
    assert how == "Complete", f"{job.name}: {how}, {job.page('failure.json')}"
    run = FetchedRun.fetch_run(job)
    assert summary["records_lost"] == 0
    assert summary["records_done"] == summary["records_total"] == epochs * RECORDS
    assert find_ledger_problems(run.ledger, epochs) == []
    assert summary["records_repeated"] == run.ledger.repeated_records <= lost * MINIBATCH
    assert summary["records_rolled_back"] == run.ledger.rolled_back_records <= rolled_back
    assert "Done" in run.ledger.phases
    return summary, run


def one_interval(job: ClusterJob) -> int:
    """Records that may go back when the only PS is lost: a checkpoint interval, and what was being leased meanwhile."""
    return (int(job.spec["checkpoint"]["every_steps"]) + math.ceil(TASK * job.spec["workers"]["max"])) * MINIBATCH
