"""Sizes, cores and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.jobfile import quantities


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("2Ki", 2048),
        ("2Mi", 2 << 20),
        ("1.5Gi", 3 << 29),
        ("1Ti", 1 << 40),
        ("3k", 3000),
        ("1.5G", 1_500_000_000),
    ],
)
def test_sizes_are_bytes(text: str, expected: int) -> None:
    assert quantities.parse_size(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("2", 2.0), ("500m", 0.5), ("1.5", 1.5), ("1m", 0.001)])
def test_cores(text: str, expected: float) -> None:
    assert quantities.parse_cores(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30m", 1800.0),
        ("1h30m", 5400.0),
        ("45s", 45.0),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("2d", 172800.0),
        ("1m5s", 65.0),
    ],
)
def test_durations_are_seconds(text: str, expected: float) -> None:
    assert quantities.parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "Mi", "2 Mi", "2MB", "-1", "1e3", "0.5", "1.2.3", "2Mi\n", "٣Mi"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(ValueError):
        quantities.parse_size(text)


@pytest.mark.parametrize("text", ["", "m", "2c", "-1", "1 m"])
def test_not_cores(text: str) -> None:
    with pytest.raises(ValueError):
        quantities.parse_cores(text)


@pytest.mark.parametrize("text", ["", "30", "30 m", "m", "-5s", "1h30", "5min"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError):
        quantities.parse_duration(text)


@given(st.integers(0, 10**15), st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]))
def test_sizes_scale_exactly(count: int, unit: str) -> None:
    assert quantities.parse_size(f"{count}{unit}") == count * quantities.parse_size(f"1{unit}")


@given(st.integers(0, 2**53))
def test_sizes_are_written_exactly(count: int) -> None:
    assert quantities.parse_size(quantities.format_size(count)) == count


@given(st.integers(0, 10**6))
def test_thousandths_of_a_core_are_written_exactly(thousandths: int) -> None:
    assert quantities.parse_cores(quantities.format_cores(thousandths / 1000)) == thousandths / 1000


@pytest.mark.parametrize(
    ("count", "text"), [(2.0, "2"), (0.25, "250m"), (0.1 + 0.2, "300m"), (0.0001, "1m"), (1e-12, "1m"), (0, "0")]
)
def test_cores_as_kubernetes_writes_them(count: float, text: str) -> None:
    assert quantities.format_cores(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(2 << 30, "2Gi"), (1536 << 20, "1536Mi"), (1_500_000_000, "1500000000"), (0, "0")]
)
def test_sizes_as_kubernetes_writes_them(count: int, text: str) -> None:
    assert quantities.format_size(count) == text
