from __future__ import annotations

import io
from pathlib import Path

import pytest
from cli.cli_harness import CliHarness, cli_in_job_folder
from hypothesis import given
from hypothesis import strategies as st
from support.text_keys import missing_keys

from edl.api.run_events import JobEnded, JobEvent, RoleStarted, WarningRaised
from edl.api.status import JobFailure, Status, Summary
from edl.cli.submission_workflow import SubmitOptions
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_following import DELETED_REASON, UNEXPLAINED_END, JobFollower, WatchedJob, new_events
from edl.ops.job_view import JobView
from edl.reporting.plain_text import PlainTextRenderer

T = 1_800_000_000.0
SUMMARY = Summary(records_total=100, records_done=100, seconds=8.0, logs="/data/edl/team/mnist/run/logs")
STARTED = RoleStarted("worker", 0, None, time=T + 1)
DONE = JobEnded("Done", "all records are done", SUMMARY, time=T + 9)


def status(done: int, at: float, phase: str = "Training") -> Status:
    return Status("mnist", "run", "/data/edl/team/mnist/run", phase, at, records_total=100, records_done=done)


def seen(*events: JobEvent, condition: str = "", **told: object) -> JobView:
    job: Manifest = {"metadata": {"uid": "u", "creationTimestamp": "2027-01-15T08:00:00Z"}}
    if condition:
        job["status"] = {"conditions": [{"type": condition, "status": "True"}]}
    return JobView("mnist", "team", job, PublishedStatus(events=events, **told))  # type: ignore[arg-type]


class TerminalScreen:
    def __init__(self) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.face = PlainTextRenderer(self.out, self.err)
        self.following = JobFollower(self.face)

    def lines(self) -> list[str]:
        """What was shown, without the time of day."""
        return [line.partition("  ")[2] for line in self.out.getvalue().splitlines()]


def test_each_event_is_shown_once_and_the_end_ends() -> None:
    screen = TerminalScreen()
    assert screen.following.show_job(seen()) is None
    assert screen.following.show_job(seen(STARTED, status=status(10, T + 1))) is None
    assert screen.following.show_job(seen(STARTED, status=status(50, T + 3))) is None
    outcome = screen.following.show_job(seen(STARTED, DONE, status=status(100, T + 9, "Done")))
    assert outcome is not None
    assert (outcome.phase, outcome.exit_code, outcome.summary) == ("Done", 0, SUMMARY)
    lines = screen.lines()
    assert lines.count("worker 0 started") == 1
    assert len([line for line in lines if line.startswith("job done")]) == 1
    assert any(not missing_keys(line, "training", "50 of 100 records") for line in lines)


@pytest.mark.parametrize(("kind", "code"), [("input", 2), ("crash", 1), ("", 1)])
def test_a_failed_job_ends_with_the_code_of_edl_run(kind: str, code: int) -> None:
    failed = JobEnded("Failed", "every worker crashed", SUMMARY, time=T)
    outcome = TerminalScreen().following.show_job(seen(failed, failure=JobFailure(kind, "why", "Traceback")))
    assert outcome is not None
    assert (outcome.exit_code, outcome.detail) == (code, "Traceback")


@pytest.mark.parametrize(
    ("now", "phase", "reason", "code"),
    [
        (None, "Interrupted", DELETED_REASON, 130),
        (seen(condition="Failed"), "Failed", UNEXPLAINED_END, 1),
        (seen(condition="Complete"), "Done", "", 0),
    ],
)
def test_a_job_that_ends_without_a_word_ends_the_watch(now: JobView | None, phase: str, reason: str, code: int) -> None:
    screen = TerminalScreen()
    assert screen.following.show_job(seen(STARTED, status=status(10, T + 1))) is None
    outcome = screen.following.show_job(now)
    assert outcome is not None
    assert (outcome.phase, outcome.reason, outcome.exit_code) == (phase, reason, code)
    assert outcome.summary.records_done == 10


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6), st.integers(1, 30))
def test_no_event_is_missed_or_shown_twice_while_the_newest_overlap(looks: list[list[int]], kept: int) -> None:
    everything: list[JobEvent] = []
    shown: list[JobEvent] = []
    known: list[JobEvent] = []
    for added in looks:
        everything += [WarningRaised(str(text), time=T + len(everything) + at) for at, text in enumerate(added)]
        newest = everything[-max(kept, len(added) + 1) :]
        shown += new_events(known, newest)
        known = newest
    assert shown == everything


def test_watching_a_job_ends_with_its_summary_and_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli: CliHarness = cli_in_job_folder(tmp_path, monkeypatch, capsys)
    published = PublishedStatus(status(100, T + 9, "Done"), [STARTED, DONE], summary=SUMMARY)
    cli.cluster.published = published.to_configmap_data()
    assert cli.submit("--yes", "--watch") == 0
    done, records, logs, remove = cli.out.splitlines()[-4:]
    assert not missing_keys(done, "Done", "8 s", "100 of 100 records")
    assert not missing_keys(records, "0 lost", "0 repeated", "0 rolled back")
    assert logs.split() == ["logs", "/data/edl/team/mnist/run/logs"]
    assert remove.endswith(": edl delete mnist")
    assert len(cli.cluster.objects_of_kind(JOBS)) == 1


def test_watching_for_programs_ends_with_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli: CliHarness = cli_in_job_folder(tmp_path, monkeypatch, capsys)
    cli.cluster.published = PublishedStatus(status(100, T + 9, "Done"), [DONE], summary=SUMMARY).to_configmap_data()
    assert cli.submit("--yes", "--watch", "--json") == 0
    events = cli.events()
    assert [event["event"] for event in events] == ["plan", "submitted", "started", "job_ended", "status", "summary"]
    assert (events[-1]["exit_code"], events[-1]["records_done"]) == (0, 100)


def test_after_a_failure_the_next_step_goes_on_with_the_run() -> None:
    watched = WatchedJob("mnist", "run", "edl submit job.yaml --resume", "edl delete mnist")
    outcome = TerminalScreen().following.show_job(seen(JobEnded("Failed", "x", SUMMARY, time=T)))
    assert outcome is not None
    commands = [step.partition(": ")[2] for step in watched.next_steps(outcome)]
    assert commands == ["edl submit job.yaml --resume", "edl delete mnist"]


def test_the_command_that_goes_on_with_a_run_has_the_settings_of_the_one_that_began_it() -> None:
    options = SubmitOptions(Path("my job.yaml"), ["train.epochs=3", "image=a/b:1"], context="lab", namespace="team")
    assert options.resume_command() == (
        "edl submit 'my job.yaml' --set train.epochs=3 --set image=a/b:1 --context lab -n team --resume"
    )
