"""Parameter servers that replace lost ones while this worker has nothing to send them: they, too, are told the model.

One that finds no checkpoint to load holds nothing until a worker declares the model to it, and work is handed out only
when all hold it. A worker amid a step finds out by the refusal of its push; one that waits for work pushes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from edl.worker.lease_client import LeaseClient, LeasedTask
from edl.worker.master_session import MasterSession
from edl.worker.parameter_client import ParameterClient


def watch_placement(
    session: MasterSession, leases: LeaseClient, parameters: ParameterClient
) -> Callable[[LeasedTask], None]:
    """From now on, have the loop look at every newer placement; returns how it is done.

    Args:
        session: hears of placements.
        leases: what the loop waits for.
        parameters: that this worker has declared once; used on the loop's thread only.
    """

    def look(_: LeasedTask) -> None:
        if session.is_placement_outdated:
            session.register()
        if parameters.declare_to_replaced_ps():
            session.register(ready=True)

    session.on_new_placement = leases.schedule_placement_check
    leases.schedule_placement_check()  # a PS may have been replaced between its declaration and here
    return look
