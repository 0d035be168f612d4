"""Copies a rank's state, or its share of the state, for a checkpoint. All ranks wait for the copies only.

A small state is copied and written by rank 0 alone. Of a large one, several ranks each copy and write a share: rank 0
announces the checkpoint with its message of a step, so all copy after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from edl.core.checkpoint_shares import SHARD_BYTES, choose_writer_count, divide_arrays
from edl.core.events import CheckpointOrder
from edl.worker.allreduce.checkpoint_writer import CheckpointWriter


class CopiedReplica(Protocol):
    """The state that is copied."""

    @property
    def rate_names(self) -> Collection[str]: ...
    def state_sizes(self) -> Mapping[str, int]: ...
    def state_arrays(self, names: Iterable[str] | None = None) -> Mapping[str, np.ndarray[Any, Any]]: ...


class RankSteps(Protocol):
    """Where this worker is; ``WorldClient`` implements it."""

    @property
    def rank(self) -> int: ...
    @property
    def step(self) -> int: ...
    def done_records(self) -> dict[int, int]: ...
    def request_report(self) -> None: ...


class CheckpointOrders(Protocol):
    """What the master asks for; ``RoundView`` implements it."""

    @property
    def checkpoint(self) -> CheckpointOrder | None: ...
    @property
    def must_pause(self) -> bool: ...


class CheckpointCopies:
    """Decides when this rank copies, and what.

    Args:
        replica: the state.
        world: the steps of this worker.
        writer: writes the copies.
        shard_bytes: least bytes of a shard.
        copying: entered while the state is copied: it may differ from that of a step in what the next one changes.
    """

    def __init__(
        self,
        replica: CopiedReplica,
        world: RankSteps,
        writer: CheckpointWriter,
        shard_bytes: int = SHARD_BYTES,
        copying: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._replica = replica
        self._world = world
        self._writer = writer
        self._shard_bytes = shard_bytes
        self._copying = copying
        self._sizes = replica.state_sizes()
        self._members: Sequence[str] = ()
        # The requests of other ranks than 0 wait half a second: the next checkpoint would wait as well.
        writer.call_when_written(world.request_report)

    def start_round(self, members: Sequence[str]) -> None:
        """A round of these workers runs."""
        self._members = members

    @property
    def _writer_count(self) -> int:
        return choose_writer_count(sum(self._sizes.values()), len(self._members), self._shard_bytes)

    def copy_alone(self, view: CheckpointOrders, *, is_paused: bool, in_round: bool = True) -> None:
        """Copy the whole state after this step if the master asks for it, and no other rank takes a share.

        Args:
            view: the newest view.
            is_paused: whether all ranks have heard that nobody trains any more.
            in_round: whether this worker is in a running round; outside it is the last one that has this state.
        """
        order = view.checkpoint
        if order is None or (in_round and self._writer_count > 1):
            return
        if self._world.step < order.at_step or not self._may_copy(order, view, is_paused=is_paused):
            return
        began = time.perf_counter()
        with self._writer.copying():
            with self._copying():
                arrays = self._replica.state_arrays()
            seconds = time.perf_counter() - began
            self._writer.begin(order.cut, self._world.step, self._world.done_records(), arrays, seconds)

    def announce(self, view: CheckpointOrders, *, is_paused: bool) -> int:
        """The checkpoint of which all writers copy their shares after the next step; 0: there is none.

        Only rank 0 announces one. It says the same until the step is made or the round breaks.
        """
        order = view.checkpoint
        if order is None or self._world.rank != 0 or self._writer_count == 1:
            return 0
        may_copy = self._world.step + 1 >= order.at_step and self._may_copy(order, view, is_paused=is_paused)
        return order.cut if may_copy else 0

    def _may_copy(self, order: CheckpointOrder, view: CheckpointOrders, *, is_paused: bool) -> bool:
        # All ranks heard of the pause with the last reduction, and this rank goes on saying so: no step follows.
        return self._writer.accepts(order.cut) and (not order.when_paused or (is_paused and view.must_pause))

    def copy_share(self, cut: int) -> None:
        """Rank 0 has announced a checkpoint of this step: copy this rank's share of the state, if it has one."""
        rank, writers = self._world.rank, self._members[: self._writer_count]
        if not cut or rank >= len(writers):
            return
        began = time.perf_counter()
        with self._writer.copying():
            with self._copying():
                # Only rank 0 surely knows the rate of the next step: callbacks of a rank that has just joined are new.
                shares = divide_arrays(self._sizes, len(writers), self._replica.rate_names)
                arrays = self._replica.state_arrays(shares[rank])
            done = self._world.done_records() if rank == 0 else {}
            self._writer.begin(
                cut,
                self._world.step,
                done,
                arrays,
                time.perf_counter() - began,
                shard_index=rank,
                writers=writers if rank == 0 else (),
            )
