"""The fast checksum is zlib's, also of bytes that follow others; where ISA-L is missing, zlib's own is taken."""

from __future__ import annotations

import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.numerics.checksum import crc32

WITHOUT_ISAL = """
import sys, zlib
sys.modules["isal"] = None
from edl.numerics.checksum import crc32
assert crc32 is zlib.crc32
"""


@given(st.binary(max_size=5000), st.binary(max_size=5000))
def test_it_is_zlibs_crc32(front: bytes, back: bytes) -> None:
    assert crc32(front) == zlib.crc32(front)
    assert crc32(back, crc32(front)) == crc32(front + back) == zlib.crc32(front + back)


@pytest.mark.parametrize("made", [bytearray, memoryview])
def test_it_takes_every_buffer(made: type) -> None:
    assert crc32(made(b"abc" * 1000)) == zlib.crc32(b"abc" * 1000)


def test_without_isal_it_is_zlib() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_ISAL], check=True)
