"""The client of all parameter servers, against real ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from worker.loop_harness import FEATURES, LEASE, LinearNetwork, LoopHarness, gradient_push

from edl.api.errors import JobFailedError, RefusedError
from edl.numerics.parameter_store import RowBatch
from edl.ps.messages import MasterAttachment
from edl.worker.parameter_client import MAX_VALUE_AGE_SECONDS


@pytest.fixture(params=[1, 2, 3])
def harness(request: pytest.FixtureRequest) -> Iterator[LoopHarness]:
    harness = LoopHarness(ps=request.param)
    yield harness
    harness.close()


def gradients(network: LinearNetwork) -> np.ndarray:
    return np.arange(1, FEATURES + 1, dtype=np.float32)[network.order]


def test_a_push_is_on_all_servers_and_brings_the_next_values(harness: LoopHarness) -> None:
    network = LinearNetwork(len(harness.servers.servers))
    parameters = harness.parameters(network)
    before = parameters.latest_values().copy()

    result = parameters.push(gradient_push(LEASE, 0, learning_rate=0.5, weight=1, slab=gradients(network)))

    assert not result.revoked
    assert result.global_step == 1
    np.testing.assert_array_equal(parameters.latest_values(), before - 0.5 * gradients(network))
    assert all(harness.servers.state(part).applied_steps == {LEASE: 1} for part in harness.servers.servers)


def test_a_repeated_push_is_applied_once(harness: LoopHarness) -> None:
    network = LinearNetwork(len(harness.servers.servers))
    parameters = harness.parameters(network)
    push = gradient_push(LEASE, 0, learning_rate=1, weight=1, slab=gradients(network))

    parameters.push(push)
    again = parameters.push(push)

    assert not again.revoked
    np.testing.assert_array_equal(parameters.latest_values(), -gradients(network))


def test_values_of_one_step_survive_the_push_of_it(harness: LoopHarness) -> None:
    """A step may still read what it was computed from while the next values arrive."""
    network = LinearNetwork(len(harness.servers.servers))
    parameters = harness.parameters(network)
    values = parameters.latest_values()
    values_copy = values.copy()

    parameters.push(gradient_push(LEASE, 0, learning_rate=1, weight=1, slab=gradients(network)))

    np.testing.assert_array_equal(values, values_copy)


def test_values_that_lay_unused_for_long_are_pulled_anew(harness: LoopHarness) -> None:
    """Another worker trains while this one evaluates: its next gradient is of the values as they are then."""
    now = [0.0]
    network = LinearNetwork(len(harness.servers.servers))
    parameters, other = (harness.parameters(network, clock=lambda: now[0]) for _ in range(2))
    parameters.latest_values()
    other.push(gradient_push(LEASE, 0, learning_rate=1, weight=1, slab=gradients(network)))
    np.testing.assert_array_equal(parameters.latest_values(), 0 * gradients(network))
    now[0] += 2 * MAX_VALUE_AGE_SECONDS
    np.testing.assert_array_equal(parameters.latest_values(), -gradients(network))


def test_one_server_that_revoked_the_lease_is_enough(harness: LoopHarness) -> None:
    network = LinearNetwork(len(harness.servers.servers))
    parameters = harness.parameters(network)
    last = max(harness.servers.servers)
    harness.servers.servers[last].revoke_leases(1, [LEASE], 0)

    assert parameters.push(gradient_push(LEASE, 0, slab=gradients(network))).revoked


def test_a_killed_server_is_followed_to_its_successor(harness: LoopHarness) -> None:
    """The push is repeated to the new process; the servers that had applied it do not apply it again."""
    network = LinearNetwork(len(harness.servers.servers))
    pauses: list[float] = []

    def replace(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            harness.servers.start(0)
            harness.master.placement = harness.servers.placement()

    parameters = harness.parameters(network, pause=replace)
    parameters.latest_values()
    harness.servers.kill(0)

    parameters.push(gradient_push(LEASE, 0, learning_rate=1, weight=1, slab=gradients(network)))

    assert len(pauses) >= 2
    np.testing.assert_array_equal(parameters.latest_values(), -gradients(network))
    assert {harness.servers.state(part).version for part in harness.servers.servers} == {1}


def test_a_server_that_nobody_replaces_ends_the_patience() -> None:
    harness = LoopHarness()
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += 3

    parameters = harness.parameters(LinearNetwork(), pause=wait, clock=lambda: now[0])
    harness.servers.kill(0)
    with pytest.raises(JobFailedError, match="does not answer"):
        parameters.push(gradient_push(LEASE, 0, slab=np.zeros(FEATURES, np.float32)))
    harness.close()


def test_a_pushed_lease_of_an_unknown_master_is_tried_again() -> None:
    """A new master's lease may reach the worker before the master reached the PS."""
    harness = LoopHarness()

    def attach(seconds: float) -> None:
        harness.servers.servers[0].attach_master(MasterAttachment(incarnation=2, lowest_open_lease=0))

    parameters = harness.parameters(LinearNetwork(), pause=attach)
    result = parameters.push(gradient_push(2 << 32, 0, slab=np.zeros(FEATURES, np.float32)))
    assert not result.revoked
    harness.close()


def test_rows_are_routed_and_come_back_in_order(harness: LoopHarness) -> None:
    network = LinearNetwork(len(harness.servers.servers), table=True)
    parameters = harness.parameters(network)
    ids = np.array([7, 0, 3, 99, 42], np.int64)
    np.testing.assert_array_equal(parameters.pull_rows({"emb": ids})["emb"].values, np.full((5, 1), 0.5, np.float32))

    values = np.arange(5, dtype=np.float32)[:, None]
    push = gradient_push(
        LEASE, 0, learning_rate=1, weight=1, slab=gradients(network), rows={"emb": RowBatch(ids, values)}
    )
    parameters.push(push)

    np.testing.assert_array_equal(parameters.pull_rows({"emb": ids})["emb"].values, 0.5 - values)


def test_a_pin_keeps_values_and_rows_and_can_be_scanned(harness: LoopHarness) -> None:
    network = LinearNetwork(len(harness.servers.servers), table=True)
    parameters = harness.parameters(network)
    ids = np.arange(20, dtype=np.int64)
    rows = {"emb": RowBatch(ids, np.ones((20, 1), np.float32))}
    parameters.push(gradient_push(LEASE, 0, learning_rate=1, weight=1, slab=gradients(network), rows=rows))
    for server in harness.servers.servers.values():
        server.take_snapshot(1, 1, None, pin=True)
    parameters.push(gradient_push(LEASE, 1, learning_rate=1, weight=1, slab=gradients(network), rows=rows))

    np.testing.assert_array_equal(parameters.pull_pinned(1), -gradients(network))
    np.testing.assert_array_equal(parameters.pull_rows({"emb": ids}, pin=1)["emb"].values, np.full((20, 1), -0.5))
    scanned = {int(i): float(v[0]) for chunk in parameters.scan_table(1, "emb") for i, v in zip(*chunk, strict=True)}
    assert scanned == dict.fromkeys(range(20), -0.5)


def test_another_model_is_refused(harness: LoopHarness) -> None:
    harness.parameters(LinearNetwork(len(harness.servers.servers)))
    other = LinearNetwork(len(harness.servers.servers))
    other.fingerprint = "another"
    with pytest.raises(RefusedError, match=r"^ps-\d: .*fingerprint"):
        harness.parameters(other)
