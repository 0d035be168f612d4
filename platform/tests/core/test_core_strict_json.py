"""JSON from outside."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.strict_json import MAX_DEPTH, decode_json, escape_surrogates


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (rb'"\ud800"', "surrogate"),
        (rb'{"\udfff": 1}', "surrogate"),
        (b'"\xed\xa0\x80"', "utf-8"),
        (b"\xff", "utf-8"),
        (b"9" * 400, "400 digits"),
        (b"-" + b"9" * 400, "400 digits"),
        (b"9" * 5000, "digits"),
        (b"[NaN]", "not finite"),
        (b"1e999", "not finite"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deeper"),
        (b"[" * 100_000, "deeper"),
        (b"{", "Expecting"),
        (b"", "Expecting"),
    ],
)
def test_what_would_fail_later_is_refused_at_once(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_json(text)


def test_numbers_that_are_not_finite_become_none_where_they_may_be() -> None:
    assert decode_json(b'{"a": [NaN, -Infinity, 1e999, 1]}', nonfinite_as_none=True) == {"a": [None, None, None, 1]}


@given(st.recursive(st.none() | st.booleans() | st.text() | st.integers(-(2**63) + 1, 2**63 - 1), st.lists))
def test_all_else_comes_through(value: object) -> None:
    assert decode_json(json.dumps(value)) == value


@given(st.text(st.characters()))
def test_any_text_can_be_made_one_that_can_be_written(text: str) -> None:
    written = escape_surrogates(text)
    assert written.encode().decode() == written
    assert escape_surrogates(written) == written
    assert text.isascii() <= (written == text)
