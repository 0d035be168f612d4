"""Leases: one ahead, never two questions at once; the gate; leaving."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker.loop_harness import LEASE, MEMBER, ScriptedMaster, task

from edl.transport import edl_pb2 as pb
from edl.worker.graceful_shutdown import GracefulShutdown, LeavingError, ShutdownGate
from edl.worker.lease_client import LeaseClient, LeasedTask
from edl.worker.master_session import MasterLostError, MasterSession


def session(master: ScriptedMaster) -> MasterSession:
    return MasterSession(MEMBER, master, lost_timeout=0, pause=lambda seconds: None)


def test_one_lease_is_held_ahead_and_the_next_question_waits_for_room() -> None:
    master = ScriptedMaster()
    master.grant(*(task(number, 0, 4) for number in range(1, 5)))
    master.stop()
    held_leases: list[int] = []
    two, three = threading.Event(), threading.Event()

    def hold(leased: LeasedTask) -> None:
        held_leases.append(leased.lease_id - LEASE)
        {2: two, 3: three}.get(len(held_leases), threading.Event()).set()

    leases = LeaseClient(session(master), hold, tuple, wait_seconds=0)
    asking = threading.Thread(target=leases.run)
    asking.start()
    assert two.wait(5)
    first = leases.next_task()
    assert first is not None
    assert held_leases == [1, 2]

    leases.release_slot(first)
    assert three.wait(5)
    taken_leases = []
    while (leased := leases.next_task()) is not None:
        taken_leases.append(leased.lease_id - LEASE)
        leases.release_slot(leased)
    asking.join(5)
    assert taken_leases == [2, 3, 4]


def test_waiting_is_asked_again() -> None:
    master = ScriptedMaster()
    master.answers.extend([pb.LeaseReply(incarnation=1, wait=pb.Wait(reason="no work"))] * 3)
    master.stop()
    leases = LeaseClient(session(master), lambda leased: None, tuple, wait_seconds=0)
    leases.run()
    assert leases.next_task() is None
    assert len(master.requests("Lease")) == 4


def test_a_lost_master_comes_out_where_tasks_are_taken() -> None:
    master = ScriptedMaster()
    master.away = 10
    leases = LeaseClient(session(master), lambda leased: None, tuple)
    leases.run()
    with pytest.raises(MasterLostError):
        leases.next_task()


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(0, 500), st.integers(1, 70))
def test_the_windows_of_a_range_are_its_records_once(start: int, count: int, minibatch: int) -> None:
    leased = LeasedTask(1, "training", "s", start, start + count, minibatch)
    covered = [i for step in range(leased.step_count) for i in range(*leased.step_range(step))]
    assert covered == list(range(start, start + count))


def test_a_closed_gate_lets_nothing_begin() -> None:
    gate = ShutdownGate()
    with gate.critical_section():
        assert not gate.close(0.0)
    with pytest.raises(LeavingError), gate.critical_section():
        pass
    assert gate.close(0.0)


def test_whoever_waits_for_the_gate_when_it_is_closed_does_not_enter() -> None:
    gate = ShutdownGate()
    entered = []
    waiting = threading.Event()

    def work() -> None:
        waiting.set()
        try:
            with gate.critical_section():
                entered.append(1)
        except LeavingError:
            pass

    with gate.critical_section():
        other = threading.Thread(target=work)
        other.start()
        assert waiting.wait(5)
        gate.close(0.0)
    other.join(5)
    assert entered == []


def test_leaving_says_goodbye_after_the_push_and_then_ends() -> None:
    order: list[str] = []
    gate = ShutdownGate()
    departure = GracefulShutdown(gate, Future(), lambda code: order.append(f"exit {code}"))
    departure.lease_return.set_result(lambda deadline: order.append("goodbye"))
    inside, go_on = threading.Event(), threading.Event()

    def push() -> None:
        with gate.critical_section():
            inside.set()
            go_on.wait(5)
            order.append("push")

    pushing = threading.Thread(target=push)
    pushing.start()
    assert inside.wait(5)
    leaving = threading.Thread(target=departure.shut_down)
    leaving.start()
    while not gate.closed:
        pass
    go_on.set()
    pushing.join(5)
    leaving.join(5)
    assert order == ["push", "goodbye", "exit 0"]
    assert departure.wait_for_exit() == 0


def test_a_process_without_a_master_yet_just_ends() -> None:
    codes: list[int] = []
    GracefulShutdown(ShutdownGate(), Future(), codes.append).shut_down()
    assert codes == [0]
