"""Training with one step computed while another is sent: what it is computed from, and that each step enters once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from worker.loop_harness import (
    LEASE,
    MINIBATCH,
    SGD,
    TOKEN,
    LinearNetwork,
    LinearStep,
    LoopHarness,
    gradient_push,
    record,
    task,
)

from edl.api.errors import RetryableError
from edl.keras.user_callbacks import NoCallbacks
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind, ReceivedFrame
from edl.worker.graceful_shutdown import LeavingError
from edl.worker.not_finite import NotFiniteError
from edl.worker.parameter_client import MAX_VALUE_AGE_SECONDS, StepPush
from edl.worker.trainer import SerialExecutor

RATE = 0.01


@pytest.fixture(params=[1, 2])
def harness(request: pytest.FixtureRequest) -> Iterator[LoopHarness]:
    harness = LoopHarness(ps=request.param)
    yield harness
    harness.close()


@pytest.fixture
def executor() -> Iterator[SerialExecutor]:
    with new_executor() as serial_executor:
        yield serial_executor


@contextmanager
def new_executor() -> Iterator[SerialExecutor]:
    executor = SerialExecutor("test")
    yield executor
    executor.close()


def minibatch(first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.array([record(i) for i in range(first, min(end, first + MINIBATCH))])
    return rows[:, :-1], rows[:, -1]


def computed_from(network: LinearNetwork) -> list[np.ndarray]:
    """A list that gets the dense values of every step that is computed, after those of the first one, which traces."""
    slabs: list[np.ndarray] = []
    train = network.train

    def watched(slab: np.ndarray, *rest: Any) -> LinearStep:
        slabs.append(slab.copy())
        return train(slab, *rest)

    network.train = watched  # type: ignore[method-assign]
    return slabs


@pytest.mark.parametrize(
    ("optimizer", "missed"), [(SGD, 0), (OptimizerSpec("momentum"), 1), (OptimizerSpec("adam"), 1)], ids=str
)
def test_values_miss_the_newest_step_of_their_own_worker_unless_it_is_foreseen(
    harness: LoopHarness, executor: SerialExecutor, optimizer: OptimizerSpec, missed: int
) -> None:
    network = LinearNetwork(len(harness.servers.servers))
    slabs = computed_from(network)
    parameters = harness.parameters(network, optimizer=optimizer, overlap=True)
    onlooker = harness.parameters(network, optimizer=optimizer)
    push, after = parameters.push, [onlooker.pull_pinned(0)]

    def watched(step: StepPush) -> Any:
        result = push(step)
        after.append(onlooker.pull_pinned(0))
        return result

    parameters.push = watched  # type: ignore[method-assign]
    for leased in harness.take(task(1, 0, 24), task(2, 24, 34)):
        harness.trainer(network, parameters, rate=RATE, executor=executor).run(leased)
    harness.progress.send_all()

    first, second = range(6), range(6, 9)  # a range begins with nothing under way
    known = [max(steps.start, step - missed) for steps in (first, second) for step in steps]
    computed = [slab for at, slab in enumerate(slabs) if at not in (0, 7)]
    np.testing.assert_array_equal(computed, [after[number] for number in known])
    reports = harness.master.requests("Report")
    assert [(r.lease - LEASE, r.last.through, r.last.loss_steps) for r in reports] == [(1, 6, 6), (2, 3, 3)]


def test_values_have_what_others_pushed_while_the_step_before_was_computed(
    harness: LoopHarness, executor: SerialExecutor
) -> None:
    """Values that came as early as the rows would lack it: twice as many pushes of others as without overlap."""
    network = LinearNetwork(len(harness.servers.servers))
    parameters, other = harness.parameters(network, overlap=True), harness.parameters(network)
    first_values: list[float] = []

    def train(slab: np.ndarray, *_: Any) -> LinearStep:
        first_values.append(float(slab[0]))
        other.push(
            gradient_push(LEASE + 9, len(first_values), learning_rate=1, weight=1, slab=np.full(3, -1, np.float32))
        )
        return LinearStep(0.0, np.zeros(3, np.float32))

    network.train = train  # type: ignore[method-assign]
    for leased in harness.take(task(1, 0, 24)):
        harness.trainer(network, parameters, executor=executor).run(leased)

    traced, *computed = first_values
    assert traced == 0
    assert computed[1:] == [2, 3, 4, 5, 6]


def test_each_step_pulls_once_and_its_push_brings_nothing_back(executor: SerialExecutor) -> None:
    harness, requests = LoopHarness(), []

    class WatchedClient(BulkClient):
        def send(self, kind: FrameKind, meta: bytes, buffers: Any = ()) -> None:
            requests.append((kind, kind is FrameKind.PUSH and pb.Push.FromString(meta).pull))
            super().send(kind, meta, buffers)

    network, now = LinearNetwork(), [0.0]
    parameters = harness.parameters(
        network, overlap=True, connect=lambda address: WatchedClient(address, TOKEN, timeout=10), clock=lambda: now[0]
    )
    for leased in harness.take(task(1, 0, 16)):
        harness.trainer(network, parameters, executor=executor).run(leased)
    harness.close()

    assert requests.count((FrameKind.PUSH, False)) == requests.count((FrameKind.PULL, False)) == 4
    assert (FrameKind.PUSH, True) not in requests


def test_a_foreseen_push_that_is_never_sent_leaves_nothing_behind(harness: LoopHarness) -> None:
    network = LinearNetwork(len(harness.servers.servers))
    parameters = harness.parameters(network, overlap=True)
    foreseen = parameters.latest_values(gradient_push(LEASE, 0, learning_rate=1, weight=1, slab=np.ones(3, np.float32)))
    np.testing.assert_array_equal(foreseen, np.full(3, -1))
    np.testing.assert_array_equal(parameters.latest_values(), np.zeros(3))


@pytest.mark.parametrize(("optimizer", "staleness"), [(SGD, 1), (OptimizerSpec("adam"), 2)], ids=str)
def test_own_pushes_make_a_push_stale_unless_they_are_foreseen(
    harness: LoopHarness, optimizer: OptimizerSpec, staleness: int
) -> None:
    network = LinearNetwork(len(harness.servers.servers))
    parameters = harness.parameters(network, optimizer=optimizer, overlap=True)
    other = harness.parameters(network, optimizer=optimizer)
    mine, theirs = (gradient_push(LEASE + i, 0, slab=np.ones(3, np.float32), learning_rate=1) for i in (1, 2))
    parameters.latest_values(mine)
    parameters_of_next = parameters.value_versions
    other.push(theirs)
    parameters.push(mine)
    assert {parameters.global_step - known for known in parameters_of_next} == {staleness}


def test_rows_miss_the_newest_step_of_their_own_worker_and_no_other(
    harness: LoopHarness, executor: SerialExecutor
) -> None:
    """Every minibatch needs rows that the one before it has just moved."""
    network = LinearNetwork(len(harness.servers.servers), table=True)
    parameters = harness.parameters(network, overlap=True)
    row_values: list[np.ndarray] = []
    train = network.train

    def watched(slab: np.ndarray, rows: Mapping[str, Any], *arguments: np.ndarray) -> LinearStep:
        row_values.append(rows["emb"].values.copy())
        result = train(slab, rows, *arguments)
        result.row_gradients = {"emb": np.ones_like(rows["emb"].values)}
        return result

    network.train = watched  # type: ignore[method-assign]
    harness.reader.read = lambda *_: [record(7).tobytes()] * MINIBATCH  # type: ignore[method-assign]  # always row 0
    for leased in harness.take(task(1, 0, 20)):
        harness.trainer(network, parameters, rate=0.25, executor=executor).run(leased)

    _traced, *computed = (float(values[0, 0]) for values in row_values)
    assert computed == [0.5, 0.5, 0.25, 0.0, -0.25]


def test_a_range_begins_with_the_newest_values(harness: LoopHarness, executor: SerialExecutor) -> None:
    """What was fetched ahead goes with its range: another worker trained while this one did something else."""
    now = [0.0]
    network = LinearNetwork(len(harness.servers.servers))
    parameters = harness.parameters(network, clock=lambda: now[0], overlap=True)
    trainer = harness.trainer(network, parameters, executor=executor)
    first, second = harness.take(task(1, 0, 8), task(2, 8, 12))
    trainer.run(first)

    other = harness.parameters(network)
    other.push(gradient_push(LEASE, 0, learning_rate=1, weight=1, slab=np.ones(3, np.float32)))
    expected = other.latest_values().copy()
    now[0] += 2 * MAX_VALUE_AGE_SECONDS
    slabs: list[np.ndarray] = []
    train = network.train
    network.train = lambda slab, *rest: slabs.append(slab.copy()) or train(slab, *rest)  # type: ignore
    trainer.run(second)

    np.testing.assert_array_equal(slabs[0], expected)


def test_nan_stops_after_the_step_before_it_is_in(executor: SerialExecutor) -> None:
    harness = LoopHarness()
    network = LinearNetwork(poison=9.0)
    trainer = harness.trainer(network, harness.parameters(network, overlap=True), executor=executor)
    (leased,) = harness.take(task(1, 0, 16))

    with pytest.raises(NotFiniteError, match="s: loss nan from records 8 to 11"):
        trainer.run(leased)
    assert harness.servers.state(0).applied_steps == {LEASE + 1: 2}
    harness.close()


def test_callbacks_and_schedules_see_the_global_step_that_a_push_becomes(
    harness: LoopHarness, executor: SerialExecutor
) -> None:
    """The one that is on its way counts, though no PS has answered it."""
    network = LinearNetwork(len(harness.servers.servers))
    parameters = harness.parameters(network, overlap=True)
    calls: list[str] = []

    class StepWatcher(NoCallbacks):
        def begin_step(self, step: int) -> None:
            calls.append(f"begin {step}")

        def end_step(self, step: int, loss: float) -> None:
            calls.append(f"end {step}")

    def rate(step: int) -> float:
        calls.append(f"rate {step}")
        return RATE

    trainer = harness.trainer(network, parameters, executor=executor)
    trainer._learning_rate, trainer._training_callbacks = rate, StepWatcher()
    for leased in harness.take(task(1, 0, 12), task(2, 12, 20)):
        trainer.run(leased)

    assert calls == [f"{what} {step}" for step in range(5) for what in ("begin", "rate", "end")]


# ------------------------------------------------------------------------------------------------ faults everywhere


class DataNetwork(LinearNetwork):
    """Its gradients are sums of the records, whatever the values: parameters tell which steps are in, and how often."""

    def train(
        self, slab: np.ndarray, rows: Mapping[str, Any], features: np.ndarray, labels: np.ndarray, weights: Any = None
    ) -> LinearStep:
        return LinearStep(1.0, (features * labels[:, None]).sum(0, dtype=np.float32)[self.order])


@dataclass
class FaultScript:
    """What happens at the n-th request of training to a PS, by number: see ``FAULTS``."""

    faults: Mapping[int, str]
    act: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    requests: int = 0

    def next(self) -> str:
        number, self.requests = self.requests, self.requests + 1
        fault = self.faults.get(number, "")
        self.act.get(fault, lambda: None)()
        return fault


class FaultyClient(BulkClient):
    """Loses requests and answers as a script says."""

    def __init__(self, address: str, script: FaultScript) -> None:
        super().__init__(address, TOKEN, timeout=10)
        self._script = script
        self._lost_answer = False

    def send(self, kind: FrameKind, meta: bytes, buffers: Any = ()) -> None:
        fault = self._script.next() if kind in (FrameKind.PUSH, FrameKind.PULL, FrameKind.PULL_ROWS) else ""
        if fault == "request lost":
            self._lose()
        super().send(kind, meta, buffers)
        self._lost_answer = fault == "answer lost"

    def receive(self, into: memoryview | None = None) -> ReceivedFrame:
        frame = super().receive(into)
        if self._lost_answer:
            self._lose()
        return frame

    def _lose(self) -> None:
        self.close()
        raise RetryableError("lost")


FAULTS = st.sampled_from(["request lost", "answer lost", "revoked", "first lost", "second lost", "cut", "told to go"])


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(faults=st.dictionaries(st.integers(0, 30), FAULTS, max_size=6), ps=st.integers(1, 2))
def test_every_step_that_is_reported_is_in_exactly_once_whatever_happens(faults: dict[int, str], ps: int) -> None:
    harness = LoopHarness(ps=ps)
    cuts = iter(range(1, 100))
    servers = list(harness.servers.servers.values())

    def cut() -> None:
        """As a master does, but that it gives up at once where a step is on its way."""
        number = next(cuts)
        applied = [server.pause_pushes(1, number) for server in servers]
        for server in servers:
            if applied[1:] == applied[:-1]:
                server.take_snapshot(1, number, None, pin=False, included_steps=applied[0])
            else:
                server.release_cut(1, number)

    def revoke() -> None:
        for server in servers:
            server.revoke_leases(1, [LEASE + 1], 0)

    network = DataNetwork(ps)
    script = FaultScript(faults)
    script.act = {
        "revoked": revoke,
        "first lost": lambda: harness.leases.mark_lost([LEASE + 1]),
        "second lost": lambda: harness.leases.mark_lost([LEASE + 2]),
        "cut": cut,
        "told to go": lambda: harness.gate._closed.set(),  # ``close`` would wait
    }
    parameters = harness.parameters(network, connect=lambda address: FaultyClient(address, script), overlap=True)
    tasks = harness.take(task(1, 0, 22), task(2, 22, 44))

    with new_executor() as serial_executor, suppress(LeavingError):
        for leased in tasks:
            harness.trainer(network, parameters, rate=1.0, executor=serial_executor).run(leased)
    harness.progress.send_all()

    told_in = reported(harness)
    values = harness.parameters(LinearNetwork(ps)).latest_values()
    for part, server in enumerate(servers):
        applied = server._applied_steps._steps  # also of revoked leases
        steps = [leased.step_range(step) for leased in tasks for step in range(applied.get(leased.lease_id, 0))]
        moved = sum((moves(window)[network.order] for window in steps), np.zeros(3, np.float32))
        np.testing.assert_array_equal(values[network.ps_slices[part]], -moved[network.ps_slices[part]])
        assert all(through <= applied.get(lease, 0) for lease, through in told_in.items()), "in, but not here"
        if not faults:
            assert applied == told_in == {leased.lease_id: leased.step_count for leased in tasks}
    harness.close()


def reported(harness: LoopHarness) -> dict[int, int]:
    """How many steps of each lease the master heard, or would hear now, to be in."""
    lease_progress = [lease for request in harness.master.requests("Progress") for lease in request.leases]
    lease_progress += [request.last for request in harness.master.requests("Report")]
    return {lease.lease: lease.through for lease in (*lease_progress, *harness.progress.unreported_progress())}


def moves(window: tuple[int, int]) -> np.ndarray:
    """What a step's push adds up to."""
    features, labels = minibatch(*window)
    total: np.ndarray = (features * labels[:, None]).sum(0, dtype=np.float32)
    return total
