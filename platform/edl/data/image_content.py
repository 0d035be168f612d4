"""Finds images that cannot be decoded, without decoding them: those that are cut off, and PNG with wrong checksums.

Decoding takes a hundred times as long and is left to ``feed``. What these checks miss is rare: other bytes in the
middle of a file of the right length.
"""

from __future__ import annotations

import zlib

_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"RIFF")
NO_IMAGE = "the file does not begin like a JPEG, PNG, GIF, BMP or WebP image"
"""Why an image cannot be read."""
TRUNCATED = "the image is truncated"
WRONG_CHECKSUM = "the image has a wrong checksum"
_MARKERS_ALONE = frozenset(range(0xD0, 0xD8)) | {0x01}
"""Markers of JPEG without a length."""
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, b"\xff\xd9"


def find_image_fault(content: bytes) -> str | None:
    """Why the bytes of a file are no image, in one clause; None: nothing speaks against it."""
    if not content.startswith(_SIGNATURES):
        return NO_IMAGE
    if content.startswith(b"\xff\xd8"):
        return None if _is_whole_jpeg(content) else TRUNCATED
    if content.startswith(b"\x89PNG"):
        return _find_png_fault(content)
    if content.startswith(b"GIF8"):
        return None if content.rstrip(b"\0").endswith(b";") else TRUNCATED
    if content.startswith(b"BM"):
        return None if int.from_bytes(content[2:6], "little") <= len(content) else TRUNCATED
    return None if int.from_bytes(content[4:8], "little") + 8 <= len(content) else TRUNCATED


def _is_whole_jpeg(content: bytes) -> bool:
    """Whether an end follows the first scan. A thumbnail before it has an end of its own."""
    at = 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == _START_OF_SCAN:
            return content.rfind(_END_OF_IMAGE) > at
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _MARKERS_ALONE:
            at += 2
        else:
            at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    # The file ends before its first scan. What does not follow the rules is left to whoever decodes it.
    return at + 4 <= len(content)


def _find_png_fault(content: bytes) -> str | None:
    at = 8
    while at + 12 <= len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        end = at + 8 + size
        if end + 4 > len(content):
            return TRUNCATED
        if zlib.crc32(memoryview(content)[at + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            return WRONG_CHECKSUM
        if content[at + 4 : at + 8] == b"IEND":
            return None
        at = end + 4
    return TRUNCATED
