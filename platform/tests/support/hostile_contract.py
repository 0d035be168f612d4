"""What a rank may be sent by a neighbour that lies: one suite, which each implementation of reductions runs."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.false_neighbour import BODY, FalseNeighbour, first_header
from support.rank_threads import Variant

from edl.api.round_id import RoundId
from edl.collective.round_errors import RoundBrokenError
from edl.collective.round_frames import HEADER_SIZE, RoundHeader
from edl.transport.bulk_connection import FrameKind

LARGE = 2**32 - 1


class HostileContract:
    """Subclasses name the ``variant`` fixture's parameters."""

    @pytest.fixture
    def neighbour(self, variant: Variant, tmp_path: Path) -> Iterator[FalseNeighbour]:
        neighbour = FalseNeighbour(variant, tmp_path)
        with neighbour.ranks:
            yield neighbour

    def test_the_right_frame_is_taken(self, neighbour: FalseNeighbour) -> None:
        with neighbour.round() as (communicator, connections, round_id):
            connections.next.sendall(first_header(round_id) + BODY)
            buffer = np.ones(100, np.float32)
            assert communicator.all_reduce(buffer, b"x") == [b"x", b"y"]
            np.testing.assert_array_equal(buffer, 2)

    def test_no_byte_of_a_header_may_differ(self, neighbour: FalseNeighbour) -> None:
        for position in range(HEADER_SIZE):
            with neighbour.round() as (communicator, connections, round_id):
                header = bytearray(first_header(round_id))
                header[position] ^= 0xFF
                connections.next.sendall(header + BODY)
                error = neighbour.outcome(communicator)
                assert isinstance(error, RoundBrokenError), position
                assert error.rank == 1

    @pytest.mark.parametrize("field", ["body_size", "control_size", "offset", "sequence"])
    def test_no_memory_is_taken_for_what_a_header_claims(self, neighbour: FalseNeighbour, field: str) -> None:
        with neighbour.round() as (communicator, connections, round_id):
            connections.next.sendall(first_header(round_id, **{field: LARGE - 100}) + BODY)
            tracemalloc.start()
            error = neighbour.outcome(communicator)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert isinstance(error, RoundBrokenError)
            assert peak < 4 << 20

    @pytest.mark.parametrize("change", [(0, -1), (0, 1), (-1, 0), (1, 0)])
    def test_a_frame_of_another_round_is_refused(self, neighbour: FalseNeighbour, change: tuple[int, int]) -> None:
        with neighbour.round() as (communicator, connections, round_id):
            other = RoundId(round_id.incarnation + change[0], round_id.number + change[1])
            connections.next.sendall(first_header(other) + BODY)
            error = neighbour.outcome(communicator)
            assert isinstance(error, RoundBrokenError)
            assert "no frame of this round" in str(error)

    def test_random_bytes_instead_of_frames_or_heartbeats(self, neighbour: FalseNeighbour) -> None:
        for number in range(20):
            with neighbour.round() as (communicator, connections, _):
                sock = connections.next if number % 2 else connections.previous
                sock.sendall(os.urandom(HEADER_SIZE * 3))
                error = neighbour.outcome(communicator)
                assert isinstance(error, RoundBrokenError)
                assert error.rank == 1

    @pytest.mark.parametrize("kind", [FrameKind.ROUND_BROKEN, FrameKind.HEARTBEAT, FrameKind.ROUND_LEFT])
    def test_a_rank_that_does_not_exist_is_not_believed(self, neighbour: FalseNeighbour, kind: FrameKind) -> None:
        with neighbour.round() as (communicator, connections, round_id):
            connections.previous.sendall(RoundHeader(kind, round_id, 2**31).encode())
            error = neighbour.outcome(communicator)
            assert isinstance(error, RoundBrokenError)
            assert error.rank == 1

    def test_a_neighbour_that_stops_in_the_middle_of_a_frame(self, neighbour: FalseNeighbour) -> None:
        for length in (1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 64, HEADER_SIZE + 66):
            with neighbour.round() as (communicator, connections, round_id):
                connections.next.sendall((first_header(round_id) + BODY)[:length])
                connections.next.close()
                error = neighbour.outcome(communicator)
                assert isinstance(error, RoundBrokenError)

    def test_a_neighbour_that_sends_no_heartbeat_is_lost_when_the_time_to_connect_is_over(
        self, neighbour: FalseNeighbour
    ) -> None:
        begun = time.monotonic()
        with neighbour.round(timeout=0.5, heartbeat_timeout=0.1) as (communicator, _, _):
            error = neighbour.outcome(communicator)
        assert isinstance(error, RoundBrokenError)
        assert (error.rank, "silent" in str(error)) == (1, True)
        assert time.monotonic() - begun > 0.5
