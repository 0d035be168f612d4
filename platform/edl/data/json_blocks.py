"""Blocks of JSON lines as Arrow tables. A line that cannot be read with the others of its block is named."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.json as pajson

from edl.api.errors import BadInputError
from edl.data.text_format import NO_JSON_OBJECT, JsonLinesFormat


class JsonBlock(NamedTuple):
    """Whole lines of a file.

    Args:
        record: number of the first line in the file; blank lines do not count.
        offset: of the first byte in the file, or in what is in a compressed one.
        content: without the last line end.
    """

    record: int
    offset: int
    content: bytes


class _Line(NamedTuple):
    record: int
    offset: int
    content: bytes


class SoundLines(NamedTuple):
    """The lines of a block that are objects, as a table.

    Args:
        table: None: no line is one.
        damaged: places of the others.
    """

    table: Any
    damaged: Sequence[str]


def split_json_blocks(text: Any, block_bytes: int) -> Iterator[JsonBlock]:
    """Blocks of about the same size."""
    record = offset = 0
    rest = b""
    while data := text.read(block_bytes):
        whole, end, rest = (rest + data).rpartition(b"\n")
        if end:
            yield JsonBlock(record, offset, whole)
            record += sum(1 for line in whole.split(b"\n") if line.strip())
            offset += len(whole) + 1
    if rest:
        yield JsonBlock(record, offset, rest)


def parse_sound_lines(
    file: Path, block: JsonBlock, columns: Sequence[str], options: pajson.ParseOptions | None = None
) -> SoundLines:
    """A block as an Arrow table. What the readers of jobs count as corrupt is left out.

    Args:
        file: of the block.
        block: its lines.
        columns: only these must have one type in the block; all by default.
        options: for Arrow; by default it infers types.

    Raises:
        BadInputError: a line is no JSON, or has a value of another type than those before it; names the line.
    """

    def parse(content: bytes) -> Any:
        read = pajson.ReadOptions(use_threads=False, block_size=len(content) + 1)
        return pajson.read_json(pa.BufferReader(content), read, options)

    if not block.content.strip():
        return SoundLines(None, ())
    try:
        return SoundLines(parse(block.content), ())
    except pa.ArrowInvalid:
        pass  # seldom, so that not every line is looked at
    lines, damaged = _find_objects(file, block)
    if columns:
        lines = [line._replace(content=_only(file, line, columns)) for line in lines]
    if not lines:
        return SoundLines(None, damaged)
    try:
        return SoundLines(parse(_join(lines)), damaged)
    except pa.ArrowInvalid as error:
        raise _line_error(file, _find_refused(lines, parse), str(error).partition(" in row ")[0]) from error


def _find_objects(file: Path, block: JsonBlock) -> tuple[list[_Line], list[str]]:
    lines, damaged = [], []
    record, offset = block.record, block.offset
    for content in block.content.split(b"\n"):
        if content.strip():
            line = content if offset else content.removeprefix(codecs.BOM_UTF8)
            if reasons := JsonLinesFormat().find_records(line + b"\n", check=True).damaged:
                damaged.append(f"{file}, byte {offset}: {reasons.get(0, NO_JSON_OBJECT)}")
            else:
                lines.append(_Line(record, offset, line))
            record += 1
        offset += len(content) + 1
    return lines, damaged


def _only(file: Path, line: _Line, columns: Sequence[str]) -> bytes:
    try:
        row = json.loads(line.content)
    except ValueError as error:
        raise _line_error(file, line, str(error)) from error
    return json.dumps({name: row[name] for name in columns if name in row}).encode()


def _join(lines: Sequence[_Line]) -> bytes:
    return b"\n".join(line.content for line in lines)


def _find_refused(lines: Sequence[_Line], parse: Callable[[bytes], Any]) -> _Line:
    """The first line that cannot be read after those before it. Arrow's number of it leaves out blank ones."""
    good, bad = 0, len(lines)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            parse(_join(lines[:middle]))
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return lines[bad - 1]


def _line_error(file: Path, line: _Line, reason: str) -> BadInputError:
    return BadInputError(
        f"record {line.record} (byte {line.offset}) cannot be read with those before it: {reason}",
        where=str(file),
        hint="mend the line, write each column with one type, or name the other columns with --columns",
    )
