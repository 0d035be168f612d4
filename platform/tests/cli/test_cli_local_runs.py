"""The commands about jobs, for runs of this machine: with a cluster, without one, and both."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cli.cli_harness import SUMMARY, CliHarness, cli_with_job
from support.in_memory_cluster import NOW
from support.text_keys import missing_keys

from edl.api.exit_codes import TIMED_OUT_EXIT
from edl.cluster.kubernetes.api_errors import NoKubeconfigError
from edl.cluster.status_port import DesiredState
from edl.ops import job_view
from edl.storage.run_directory import JobLock

WORKER = {"index": 0, "pid": 7, "state": "training", "samples_per_second": 1234.5}
STATUS = {
    "job": "digits", "phase": "Training", "records_total": 30, "records_done": 12, "step": 3, "loss": 0.5,
    "samples_per_second": 1234.5, "seconds_left": 485.0, "workers": [WORKER], "workers_wanted": 1,
}  # fmt: skip
Make = Callable[..., Path]


@pytest.fixture
def make_local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a run of this machine; ``alive``: this process runs it."""
    monkeypatch.chdir(tmp_path)

    def make(run: str = "r1", *, job: str = "digits", phase: str = "Training", alive: bool = False) -> Path:
        folder = tmp_path / ".edl" / "local" / job / run
        (folder / "logs").mkdir(parents=True)
        known = {"run": run, "run_dir": str(folder), "updated": NOW - 2}
        (folder / "status.json").write_text(json.dumps({**known, **STATUS, "job": job, "phase": phase}))
        events = [
            {"event": "run_started", "time": NOW - 90, "run": run, "run_dir": str(folder)},
            {"event": "evaluation_ended", "time": NOW - 60, "step": 1, "metrics": {"accuracy": 0.5}},
            {"event": "evaluation_ended", "time": NOW - 30, "step": 2, "metrics": {"accuracy": 0.75}},
        ]
        if phase == "Done":
            events.append({"event": "job_ended", "time": NOW - 2, "phase": "Done", "reason": "", "summary": SUMMARY})
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        for name in ("master-0", "worker-0", "worker-1"):
            (folder / "logs" / f"{name}.log").write_text(f"{name} one\n{name} two\n")
        if alive:
            locks.enter_context(JobLock(folder.parent, run))
        return folder

    with ExitStack() as locks:
        yield make


@pytest.fixture
def cli_without_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    """No kubeconfig."""
    cli = cli_with_job(monkeypatch, capsys, with_job=False)

    def none(*_: object, **__: object) -> object:
        raise NoKubeconfigError("There is no kubeconfig", hint="Set KUBECONFIG.")

    monkeypatch.setattr("edl.cluster.kubernetes.kubeconfig.make_client", none)
    return cli


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    """A cluster with the job mnist."""
    return cli_with_job(monkeypatch, capsys)


def test_without_a_kubeconfig_only_local_runs_are_listed(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    make_local_run("r1", phase="Done")
    make_local_run("r2", alive=True)
    make_local_run(job="iris")
    assert cli_without_cluster.edl("list") == 0
    assert [line.split() for line in cli_without_cluster.out.splitlines()] == [
        ["WHERE", "JOB", "PHASE", "PROGRESS", "WORKERS", "SAMPLES/S", "AGE"],
        ["this", "machine", "digits/r1", "Done", "40", "%", "-", "-", "1m"],
        ["this", "machine", "digits/r2", "Training", "40", "%", "1/1", "1,234", "1m"],
        ["this", "machine", "iris/r1", "Interrupted", "40", "%", "-", "-", "1m"],
    ]


def test_a_prediction_is_marked(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    (make_local_run("r1", phase="Done") / "predict.json").write_text("{}")
    make_local_run("r2", phase="Done")
    assert cli_without_cluster.edl("list") == 0
    assert ["prediction" in line for line in cli_without_cluster.out.splitlines()] == [False, True, False]
    for run, marked in (("r1", True), ("r2", False)):
        assert cli_without_cluster.edl("status", f"digits/{run}") == 0
        assert ("prediction" in cli_without_cluster.out.splitlines()[0]) == marked


@pytest.mark.parametrize("phase", ["Done", "Interrupted"])
def test_logs_that_a_run_does_not_have_are_not_offered(
    cli_without_cluster: CliHarness, make_local_run: Make, phase: str
) -> None:
    folder = make_local_run(phase=phase)
    assert cli_without_cluster.edl("status", "digits") == 0
    assert not missing_keys(cli_without_cluster.out.splitlines()[-1], "edl logs digits")
    for log in (folder / "logs").iterdir():
        log.unlink()
    assert cli_without_cluster.edl("status", "digits") == 0
    assert not missing_keys(cli_without_cluster.out.splitlines()[-1], "digits/r1" if phase == "Done" else "--resume r1")
    assert "edl logs" not in cli_without_cluster.out


def test_both_are_listed_and_marked(cli: CliHarness, make_local_run: Make) -> None:
    make_local_run("r2", alive=True)
    assert cli.edl("list") == 0
    rows = [line.split() for line in cli.out.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["cluster", "mnist"], ["this", "machine"]]
    assert cli.edl("list", "--json") == 0
    assert [(job["job"], job["local"]) for job in json.loads(cli.out)] == [("mnist", False), ("digits", True)]


def test_options_choose_one_of_them(cli: CliHarness, make_local_run: Make) -> None:
    make_local_run("r2")
    assert cli.edl("list", "--local") == 0
    assert "mnist" not in cli.out
    assert "digits/r2" in cli.out
    assert cli.edl("list", "-n", "team") == 0
    assert "digits" not in cli.out
    assert cli.edl("list", "--local", "-n", "team") == 2
    assert not missing_keys(cli.err, "--local")


def test_status_has_what_a_job_on_a_cluster_has(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    folder = make_local_run("r2", alive=True)
    moments = [
        {"time": NOW - 80 + 5 * at, "workers": 1, "records_done": at, "loss": 1.0, "step": at} for at in range(9)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(moment) + "\n" for moment in moments))
    assert cli_without_cluster.edl("status", "digits") == 0
    assert not missing_keys(
        cli_without_cluster.out.splitlines()[0], "digits", "Training", "run r2", "this machine", "1m ago"
    )
    assert not missing_keys(cli_without_cluster.out, "40 %", "12 of 30 records", "step 1", "accuracy 0.5")
    assert ["worker-0", "training", "1,234", "7"] in [line.split() for line in cli_without_cluster.out.splitlines()]
    assert "█" in cli_without_cluster.out.split("workers\n")[1], "the workers over time"
    assert cli_without_cluster.out.endswith(": edl status digits --watch\n")
    assert cli_without_cluster.edl("status", "digits", "--json") == 0
    assert json.loads(cli_without_cluster.out)["phase"] == "Training"


def test_a_run_whose_processes_are_gone_was_interrupted(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    folder = make_local_run("r2")
    stale = json.loads((folder / "status.json").read_text()) | {"reason": "it waits for a worker"}
    (folder / "status.json").write_text(json.dumps(stale))
    (folder.parent / "LOCK").write_text(f"process 4194303 on {socket.gethostname()}, run r2, started long ago\n")
    assert cli_without_cluster.edl("status", "digits/r2", "--watch") == 0, "it ends at once"
    assert cli_without_cluster.edl("status", "digits/r2") == 0
    assert "Interrupted" in cli_without_cluster.out
    assert not missing_keys(cli_without_cluster.out, "processes")
    assert not re.search("left|samples/s|waits for a worker", cli_without_cluster.out), (
        "what it was to do is not done any more"
    )
    assert "edl run JOB.yaml --resume r2" in cli_without_cluster.out
    assert cli_without_cluster.edl("status", "digits/r2", "--json") == 0
    status = json.loads(cli_without_cluster.out)["status"]
    assert (status["seconds_left"], status["samples_per_second"]) == (None, 0.0)


def test_events_and_logs_are_those_of_the_files(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    make_local_run("r1", phase="Done")
    assert cli_without_cluster.edl("events", "digits") == 0
    assert [line.split()[2] for line in cli_without_cluster.out.splitlines()] == ["job"] * 4
    assert cli_without_cluster.edl("logs", "digits") == 0
    assert cli_without_cluster.out == "master-0 one\nmaster-0 two\n"
    assert cli_without_cluster.edl("logs", "digits/r1", "--role", "worker", "--tail", "1", "-f") == 0
    assert cli_without_cluster.out == "[worker-0] worker-0 two\n[worker-1] worker-1 two\n"
    assert cli_without_cluster.edl("logs", "digits", "--role", "ps") == 2
    assert not missing_keys(cli_without_cluster.err, "master-0, worker-0, worker-1")


def test_a_job_on_the_cluster_comes_first(cli: CliHarness, make_local_run: Make) -> None:
    make_local_run(job="mnist")
    make_local_run(job="digits")
    assert cli.edl("status", "mnist") == 0
    assert "namespace team" in cli.out
    assert cli.edl("status", "mnist", "--local") == 0
    assert "on this machine" in cli.out
    assert cli.edl("status", "digits") == 0
    assert "on this machine" in cli.out, "the cluster has none of this name"
    assert cli.edl("status", "digits", "-n", "team") == 2


def test_what_is_nowhere_is_named(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    make_local_run("r1")
    assert cli_without_cluster.edl("status", "digits", "--local") == 0
    assert cli_without_cluster.edl("status", "digits/r7", "--local") == 2
    assert not missing_keys(cli_without_cluster.err, "digits/r7", "digits/r1")
    assert cli_without_cluster.edl("status", "other", "--local") == 2
    assert cli_without_cluster.edl("logs", "../digits", "--local") == 2


# ------------------------------------------------------------------------------------------------ edl clean


def test_clean_keeps_the_newest_ended_run_and_those_that_go_on(
    cli_without_cluster: CliHarness, make_local_run: Make
) -> None:
    runs = [
        make_local_run("r1", phase="Done"),
        make_local_run("r2", phase="Failed"),
        make_local_run("r3", phase="Done"),
        make_local_run("r4", alive=True),
    ]
    iris = make_local_run(job="iris", phase="Done")
    assert cli_without_cluster.edl("clean") == 2, "nobody can be asked"
    assert cli_without_cluster.edl("clean", "--yes") == 0
    assert [run.exists() for run in runs] == [False, False, True, True]
    assert iris.exists()
    assert "digits/r1" in cli_without_cluster.out
    assert not missing_keys(cli_without_cluster.out.splitlines()[-1], "2 runs")
    assert cli_without_cluster.edl("clean", "digits", "--keep", "0", "--yes") == 0
    assert [run.exists() for run in runs] == [False, False, False, True]
    assert cli_without_cluster.edl("clean", "digits", "--keep", "0", "--yes") == 0
    assert not missing_keys(cli_without_cluster.out, "digits", ".edl")


def test_what_status_says_of_a_runs_removal_removes_it(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    done = make_local_run("r1", phase="Done")
    assert cli_without_cluster.edl("status", "digits") == 0
    command = re.search("`edl (clean [^`]*)`", cli_without_cluster.out)
    assert command is not None
    assert cli_without_cluster.edl(*command[1].split(), "--yes") == 0
    assert not done.exists()


@pytest.mark.parametrize("job", [["digits"], []], ids=["a job", "all jobs"])
def test_clean_says_how_the_newest_run_goes_too(
    cli_without_cluster: CliHarness, make_local_run: Make, job: list[str]
) -> None:
    done = make_local_run("r1", phase="Done")
    assert cli_without_cluster.edl("clean", *job, "--yes") == 0
    command = re.search("newest.*`edl (clean [^`]*)`", cli_without_cluster.out)
    assert command is not None
    assert cli_without_cluster.edl("clean", *job, "--keep", "2") == 0
    assert not missing_keys(cli_without_cluster.out, "newest 2")
    assert cli_without_cluster.edl(*command[1].split(), "--yes") == 0
    assert not done.exists()


@pytest.mark.parametrize(
    ("file", "model"), [("export/a.keras", "export"), ("checkpoints/cut-1/manifest.json", "checkpoint")]
)
def test_clean_keeps_the_newest_model_under_runs_that_have_none(
    cli_without_cluster: CliHarness, make_local_run: Make, file: str, model: str
) -> None:
    """Two failures and a prediction came after the run that was trained."""
    runs = [make_local_run(f"r{number}", phase="Done") for number in (1, 2)]
    for run in runs:
        (run / file).parent.mkdir(parents=True)
        (run / file).touch()
    later = [make_local_run("r3", phase="Failed"), make_local_run("r4", phase="Done")]
    assert cli_without_cluster.edl("clean", "--yes") == 0
    assert [run.exists() for run in (*runs, *later)] == [False, True, False, True]
    assert [line.split()[:3] for line in cli_without_cluster.out.splitlines()[1:3]] == [
        ["digits/r1", "Done", model],
        ["digits/r3", "Failed", "-"],
    ]


def test_clean_of_one_run(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    done, alive = make_local_run("r1", phase="Done"), make_local_run("r2", alive=True)
    assert cli_without_cluster.edl("clean", "digits/r2", "--yes") == 2
    assert "still active" in cli_without_cluster.err
    assert cli_without_cluster.edl("clean", "digits/r1", "--yes") == 0
    assert (done.exists(), alive.exists()) == (False, True)
    assert cli_without_cluster.edl("clean", "digits/r1", "--yes") == 2


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"event": "run_started", "time": "x"}', b'{"event": "run_started", "time": 1e999}']
)
def test_a_damaged_run_does_not_hide_the_others(
    cli_without_cluster: CliHarness, make_local_run: Make, line: bytes
) -> None:
    bad, _ = make_local_run("r1"), make_local_run("r2")
    for name in ("status.json", "summary.json", "events.jsonl", "history.jsonl", "spec.json"):
        (bad / name).write_bytes(line + b"\n")
    assert cli_without_cluster.edl("list") == 0
    assert "digits/r2" in cli_without_cluster.out


def test_why_a_run_was_interrupted_and_where_it_goes_on(cli_without_cluster: CliHarness, make_local_run: Make) -> None:
    make_local_run()
    assert cli_without_cluster.edl("why", "digits") == 0
    text, remedy = cli_without_cluster.out.splitlines()
    assert not missing_keys(text, "digits", "interrupted", "killed")
    assert not missing_keys(remedy, "->", "no checkpoint", "edl run JOB.yaml --resume r1")


def test_why_a_run_failed_with_what_its_role_printed(cli: CliHarness, make_local_run: Make) -> None:
    folder = make_local_run("r1", phase="Failed")
    failure = {"kind": "input", "reason": "feed() raised KeyError: 'x'", "detail": "a traceback"}
    (folder / "failure.json").write_text(json.dumps(failure))
    make_local_run("r2", phase="Done")
    assert cli.edl("why", "digits/r1", "--local") == 0
    text, remedy, detail = cli.out.splitlines()
    assert not missing_keys(text, "failed", failure["reason"])
    assert not missing_keys(remedy, "--resume r1")
    assert detail == "     a traceback"
    assert cli.edl("why", "digits/r1", "--local", "--json") == 0
    assert [finding["said"] for finding in json.loads(cli.out)] == ["a traceback"]
    assert cli.edl("why", "digits", "--local") == 0
    assert not missing_keys(cli.out, "digits", "Done", "no problem")
    assert cli.edl("why", "digits", "--local", "-n", "team") == 2


def test_why_a_prediction_ended_offers_no_resumption(cli: CliHarness, make_local_run: Make) -> None:
    (make_local_run(phase="Failed") / "predict.json").write_text("{}")
    assert cli.edl("why", "digits", "--local") == 0
    assert not missing_keys(cli.out, "edl predict")
    assert "--resume" not in cli.out


def test_why_a_run_waits(cli: CliHarness, make_local_run: Make) -> None:
    folder = make_local_run(alive=True)
    assert cli.edl("why", "digits", "--local") == 0
    assert len(cli.out.splitlines()) == 1
    assert not missing_keys(cli.out, "digits", "Training", "nothing blocks it")
    status = json.loads((folder / "status.json").read_text())
    waits = {**WORKER, "index": 1, "state": "waiting", "reason": "it builds its model"}
    status |= {"starved": True, "workers_min": 2, "workers": [WORKER, waits]}
    (folder / "status.json").write_text(json.dumps(status))
    assert cli.edl("why", "digits", "--local") == 0
    starved, remedy, worker, logs = cli.out.splitlines()
    assert not missing_keys(starved, "starved", "workers.min is 2")
    assert not missing_keys(remedy, "edl scale digits/r1 --min N")
    assert not missing_keys(worker, "worker-1", "it builds its model")
    assert not missing_keys(logs, "edl logs digits/r1 -r worker -i 1")
    status |= {"phase": "Stalled", "reason": "ps-0 does not answer", "starved": False}
    (folder / "status.json").write_text(json.dumps(status))
    assert cli.edl("why", "digits", "--local") == 0
    assert not missing_keys(cli.out, "stalled", "ps-0 does not answer")


# ---------------------------------------------------------------------------------------------- edl scale


@pytest.fixture
def make_scalable_run(make_local_run: Make) -> Make:
    """Makes a run with a spec; the options are those of ``make_local_run``."""

    def make(*, alive: bool = True, **sections: object) -> Path:
        folder = make_local_run(alive=alive)
        spec = {
            "name": "digits",
            "model": {"zoo": str(folder), "definition": "digits.custom_model"},
            "data": {"training": ["data.csv"]},
            "workers": {"max": 2},
            **sections,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        return folder

    return make


def test_a_run_gets_another_number_of_workers(cli_without_cluster: CliHarness, make_scalable_run: Make) -> None:
    folder = make_scalable_run()
    assert cli_without_cluster.edl("scale", "digits", "--max", "4") == 0
    assert not missing_keys(cli_without_cluster.out, "digits/r1: 1 to 4 workers", "edl status digits/r1 --watch")
    assert json.loads((folder / "desired.json").read_text()) == {"max": 4}
    assert cli_without_cluster.edl("scale", "digits/r1", "--min", "3", "--json") == 0
    assert json.loads(cli_without_cluster.out) == {"job": "digits/r1", "min": 3, "max": 4}
    assert cli_without_cluster.edl("list", "--json") == 0
    assert json.loads(cli_without_cluster.out)[0]["desired"] == {"min": 3, "max": 4, "stop": False}


@pytest.mark.parametrize(
    ("sections", "options", "said"),
    [
        ({}, ("--min", "5"), ("min would be 5", "max, which is 2")),
        ({}, ("--max", "100000"), ("10000 workers",)),
        ({"strategy": {"name": "Local"}}, ("--max", "3"), ("digits/r1", "strategy Local", "AllReduce")),
        ({"strategy": {"name": "AllReduce", "global_batch": 8}}, ("--max", "9"), ("global_batch of digits/r1 is 8",)),
        ({"alive": False}, ("--max", "3"), ("digits/r1 is Interrupted already", "edl status digits/r1")),
        ({}, ("--max", "3", "-n", "team"), ("-n and --context",)),
    ],
)
def test_a_run_is_not_given_numbers_that_it_cannot_have(
    cli_without_cluster: CliHarness,
    make_scalable_run: Make,
    sections: dict[str, object],
    options: tuple[str, ...],
    said: tuple[str, ...],
) -> None:
    folder = make_scalable_run(**sections)
    assert cli_without_cluster.edl("scale", "digits", "--local", *options) == 2
    assert not missing_keys(cli_without_cluster.err, *said)
    assert not (folder / "desired.json").exists()


def test_a_job_on_the_cluster_comes_before_a_run(cli: CliHarness, make_local_run: Make) -> None:
    folder = make_local_run(job="mnist", alive=True)
    assert cli.edl("scale", "mnist", "--max", "8") == 0
    assert job_view.find_job(cli.cluster, "mnist").desired_state == DesiredState(max=8)
    assert not (folder / "desired.json").exists()


# ---------------------------------------------------------------------------------------------- edl stop


def test_a_run_with_a_master_is_stopped_through_it(cli_without_cluster: CliHarness, make_scalable_run: Make) -> None:
    folder = make_scalable_run()
    assert cli_without_cluster.edl("scale", "digits", "--max", "4") == 0
    assert cli_without_cluster.edl("stop", "digits") == 0
    assert json.loads((folder / "desired.json").read_text()) == {"max": 4, "stop": True}
    assert not missing_keys(cli_without_cluster.out, "digits/r1", "checkpoint", "edl run JOB.yaml --resume r1")


def test_a_run_of_one_process_is_interrupted(cli_without_cluster: CliHarness, make_scalable_run: Make) -> None:
    folder = make_scalable_run(strategy={"name": "Local"})
    signals: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    try:
        assert cli_without_cluster.edl("stop", "digits", "--local") == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert signals == [signal.SIGINT]
    assert not (folder / "desired.json").exists()


def test_a_run_that_is_over_is_not_stopped(cli_without_cluster: CliHarness, make_scalable_run: Make) -> None:
    folder = make_scalable_run(alive=False)
    assert cli_without_cluster.edl("stop", "digits/r1", "--wait") == 0
    assert not missing_keys(cli_without_cluster.out, "digits/r1 is Interrupted already")
    assert not (folder / "desired.json").exists()


def test_a_run_that_does_not_end_in_time_is_told(cli_without_cluster: CliHarness, make_scalable_run: Make) -> None:
    make_scalable_run()
    assert cli_without_cluster.edl("stop", "digits", "--wait", "--timeout", "0s") == TIMED_OUT_EXIT


def test_a_job_on_the_cluster_is_stopped_before_a_run(cli: CliHarness, make_local_run: Make) -> None:
    folder = make_local_run(job="mnist", alive=True)
    assert cli.edl("stop", "mnist") == 0
    assert job_view.find_job(cli.cluster, "mnist").desired_state.stop
    assert not (folder / "desired.json").exists()
