"""Workers in synchronous mode against real parameter servers: together on all of them, and again when refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from worker.loop_harness import FEATURES, LEASE, MINIBATCH, LinearNetwork, LoopHarness, gradient_push, record, task

from edl.api.strategy import Strategy
from edl.worker.parameter_client import ParameterClient, StepPush

SECOND = LEASE + 9


@pytest.fixture(params=[1, 2, 3])
def ps_count(request: pytest.FixtureRequest) -> int:
    """Parameter servers."""
    return int(request.param)


@pytest.fixture
def make_harness(ps_count: int) -> Iterator[Callable[[int], LoopHarness]]:
    """A harness whose updates wait for so many pushes."""
    harnesses: list[LoopHarness] = []

    def one(wanted: int) -> LoopHarness:
        harnesses.append(LoopHarness(ps=ps_count, strategy=Strategy(mode="sync", grads_to_wait=wanted)))
        return harnesses[-1]

    yield one
    for harness in harnesses:
        harness.close()


def gradient(network: LinearNetwork, factor: float) -> np.ndarray:
    return factor * np.arange(1, FEATURES + 1, dtype=np.float32)[network.order]


def pushes(parameters: ParameterClient, lease: int, gradients: list[np.ndarray]) -> list[bool]:
    """One step after another, each at the newest values; whether each was in at the first try."""
    first_tries = []
    for step, values in enumerate(gradients):
        first = True
        following = lease if step + 1 < len(gradients) else 0
        while True:
            parameters.latest_values()
            versions = parameters.value_versions
            sent = gradient_push(
                lease, step, learning_rate=1, weight=1, slab=values, value_versions=versions, next_lease_id=following
            )
            if parameters.push(sent).is_applied:
                break
            first = False
        first_tries.append(first)
    return first_tries


def test_pushes_of_two_workers_are_one_update_on_every_server(
    make_harness: Callable[[int], LoopHarness], ps_count: int
) -> None:
    harness, network, steps = make_harness(2), LinearNetwork(ps_count), 30
    workers = [harness.parameters(network, worker=index) for index in range(2)]
    gradients = [[gradient(network, factor)] * steps for factor in (2.0, 4.0)]
    with ThreadPoolExecutor(2) as threads:
        tried = list(threads.map(pushes, workers, (LEASE, SECOND), gradients))
    states = [harness.servers.state(part) for part in range(ps_count)]
    assert [state.applied_steps for state in states] == [{LEASE: steps, SECOND: steps}] * ps_count
    assert len({state.version for state in states}) == 1, "all servers make the same updates"
    # Whoever is alone, before the other has joined or after it has ended, is a round of one.
    alone = 2 * (states[0].version - steps)
    assert 0 <= alone <= 2 * steps
    assert sum(not first for worker in tried for first in worker) <= 2
    values = workers[0].pull_pinned(0) / -gradient(network, 1.0)
    assert len(set(values.tolist())) == 1, "every part of the slab moved by the same rounds"


def test_a_stale_minibatch_is_computed_again_and_enters_once(
    make_harness: Callable[[int], LoopHarness], ps_count: int
) -> None:
    harness, network = make_harness(1), LinearNetwork(ps_count)
    parameters, rival = (harness.parameters(network, worker=index) for index in range(2))
    train, calls = network.train, []

    def interrupted(slab, *minibatch):
        result = train(slab, *minibatch)
        calls.append(slab.copy())
        if len(calls) == 3:  # the second minibatch: the first is computed twice, since it is traced
            push = gradient_push(
                SECOND, 0, learning_rate=1, weight=1, slab=gradient(network, 8.0), value_versions=(99,) * ps_count
            )
            assert rival.push(push).is_applied
        return result

    network.train = interrupted  # type: ignore[method-assign]
    (leased,) = harness.take(task(1, 0, 16))
    harness.trainer(network, parameters).run(leased)
    harness.progress.send_all()

    states = [harness.servers.state(part) for part in range(ps_count)]
    assert [state.applied_steps for state in states] == [{LEASE + 1: 4, SECOND: 1}] * ps_count
    assert len(calls) == 6
    slab, between = network.initial_values(), gradient(network, 8.0)
    for start in range(0, 16, MINIBATCH):
        rows = np.array([record(index) for index in range(start, start + MINIBATCH)])
        if start == MINIBATCH:
            slab = slab - between
        slab = slab - np.float32(0.01) * train(slab, {}, rows[:, :-1], rows[:, -1]).flat_gradients
    np.testing.assert_array_equal(parameters.latest_values(), slab)
    (report,) = harness.master.requests("Report")
    assert (report.last.through, report.last.loss_steps) == (4, 4)


def test_pushes_say_what_follows() -> None:
    harness, network = LoopHarness(strategy=Strategy(mode="sync")), LinearNetwork()
    parameters = harness.parameters(network)
    next_leases, push = [], parameters.push

    def observed(step: StepPush) -> object:
        next_leases.append(step.next_lease_id - LEASE if step.next_lease_id else 0)
        return push(step)

    parameters.push = observed  # type: ignore[method-assign,assignment]
    first, second, third = harness.take(task(1, 0, 8), task(2, 8, 16), task(3, 16, 20, kind="evaluation"))
    trainer = harness.trainer(network, parameters)
    harness.leases._queued_tasks.extend([second])  # as the loop has it: the next one is there, and not taken yet
    trainer.run(first)
    harness.leases._queued_tasks.clear()
    harness.leases._queued_tasks.extend([third])
    trainer.run(second)
    assert next_leases == [1, 2, 2, 0]
    harness.close()


def test_a_lost_follower_is_followed_to_its_successor(
    make_harness: Callable[[int], LoopHarness], ps_count: int
) -> None:
    """Its pushes are sent again; those of the same round wait for nobody there, and every step is in once."""
    if ps_count == 1:
        pytest.skip("nobody follows")
    harness, network, steps = make_harness(2), LinearNetwork(ps_count), 20
    replaced: list[float] = []

    def replace(seconds: float) -> None:
        if not replaced:
            replaced.append(seconds)
            harness.servers.start(ps_count - 1)
            harness.master.placement = harness.servers.placement()

    workers = [harness.parameters(network, worker=index, pause=replace) for index in range(2)]
    harness.servers.kill(ps_count - 1)
    with ThreadPoolExecutor(2) as threads:
        gradients = [[gradient(network, factor)] * steps for factor in (2.0, 4.0)]
        list(threads.map(pushes, workers, (LEASE, SECOND), gradients))
    states = [harness.servers.state(part) for part in range(ps_count)]
    assert [state.applied_steps for state in states] == [{LEASE: steps, SECOND: steps}] * ps_count
