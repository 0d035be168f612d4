"""Every implementation of reductions ends a round in the same ways."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from support.loss_contract import LossContract
from support.rank_threads import NATIVE, NUMPY, Variant

from edl.api.round_id import RoundId
from edl.collective.communicator import Communicator


class TestNumpyLoss(LossContract):
    @pytest.fixture(params=NUMPY, ids=lambda variant: variant.name)
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        variant: Variant = request.param
        return variant


@pytest.mark.native
class TestNativeLoss(LossContract):
    @pytest.fixture(params=NATIVE, ids=lambda variant: variant.name)
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        variant: Variant = request.param
        return variant


def test_connections_are_not_closed_while_another_thread_aborts_the_round() -> None:
    aborts, closed = Event(), Event()
    calls: list[str] = []

    class Ring:
        broken = False

        def abort(self, reason: str) -> None:
            aborts.set()
            closed.wait(0.05)
            calls.append("aborted")

        def close(self) -> None:
            calls.append("closed")
            closed.set()

    communicator = Communicator(RoundId(1, 1), 0, 2, Ring())  # type: ignore[arg-type]
    thread = Thread(target=communicator.abort, args=("the master closed the round",))
    thread.start()
    assert aborts.wait(10)
    communicator.close()
    thread.join()
    assert calls == ["aborted", "closed"]
