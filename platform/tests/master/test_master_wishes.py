"""What the wishes of people mean for a job."""

from __future__ import annotations

from edl.cluster.status_port import Desired
from edl.core.events import ScaleWanted, StopWanted, WishUnreadable
from edl.core.saved_checkpoint import STOPPED
from edl.master.desired_state_events import CHECKPOINT_SECONDS, events_of


def test_a_stop_takes_a_checkpoint_first_and_is_the_last_wish() -> None:
    wishes = [Desired(max=3), Desired(unreadable="what?"), Desired(stop=True), Desired(max=4)]
    assert list(events_of(wishes)) == [
        ScaleWanted(None, 3),
        WishUnreadable("what?"),
        StopWanted(STOPPED, CHECKPOINT_SECONDS),
    ]
