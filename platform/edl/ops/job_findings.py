"""The finding of a diagnosis."""

from __future__ import annotations

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
