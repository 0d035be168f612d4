"""Which run directory a Job's master gets, and what is said when it cannot have it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec, JobSpec, ModelSpec
from edl.api.journal_entries import CutAnnounced
from edl.api.run_events import RunStarted
from edl.api.status import Status
from edl.api.strategy import Strategy
from edl.jobfile.event_json import parse_event_line
from edl.jobfile.loader import load_job_file
from edl.jobfile.section_type import to_json
from edl.pod import role_preparation
from edl.pod.role_preparation import RequestedRun, check_writable, open_run
from edl.storage.checkpoint_manifest import DATASET_KEY, CheckpointManifest, commit_checkpoint, cut_directory
from edl.storage.durable_files import write_json
from edl.storage.journal import Journal
from edl.storage.journal_reader import read_journal
from edl.storage.run_directory import NEWEST_RUN, RunDirectory

SPEC = JobSpec(name="digits", model=ModelSpec("m.custom_model", "/model_zoo"), data=DataSpec(training=("/data/train",)))


def started(run: RunDirectory) -> list[str]:
    lines = [json.loads(line) for line in run.events.read_text().splitlines()]
    return [line["run"] for line in lines if line["event"] == "run_started"]


def begun(run: RunDirectory) -> RunDirectory:
    """As its first master leaves it."""
    Journal.open(run.journal, holder="a test")[0].close()
    return run


def write_end(run: RunDirectory, phase: str) -> None:
    write_json(run.status, to_json(Status(job="digits", run=run.run_id, run_dir=str(run.path), phase=phase, updated=1)))
    Journal.open(run.journal, holder="a test")[0].close()


def test_a_new_run_is_named_after_the_job_and_found_again(tmp_path: Path) -> None:
    wanted = RequestedRun(tmp_path / "team" / "digits", "uid-1")
    run = open_run(wanted, SPEC)
    assert run.path == tmp_path / "team" / "digits" / "uid-1"
    assert load_job_file(run.spec) == SPEC
    assert (run.path.stat().st_mode & 0o777, run.spec.stat().st_mode & 0o777) == (0o750, 0o640)
    assert run.journal.is_dir()
    assert open_run(wanted, SPEC) == run
    assert started(run) == ["uid-1"]
    assert not list(tmp_path.rglob(".*"))


def test_a_job_goes_on_with_an_older_run_once(tmp_path: Path) -> None:
    first = open_run(RequestedRun(tmp_path, "uid-1"), SPEC)
    write_end(first, "Interrupted")
    (first.path / "summary.json").write_text("{}")
    more = replace(SPEC, workers=replace(SPEC.workers, max=9))
    second = RequestedRun(tmp_path, "uid-2", "uid-1")
    assert [open_run(second, more), open_run(second, more)] == [first, first]
    assert started(first) == ["uid-1", "uid-1"]
    assert [entry["kind"] for entry in read_journal(first.journal).entries] == ["resumed"]
    assert load_job_file(first.spec) == more
    assert not (first.path / "summary.json").exists()


def test_a_job_goes_on_from_a_checkpoint_without_its_journal_once(tmp_path: Path) -> None:
    first = open_run(RequestedRun(tmp_path, "uid-1"), SPEC)
    write_end(first, "Failed")
    (segment,) = first.journal.glob("*.edlj")
    segment.write_bytes(b"damaged")
    ledger = {"epoch": 0, "index": 1, "returned": [], "leases": [], "quarantined": []}
    ledger |= {"done_records": 32, "done_steps": 1, DATASET_KEY: {"training": [["a", 64]]}}
    cut_directory(first.checkpoints, 4).mkdir()
    commit_checkpoint(cut_directory(first.checkpoints, 4), CheckpointManifest(4, 9, "now", (), ledger))

    again = RequestedRun(tmp_path, "uid-2", "latest@checkpoint")
    assert [open_run(again, SPEC), open_run(again, SPEC)] == [first, first]

    kinds = [entry["kind"] for entry in read_journal(first.journal).entries]
    assert kinds == ["dataset", "cut_off", "checkpoint_back", "rolled_back", "resumed"]
    last_event = [json.loads(line) for line in first.events.read_text().splitlines()][-1]
    assert not missing_keys(last_event["changes"][0], "journal", "checkpoint 4", "step 1")


def test_a_job_that_changes_its_strategy_begins_a_new_journal_at_its_checkpoint(tmp_path: Path) -> None:
    first = open_run(RequestedRun(tmp_path, "uid-1"), SPEC)
    begun(first)
    write_end(first, "Interrupted")
    ledger = {"epoch": 0, "index": 1, "returned": [], "leases": [], "quarantined": []}
    ledger |= {"done_records": 32, "done_steps": 1, DATASET_KEY: {"training": [["a", 64]]}}
    cut_directory(first.checkpoints, 4).mkdir()
    commit_checkpoint(cut_directory(first.checkpoints, 4), CheckpointManifest(4, 9, "now", (), ledger))
    journal, _ = Journal.open(first.journal, holder="the test")
    journal.wait_until_durable(journal.append(CutAnnounced(cut=4, step=1).to_json()))
    journal.close()

    again, changed = RequestedRun(tmp_path, "uid-2", NEWEST_RUN), replace(SPEC, strategy=Strategy(name="AllReduce"))
    assert [open_run(again, changed), open_run(again, changed)] == [first, first]

    kinds = [entry["kind"] for entry in read_journal(first.journal).entries]
    assert kinds == ["dataset", "cut_off", "checkpoint_back", "rolled_back", "resumed"]
    assert load_job_file(first.spec) == changed
    last_event = [json.loads(line) for line in first.events.read_text().splitlines()][-1]
    assert not missing_keys(last_event["changes"][0], "AllReduce", "checkpoint 4", "step 1")


def test_latest_is_resolved_once(tmp_path: Path) -> None:
    begun(open_run(RequestedRun(tmp_path, "uid-9"), SPEC))
    newest = begun(open_run(RequestedRun(tmp_path, "uid-1"), SPEC))
    resumed = RequestedRun(tmp_path, "uid-5", NEWEST_RUN)
    assert open_run(resumed, SPEC) == newest
    begun(open_run(RequestedRun(tmp_path, "uid-7"), SPEC))
    write_end(newest, "Done")
    assert open_run(resumed, SPEC) == newest  # the same Job's next master: nothing is asked again


def test_only_training_goes_on(tmp_path: Path) -> None:
    """A job that evaluates may have the name of the one that trained; its runs are beside each other."""
    trained = begun(open_run(RequestedRun(tmp_path, "uid-1"), SPEC))
    evaluation = replace(SPEC, task="evaluate", data=replace(SPEC.data, validation=("/data/test",)))
    begun(open_run(RequestedRun(tmp_path, "uid-2"), evaluation))
    assert open_run(RequestedRun(tmp_path, "uid-3", NEWEST_RUN), SPEC) == trained
    with pytest.raises(BadInputError, match="uid-2") as caught:
        open_run(RequestedRun(tmp_path, "uid-4", "uid-2"), SPEC)
    assert not missing_keys(caught.value.hint, "uid-1")
    with pytest.raises(BadInputError, match="evaluate"):
        open_run(RequestedRun(tmp_path, "uid-5", NEWEST_RUN), evaluation)


def test_latest_is_no_submission_whose_master_never_lived(tmp_path: Path) -> None:
    trained = begun(open_run(RequestedRun(tmp_path, "uid-1"), SPEC))
    open_run(RequestedRun(tmp_path, "uid-2"), SPEC)  # its master got no Lease
    assert open_run(RequestedRun(tmp_path, "uid-3", NEWEST_RUN), SPEC) == trained
    with pytest.raises(BadInputError, match=r"'uid-2'[\s\S]*uid-1"):
        open_run(RequestedRun(tmp_path, "uid-4", "uid-2"), SPEC)


def test_latest_is_the_run_that_was_at_work_last(tmp_path: Path) -> None:
    older = begun(open_run(RequestedRun(tmp_path, "uid-1"), SPEC))
    begun(open_run(RequestedRun(tmp_path, "uid-2"), SPEC))
    assert open_run(RequestedRun(tmp_path, "uid-3", "uid-1"), SPEC) == older
    assert open_run(RequestedRun(tmp_path, "uid-4", NEWEST_RUN), SPEC) == older


def test_what_differs_when_a_run_goes_on_is_an_event(tmp_path: Path) -> None:
    run = begun(open_run(RequestedRun(tmp_path, "uid-1"), SPEC))
    open_run(RequestedRun(tmp_path, "uid-2", "uid-1"), replace(SPEC, workers=replace(SPEC.workers, max=9)))
    first, second = [parse_event_line(line) for line in run.events.read_text().splitlines()]
    assert isinstance(first, RunStarted)
    assert isinstance(second, RunStarted)
    assert (first.resumed, first.changes) == (False, ())
    (change,) = second.changes
    assert (second.resumed, missing_keys(change, "workers.max", str(SPEC.workers.max), "9")) == (True, [])


@pytest.mark.parametrize("run", [NEWEST_RUN, "uid-7"])
def test_a_run_that_is_not_there_is_named_with_those_that_are(tmp_path: Path, run: str) -> None:
    with pytest.raises(BadInputError, match="none"):
        open_run(RequestedRun(tmp_path, "uid-2", run), SPEC)


def test_a_run_that_is_done_or_about_other_work_is_refused(tmp_path: Path) -> None:
    run = begun(open_run(RequestedRun(tmp_path, "uid-1"), SPEC))
    other = replace(SPEC, train=replace(SPEC.train, seed=7))
    with pytest.raises(BadInputError, match=r"train\.seed\b.*\b0\b.*\b7\b"):
        open_run(RequestedRun(tmp_path, "uid-2", "uid-1"), other)
    write_end(run, "Done")
    with pytest.raises(BadInputError, match=r"uid-1\b.*done"):
        open_run(RequestedRun(tmp_path, "uid-2", "uid-1"), SPEC)


def test_a_volume_that_cannot_be_written_is_said_with_user_path_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # what the mode says does not matter, and tests may run as root
    with pytest.raises(BadInputError) as caught:
        check_writable(tmp_path)
    monkeypatch.undo()
    assert f"user {os.getuid()}" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "security.run_as" in str(caught.value)
    assert caught.value.exit_code == 2


def test_two_pods_try_one_volume_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first processes have the same id."""

    def write_and_meet_another(*arguments: object, **keywords: object) -> None:
        monkeypatch.undo()
        write_json(*arguments, **keywords)  # type: ignore[arg-type]
        check_writable(tmp_path)

    monkeypatch.setattr(role_preparation, "write_json", write_and_meet_another)
    check_writable(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_where_the_volume_should_be(tmp_path: Path) -> None:
    (tmp_path / "edl").write_text("")
    with pytest.raises(BadInputError, match="cannot write here"):
        check_writable(tmp_path / "edl" / "team")
