"""What of a job is still there while it is removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edl.reporting.status_line import Ticker

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import Api
    from edl.ops.job_deletion import Remains

_FEW = 4


def remaining(there: Remains) -> str:
    """In a line; pods by name when they are few."""
    from edl.ops.job_deletion import counted

    pods = [pod["metadata"]["name"] for pod in there.objects if pod["kind"] == "Pod"]
    named = f" ({', '.join(pods)})" if 0 < len(pods) <= _FEW else ""
    return f"being removed: {counted(there.objects)}{named}"


def remove(api: Api, job: str, seconds: float | None = None) -> None:
    """Remove a job whole, showing what is left of it.

    Raises:
        StillThereError: something is left after ``seconds``.
    """
    from edl.ops.job_deletion import REMOVAL_SECONDS, Removal

    with Ticker() as ticker:
        Removal(api, job).finish(
            lambda there: ticker.say(remaining(there)), time.monotonic, time.sleep, seconds or REMOVAL_SECONDS
        )
