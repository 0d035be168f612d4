"""Progress and reports, message by message; no threads, no time."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker.loop_harness import LEASE, MEMBER, ScriptedMaster

from edl.api.errors import RetryableError
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import PeerRefusedError
from edl.worker.lease_client import LeasedTask, ProgressReporter
from edl.worker.master_session import MasterLostError, MasterSession


class ProgressHarness:
    """A Progress on a scripted master and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.master = ScriptedMaster()
        self.lost: list[int] = []
        self.session = MasterSession(MEMBER, self.master, lost_timeout=10, clock=lambda: self.now, pause=self.advance)
        self.progress = ProgressReporter(self.session, self.lost.extend, clock=lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds


def test_sums_are_of_the_steps_since_the_last_message() -> None:
    harness = ProgressHarness()
    harness.progress.track_lease(LeasedTask(1, "training"))
    harness.progress.record_step(1, 1, loss=2.0)
    harness.progress.record_step(1, 2, loss=4.0, skipped_records=3)
    harness.progress.send_all()
    harness.progress.record_step(1, 3, loss=5.0)
    harness.progress.finish_task(1)
    harness.progress.send_all()

    (first,) = harness.master.requests("Progress")[0].leases
    assert (first.through, first.loss_sum, first.loss_steps, first.skipped_records) == (2, 6.0, 2, 3)
    (report,) = harness.master.requests("Report")
    assert (report.last.through, report.last.loss_sum, report.last.skipped_records) == (3, 5.0, 0)


def test_warnings_are_sent_once_and_before_the_end_of_a_task() -> None:
    harness = ProgressHarness()
    harness.progress.track_lease(LeasedTask(1, "export"))
    harness.progress.add_warning("no %s file", "no .keras file \udcff")
    harness.progress.finish_task(1)
    for _ in range(2):
        harness.progress.send_all()
    sent = [(name, request) for name, request in harness.master.log if name in ("Progress", "Report")]
    assert [name for name, _ in sent] == ["Progress", "Report"]
    ((warning,), leases) = (sent[0][1].warnings, sent[0][1].leases)
    assert (warning.topic, warning.text, len(leases)) == ("no %s file", "no .keras file \\udcff", 0)


def test_a_warning_wakes_the_sending_thread() -> None:
    harness = ProgressHarness()
    assert not harness.progress._has_unsent()
    harness.progress.add_warning("a", "a")
    assert harness.progress._has_unsent()


def test_the_end_of_training_by_a_callback_is_sent_once_and_after_the_steps_before_it() -> None:
    harness = ProgressHarness()
    harness.progress.track_lease(LeasedTask(1, "training"))
    harness.progress.record_step(1, 2, loss=1.0)
    harness.progress.report_stop()
    assert harness.progress._has_unsent()
    for _ in range(2):
        harness.progress.send_all()
    sent = [(request.stopped_training, len(request.leases)) for request in harness.master.requests("Progress")]
    assert sent == [(False, 1), (True, 0), (False, 1)]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["step", "send", "skip"]), max_size=30))
def test_no_step_and_no_skipped_record_is_told_twice_or_never(actions: list[str]) -> None:
    harness = ProgressHarness()
    harness.progress.track_lease(LeasedTask(1, "training"))
    steps = skipped = 0
    for action in actions:
        if action == "send":
            harness.progress.send_all()
        else:
            steps += 1
            skipped += action == "skip"
            harness.progress.record_step(1, steps, loss=1.0, skipped_records=int(action == "skip"))
    harness.progress.finish_task(1)
    harness.progress.send_all()

    lease_progress = [m for r in harness.master.requests("Progress") for m in r.leases]
    lease_progress.append(harness.master.requests("Report")[0].last)
    assert sum(m.loss_steps for m in lease_progress) == steps
    assert sum(m.skipped_records for m in lease_progress) == skipped
    assert [m.through for m in lease_progress] == sorted(m.through for m in lease_progress)
    assert lease_progress[-1].through == steps


def test_a_lease_wakes_the_sending_thread_which_may_have_had_nothing_to_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, calls = ProgressHarness(), list[str]()
    monkeypatch.setattr(harness.progress._changed, "notify_all", lambda: calls.append("woken"))
    harness.progress.track_lease(LeasedTask(1, "training"))
    assert calls == ["woken"], "its heartbeat would be due long before the thread looks again"


def test_only_the_first_step_since_a_message_wakes_the_sending_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, calls = ProgressHarness(), list[str]()
    harness.progress.track_lease(LeasedTask(1, "training"))
    monkeypatch.setattr(harness.progress._changed, "notify_all", lambda: calls.append("woken"))
    for step in range(1, 7):
        calls.append(f"step {step}")
        harness.progress.record_step(1, step, loss=1.0)
        if step == 4:
            harness.progress.send_all()
    assert calls == ["step 1", "woken", "step 2", "step 3", "step 4", "step 5", "woken", "step 6"]


def test_a_held_lease_is_in_every_message_also_without_a_step() -> None:
    harness = ProgressHarness()
    harness.progress.track_lease(LeasedTask(1, "training"))
    harness.progress.track_lease(LeasedTask(2, "training"))
    harness.progress.send_all()
    assert [m.lease for m in harness.master.requests("Progress")[0].leases] == [1, 2]


def test_a_heartbeat_is_due_after_a_quarter_of_the_expiry() -> None:
    harness = ProgressHarness()
    assert harness.progress._heartbeat_seconds() == float("inf")
    harness.progress.track_lease(LeasedTask(1, "training", expires_seconds=8))
    harness.progress.track_lease(LeasedTask(2, "training", expires_seconds=60))
    assert harness.progress._heartbeat_seconds() == 2


def test_lost_leases_are_forgotten_and_passed_on() -> None:
    harness = ProgressHarness()
    harness.progress.track_lease(LeasedTask(1, "training"))
    harness.progress.track_lease(LeasedTask(2, "training"))
    harness.master.lost = [1]
    harness.progress.send_all()
    harness.progress.finish_task(1)
    harness.progress.send_all()
    assert harness.lost == [1]
    assert harness.master.requests("Report") == []
    assert [m.lease for m in harness.master.requests("Progress")[-1].leases] == [2]


def test_a_finished_lease_that_is_in_the_ledger_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harness = ProgressHarness()
    for lease in (1, 2, 3):
        harness.progress.track_lease(LeasedTask(lease, "training"))
    harness.progress.await_ledger(1)
    harness.master.lost = [1]
    harness.progress.send_all()
    assert (harness.lost, caplog.messages) == ([], [])

    harness.progress.await_ledger(2)
    harness.master.lost = [2, 3]
    harness.progress.send_all()
    assert harness.lost == [3]
    assert caplog.messages == ["leases lost: 3"]
    assert harness.progress.known_leases() == []


def test_a_lease_that_enters_the_ledger_while_a_request_about_it_is_on_its_way_is_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rank 0 reported its last step, so another thread has dropped it before the answer comes."""
    caplog.set_level(logging.INFO)
    harness = ProgressHarness()
    for lease in (1, 2):
        harness.progress.track_lease(LeasedTask(lease, "training"))
    harness.progress.await_ledger(1)
    harness.master.lost = [1, 2]
    report = harness.session.report_progress

    def drop_and_report(sent: list[Any]) -> Any:
        harness.progress.drop_lease(1)
        return report(sent)

    harness.session.report_progress = drop_and_report  # type: ignore[method-assign]
    harness.progress.send_all()
    assert harness.lost == [2]
    assert caplog.messages == ["leases lost: 2"]


def test_the_goodbye_names_everything_that_is_in() -> None:
    harness = ProgressHarness()
    for lease in (1, 2):
        harness.progress.track_lease(LeasedTask(lease, "training"))
    harness.progress.record_step(1, 4, loss=1.0)
    harness.progress.finish_task(1)
    harness.progress.record_step(2, 1, loss=1.0)
    assert {m.lease: m.through for m in harness.progress.unreported_progress()} == {1: 4, 2: 1}


# ------------------------------------------------------------------------------------------------ the session


def test_a_master_that_was_away_is_told_who_this_is_before_anything_else() -> None:
    harness = ProgressHarness()
    harness.progress.track_lease(LeasedTask(1, "training"))
    harness.master.away = 3
    harness.progress.send_all()
    assert [method for method, _ in harness.master.log] == ["Register", "Progress"]


def test_a_new_master_is_followed_and_an_old_one_is_not_believed() -> None:
    harness = ProgressHarness()
    harness.session.register()
    harness.master.incarnation = 2
    harness.progress.track_lease(LeasedTask(1, "training"))
    harness.progress.send_all()
    assert harness.session.incarnation == 2
    harness.master.incarnation = 1
    harness.master.lost = [1]
    with pytest.raises(MasterLostError, match="incarnation 1 answered"):
        harness.progress.send_all()
    assert harness.lost == []


def test_a_worker_whose_messages_are_refused_does_not_work_on_unheard() -> None:
    harness = ProgressHarness()

    def refuse(method: str, request: Any) -> None:
        if getattr(request, "warnings", ()):
            raise PeerRefusedError("it contains a control character", kind="bad")

    harness.master.on_call = refuse
    harness.progress.track_lease(LeasedTask(1, "training"))
    harness.progress.record_step(1, 1, loss=1.0)
    harness.progress.add_warning("a", "a")
    harness.advance(1)
    harness.progress.run()
    with pytest.raises(PeerRefusedError, match="control character"):
        harness.progress.record_step(1, 2, loss=1.0)
    with pytest.raises(PeerRefusedError, match="control character"):
        harness.progress.finish_task(1)


def test_a_master_that_stays_away_ends_the_worker() -> None:
    harness = ProgressHarness()
    harness.master.away = 1000
    with pytest.raises(MasterLostError, match="lost_timeout"):
        harness.session.register()
    assert 10 <= harness.now < 11


def test_leaving_is_tried_once() -> None:
    harness = ProgressHarness()
    harness.master.away = 1
    with pytest.raises(RetryableError):
        harness.session.leave("told to go", [], deadline=0.1)
    harness.session.leave("told to go", [pb.LeaseProgress(lease=LEASE, through=2)], deadline=0.1)
    (left,) = harness.master.requests("Leave")
    assert left.leases[0].through == 2


def test_the_declared_model_is_repeated_to_every_new_master() -> None:
    harness = ProgressHarness()
    harness.session.register(ready=True)
    harness.session.register()
    assert [r.ready for r in harness.master.requests("Register")] == [True, True]
