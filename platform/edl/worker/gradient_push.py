"""One step as it goes to the parameter servers, and what they say to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edl.keras.flat_buffer import FlatLayout
from edl.numerics import aligned_memory
from edl.numerics.array_types import Floats, Ids, RowsByTable
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import FrameKind
from edl.transport.message_validation import parse_message
from edl.worker.ps_connections import PsBulkConnections, PsDirectory, PsRequest

# --------------------------------------------------------------------------------------------------
# Which rows go to which parameter server, and where in a batch they belong.


_ALL_ROWS = slice(None)


@dataclass(frozen=True, slots=True)
class RowRoute:
    """Some rows of a table that one PS owns: which of a batch, and how many. All of them are a slice: no copy."""

    index: slice | npt.NDArray[np.int64]
    count: int


RoutesByTable: TypeAlias = Mapping[str, RowRoute]
"""By table; of one PS."""


def route_rows(
    ids: Mapping[str, Ids], ps_indices: Sequence[int], ps_of_rows: Callable[[Ids], Ids]
) -> dict[int, dict[str, RowRoute]]:
    """The routes to every PS that owns one of the ids.

    Args:
        ids: by table.
        parts: all PS.
        owners: the PS of each id.
    """
    if len(ps_indices) == 1:
        whole = {table: RowRoute(_ALL_ROWS, len(wanted)) for table, wanted in ids.items() if len(wanted)}
        return {ps_indices[0]: whole} if whole else {}
    routes_by_ps: dict[int, dict[str, RowRoute]] = {}
    for table, wanted in ids.items():
        owner = ps_of_rows(wanted)
        for ps_index in ps_indices:
            index = np.flatnonzero(owner == ps_index)
            if len(index):
                routes_by_ps.setdefault(ps_index, {})[table] = RowRoute(index, len(index))
    return routes_by_ps


def table_headers(routes: RoutesByTable) -> list[pb.TableRows]:
    """What a frame says of the rows in it."""
    return [pb.TableRows(name=table, count=route.count) for table, route in routes.items()]


def allocate_rows(routes: RoutesByTable, dims: Mapping[str, int]) -> Floats:
    """Memory for the rows of one PS, table after table."""
    return aligned_memory.allocate_aligned(sum(route.count * dims[table] for table, route in routes.items()))


def as_wire_buffer(array: Floats | Ids) -> memoryview:
    """An array as it goes on the wire; copied if it is not contiguous."""
    return np.ascontiguousarray(array).data


def scatter_rows(values: dict[str, Floats], routes: RoutesByTable, dims: Mapping[str, int], flat: Floats) -> None:
    """Put the rows that one PS sent where they belong; a whole table's are taken as they are.

    Args:
        values: by table, ``[n, dim]``; changed.
        where: what ``flat`` holds.
        dims: length of a row by table.
        flat: rows, table after table; kept.
    """
    offset = 0
    for table, route in routes.items():
        size = route.count * dims[table]
        rows = flat[offset : offset + size].reshape(route.count, dims[table])
        if isinstance(route.index, slice):
            values[table] = rows
        else:
            values[table][route.index] = rows
        offset += size


_REVOKED, _STALE = pb.Pushed.REVOKED, pb.Pushed.STALE


@dataclass(frozen=True, slots=True)
class GradientPush:
    """One step of one lease.

    Attributes:
        lease: the lease's number.
        step: index in the lease, from 0.
        learning_rate: of this step.
        weight: records of this minibatch by records of a full one; weighs statistics.
        slab: gradients (statistics: deltas), float32; None for a step that applies nothing.
        rows: gradients by table, aligned to their ids.
        versions: by PS, of the values that it was computed at (``Parameters.versions``).
        following: the lease of the push after this one; 0 if there is none in hand: rounds do not wait for it.
    """

    lease: int
    step: int
    learning_rate: float = 0.0
    weight: float = 0.0
    slab: Floats | None = None
    rows: RowsByTable | None = None
    versions: tuple[int, ...] = ()
    following: int = 0


@dataclass(frozen=True, slots=True)
class PushOutcome:
    """What the PS said.

    Attributes:
        revoked: one of them refuses the lease.
        stale: nothing was applied anywhere: the gradient is to be computed again, of the values as they are now.
        versions: theirs, by PS.
        complete: all of them answered with their dense values.
    """

    revoked: bool
    stale: bool
    versions: Mapping[int, int]
    complete: bool

    @property
    def version(self) -> int:
        """The highest of theirs."""
        return max(self.versions.values())

    @property
    def is_applied(self) -> bool:
        """The step is on all PS."""
        return not (self.revoked or self.stale)


class PushSender:
    """Sends steps to all parameter servers.

    Args:
        directory: which PS owns which rows, and which master leads.
        exchange: the connections.
        layout: how the model lies in the slab.
        worker: index of this worker.
        rounds: the first PS puts pushes together to updates, and the others follow it (``strategy.mode: sync``).
    """

    def __init__(
        self,
        directory: PsDirectory,
        connections: PsBulkConnections,
        layout: FlatLayout,
        *,
        worker_index: int,
        synchronous: bool,
    ) -> None:
        self._directory = directory
        self._connections = connections
        self._layout = layout
        self._worker_index = worker_index
        self._send_order = (
            [layout.parts[:1], layout.parts[1:]] if synchronous and len(layout.parts) > 1 else [layout.parts]
        )

    def send(self, push: GradientPush, receive_buffer: Floats | None) -> PushOutcome:
        """Send one step to every PS; returns when all have answered, or when the first says that it is for nothing.

        Args:
            push: the step.
            slab: gets the dense values that the PS answer with; None: they answer without any.

        Raises:
            JobFailedError: a PS did not answer for longer than the patience.
            RefusedError: a PS refused for good.
        """
        routes = self._route_rows(push)
        has_all_values = receive_buffer is not None
        replies: dict[int, pb.Pushed] = {}
        for ps_group in self._send_order:
            shares = self._round_shares(push, replies)
            requests = {
                part: self._make_request(push, part, routes.get(part, {}), receive_buffer, shares) for part in ps_group
            }
            for part, frame in self._connections(requests).items():
                has_all_values = (
                    has_all_values
                    and receive_buffer is not None
                    and self._layout.take(receive_buffer, part, frame.body)
                )
                replies[part] = parse_message(pb.Pushed, frame.meta)
            if any(reply.outcome in (_REVOKED, _STALE) for reply in replies.values()):
                break
        return _combine_replies(replies, has_all_values=has_all_values and len(replies) == len(self._layout.parts))

    def _route_rows(self, push: GradientPush) -> Mapping[int, RoutesByTable]:
        ids = {table: rows.ids for table, rows in (push.rows or {}).items()}
        return route_rows(ids, self._layout.parts, self._directory.placement.ps_of_rows)

    @staticmethod
    def _round_shares(push: GradientPush, replies: Mapping[int, pb.Pushed]) -> Sequence[pb.Share]:
        """What the followers of the first PS are told of the round: this push alone if it has forgotten it."""
        if not replies:
            return ()
        return list(replies[0].round) or [pb.Share(lease=push.lease, step=push.step)]

    def _make_request(
        self,
        push: GradientPush,
        ps_index: int,
        routes_by_table: RoutesByTable,
        receive_buffer: Floats | None,
        shares: Sequence[pb.Share],
    ) -> PsRequest:
        head = pb.Push(
            worker=self._worker_index,
            lease=push.lease,
            step=push.step,
            learning_rate=push.learning_rate,
            weight=push.weight,
            pull=receive_buffer is not None,
            empty=push.slab is None,
            version=push.versions[ps_index] if push.versions else 0,
            next=push.following,
            round=shares,
        )
        buffers: list[memoryview] = []
        if push.slab is not None:
            buffers.append(push.slab[self._layout.slices[ps_index]].data)
            head.tables.extend(table_headers(routes_by_table))
            for table, route in routes_by_table.items():
                rows = (push.rows or {})[table]
                buffers += [
                    as_wire_buffer(rows.ids[route.index]),
                    as_wire_buffer(rows.values[route.index]),
                ]
        tries = count()

        def meta() -> bytes:
            head.incarnation = self._directory.incarnation
            head.again = next(tries) > 0
            return head.SerializeToString()

        return PsRequest(
            FrameKind.PUSH,
            meta,
            buffers,
            None if receive_buffer is None else self._layout.view(receive_buffer, ps_index),
        )


def _combine_replies(replies: Mapping[int, pb.Pushed], *, has_all_values: bool) -> PushOutcome:
    outcomes = {reply.outcome for reply in replies.values()}
    return PushOutcome(
        revoked=_REVOKED in outcomes,
        stale=_STALE in outcomes,
        versions={part: reply.version for part, reply in replies.items()},
        complete=has_all_values,
    )
