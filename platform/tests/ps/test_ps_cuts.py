"""Which pushes wait for a cut, and what is pinned: the decisions, then real sockets with two PS."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from edl.core.errors import StorageError
from edl.ps.cuts import CutError, Cuts, PinError
from edl.ps.shard_writer import ShardWriter
from edl.ps.table_store import TableStore
from edl.rpc import edl_pb2 as pb
from edl.rpc.bulk import BulkRefused
from edl.rpc.refusal import Refused

W = {"w": np.zeros(3, np.float32)}
LEASE = (1 << 32) + 1


# ------------------------------------------------------------ decisions


def test_a_push_waits_for_its_cut_and_for_no_later_one():
    cuts: Cuts[str] = Cuts()
    cuts.announce(2)
    assert [cuts.waits(stamp) for stamp in (0, 1, 2)] == [False, True, True]
    cuts.taken(2, "copy", pin=False)
    assert [cuts.waits(stamp) for stamp in (1, 2, 3)] == [False, False, True]
    assert cuts.announced == 2


def test_a_cut_that_is_over_cannot_be_taken():
    cuts: Cuts[str] = Cuts()
    cuts.release(3)
    with pytest.raises(CutError, match="cut 3"):
        cuts.check_open(3)
    cuts.check_open(4)


def test_pins_are_kept_until_they_are_released():
    cuts: Cuts[str] = Cuts()
    cuts.taken(1, "one", pin=True)
    cuts.taken(2, "two", pin=False)
    cuts.taken(3, "three", pin=True)
    assert list(cuts.pins()) == [1, 3]
    assert cuts.pinned(1) == "one"
    cuts.unpin(1)
    cuts.release(3)
    for cut in (1, 2, 3):
        with pytest.raises(PinError):
            cuts.pinned(cut)


# ------------------------------------------------------------ real sockets


def test_room_for_the_copy_is_made_before_workers_are_told_of_the_cut(start, monkeypatch: pytest.MonkeyPatch):
    """Their next pushes wait for the copy: until then none does."""
    server, order = start(0), []
    server.attach()
    server.worker().declare(W)
    monkeypatch.setattr(TableStore, "make_room", lambda self: order.append("room"))
    monkeypatch.setattr(Cuts, "announce", lambda self, cut: order.append(f"cut {cut}"))
    server.announce(1)
    assert order == ["room", "cut 1"]


@pytest.fixture
def two(start):
    """Two PS with the same model, and a worker's connection to each."""
    servers = [start(0), start(1)]
    workers = []
    for ps in servers:
        ps.attach()
        workers.append(ps.worker())
        workers[-1].declare(W)
    return servers, workers


class Waiting:
    """A push in a thread of its own."""

    def __init__(self, worker, number: int, step: int, gradient, cut: int) -> None:
        self._result: list[object] = []
        worker.send_push(number, step, gradient, cut=cut)
        self._thread = threading.Thread(target=self._receive, args=(worker,))
        self._thread.start()

    def _receive(self, worker) -> None:
        try:
            self._result.append(worker.receive_push())
        except BulkRefused as refused:
            self._result.append(refused)

    def result(self):
        self._thread.join(timeout=30)
        return self._result[0]


def test_pushes_stamped_with_a_cut_wait_for_it_and_are_not_in_it(two):
    servers, workers = two
    for ps, worker in zip(servers, workers, strict=True):
        worker.push(LEASE, 0, [1, 1, 1])
        ps.announce(1)
        assert worker.push(LEASE, 1, [1, 1, 1])[0].cut == 1
    waiting = [Waiting(worker, LEASE, 2, [1, 1, 1], cut=1) for worker in workers]
    replies = []
    for ps in servers:
        other = ps.worker()
        np.testing.assert_array_equal(other.pull()[1], [-2, -2, -2])  # reads go on
        assert other.push(LEASE + 1, 0, [0, 0, 1], cut=0)[0].outcome == pb.Pushed.APPLIED  # not stamped: goes in
        replies.append(ps.snapshot(1, pin=True))
    for push in waiting:
        pushed, slab = push.result()
        assert pushed.outcome == pb.Pushed.APPLIED
        np.testing.assert_array_equal(slab, [-3, -3, -4])
    assert [(r.version, sorted((s.lease, s.through) for s in r.applied)) for r in replies] == [
        (3, [(LEASE, 2), (LEASE + 1, 1)])
    ] * 2
    for worker in workers:
        version, pinned = worker.pull(pin=1)
        assert version == 3
        np.testing.assert_array_equal(pinned, [-2, -2, -3])


def test_a_pin_stays_readable_while_training_goes_on(two):
    (ps, _), (worker, _) = two
    worker.push(LEASE, 0, [1, 0, 0], rows=([1, 2], np.ones((2, 4))))
    dense, rows = worker.pull()[1], worker.pull_rows([1, 2, 3])
    ps.snapshot(1, pin=True)
    for step in range(1, 5):
        worker.push(LEASE, step, [1, 1, 1], cut=1, rows=([1, 3], np.ones((2, 4))))
    np.testing.assert_array_equal(worker.pull(pin=1)[1], dense)
    np.testing.assert_array_equal(worker.pull_rows([1, 2, 3], pin=1), rows)
    assert worker.scan(pin=1, limit=1).keys() == {1, 2}
    assert worker.scan().keys() == {1, 2, 3}
    assert list(ps.attach().pins) == [1]
    ps.unpin(1)
    with pytest.raises(BulkRefused):
        worker.pull(pin=1)


@pytest.mark.parametrize("end", ["release", "attach", "revoke"])
def test_a_waiting_push_is_let_go_when_the_cut_is_off(two, end):
    (ps, _), (worker, _) = two
    ps.announce(1)
    push = Waiting(worker, LEASE, 0, [1, 1, 1], cut=1)
    if end == "release":
        ps.release(1)
    elif end == "attach":
        ps.attach(2, live=[LEASE], cut=1)
    else:
        ps.revoke(LEASE)
    expected = pb.Pushed.REVOKED if end == "revoke" else pb.Pushed.APPLIED
    assert push.result()[0].outcome == expected


def test_a_push_does_not_wait_for_ever(start):
    ps = start(patience=0.01)
    ps.attach()
    worker = ps.worker()
    worker.declare(W)
    with pytest.raises(BulkRefused, match="cut 1") as caught:
        worker.push(LEASE, 0, [1, 1, 1], cut=1)
    assert caught.value.kind == "busy"
    ps.snapshot(1)
    assert worker.push(LEASE, 0, [1, 1, 1], cut=1)[0].outcome == pb.Pushed.APPLIED


def test_a_retry_of_a_waiting_push_enters_once(two):
    (ps, _), (worker, _) = two
    ps.announce(1)
    lost = Waiting(worker, LEASE, 0, [1, 1, 1], cut=1)
    retry = Waiting(ps.worker(), LEASE, 0, [1, 1, 1], cut=1)
    ps.snapshot(1)
    outcomes = sorted(push.result()[0].outcome for push in (lost, retry))
    assert outcomes == [pb.Pushed.APPLIED, pb.Pushed.DUPLICATE]
    np.testing.assert_array_equal(worker.pull()[1], [-1, -1, -1])


def test_a_snapshot_asked_for_again_gives_the_same_answer(two):
    (ps, _), (worker, _) = two
    first = ps.snapshot(1, pin=True)
    worker.push(LEASE, 0, [1, 1, 1], cut=1)
    assert ps.snapshot(1, pin=True) == first


def test_a_stale_master_is_refused(two):
    (ps, _), _ = two
    ps.attach(2)
    with pytest.raises(Refused, match="attached is 2") as caught:
        ps.announce(5)
    assert caught.value.kind == "incarnation"


def test_a_full_disk_is_reported_and_training_goes_on(start, tmp_path: Path):
    def full(directory, index, cut):
        raise StorageError("no space left on device", where=str(directory))

    ps = start(writer=ShardWriter(0, full))
    ps.attach()
    worker = ps.worker()
    worker.declare(W)
    ps.snapshot(1, tmp_path / "cut")
    assert "no space left" in ps.saved(1).error
    assert worker.push(LEASE, 0, [1, 1, 1], cut=1)[0].outcome == pb.Pushed.APPLIED
    with pytest.raises(Refused, match="no shard of cut 9"):
        ps.saved(9)
