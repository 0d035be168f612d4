"""Training and evaluating leased ranges, with everything real but the master and TensorFlow."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from worker.loop_harness import LEASE, MINIBATCH, LinearNetwork, LoopHarness, record, task

from edl.api.errors import BadInputError, RefusedError
from edl.keras.user_callbacks import NoCallbacks
from edl.transport import edl_pb2 as pb
from edl.worker.graceful_shutdown import LeavingError
from edl.worker.lease_client import PLACEMENT_CHECK_KIND, LeasedTask
from edl.worker.not_finite import NotFiniteError
from edl.worker.task_loop import TaskLoop
from edl.worker.training_setup import Evaluator, check_placement


@pytest.fixture
def harness() -> Iterator[LoopHarness]:
    harness = LoopHarness()
    yield harness
    harness.close()


def plain_sgd(network: LinearNetwork, ranges: list[tuple[int, int]], rate: float = 0.01) -> np.ndarray:
    """The same steps without any of the machinery."""
    slab = network.initial_values()
    for start, end in ranges:
        for first in range(start, end, MINIBATCH):
            rows = np.array([record(i) for i in range(first, min(end, first + MINIBATCH))])
            slab = slab - np.float32(rate) * network.train(slab, {}, rows[:, :-1], rows[:, -1]).flat_gradients
    return slab


def test_every_minibatch_is_pushed_once_and_the_range_reported(harness: LoopHarness) -> None:
    network = LinearNetwork()
    parameters = harness.parameters(network)
    trainer = harness.trainer(network, parameters)

    for leased in harness.take(task(1, 0, 16), task(2, 16, 26)):
        trainer.run(leased)
    harness.progress.send_all()

    np.testing.assert_array_equal(parameters.latest_values(), plain_sgd(network, [(0, 16), (16, 26)]))
    reports = harness.master.requests("Report")
    assert [(r.lease - LEASE, r.last.through) for r in reports] == [(1, 4), (2, 3)]
    assert harness.servers.state(0).applied_steps == {LEASE + 1: 4, LEASE + 2: 3}
    assert sum(r.last.loss_steps for r in reports) == 7


def test_a_revoked_lease_is_dropped_with_its_prefetched_minibatches(harness: LoopHarness) -> None:
    network = LinearNetwork()
    parameters = harness.parameters(network)
    trainer = harness.trainer(network, parameters)
    first, second = harness.take(task(1, 0, 16), task(2, 16, 32))
    harness.servers.servers[0].revoke_leases(1, [LEASE + 1], 0)

    trainer.run(first)
    trainer.run(second)
    harness.progress.send_all()

    np.testing.assert_array_equal(parameters.latest_values(), plain_sgd(network, [(16, 32)]))
    assert [r.lease for r in harness.master.requests("Report")] == [LEASE + 2]


def test_a_lease_that_the_master_calls_lost_makes_no_further_step(harness: LoopHarness) -> None:
    network = LinearNetwork()
    trainer = harness.trainer(network, harness.parameters(network))
    (leased,) = harness.take(task(1, 0, 16))
    harness.master.lost = [LEASE + 1]
    harness.progress.send_all()

    trainer.run(leased)

    assert harness.servers.state(0).version == 0
    assert harness.reader.reads == []


def test_no_push_begins_once_the_worker_was_told_to_go(harness: LoopHarness) -> None:
    network = LinearNetwork()
    trainer = harness.trainer(network, harness.parameters(network))
    (leased,) = harness.take(task(1, 0, 16))
    assert harness.gate.close(0.0)

    with pytest.raises(LeavingError):
        trainer.run(leased)
    assert harness.servers.state(0).version == 0


def test_nan_stops_with_source_and_records(harness: LoopHarness) -> None:
    network = LinearNetwork(poison=9.0)
    trainer = harness.trainer(network, harness.parameters(network))
    (leased,) = harness.take(task(1, 0, 16))

    with pytest.raises(NotFiniteError, match="s: loss nan from records 8 to 11"):
        trainer.run(leased)
    assert harness.servers.state(0).applied_steps == {LEASE + 1: 2}


def test_nan_may_be_skipped_and_the_step_is_still_in(harness: LoopHarness, caplog: pytest.LogCaptureFixture) -> None:
    network = LinearNetwork(poison=9.0)
    parameters = harness.parameters(network)
    (leased,) = harness.take(task(1, 0, 16))

    harness.trainer(network, parameters, skip_nan=True).run(leased)
    harness.progress.send_all()

    np.testing.assert_array_equal(parameters.latest_values(), plain_sgd(LinearNetwork(), [(0, 8), (12, 16)]))
    (report,) = harness.master.requests("Report")
    assert (report.last.through, report.last.loss_steps, report.last.skipped_updates) == (4, 3, 1)
    assert any(message.startswith("s: records 8 to 11: loss nan") for message in caplog.messages)


def test_a_gradient_that_is_infinite_counts_as_nan(harness: LoopHarness) -> None:
    network = LinearNetwork()
    plain = network.train

    def train(*arguments: Any) -> Any:
        result = plain(*arguments)
        result.flat_gradients[1] = np.inf
        return result

    network.train = train  # type: ignore[method-assign]
    (leased,) = harness.take(task(1, 0, 4))
    with pytest.raises(NotFiniteError, match="gradient"):
        harness.trainer(network, harness.parameters(network)).run(leased)


def test_corrupt_records_are_skipped_and_counted_up_to_the_limit() -> None:
    harness = LoopHarness(corrupt=[1, 4, 5, 6, 7], allowed=5)
    network = LinearNetwork()
    parameters = harness.parameters(network)
    (leased,) = harness.take(task(1, 0, 12))
    harness.trainer(network, parameters).run(leased)
    harness.progress.send_all()

    (report,) = harness.master.requests("Report")
    assert (report.last.through, report.last.skipped_records, report.last.loss_steps) == (3, 5, 2)
    assert harness.servers.state(0).version == 3
    harness.close()


@pytest.mark.parametrize(("corrupt", "allowed"), [([5], 0), ([1, 5], 1)])
def test_one_corrupt_record_too_many_fails_naming_it(corrupt: list[int], allowed: int) -> None:
    harness = LoopHarness(corrupt=corrupt, allowed=allowed)
    network = LinearNetwork()
    (leased,) = harness.take(task(1, 0, 12))
    with pytest.raises(BadInputError, match="record 5 cannot be read"):
        harness.trainer(network, harness.parameters(network)).run(leased)
    harness.close()


def test_a_corrupt_record_counts_once_however_often_it_is_read() -> None:
    harness = LoopHarness(corrupt=[2], allowed=1)
    network = LinearNetwork()
    trainer = harness.trainer(network, harness.parameters(network))
    for leased in harness.take(task(1, 0, 4), task(2, 0, 4, epoch=1)):
        trainer.run(leased)
    harness.progress.send_all()
    assert [r.last.skipped_records for r in harness.master.requests("Report")] == [1, 1]
    harness.close()


def evaluator(harness: LoopHarness, network: LinearNetwork, parameters: Any) -> Evaluator:
    return Evaluator(
        network,
        parameters,
        harness.streams["evaluation"],
        harness.leases,
        harness.progress,
        harness.gate,
        NoCallbacks(),
    )


def test_evaluation_uses_the_pinned_values_and_pulls_them_once(harness: LoopHarness) -> None:
    network = LinearNetwork()
    parameters = harness.parameters(network)
    for leased in harness.take(task(1, 0, 8)):
        harness.trainer(network, parameters).run(leased)
    harness.servers.servers[0].take_snapshot(1, 1, None, pin=True)
    pinned = parameters.latest_values().copy()
    for leased in harness.take(task(2, 8, 32)):
        harness.trainer(network, parameters).run(leased)
    pulls: list[int] = []
    pull = parameters.pull_pinned
    parameters.pull_pinned = lambda pin: pulls.append(pin) or pull(pin)  # type: ignore[method-assign,func-returns-value]

    evaluate = evaluator(harness, network, parameters)
    for leased in harness.take(task(3, 0, 20, "evaluation", pin=1), task(4, 20, 30, "evaluation", pin=1)):
        evaluate.run(leased)
    harness.progress.send_all()

    assert pulls == [1]
    for values in network.evaluated:
        np.testing.assert_array_equal(values, pinned)
    states = [json.loads(r.result)["mae"]["states"] for r in harness.master.requests("Report")[-2:]]
    assert [count for _, count in states] == [20, 10]


def test_an_evaluation_says_nothing_before_it_is_complete(harness: LoopHarness) -> None:
    """A range that is given back must be evaluated as a whole: its states exist in one worker only."""
    network = LinearNetwork()
    parameters = harness.parameters(network)
    harness.servers.servers[0].take_snapshot(1, 1, None, pin=True)
    reported_steps: list[int] = []
    evaluate = network.evaluate

    def watched(*arguments: Any) -> None:
        evaluate(*arguments)
        harness.progress.send_all()
        reported_steps.append(harness.master.requests("Progress")[-1].leases[0].through)

    network.evaluate = watched  # type: ignore[method-assign]
    for leased in harness.take(task(1, 0, 12, "evaluation", pin=1)):
        evaluator(harness, network, parameters).run(leased)
    assert reported_steps == [0, 0, 0]


def test_metrics_turns_sums_into_values(harness: LoopHarness) -> None:
    payload = json.dumps({"mae": {"additive": True, "states": [6.0, 4]}}).encode()
    (leased,) = harness.take(task(1, 0, 0, "metrics", payload=payload))
    evaluator(harness, LinearNetwork(), None).compute_metrics(leased)
    harness.progress.send_all()
    assert json.loads(harness.master.requests("Report")[0].result) == {"mae": 1.5}


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", rb'{"a": "\ud800"}', b"[" * 100_000, b"9" * 400], ids=len)
def test_what_a_master_cannot_mean_is_refused(payload: bytes) -> None:
    with pytest.raises(RefusedError, match="'metrics' is not JSON"):
        LeasedTask(1, "metrics", payload=payload).decode_payload()


# ------------------------------------------------------------------------------------------------ the loop itself


def loop(harness: LoopHarness, **handlers: Any) -> TaskLoop:
    return TaskLoop(harness.session, harness.leases, harness.progress, harness.gate, handlers)


def start(harness: LoopHarness, *tasks: pb.Task) -> None:
    harness.master.grant(*tasks)
    harness.master.stop()
    for target in (harness.leases.run, harness.progress.run):
        threading.Thread(target=target, daemon=True).start()


def test_the_loop_does_every_kind_and_ends_with_the_work(harness: LoopHarness) -> None:
    done: list[str] = []

    def do(leased: LeasedTask) -> None:
        done.append(leased.kind)
        harness.progress.finish_task(leased.lease_id)

    start(harness, task(1, 0, 4), task(2, 0, 4, "evaluation"), task(3, 0, 0, "export"))
    assert loop(harness, training=do, evaluation=do, export=do).run() == 0
    assert done == ["training", "evaluation", "export"]
    assert len(harness.master.requests("Report")) == 3
    harness.progress.stop()


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (BadInputError("feed() raised"), "input", 2),
        (NotFiniteError("loss nan"), "nan", 1),
        (MemoryError("out of memory"), "crash", 1),
        (KeyboardInterrupt("raised by code"), "crash", 1),
        (SystemExit("raised by code"), "crash", 1),
    ],
)
def test_a_failure_is_told_to_the_master(
    harness: LoopHarness, error: BaseException, kind: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(leased: LeasedTask) -> None:
        raise error

    start(harness, task(1, 0, 4))
    with caplog.at_level(logging.CRITICAL):
        assert loop(harness, training=fail).run() == code
    (failure,) = harness.master.requests("Fail")
    assert (failure.kind, failure.lease) == (kind, LEASE + 1)
    assert str(error) in failure.message
    assert bool(failure.detail) is (kind == "crash"), "what EDL foresaw needs no traceback"
    harness.progress.stop()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_loop_of_another_kind_is_told_to_the_master(
    harness: LoopHarness, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> int:
        raise kind("raised by code")

    with caplog.at_level(logging.CRITICAL):
        assert loop(harness).run_guarded(train) == 1
    (failure,) = harness.master.requests("Fail")
    assert failure.message == f"{kind.__name__}: raised by code"
    assert "in train" in failure.detail
    harness.progress.stop()


def test_a_failure_that_is_not_fatal_drops_the_task_only(harness: LoopHarness) -> None:
    done: list[int] = []

    def do(leased: LeasedTask) -> None:
        if leased.lease_id == LEASE + 1:
            raise BadInputError("this one")
        done.append(leased.lease_id)

    harness.master.fatal = False
    start(harness, task(1, 0, 4), task(2, 4, 8))
    assert loop(harness, training=do).run() == 0
    assert done == [LEASE + 2]
    harness.progress.stop()


# ------------------------------------------------------------------------------------------------ PS that are replaced


@pytest.fixture(params=[1, 2])
def replacing_harness(request: pytest.FixtureRequest) -> Iterator[LoopHarness]:
    """The harness of a worker that has declared its model, and then waits for work while one PS is replaced."""
    harness = LoopHarness(ps=request.param, watches_placement=True)
    yield harness
    harness.progress.stop()
    harness.close()


def replace(harness: LoopHarness) -> None:
    harness.servers.kill(0)
    harness.servers.start(0)
    harness.master.placement = harness.servers.placement()


def no_work_until_declared(harness: LoopHarness) -> threading.Event:
    """The master has no work until a worker says that all PS hold the model, which sets the event."""
    declared = threading.Event()

    def on_call(method: str, request: Any) -> None:
        lease_requests = len(harness.master.requests("Lease"))
        if (
            method == "Register"
            and request.ready
            and all(harness.servers.state(i).initialized for i in harness.servers.servers)
        ):
            declared.set()
        if method == "Lease" and lease_requests == 2:
            declared.wait(10)

    wait = pb.LeaseReply(
        incarnation=1,
        placement_version=harness.servers.version,
        wait=pb.Wait(reason="waiting for the parameter servers"),
    )
    harness.master.answers.append(wait)
    harness.master.on_call = on_call
    return declared


def test_a_ps_that_is_replaced_while_the_worker_waits_is_told_the_model(replacing_harness: LoopHarness) -> None:
    """What was trained is lost with the only PS: all begins with the initial values, and each step is in once."""
    network = LinearNetwork(len(replacing_harness.servers.servers))
    parameters = replacing_harness.parameters(network)
    trainer = replacing_harness.trainer(network, parameters)
    handlers = {PLACEMENT_CHECK_KIND: partial(check_placement, replacing_harness.session, parameters)}
    replace(replacing_harness)
    declared = no_work_until_declared(replacing_harness)
    start(replacing_harness, task(1, 0, 16))

    assert loop(replacing_harness, training=trainer.run, **handlers).run() == 0

    assert declared.is_set()
    np.testing.assert_array_equal(parameters.latest_values(), plain_sgd(network, [(0, 16)]))
    assert all(
        replacing_harness.servers.state(i).applied_steps == {LEASE + 1: 4} for i in replacing_harness.servers.servers
    )


def test_a_ps_that_is_replaced_right_after_its_declaration_is_told_the_model(replacing_harness: LoopHarness) -> None:
    """The answer to `ready` brings the new placement already: no later one says that there is anything new."""
    network = LinearNetwork(len(replacing_harness.servers.servers))
    parameters = replacing_harness.parameters(network)
    replace(replacing_harness)
    replacing_harness.session.register(ready=True)
    handlers = {PLACEMENT_CHECK_KIND: partial(check_placement, replacing_harness.session, parameters)}
    declared = no_work_until_declared(replacing_harness)
    start(replacing_harness)

    assert loop(replacing_harness, **handlers).run() == 0
    assert declared.is_set()


def test_a_ps_that_this_worker_knows_is_told_nothing(harness: LoopHarness) -> None:
    parameters = harness.parameters(LinearNetwork())
    before = len(harness.master.requests("Register"))
    check_placement(harness.session, parameters, LeasedTask(0, PLACEMENT_CHECK_KIND))
    assert not parameters.declare_to_replaced_ps()
    assert len(harness.master.requests("Register")) == before


def test_a_worker_that_declares_no_model_has_nothing_to_check() -> None:
    """One that predicts: it hears of placements, too."""
    harness = LoopHarness(watches_placement=True)
    predicted: list[int] = []
    start(harness, task(1, 0, 4, kind="prediction"))

    def predict(leased: LeasedTask) -> None:
        predicted.append(leased.lease_id)
        harness.progress.finish_task(leased.lease_id)

    assert loop(harness, prediction=predict).run() == 0
    assert predicted == [LEASE + 1]
    assert harness.master.requests("Fail") == []
    harness.progress.stop()
    harness.close()
