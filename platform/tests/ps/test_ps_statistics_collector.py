"""What a parameter server tells of itself: pushes, staleness, the update that waits, tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sleep_clock import SleepClock

from edl.api.strategy import Strategy
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.embedding_table import RowRetention, TableFullError
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import PushGradients, RowBatch
from edl.ps.applied_steps import PushId
from edl.ps.messages import MasterAttachment
from edl.ps.model_state import NUMPY_STORE, StoreFactory
from edl.ps.parameter_server import ParameterServer
from edl.ps.push_updates import PendingPush, PushCounter, PushCounts
from edl.ps.shard_writer import ShardWriter
from edl.ps.statistics_collector import MAX_REPORTED_TABLES, PsStatisticsCollector, TableSizes
from edl.ps.sync_rounds import PendingRound, SyncRounds, WaitingPush
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import PeerRefusedError

LEASE = 1 << 32


@dataclass
class TwoTablePs:
    """A server with tables ``a`` and ``b`` that two workers push to."""

    server: ParameterServer
    steps: int = 0

    @classmethod
    def make(
        cls, strategy: Strategy, retention: RowRetention | None = None, tables: tuple[str, ...] = ("a", "b")
    ) -> TwoTablePs:
        stores = StoreFactory(NUMPY_STORE, retention=retention or RowRetention())
        server = ParameterServer(0, ShardWriter(0), store_factory=stores, strategy=strategy, push_timeout=0.01)
        server.attach_master(MasterAttachment(1, 0))
        rows = tuple(TableSpec(name, 1000, 2, {"name": "zeros"}, seed=1) for name in tables)
        declared = ModelDeclaration((VariableSpec("w", (2,)),), rows, OptimizerSpec("sgd"), "model")
        server.declare_model(declared, np.zeros(2, np.float32))
        return cls(server)

    def push(self, version: int, worker: int = 0, *, empty: bool = False, **ids: list[int]) -> None:
        """A step of its own lease, computed at these values; nothing follows it."""
        self.steps += 1
        rows = {
            name: RowBatch(np.array(each, np.int64), np.ones((len(each), 2), np.float32)) for name, each in ids.items()
        }
        gradients = None if empty else PushGradients(np.ones(2, np.float32), rows, 0.5, 1.0)
        share = PushId(LEASE + self.steps, 0)
        self.server.push(PendingPush(share, self.server.require_declaration(), gradients, worker, worker, version))

    @property
    def counts(self) -> PushCounts:
        return self.server.collect_statistics().push_counts


ASYNC, SYNC = Strategy(), Strategy(mode="sync")


@given(st.lists(st.lists(st.integers(0, 100), max_size=4)), st.integers(0, 5))
def test_counts_are_those_of_all_updates(updates: list[list[int]], refused: int) -> None:
    tally = PushCounter()
    for staleness in updates:
        tally.count_update(staleness)
    for _ in range(refused):
        tally.count_stale_push()
    flat = [each for update in updates for each in update]
    update_count = sum(map(bool, updates))
    assert tally.push_counts == PushCounts(len(flat), update_count, refused, sum(flat), max(flat, default=0))


@pytest.mark.parametrize("staleness_aware", [False, True])
def test_asynchronous_pushes_are_as_stale_as_they_miss_updates(staleness_aware: bool) -> None:
    ps = TwoTablePs.make(Strategy(staleness_aware=staleness_aware))
    for version in (0, 0, 1, 9):  # the last is of before the server went back to a checkpoint
        ps.push(version)
    ps.push(0, empty=True)
    assert ps.counts == PushCounts(
        applied_pushes=4, update_count=4, stale_pushes=0, total_staleness=0 + 1 + 1 + 0, max_staleness=1
    )


def test_a_refused_push_is_no_part_of_the_staleness_that_was_trained_with() -> None:
    ps = TwoTablePs.make(Strategy(mode="sync", version_tolerance=1))
    for version in (0, 0, 0):
        ps.push(version)
    assert ps.counts == PushCounts(applied_pushes=2, update_count=2, stale_pushes=1, total_staleness=1, max_staleness=1)


def test_a_push_that_fails_is_not_counted() -> None:
    ps = TwoTablePs.make(ASYNC, RowRetention(max_rows=2))
    with pytest.raises(TableFullError):
        ps.push(0, a=[1, 2, 3])
    assert ps.counts == PushCounts()


def test_who_waits_for_whom() -> None:
    rounds = SyncRounds(3)
    assert rounds.pending_round is None
    for worker in (4, 2):
        rounds.expect_push(worker, LEASE + worker)
    rounds.join(WaitingPush(4, PushId(LEASE + 4, 0), 0))
    assert rounds.pending_round == PendingRound(3, (4,), (2,))
    rounds.stop_expecting(2)
    assert rounds.pending_round == PendingRound(3, (4,), ())
    assert rounds.close_round()
    assert rounds.pending_round is None


class OverdueRound:
    """A server of which a round is told."""

    def __init__(self, server: ParameterServer) -> None:
        self.server = server
        self.forming: PendingRound | None = None
        self.version = 0

    def collect_statistics(self) -> object:
        account = self.server.collect_statistics()
        return type(account)(self.version, account.push_counts, self.forming, account.tables)


def test_an_update_waits_from_when_it_was_seen_first_until_it_is_made() -> None:
    clock, waiting = SleepClock(), OverdueRound(TwoTablePs.make(SYNC).server)
    figures = PsStatisticsCollector(waiting, clock=clock)  # type: ignore[arg-type]
    assert not figures.collect_message().HasField("forming")

    def seconds() -> float:
        clock.now += 2.0
        return figures.collect_message().forming.seconds

    waiting.forming = PendingRound(2, (0,), (1,))
    assert [seconds(), seconds()] == [0.0, 2.0]
    waiting.forming = None  # the push is sent again
    assert not figures.collect_message().HasField("forming")
    waiting.forming = PendingRound(2, (0,), (1,))
    assert seconds() == 4.0
    waiting.version = 1
    assert seconds() == 0.0
    assert figures.collect_message().forming == pb.Forming(wanted=2, arrived=[0], awaited=[1])


def test_tables_say_rows_bytes_what_was_dropped_and_the_bound() -> None:
    ps = TwoTablePs.make(ASYNC, RowRetention(max_rows=10, evict_after_steps=2))
    figures = PsStatisticsCollector(ps.server).collect_message()
    assert [(table.name, table.rows) for table in figures.tables] == [("a", 0), ("b", 0)]
    ps.push(0, a=[1, 2, 3])
    for version in range(1, 4):
        ps.push(version, a=[1], b=[7])
    a, b = PsStatisticsCollector(ps.server).collect_message().tables
    assert (a.rows, a.dropped, a.bound) == (1, 2, 10)
    assert (b.rows, b.dropped, b.bound) == (1, 0, 10)
    assert a.bytes > 1000 * 4


def test_tables_are_told_by_name_up_to_a_bound() -> None:
    names = tuple(f"t{number:04}" for number in range(MAX_REPORTED_TABLES + 50))
    tables = PsStatisticsCollector(TwoTablePs.make(ASYNC, tables=names[::-1]).server).collect_message().tables
    assert tuple(table.name for table in tables) == names[:MAX_REPORTED_TABLES]


def test_before_anything_is_declared_there_are_no_tables() -> None:
    server = ParameterServer(0, ShardWriter(0))
    assert PsStatisticsCollector(server).collect_message() == pb.PsFigures()
    with pytest.raises(PeerRefusedError):
        server.require_declaration()


class SlowTable:
    """A table that takes ``seconds`` to weigh."""

    def __init__(self, clock: SleepClock, seconds: float) -> None:
        self.clock, self.seconds, self.weighed = clock, seconds, 0

    @property
    def memory_bytes(self) -> int:
        self.weighed += 1
        self.clock.now += self.seconds
        return self.weighed


def weights(clock: SleepClock, heavy: SlowTable, scales: TableSizes) -> Callable[[], int]:
    def weigh() -> int:
        clock.now += 1.0
        return scales.measure_bytes("t", heavy)  # type: ignore[arg-type]

    return weigh


def test_a_large_table_is_weighed_for_a_thousandth_of_the_time() -> None:
    clock = SleepClock()
    heavy, light = SlowTable(clock, 0.05), SlowTable(clock, 0.0)
    scales = TableSizes(clock)
    weigh = weights(clock, heavy, scales)
    assert [weigh() for _ in range(60)].count(1) == 50
    assert heavy.weighed == 2
    weigh = weights(clock, light, scales)
    assert [weigh() for _ in range(3)] == [1, 2, 3], "another table of that name, after going back to a checkpoint"
