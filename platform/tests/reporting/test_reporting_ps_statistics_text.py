"""What parameter servers did, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.text_keys import missing_keys

from edl.api.status import ParametersStatus, Summary, TableStatus
from edl.api.strategy import Strategy
from edl.reporting.event_text import format_block, summary_rows
from edl.reporting.ps_statistics_text import describe_strategy
from edl.reporting.unit_formats import format_bytes, format_percent

SYNC = Strategy(mode="sync", grads_to_wait=2, version_tolerance=1)


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        (Strategy(), ("async",)),
        (Strategy(staleness_aware=True, overlap=True), ("async", "staleness-aware", "overlapped")),
        (Strategy(get_model_steps=4), ("async", "4 steps")),
        (SYNC, ("sync", "2 gradients", "tolerance 1")),
        (Strategy(mode="sync"), ("sync", "1 gradient", "tolerance 0")),
    ],
)
def test_modes(strategy: Strategy, keys: tuple[str, ...]) -> None:
    assert not missing_keys(describe_strategy(strategy), *keys)
    assert describe_strategy(strategy).count(",") == len(keys) - 1


def test_the_end_of_a_synchronous_job() -> None:
    users = TableStatus("users", rows=980_000, bytes=64 << 20, evicted=12_000, max_rows=1_000_000, full=0.98)
    tables = (users, *(TableStatus(f"t{number}", number, 2**10 * number) for number in range(3, 0, -1)))
    parameters = ParametersStatus(SYNC, 940, 470, 60, staleness=0.44, stalest=1, tables=tables, tables_total=9)
    head, records, how, pushes, first, *tables, more = format_block(
        "Done", summary_rows(Summary(10, 10, parameters=parameters))
    )
    assert head == "Done"
    assert not missing_keys(records, "0 lost", "0 repeated", "0 rolled back")
    assert not missing_keys(how, describe_strategy(SYNC), "0.4 updates", "1")
    assert not missing_keys(pushes, "940", "470 updates", "60", "6 %")
    assert not missing_keys(first, "users", "980,000 rows", "64 MiB", "98 %", "ps.max_rows", "12,000 evicted")
    assert [line.split(":")[0].strip() for line in tables] == ["t3", "t2", "t1"]
    assert not missing_keys(more, "5 more")


def test_where_nothing_is_noteworthy_little_is_said() -> None:
    parameters = ParametersStatus(Strategy(), 940, 940, staleness=0.0)
    ((name, text),) = summary_rows(Summary(10, 10, parameters=parameters))[1:]
    assert (name, missing_keys(text, "async", "stale")) == ("mode", [])
    assert summary_rows(Summary(10, 10, parameters=ParametersStatus(SYNC)))[1:] == [("mode", describe_strategy(SYNC))]


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
    assert format_percent(share) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (9 << 53, "73,728 TiB")],
)
def test_sizes(count: int, words: str) -> None:
    assert format_bytes(count) == words


@given(st.integers(0, 2**60))
def test_a_size_is_within_five_percent(count: int) -> None:
    number, unit = format_bytes(count).split()
    factor = 1024 ** ("bytes", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert float(number.replace(",", "")) * factor == pytest.approx(count, rel=0.05)
