"""The picture of the live view, as text on a terminal of a fixed size."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from edl.api.run_events import EvaluationEnded, RecordsRequeued, RoleEnded, RoleStarted, WarningRaised
from edl.api.status import ParametersStatus, RoleStatus, Status, TableStatus
from edl.api.strategy import Strategy
from edl.reporting.live_view import LiveRenderer, render_screen
from edl.reporting.run_progress import RunProgress

BEGAN = 1_700_000_000.0
STATUS = Status(
    job="mnist", run="r1", run_dir="/r1", phase="Training", updated=BEGAN + 60, epoch=2, epochs=5, step=1234,
    records_total=60_000, records_done=25_800, loss=0.3119, metrics={"accuracy": 0.9134}, samples_per_second=8123.4,
    seconds_left=4.2, ps=(RoleStatus(0, 4103, "serving"),),
    workers=(RoleStatus(0, 4104, "training"), RoleStatus(2, 4177, "starting")),
)  # fmt: skip
PICTURE = """\
Training  mnist r1  epoch 2 of 5  step 1,234  1:01
━━━━━━━━━━━━━━━━                        43 %  25,800 of 60,000 records
loss 0.3119   evaluated accuracy 0.9134   8,123 samples/s   4 s left

process     pid   state
master     4102   coordinating
ps 0       4103   serving
worker 0   4104   training
worker 2   4177   starting

TIME  master started (pid 4102)
TIME  evaluation of step 1,000: accuracy 0.9134
TIME  worker 1 ended (pid 4105): Killed (SIGKILL)
TIME  records 512 to 576 of train-00000.recordio of worker 1 returned to the qu…
"""


def draw_screen(progress: RunProgress, width: int = 80, height: int = 24, notice: str = "") -> str:
    """The picture as text."""
    console = Console(width=width, height=height, file=io.StringIO(), record=True)
    console.print(render_screen(progress, width, height, BEGAN + 61, notice))
    lines = console.export_text().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> RunProgress:
    monkeypatch.setattr("edl.reporting.live_view.format_local_time", lambda moment: "TIME")
    known = RunProgress(start_time=BEGAN).with_status(STATUS)
    for event in (
        RoleStarted("master", 0, 4102, time=BEGAN),
        EvaluationEnded(1000, {"accuracy": 0.9134}, time=BEGAN + 40),
        RoleEnded("worker", 1, 4105, "Killed (SIGKILL)", 137, time=BEGAN + 50),
        RecordsRequeued(512, 576, "/data/train-00000.recordio", 1, "worker-1: Killed (SIGKILL)", time=BEGAN + 50),
    ):
        known = known.with_event(event)
    return known


def test_the_picture(progress: RunProgress) -> None:
    assert draw_screen(progress) == PICTURE


def test_a_notice_is_the_last_line(progress: RunProgress) -> None:
    assert draw_screen(progress, notice="Stopping") == f"{PICTURE}Stopping\n"


def test_parameter_servers_say_how_many_tables_they_serve(progress: RunProgress) -> None:
    parameters = ParametersStatus(Strategy(), tables=(TableStatus("users", 1, 4),), tables_total=1)
    assert "ps 0       4103   serving 1 table\n" in draw_screen(
        progress.with_status(replace(STATUS, updated=BEGAN + 70, parameters=parameters))
    )


def test_the_pace_of_each_worker_and_the_evaluations_before(progress: RunProgress) -> None:
    for step, accuracy in ((2000, 0.92), (3000, 0.93)):
        progress = progress.with_event(EvaluationEnded(step, {"accuracy": accuracy}, time=BEGAN + 41))
    paced = (RoleStatus(0, 4104, "training", samples_per_second=8123.4), RoleStatus(2, 4177, "starting"))
    shown = draw_screen(progress.with_status(replace(STATUS, updated=BEGAN + 70, workers=paced))).splitlines()
    assert shown[3] == "earlier: step 2,000 accuracy 0.92   step 1,000 accuracy 0.9134"
    assert shown[5] == "process     pid   state          samples/s"
    assert shown[8] == "worker 0   4104   training           8,123"
    assert shown[9].rstrip() == "worker 2   4177   starting"


def test_only_the_newest_evaluations_are_kept() -> None:
    known = RunProgress(BEGAN)
    for step in range(50):
        known = known.with_event(EvaluationEnded(step, {"accuracy": 0.5}, time=BEGAN))
    assert [each.step for each in known.evaluations] == list(range(44, 50))


@pytest.mark.parametrize("width", [60, 100])
def test_the_plan_is_broken_between_words_and_never_within_a_path(width: int) -> None:
    out = io.StringIO()
    view = LiveRenderer(Console(width=width, file=out, force_terminal=True, highlight=False))
    plan_line = f"  evaluates on 359 records in /data/{'x' * 90}/test, every 1,000 steps and at the end"
    with view:
        view.show_plan(SimpleNamespace(plan_lines=lambda: ["mnist: model", plan_line]))  # type: ignore[arg-type]
    lines = out.getvalue().splitlines()
    assert f"/data/{'x' * 90}/test," in out.getvalue()
    assert " ".join(" ".join(lines).split()).startswith("mnist: model " + plan_line.strip())
    assert all(line.startswith("    ") for line in lines[2:4])


def test_before_the_first_status() -> None:
    assert draw_screen(RunProgress(start_time=BEGAN + 58)).splitlines()[:3:2] == ["Starting  3 s", "the master starts"]


@settings(deadline=None)  # a busy machine draws slowly
@given(workers=st.integers(0, 200), events=st.integers(0, 50), height=st.integers(14, 60), width=st.integers(40, 200))
def test_the_picture_fits_the_terminal(workers: int, events: int, height: int, width: int) -> None:
    roles = tuple(RoleStatus(index, 1000 + index, "training") for index in range(workers))
    status = Status("j", "r1", "/r1", "Training", BEGAN + 1, records_total=10**9, records_done=10**8, workers=roles)
    known = RunProgress(start_time=BEGAN).with_status(status)
    for number in range(events):
        known = known.with_event(WarningRaised(f"{number} " * 100, time=BEGAN))
    lines = draw_screen(known, width, height, "Stopping").splitlines()
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
