"""What parameter servers did, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.spec.closing import block, rows
from edl.spec.figures import mode, percent, size
from edl.spec.job import Strategy
from edl.spec.parameters import ParametersStatus, TableStatus
from edl.spec.status import Summary

SYNC = Strategy(mode="sync", grads_to_wait=2, version_tolerance=1)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Strategy(), "async"),
        (Strategy(staleness_aware=True, overlap=True), "async, staleness-aware, overlapped"),
        (Strategy(get_model_steps=4), "async, 4 steps between pulls"),
        (SYNC, "sync, 2 gradients an update, tolerance 1"),
        (Strategy(mode="sync"), "sync, 1 gradient an update, tolerance 0"),
    ],
)
def test_modes(strategy: Strategy, words: str) -> None:
    assert mode(strategy) == words


def test_the_end_of_a_synchronous_job() -> None:
    users = TableStatus("users", rows=980_000, bytes=64 << 20, evicted=12_000, max_rows=1_000_000, full=0.98)
    tables = (users, *(TableStatus(f"t{number}", number, 2**10 * number) for number in range(3, 0, -1)))
    told = ParametersStatus(SYNC, 940, 470, 60, staleness=0.44, stalest=1, tables=tables, tables_total=9)
    assert block("Done", rows(Summary(10, 10, parameters=told))) == [
        "Done",
        "  records   0 lost, 0 repeated, 0 rolled back",
        "  mode      sync, 2 gradients an update, tolerance 1; 0.4 updates stale on average, 1 at most",
        "  pushes    940 in 470 updates; 60 more were too old and computed again (6 % of all)",
        "  tables    users: 980,000 rows, 64 MiB, 98 % of ps.max_rows, 12,000 evicted",
        "            t3: 3 rows, 3.0 KiB",
        "            t2: 2 rows, 2.0 KiB",
        "            t1: 1 rows, 1.0 KiB",
        "            and 5 more",
    ]


def test_where_nothing_is_noteworthy_little_is_said() -> None:
    told = ParametersStatus(Strategy(), 940, 940, staleness=0.0)
    assert rows(Summary(10, 10, parameters=told))[1:] == [("mode", "async; no gradient was stale")]
    assert rows(Summary(10, 10, parameters=ParametersStatus(SYNC)))[1:] == [("mode", mode(SYNC))]


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0 %"),
        (0.0004, "0.0 %"),
        (0.0068, "0.7 %"),
        (0.064, "6 %"),
        (0.996, "99 %"),
        (1.0, "100 %"),
        (1.02, "102 %"),
    ],
)
def test_shares(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (9 << 53, "73,728 TiB")],
)
def test_sizes(count: int, words: str) -> None:
    assert size(count) == words


@given(st.integers(0, 2**60))
def test_a_size_is_within_five_percent(count: int) -> None:
    number, unit = size(count).split()
    factor = 1024 ** ("bytes", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert float(number.replace(",", "")) * factor == pytest.approx(count, rel=0.05)
