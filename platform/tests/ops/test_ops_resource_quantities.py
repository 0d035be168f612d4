from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.ops.resource_quantities import (
    format_amount,
    format_amounts,
    lacking_resources,
    max_resources,
    parse_quantity,
    parse_resources,
    subtract_resources,
    sum_resources,
)

AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.fractions(0, 1000))
NOT_NEGATIVE = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("500m", Fraction(1, 2)),
        ("250u", Fraction(1, 4000)),
        ("100n", Fraction(1, 10**7)),
        ("2Gi", 2 << 30),
        ("1.5Gi", 3 << 29),
        ("1k", 1000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("12e-1", Fraction(6, 5)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("-1", -1),
        (4, 4),
        (0.5, Fraction(1, 2)),
    ],
)
def test_a_quantity_means_its_number(text: str | float, number: float) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1Ki2", "1e", "--1", "1m1", "NaN", "∞", "1e9999999"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@given(NOT_NEGATIVE, st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M", "G"]))
def test_units_keep_the_order(number: int, unit: str) -> None:
    assert parse_quantity(f"{number}{unit}") < parse_quantity(f"{number + 1}{unit}")


@given(NOT_NEGATIVE)
def test_units_agree_with_each_other(number: int) -> None:
    assert parse_quantity(f"{number}000m") == parse_quantity(number) == parse_quantity(f"{number}e0")
    assert parse_quantity(f"{number}Ki") * 1024 == parse_quantity(f"{number}Mi")


@given(AMOUNTS, AMOUNTS)
def test_what_is_added_can_be_taken_away(one: dict[str, Fraction], other: dict[str, Fraction]) -> None:
    both = sum_resources([one, other])
    assert {name: subtract_resources(both, other)[name] for name in one} == one
    assert not lacking_resources(both, one)
    assert not lacking_resources(both, max_resources([one, other]))


@given(AMOUNTS)
def test_a_resource_that_is_not_there_is_lacking(wanted: dict[str, Fraction]) -> None:
    assert lacking_resources({}, wanted) == [name for name, amount in wanted.items() if amount]


def test_amounts_are_said_with_the_usual_units_and_in_the_usual_order() -> None:
    amounts = parse_resources({"nvidia.com/gpu": "2", "memory": "1536Mi", "cpu": "1500m", "hugepages-2Mi": "0"})
    assert format_amounts(amounts) == "1.5 CPU, 1.5 GiB, 2 nvidia.com/gpu"
    assert format_amount("requests.memory", parse_quantity("500")) == "500 bytes"
    assert format_amount("requests.cpu", parse_quantity("1234")) == "1,234 CPU"
    assert format_amount("requests.nvidia.com/gpu", parse_quantity(1)) == "1 nvidia.com/gpu"
    assert format_amounts({}) == "nothing"
