"""A parameter server and its master: it waits for one, says so once, and asks whether it may end once it is told to."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable

import pytest

from edl.api.errors import JobFailedError, RetryableError
from edl.ps.server_process import keep_registered
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import PeerRefusedError


class RegistrationMaster:
    """Answers as told; the event is set after the last answer."""

    address = "unix:nowhere"

    def __init__(self, stopping: threading.Event, *answers: Exception | None) -> None:
        self._stopping = stopping
        self._answers = list(answers)
        self.calls = 0
        self.last: Exception | None = None
        self.figures: list[int] = []
        self.leaving: list[bool] = []
        self.lets_go_after = 1
        """Questions of a process that was told to go until the answer is yes."""

    def call(self, method: object, message: pb.RegisterRequest, **_: object) -> pb.RegisterReply:
        self.calls += 1
        self.figures.append(message.figures.entered)
        self.leaving.append(message.leaving)
        answer = self._answers.pop(0) if self._answers else self.last
        if not self._answers:
            self._stopping.set()
        if answer is not None:
            raise answer
        return pb.RegisterReply(incarnation=self.calls, may_end=sum(self.leaving) >= self.lets_go_after)


class NoWait(threading.Event):
    """An event that nobody waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def away() -> RetryableError:
    return RetryableError("nobody listens")


def keep(
    master: RegistrationMaster,
    stopping: threading.Event,
    seconds: int = 1000,
    heard: Callable[[int], None] = lambda incarnation: None,
) -> None:
    ticks = iter(range(10_000))
    entered = itertools.count(1)
    keep_registered(
        master,  # type: ignore[arg-type]
        pb.RegisterRequest(),
        stopping,
        lost_timeout=seconds,
        collect_figures=lambda: pb.PsFigures(entered=next(entered)),
        record_incarnation=heard,
        clock=lambda: next(ticks),
    )


def test_it_registers_again_and_again_and_says_only_what_changed(caplog):
    caplog.set_level(logging.INFO)
    stopping = NoWait()
    master = RegistrationMaster(
        stopping, away(), RetryableError("nobody listens, in other words"), None, None, away(), None
    )
    keep(master, stopping)
    assert master.calls == 7
    messages = [record.getMessage().split(":")[0] for record in caplog.records]
    assert messages[:4] == [
        "waiting for the master",
        "registered with unix",
        "waiting for the master",
        "registered with unix",
    ]


def test_a_refusal_that_may_pass_is_tried_again_and_a_wrong_token_is_not():
    stopping = NoWait()
    master = RegistrationMaster(stopping, PeerRefusedError("who are you", kind="bad"), None)
    keep(master, stopping)
    assert master.calls == 3
    with pytest.raises(PeerRefusedError):
        keep(RegistrationMaster(NoWait(), PeerRefusedError("wrong token", kind="token"), None), NoWait())


def test_its_figures_are_those_of_now_up_to_its_end():
    stopping = NoWait()
    master = RegistrationMaster(stopping, away(), None, None)
    keep(master, stopping)
    assert master.figures == [1, 2, 3, 4]
    assert master.leaving == [False, False, False, True]


def test_it_serves_on_until_the_master_lets_it_go():
    stopping = NoWait()
    master = RegistrationMaster(stopping, None)
    master.lets_go_after = 3
    keep(master, stopping)
    assert master.leaving == [False, True, True, True]


def test_without_a_master_it_ends_soon_when_it_is_told_to_go():
    stopping = NoWait()
    master = RegistrationMaster(stopping, None)
    master.last = away()
    keep(master, stopping)
    assert len(master.leaving) < 5


def test_a_master_that_refuses_it_does_not_keep_it():
    stopping = NoWait()
    master = RegistrationMaster(stopping, None)
    master.last = PeerRefusedError("who are you", kind="token")
    keep(master, stopping)
    assert master.leaving == [False, True]


def test_who_never_met_a_master_has_nothing_to_tell_at_its_end():
    stopping = NoWait()
    master = RegistrationMaster(stopping, away())
    keep(master, stopping)
    assert master.calls == 1


def test_it_leaves_when_the_master_is_lost():
    stopping = NoWait()
    with pytest.raises(JobFailedError, match="lost_timeout"):
        keep(RegistrationMaster(stopping, *[away()] * 50), stopping, seconds=10)


def test_it_is_told_which_master_has_answered():
    stopping, heard = NoWait(), []
    keep(RegistrationMaster(stopping, None, away(), None), stopping, heard=heard.append)
    assert heard == [1, 3]
