"""What the fault tests share: jobs that may be killed, and the times that are measured on the way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.linear_job import LinearJob

Measure = Callable[[str, float], None]


@pytest.fixture(scope="session")
def measure() -> Iterator[Measure]:
    """``measure(name, seconds)``; everything is written to EDL_BENCH_OUT as JSON, if that is set."""
    seconds: dict[str, list[float]] = {}

    def take(name: str, value: float) -> None:
        seconds.setdefault(name, []).append(round(value, 4))
        print(f"measured {name}: {value:.3f} s")

    yield take
    target = os.environ.get("EDL_BENCH_OUT")
    if target and seconds:
        Path(target).write_text(json.dumps({"seconds": seconds}, indent=1) + "\n")


@pytest.fixture
def linear(tmp_path: Path) -> Callable[..., LinearJob]:
    """Makes a job whose parameters can be recomputed."""

    def make(**fields: object) -> LinearJob:
        return LinearJob.make(tmp_path, **fields)

    return make
