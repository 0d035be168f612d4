"""What parameter servers tell, put together: who counts what, what stays when one is replaced, how large it may be."""

from __future__ import annotations

import json
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from edl.api.status import AWAITED_SHOWN, NAME_LENGTH, TABLES_SHOWN, ParametersStatus, RoundStatus, TableStatus
from edl.api.strategy import PushStrategy
from edl.jobfile.section_type import from_json, to_json
from edl.master.ps_metrics import PsMetrics
from edl.transport import edl_pb2 as pb

SYNC = PushStrategy(mode="sync", grads_to_wait=2)


def use(name: str, rows: int, bound: int = 0, dropped: int = 0) -> pb.TableUse:
    return pb.TableUse(name=name, rows=rows, bytes=100 * rows, dropped=dropped, bound=bound)


def figures(clock: float = 0.0, max_rows: int | None = None) -> PsMetrics:
    return PsMetrics(SYNC, max_rows, clock=lambda: clock)


def test_before_anybody_speaks_the_mode_is_known() -> None:
    assert figures().parameters_status() == ParametersStatus(SYNC)


def test_a_push_goes_to_all_parameter_servers_and_counts_once() -> None:
    metrics = figures()
    metrics.record_report("a", 0, pb.PsFigures(entered=100, updates=50, refused=7, staleness=60, stalest=3))
    metrics.record_report("b", 1, pb.PsFigures(entered=98, updates=49, staleness=138, stalest=5))
    parameters = metrics.parameters_status()
    assert (parameters.pushes, parameters.updates, parameters.refused, parameters.stalest) == (100, 50, 7, 5)
    assert parameters.staleness == 1.0
    assert round(parameters.refused_share, 3) == 0.065


def test_what_a_lost_process_had_counted_stays_and_its_tables_go() -> None:
    metrics = figures()
    metrics.record_report("a", 0, pb.PsFigures(entered=10, updates=5, refused=2, tables=[use("t", 4)]))
    metrics.record_report("a", 0, pb.PsFigures(entered=20, updates=10, refused=3, tables=[use("t", 8)]))
    metrics.record_report("a2", 0, pb.PsFigures(entered=1, updates=1, tables=[use("t", 1)]))
    metrics.record_report("a3", 0, pb.PsFigures(entered=4, updates=2, tables=[use("t", 3)]))
    parameters = metrics.parameters_status()
    assert (parameters.pushes, parameters.updates, parameters.refused) == (25, 13, 3)
    assert [table.rows for table in parameters.tables] == [3]


def test_a_table_is_as_full_as_on_its_fullest_server() -> None:
    metrics = figures(max_rows=20)
    metrics.record_report("a", 0, pb.PsFigures(tables=[use("users", 9, 10, dropped=1), use("tags", 2, 10)]))
    metrics.record_report("b", 1, pb.PsFigures(tables=[use("users", 5, 10, dropped=3), use("tags", 3, 10)]))
    assert metrics.parameters_status().tables == (
        TableStatus("users", rows=14, bytes=1400, evicted=4, max_rows=20, full=0.9),
        TableStatus("tags", rows=5, bytes=500, evicted=0, max_rows=20, full=0.3),
    )


def test_an_update_that_waits_is_told_by_the_first_server_as_long_as_it_speaks() -> None:
    clock = count(start=0, step=4)
    metrics = PsMetrics(SYNC, None, clock=lambda: next(clock))
    forming = pb.Forming(wanted=9, arrived=[3, 1], awaited=list(range(20)), seconds=2.5)
    metrics.record_report("b", 1, pb.PsFigures(forming=forming))
    assert metrics.parameters_status().round is None
    metrics.record_report("a", 0, pb.PsFigures(forming=forming))
    first = RoundStatus(arrived=2, wanted=9, awaited=tuple(range(AWAITED_SHOWN)), awaited_total=20, seconds=2.5)
    assert [metrics.parameters_status().round for _ in range(2)] == [first, None]


messages = st.builds(
    pb.PsFigures,
    **{name: st.integers(-5, 2**40) for name in ("entered", "updates", "refused", "staleness", "stalest")},
    forming=st.none()
    | st.builds(
        pb.Forming,
        wanted=st.integers(-5, 5),
        arrived=st.lists(st.integers(0, 9), max_size=5),
        awaited=st.lists(st.integers(-5, 2000), max_size=40),
        seconds=st.floats(-1, 1e6),
    ),
    tables=st.lists(
        st.builds(
            pb.TableUse,
            name=st.text(max_size=2 * NAME_LENGTH),
            rows=st.integers(-5, 2**40),
            bytes=st.integers(-5, 2**50),
            dropped=st.integers(-5, 2**40),
            bound=st.integers(-5, 2**40),
        ),
        max_size=2 * TABLES_SHOWN,
    ),
)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), messages), max_size=5))
def test_whatever_they_tell_can_be_read_back_and_is_small(history: list[tuple[str, int, pb.PsFigures]]) -> None:
    metrics = figures(max_rows=7)
    for uid, index, message in history:
        metrics.record_report(uid, index, message)
    parameters = metrics.parameters_status()
    assert from_json(ParametersStatus, to_json(parameters)) == parameters
    assert len(json.dumps(to_json(parameters))) < 32 << 10
    assert parameters.tables_total >= len(parameters.tables)
