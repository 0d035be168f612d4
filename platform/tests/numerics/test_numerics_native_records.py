"""Records gathered and divided in native code are those of Python; what lies outside is refused (``make native-test``).

Here, not with the readers: what is marked ``native`` runs under sanitizers together.
"""

from __future__ import annotations

import importlib.util
import struct
from array import array
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.permutation import permute_index
from edl.data.shuffled_reader import fastest_gather, gather_in_python

if importlib.util.find_spec("edl.data._records") is not None:
    from edl.data import _records

pytestmark = pytest.mark.native

RECORDS = st.lists(st.binary(max_size=900), max_size=60)


def packed(records: list[bytes]) -> tuple[bytes, list[int]]:
    """As RecordIO has them: each after its length."""
    payload = b"".join(struct.pack("<I", len(record)) + record for record in records)
    ends = [0]
    for record in records:
        ends.append(ends[-1] + 4 + len(record))
    return payload, ends


def test_the_extension_does_it_where_there_is_one() -> None:
    assert fastest_gather() is _records.gather


@given(st.lists(RECORDS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_records_are_gathered_from_several_payloads_in_any_order(blocks: list[list[bytes]], random: object) -> None:
    payloads, places = [], []
    for owner, records in enumerate(blocks):
        payload, ends = packed(records)
        payloads.append(payload)
        places += [(owner, begin + 4, end) for begin, end in pairwise(ends)]
    random.shuffle(places)  # type: ignore[attr-defined]
    columns = np.array(places, np.int64).reshape(-1, 3)
    arrays = [np.ascontiguousarray(column) for column in columns.T]
    assert _records.gather(payloads, *arrays) == gather_in_python(payloads, *arrays)


@pytest.mark.parametrize("place", [(1, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 2, 1), (0, 0, 4), (0, 1 << 62, 1 << 63 - 1)])
def test_a_place_outside_of_the_payloads_is_refused(place: tuple[int, int, int]) -> None:
    arrays = [np.array([0, number], np.int64) for number in place]
    with pytest.raises(IndexError):
        _records.gather([b"abc"], *arrays)


def test_arrays_and_payloads_that_do_not_fit_are_refused() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="each record"):
        _records.gather([b"abc"], one, one, two)
    with pytest.raises(TypeError):
        _records.gather([bytearray(b"abc")], one, one, one)
    with pytest.raises(TypeError):
        _records.gather([b"abc"], one.astype(np.int32), one, one)


@given(RECORDS)
def test_a_payload_is_divided_where_its_lengths_say(records: list[bytes]) -> None:
    payload, ends = packed(records)
    record_ends = array("Q")
    record_ends.frombytes(_records.record_ends(payload, len(records)))
    assert record_ends.tolist() == ends


@given(RECORDS, st.integers(-3, 3), st.integers(-2, 2))
def test_lengths_that_do_not_add_up_are_found(records: list[bytes], more: int, count: int) -> None:
    payload, _ = packed(records)
    damaged = payload[: max(0, len(payload) + more)] + bytes(max(0, more))
    wanted = max(0, len(records) + count)
    record_ends = _records.record_ends(damaged, wanted)
    walked, position = 0, 0
    while walked < wanted and position + 4 <= len(damaged):
        position += 4 + int.from_bytes(damaged[position : position + 4], "little")
        walked += 1
    assert (record_ends is not None) == (walked == wanted and position == len(damaged))


@pytest.mark.parametrize("count", [1, 1 << 40, (1 << 63) - 1])
def test_no_memory_is_taken_for_more_records_than_a_payload_can_hold(count: int) -> None:
    assert _records.record_ends(b"\xff\xff\xff\xff", count) is None
    assert _records.record_ends(b"", count) is None


@given(st.integers(1, 1 << 62), st.data(), st.integers(0, 2**64 - 1))
def test_positions_are_permuted_as_python_does(count: int, data: st.DataObject, key: int) -> None:
    first = data.draw(st.integers(0, count))
    last = data.draw(st.integers(first, min(count, first + 20)))
    permuted = np.frombuffer(_records.permuted_range(first, last, count, key), np.int64).tolist()
    assert permuted == [permute_index(index, count, key) for index in range(first, last)]


@pytest.mark.parametrize(("first", "last", "count"), [(1, 0, 1), (0, 2, 1), (0, 1, 1 + (1 << 62))])
def test_positions_outside_of_the_permutation_are_refused(first: int, last: int, count: int) -> None:
    with pytest.raises(ValueError, match="count"):
        _records.permuted_range(first, last, count, 0)
