"""A rank that knows the token and sends what it likes: its connections without the code that uses them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from support.rank_threads import BOUND, RankThreads, Variant

from edl.api.round_id import RoundId
from edl.collective.communicator import Communicator
from edl.collective.element_types import find_element_type
from edl.collective.neighbours import Neighbours, connect_neighbours
from edl.collective.reduction_plan import Algorithm
from edl.collective.round_frames import RoundHeader
from edl.transport.bulk_connection import FrameKind

COUNT = 100
"""Elements (float32) of the buffer that the honest rank reduces."""


class FalseNeighbour:
    """Rank 1 of rounds of two ranks; rank 0 is honest."""

    def __init__(self, variant: Variant, folder: Path) -> None:
        self._variant = variant
        self._numbers = itertools.count(1)
        self.ranks = RankThreads(variant, folder, most=2)

    @contextmanager
    def round(
        self, *, shared_memory: bool = False, **options: Any
    ) -> Iterator[tuple[Communicator, Neighbours, RoundId]]:
        """A new round: the honest rank, which connects with ``options``, and the other's connections."""
        round_id = RoundId(7, next(self._numbers))
        ours, theirs = self.ranks.listeners
        members = [ours.address, theirs.address]

        def connect(rank: int) -> Any:
            if rank == 0:
                native = self._variant.native[0]
                return Communicator.connect(ours, round_id, 0, members, native=native, **({"timeout": BOUND} | options))
            return connect_neighbours(theirs, round_id, 1, members, timeout=BOUND, shared_memory=shared_memory)

        communicator, neighbours = self.ranks.each(connect, range(2))
        try:
            yield communicator, neighbours, round_id
        finally:
            communicator.close()
            neighbours.close()

    @staticmethod
    def outcome(communicator: Communicator) -> BaseException | None:
        """What the honest rank's reduction raises."""
        try:
            communicator.all_reduce(np.ones(COUNT, np.float32), b"x", algorithm=Algorithm.GATHER)
        except Exception as error:
            return error
        return None


def first_header(round_id: RoundId, **fields: Any) -> bytes:
    """The header of the frame that the honest rank expects, but for these fields; its control message has one byte."""
    right: dict[str, Any] = {
        "kind": FrameKind.CHUNK,
        "round_id": round_id,
        "rank": 1,
        "body_size": 4 * COUNT,
        "control_size": 1,
        "algorithm": Algorithm.GATHER,
        "element": find_element_type(np.dtype(np.float32)).number,
    }
    return RoundHeader(**{**right, **fields}).encode()


BODY = b"y".ljust(64, b"\0") + np.ones(COUNT, np.float32).tobytes()
