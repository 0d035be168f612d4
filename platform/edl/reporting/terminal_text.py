"""The border between text of strangers and a terminal: what a pod, a model or a file name says moves no cursor.

``sanitize_standard_streams`` stands between every ``print`` of a command and the terminal; what EDL itself draws (a
progress bar, a line that is rewritten) goes to ``raw_stream`` streams, with each text in it made
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
"""All control characters but tab and newline, and those that reverse the direction of writing."""
_LINE_BREAKS = re.compile(r"[ \t]*\n\s*")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def strip_control_characters(text: str) -> str:
    """``text`` without control characters and escape sequences; tabs and newlines stay.

    A carriage return within a line becomes a space, half a character (a lone surrogate) U+FFFD.
    """
    if text.isprintable():
        return text
    text = _CARRIAGE_RETURNS.sub("", _ESCAPE_SEQUENCES.sub("", text)).replace("\r", " ")
    return _SURROGATES.sub("\ufffd", _CONTROL_CHARACTERS.sub("", text))


def to_single_line(text: str) -> str:
    """``text`` as ``strip_control_characters`` gives it, with a space for each line break.

    A name in a line breaks none.
    """
    text = strip_control_characters(text)
    return _LINE_BREAKS.sub(" ", text).rstrip() if "\n" in text else text


class _SanitizedStream:
    """A text stream that makes all that is written to it printable; everything else is the stream's own."""

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
    """In here standard output and standard error of this process are made printable."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _SanitizedStream(raw_stream(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw_stream(stream: TextIO) -> TextIO:
    """The stream for EDL's own control sequences; every other text in it goes through ``strip_control_characters``."""
    return stream.raw_stream if isinstance(stream, _SanitizedStream) else stream
