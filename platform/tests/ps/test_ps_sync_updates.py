"""Synchronous training behind real sockets: what an update is made of, who is waited for, and what a snapshot holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from ps.conftest import BulkWorker, PsHarness

from edl.api.strategy import Strategy
from edl.numerics.parameter_store import PushGradients, RowBatch
from edl.ps.messages import MasterAttachment
from edl.ps.sync_updates import merge_gradients
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import BulkRefusedError

W = {"w": np.zeros(3, np.float32)}
LEASE, OTHER, THIRD = ((1 << 32) + n for n in (1, 2, 3))
APPLIED, DUPLICATE, REVOKED, STALE = (
    pb.Pushed.APPLIED,
    pb.Pushed.DUPLICATE,
    pb.Pushed.REVOKED,
    pb.Pushed.STALE,
)


@pytest.fixture
def start_sync_ps(start: Callable[..., PsHarness]) -> Callable[..., PsHarness]:
    """A PS in synchronous mode, attached and declared."""

    def make(wanted: int = 2, tolerance: int = 0, **options: object) -> PsHarness:
        strategy = Strategy(mode="sync", grads_to_wait=wanted, version_tolerance=tolerance)
        ps = start(strategy=strategy, **options)
        ps.attach()
        ps.worker().declare(W)
        return ps

    return make


def has_joined(ps: PsHarness, count: int = 1) -> None:
    """Wait until so many pushes wait for their round."""
    changed, updates = ps.server._condition, ps.server._updater
    with changed:
        assert changed.wait_for(lambda: len(updates._pending_pushes) == count, 10)


def behind(ps: PsHarness, count: int) -> None:
    """Wait until so many pushes wait for a cut."""
    with ps.server._condition:
        assert ps.server._condition.wait_for(lambda: ps.server._paused_pushes == count, 10)


def joined(ps: PsHarness, *leases: int) -> list[BulkWorker]:
    """Workers that have pushed step 0 of a lease each, and have more of it: rounds wait for all of them."""
    workers = [ps.worker() for _ in leases]
    for index, (worker, lease) in enumerate(zip(workers, leases, strict=True)):
        worker.push(lease, 0, (), worker=index, next=0, empty=True)
    for index, (worker, lease) in enumerate(zip(workers, leases, strict=True)):  # the answer says what follows
        assert worker.push(lease, 0, (), worker=index, next=lease, empty=True)[0].outcome == DUPLICATE
    return workers


def test_two_pushes_are_one_update_of_their_mean_by_records(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    version, rows = worker.pull()[0], worker.pull_rows([1, 2])
    worker.send_push(
        LEASE, 1, [4, 8, 0], worker=0, next=LEASE, version=version, weight=1, rows=([1, 2], np.ones((2, 4)))
    )
    has_joined(ps)
    pushed, slab = other.push(
        OTHER, 1, [4, 0, 0], worker=1, next=OTHER, version=version, weight=1 / 3, rows=([2], np.ones((1, 4)))
    )
    first, same = worker.receive_push()
    assert [pushed.outcome, first.outcome] == [APPLIED, APPLIED]
    assert [pushed.version, first.version] == [version + 1] * 2
    assert [(s.lease, s.step) for s in first.round] == [(s.lease, s.step) for s in pushed.round]
    assert [(s.lease, s.step) for s in first.round] == [(LEASE, 1), (OTHER, 1)]
    np.testing.assert_array_equal(slab, [-4, -6, 0])
    np.testing.assert_array_equal(same, slab)
    np.testing.assert_array_equal(worker.pull_rows([1, 2]), rows - np.array([[0.75], [1.0]], np.float32))


def test_a_push_that_missed_an_update_is_refused_and_enters_when_it_is_computed_anew(start_sync_ps) -> None:
    ps = start_sync_ps(wanted=1)
    fast, slow = ps.worker(), ps.worker()
    fast.push(LEASE, 0, [1, 1, 1], worker=0, next=LEASE, version=0)
    refused, slab = slow.push(OTHER, 0, [1, 0, 0], worker=1, next=OTHER, version=0)
    assert refused.outcome == STALE
    assert refused.version == 1
    np.testing.assert_array_equal(slab, [-1, -1, -1])
    assert dict(ps.server.attach_master(MasterAttachment(incarnation=1, lowest_open_lease=0)).applied_steps) == {
        LEASE: 1
    }
    fast.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=1)
    has_joined(ps)
    again, slab = slow.push(OTHER, 0, [0, 1, 1], worker=1, next=OTHER, version=refused.version)
    assert again.outcome == fast.receive_push()[0].outcome == APPLIED
    np.testing.assert_array_equal(slab, [-1.5, -2, -2])


def test_a_stale_push_in_the_name_of_an_invented_worker_holds_up_nobody(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other, stranger = *joined(ps, LEASE, OTHER), ps.worker()
    for lease in (LEASE, OTHER):
        assert stranger.push(lease, 1, [0, 0, 0], worker=4242, next=lease, version=0)[0].outcome == STALE
        assert stranger.push(lease, 0, (), worker=4243, next=lease, empty=True)[0].outcome == DUPLICATE
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    assert other.push(OTHER, 1, [1, 1, 1], worker=1, next=OTHER, version=2)[0].outcome == APPLIED
    assert worker.receive_push()[0].outcome == APPLIED


@pytest.mark.parametrize(("tolerance", "outcome"), [(1, APPLIED), (0, STALE)])
def test_a_push_may_miss_as_many_updates_as_tolerated(start_sync_ps, tolerance: int, outcome: int) -> None:
    ps = start_sync_ps(wanted=1, tolerance=tolerance)
    worker = ps.worker()
    for step in range(2):
        worker.push(LEASE, step, [1, 1, 1], version=step)
    assert worker.push(OTHER, 0, [1, 1, 1], version=1)[0].outcome == outcome


@pytest.mark.parametrize("behind_by", [(0, 1), (1, 0)])
def test_an_update_has_the_learning_rate_of_the_newest_values_in_it(start_sync_ps, behind_by: tuple[int, int]) -> None:
    """A push may come a version late, with the rate that its worker's schedule had then."""
    rates = {0: 0.5, 1: 16.0}
    ps = start_sync_ps(tolerance=1)
    worker, other = joined(ps, LEASE, OTHER)
    version, before = worker.pull()
    versions, (first, second) = [version - late for late in behind_by], (rates[late] for late in behind_by)
    worker.send_push(LEASE, 1, [4, 0, 0], worker=0, next=LEASE, version=versions[0], rate=first)
    has_joined(ps)
    pushed, after = other.push(OTHER, 1, [4, 0, 0], worker=1, next=OTHER, version=versions[1], rate=second)
    assert worker.receive_push()[0].outcome == pushed.outcome == APPLIED
    np.testing.assert_array_equal(before - after, [2, 0, 0])


def test_a_push_from_before_the_server_went_back_is_not_stale(start_sync_ps) -> None:
    ps = start_sync_ps(wanted=1)
    assert ps.worker().push(LEASE, 0, [1, 1, 1], version=700)[0].outcome == APPLIED


def test_an_empty_push_is_never_stale_and_enters_its_step(start_sync_ps) -> None:
    ps = start_sync_ps(wanted=1)
    worker = ps.worker()
    worker.push(LEASE, 0, [1, 1, 1])
    pushed, slab = worker.push(OTHER, 0, (), empty=True)
    assert (pushed.outcome, pushed.version) == (APPLIED, 2)
    np.testing.assert_array_equal(slab, [-1, -1, -1])


def test_a_killed_worker_is_not_waited_for(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    other.client.close()
    assert worker.receive_push()[0].outcome == APPLIED


def test_a_worker_with_nothing_in_hand_is_not_waited_for(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    other.push(OTHER, 1, [1, 1, 1], worker=1, next=0, version=2)
    assert worker.receive_push()[0].outcome == APPLIED
    assert worker.push(LEASE, 2, [1, 1, 1], worker=0, next=LEASE, version=3)[0].outcome == APPLIED


def test_a_revoked_push_leaves_its_round_and_the_others_go_on(start_sync_ps) -> None:
    ps = start_sync_ps(wanted=3)
    worker, other, third = joined(ps, LEASE, OTHER, THIRD)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=3)
    other.send_push(OTHER, 1, [8, 8, 8], worker=1, next=OTHER, version=3)
    has_joined(ps, 2)
    assert ps.revoke(OTHER) == {OTHER: 1}
    assert other.receive_push()[0].outcome == REVOKED
    pushed, slab = third.push(THIRD, 1, [3, 3, 3], worker=2, next=THIRD, version=3)
    assert pushed.outcome == worker.receive_push()[0].outcome == APPLIED
    np.testing.assert_array_equal(slab, [-2, -2, -2])


def test_a_worker_whose_next_lease_is_revoked_is_not_waited_for(start_sync_ps) -> None:
    """A node that is lost closes no connection."""
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    ps.revoke(OTHER)
    assert worker.receive_push()[0].outcome == APPLIED
    assert other.push(OTHER, 1, [1, 1, 1], worker=1, version=3)[0].outcome == REVOKED


@pytest.mark.parametrize("end", ["release", "snapshot", "attach"])
def test_no_round_closes_while_a_cut_is_held_and_all_of_it_closes_after_it(start_sync_ps, end: str) -> None:
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    assert ps.hold(1) == {LEASE: 1, OTHER: 1}
    other.send_push(OTHER, 1, [5, 5, 5], worker=1, next=OTHER, version=2)
    behind(ps, 1)
    if end == "attach":
        ps.attach(2, live=[LEASE, OTHER], cut=1)
    elif end == "release":
        ps.release(1)
    else:
        ps.snapshot(1, pin=True, within={LEASE: 1, OTHER: 1})
        np.testing.assert_array_equal(ps.worker().pull(pin=1)[1], [0, 0, 0])
    assert [each.receive_push()[0].version for each in (worker, other)] == [3, 3]


def test_a_round_that_is_complete_but_for_a_lost_worker_closes_after_the_cut(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    ps.hold(1)
    ps.revoke(OTHER)
    assert ps.hold(1) == {LEASE: 1}, "its round would be complete now"
    ps.snapshot(1, within={LEASE: 1})
    assert worker.receive_push()[0].outcome == APPLIED
    assert other.push(OTHER, 1, [1, 1, 1], worker=1, version=3)[0].outcome == REVOKED


def test_a_push_that_sits_goes_on_when_a_cut_was_held_for_too_long(
    start_sync_ps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.ps.cut_state.MAX_PAUSE_SECONDS", 0.1)
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    ps.hold(1)
    other.client.close()
    assert worker.receive_push()[0].outcome == APPLIED, "nobody else comes, and the master says no more"


def test_a_snapshot_holds_no_part_of_a_round(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    ps.snapshot(1, pin=True)
    assert ps.attach().applied == [pb.LeaseStep(lease=LEASE, through=1), pb.LeaseStep(lease=OTHER, through=1)]
    np.testing.assert_array_equal(ps.worker().pull(pin=1)[1], [0, 0, 0])
    other.push(OTHER, 1, [1, 1, 1], worker=1, next=OTHER, version=2)
    assert worker.receive_push()[0].outcome == APPLIED


def test_a_push_that_waits_when_the_server_goes_back_is_to_be_sent_again(start_sync_ps, tmp_path: Path) -> None:
    ps = start_sync_ps()
    worker, _ = joined(ps, LEASE, OTHER)
    directory = PsHarness.checkpoint([ps], 1, tmp_path)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    ps.attach(restore=str(directory), cut=1, slots=[0] * 256, floor=1)
    with pytest.raises(BulkRefusedError, match="replaced") as caught:
        worker.receive_push()
    assert caught.value.kind == "busy"


def test_a_lost_answer_is_given_again_with_its_round(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    has_joined(ps)
    other.push(OTHER, 1, [1, 1, 1], worker=1, next=OTHER, version=2)
    again, slab = ps.worker().push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2, again=True)
    assert again.outcome == DUPLICATE
    assert [(s.lease, s.step) for s in again.round] == [(LEASE, 1), (OTHER, 1)]
    np.testing.assert_array_equal(slab, [-1, -1, -1])


def test_a_retry_takes_the_place_of_the_push_that_waits(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other = joined(ps, LEASE, OTHER)
    worker.send_push(LEASE, 1, [2, 2, 2], worker=0, next=LEASE, version=2)
    has_joined(ps)
    retry = ps.worker()
    retry.send_push(LEASE, 1, [2, 2, 2], worker=0, next=LEASE, version=2, again=True)
    with pytest.raises(BulkRefusedError, match="again"):
        worker.receive_push()
    pushed, slab = other.push(OTHER, 1, [4, 4, 4], worker=1, next=OTHER, version=2)
    assert pushed.outcome == retry.receive_push()[0].outcome == APPLIED
    np.testing.assert_array_equal(slab, [-3, -3, -3])


def test_a_round_does_not_wait_for_ever(start_sync_ps) -> None:
    """The worker sends it again, and in between hears of what has changed."""
    ps = start_sync_ps(patience=0.05)
    worker, other = joined(ps, LEASE, OTHER)
    with pytest.raises(BulkRefusedError, match=rf"leases \[{OTHER}\] for 0.05 s") as caught:
        worker.push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)
    assert caught.value.kind == "busy"
    ps.revoke(OTHER)
    assert worker.push(LEASE, 1, [1, 1, 1], worker=0, next=LEASE, version=2)[0].outcome == APPLIED
    assert other.push(OTHER, 1, [1, 1, 1], worker=1)[0].outcome == REVOKED


def test_those_that_follow_make_the_same_update(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker, other = ps.worker(), ps.worker()
    named = [pb.Share(lease=LEASE, step=0), pb.Share(lease=OTHER, step=0)]
    worker.send_push(LEASE, 0, [2, 2, 2], worker=0, round=named)
    has_joined(ps)
    pushed, slab = other.push(OTHER, 0, [4, 4, 4], worker=1, round=named)
    assert pushed.outcome == worker.receive_push()[0].outcome == APPLIED
    assert pushed.version == 1
    np.testing.assert_array_equal(slab, [-3, -3, -3])


def test_those_that_follow_wait_for_no_revoked_push(start_sync_ps) -> None:
    ps = start_sync_ps()
    worker = ps.worker()
    named = [pb.Share(lease=LEASE, step=0), pb.Share(lease=OTHER, step=0)]
    worker.send_push(LEASE, 0, [2, 2, 2], worker=0, round=named)
    has_joined(ps)
    ps.revoke(OTHER)
    np.testing.assert_array_equal(worker.receive_push()[1], [-2, -2, -2])


# ------------------------------------------------------------ staleness-aware


def test_a_stale_gradient_gets_a_smaller_learning_rate(start) -> None:
    ps = start(strategy=Strategy(staleness_aware=True))
    ps.attach()
    worker = ps.worker()
    worker.declare(W)
    moved = []
    for step, version in enumerate([0, 0, 0, 3, 1, 99]):
        before = worker.pull()[1]
        worker.push(LEASE, step, [12, 0, 0], version=version)
        moved.append(float(before[0] - worker.pull()[1][0]))
    assert moved == [12, 12, 6, 12, 4, 12]


# ------------------------------------------------------------ what an update is

WEIGHTS = st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=1, max_size=5)


@settings(deadline=None)
@given(WEIGHTS, st.data())
def test_a_round_is_the_gradient_of_all_its_records_as_one_minibatch(weights: list[float], data: st.DataObject) -> None:
    """Against float64, for a loss that is a mean over records; statistics move by the mean of what each would."""
    shape, values = 6, st.integers(-8, 8).map(float)
    full = 4
    records = [data.draw(arrays.arrays(np.float64, (int(w * full), shape), elements=values)) for w in weights]
    parts = []
    for number, (weight, mine) in enumerate(zip(weights, records, strict=True)):
        mean = mine.mean(axis=0).astype(np.float32)
        rows = RowBatch(np.array([7, number]), np.stack([mean[:2], mean[2:4]]))
        parts.append(PushGradients(mean, {"emb": rows}, 9.0, weight))
    merged = merge_gradients(parts, 0.5)
    assert merged is not None
    assert merged.learning_rate == 0.5
    mean_gradient = np.concatenate(records).mean(axis=0)
    np.testing.assert_allclose(merged.flat, mean_gradient, rtol=1e-6, atol=1e-6)
    rows = merged.rows["emb"]
    np.testing.assert_allclose(rows.values[rows.ids == 7].sum(axis=0), mean_gradient[:2], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(merged.record_weight, np.mean(weights))


def test_one_push_alone_is_applied_to_the_bit() -> None:
    only = PushGradients(np.array([1e-30, 3.3], np.float32), {}, 0.1, 0.3)
    merged = merge_gradients([only], 0.1)
    assert merged == only
    assert merged is not None
    assert merged.flat is only.flat


def test_nothing_makes_nothing() -> None:
    assert merge_gradients([], 0.1) is None
