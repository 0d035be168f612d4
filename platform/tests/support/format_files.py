"""Small data sets of each format, and what reading a damaged one gives."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from edl.api.errors import BadInputError
from edl.data.reader import CorruptRange
from edl.data.reader_factory import open_reader


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def tiny_png(text: bytes = b"") -> bytes:
    """A file that has the parts of an image, and a text in place of pixels."""
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"tEXt", text) + png_chunk(b"IEND", b"")


PNG = tiny_png()


def write_coco(folder: Path, numbers: range, file: Path, **changed: Any) -> Path:
    """Images with as many boxes as their number modulo 3, listed backwards."""
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (folder / "deep" / f"{number}.png").write_bytes(tiny_png(b"%d" % number))
    document = {
        "images": [{"id": number + 5, "file_name": f"deep/{number}.png"} for number in reversed(numbers)],
        "categories": [{"id": 90, "name": "dog"}, {"id": 7, "name": "cat"}],
        "annotations": [
            {"image_id": number + 5, "category_id": 90 if box else 7, "bbox": [number, box, 1.5, 2], "iscrowd": box}
            for box in range(2)
            for number in numbers
            if box < number % 3
        ],
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**document, **changed}))
    return folder


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def save_arrow(path: Path, table: pa.Table, batch_rows: int = 150, *, has_footer: bool = False) -> Path:
    with (pa.ipc.new_file if has_footer else pa.ipc.new_stream)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return path


def save_hugging_face(folder: Path, tables: list[pa.Table], features: dict[str, object]) -> Path:
    """What ``Dataset.save_to_disk`` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        save_arrow(folder / name, table)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features, "splits": None}))
    return folder


def read_damaged(path: Path, **options: Any) -> tuple[list[Any], list[CorruptRange]]:
    """All records that can be read, and what was reported."""
    reader, corrupt = open_reader(path, options), []
    (source,) = reader.sources()
    return list(reader.read(source.name, 0, source.records, corrupt.append)), corrupt


def write_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refuse(path: Path, **options: Any) -> BadInputError:
    """The error of a file that cannot be read."""
    reader = open_reader(path, options)

    def read_all() -> None:
        for source in reader.sources():
            reader.read(source.name, 0, source.records)

    with pytest.raises(BadInputError) as refused:
        read_all()
    return refused.value
