"""Steps between two pulls: a worker moves its own copy of the dense values as its pushes move the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from worker.loop_harness import FEATURES, LEASE, SGD, LinearNetwork, LoopHarness, gradient_push, task

from edl.api.errors import BadInputError
from edl.api.variables import VariableSpec
from edl.numerics.optimizer_spec import OPTIMIZER_DEFINITIONS, OptimizerSpec
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind
from edl.worker.parameter_client import StepPush
from edl.worker.trainer import SerialExecutor

STEPS = 3


@pytest.fixture(params=[1, 2])
def harness(request: pytest.FixtureRequest) -> Iterator[LoopHarness]:
    harness = LoopHarness(ps=request.param)
    yield harness
    harness.close()


@pytest.fixture(params=["in turn", "overlapped"])
def executor(request: pytest.FixtureRequest) -> Iterator[SerialExecutor | None]:
    executor = SerialExecutor("test")
    yield None if request.param == "in turn" else executor
    executor.close()


def network(harness: LoopHarness) -> LinearNetwork:
    return LinearNetwork(len(harness.servers.servers))


def push(step: int, gradient: float = 1.0, **fields: Any) -> StepPush:
    slab = np.full(FEATURES, gradient, np.float32)
    return gradient_push(LEASE, step, learning_rate=0.5, weight=1, slab=slab, **fields)


def test_values_come_with_every_third_push(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    pulls: list[bool] = []
    send = BulkClient.send

    def watched(self: BulkClient, kind: FrameKind, meta: bytes, buffers: Any = ()) -> None:
        if kind is FrameKind.PUSH:
            pulls.append(pb.Push.FromString(meta).pull)
        send(self, kind, meta, buffers)

    monkeypatch.setattr(BulkClient, "send", watched)
    parameters = harness.parameters(network(harness), get_model_steps=STEPS)
    for step in range(7):
        parameters.latest_values()
        parameters.push(push(step))
    assert pulls[:: len(harness.servers.servers)] == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("optimizer", [SGD, OptimizerSpec("adagrad"), OptimizerSpec("adam")])
def test_a_lone_worker_moves_its_copy_as_the_servers_move_the_values(
    harness: LoopHarness, optimizer: OptimizerSpec
) -> None:
    parameters = harness.parameters(network(harness), optimizer=optimizer, get_model_steps=STEPS)
    onlooker = harness.parameters(network(harness), optimizer=optimizer)
    parameters.latest_values()
    for step in range(7):
        parameters.push(push(step, gradient=step - 2.5))
        np.testing.assert_array_equal(parameters.latest_values(), onlooker.pull_pinned(0))


@pytest.mark.parametrize("name", sorted(OPTIMIZER_DEFINITIONS.keys() - {"ftrl"}))
@pytest.mark.first_cases(8)
def test_a_worker_that_joins_late_moves_its_copy_from_what_it_pulled(harness: LoopHarness, name: str) -> None:
    """Its slot variables have seen nothing, and the values of others stay in its copy all the same."""
    early = harness.parameters(network(harness), optimizer=OptimizerSpec(name))
    for step in range(200):
        early.push(gradient_push(LEASE + 1, step, 0.1, 1, slab=np.full(FEATURES, -1, np.float32)))
    late = harness.parameters(network(harness), optimizer=OptimizerSpec(name), get_model_steps=STEPS)
    pulled = late.latest_values().copy()
    late.push(push(0, gradient=1e-6))
    steps = np.abs(late.latest_values() - pulled) / np.maximum(1, np.abs(pulled))
    assert steps.max() <= 0.6, "no further than one step: LAMB's goes with the norm of the values"


def test_values_that_follow_from_slot_variables_alone_are_refused(harness: LoopHarness) -> None:
    with pytest.raises(BadInputError, match=r"strategy\.get_model_steps.*Ftrl"):
        harness.parameters(network(harness), optimizer=OptimizerSpec("ftrl"), get_model_steps=STEPS)


def test_the_steps_of_others_are_seen_with_the_next_pull(harness: LoopHarness) -> None:
    own, other = harness.parameters(network(harness), get_model_steps=STEPS), harness.parameters(network(harness))
    own.latest_values()
    other.push(gradient_push(LEASE + 1, 0, learning_rate=0.5, weight=1, slab=np.full(FEATURES, 8, np.float32)))
    values = []
    for step in range(STEPS):
        own.push(push(step))
        values.append(float(own.latest_values()[0]))
    assert values == [-0.5, -1.0, -5.5]


def test_own_steps_do_not_make_a_push_stale(harness: LoopHarness) -> None:
    """The copy knows of them: what it lacks are the steps of others."""
    own, other = harness.parameters(network(harness), get_model_steps=STEPS), harness.parameters(network(harness))
    own.latest_values()
    own.push(push(0))
    other.push(gradient_push(LEASE + 1, 0, slab=np.zeros(FEATURES, np.float32)))
    own.push(push(1))
    assert (set(own.value_versions), own.global_step) == ({2}, 3)
    own.push(push(2))
    assert (set(own.value_versions), own.global_step) == ({4}, 4)


def test_after_a_refused_push_the_values_are_pulled(harness: LoopHarness) -> None:
    parameters = harness.parameters(network(harness), get_model_steps=STEPS)
    parameters.latest_values()
    for server in harness.servers.servers.values():
        server.revoke_leases(1, [LEASE], 0)
    assert parameters.push(push(0)).revoked
    np.testing.assert_array_equal(parameters.latest_values(), np.zeros(FEATURES))


def test_a_step_that_applies_nothing_moves_nothing(harness: LoopHarness) -> None:
    parameters = harness.parameters(network(harness), get_model_steps=STEPS)
    parameters.latest_values()
    parameters.push(gradient_push(LEASE, 0))
    np.testing.assert_array_equal(parameters.latest_values(), np.zeros(FEATURES))


def test_statistics_move_by_their_weighed_deltas() -> None:
    harness = LoopHarness()
    model = LinearNetwork()
    model.variables = (*model.variables[:2], VariableSpec("mean", (1,), statistic=True))
    parameters = harness.parameters(model, get_model_steps=STEPS)
    parameters.latest_values()
    parameters.push(gradient_push(LEASE, 0, learning_rate=0.5, weight=0.25, slab=np.full(FEATURES, 8, np.float32)))
    assert parameters.latest_values().tolist() == [-4, -4, 2]
    harness.close()


@pytest.mark.parametrize("ps", [1, 2])
def test_training_with_local_steps_is_the_same_for_a_lone_worker(ps: int, executor: SerialExecutor | None) -> None:
    ends = []
    for steps in (1, STEPS):
        harness = LoopHarness(ps=ps)
        parameters = harness.parameters(network(harness), get_model_steps=steps)
        for leased in harness.take(task(1, 0, 30), task(2, 30, 44)):
            harness.trainer(network(harness), parameters, executor=executor).run(leased)
        ends.append(parameters.pull_pinned(0))
        harness.close()
    np.testing.assert_array_equal(*ends)
