"""What a diagnosis finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobFinding:
    """One thing that keeps a job from going on, or from going faster.

    Attributes:
        about: the job, or its pods: ``worker-2, worker-3``.
        text: what is the matter, in a sentence without a full stop.
        remedy: what the user can do; empty when there is nothing to do.
        said: the cluster's own words; empty when the text has them.
    """

    about: str
    text: str
    remedy: str = ""
    said: str = ""


def format_short_list(labels: Iterable[str], most: int = 4) -> str:
    """``worker-1, worker-2 and 5 more``."""
    whole = list(labels)
    if len(whole) <= most:
        return ", ".join(whole)
    return f"{', '.join(whole[:most])} and {len(whole) - most} more"
