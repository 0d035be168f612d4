"""The parameters, as a worker sees them: client of all parameter servers at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from edl.keras.flat_buffer import DoubleBuffer, FlatLayout
from edl.numerics import aligned_memory
from edl.numerics.array_types import Floats, Ids, RowBatch, RowsByTable
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient, FrameKind
from edl.transport.message_validation import parse_message
from edl.worker import gradient_push
from edl.worker.gradient_push import GradientPush, PushOutcome, PushSender, RoutesByTable
from edl.worker.local_updater import GradientCompensation, LocalUpdater
from edl.worker.ps_connections import PsBulkConnections, PsDirectory, PsRequest

_SCAN_CHUNK_BYTES = 4 << 20
MAX_VALUE_AGE_SECONDS = 0.05
"""Values that came with the last push are pulled anew when they have lain unused for so long (the worker evaluated,
waited for records or traced the model): a gradient at values that others have left far behind does harm."""


class ParameterClient:
    """All parameter servers; used by one thread at a time.

    Args:
        directory: where they are.
        connect: opens a connection to an address.
        layout: how the model lies in the slab.
        worker: index of this worker.
        patience: seconds without any answer of a PS after which the job has failed here.
        rounds: the first PS puts pushes together to updates, and the others follow it (``strategy.mode: sync``).
        local: moves the dense values by pushes that bring none back; None: every push does.
        foresight: steps overlap: each begins with a pull, so that pushes bring none back, and this adds what is on its
            way; None: they do not, or ``local`` spares them these pulls.
        clock: seconds, monotonic.
        pause: waits that many seconds.

    Attributes:
        version: the highest that a PS last spoke of: the global step.
        versions: by PS, of the values that ``slab`` gives, with this worker's own steps since.
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
        self._connections = PsBulkConnections(
            directory, connect, self._declare_request, answer_timeout=answer_timeout, clock=clock, pause=pause
        )
        self._double_buffer = DoubleBuffer(layout)
        self._clock = clock
        self._received_at = clock()
        self._pushes = PushSender(
            directory, self._connections, layout, worker_index=worker_index, synchronous=synchronous
        )
        self._local_updater = local_updater
        self._compensation = compensation
        self.version = 0
        self.versions = (0,) * len(layout.parts)

    def declare(self) -> None:
        """Tell every PS what the model is; the first worker's initial values become the job's."""
        self._connections({part: self._declare_request(part) for part in self._layout.parts})

    def declare_to_replaced_ps(self) -> bool:
        """Tell every PS that was replaced since it last answered here what the model is; whether there was any.

        They are told the initial values of the start of the job. One that holds parameters already keeps those.
        """
        replaced = self._connections.find_replaced_ps().intersection(self._layout.parts)
        self._connections({part: self._declare_request(part) for part in sorted(replaced)})
        return bool(replaced)

    def slab(self, pending_push: GradientPush | None = None) -> Floats:
        """The newest dense values; nothing is written there until values that were pulled later are asked for.

        Args:
            sending: a push of this worker that is not sent yet, and will be the next: see ``foresight``.
        """
        if self._compensation is not None and pending_push is not None:
            return self._pull_compensated(self._compensation, pending_push)
        if not self._double_buffer.is_fresh or self._clock() - self._received_at > MAX_VALUE_AGE_SECONDS:
            self._pull_latest()
        return self._double_buffer.lend()

    def _pull_compensated(self, compensation: GradientCompensation, pending_push: GradientPush) -> Floats:
        self._pull_latest()
        flat_values = self._double_buffer.lend()
        if compensation.add(flat_values, pending_push):
            self.versions = tuple(version + 1 for version in self.versions)
        self._double_buffer.is_fresh = False  # for nobody else: a push may be refused, or never be sent
        return flat_values

    def pull(self, pin: int) -> Floats:
        """The dense values of a pinned cut, in memory of their own."""
        flat_values = aligned_memory.allocate_aligned(self._layout.size)
        self._pull_into(flat_values, pin)
        return flat_values

    def _pull_latest(self) -> None:
        self._accept_values(self._pull_into(self._double_buffer.next(), 0), complete=True)

    def _accept_values(self, versions: Mapping[int, int], *, complete: bool) -> None:
        """The next values came from the PS, all of them or not."""
        self.version = max(versions.values())
        self.versions = tuple(versions.get(part, known) for part, known in enumerate(self.versions))
        if self._local_updater is not None:
            self._local_updater.pulled()
        self._swap_buffers(complete=complete)

    def _apply_locally(self, local_updater: LocalUpdater | None, push: GradientPush) -> None:
        """A push was answered without values: ``local_updater`` makes them of the newest ones; None: they are old."""
        if local_updater is None:
            self._double_buffer.is_fresh = False
        elif self._double_buffer.is_fresh:
            local_updater.apply_push(self._double_buffer.newest_values, self._double_buffer.next(), push)
            self.versions = tuple(version + 1 for version in self.versions)
            self._swap_buffers(complete=True)

    def _swap_buffers(self, *, complete: bool) -> None:
        self._double_buffer.publish_next(complete=complete)
        self._received_at = self._clock()

    def _pull_into(self, flat_values: Floats, pin: int) -> dict[int, int]:
        meta = pb.Pull(pin=pin).SerializeToString()
        answers = self._connections(
            {
                part: PsRequest(FrameKind.PULL, lambda: meta, receive_into=self._layout.view(flat_values, part))
                for part in self._layout.parts
            }
        )
        for ps_index, frame in answers.items():
            self._layout.take(flat_values, ps_index, frame.body)
        return {part: parse_message(pb.Pulled, frame.meta).version for part, frame in answers.items()}

    def pull_rows(self, ids: Mapping[str, Ids], pin: int = 0) -> RowsByTable:
        """The rows of each table's ``ids``, ``[n, dim]`` in the order of the ids."""
        routes, dims = self._route_rows(ids), self._layout.dim_by_table
        row_buffers = {part: gradient_push.allocate_rows(where, dims) for part, where in routes.items()}
        answers = self._connections(
            {part: _make_rows_request(ids, where, pin, row_buffers[part]) for part, where in routes.items()},
        )
        values = {table: aligned_memory.allocate_aligned(len(wanted), dims[table]) for table, wanted in ids.items()}
        for part, frame in answers.items():
            _copy_into_buffer(row_buffers[part], frame.body)
            gradient_push.scatter_rows(values, routes[part], dims, row_buffers[part])
        return {table: RowBatch(ids[table], values[table]) for table in ids}

    def _route_rows(self, ids: Mapping[str, Ids]) -> Mapping[int, RoutesByTable]:
        return gradient_push.route_rows(ids, self._layout.parts, self._directory.placement.ps_of_rows)

    def push(self, push: GradientPush) -> PushOutcome:
        """Send one step to every PS. Returns when all have answered, and dense values that they bring are there.

        Raises:
            JobFailedError: a PS did not answer for longer than the patience.
            RefusedError: a PS refused for good.
        """
        local_updater = (
            self._local_updater if self._local_updater is not None and self._local_updater.next_push_is_local else None
        )
        pulls_values = local_updater is None and self._compensation is None
        result = self._pushes.send(push, self._double_buffer.next() if pulls_values else None)
        if pulls_values:
            if self._local_updater is not None and result.is_applied:
                self._local_updater.see(self._double_buffer.newest_values, push)
            self._accept_values(result.versions, complete=result.complete)
        else:
            self.version = result.version
            self._apply_locally(local_updater if result.is_applied else None, push)
        return result

    def scan(self, pin: int, table: str) -> Iterator[tuple[Ids, Floats]]:
        """All rows of a table that were ever touched, at a pinned cut: chunks of ids and values ``[n, dim]``."""
        dim = self._layout.dim_by_table[table]
        limit = max(1, _SCAN_CHUNK_BYTES // (4 * dim + 8))
        for part in self._layout.parts:
            cursor = 0
            while cursor != -1:
                meta = pb.ScanRows(pin=pin, table=table, cursor=cursor, limit=limit).SerializeToString()
                frame = self._connections({part: PsRequest(FrameKind.SCAN_ROWS, lambda m=meta: m)})[part]  # type: ignore[misc]
                head = parse_message(pb.ScannedRows, frame.meta)
                cursor, split = head.cursor, head.count * 8
                if head.count:
                    ids = np.frombuffer(frame.body[:split], np.int64).copy()
                    yield ids, np.frombuffer(frame.body[split:], np.float32).reshape(-1, dim).copy()

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _declare_request(self, ps_index: int) -> PsRequest:
        meta, initial = self._layout.declaration(ps_index)
        return PsRequest(FrameKind.DECLARE, lambda: meta, [initial.data])


def _make_rows_request(ids: Mapping[str, Ids], routes_by_table: RoutesByTable, pin: int, flat: Floats) -> PsRequest:
    meta = pb.PullRows(pin=pin, tables=gradient_push.table_headers(routes_by_table)).SerializeToString()
    buffers = [gradient_push.as_wire_buffer(ids[table][route.index]) for table, route in routes_by_table.items()]
    return PsRequest(FrameKind.PULL_ROWS, lambda: meta, buffers, flat.data.cast("B"))


def _copy_into_buffer(flat: Floats, body: memoryview) -> None:
    """Make sure that a body is in the memory that was offered for it."""
    received = np.frombuffer(body, np.float32)
    if not np.may_share_memory(received, flat):
        flat[:] = received
