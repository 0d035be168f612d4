"""Record what this version writes, for later versions to read: ``python platform/tests/recorded/make.py``.

* ``journals/NAME.json``: the entries that the core journals in each text scenario, with the state that they lead to,
  and with the state half-way, as a compacted journal has it.
* ``runs.tar.gz``: run directories of small jobs, ended and half done, made at ``PLACE``: paths are part of a run.
* ``runs_with_tables.tar.gz``: further ones, with rows and slots on parameter servers, a journal that was compacted, and
  one of several masters. For these, ``COMPACT_BYTES`` of the master's shell was 2 KiB in all but ``checkpoint-back``.
* ``shown/NAME.json``: what ``edl status`` and ``edl events`` say of each.
* ``resumed/NAME.json``: the summary of each half-done run after it went on.

Recordings are made once and kept: a version that cannot read them has lost its users' runs. Make new ones, under new
names, when there is something new to record.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from signal import SIGKILL
from typing import Any

from support.job_process import STARTED, JobProcess
from support.text_scenarios import ScenarioRunner

HERE = Path(__file__).parent
PLACE = Path("/tmp/edl-recorded")
SCENARIOS = HERE.parent / "scenarios"
SYNC = ("strategy.mode=sync", "strategy.grads_to_wait=1", "workers.max=1", "ps.count=1")
LOCAL = ("strategy.name=Local",)
TABLES = (
    "strategy.mode=sync",
    "strategy.grads_to_wait=1",
    "workers.max=1",
    "ps.embedding_threshold=1",
    "model.definition=tables.custom_model",
)
HALF = {"async-stopped": (), "async-killed": (), "sync-stopped": SYNC, "local-stopped": LOCAL}
HALF_WITH_TABLES = {"tables-stopped": TABLES, "checkpoint-back": TABLES}
"""Runs that are half done, and fields of their job files."""
ENDED = ("async-done", "quarantine", "best-done")
ARCHIVES = ("runs.tar.gz", "runs_with_tables.tar.gz")


def journals() -> None:
    """Record the journals of the text scenarios."""
    for path in sorted(SCENARIOS.glob("*.txt")):
        runner = ScenarioRunner()
        for line in path.read_text().splitlines():
            if line and line[0] not in " #":
                runner.play(line)
        entries = json.loads(json.dumps(runner.journal))
        half = len(entries) // 2
        recorded = {
            "settings": asdict(runner.settings),
            "entries": entries,
            "half": {"entries": half, "state": state_of(runner, entries[:half])},
            "state": state_of(runner, entries),
        }
        (HERE / "journals").mkdir(exist_ok=True)
        (HERE / "journals" / f"{path.stem}.json").write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")


def state_of(runner: ScenarioRunner, entries: Sequence[Any]) -> Any:
    """The state that entries lead to, as JSON."""
    job = type(runner.state)(runner.settings)
    job.replay_journal(None, entries)
    return json.loads(json.dumps(job.to_snapshot()))


def lay_out() -> None:
    """The place that the runs are of, empty."""
    shutil.rmtree(PLACE, ignore_errors=True)
    shutil.copytree(HERE / "job", PLACE)


@contextmanager
def slow() -> Iterator[None]:
    """Steps of a tenth of a second."""
    file = PLACE / "zoo" / "slow"
    file.touch()
    yield
    file.unlink()


def start(name: str, *fields: str, options: Sequence[str] = (), started: bool = STARTED) -> JobProcess:
    """Start a run."""
    every = ("export=null", f"name={name}", *fields)
    settings = (word for field in every for word in ("--set", field))
    return JobProcess(PLACE / "job.yaml", *settings, *options, cwd=PLACE, started=started)


def runs() -> None:
    """Make the runs."""
    with slow(), start("async-done") as run:
        run.wait_step(25)
        run.send("ps", 1, SIGKILL)
        run.wait_event("rolled_back")
        run.send("worker", min(run.training()), SIGKILL)
        run.wait_event("lease_revoked")
        (PLACE / "zoo" / "slow").rename(PLACE / "zoo" / "was_slow")
        run.summary()
        (PLACE / "zoo" / "was_slow").rename(PLACE / "zoo" / "slow")
    for name, fields in HALF.items():
        with slow(), start(name, *fields) as run:
            run.wait_step(45)
            run.kill() if name == "async-killed" else run.interrupt()
            run.wait()
            run.wait_gone(30.0)
    (PLACE / "zoo" / "kills").touch()
    with start("quarantine", "train.on_crashing_range=skip", "workers.max=1", "train.epochs=1") as run:
        run.summary()
    (PLACE / "zoo" / "kills").unlink()


def half_a_run(name: str, step: int, *options: str, is_killed: bool = False) -> None:
    """Start a run with tables, or go on with it, until a step."""
    with slow(), start(name, *TABLES, options=options) as run:
        run.wait_step(step)
        run.kill() if is_killed else run.interrupt()
        run.wait()
        run.wait_gone(30.0)


def compacted_runs_with_tables() -> None:
    """Make the runs of ``ARCHIVES[1]`` whose journals are compacted."""
    half_a_run("tables-stopped", 25)
    half_a_run("tables-stopped", 55, "--resume", "r1")
    (PLACE / "zoo" / "impatient").touch()
    with start("best-done", *TABLES, "train.epochs=40", "train.evaluation_steps=5") as run:
        run.summary()
    (PLACE / "zoo" / "impatient").unlink()


def run_of_several_masters() -> None:
    """Make the run of ``ARCHIVES[1]`` whose journal is not compacted."""
    half_a_run("checkpoint-back", 35, is_killed=True)
    half_a_run("checkpoint-back", 55, "--resume", "r1", "--from-checkpoint")
    half_a_run("checkpoint-back", 75, "--resume", "r1")


def edl(*words: str) -> str:
    """Standard output of a command in the place."""
    return subprocess.run(
        [Path(sys.executable).with_name("edl"), *words], cwd=PLACE, capture_output=True, text=True, check=True
    ).stdout


def recorded_output(name: str, run_command: Callable[..., str] = edl) -> dict[str, Any]:
    """What the commands say of a run, but for what depends on the time of day."""
    status = json.loads(run_command("status", name, "--local", "--json"))
    for field in ("age", "age_seconds", "seconds_since_update"):
        status.pop(field, None)
    return {
        "status": status,
        "events": [json.loads(line) for line in run_command("events", name, "--local", "--json").splitlines()],
    }


def record(archive_name: str, half: Mapping[str, Sequence[str]]) -> None:
    """Keep the runs at the place, what is said of them, and how the half-done ones end."""
    for folder in ("shown", "resumed"):
        (HERE / folder).mkdir(exist_ok=True)
    for run_directory in sorted((PLACE / ".edl" / "local").iterdir()):
        output = recorded_output(run_directory.name)
        (HERE / "shown" / f"{run_directory.name}.json").write_text(json.dumps(output, indent=1) + "\n")
    with tarfile.open(HERE / archive_name, "w:gz") as archive:
        archive.add(PLACE / ".edl", ".edl", filter=lambda info: None if "/logs/" in info.name else info)
    for name, fields in half.items():
        with start(name, *fields, options=("--resume", "r1")) as run:
            (HERE / "resumed" / f"{name}.json").write_text(json.dumps(run.summary(), indent=1) + "\n")


def main() -> None:
    """Record all; with ``tables`` the runs of ``ARCHIVES[1]``, between whose halves ``COMPACT_BYTES`` is set back."""
    lay_out()
    if sys.argv[1:] == ["tables"]:
        compacted_runs_with_tables()
        input("Set COMPACT_BYTES back, and press Enter.")
        run_of_several_masters()
        record(ARCHIVES[1], HALF_WITH_TABLES)
        return
    journals()
    runs()
    record(ARCHIVES[0], HALF)


if __name__ == "__main__":
    main()
