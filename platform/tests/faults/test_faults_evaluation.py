"""Evaluation and export are leased tasks: the worker that does them is killed, and another one does them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from faults.job_assertions import done
from faults.linear_job import LinearJob
from support.job_process import START_SECONDS, JobProcess
from support.journal_bytes import read_entries

pytestmark = pytest.mark.faults

Entry = dict[str, Any]


@pytest.mark.repetition
@pytest.mark.parametrize("task", ["evaluation", "export"])
def test_the_worker_that_does_it_is_killed(linear: Callable[..., LinearJob], tmp_path: Path, task: str) -> None:
    data = {"training": [str(tmp_path / "data")], "validation": [str(tmp_path / "data")]}
    job = linear(records=4000, data=data, export={"path": str(tmp_path / "export")})
    with job.start() as run:
        victim = holder(run, task)
        run.send("worker", victim, SIGKILL)
        summary, _ = done(job, run, lost=1)
        entries = list(read_entries(run.run_dir / "journal"))
    assert len(leased(entries, task)) > len(finished(entries, task)), "it was leased again"
    assert covered(finished(entries, "evaluation")) == {source: len(r.y) for source, r in job.records.items()}
    assert summary["metrics"].keys() == {"loss", "error"}
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == ["model.keras", "saved_model"]


def holder(run: JobProcess, task: str) -> int:
    """Index of the worker that was given the task, as soon as the journal says so."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        leases = leased(list(read_entries(run.run_dir / "journal")), task) if run.events("role_started") else {}
        for entry in leases.values():
            return int(entry["worker"].split("-")[1])
        time.sleep(0.005)
    raise AssertionError(f"no {task} was leased")


def leased(entries: list[Entry], task: str) -> dict[int, Entry]:
    return {entry["lease"]: entry for entry in entries if entry["kind"] == "leased" and entry["task"] == task}


def finished(entries: list[Entry], task: str) -> list[Entry]:
    """The leases of a task whose results count."""
    leases = leased(entries, task)
    return [leases[entry["lease"]] for entry in entries if entry["kind"] == "done" and entry["lease"] in leases]


def covered(leases: list[Entry]) -> dict[str, int]:
    """Records by source, each of which must be in one lease only."""
    record_counts: dict[str, int] = {}
    for source, start, end in sorted(ranges(leases)):
        assert record_counts.get(source, 0) == start, f"{source}: {start} follows {record_counts.get(source, 0)}"
        record_counts[source] = end
    return record_counts


def ranges(leases: list[Entry]) -> Iterator[tuple[str, int, int]]:
    for entry in leases:
        _, source, start, end = entry["work"]
        yield source, start, end
