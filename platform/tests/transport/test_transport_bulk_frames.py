"""Heads of bulk frames: what is written is read, anything else is refused before memory is spent on it."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.transport.bulk_connection import (
    HEAD_SIZE,
    MAX_META_BYTES,
    FrameKind,
    FrameLimits,
    decode_frame_head,
    encode_frame_head,
)
from edl.transport.handshake import PROTOCOL_VERSION
from edl.transport.peer_errors import PeerRefusedError

kinds = st.sampled_from(FrameKind)
LARGEST = FrameLimits(MAX_META_BYTES, 2**64 - 1)


@given(kinds, st.integers(0, MAX_META_BYTES), st.integers(0, 2**64 - 1))
def test_a_head_is_read_as_written(kind: FrameKind, meta: int, body: int) -> None:
    assert decode_frame_head(encode_frame_head(kind, meta, body), LARGEST) == (kind, meta, body)


def test_the_layout_is_the_documented_one() -> None:
    assert encode_frame_head(FrameKind.PUSH, 3, 4) == b"EDLB" + struct.pack("<HHIQ", PROTOCOL_VERSION, 10, 3, 4)


@given(
    kinds,
    st.integers(0, MAX_META_BYTES),
    st.integers(0, 2**64 - 1),
    st.integers(0, MAX_META_BYTES),
    st.integers(0, 2**40),
)
def test_no_head_above_the_limits_passes(kind: FrameKind, meta: int, body: int, most_meta: int, most_body: int) -> None:
    head = encode_frame_head(kind, meta, body)
    if meta <= most_meta and body <= most_body:
        assert decode_frame_head(head, FrameLimits(most_meta, most_body)).body_size == body
    else:
        with pytest.raises(PeerRefusedError, match="larger than") as refused:
            decode_frame_head(head, FrameLimits(most_meta, most_body))
        assert refused.value.kind == "bad"


@given(st.binary(min_size=HEAD_SIZE, max_size=HEAD_SIZE))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(PeerRefusedError):
        decode_frame_head(data, LARGEST)


@given(st.integers(0, 2**16 - 1).filter(lambda version: version != PROTOCOL_VERSION))
def test_another_version_is_refused_with_both_named(version: int) -> None:
    head = bytearray(encode_frame_head(FrameKind.PULL, 0, 0))
    struct.pack_into("<H", head, 4, version)
    with pytest.raises(PeerRefusedError, match=rf"\b{PROTOCOL_VERSION}\b.*\b{version}\n") as refused:
        decode_frame_head(head, LARGEST)
    assert refused.value.kind == "version"


@given(st.integers(0, 2**16 - 1).filter(lambda number: number not in set(FrameKind)))
def test_an_unknown_kind_is_refused(number: int) -> None:
    head = bytearray(encode_frame_head(FrameKind.PULL, 0, 0))
    struct.pack_into("<H", head, 6, number)
    with pytest.raises(PeerRefusedError, match=rf"kind.*\b{number}\b"):
        decode_frame_head(head, LARGEST)


def test_a_huge_length_costs_no_memory() -> None:
    head = encode_frame_head(FrameKind.PUSH, 0, 2**50)
    tracemalloc.start()
    try:
        with pytest.raises(PeerRefusedError):
            decode_frame_head(head, FrameLimits(MAX_META_BYTES, 2**30))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_meta_that_no_receiver_takes_is_not_sent() -> None:
    with pytest.raises(PeerRefusedError):
        encode_frame_head(FrameKind.DECLARE, MAX_META_BYTES + 1, 0)
