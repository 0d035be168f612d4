"""A large file is on its disk while it is written, and takes no more memory than a step of it."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest

from edl.storage import safetensors_writer
from edl.storage.safetensors_writer import ArrayShape, PacedWriter, write_array_parts, write_byte_stream

PART = memoryview(bytes(range(256)) * 4)


@pytest.fixture
def disk(monkeypatch):
    """What was told to the system, in order: bytes that were synced so far, and which were dropped from memory."""
    calls = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (real(file), calls.append(("sync", os.fstat(file).st_size)))[0])
    monkeypatch.setattr(os, "posix_fadvise", lambda file, at, count, advice: calls.append(("drop", at, count, advice)))
    return calls


DROPPED = ("drop", 0, 0, os.POSIX_FADV_DONTNEED)


def test_the_disk_is_waited_for_in_steps_and_at_the_end(tmp_path, disk):
    with PacedWriter(tmp_path / "file", step=2 * len(PART)) as file:
        for _ in range(5):
            file.write(PART)
        assert disk == [("sync", 2 * len(PART)), DROPPED, ("sync", 4 * len(PART)), DROPPED]
        file.sync()
    assert disk[4:] == [("sync", 5 * len(PART)), DROPPED]
    assert (tmp_path / "file").read_bytes() == bytes(PART) * 5


def test_a_part_longer_than_a_step_is_one_step(tmp_path, disk):
    with PacedWriter(tmp_path / "file", step=10) as file:
        file.write(PART)
    assert disk == [("sync", len(PART)), DROPPED]


def test_parts_have_their_places(tmp_path):
    with PacedWriter(tmp_path / "file") as file:
        file.write_at(4, memoryview(b"efgh"))
        file.write_at(0, memoryview(b"abcd"))
    assert (tmp_path / "file").read_bytes() == b"abcdefgh"


def test_what_was_there_is_overwritten(tmp_path):
    (tmp_path / "file").write_bytes(b"something longer")
    with PacedWriter(tmp_path / "file") as file:
        file.write(memoryview(b"new"))
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_system_that_takes_no_advice_keeps_the_pages(tmp_path, monkeypatch):
    def refused(*given):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fadvise", refused)
    with PacedWriter(tmp_path / "file", step=1) as file:
        file.write(PART)
    assert (tmp_path / "file").read_bytes() == bytes(PART)


def test_a_disk_that_fails_on_the_way_is_told_at_once(tmp_path, monkeypatch):
    def failing(file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"), PacedWriter(tmp_path / "file", step=1) as file:
        file.write(PART)


def test_checkpoints_and_exports_are_written_so(tmp_path, disk, monkeypatch):
    for module in (safetensors_writer,):
        monkeypatch.setattr(module, "PacedWriter", partial(PacedWriter, step=3 * len(PART)))
    values = np.zeros((12, len(PART)), np.uint8)

    def synced() -> list[int]:
        return [call[1] // len(PART) for call in disk if call[0] == "sync"]

    write_byte_stream(tmp_path / "export", [PART] * 12)
    assert synced() == [3, 6, 9, 12, 12]
    disk.clear()
    write_array_parts(tmp_path / "shard", [ArrayShape("x", "uint8", values.shape)], [("x", row) for row in values], {})
    assert synced()[:5] == [3, 6, 9, 12, 12], "beside the header, which is shorter than a part"
