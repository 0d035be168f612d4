"""A busy machine is not a lost worker: what the master took to listen, or to answer, is not a worker's silence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core_harness import CoreHarness

from edl.core.events import LeaseProgress, ProgressReported, Tick
from edl.core.lease_timeouts import SILENCE_FLOOR, STARTING_SILENCE, LeaseHolder, LeaseTimeouts


class BusyTraining(CoreHarness):
    """Worker-0 holds a lease, and is heard of at 0."""

    def __init__(self, *, stepped: bool = True) -> None:
        super().__init__()
        self.lease = self.train()
        if stepped:
            self.at(0.0, ProgressReported("worker-0", (LeaseProgress(self.lease, 1),)))

    def at(self, now: float, event: Any) -> bool:
        """Handle an event; whether leases were taken back."""
        before = len(self.entries("revoking"))
        self._take(self.state.handle(event, now))
        return len(self.entries("revoking")) > before


def test_a_silent_worker_loses_its_lease_as_ever() -> None:
    training = BusyTraining()
    assert not training.at(SILENCE_FLOOR - 0.1, Tick())
    assert training.at(SILENCE_FLOOR, Tick())


@pytest.mark.parametrize("stopped", [1.0, 5.0, 600.0])
def test_a_master_that_was_held_up_does_not_lay_that_to_its_workers(stopped: float) -> None:
    training = BusyTraining()
    training.at(0.2, Tick())
    assert not training.at(0.4 + stopped, Tick(late_seconds=stopped))
    assert not training.at(stopped + SILENCE_FLOOR - 0.1, Tick())
    assert training.at(stopped + SILENCE_FLOOR + 0.1, Tick()), "its own silence counts"


def test_a_worker_whose_message_waits_for_the_masters_disk_is_not_silent() -> None:
    training = BusyTraining()
    for tenth in range(1, 300):
        assert not training.at(tenth / 10, Tick(speaking_workers=frozenset({"worker-0", "nobody"})))
    assert training.at(29.9 + SILENCE_FLOOR, Tick()), "it was answered, and says no more"


def test_a_worker_that_starts_may_be_silent_while_libraries_are_loaded() -> None:
    training = BusyTraining(stepped=False)
    training.state.holders["worker-0"].is_starting = True
    assert not training.at(STARTING_SILENCE - 0.1, Tick())
    assert training.at(STARTING_SILENCE, Tick())


def test_after_its_first_step_it_is_as_all_others() -> None:
    training = BusyTraining(stepped=False)
    training.state.holders["worker-0"].is_starting = True
    training.at(1.0, ProgressReported("worker-0", (LeaseProgress(training.lease, 1),)))
    assert training.at(1.0 + SILENCE_FLOOR + 10.0, Tick())


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_nobody_is_heard_of_in_the_future(late: float, now: float) -> None:
    holder = LeaseHolder(0.0)
    holder.add_lease(1, 0.0)
    holder.excuse_silence(late, now)
    assert holder.last_seen == holder.last_steps[1] == holder.last_mentioned[1] == min(late, now)
    assert not holder.find_unknown_leases(LeaseTimeouts())
