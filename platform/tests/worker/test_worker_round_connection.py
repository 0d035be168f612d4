"""A thread that is told of the end of a round ends the reduction that another thread waits in, and no later one."""

from __future__ import annotations

from typing import Any

import pytest

from edl.api.round_id import RoundId
from edl.collective.communicator import Communicator
from edl.worker.allreduce.round_connection import RoundConnection

OLD, CURRENT, NEXT = (RoundId(1, number) for number in (1, 2, 3))


class Recorder:
    """The listener and the communicator of a round; keeps what is done to them."""

    token = "t"
    round_id = CURRENT

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def abort(self, reason: str) -> None:
        self.calls.append(("abort", reason))

    def close(self) -> None:
        self.calls.append("close")

    def cancel_round(self, reason: str, until: RoundId) -> None:
        self.calls.append(("cancel", until))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(Communicator, "connect", lambda *_: recorder)
    return recorder


def connect(recorder: Recorder) -> RoundConnection:
    connection = RoundConnection(recorder)  # type: ignore[arg-type]
    connection.connect(CURRENT, 0, ("unix:a",))
    return connection


@pytest.mark.parametrize("ended", [CURRENT, NEXT])
def test_the_reduction_of_a_round_that_is_over_is_aborted(recorder: Recorder, ended: RoundId) -> None:
    connect(recorder).abort(ended, "closed")
    assert recorder.calls == [("abort", "closed"), ("cancel", ended)]


def test_the_late_end_of_an_earlier_round_does_not_abort_this_one(recorder: Recorder) -> None:
    connect(recorder).abort(OLD, "closed")
    assert recorder.calls == [("cancel", OLD)]


def test_a_connection_that_is_closed_has_nothing_to_abort(recorder: Recorder) -> None:
    connection = connect(recorder)
    connection.close()
    connection.close()
    connection.abort(CURRENT, "closed")
    assert connection.communicator is None
    assert recorder.calls == ["close", ("cancel", CURRENT)]
