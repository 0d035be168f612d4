"""The client of all parameter servers.

It divides a push into one request per PS, each with that PS's slice of the flat gradients and the rows
that it owns. ``ps_connections`` sends the requests, and repeats them to a PS that was replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edl.numerics import aligned_memory
from edl.numerics.array_types import Floats, Ids
from edl.numerics.parameter_store import PushGradients, RowBatch, RowsByTable
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind
from edl.transport.message_validation import parse_message
from edl.worker.flat_buffer import DoubleBuffer, FlatLayout
from edl.worker.local_updater import GradientCompensation, LocalUpdater
from edl.worker.ps_connections import PsBulkConnections, PsDirectory, PsRequest

_REVOKED, _STALE = pb.Pushed.REVOKED, pb.Pushed.STALE
_SCAN_CHUNK_BYTES = 4 << 20
"""Bytes of rows per request of a scan; the server holds its lock while it copies them."""
MAX_VALUE_AGE_SECONDS = 0.05
"""Seconds after which unused values are pulled again.

The worker may have evaluated, waited for records or traced the model since the last push. Gradients of
outdated values harm training.
"""


@dataclass(frozen=True, slots=True)
class StepPush:
    """One step of one lease, for all parameter servers.

    Attributes:
        lease_id: the lease's number.
        step: index of the step in the lease, from 0.
        gradients: None for a step that applies nothing.
        value_versions: by PS, the version of the values from which the gradients were computed.
        next_lease_id: the lease of this worker's next push; 0 if it holds no further work, so that rounds
            do not wait for it.
    """

    lease_id: int
    step: int
    gradients: PushGradients | None = None
    value_versions: tuple[int, ...] = ()
    next_lease_id: int = 0


@dataclass(frozen=True, slots=True)
class PushOutcome:
    """The answer of the PS to a push.

    Attributes:
        revoked: whether a PS refused the lease.
        stale: whether the gradient was too old. No PS applied anything, and the gradient must be computed
            again from current values.
        global_step: the highest version of the PS.
    """

    revoked: bool
    stale: bool
    global_step: int

    @property
    def is_applied(self) -> bool:
        """Whether the step is applied on all PS."""
        return not (self.revoked or self.stale)


RowPositions: TypeAlias = slice | npt.NDArray[np.int64]
"""The rows of a batch that one PS owns: a slice if it owns all, so that no copy is needed."""


class ParameterClient:
    """Client of all parameter servers; used by one thread at a time.

    Args:
        directory: the placement of the PS.
        connect: opens a connection to an address.
        layout: the layout of the flat buffer.
        worker_index: index of this worker.
        answer_timeout: seconds without an answer of a PS after which the worker fails.
        synchronous: whether the first PS collects pushes into rounds and the others follow it
            (``strategy.mode: sync``).
        local_updater: updates the dense values for pushes that return none; None: every push returns them.
        compensation: adds the push in flight to pulled values, for overlapping steps. Each of these begins
            with a pull, so pushes return no values. None: steps do not overlap, or ``local_updater`` makes
            these pulls unnecessary.
        clock: returns monotonic seconds.
        pause: waits for the given seconds.

    Attributes:
        global_step: the highest version that a PS has reported.
        value_versions: by PS, the version of the values that ``latest_values`` returns, including this
            worker's own steps since.
    """

    def __init__(
        self,
        directory: PsDirectory,
        connect: Callable[[str], BulkClient],
        layout: FlatLayout,
        *,
        worker_index: int,
        answer_timeout: float,
        synchronous: bool = False,
        local_updater: LocalUpdater | None = None,
        compensation: GradientCompensation | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directory = directory
        self._layout = layout
        self._worker_index = worker_index
        # In synchronous mode the first PS decides which pushes form one update, and the others must
        # learn its decision.
        ps_indices = layout.ps_indices
        self._send_order = [ps_indices[:1], ps_indices[1:]] if synchronous and len(ps_indices) > 1 else [ps_indices]
        self._connections = PsBulkConnections(
            directory, connect, self._declare_request, answer_timeout=answer_timeout, clock=clock, pause=pause
        )
        self._double_buffer = DoubleBuffer(layout)
        self._clock = clock
        self._received_at = clock()
        self._local_updater = local_updater
        self._compensation = compensation
        self.global_step = 0
        self.value_versions = (0,) * len(layout.ps_indices)

    def declare_model(self) -> None:
        """Declare the model to every PS; the first worker's initial values become the job's."""
        self._connections.exchange({part: self._declare_request(part) for part in self._layout.ps_indices})

    def declare_to_replaced_ps(self) -> bool:
        """Declare the model to every PS that was replaced since it last answered; returns whether there was any.

        The declaration has the initial values of the start of the job. A PS that already holds
        parameters keeps them.
        """
        replaced = self._connections.find_replaced_ps().intersection(self._layout.ps_indices)
        self._connections.exchange({part: self._declare_request(part) for part in sorted(replaced)})
        return bool(replaced)

    def latest_values(self, pending_push: StepPush | None = None) -> Floats:
        """The newest dense values. They are not overwritten until newer values are requested.

        Args:
            pending_push: this worker's next push, if it is not sent yet; see ``compensation``.
        """
        if self._compensation is not None and pending_push is not None:
            return self._pull_compensated(self._compensation, pending_push)
        if not self._double_buffer.is_fresh or self._clock() - self._received_at > MAX_VALUE_AGE_SECONDS:
            self._pull_latest()
        return self._double_buffer.lend()

    def _pull_compensated(self, compensation: GradientCompensation, pending_push: StepPush) -> Floats:
        self._pull_latest()
        flat_values = self._double_buffer.lend()
        if compensation.add_pending_push(flat_values, pending_push.gradients):
            self.value_versions = tuple(version + 1 for version in self.value_versions)
        # These values are only for this step: the push may still be refused, or never be sent.
        self._double_buffer.is_fresh = False
        return flat_values

    def pull_pinned(self, pin: int) -> Floats:
        """The dense values of a pinned cut, in new memory."""
        flat_values = aligned_memory.allocate_aligned(self._layout.size)
        self._pull_into(flat_values, pin)
        return flat_values

    def _pull_latest(self) -> None:
        self._accept_values(self._pull_into(self._double_buffer.next_values(), 0), complete=True)

    def _accept_values(self, versions: Mapping[int, int], *, complete: bool) -> None:
        """Accept the next values from the PS: all of them, or none."""
        # Pushes of several workers reach the PS in different orders; the highest version counts most of
        # them.
        self.global_step = max(versions.values())
        self.value_versions = tuple(versions.get(part, known) for part, known in enumerate(self.value_versions))
        if self._local_updater is not None:
            self._local_updater.reset_pull_count()
        self._swap_buffers(complete=complete)

    def _swap_buffers(self, *, complete: bool) -> None:
        self._double_buffer.publish_next(complete=complete)
        self._received_at = self._clock()

    def _pull_into(self, flat_values: Floats, pin: int) -> dict[int, int]:
        head = pb.Pull(pin=pin)
        answers = self._connections.exchange(
            {
                ps_index: PsRequest(FrameKind.PULL, head, receive_into=self._layout.slice_bytes(flat_values, ps_index))
                for ps_index in self._layout.ps_indices
            }
        )
        for ps_index, frame in answers.items():
            self._layout.store_reply(flat_values, ps_index, frame.body)
        return {ps_index: parse_message(pb.Pulled, frame.meta).version for ps_index, frame in answers.items()}

    def pull_rows(self, ids: Mapping[str, Ids], pin: int = 0) -> RowsByTable:
        """Pull rows of each table, ``[n, dim]`` in the order of the ids."""
        dims = self._layout.dim_by_table
        positions = self._positions_by_ps(ids)
        requests: dict[int, PsRequest] = {}
        row_buffers: dict[int, Floats] = {}
        for ps_index, positions_by_table in positions.items():
            owned_ids = {table: ids[table][index] for table, index in positions_by_table.items()}
            rows = row_buffers[ps_index] = aligned_memory.allocate_aligned(
                sum(len(owned) * dims[table] for table, owned in owned_ids.items())
            )
            requests[ps_index] = PsRequest(
                FrameKind.PULL_ROWS,
                pb.PullRows(pin=pin, tables=_table_headers(owned_ids)),
                [_as_wire_buffer(owned) for owned in owned_ids.values()],
                rows.data.cast("B"),
            )
        values = {table: aligned_memory.allocate_aligned(len(wanted), dims[table]) for table, wanted in ids.items()}
        for ps_index, frame in self._connections.exchange(requests).items():
            rows = row_buffers[ps_index]
            received = np.frombuffer(frame.body, np.float32)
            # The connection received into this memory, unless it had to use its own.
            if not np.may_share_memory(received, rows):
                rows[:] = received
            _scatter_rows(values, positions[ps_index], dims, rows)
        return {table: RowBatch(ids[table], values[table]) for table in ids}

    def push(self, push: StepPush) -> PushOutcome:
        """Push one step to every PS; returns when all have answered, or when the first one rejects it.

        Afterwards, the newest dense values are those that the answers contain, or those that this worker
        computes from its own push.

        Raises:
            JobFailedError: a PS did not answer for longer than the timeout.
            RefusedError: a PS refused permanently.
        """
        # A push returns dense values unless they come another way: the worker updates its own copy
        # between two pulls (get_model_steps), or steps overlap and each one begins with a pull.
        moves_locally = self._local_updater is not None and self._local_updater.next_push_is_local
        pulls_values = not moves_locally and self._compensation is None
        receive_buffer = self._double_buffer.next_values() if pulls_values else None

        rows = {} if push.gradients is None else push.gradients.rows
        positions = self._positions_by_ps({table: batch.ids for table, batch in rows.items()})
        has_all_values = pulls_values
        replies: dict[int, pb.Pushed] = {}
        for ps_group in self._send_order:
            round_pushes: Sequence[pb.Share] = ()
            # The round as decided by the first PS. If it has forgotten the round of a repeated push, the
            # round consists of this push alone.
            if replies:
                round_pushes = list(replies[0].round) or [pb.Share(lease=push.lease_id, step=push.step)]
            requests = {
                ps_index: self._push_request(push, ps_index, positions.get(ps_index, {}), round_pushes, receive_buffer)
                for ps_index in ps_group
            }
            for ps_index, frame in self._connections.exchange(requests).items():
                replies[ps_index] = parse_message(pb.Pushed, frame.meta)
                # A refused push may be answered without values.
                if receive_buffer is not None:
                    has_all_values &= self._layout.store_reply(receive_buffer, ps_index, frame.body)
            # The first PS has decided against the push, so the others must not apply it.
            if any(reply.outcome in (_REVOKED, _STALE) for reply in replies.values()):
                break

        outcomes = {reply.outcome for reply in replies.values()}
        versions = {ps_index: reply.version for ps_index, reply in replies.items()}
        outcome = PushOutcome(_REVOKED in outcomes, _STALE in outcomes, max(versions.values()))
        if pulls_values:
            # The worker's own slot variables must see every applied push, including those that
            # return values.
            if self._local_updater is not None and outcome.is_applied:
                self._local_updater.update_slots(self._double_buffer.newest_values, push.gradients)
            self._accept_values(versions, complete=has_all_values and len(replies) == len(self._layout.ps_indices))
        else:
            self.global_step = outcome.global_step
            # The copy lacks this push, or the reason for its refusal: pull before the next step.
            if not moves_locally or not outcome.is_applied:
                self._double_buffer.is_fresh = False
            elif self._double_buffer.is_fresh:
                self._move_locally(push.gradients)
        return outcome

    def _move_locally(self, gradients: PushGradients | None) -> None:
        """Compute the values after a push that returned none, in the same way as the PS did."""
        assert self._local_updater is not None
        self._local_updater.apply_push(self._double_buffer.newest_values, self._double_buffer.next_values(), gradients)
        self.value_versions = tuple(version + 1 for version in self.value_versions)
        self._swap_buffers(complete=True)

    def _push_request(
        self,
        push: StepPush,
        ps_index: int,
        positions_by_table: Mapping[str, RowPositions],
        round_pushes: Iterable[pb.Share],
        receive_buffer: Floats | None,
    ) -> PsRequest:
        """The part of a push for one PS: its slice of the flat gradients, then ids and row gradients by table."""
        head = pb.Push(
            worker=self._worker_index,
            lease=push.lease_id,
            step=push.step,
            pull=receive_buffer is not None,
            empty=push.gradients is None,
            version=push.value_versions[ps_index] if push.value_versions else 0,
            next=push.next_lease_id,
            round=round_pushes,
        )
        buffers: list[memoryview] = []
        if push.gradients is not None:
            head.learning_rate, head.weight = push.gradients.learning_rate, push.gradients.record_weight
            buffers.append(push.gradients.flat[self._layout.ps_slices[ps_index]].data)
            for table, index in positions_by_table.items():
                rows = push.gradients.rows[table]
                owned_ids = rows.ids[index]
                head.tables.add(name=table, count=len(owned_ids))
                buffers += [_as_wire_buffer(owned_ids), _as_wire_buffer(rows.values[index])]
        receive_into = None if receive_buffer is None else self._layout.slice_bytes(receive_buffer, ps_index)
        return PsRequest(FrameKind.PUSH, head, buffers, receive_into)

    def _positions_by_ps(self, ids: Mapping[str, Ids]) -> dict[int, dict[str, RowPositions]]:
        """By PS and table, the rows that it owns; a PS that owns none is left out."""
        ps_indices = self._layout.ps_indices
        if len(ps_indices) == 1:
            whole: dict[str, RowPositions] = {table: slice(None) for table, wanted in ids.items() if len(wanted)}
            return {ps_indices[0]: whole} if whole else {}
        ps_of_rows = self._directory.placement.ps_of_rows
        positions: dict[int, dict[str, RowPositions]] = {}
        for table, wanted in ids.items():
            owner = ps_of_rows(wanted)
            for ps_index in ps_indices:
                index = np.flatnonzero(owner == ps_index)
                if len(index):
                    positions.setdefault(ps_index, {})[table] = index
        return positions

    def scan_table(self, pin: int, table: str) -> Iterator[tuple[Ids, Floats]]:
        """All stored rows of a table at a pinned cut, in chunks of ids and values ``[n, dim]``."""
        dim = self._layout.dim_by_table[table]
        limit = max(1, _SCAN_CHUNK_BYTES // (4 * dim + 8))
        for part in self._layout.ps_indices:
            cursor = 0
            while cursor != -1:
                request = PsRequest(FrameKind.SCAN_ROWS, pb.ScanRows(pin=pin, table=table, cursor=cursor, limit=limit))
                frame = self._connections.exchange({part: request})[part]
                reply = parse_message(pb.ScannedRows, frame.meta)
                cursor, split = reply.cursor, reply.count * 8
                if reply.count:
                    ids = np.frombuffer(frame.body[:split], np.int64).copy()
                    yield ids, np.frombuffer(frame.body[split:], np.float32).reshape(-1, dim).copy()

    def close(self) -> None:
        self._connections.close()

    def _declare_request(self, ps_index: int) -> PsRequest:
        head, initial = self._layout.encode_declaration(ps_index)
        return PsRequest(FrameKind.DECLARE, head, [initial.data])


def _table_headers(ids: Mapping[str, Ids]) -> list[pb.TableRows]:
    return [pb.TableRows(name=table, count=len(wanted)) for table, wanted in ids.items()]


def _as_wire_buffer(array: Floats | Ids) -> memoryview:
    """An array for the wire; copied if it is not contiguous."""
    return np.ascontiguousarray(array).data


def _scatter_rows(
    values: dict[str, Floats],
    positions_by_table: Mapping[str, RowPositions],
    dims: Mapping[str, int],
    flat: Floats,
) -> None:
    """Copy the rows from one PS to their positions; a whole table's rows are used without a copy.

    Args:
        values: rows by table, ``[n, dim]``; changed in place.
        positions_by_table: by table, the positions of the rows in ``flat``.
        dims: length of a row by table.
        flat: the received rows, table after table; must not be reused.
    """
    offset = 0
    for table, index in positions_by_table.items():
        count = len(values[table]) if isinstance(index, slice) else len(index)
        rows = flat[offset : offset + count * dims[table]].reshape(count, dims[table])
        if isinstance(index, slice):
            values[table] = rows
        else:
            values[table][index] = rows
        offset += count * dims[table]
