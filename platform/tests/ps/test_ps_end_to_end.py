"""One parameter server behind real sockets: what workers see."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edl.core.partition import initial_placement
from edl.numerics.initializers import initial_rows
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind
from edl.transport.peer_errors import BulkRefusedError

W = {"w": np.array([[1, 2], [3, 4]], np.float32), "stat": np.array([10], np.float32)}
LEASE = (1 << 32) + 1
UNIFORM = {"name": "uniform", "minval": -1, "maxval": 1}


@pytest.fixture
def ps(start):
    ps = start()
    ps.attach()
    return ps


@pytest.fixture
def worker(ps):
    worker = ps.worker()
    worker.declare(W)
    return worker


def assert_refused(call, kind):
    with pytest.raises(BulkRefusedError) as caught:
        call()
    assert caught.value.kind == kind
    return str(caught.value)


def test_a_push_applies_gradients_and_weighs_statistics_and_answers_with_the_slab_after_it(worker):
    pushed, slab = worker.push(LEASE, 0, [1, 1, 1, 1, 8], rate=0.5, weight=0.25)
    assert (pushed.outcome, pushed.version) == (pb.Pushed.APPLIED, 1)
    np.testing.assert_array_equal(slab, [0.5, 1.5, 2.5, 3.5, 12])
    version, pulled = worker.pull()
    assert version == 1
    np.testing.assert_array_equal(pulled, slab)


def test_nothing_is_held_before_a_declaration_and_nothing_is_declared_before_a_master_attaches(start):
    ps = start()
    worker = ps.worker()
    assert_refused(lambda: worker.declare(W), "busy")
    assert not ps.attach().initialized
    assert_refused(worker.pull, "uninitialized")
    assert_refused(lambda: worker.push(LEASE, 0, [0] * 5), "uninitialized")
    assert worker.declare(W).first
    assert ps.attach().initialized


def test_the_first_declaration_wins_and_another_model_or_optimizer_is_refused_by_name(ps, worker):
    other = {name: value + 1 for name, value in W.items()}
    assert not ps.worker().declare(other).first
    np.testing.assert_array_equal(worker.pull()[1], [1, 2, 3, 4, 10])
    assert "fingerprint" in assert_refused(lambda: worker.declare(W, fingerprint="another"), "model")
    assert "adam" in assert_refused(lambda: worker.declare(W, optimizer="adam"), "model")
    assert "extra" in assert_refused(lambda: worker.declare({"extra": W["w"], **W}), "model")


def test_a_push_that_is_retried_on_a_new_connection_is_applied_once(ps, worker):
    worker.send_push(LEASE, 0, [1, 1, 1, 1, 0])
    worker.client.close()
    again = ps.worker()
    pushed, slab = again.push(LEASE, 0, [1, 1, 1, 1, 0])
    assert pushed.version == 1
    np.testing.assert_array_equal(slab, [0, 1, 2, 3, 10])
    assert again.push(LEASE, 0, [1, 1, 1, 1, 0])[0].outcome == pb.Pushed.DUPLICATE


def test_a_revoked_lease_stays_out_and_the_master_learns_how_far_it_came(ps, worker):
    worker.push(LEASE, 0, [1, 1, 1, 1, 0])
    assert ps.revoke(LEASE, LEASE + 1) == {LEASE: 1, LEASE + 1: 0}
    for number in (LEASE, LEASE + 1):
        pushed, slab = worker.push(number, 1, [1, 1, 1, 1, 0])
        assert (pushed.outcome, pushed.version) == (pb.Pushed.REVOKED, 1)
        np.testing.assert_array_equal(slab, [0, 1, 2, 3, 10])


def test_an_empty_push_enters_the_step_and_changes_no_value(worker):
    head = pb.Push(lease=LEASE, step=0, empty=True)
    worker.client.request(FrameKind.PUSH, head.SerializeToString())
    assert worker.push(LEASE, 0, [1, 1, 1, 1, 1])[0].outcome == pb.Pushed.DUPLICATE
    np.testing.assert_array_equal(worker.pull()[1], [1, 2, 3, 4, 10])


def test_rows_start_at_their_initial_values_and_duplicates_are_summed(worker):
    initial = initial_rows(UNIFORM, 0, np.array([5, 7, 5]), 4)
    np.testing.assert_array_equal(worker.pull_rows([5, 7, 5]), initial)
    assert worker.scan() == {}
    gradients = np.array([[1] * 4, [2] * 4, [3] * 4], np.float32)
    worker.push(LEASE, 0, [0] * 5, rows=([5, 7, 5], gradients))
    np.testing.assert_allclose(worker.pull_rows([5, 7]), initial[:2] - [[4], [2]], rtol=1e-6)
    assert worker.scan(limit=1).keys() == {5, 7}


@pytest.mark.parametrize(
    ("gradient", "rows"),
    [
        ([1] * 4, None),
        ([1] * 6, None),
        ([1] * 5, ([1000], np.ones((1, 4)))),
        ([1] * 5, ([-1], np.ones((1, 4)))),
        ([1] * 5, ([1], np.ones((1, 3)))),
    ],
)
def test_a_push_of_another_size_or_of_rows_that_cannot_be_is_refused_and_the_connection_lives(worker, gradient, rows):
    assert_refused(lambda: worker.push(LEASE, 0, gradient, rows=rows), "bad")
    assert worker.pull()[0] == 0
    assert worker.push(LEASE, 0, [1] * 5)[0].outcome == pb.Pushed.APPLIED


@pytest.mark.parametrize("given", [{"rate": np.nan}, {"rate": np.inf}, {"rate": -np.inf}, {"weight": np.nan}])
def test_a_push_whose_rate_or_weight_is_not_finite_is_refused_and_changes_nothing(worker, given):
    before = worker.pull()[1]
    message = assert_refused(lambda: worker.push(LEASE, 0, [1] * 5, rows=([1], np.ones((1, 4))), **given), "bad")
    ((what, number),) = given.items()
    field = {"rate": "Push.learning_rate", "weight": "Push.weight"}[what]
    assert f"{field}: {number}" in message
    version, after = worker.pull()
    assert version == 0
    np.testing.assert_array_equal(after, before)
    assert worker.push(LEASE, 0, [1] * 5)[0].outcome == pb.Pushed.APPLIED, "the step has not entered"


def test_unknown_tables_and_pins_are_refused(worker):
    head = pb.PullRows(tables=[pb.TableRows(name="unknown", count=0)]).SerializeToString()
    assert "unknown" in assert_refused(lambda: worker.client.request(FrameKind.PULL_ROWS, head), "bad")
    head = pb.ScanRows(table="unknown", limit=5).SerializeToString()
    assert "unknown" in assert_refused(lambda: worker.client.request(FrameKind.SCAN_ROWS, head), "bad")
    assert_refused(lambda: worker.pull(pin=4), "pin")
    assert_refused(lambda: worker.client.request(FrameKind.WELCOME, b""), "bad")


def test_two_workers_see_each_others_pushes(ps, worker):
    other = ps.worker()
    for step in range(3):
        worker.push(LEASE, step, [1, 0, 0, 0, 0])
        pushed, slab = other.push(LEASE + 1, step, [0, 1, 0, 0, 0])
    assert pushed.version == 6
    np.testing.assert_array_equal(slab, [-2, -1, 3, 4, 10])


def test_a_lease_of_a_master_that_has_not_attached_waits_for_it(ps, worker):
    newer = (2 << 32) + 1
    assert_refused(lambda: worker.push(newer, 0, [0] * 5), "incarnation")
    ps.attach(2, live=[LEASE])
    assert worker.push(newer, 0, [0] * 5)[0].outcome == pb.Pushed.APPLIED
    assert worker.push(LEASE, 0, [0] * 5)[0].outcome == pb.Pushed.APPLIED
    assert worker.push(LEASE + 1, 0, [0] * 5)[0].outcome == pb.Pushed.REVOKED


def test_a_restored_ps_holds_the_checkpoint_bit_for_bit(start, ps, worker, tmp_path):
    rows = ([3, 900], np.ones((2, 4)))
    worker.push(LEASE, 0, [0.1, 0.2, 0.3, 0.4, 0.5], rows=rows)
    directory = ps.checkpoint([ps], 1, tmp_path)
    expected, touched = worker.pull()[1], worker.pull_rows([3, 900, 4])
    worker.push(LEASE, 1, [1] * 5, rows=rows)
    fresh = start()
    reply = fresh.attach(restore=str(directory), slots=initial_placement(1), live=[LEASE], cut=1)
    assert (reply.initialized, reply.version, [(s.lease, s.through) for s in reply.applied]) == (True, 1, [(LEASE, 1)])
    again = fresh.worker()
    np.testing.assert_array_equal(again.pull()[1], expected)
    np.testing.assert_array_equal(again.pull_rows([3, 900, 4]), touched)
    assert again.push(LEASE, 0, [1] * 5)[0].outcome == pb.Pushed.DUPLICATE
    assert again.push(LEASE, 5, [1] * 5)[0].outcome == pb.Pushed.APPLIED


def test_a_ps_that_owns_no_variable_takes_part_in_every_step(ps):
    worker = ps.worker()
    assert worker.declare({}).first
    assert worker.push(LEASE, 0, [])[0].version == 1
    rows = ([2], np.ones((1, 4)))
    pushed, slab = worker.push(LEASE, 1, [], rows=rows)
    assert (pushed.version, len(slab)) == (2, 0)
    assert worker.pull()[0] == 2
    assert worker.pull_rows([]).shape == (0, 4)
    ps.snapshot(1, pin=True)
    assert ps.hold(2) == {LEASE: 2}
    assert worker.pull(pin=1)[0] == 2
    assert worker.scan(pin=1).keys() == {2}


def test_pulls_are_never_torn(ps):
    """Every push moves all values alike, so that a slab with two values shows half a push."""
    size, count = 200_000, 30
    readers = [ps.worker() for _ in range(2)]
    writers = [ps.worker() for _ in range(2)]
    writers[0].declare({"w": np.zeros(size, np.float32)})
    torn: list[np.ndarray] = []

    def read(worker):
        for _ in range(count):
            _, slab = worker.pull()
            torn.extend([slab] if slab.min() != slab.max() else [])

    def write(worker, number):
        for step in range(count):
            _, slab = worker.push(number, step, np.ones(size, np.float32))
            torn.extend([slab] if slab.min() != slab.max() else [])

    threads = [threading.Thread(target=read, args=(worker,)) for worker in readers]
    threads += [threading.Thread(target=write, args=(w, LEASE + i)) for i, w in enumerate(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn
    version, slab = readers[0].pull()
    assert (version, slab[0]) == (2 * count, -2 * count)


@pytest.mark.parametrize(
    ("gradient", "rows", "said"),
    [
        ([1] * 4, None, "gradients (float32) of 5 values: 'w' [2, 2], 'stat' [1] need 20 bytes; 16 of"),
        (np.ones(5, np.float64), None, "the body has 40 bytes; the head and the declared model need 20"),
        ([1] * 5, ([1], np.ones((1, 3))), "1 gradients (float32) of table 'emb' (1000 x 4) need 16 bytes"),
        (
            [1] * 5,
            ([1000, 3], np.ones((2, 4))),
            "table 'emb' (1000 x 4) has ids 0 to 999; the request has ids 3 to 1000",
        ),
    ],
)
def test_a_gradient_of_another_shape_or_type_is_refused_by_name(worker, gradient, rows, said):
    head = pb.Push(lease=LEASE, step=0, learning_rate=1.0, weight=1.0)
    body = [np.asarray(gradient, None if isinstance(gradient, np.ndarray) else np.float32).data]
    if rows is not None:
        head.tables.append(pb.TableRows(name="emb", count=len(rows[0])))
        body += [np.array(rows[0], np.int64).data, rows[1].astype(np.float32).data]
    assert said in assert_refused(lambda: worker.client.request(FrameKind.PUSH, head.SerializeToString(), body), "bad")
