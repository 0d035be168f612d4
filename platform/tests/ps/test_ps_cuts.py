"""Which steps wait for a cut, and what is pinned: the decisions, then real sockets with two PS."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from edl.api.errors import RetryableError, StorageError
from edl.numerics.parameter_snapshot import PinError
from edl.numerics.parameter_store import TableParameterStore
from edl.ps.cut_state import MAX_CUTS_AHEAD, MAX_PAUSE_SECONDS, CutError, CutState
from edl.ps.shard_writer import ShardWriter
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import BulkRefusedError, PeerRefusedError

W = {"w": np.zeros(3, np.float32)}
LEASE = (1 << 32) + 1


# ------------------------------------------------------------ decisions


def test_while_a_cut_is_held_only_its_own_steps_come_in():
    cuts: CutState[str] = CutState()
    assert not cuts.must_wait(7, 0)
    cuts.pause_pushes(2, 100.0)
    assert [cuts.must_wait(7, step) for step in (0, 1)] == [True, True]
    cuts.include_steps(2, {7: 1})
    assert [cuts.must_wait(lease, step) for lease, step in ((7, 0), (7, 1), (8, 0))] == [False, True, True]
    cuts.include_steps(1, {7: 9})
    assert cuts.must_wait(7, 1), "another cut says nothing of this one"
    cuts.pause_pushes(2, 101.0)
    assert not cuts.must_wait(7, 0), "asked again"
    assert cuts.paused_seconds(102.0) == 2.0
    cuts.record_copy(2, "copy", pin=False)
    assert not cuts.must_wait(7, 9)
    assert cuts.paused_seconds(102.0) == 0.0


def test_a_cut_is_not_held_for_longer_than_the_limit():
    cuts: CutState[str] = CutState()
    cuts.pause_pushes(2, 100.0)
    assert not cuts.expire_pause(99.9 + MAX_PAUSE_SECONDS)
    assert cuts.must_wait(7, 0)
    assert cuts.expire_pause(100.0 + MAX_PAUSE_SECONDS)
    assert not cuts.must_wait(7, 0)
    with pytest.raises(CutError, match="cut 2 is finished"):
        cuts.pause_pushes(2, 106.0)
    cuts.pause_pushes(3, 106.0)
    assert cuts.must_wait(7, 0)


def test_a_kept_cut_holds_updates_after_its_copy_until_it_is_released():
    cuts: CutState[str] = CutState()
    cuts.pause_pushes(2, 100.0)
    cuts.include_steps(2, {7: 1})
    cuts.record_copy(2, "copy", pin=False, keep_paused=True)
    cuts.pause_pushes(2, 101.0)
    assert not cuts.expire_pause(100.0 + 100 * MAX_PAUSE_SECONDS), "the successor of a server may have to wait for room"
    assert [cuts.must_wait(7, step) for step in (0, 1)] == [False, True]
    cuts.finish_cut(1)
    assert cuts.must_wait(7, 1), "the next master knows of it"
    cuts.release_cut(2)
    assert not cuts.must_wait(7, 1)


def test_what_comes_after_a_kept_cut_is_not_kept():
    cuts: CutState[str] = CutState()
    cuts.pause_pushes(2, 100.0)
    cuts.record_copy(2, "copy", pin=False, keep_paused=True)
    cuts.release_cut(2)
    cuts.pause_pushes(3, 101.0)
    assert cuts.expire_pause(101.0 + MAX_PAUSE_SECONDS)
    assert not cuts.must_wait(7, 0)


def test_a_cut_that_is_over_cannot_be_taken():
    cuts: CutState[str] = CutState()
    cuts.release_cut(3)
    with pytest.raises(CutError, match="cut 3"):
        cuts.check_open(3)
    cuts.check_open(4)


def test_pins_are_kept_until_they_are_released():
    cuts: CutState[str] = CutState()
    cuts.record_copy(1, "one", pin=True)
    cuts.record_copy(2, "two", pin=False)
    cuts.record_copy(3, "three", pin=True)
    assert list(cuts.pinned_cuts()) == [1, 3]
    assert cuts.pinned_copy(1) == "one"
    cuts.unpin_cut(1)
    cuts.release_cut(3)
    for cut in (1, 2, 3):
        with pytest.raises(PinError):
            cuts.pinned_copy(cut)


# ------------------------------------------------------------ real sockets


def test_updates_go_on_while_room_is_made_for_the_copy(two_servers, monkeypatch: pytest.MonkeyPatch):
    (ps, _), (worker, _) = two_servers
    outcomes = []

    def make_room(store: TableParameterStore) -> None:
        outcomes.append(worker.push(LEASE, 0, [1, 1, 1])[0].outcome)

    monkeypatch.setattr(TableParameterStore, "preallocate_copy", make_room)
    ps.prepare(1)
    assert outcomes == [pb.Pushed.APPLIED]


@pytest.fixture
def two_servers(start):
    """Two PS with the same model, and a worker's connection to each."""
    servers = [start(0), start(1)]
    workers = []
    for ps in servers:
        ps.attach()
        workers.append(ps.worker())
        workers[-1].declare(W)
    return servers, workers


class WaitingPush:
    """A push in a thread of its own."""

    def __init__(self, worker, number: int, step: int, gradient) -> None:
        self._result: list[object] = []
        worker.send_push(number, step, gradient)
        self._thread = threading.Thread(target=self._receive, args=(worker,))
        self._thread.start()

    def _receive(self, worker) -> None:
        try:
            self._result.append(worker.receive_push())
        except BulkRefusedError as refused:
            self._result.append(refused)

    def result(self):
        self._thread.join(timeout=30)
        return self._result[0]


def kept_out(ps, count: int) -> None:
    """Wait until so many pushes wait for a cut."""
    with ps.server._condition:
        assert ps.server._condition.wait_for(lambda: ps.server._paused_pushes == count, 10)


def test_steps_wait_while_a_cut_is_held_and_are_not_in_it(two_servers):
    servers, workers = two_servers
    for ps, worker in zip(servers, workers, strict=True):
        worker.push(LEASE, 0, [1, 1, 1])
        assert ps.hold(1) == {LEASE: 1}
    waiting = [WaitingPush(worker, LEASE, 1, [1, 1, 1]) for worker in workers]
    for ps in servers:
        kept_out(ps, 1)
        np.testing.assert_array_equal(ps.worker().pull()[1], [-1, -1, -1])  # reads go on
        reply = ps.snapshot(1, pin=True, within={LEASE: 1})
        assert reply.version == 1
        assert reply.pause_seconds > 0
    for push in waiting:
        pushed, slab = push.result()
        assert pushed.outcome == pb.Pushed.APPLIED
        np.testing.assert_array_equal(slab, [-2, -2, -2])
    for worker in workers:
        version, pinned = worker.pull(pin=1)
        assert version == 1
        np.testing.assert_array_equal(pinned, [-1, -1, -1])


def test_a_step_that_another_server_has_is_waited_for_and_let_in(two_servers):
    (ps, late), (worker, slow) = two_servers
    worker.push(LEASE, 0, [1, 1, 1])
    assert [server.hold(1) for server in (ps, late)] == [{LEASE: 1}, {}]
    first = late.snapshot(1, pin=True, within={LEASE: 1, LEASE + 1: 0})
    assert first.waits, "it has not come"
    waiting_push = WaitingPush(late.worker(), LEASE + 1, 0, [7, 7, 7])
    kept_out(late, 1)
    assert slow.push(LEASE, 0, [1, 1, 1])[0].outcome == pb.Pushed.APPLIED
    assert late.snapshot(1, pin=True, within={LEASE: 1, LEASE + 1: 0}).version == 1
    np.testing.assert_array_equal(slow.pull(pin=1)[1], [-1, -1, -1])
    assert waiting_push.result()[0].outcome == pb.Pushed.APPLIED


def test_a_server_that_has_more_than_a_cut_refuses_it(two_servers):
    (ps, _), (worker, _) = two_servers
    for step in range(2):
        worker.push(LEASE, step, [1, 1, 1])
    ps.hold(1)
    with pytest.raises(PeerRefusedError, match="applied steps"):
        ps.snapshot(1, within={LEASE: 1})


def test_a_cut_that_is_held_for_too_long_is_over_without_its_master(start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("edl.ps.cut_state.MAX_PAUSE_SECONDS", 0.05)
    ps = start()
    ps.attach()
    worker = ps.worker()
    worker.declare(W)
    ps.hold(1)
    assert worker.push(LEASE, 0, [1, 1, 1])[0].outcome == pb.Pushed.APPLIED
    with pytest.raises(PeerRefusedError, match="cut 1 is finished"):
        ps.snapshot(1)


def test_a_second_try_of_a_question_finds_what_the_first_has_taken_meanwhile(
    two_servers, monkeypatch: pytest.MonkeyPatch
):
    (ps, _), _ = two_servers
    ps.hold(1)

    def meanwhile(cut: int, within: object, seconds: float) -> bool:
        ps.server._last_snapshot = ps.server._copy_state(cut, None, {}, pin=False)
        return True

    monkeypatch.setattr(ps.server, "_wait_for_steps", meanwhile)
    assert ps.snapshot(1).version == 0


def test_a_server_that_ends_says_so_instead_of_waiting_for_steps(two_servers):
    (ps, _), _ = two_servers
    ps.hold(1)
    ps.server.close()
    with pytest.raises(PeerRefusedError, match="this PS is shutting down") as caught:
        ps.server.take_snapshot(1, 1, None, pin=False, included_steps={LEASE: 1})
    assert caught.value.kind == "busy"


def test_what_a_server_has_met_begins_anew_with_a_checkpoint(start, tmp_path: Path):
    ps = start()
    ps.attach()
    ps.worker().declare(W)
    ps.worker().push(LEASE, 3, [1, 1, 1])
    directory = ps.checkpoint([ps], 1, tmp_path)
    assert ps.hold(2) == {LEASE: 4}
    ps.attach(restore=str(directory), cut=2, slots=[0] * 256, floor=1)
    assert ps.hold(3) == {}, "nobody knows what has happened to the lease since"
    ps.release(3)
    ps.worker().push(LEASE, 7, [1, 1, 1])
    assert ps.hold(4) == {LEASE: 8}


def test_a_pin_stays_readable_while_training_goes_on(two_servers):
    (ps, _), (worker, _) = two_servers
    worker.push(LEASE, 0, [1, 0, 0], rows=([1, 2], np.ones((2, 4))))
    dense, rows = worker.pull()[1], worker.pull_rows([1, 2, 3])
    ps.snapshot(1, pin=True)
    for step in range(1, 5):
        worker.push(LEASE, step, [1, 1, 1], rows=([1, 3], np.ones((2, 4))))
    np.testing.assert_array_equal(worker.pull(pin=1)[1], dense)
    np.testing.assert_array_equal(worker.pull_rows([1, 2, 3], pin=1), rows)
    assert worker.scan(pin=1, limit=1).keys() == {1, 2}
    assert worker.scan().keys() == {1, 2, 3}
    assert list(ps.attach().pins) == [1]
    ps.unpin(1)
    with pytest.raises(BulkRefusedError):
        worker.pull(pin=1)


@pytest.mark.parametrize("end", ["release", "attach", "revoke"])
def test_a_waiting_push_is_let_go_when_the_cut_is_off(two_servers, end):
    (ps, _), (worker, _) = two_servers
    ps.hold(1)
    push = WaitingPush(worker, LEASE, 0, [1, 1, 1])
    kept_out(ps, 1)
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
    ps.hold(1)
    with pytest.raises(BulkRefusedError, match="a cut did not complete") as caught:
        worker.push(LEASE, 0, [1, 1, 1])
    assert caught.value.kind == "busy"
    ps.snapshot(1)
    assert worker.push(LEASE, 0, [1, 1, 1])[0].outcome == pb.Pushed.APPLIED


def test_a_retry_of_a_waiting_push_enters_once(two_servers):
    (ps, _), (worker, _) = two_servers
    ps.hold(1)
    lost = WaitingPush(worker, LEASE, 0, [1, 1, 1])
    retry = WaitingPush(ps.worker(), LEASE, 0, [1, 1, 1])
    kept_out(ps, 2)
    ps.snapshot(1)
    outcomes = sorted(push.result()[0].outcome for push in (lost, retry))
    assert outcomes == [pb.Pushed.APPLIED, pb.Pushed.DUPLICATE]
    np.testing.assert_array_equal(worker.pull()[1], [-1, -1, -1])


def test_a_snapshot_asked_for_again_gives_the_same_answer(two_servers):
    (ps, _), (worker, _) = two_servers
    first = ps.snapshot(1, pin=True)
    worker.push(LEASE, 0, [1, 1, 1])
    assert ps.snapshot(1, pin=True) == first


def test_a_stale_master_is_refused(two_servers):
    (ps, _), _ = two_servers
    ps.attach(2)
    with pytest.raises(PeerRefusedError, match="attached is 2") as caught:
        ps.prepare(5)
    assert caught.value.kind == "incarnation"


FAR = [MAX_CUTS_AHEAD + 1, 2**31 - 1]


@pytest.mark.parametrize("cut", FAR)
@pytest.mark.parametrize(
    "ask",
    [
        lambda ps, cut: ps.hold(cut),
        lambda ps, cut: ps.snapshot(cut),
        lambda ps, cut: ps.snapshot(cut, pin=True, within={LEASE: 9}),
        lambda ps, cut: ps.release(cut),
        lambda ps, cut: ps.attach(cut=cut),
        lambda ps, cut: ps.attach(2, cut=cut),
    ],
    ids=["Hold", "Snapshot", "Snapshot that waits", "Release", "Attach again", "Attach of the next master"],
)
def test_a_cut_that_no_master_can_have_got_to_does_not_stand_in_the_way_of_the_next_one(two_servers, ask, cut):
    (ps, _), (worker, _) = two_servers
    with pytest.raises(PeerRefusedError, match=f"cut {cut} is more than {MAX_CUTS_AHEAD} above cut 0") as caught:
        ask(ps, cut)
    assert caught.value.kind == "cut"
    assert worker.push(LEASE, 0, [1, 1, 1])[0].outcome == pb.Pushed.APPLIED
    assert ps.hold(1) == {LEASE: 1}
    assert ps.snapshot(1).version == 1


def test_a_server_that_is_new_to_a_job_begins_with_the_cut_that_its_master_says(start):
    ps = start()
    ps.attach(cut=5000)
    ps.worker().declare(W)
    with pytest.raises(PeerRefusedError, match="more than"):
        ps.hold(5001 + MAX_CUTS_AHEAD)
    ps.hold(5000 + MAX_CUTS_AHEAD)
    ps.release(5000 + MAX_CUTS_AHEAD)
    ps.hold(5001 + MAX_CUTS_AHEAD)


def test_a_master_that_nobody_has_heard_of_takes_no_server_from_the_one_there_is(two_servers):
    (ps, _), _ = two_servers
    with pytest.raises(RetryableError, match="last known incarnation is 1"):
        ps.attach(2**31 - 1)
    ps.hold(1)
    ps.server.record_incarnation(900)
    ps.attach(901)
    with pytest.raises(PeerRefusedError, match="attached is 901"):
        ps.hold(2)


@pytest.mark.parametrize("floor", [2 << 32, 2**62 - 1])
def test_a_floor_closes_no_lease_of_masters_to_come(two_servers, floor):
    (ps, _), (worker, _) = two_servers
    for ask in (lambda: ps.revoke(floor=floor), lambda: ps.attach(floor=floor), lambda: ps.snapshot(1, floor=floor)):
        with pytest.raises(PeerRefusedError, match="above every lease of incarnation 1"):
            ask()
    assert worker.push(LEASE, 0, [1, 1, 1])[0].outcome == pb.Pushed.APPLIED
    ps.revoke(floor=(2 << 32) - 1)
    ps.attach(2)
    assert worker.push((2 << 32) + 1, 0, [1, 1, 1])[0].outcome == pb.Pushed.APPLIED


def test_a_full_disk_is_reported_and_training_goes_on(start, tmp_path: Path):
    def full(directory, index, cut):
        raise StorageError("no space left on device", where=str(directory))

    ps = start(writer=ShardWriter(0, full))
    ps.attach()
    worker = ps.worker()
    worker.declare(W)
    ps.snapshot(1, tmp_path / "cut")
    assert "no space left" in ps.saved(1).error
    assert worker.push(LEASE, 0, [1, 1, 1])[0].outcome == pb.Pushed.APPLIED
    with pytest.raises(PeerRefusedError, match="shard of cut 9"):
        ps.saved(9)
