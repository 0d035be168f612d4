"""Sanitizes text before it reaches a terminal, so that a pod, a model or a file name cannot send control sequences.

``sanitize_standard_streams`` sanitizes everything that a command prints. EDL's own control sequences (a progress bar,
a line that is rewritten) are written to a ``raw_stream``, and each text in them is passed through
``strip_control_characters``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, screen
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC: titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]?"
)
_CARRIAGE_RETURNS = re.compile(r"\r+(?=\n)")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""All control characters except tab and newline, and characters that change the direction of writing."""
_LINE_BREAKS = re.compile(r"[ \t]*\n\s*")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def strip_control_characters(text: str) -> str:
    """``text`` without control characters and escape sequences. Tabs and newlines are kept.

    A carriage return within a line becomes a space, a lone surrogate becomes U+FFFD.
    """
    if text.isprintable():  # the usual case, without regular expressions
        return text
    text = _CARRIAGE_RETURNS.sub("", _ESCAPE_SEQUENCES.sub("", text)).replace("\r", " ")
    return _SURROGATES.sub("\ufffd", _CONTROL_CHARACTERS.sub("", text))


def to_single_line(text: str) -> str:
    """``text`` without control characters, and with a space for each line break.

    Used for text within a line, such as names, which must not break it.
    """
    text = strip_control_characters(text)
    return _LINE_BREAKS.sub(" ", text).rstrip() if "\n" in text else text


class _SanitizedStream:
    """A text stream that sanitizes everything that is written to it. Other attributes are those of the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.raw_stream = stream

    def write(self, text: str) -> int:
        self.raw_stream.write(strip_control_characters(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw_stream, name)


@contextmanager
def sanitize_standard_streams() -> Iterator[None]:
    """Sanitize standard output and standard error of this process within the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _SanitizedStream(raw_stream(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw_stream(stream: TextIO) -> TextIO:
    """The underlying stream, for EDL's control sequences. Text in it must pass ``strip_control_characters``."""
    return stream.raw_stream if isinstance(stream, _SanitizedStream) else stream
