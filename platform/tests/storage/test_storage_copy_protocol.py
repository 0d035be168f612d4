"""Frames come out as they went in, and what is no frame is refused before anything is allocated."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import RefusedError
from edl.storage.copy_protocol import (
    DATA_FRAME,
    ERROR_FRAME,
    REPLY_FRAME,
    REQUEST_FRAME,
    CopyFrame,
    encode_frame,
    read_frame,
)

FRAMES = st.builds(
    CopyFrame, st.sampled_from([REQUEST_FRAME, REPLY_FRAME, DATA_FRAME, ERROR_FRAME]), st.binary(max_size=2000)
)


@given(st.lists(FRAMES, max_size=5))
def test_frames_survive_the_way(frames: list[CopyFrame]) -> None:
    pipe = io.BytesIO(b"".join(encode_frame(*each) for each in frames))
    assert [read_frame(pipe.read) for _ in frames] == frames
    assert read_frame(pipe.read) is None


@given(FRAMES, st.data())
def test_a_cut_is_no_end(whole: CopyFrame, data: st.DataObject) -> None:
    encoded = encode_frame(*whole)
    pipe = io.BytesIO(encoded[: data.draw(st.integers(1, len(encoded) - 1))])
    with pytest.raises(RefusedError, match="in the middle"):
        read_frame(pipe.read)


@pytest.mark.parametrize("head", [b"Z\0\0\0\0", b"D\xff\xff\xff\xff", b"HTTP/1.1 200"])
def test_what_is_no_frame_is_refused(head: bytes) -> None:
    with pytest.raises(RefusedError, match="not a message"):
        read_frame(io.BytesIO(head).read)


@pytest.mark.parametrize("payload", [b"{", b"[]"])
def test_an_answer_is_a_json_object(payload: bytes) -> None:
    with pytest.raises(RefusedError, match=r"not (a )?JSON"):
        CopyFrame(REPLY_FRAME, payload).json_payload()
