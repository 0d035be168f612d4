"""``edl status``: the picture of a job, once and again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from hypothesis import given
from hypothesis import strategies as st
from support.in_memory_cluster import NOW
from support.job_objects import PUBLISHED, STATUS, TIMELINE, conditions, job_view, put_job, with_status
from support.text_keys import missing_keys

from edl.api.status import ParametersStatus, RoleStatus, RoundStatus, Summary, TableStatus, TimelinePoint
from edl.api.strategy import Strategy
from edl.cli.status import column_averages, plot_workers, status_lines
from edl.jobfile.published_status import PublishedStatus
from edl.jobfile.section_type import to_json

PICTURE = """\
mnist  Training  namespace team, submitted 3m ago
███████████████░░░░░░░░░░░░░░░░░░░░ 43 %  25,800 of 60,000 records, epoch 2 of 5
step 1,234   loss 0.3119   evaluated accuracy 0.9134   8,123 samples/s   4 s left
run 0a1b
1 worker and 1 starting of 4 wanted, at least 1

workers
4 ┤░░░░░░░░░░░░░░░████████████████████████████░░░░░░░░░░░░░░░██████████████
  ┤░░░░░░░░░░░░░░▃████████████████████████████▃░░░░░░░░░░░░░▆██████████████
  ┤░░░░░░░░░░░░░░██████████████████████████████████████████████████████████
  ┤░░░░░░░░░░░░░░██████████████████████████████████████████████████████████
0 └────────────────────────────────────────────────────────────────────────
   1:40 ago                                                             now

POD        STATE      NODE   REASON
ps-0       serving    n1
worker-1   training   n1
worker-2   starting   n2
worker-4   pending    -      on 2 of 2 nodes too little cpu is free

07:58:30  worker 0 started
07:59:20  worker 0 ended: preempted

`edl why mnist` shows what it waits for.
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    return cli_with_job(monkeypatch, capsys)


def test_a_job_as_it_is_now(cli: CliHarness) -> None:
    assert cli.edl("status", "mnist") == 0
    assert cli.out == PICTURE


def test_for_programs(cli: CliHarness) -> None:
    assert cli.edl("status", "mnist", "--json") == 0
    assert json.loads(cli.out)["status"] == to_json(STATUS)


def test_a_job_whose_master_has_said_nothing(cli: CliHarness) -> None:
    put_job(cli.cluster, "new", PublishedStatus(), status={})
    assert cli.edl("status", "new") == 0
    assert not missing_keys(cli.out.splitlines()[1], "master", "yet")


def test_a_job_that_ended_shows_its_summary(cli: CliHarness) -> None:
    published = replace(with_status(phase="Done"), summary=Summary(60_000, 60_000, seconds=60.0, export="/data/m"))
    put_job(cli.cluster, "done", published, status=conditions(Complete=""))
    assert cli.edl("status", "done") == 0
    assert not missing_keys(
        cli.out, "Done", "1:00", "60,000 of 60,000 records", "0 lost", "0 repeated", "0 rolled back"
    )
    assert "worker-1" not in cli.out


def test_what_cannot_be_read_is_said(cli: CliHarness) -> None:
    put_job(cli.cluster, "old", {"status.json": "{}"})
    assert cli.edl("status", "old") == 0
    assert not missing_keys(cli.out, "master", "cannot be read", "status.json")


def test_watching_without_a_terminal_prints_a_line_a_change(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [conditions(Complete=""), {"ready": 1}]

    def sleep(seconds: float) -> None:
        put_job(cli.cluster, published=with_status(phase="Done", records_done=60_000), status=ends[0])

    monkeypatch.setattr("time.sleep", sleep)
    defaults = {"server_answered": False, "clock": lambda: 0.0, "sleep": sleep}
    monkeypatch.setattr("edl.ops.job_following.poll_repeatedly.__kwdefaults__", defaults)
    assert cli.edl("status", "mnist", "--watch") == 0
    first, last = cli.out.splitlines()
    assert not missing_keys(first, "training", "25,800 of 60,000 records")
    assert not missing_keys(last, "done", "60,000 of 60,000 records")


def test_an_unknown_job(cli: CliHarness) -> None:
    assert cli.edl("status", "mnits") == 2
    assert not missing_keys(cli.err, "mnits", "namespace team", "mnist")


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"starved": True}, ("mnist", "Training", "starved", "namespace team")),
        ({"refusals": {"worker-7": "exceeded quota"}}, ("refused", "worker-7", "exceeded quota")),
        ({"updated": NOW - 90}, ("master", "1m ago", "gone")),
        ({"updates_skipped": 8}, ("step", "8 updates skipped")),
    ],
)
def test_what_is_worth_a_word(changes: dict[str, object], keys: tuple[str, ...]) -> None:
    assert any(not missing_keys(line, *keys) for line in status_lines(job_view(with_status(**changes)), NOW, 80))
    assert all(missing_keys(line, *keys) for line in status_lines(job_view(PUBLISHED), NOW, 80))


EXCHANGE = """\
run 0a1b
mode sync, 2 gradients per update, tolerance 1; 0.4 updates stale on average, 1 at most
pushes 1,128 in 580 updates; 3 more were too old and computed again (0.3 % of all)
an update with 1 of 2 gradients has been waiting for worker-2 for 12 s
1 worker and 1 starting of 4 wanted, at least 1
"""
TABLES = """\
worker-4   pending    -      on 2 of 2 nodes too little cpu is free

TABLE                    ROWS    MEMORY   EVICTED   OF ps.max_rows
users/embeddings      980,000    64 MiB    12,345             98 %
tags/embeddings    12,000,000   1.5 GiB         0                -
and 7 more

07:58:30  worker 0 started
"""


def test_pushes_an_update_that_waits_and_tables(cli: CliHarness) -> None:
    published = ParametersStatus(
        Strategy(mode="sync", grads_to_wait=2, version_tolerance=1),
        pushes=1128,
        updates=580,
        refused=3,
        staleness=0.44,
        stalest=1,
        round=RoundStatus(1, 2, (2,), 1, 12.0),
        tables=(
            TableStatus("users/embeddings", 980_000, 64 << 20, 12_345, 1_000_000, 0.98),
            TableStatus("tags/embeddings", 12_000_000, 3 << 29),
        ),
        tables_total=9,
    )
    put_job(cli.cluster, published=with_status(parameters=published))
    assert cli.edl("status", "mnist") == 0
    assert EXCHANGE in cli.out
    assert TABLES in cli.out
    assert cli.edl("status", "mnist", "--json") == 0
    assert json.loads(cli.out)["status"]["parameters"] == to_json(published)


@given(st.integers(0, 100), st.integers(60, 200))
def test_the_picture_is_as_wide_as_the_terminal(count: int, width: int) -> None:
    workers = tuple(RoleStatus(index, None, "training", node="a-node-with-a-long-name") for index in range(count))
    lines = status_lines(job_view(with_status(workers=workers)), NOW, width)
    drawn = [line for line in lines if line[:1] in "█░" or "┤" in line]
    assert all(len(line) <= width for line in drawn)
    assert len(lines) < 60


MOMENTS = st.lists(
    st.builds(TimelinePoint, st.floats(0, 1e6), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=30
).map(lambda moments: sorted(moments, key=lambda moment: moment.time))


@given(MOMENTS, st.integers(1, 40), st.integers(20, 200))
def test_a_plot_fits_and_is_never_higher_than_it_may_be(moments: list[TimelinePoint], wanted: int, width: int) -> None:
    lines = plot_workers(moments, wanted, width)
    assert all(len(line) <= width for line in lines[:-1])
    assert len(lines) <= 8


@given(MOMENTS, st.integers(8, 60))
def test_no_time_is_lost_between_columns(moments: list[TimelinePoint], columns: int) -> None:
    begin, end = moments[0].time, moments[-1].time
    averages = column_averages(moments, begin, end, columns, lambda moment: moment.workers)
    spans = zip(moments, [moment.time for moment in moments[1:]] + [end], strict=True)
    total = sum((until - moment.time) * moment.workers for moment, until in spans)
    step = (end - begin) / columns or 1.0
    assert sum(averages) * step == pytest.approx(total, abs=1e-3)


def test_one_moment_is_no_plot() -> None:
    assert plot_workers(TIMELINE[:1], 4, 80) == []


def test_the_newest_events_are_shown() -> None:
    assert (
        sum(
            "worker 0 started" in line
            for line in status_lines(job_view(replace(PUBLISHED, events=PUBLISHED.events[:1] * 9)), NOW, 80)
        )
        == 5
    )
