"""What a master runs beside its job: ``master.prepare`` before records are counted, ``master.finish`` at the end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from master.in_process_job import RECORDS, InProcessJob, in_process_job

from edl.api.errors import BadInputError
from edl.api.status import Status
from edl.jobfile import section_type
from edl.jobfile.loader import dump_job_spec
from edl.master.backend import LocalMasterBackend
from edl.master.status_publication import PreparationReport
from edl.reporting.event_text import status_headline
from edl.storage.durable_files import read_json
from edl.storage.run_directory import write_run_spec
from edl.storage.run_resumption import check_spec_changes

PREPARE = """
import json, os, pathlib
run = pathlib.Path(os.environ["EDL_RUN_DIR"])
with open(run / "prepared.log", "a") as log:
    log.write("once\\n")
spec = json.loads((run / "spec.json").read_text())
rows = run / "rows.csv"
rows.write_text("x,y\\n" + "1,1\\n" * 6)
spec["data"]["training"] = [str(rows)]
(run / "spec.json").write_text(json.dumps(spec))
"""
FINISH = """
import json, os, pathlib, sys
run = pathlib.Path(os.environ["EDL_RUN_DIR"])
with open(run / "finished.log", "a") as log:
    log.write(json.dumps(json.load(sys.stdin)["records_done"]) + "\\n")
"""


def run_with(job: InProcessJob) -> int:
    write_run_spec(job.run, dump_job_spec(job.spec))
    return job.run_master()


def commands(**programs: str) -> dict[str, Any]:
    """The section of a master with these programs."""
    return {"master": {name: ["python", "-c", f"exec({program!r})"] for name, program in programs.items()}}


def test_a_job_trains_what_its_preparation_wrote_and_finishes_once() -> None:
    with in_process_job(**commands(prepare=PREPARE, finish=FINISH)) as job:
        assert run_with(job) == 0
        assert job.summary()["records_done"] == 6
        assert job.run_master() == 0
        assert (job.run.path / "prepared.log").read_text() == "once\n"
        assert (job.run.path / "finished.log").read_text() == "6\n"


def test_a_preparation_that_fails_is_why_the_job_failed() -> None:
    program = "import sys; print('edl: no such table: orders'); sys.exit(2)"
    with in_process_job(**commands(prepare=program)) as job:
        assert run_with(job) == 0
        assert read_json(job.run.status)["phase"] == "Failed"
        assert "no such table: orders" in read_json(job.run.status)["reason"]
        assert job.failure()["kind"] == "input"


def test_a_master_after_the_one_whose_preparation_failed_keeps_the_reason() -> None:
    """Kubernetes starts a container again before the Job controller has seen that its Job has failed."""
    program = "import sys; open('prepared.log', 'a').write('once'); print('no such table: orders'); sys.exit(2)"
    with in_process_job(**commands(prepare=program)) as job:
        assert run_with(job) == 0
        assert job.run_master() == 0
        assert (job.run.path / "prepared.log").read_text() == "once"
        assert "no such table: orders" in read_json(job.run.status)["reason"]


def test_the_status_has_the_last_line_of_a_preparation_while_it_runs() -> None:
    program = (
        "import os, pathlib, time\n"
        "status = pathlib.Path(os.environ['EDL_RUN_DIR'], 'status.json')\n"
        "print('reading the query: 12,000 rows\\n', flush=True)\n"
        "for _ in range(3000):\n"
        "    if status.exists() and '12,000 rows' in status.read_text(): break\n"
        "    time.sleep(0.01)\n"
        "(status.parent / 'seen.json').write_text(status.read_text())\n"
    )
    with in_process_job(**commands(prepare=program)) as job:
        assert run_with(job) == 0
        status = section_type.from_json(Status, read_json(job.run.path / "seen.json"), "seen.json")
        assert (status.phase, status.reason) == ("Starting", "master.prepare: reading the query: 12,000 rows")
        assert status_headline(status) == "starting: master.prepare: reading the query: 12,000 rows"
        assert read_json(job.run.status)["phase"] == "Done"


def test_a_job_has_not_ended_while_its_finish_runs_and_the_status_has_what_it_says() -> None:
    program = """
import json, os, pathlib, shutil, time
run = pathlib.Path(os.environ["EDL_RUN_DIR"])
print("training a linear model", flush=True)
for _ in range(600):
    if (run / "published").exists() and "linear" in json.loads((run / "status.json").read_text())["reason"]:
        break
    time.sleep(0.05)
shutil.copy(run / "status.json", run / "seen.json")
"""
    with in_process_job(**commands(finish=program)) as job:
        # Without news, users would take the master for a silent one.
        def publish(data: dict[str, str]) -> None:
            if "training a linear model" in data["status.json"]:
                (job.run.path / "published").touch()

        publisher: Any = SimpleNamespace(publish=publish)
        write_run_spec(job.run, dump_job_spec(job.spec))
        assert job.run_master(LocalMasterBackend(job.cluster.connect(), status_publisher=publisher)) == 0
        assert (job.run.path / "published").exists()
        status = section_type.from_json(Status, read_json(job.run.path / "seen.json"), "seen.json")
        assert (status.phase, status.reason) == ("Exporting", "master.finish: training a linear model")
        assert status.records_done == RECORDS
        assert status_headline(status).startswith("exporting: 40 of 40 records (100 %)")
        assert status_headline(status).endswith("master.finish: training a linear model")
        assert read_json(job.run.status)["phase"] == "Done"


def test_what_a_preparation_says_is_published_for_users_without_a_route_to_the_master() -> None:
    published = list[dict[str, str]]()
    with in_process_job(**commands(prepare=PREPARE)) as job:
        report = PreparationReport(job.spec, job.run, SimpleNamespace(publish=published.append))  # type: ignore[arg-type]
        report.report_line("")
        report.report_line("sooner than a second after it")
    (data,) = published
    assert json.loads(data["status.json"])["reason"] == "master.prepare runs"


def test_a_command_that_does_not_exist_is_why_the_job_failed() -> None:
    with in_process_job(master={"prepare": ["/no/such/program"]}) as job:
        assert run_with(job) == 0
        assert "/no/such/program" in read_json(job.run.status)["reason"]


def test_a_job_whose_finish_fails_has_failed_for_every_later_master(tmp_path: Path) -> None:
    program = "import sys; print('no right to write'); sys.exit(1)"
    with in_process_job(**commands(finish=program)) as job:
        assert run_with(job) == 0
        assert job.summary()["records_done"] == RECORDS
        for _ in range(2):
            status = read_json(job.run.status)
            assert status["phase"] == "Failed"
            assert "no right to write" in status["reason"]
            assert [event["phase"] for event in job.events("job_ended")] == ["Failed"]
            assert job.run_master() == 0


def test_a_master_that_must_go_while_it_finishes_leaves_that_to_the_next_one() -> None:
    marker = "import os, pathlib, time; p = pathlib.Path(os.environ['EDL_RUN_DIR'], 'begun'); new = not p.exists(); "
    program = marker + "p.touch(); new and time.sleep(600)"
    with in_process_job(**commands(finish=program)) as job:
        write_run_spec(job.run, dump_job_spec(job.spec))
        stopped = _stop_when((job.run.path / "begun"), job)
        assert job.run_master() == 143
        stopped.join()
        assert job.events("job_ended") == []
        assert job.run_master() == 0
        assert [event["phase"] for event in job.events("job_ended")] == ["Done"]


def test_a_master_that_must_go_while_it_prepares_leaves_that_to_the_next_one() -> None:
    marker = "import os, pathlib, time; p = pathlib.Path(os.environ['EDL_RUN_DIR'], 'begun'); new = not p.exists(); "
    program = marker + "p.touch(); new and time.sleep(600)"
    with in_process_job(**commands(prepare=program)) as job:
        write_run_spec(job.run, dump_job_spec(job.spec))
        stopped = _stop_when((job.run.path / "begun"), job)
        assert job.run_master() == 143
        stopped.join()
        assert job.run_master() == 0
        assert json.loads((job.run.path / "summary.json").read_text())["records_done"] == RECORDS


def _stop_when(file: Path, job: InProcessJob) -> Any:
    """Tell the master to go once a file is there."""
    import threading

    def watch() -> None:
        while not file.exists():
            threading.Event().wait(0.01)
        job.stopping.set()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_run_whose_command_wrote_its_data_is_not_resumed() -> None:
    with in_process_job(**commands(prepare=PREPARE)) as job, pytest.raises(BadInputError, match=r"master\.prepare"):
        check_spec_changes("r1", job.spec, job.spec)
