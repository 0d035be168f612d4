"""The shell: what leaves it, when, and what happens when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from master.master_stubs import FIRST_CUT, LONG, CommandRecorder, ShellHarness

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.errors import RefusedError, StorageError
from edl.core.events import (
    CheckpointSaveFinished,
    EndJob,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    NotifyWorkers,
    PodChanged,
    PodsSynced,
    PrepareCut,
    ProgressReported,
    SaveCheckpoint,
    StartPod,
    StopRequested,
    StopWork,
    TaskReported,
    Tick,
    WaitForWork,
)
from edl.master import shell as shell_module
from edl.master.shell import MasterEndsError

DISK_FULL = StorageError("no room", where="/runs/r1/journal")


def take_first_cut(stubs: ShellHarness) -> None:
    """The first cut is."""
    for event in FIRST_CUT:
        stubs.shell.handle(event)


def trained_to_first_lease(stubs: ShellHarness) -> LeaseReply:
    stubs.populate()
    stubs.shell.handle(Tick())
    take_first_cut(stubs)
    stubs.shell.handle(CheckpointSaveFinished(1))
    answer = stubs.shell.handle(LeaseRequested("worker-0"))
    assert isinstance(answer, LeaseReply)
    return answer


# ---------------------------------------------------------------------------------------------- what leaves, and when


def test_an_answer_waits_for_the_disk() -> None:
    stubs = ShellHarness(at_once=False)
    stubs.populate()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stubs.shell.handle, LeaseRequested("worker-0"))
        stubs.journal.until_waiting(2)  # the answer, and the outbox
        assert not answer.done()
        stubs.journal.sync()
        assert isinstance(answer.result(LONG), WaitForWork)


def test_an_answer_that_changed_nothing_waits_for_what_it_was_decided_on() -> None:
    stubs = ShellHarness(at_once=False)
    stubs.shell.handle(PodsSynced())  # has journaled which worker it wants, and no answer
    stubs.shell.handle(StopRequested("enough"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stubs.shell.handle, LeaseRequested("worker-0"))
        stubs.journal.until_waiting(2)
        assert not answer.done()
        stubs.journal.sync()
        assert isinstance(answer.result(LONG), StopWork)


def test_commands_leave_after_the_disk_and_in_order() -> None:
    stubs = ShellHarness(at_once=False, workers=2)
    stubs.shell.handle(PodsSynced())
    stubs.journal.until_waiting(1)
    assert stubs.pods.done == [StartPod(Role.PS, 0)]  # rests on nothing
    stubs.journal.sync()
    stubs.pods.until(lambda c: c == StartPod(Role.WORKER, 1))
    assert stubs.pods.done == [StartPod(Role.PS, 0), StartPod(Role.WORKER, 0), StartPod(Role.WORKER, 1)]


def test_a_cut_is_spoken_of_only_when_it_is_on_disk() -> None:
    stubs = ShellHarness(at_once=False)
    stubs.populate()
    assert stubs.shell.state.cut_number == 1
    assert PrepareCut(1) not in stubs.ps.done
    stubs.journal.sync()
    stubs.ps.until(lambda c: c == PrepareCut(1))


def test_the_end_of_the_job_is_told_when_it_is_on_disk() -> None:
    stubs = ShellHarness(at_once=False)
    stubs.shell.handle(StopRequested("enough"))
    assert stubs.shell.job_end is None
    stubs.journal.sync()
    stubs.shell.run(lambda: False)
    assert stubs.shell.job_end == EndJob("Interrupted", "enough")


def test_entries_are_journaled_in_the_order_of_decisions() -> None:
    stubs = ShellHarness()
    stubs.shell.begin_incarnation(4)
    lease = trained_to_first_lease(stubs).lease
    stubs.shell.handle(ProgressReported("worker-0", (LeaseProgress(lease, 1),)))
    stubs.shell.handle(TaskReported("worker-0", lease))
    assert lease >> 32 == 4
    assert stubs.journal.kinds()[0] == "incarnation"
    assert stubs.journal.kinds()[-3:] == ["leased", "progress", "done"]


def test_a_large_journal_is_replaced_by_the_state_after_its_entries() -> None:
    stubs = ShellHarness()
    lease = trained_to_first_lease(stubs).lease
    stubs.journal.size_bytes = shell_module.COMPACT_BYTES + 1
    stubs.shell.handle(TaskReported("worker-0", lease))
    assert stubs.journal.snapshots == [stubs.shell.state.to_snapshot()]


# ---------------------------------------------------------------------------------------------- waiting for work


def waiting_lease(stubs: ShellHarness, pool: ThreadPoolExecutor) -> Any:
    """A question for work that found none and waits in the shell."""
    waiting = threading.Event()
    wait = stubs.shell._wait_for_generation

    def told(generation: int, until: float) -> bool:
        waiting.set()
        return wait(generation, until)

    stubs.shell._wait_for_generation = told  # type: ignore[method-assign]
    answer = pool.submit(stubs.shell.wait_for_lease, "worker-0", LONG)
    assert waiting.wait(LONG)
    return answer


def test_a_waiting_question_is_answered_as_soon_as_there_is_work() -> None:
    stubs = ShellHarness()
    stubs.populate()
    with ThreadPoolExecutor(1) as pool:
        answer = waiting_lease(stubs, pool)
        take_first_cut(stubs)
        stubs.ps.until(lambda c: isinstance(c, SaveCheckpoint))
        stubs.shell.handle(CheckpointSaveFinished(1))
        assert isinstance(answer.result(LONG), LeaseReply)


def test_events_without_an_entry_wake_those_that_wait_too() -> None:
    stubs = ShellHarness()
    stubs.populate()
    before, entries = stubs.shell._generation, len(stubs.journal.entries)
    stubs.shell.handle(ModelDeclared("worker-0"))
    assert stubs.shell._generation > before
    assert len(stubs.journal.entries) == entries


def test_progress_wakes_nobody() -> None:
    stubs = ShellHarness()
    lease = trained_to_first_lease(stubs).lease
    before = stubs.shell._generation
    stubs.shell.handle(ProgressReported("worker-0", (LeaseProgress(lease, 1),)))
    assert stubs.shell._generation == before


@pytest.mark.parametrize("release", [lambda shell: shell.stop_waiting(), lambda shell: shell.fail(ValueError("x"))])
def test_questions_that_wait_are_let_go_at_the_end(release: Callable[[Any], None]) -> None:
    stubs = ShellHarness()
    stubs.populate()
    with ThreadPoolExecutor(1) as pool:
        answer = waiting_lease(stubs, pool)
        release(stubs.shell)
        assert isinstance(answer.result(LONG), WaitForWork)


def test_what_the_world_is_to_do_wakes_those_that_wait_without_an_entry() -> None:
    """All ranks have said that they pause: a worker that waits for work has to write a file."""
    stubs = ShellHarness()
    stubs.populate()
    for commands, wakes in (([], False), ([NotifyWorkers()], True)):
        before = stubs.shell._generation
        stubs.shell._decide_now(lambda commands=commands: list(commands), Tick())
        assert (stubs.shell._generation > before) == wakes


def test_time_alone_ends_a_wait() -> None:
    now = iter(range(0, 1000, 2))
    stubs = ShellHarness(clock=lambda: float(next(now)))
    stubs.populate()
    assert isinstance(stubs.shell.wait_for_lease("worker-0", 1.0), WaitForWork)


# ---------------------------------------------------------------------------------------------- failing


@pytest.mark.parametrize("error", [DISK_FULL, RefusedError("a newer master has opened the journal")])
def test_a_journal_that_fails_ends_the_master_and_no_answer_leaves(error: Any) -> None:
    stubs = ShellHarness()
    lease = trained_to_first_lease(stubs).lease
    stubs.journal.fail(error)
    with pytest.raises(MasterEndsError):
        stubs.shell.handle(TaskReported("worker-0", lease))
    assert stubs.shell.failure is error
    stubs.shell.run(lambda: False)  # returns


def test_a_journal_that_fails_while_an_answer_waits_takes_the_answer_with_it() -> None:
    stubs = ShellHarness(at_once=False)
    stubs.populate()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stubs.shell.handle, LeaseRequested("worker-0"))
        stubs.journal.until_waiting(2)
        stubs.journal.fail(DISK_FULL)
        with pytest.raises(MasterEndsError):
            answer.result(LONG)
    assert stubs.shell.failure is DISK_FULL
    assert stubs.ps.done == []


def test_a_decision_that_fails_is_the_last_one(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """What was decided half is in memory and not in the journal: nothing may follow it."""
    stubs = ShellHarness()
    stubs.populate()
    monkeypatch.setattr(type(stubs.shell.state), "handle", lambda *_: 1 / 0)
    with pytest.raises(MasterEndsError):
        stubs.shell.handle(LeaseRequested("worker-0"))
    monkeypatch.undo()
    with pytest.raises(MasterEndsError):
        stubs.shell.handle(LeaseRequested("worker-0"))
    assert "ZeroDivisionError" in caplog.text


def test_an_effect_that_fails_ends_the_master() -> None:
    class FailingRecorder(CommandRecorder):
        def execute(self, command: Any) -> None:
            raise KeyError("worker")

    stubs = ShellHarness()
    stubs.shell._pods = FailingRecorder()
    stubs.shell.handle(PodsSynced())
    stubs.shell.run(lambda: False)
    assert isinstance(stubs.shell.failure, KeyError)


def test_the_first_failure_counts() -> None:
    stubs = ShellHarness()
    stubs.shell.fail(DISK_FULL)
    stubs.shell.fail(ValueError("a consequence"))
    assert stubs.shell.failure is DISK_FULL


def test_run_returns_when_it_is_told_to() -> None:
    stubs = ShellHarness()
    stubs.shell.handle(PodChanged(PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING)))
    stubs.shell.run(lambda: True)
    assert stubs.shell.job_end is None
    assert stubs.shell.failure is None
