"""edl run: what it says, what it refuses before a process starts, how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest
from cli.cli_harness import MODULE, SUMMARY, LocalRunHarness, command
from support.text_keys import missing_keys

from edl.storage.run_directory import JobLock

REQUIRED_KEYS = {
    "records_total", "records_done", "records_repeated", "records_lost", "records_rolled_back", "updates_rolled_back",
    "samples_per_second", "seconds", "workers_lost", "metrics", "export",
}  # fmt: skip
HEAVY = ("tensorflow", "keras", "numpy", "grpc", "google.protobuf", "kubernetes", "jsonschema", "rich")
EMPTY_ZIP = b"PK\x05\x06" + bytes(18)
FAILED = {"event": "job_ended", "phase": "Failed", "reason": "the model raised", "summary": SUMMARY}


def without_times(text: str) -> str:
    """Without what differs between two runs."""
    return re.sub(r"pid \d+", "pid N", re.sub(r"\d\d:\d\d:\d\d", "TIME", text))


def test_plain_lines_say_the_plan_the_events_and_the_summary(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    assert local_run.edl("run", "job.yaml") == 0
    run = local_run.run_dir()
    lines = without_times(capsys.readouterr().out).splitlines()
    model, training, epochs, evaluation, roles, where, start = lines[:7]
    assert not missing_keys(model, "digits", "small.model", f"{local_run.folder}/model_zoo")
    assert not missing_keys(training, "10 records", f"{local_run.folder}/train.csv")
    assert not missing_keys(epochs, "3 epochs", "minibatches of 4", "9 steps")
    assert not missing_keys(evaluation, "5 records", f"{local_run.folder}/test.csv")
    assert not missing_keys(roles, "2 workers", "1 parameter server")
    assert not missing_keys(where, "run r1", str(run))
    assert not missing_keys(start, "TIME", "run r1")
    began, ended = [line for line in lines if "worker 0" in line]
    assert not missing_keys(began, "TIME", "started", "pid N")
    assert not missing_keys(ended, "TIME", "ended", "pid N", "Deleted")
    done, records, export, logs, command = lines[-5:]
    assert not missing_keys(done, "Done", "2 s", "30 of 30 records", "15 samples/s")
    assert not missing_keys(records, "0 lost", "0 repeated", "0 rolled back")
    assert export.split() == ["export", "/out/export"]
    assert logs.split() == ["logs", f"{run}/logs"]
    assert command.endswith(": edl predict job.yaml --from r1 --output predictions")


def test_json_is_an_object_a_line_and_ends_with_the_summary(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    assert local_run.edl("run", "job.yaml", "--json") == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["event"] == "run_started"
    assert lines[0]["run_dir"] == str(local_run.run_dir())
    started = next(line for line in lines if line["event"] == "role_started")
    assert (started["role"], started["index"], started["pid"]) == ("worker", 0, 77)
    ended = next(line for line in lines if line["event"] == "role_ended")
    assert ended["reason"] == "Deleted"
    assert [line["phase"] for line in lines if line["event"] == "status"][-1] == "Done"
    assert lines[-1]["event"] == "summary"
    assert set(lines[-1]) >= REQUIRED_KEYS
    assert lines[-1]["records_done"] == 30


@pytest.mark.parametrize(("kind", "code"), [("input", 2), ("nan", 1), ("crash", 1)])
def test_a_failed_job_shows_the_users_traceback_before_the_reason(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], kind: str, code: int
) -> None:
    detail = ["text", ["failure.txt", "Traceback: small.py, line 3\n"]]
    local_run.script(["event", FAILED], detail, ["text", ["failure.json", json.dumps({"kind": kind})]])
    assert local_run.edl("run", "job.yaml") == code
    captured = capsys.readouterr()
    assert captured.err == "Traceback: small.py, line 3\n\nthe model raised\n"
    assert captured.out.splitlines()[-1].endswith(": edl run job.yaml --resume r1")


def test_a_supervisor_that_dies_is_explained_with_its_log(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    local_run.monkeypatch.setattr(
        "edl.ops.local_run_start.SUPERVISOR_PROGRAM", ("-c", "import sys; sys.exit('no more room')")
    )
    assert local_run.edl("run", "job.yaml") == 1
    captured = capsys.readouterr()
    assert f"{local_run.run_dir()}/logs/supervisor.log:\n  no more room\n" in captured.err
    assert "Failed after" in captured.out
    last = json.loads((local_run.run_dir() / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["phase"]) == ("job_ended", "Failed")


def test_options_become_part_of_the_spec(local_run: LocalRunHarness) -> None:
    assert local_run.edl("run", "job.yaml", "--workers", "1", "--ps", "2", "--set", "train.epochs=7") == 0
    spec = json.loads((local_run.run_dir() / "spec.json").read_text())
    assert (spec["workers"]["min"], spec["workers"]["max"], spec["ps"]["count"], spec["train"]["epochs"]) == (
        1,
        1,
        2,
        7,
    )
    assert spec["data"]["training"] == [f"{local_run.folder}/train.csv"]


def test_settings_are_held_to_the_count_of_workers_that_starts(local_run: LocalRunHarness) -> None:
    """workers.max is 2 by default: of 3 workers 3 pushes come together, and at least 3 can be asked for."""
    sync = ["--set", "strategy.mode=sync", "--set", "strategy.grads_to_wait=3"]
    assert local_run.edl("run", "job.yaml", "--workers", "3", *sync) == 0
    assert local_run.edl("run", "job.yaml", "--workers", "4", "--set", "workers.min=3") == 0


def test_a_second_run_is_told_who_holds_the_job(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    with JobLock(local_run.run_dir().parent, "r9"):
        assert local_run.edl("run", "job.yaml") == 2
    assert not missing_keys(capsys.readouterr().err, "'digits'", f"process {os.getpid()}", "run r9")
    assert not local_run.run_dir().exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nothing.yaml"], ("nothing.yaml: no such file",)),
        (["job.yaml", "--set", "train.epoch=3"], ("train.epoch",)),
        (["job.yaml", "--set", "data.training=nowhere.csv"], ("data.training", "nowhere.csv")),
        (["job.yaml", "--set", "data.training=empty.csv"], ("data.training",)),
        (["job.yaml", "--set", "model.definition=smal.model"], ("did you mean small?",)),
        (["job.yaml", "--set", "model.definition=small.modle"], ("did you mean model?",)),
        (["job.yaml", "--set", "model.definition=partial.model"], ("'loss'", "'feed'")),
        (["job.yaml", "--set", "model.definition=unmeasured.model"], ("'eval_metrics_fn'",)),
        (
            ["job.yaml", "--set", "train.minibatch_size=11"],
            ("train.minibatch_size", "11", "data.training", "10 records"),
        ),
        (["job.yaml", "--set", "strategy.name=Local", "--workers", "2"], ("--workers",)),
        (["job.yaml", "--set", "strategy.name=AllReduce", "--ps", "2"], ("--ps", "AllReduce")),
        (["job.yaml", "--workers", "0"], ("--workers",)),
        (["job.yaml", "--workers", "500000"], ("--workers 500000", "workers.max", "found 500000")),
        (
            ["job.yaml", "--set", "strategy={mode: sync, grads_to_wait: 2}", "--workers", "1"],
            ("strategy.grads_to_wait", "found 2", "workers.max is 1", "at most 1", "--workers 1"),
        ),
        (["job.yaml", "--resume"], ("no run",)),
        (["job.yaml", "--resume", "r3"], ("no run",)),
    ],
)
def test_bad_input_ends_before_there_is_a_run(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], args: list[str], said: tuple[str, ...]
) -> None:
    (local_run.folder / "empty.csv").write_text("x,y\n")
    partial = "def model(): ...\ndef optimizer(): ...\ndef eval_metrics_fn(): ...\ndef fed(d, m): ...\n"
    (local_run.folder / "model_zoo" / "partial.py").write_text(partial)
    unmeasured = MODULE.replace("def eval_metrics_fn(): ...\n", "")
    (local_run.folder / "model_zoo" / "unmeasured.py").write_text(unmeasured)
    assert local_run.edl("run", *args) == 2
    assert not missing_keys(capsys.readouterr().err, *said)
    assert not (local_run.folder / ".edl").exists()


def test_a_job_that_evaluates_nothing_needs_no_metrics(local_run: LocalRunHarness) -> None:
    module = local_run.folder / "model_zoo" / "small.py"
    module.write_text(MODULE.replace("def eval_metrics_fn(): ...\n", ""))
    assert local_run.edl("run", "job.yaml") == 2
    assert local_run.edl("run", "job.yaml", "--set", "data.validation=null") == 0


def test_a_run_that_goes_on_keeps_the_minibatches_that_it_began_with(local_run: LocalRunHarness) -> None:
    assert local_run.edl("run", "job.yaml") == 0
    (local_run.folder / "train.csv").write_text("x,y\n1,2\n")
    assert local_run.edl("run", "job.yaml") == 2, "an epoch no longer fills a minibatch"
    run = local_run.run_dir()
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"phase": "Interrupted"}))
    assert local_run.edl("run", "job.yaml", "--resume") == 0


def test_a_module_with_its_own_reader_is_not_counted_here(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    with (local_run.folder / "model_zoo" / "small.py").open("a") as module:
        module.write("def custom_data_reader(path): ...\n")
    assert local_run.edl("run", "job.yaml", "--set", "data.training=db://table") == 0
    training = next(line for line in capsys.readouterr().out.splitlines() if "db://table" in line)
    assert not missing_keys(training, "reader", "records")
    assert re.search(r"\d", training) is None, "nothing was counted"


def test_strategy_local_becomes_the_worker(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []

    def execve(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        calls.append((arguments, environment))
        raise SystemExit(0)

    local_run.monkeypatch.setattr("os.execve", execve)
    local_run.monkeypatch.setenv("EDL_MASTER_ADDRESS", "unix:of another job")
    assert local_run.edl("run", "job.yaml", "--set", "strategy.name=Local", "--json") == 0
    ((arguments, environment),) = calls
    assert arguments[1:] == ["-P", "-m", "edl.worker"]
    assert (environment["EDL_RUN_DIR"], environment["EDL_JSON"]) == (str(local_run.run_dir()), "1")
    assert "EDL_MASTER_ADDRESS" not in environment
    assert json.loads(capsys.readouterr().out)["event"] == "run_started"
    assert (local_run.run_dir() / "spec.json").exists()


def test_all_reduce_starts_workers_alone(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    """The master is told by the spec, and the plan says what there is and what there is not."""
    with (local_run.folder / "job.yaml").open("a") as file:
        file.write("ps: {count: 2}\nworkers: {min: 2, max: 3}\n")
    settings = ("--set", "strategy.name=AllReduce", "--set", "workers.min=1")
    assert local_run.edl("run", "job.yaml", *settings, "--workers", "4") == 0
    lines = capsys.readouterr().out.splitlines()
    often, evaluation, roles, unused = lines[2:6]
    assert not missing_keys(often, "minibatches", "per worker"), "a step is not a minibatch"
    assert not missing_keys(evaluation, "5 records", "at the end")
    assert not missing_keys(roles, "4 workers", "AllReduce")
    assert not missing_keys(unused, "ps.count")
    assert not any("2 parameter servers" in line for line in lines)
    spec = json.loads((local_run.run_dir() / "spec.json").read_text())
    assert spec["strategy"]["name"] == "AllReduce"
    assert (spec["workers"]["min"], spec["workers"]["max"]) == (1, 4)


def test_nothing_heavy_is_imported(local_run: LocalRunHarness) -> None:
    line = command("run", "job.yaml")
    line[2] = line[2].replace(
        "app.main()", "\ntry: app.main()\nfinally:\n import sys; print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    decisions = {"edl.core.state", "edl.core.events"}  # the master's: 100 ms before a run has begun
    assert not {*HEAVY, *decisions} & set(done.stderr.split())


@pytest.mark.parametrize("command_name", ["run", "submit"])
def test_a_command_without_a_job_file_asks_for_one(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], command_name: str
) -> None:
    assert local_run.edl(command_name) == 2
    assert "Missing argument 'JOB.yaml'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["run", "job.yaml"], ["predict", "job.yaml", "--output", "out"]])
@pytest.mark.parametrize("place", ["/proc/nope", "train.csv"])
def test_a_storage_path_that_no_folder_can_be_at_is_bad_input(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], place: str, verb: list[str]
) -> None:
    (local_run.folder / "model.keras").write_bytes(EMPTY_ZIP)
    weights = ["--from", "model.keras"] if verb[0] == "predict" else []
    assert local_run.edl(*verb, *weights, "--set", f"storage.path={place}") == 2
    errors = capsys.readouterr().err
    assert errors.startswith("storage.path: ")
    assert not missing_keys(errors, place if place.startswith("/") else str(local_run.folder / place), "write")
