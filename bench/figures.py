"""What a benchmark says: figures, each with what is required of it, and where they were taken."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from statistics import variance
from typing import Any

PACKAGES = ("edl-platform", "tensorflow-cpu", "tensorflow", "keras", "grpcio", "protobuf", "numpy")


@dataclass(frozen=True)
class BenchFigure:
    """One measured number.

    Attributes:
        measure: what was measured, for people.
        measured: the number, in ``unit``.
        limit: what is required, in ``unit``; None for a number that is only shown beside the others.
        at_least: ``limit`` is the least that is allowed; otherwise the most.
        aim: what would be better still, in ``unit``; None where none was named.
        note: how the limit or the number came about.
    """

    measure: str
    measured: float
    unit: str
    limit: float | None = None
    at_least: bool = False
    note: str = ""
    aim: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the requirement is met; None where there is none."""
        if self.limit is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def limit_share(self) -> float | None:
        """``measured / limit``; None without a limit, or when it is zero."""
        return self.measured / self.limit if self.limit else None


@dataclass(frozen=True)
class ScriptResult:
    """What one script found.

    Attributes:
        name: of the script.
        figures: in the order of the table.
        details: everything behind the figures: rounds, distributions, settings; JSON.
        failed: why there are no (more) figures; empty when all went well.
    """

    name: str
    figures: Sequence[BenchFigure] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""

    def to_json(self) -> dict[str, Any]:
        """The content of ``bench/results/<name>.json``."""
        figures = [{**asdict(figure), "met": figure.is_met} for figure in self.figures]
        return {
            "name": self.name,
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine_facts(),
            "versions": package_versions(),
            "failed": self.failed,
            "figures": figures,
            "details": dict(self.details),
        }


def noise_of_difference(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Three standard errors of the difference of two means; None for single values."""
    if min(len(one), len(other)) < 2:
        return None
    error: float = (variance(one) / len(one) + variance(other) / len(other)) ** 0.5
    return 3 * error


def machine_facts() -> dict[str, Any]:
    """The machine by cores and memory, never by name."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": len(os.sched_getaffinity(0)), "memory_gb": round(pages / 2**30), "arch": platform.machine()}


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter to speed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of ``values`` do not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("a percentile of nothing")
    ranked = sorted(values)
    rank = -(-share * len(ranked) // 1)
    return ranked[max(0, min(len(ranked), int(rank)) - 1)]


def steady_rate(samples: Sequence[tuple[float, int]], skip: int) -> float:
    """Units a second from the first sample with at least ``skip`` units done to the last one that made progress.

    Args:
        samples: (seconds, units done), in order of time.
        skip: units that belong to the start.

    Raises:
        ValueError: nothing was seen to move after ``skip``.
    """
    moving = [samples[0]] if samples else []
    moving += [b for a, b in itertools.pairwise(samples) if b[1] > a[1]]
    warm = [sample for sample in moving if sample[1] >= skip]
    if len(warm) < 2:
        raise ValueError(f"no progress was seen after the first {skip}: {len(samples)} samples")
    (began, first), (ended, last) = warm[0], warm[-1]
    return (last - first) / (ended - began)
