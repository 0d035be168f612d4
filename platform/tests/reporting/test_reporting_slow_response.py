"""A command that waits for a silent server says so, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edl.reporting.text_table import SlowResponseNotice

HOST = "https://cluster.test"


class Soon:
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
def soon() -> Soon:
    return Soon()


def test_a_silent_server_is_named_once(soon: Soon, capsys: pytest.CaptureFixture[str]) -> None:
    notice = SlowResponseNotice(soon)
    with notice(HOST), notice(HOST):
        soon.run_out()
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n"), said.err.count(HOST)) == ("", 1, 1)
    assert soon.waiting == []


def test_a_server_that_answered_is_not_spoken_of(soon: Soon, capsys: pytest.CaptureFixture[str]) -> None:
    notice = SlowResponseNotice(soon)
    with notice(HOST):
        pass
    with notice(HOST):
        soon.run_out()
    assert capsys.readouterr() == ("", "")


def test_a_request_that_failed_is_no_answer(soon: Soon, capsys: pytest.CaptureFixture[str]) -> None:
    notice = SlowResponseNotice(soon)
    with pytest.raises(OSError, match="refused"), notice(HOST):
        raise OSError("refused")
    with notice(HOST):
        soon.run_out()
    assert HOST in capsys.readouterr().err
