"""What the wishes of people mean for a job."""

from __future__ import annotations

from edl.cluster.status_port import DesiredState
from edl.core.cuts import STOPPED
from edl.core.events import DesiredStateInvalid, ScaleRequested, StopRequested
from edl.master.master_process import STOP_CHECKPOINT_SECONDS, desired_state_events


def test_a_stop_takes_a_checkpoint_first_and_is_the_last_wish() -> None:
    wishes = [DesiredState(max=3), DesiredState(unreadable="what?"), DesiredState(stop=True), DesiredState(max=4)]
    assert list(desired_state_events(wishes)) == [
        ScaleRequested(None, 3),
        DesiredStateInvalid("what?"),
        StopRequested(STOPPED, STOP_CHECKPOINT_SECONDS),
    ]
