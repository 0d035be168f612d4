"""Shows which objects of a job are left while it is removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edl.reporting.text_table import StatusLine

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.job_deletion import JobObjects

_MOST_PODS_NAMED = 4


def leftovers_text(leftovers: JobObjects) -> str:
    """The remaining objects in one line; a few pods are named."""
    from edl.ops.job_deletion import count_by_kind

    pods = [pod["metadata"]["name"] for pod in leftovers.objects if pod["kind"] == "Pod"]
    named = f" ({', '.join(pods)})" if 0 < len(pods) <= _MOST_PODS_NAMED else ""
    return f"being removed: {count_by_kind(leftovers.objects)}{named}"


def remove_job(api: KubeClient, job: str, seconds: float | None = None) -> None:
    """Remove a job, and show the objects that are left.

    Raises:
        DeletionTimeoutError: objects are left after ``seconds``.
    """
    from edl.ops.job_deletion import DELETION_TIMEOUT_SECONDS, JobDeletion

    with StatusLine() as ticker:
        JobDeletion(api, job).run_until_gone(
            lambda leftovers: ticker.show_text(leftovers_text(leftovers)),
            time.monotonic,
            time.sleep,
            seconds or DELETION_TIMEOUT_SECONDS,
        )
