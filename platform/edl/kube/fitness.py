"""What makes a spec unfit for a cluster, and what is worth knowing before it goes there; no cluster is asked."""

from __future__ import annotations

from edl.spec.job import JobSpec
from edl.spec.rules import Broken


def problems(spec: JobSpec) -> list[Broken]:
    """What of the spec cannot be on a cluster: the field to change, what is wrong with it, what can be done."""
    return []


def notes(spec: JobSpec) -> list[str]:
    """What works, and costs something that is easily overlooked."""
    return []
