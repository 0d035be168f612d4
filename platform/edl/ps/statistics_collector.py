"""Collects the statistics that a parameter server sends with each registration; small and cheap to produce."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from edl.numerics.embedding_table import EmbeddingTable
from edl.ps.parameter_server import ParameterServer
from edl.ps.sync_rounds import PendingRound
from edl.transport import edl_pb2 as pb

MAX_REPORTED_TABLES = 256
"""Limit for the size of a registration, which is sent every second."""
_REMEASURE_FACTOR = 1000
"""A table is not measured again for this many times as long as the last measurement took.

Pushes to the table may wait during a measurement, so at most a thousandth of the time is spent on it.
"""


class PsStatisticsCollector:
    """Collects statistics; used by one thread.

    Args:
        server: the parameter server to report about.
        clock: returns monotonic seconds.
    """

    def __init__(self, server: ParameterServer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._table_sizes = TableSizes(clock)
        self._round_start: tuple[int, float] | None = None

    def collect_message(self) -> pb.PsFigures:
        """The current statistics; table sizes may be slightly outdated."""
        statistics = self._server.collect_statistics()
        counts = statistics.push_counts
        return pb.PsFigures(
            entered=counts.applied_pushes,
            updates=counts.update_count,
            refused=counts.stale_pushes,
            staleness=counts.total_staleness,
            stalest=counts.max_staleness,
            forming=self._pending_round_message(statistics.pending_round, statistics.version),
            tables=self._table_messages(statistics.tables),
        )

    def _pending_round_message(self, pending_round: PendingRound | None, version: int) -> pb.Forming | None:
        """The incomplete round as a message."""
        if pending_round is None:
            return None
        # Every round increases the version, so the version identifies a round. A push that is sent
        # again does not restart the waiting time of its round.
        if self._round_start is None or self._round_start[0] != version:
            self._round_start = version, self._clock()
        seconds = self._clock() - self._round_start[1]
        return pb.Forming(
            wanted=pending_round.required_pushes,
            arrived=pending_round.arrived_workers,
            awaited=pending_round.awaited_workers,
            seconds=seconds,
        )

    def _table_messages(self, tables: Mapping[str, EmbeddingTable]) -> list[pb.TableUse]:
        reported_tables = sorted(tables.items())[:MAX_REPORTED_TABLES]
        return [
            pb.TableUse(
                name=name,
                rows=len(table),
                bytes=self._table_sizes.measure_bytes(name, table),
                dropped=table.evicted_count,
                bound=table.row_limit or 0,
            )
            for name, table in reported_tables
        ]


class TableSizes:
    """Memory use of tables. Large tables are measured less often, because counting their pages takes a while.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._measured: dict[str, tuple[EmbeddingTable, int]] = {}
        self._measure_again_at: dict[str, float] = {}

    def measure_bytes(self, name: str, table: EmbeddingTable) -> int:
        """The bytes that a table occupies, as last measured."""
        measured, started_at = self._measured.get(name), self._clock()
        # Another object of the same name is a table that replaced the measured one.
        if measured is not None and measured[0] is table and started_at < self._measure_again_at[name]:
            return measured[1]
        byte_count = table.memory_bytes
        self._measured[name] = table, byte_count
        self._measure_again_at[name] = started_at + _REMEASURE_FACTOR * (self._clock() - started_at)
        return byte_count
