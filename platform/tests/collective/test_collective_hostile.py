"""A neighbour that lies can end a round, and nothing else."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support.false_neighbour import FalseNeighbour
from support.hostile_contract import HostileContract
from support.rank_threads import NATIVE, NUMPY, Variant

from edl.collective.round_errors import RoundBrokenError
from edl.collective.shared_memory import SEGMENT_HEAD_BYTES, SharedSegment


class TestNumpyHostile(HostileContract):
    @pytest.fixture(params=NUMPY, ids=lambda variant: variant.name)
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        variant: Variant = request.param
        return variant


@pytest.mark.native
class TestNativeHostile(HostileContract):
    @pytest.fixture(params=NATIVE[:2], ids=lambda variant: variant.name)
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        variant: Variant = request.param
        return variant


@pytest.mark.native
@pytest.mark.parametrize("written", [1 << 63, (1 << 64) - 1, (1 << 20) + 1, 64])
def test_false_counters_in_shared_memory_end_the_round(tmp_path: Path, written: int) -> None:
    neighbour = FalseNeighbour(NATIVE[1], tmp_path)
    with neighbour.ranks, neighbour.round(shared_memory=True) as (communicator, connections, _):
        assert connections.next_memory is not None
        with mmap.mmap(connections.next_memory.memory, SEGMENT_HEAD_BYTES) as head:
            head[:8] = struct.pack("<Q", written)
            assert isinstance(neighbour.outcome(communicator), RoundBrokenError)


def unsealed_memory(folder: Path) -> int:
    return os.memfd_create("test")


def file_on_disk(folder: Path) -> int:
    return os.open(folder / "file", os.O_RDWR | os.O_CREAT)


def sealed_memory(folder: Path) -> int:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return memory


@pytest.mark.native
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (unsealed_memory, SEGMENT_HEAD_BYTES + 4096),
        (file_on_disk, SEGMENT_HEAD_BYTES + 4096),
        (sealed_memory, 0),
        (sealed_memory, SEGMENT_HEAD_BYTES),
        (sealed_memory, SEGMENT_HEAD_BYTES + 100),
        (sealed_memory, 1 << 40),
    ],
)
def test_shared_memory_is_checked_before_it_is_mapped(tmp_path: Path, make: Callable[[Path], int], size: int) -> None:
    from edl.collective import _ring

    segment, memory = SharedSegment.create(), make(tmp_path)
    os.ftruncate(memory, size)
    files = (memory, segment.data_event, segment.room_event)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="shared memory"):
        _ring.Ring(1, 1, 0, 2, ours.fileno(), theirs.fileno(), files, None, 2.0, 0.0)
    segment.close()
    os.close(memory)
