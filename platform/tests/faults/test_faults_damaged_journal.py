"""A bit of the journal is flipped on the disk: the run goes back to its newest checkpoint, by a documented command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.linear_job import LinearJob
from support.job_process import edl

from edl.simulation.counted_steps import CountedStep

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.mark.repetition
def test_a_flipped_bit_costs_what_was_done_since_the_checkpoint(linear: Callable[..., LinearJob]) -> None:
    job = linear(records=16000, ps=2, embedding=True)
    with job.start() as run:
        saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0)
        run.wait_step(saved["step"] + 100)
        run.kill()
        run.wait_gone(5.0)
        run_dir = run.run_dir
    flip_a_bit(run_dir / "journal")

    refused = edl("run", str(job.file), "--resume", cwd=job.file.parent)
    assert refused.returncode == 1
    assert "the journal is damaged" in refused.stderr
    assert "--from-checkpoint" in refused.stderr
    assert f"goes back to checkpoint {saved['cut']}" in refused.stderr

    with job.start("--resume", "--from-checkpoint") as run:
        begun = run.wait_line(lambda line: line["event"] == "run_started" and line.get("resumed"))
        assert f"goes back to checkpoint {saved['cut']}" in begun["changes"][0]
        summary = run.summary(120.0)
        last = max(path.parent for path in run_dir.glob("checkpoints/cut-*/manifest.json"))
        # The journal has no history of the records before the checkpoint; the parameters have each of them once.
        job.check_cut(last, [CountedStep(0, 0, 0, name, 0, len(of.y)) for name, of in job.records.items()])
    assert summary["records_done"] == job.total
    assert 0 < summary["records_rolled_back"] <= 2 * job.interval * job.minibatch
    assert list(run_dir.glob("journal-set-aside-*/*.edlj"))


@pytest.mark.repetition
def test_a_journal_that_lost_its_end_goes_on_from_the_newest_checkpoint(linear: Callable[..., LinearJob]) -> None:
    """What is left of it reads as if it were whole: the checkpoints show that it is not."""
    job = linear(records=16000)
    with job.start() as run:
        saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] >= 3 * job.interval)
        run.wait_step(saved["step"] + 20)
        run.kill()
        run.wait_gone(5.0)
        run_dir = run.run_dir
    segment = max((run_dir / "journal").glob("*.edlj"), key=lambda path: path.stat().st_size)
    os.truncate(segment, segment.stat().st_size // 2)

    refused = edl("run", str(job.file), "--resume", "r1", cwd=job.file.parent)
    assert refused.returncode == 1
    assert "the journal lost its end" in refused.stderr
    assert "goes back to checkpoint" in refused.stderr
    assert refused.stderr.splitlines()[-1].endswith(f"run {job.file} --resume r1 --from-checkpoint")

    with job.start("--resume", "--from-checkpoint") as run:
        summary = run.summary(120.0)
    assert summary["records_done"] == job.total
    assert summary["records_rolled_back"] <= 2 * job.interval * job.minibatch


def flip_a_bit(journal: Path) -> None:
    """In the middle of the segment in which the entries are."""
    segment = max(journal.glob("*.edlj"), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 4
    segment.write_bytes(data)
