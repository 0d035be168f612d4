"""Statistics of a table by the workers of a job: those of one process, wherever a worker is killed."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.job_folder import JobFolder
from support.job_process import edl
from support.repetition import repetition
from support.text_keys import missing_keys

from edl.data.statistics_files import merge_workers, read_worker_files
from edl.data.table_scan import scan_table

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(240)]

RECORDS = 4000

# Each worker waits in its first range until the other one has one, too. The first that comes to the chosen place with
# its second range is killed there.
PROGRAM = """
    import os, signal, sys, time
    from pathlib import Path
    from edl.sharding import Client, table_statistics

    place, ranges = sys.argv[1], 0

    def die(where):
        if where != place or ranges != 2:
            return
        try:
            os.close(os.open("killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    class Ranges(table_statistics.TableRanges):
        def scan(self, source, start, end):
            global ranges
            ranges += 1
            Path(f"began-{os.getpid()}").touch()
            while len(list(Path().glob("began-*"))) < 2:
                time.sleep(0.05)
            die("scan")
            return super().scan(source, start, end)

    class Reporting(Client):
        def report_done_and_wait(self, shard):
            die("before report")
            accepted = super().report_done_and_wait(shard)
            die("after report")
            return accepted

    table_statistics.TableRanges, table_statistics.Client = Ranges, Reporting
    table_statistics.main(["--top", "50"])
"""


def write_table(path: Path) -> Path:
    random = np.random.default_rng(5)
    numbers = random.normal(size=RECORDS)
    columns = {
        "x": pa.array(numbers, mask=random.random(RECORDS) < 0.1),
        "n": random.integers(0, 50, RECORDS),
        "t": [f"t{number % 30}" for number in range(RECORDS)],
        "l": [[number, number + 1] for number in range(RECORDS)],
    }
    pq.write_table(pa.table(columns), path, row_group_size=700)
    return path


def make_job(folder: Path, place: str, **sections: Any) -> JobFolder:
    """A job with leases of 100 records, across the bounds of row groups."""
    folder.mkdir()
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    job = JobFolder.make(folder, "stats", "", zoo=folder)
    del job.spec["model"]["definition"], job.spec["ps"], job.spec["export"]
    job.spec.update(
        command=["python", "program.py", place],
        data={"training": str(write_table(folder / "table.parquet"))},
        train={"epochs": 1, "minibatch_size": 50, "minibatches_per_task": 2, "shuffle": {"window": 0}},
        workers={"max": 2},
    )
    job.spec.update(sections)
    job.file.write_text(json.dumps(job.spec))
    return job


def check_equal(result: dict[str, Any], local: dict[str, Any]) -> None:
    """Equal, but for the rounding of sums. Lists of 8000 items are more than one level of a sketch of quantiles."""
    rounded = ("mean", "std")
    assert [column["name"] for column in result["columns"]] == [column["name"] for column in local["columns"]]
    for column, wanted in zip(result["columns"], local["columns"], strict=True):
        for name, value in wanted.items():
            assert column[name] == (pytest.approx(value) if name in rounded else value), (column["name"], name)
    assert {name: result[name] for name in result if name != "columns"} == {
        name: local[name] for name in local if name != "columns"
    }


@pytest.mark.parametrize("place", [repetition("scan"), "before report", repetition("after report")])
def test_a_killed_worker_changes_nothing(tmp_path: Path, place: str) -> None:
    job = make_job(tmp_path / "a", place)
    with job.run() as run:
        summary = run.summary(120)
        assert run.wait() == 0
    assert (job.folder / "killed").exists()
    assert summary["workers_lost"] == 1
    assert summary["records_done"] == RECORDS
    (folder,) = job.folder.glob(".edl/local/stats/*/statistics")
    workers = read_worker_files(folder)
    assert len(workers) >= 2
    local = scan_table(job.folder / "table.parquet", {}, 1).to_json(50)
    check_equal(merge_workers(workers).to_json(50), local)
    # What a worker wrote at the end is the same.
    check_equal(json.loads((folder / "statistics.json").read_bytes()), local)
    printed = edl("data", "stats", str(folder.parent), "--merge", "--json", "--top", "50", cwd=tmp_path)
    check_equal(json.loads(printed.stdout), local)


@pytest.mark.repetition
def test_the_job_of_the_page_runs(tmp_path: Path) -> None:
    (tmp_path / "trips").mkdir()
    path = write_table(tmp_path / "trips" / "table.parquet")
    text = (Path(__file__).parents[3] / "docs" / "bring-your-own-data.md").read_text(encoding="utf-8")
    section = re.search(r"<!-- test: statistics by a job -->\n```yaml\n(.*?)```", text, re.S)
    assert section is not None
    # A minibatch is not larger than the table.
    job = section[1].replace("/data/trips", str(path.parent)).replace("65536", "256").replace("max: 4", "max: 2")
    (tmp_path / "job.yaml").write_text(job)
    assert edl("run", "job.yaml", cwd=tmp_path, timeout=120).returncode == 0
    (result,) = tmp_path.glob(".edl/local/trip-stats/*/statistics/statistics.json")
    check_equal(json.loads(result.read_bytes()), scan_table(path, {}, 1).to_json(1000))


def test_the_command_runs_such_a_job(tmp_path: Path) -> None:
    path = write_table(tmp_path / "table.parquet")
    done = edl(
        "data", "stats", "table.parquet", "--workers", "2", "--json", "--html", "p.html", cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    check_equal(json.loads(done.stdout), scan_table(path, {}, 1).to_json(1000))
    assert (tmp_path / "p.html").read_text().count("<svg") == 3
    assert not (tmp_path / ".edl").exists()


@pytest.mark.repetition
def test_the_command_shares_rows_of_csv_and_starts_again_for_a_type_that_is_too_narrow(tmp_path: Path) -> None:
    """Every other block of 256 rows is sampled; the odd cell is in none of these."""
    rows = [f"{number % 50},t{number % 30}" for number in range(200 * 256)]
    rows[101 * 256] = "none,t1"
    (tmp_path / "table.csv").write_text("\n".join(["n,t", *rows]))
    done = edl("data", "stats", "table.csv", "--workers", "2", "--json", cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    check_equal(json.loads(done.stdout), scan_table(tmp_path / "table.csv", {}, 1).to_json(1000))
    assert "n (string). The workers start again" in done.stderr


@pytest.mark.repetition
def test_the_command_shares_json_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"n": number % 50, "t": f"t{number % 30}", "x": 1}) for number in range(3000)]
    (tmp_path / "table.jsonl").write_text("\n".join(lines))
    chosen = ("--columns", "n,t")
    done = edl("data", "stats", "table.jsonl", "--workers", "2", *chosen, "--json", cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    local = scan_table(tmp_path / "table.jsonl", {"columns": ["n", "t"]}, 1)
    check_equal(json.loads(done.stdout), local.to_json(1000))


@pytest.mark.repetition
def test_a_job_whose_ranges_are_not_those_of_the_files_is_refused(tmp_path: Path) -> None:
    train = {"epochs": 2, "minibatch_size": 50, "shuffle": {"window": 0}}
    job = make_job(tmp_path / "a", "nowhere", train=train, workers={"max": 1})
    with job.run() as run:
        assert run.wait() != 0
        assert not missing_keys(run.errors, "train.epochs", "found 2", "set it to 1")
