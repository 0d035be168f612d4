"""A command that waits for a silent server says so, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edl.reporting.text_table import SlowResponseNotice

HOST = "https://cluster.test"


class ManualTimers:
    """Timers that a test lets run out."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, _: float, call: Callable[[], None]) -> Callable[[], None]:
        self.waiting.append(call)
        return lambda: self.waiting.remove(call)

    def run_out(self) -> None:
        for call in list(self.waiting):
            call()


@pytest.fixture
def timers() -> ManualTimers:
    return ManualTimers()


def test_a_silent_server_is_named_once(timers: ManualTimers, capsys: pytest.CaptureFixture[str]) -> None:
    notice = SlowResponseNotice(timers)
    with notice(HOST), notice(HOST):
        timers.run_out()
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n"), captured.err.count(HOST)) == ("", 1, 1)
    assert timers.waiting == []


def test_a_server_that_answered_is_not_spoken_of(timers: ManualTimers, capsys: pytest.CaptureFixture[str]) -> None:
    notice = SlowResponseNotice(timers)
    with notice(HOST):
        pass
    with notice(HOST):
        timers.run_out()
    assert capsys.readouterr() == ("", "")


def test_a_request_that_failed_is_no_answer(timers: ManualTimers, capsys: pytest.CaptureFixture[str]) -> None:
    notice = SlowResponseNotice(timers)
    with pytest.raises(OSError, match="refused"), notice(HOST):
        raise OSError("refused")
    with notice(HOST):
        timers.run_out()
    assert HOST in capsys.readouterr().err
