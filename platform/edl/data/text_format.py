"""Lines of text: how a record lies in a file of text, or of JSON lines.

A record is a line of UTF-8 without its end (LF or CRLF), as ``bytes``. An empty line is a record of text; in JSON lines
(https://jsonlines.org) it is none.
"""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Mapping
from itertools import pairwise

from edl.data.block_file import FoundRecords
from edl.data.reader import NOT_UTF8, PackedRecords

NO_JSON_OBJECT = "not a JSON object"
"""Why a line of JSON cannot be used."""


class TextFormat:
    """See ``block_file.RecordFormat``."""

    name = "text"
    blocks_at_once = 1  # a byte order mark is dropped where a block begins, whatever range is read

    def find_records(self, content: bytes, *, check: bool) -> FoundRecords:
        """The complete lines; a line that is not UTF-8 is damaged."""
        end = content.rfind(b"\n") + 1
        lines = content
        if check:
            # The bytes of lines are needed, and not where they are in the file.
            lines = content[:end].removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")
        bounds = self._find_ends(lines)
        packed = PackedRecords(lines, bounds, 0, 1)
        return FoundRecords(packed, end, self._find_damage(packed) if check else {})

    def complete(self, rest: bytes) -> bytes:
        """The last line of a file may lack its end."""
        return rest + b"\n"

    def _find_ends(self, lines: bytes) -> array[int]:
        bounds, line_end = array("Q", [0]), lines.find(b"\n")
        while line_end >= 0:
            bounds.append(line_end + 1)
            line_end = lines.find(b"\n", line_end + 1)
        return bounds

    def _find_damage(self, lines: PackedRecords) -> Mapping[int, str]:
        if _is_utf8(lines.payload):
            return {}
        return {number: NOT_UTF8 for number in range(len(lines)) if not _is_utf8(lines[number])}


class JsonLinesFormat(TextFormat):
    """JSON lines: each record is one JSON object; line breaks before it belong to its bytes."""

    name = "jsonl"

    def complete(self, rest: bytes) -> bytes:
        """What is blank at the end of a file is no record."""
        return rest + b"\n" if rest.strip() else b""

    def _find_ends(self, lines: bytes) -> array[int]:
        bounds = array("Q", [0])
        for start, end in pairwise(super()._find_ends(lines)):
            if lines[start:end].strip():
                bounds.append(end)
        return bounds

    def _find_damage(self, lines: PackedRecords) -> Mapping[int, str]:
        damaged = dict(super()._find_damage(lines))
        for number in range(len(lines)):
            line = lines[number].strip()
            if not (line.startswith(b"{") and line.endswith(b"}")):
                damaged.setdefault(number, NO_JSON_OBJECT)
        return damaged


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
