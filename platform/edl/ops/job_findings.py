"""The finding of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobFinding:
    """One reason why a job makes no progress, or is slow.

    Attributes:
        subject: the job, or its pods: ``worker-2, worker-3``.
        text: the problem, as a sentence without a full stop.
        remedy: what the user can do; empty if there is nothing to do.
        cluster_message: the cluster's original message; empty if the text contains it.
    """

    subject: str
    text: str
    remedy: str = ""
    cluster_message: str = ""


def format_short_list(labels: Iterable[str], most: int = 4) -> str:
    """``worker-1, worker-2 and 5 more``."""
    items = list(labels)
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[:most])} and {len(items) - most} more"
