"""Jobs whose workers run a program of the user's: every record is done exactly once, whoever is killed."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
from support.job_folder import JobFolder
from support.job_process import JobProcess
from support.repetition import repetition
from support.text_keys import missing_keys

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(240)]

RECORDS, MINIBATCH = 600, 10
LEASE = 4 * MINIBATCH

PROGRAM = """
    import os, sys, time
    from edl.sharding import Client, WorkerLeaving

    def train(batch):
        if not os.path.exists("hurry"):
            time.sleep(0.05)

    with Client.from_env() as client, open(f"done-{client.uid}", "a", buffering=1) as done:
        try:
            for batch in client.batches():
                train(batch)
                client.report_loss(1.0 / (1 + batch.epoch))
                done.write("".join(f"{batch.epoch} {record.decode()}\\n" for record in batch))
        except WorkerLeaving:
            done.write("left\\n")
            raise
"""


def make_job(folder: Path, program: str = PROGRAM, *, workers: int = 2, **sections: Any) -> JobFolder:
    """A job of numbered lines; the program runs in ``folder``."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(textwrap.dedent(program))
    (folder / "lines.txt").write_text("".join(f"{number}\n" for number in range(RECORDS)))
    job = JobFolder.make(folder, "program", "", zoo=folder)
    del job.spec["model"]["definition"], job.spec["ps"], job.spec["export"]
    job.spec.update(
        command=["python", "program.py"],
        data={"training": str(folder / "lines.txt")},
        train={"epochs": 2, "minibatch_size": MINIBATCH, "minibatches_per_task": 4},
        workers={"max": workers},
    )
    job.spec.update(sections)
    job.file.write_text(json.dumps(job.spec))
    return job


def hurry(job: JobFolder) -> None:
    (job.folder / "hurry").touch()


def done_records(job: JobFolder) -> Counter[str]:
    """How often the program finished each record of each epoch."""
    lines = [line for file in job.folder.glob("done-*") for line in file.read_text().splitlines()]
    return Counter(line for line in lines if line != "left")


def check_end(job: JobFolder, run: JobProcess, *, killed: int = 0, left: int = 0) -> None:
    """Every record is done once in each epoch; again only what the killed worker 0 had done last, and not reported."""
    hurry(job)
    summary = run.summary(120)
    assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == 2 * RECORDS
    assert summary["records_lost"] == 0
    assert summary["workers_lost"] == killed + left
    assert summary["updates_rolled_back"] == 0
    counts = done_records(job)
    assert counts.keys() == {f"{epoch} {number}" for epoch in range(2) for number in range(RECORDS)}
    repeated = counts - Counter(dict.fromkeys(counts, 1))
    by_killed = [line for file in job.folder.glob("done-worker-0-*") for line in file.read_text().splitlines()]
    # How much that is depends on the machine. The progress of a range may be reported before the end of the one before.
    last = by_killed[-(repeated.total() + LEASE) :] if killed else []
    assert repeated <= Counter(last)


def test_a_program_does_every_record_once(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a")
    with job.run() as run:
        step = 0
        while sum(file.stat().st_size > 0 for file in job.folder.glob("done-*")) < 2:
            step += 2
            run.wait_step(step)
        hurry(job)
        check_end(job, run)
        assert run.status()["loss"] == pytest.approx(0.5)
    assert sum(1 for _ in job.folder.glob("done-*")) == 2
    order = next(iter(job.folder.glob("done-*"))).read_text().splitlines()
    assert order != sorted(order, key=lambda line: tuple(map(int, line.split()))), "records are shuffled"


def test_a_killed_worker_s_records_go_to_others(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a")
    with job.run() as run:
        run.wait_step(10)
        run.send("worker", 0, SIGKILL)
        run.wait_event("role_started", role="worker", index=2)
        check_end(job, run, killed=1)


def test_a_worker_that_is_told_to_go_finishes_its_minibatch_and_repeats_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a")
    with job.run() as run:
        # On a busy machine worker 0 takes the first steps alone: the other one may have no minibatch to finish yet.
        step = 10
        run.wait_step(step)
        while not any(file.stat().st_size for file in job.folder.glob("done-worker-1-*")):
            step += 2
            run.wait_step(step)
        run.send("worker", 1, SIGTERM)
        run.wait_event("role_ended", role="worker", index=1)
        check_end(job, run, left=1)
    assert [file for file in job.folder.glob("done-*") if file.read_text().endswith("left\n")]


def test_programs_go_on_while_their_master_is_replaced(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a")
    with job.run() as run:
        run.wait_step(10)
        run.send("master", 0, SIGKILL)
        check_end(job, run)
        assert [line["role"] for line in run.events("role_started")].count("worker") == 2


@pytest.mark.repetition
def test_an_interrupted_run_goes_on_with_the_records_that_are_left(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a")
    with job.run() as run:
        run.wait_step(10)
        run.interrupt()
        assert run.wait() == 130
        before = run.status()["records_done"]
    assert 0 < before < RECORDS
    with job.run("--resume", "r1") as run:
        hurry(job)
        summary = run.summary(120)
        assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == 2 * RECORDS
    # Workers went on until they were told to go. Of the ranges that they held, the part after the end is done again.
    counts = done_records(job)
    assert len(counts) == 2 * RECORDS
    assert counts.total() - len(counts) <= 2 * 2 * 4 * MINIBATCH


SHARDS = """
    from edl.sharding import Client

    numbers = open("lines.txt").read().split()
    with Client.from_env() as client, open(f"done-{client.uid}", "a", buffering=1) as done:
        while (shard := client.fetch_shard()) is not None:
            assert len(shard) <= 40
            for start in range(shard.start, shard.end, 7):
                end = min(start + 7, shard.end)
                done.write("".join(f"{shard.epoch} {number}\\n" for number in numbers[start:end]))
                client.report_done(shard, end - shard.start)
"""


@pytest.mark.repetition
def test_a_program_may_read_by_itself_what_it_has_leased(tmp_path: Path) -> None:
    train = {"epochs": 2, "minibatch_size": MINIBATCH, "minibatches_per_task": 4, "shuffle": {"window": 0}}
    job = make_job(tmp_path / "a", SHARDS, train=train)
    with job.run() as run:
        check_end(job, run)


FAILING = """
    from edl.sharding import Client

    with Client.from_env() as client:
        for batch in client.batches():
            raise ZeroDivisionError(f"no way at {batch.start}")
"""


def test_a_program_that_fails_ends_the_job_with_its_error(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a", FAILING, workers=1)
    with job.run() as run:
        assert run.wait() == 1
        assert not missing_keys(run.errors, "ZeroDivisionError", "no way at 0", "program.py", "line 6")


@pytest.mark.repetition
def test_a_program_that_never_asks_for_records_ends_the_job(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a", "print('nothing to do')\n", workers=1)
    with job.run() as run:
        assert run.wait() == 1
        assert not missing_keys(run.errors, "exited with code 0 before its work was done")


@pytest.mark.repetition
def test_a_program_may_end_the_job_early(tmp_path: Path) -> None:
    program = PROGRAM.replace("client.report_loss(", "client.stop_training(); client.report_loss(")
    job = make_job(tmp_path / "a", program, workers=1)
    with job.run() as run:
        summary = run.summary(120)
    assert 0 < summary["records_done"] < RECORDS


@pytest.mark.repetition
def test_a_program_has_time_for_what_comes_after_its_last_record(tmp_path: Path) -> None:
    after = "\n    time.sleep(4)\n    open('model.bin', 'w').close()\n"
    job = make_job(tmp_path / "a", PROGRAM + after, workers=1)
    hurry(job)
    with job.run() as run:
        run.summary(120)
        assert run.wait() == 0
    assert (job.folder / "model.bin").exists()


@pytest.mark.repetition
def test_a_program_that_fails_before_it_asks_for_records_ends_the_job_with_the_end_of_its_log(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a", "import nothing_of_this_name\n", workers=1)
    with job.run() as run:
        assert run.wait() == 1
        assert not missing_keys(run.errors, "worker", "log", "No module named 'nothing_of_this_name'")


FAILS_AT_THE_END = """
    if os.environ["EDL_INDEX"] == "0":
        raise OSError(28, "no space left for the model")
"""


@pytest.mark.repetition
def test_a_program_that_fails_after_its_last_record_fails_the_job_whose_records_are_all_done(tmp_path: Path) -> None:
    job = make_job(tmp_path / "a", textwrap.dedent(PROGRAM) + textwrap.dedent(FAILS_AT_THE_END))
    hurry(job)
    with job.run() as run:
        assert run.wait() == 1
        status, (ended,) = run.status(), run.events("job_ended")
    summary = ended["summary"]
    assert summary["records_done"] == summary["records_total"] == 2 * RECORDS
    assert status["phase"] == ended["phase"] == "Failed"
    for text in (status["reason"], ended["reason"], run.errors):
        assert not missing_keys(text, "worker-0", "exit code 1", "after the last record", "all records are done")
    assert not missing_keys(run.errors, "no space left for the model")
    with job.run("--resume", "r1") as run:
        assert run.wait() == 2
    assert not missing_keys(run.errors, "has done all of its records", "nothing is left to resume")


WAITS_AT_THE_END = """
    open(f"ending-{client.index}", "w").close()
    while not os.path.exists("may-end"):
        time.sleep(0.02)
    sys.exit(int(open("may-end").read()))
"""


@pytest.mark.parametrize("code", [repetition(0), 3])
@pytest.mark.repetition
def test_a_master_that_is_replaced_after_the_last_record_waits_for_the_programs_too(tmp_path: Path, code: int) -> None:
    job = make_job(tmp_path / "a", textwrap.dedent(PROGRAM) + textwrap.dedent(WAITS_AT_THE_END), workers=1)
    hurry(job)
    with job.run() as run:
        run.wait_status(lambda status: status["phase"] == "Done" and (job.folder / "ending-0").exists())
        first = run.pids("master")[0]
        run.send("master", 0, SIGKILL)
        run.wait_line(lambda line: line.get("role") == "master" and line["pid"] != first)
        (job.folder / "may-end").write_text(str(code))
        assert run.wait() == (1 if code else 0)
        (ended,) = run.events("job_ended")
    assert ended["phase"] == ("Failed" if code else "Done")
    assert ended["summary"]["records_done"] == 2 * RECORDS
    if code:
        assert not missing_keys(ended["reason"], "worker-0", "exit code 3", "after the last record")
