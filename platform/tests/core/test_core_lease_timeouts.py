"""The docstring of ``edl.core.lease_timeouts`` lists all limits of silence; its figures are those of the code."""

import re

import pytest

from edl.collective.communicator import HEARTBEAT_TIMEOUT_SECONDS
from edl.core import allreduce, job_pods, lease_timeouts, silent_workers, stragglers
from edl.core.lease_timeouts import LeaseTimeouts

LISTED = {
    "CLOSING_SILENCE_SECONDS": allreduce.CLOSING_SILENCE_SECONDS,
    "HEARTBEAT_TIMEOUT_SECONDS": HEARTBEAT_TIMEOUT_SECONDS,
    "PS_SILENCE_SECONDS": job_pods.PS_SILENCE_SECONDS,
    "REPLACEMENT_SECONDS": stragglers.REPLACEMENT_SECONDS,
    "REPLACEMENT_SILENCE_SECONDS": silent_workers.REPLACEMENT_SILENCE_SECONDS,
    "REQUEST_TIMEOUT": job_pods.REQUEST_TIMEOUT,
}


def test_the_list_has_the_limits_of_the_code() -> None:
    figures = re.findall(r"([\d,]+) \(``([A-Z_]+)``", lease_timeouts.__doc__ or "")
    assert {name: float(figure.replace(",", "")) for figure, name in figures} == LISTED


@pytest.mark.parametrize(("gap", "limit"), [(0.01, "4"), (100.0, "60")])
def test_the_list_has_the_bounds_of_silence(gap: float, limit: str) -> None:
    timeouts = LeaseTimeouts(max_gap=gap)
    lowest, highest, starting = re.findall(
        r"``silence_seconds``\s+\((\d+) to (\d+); (\d+) before", lease_timeouts.__doc__ or ""
    )[0]
    assert limit in (lowest, highest)
    assert timeouts.silence_seconds == float(limit)
    assert float(starting) == lease_timeouts.STARTING_SILENCE


def test_the_list_has_the_bounds_of_a_step() -> None:
    lowest, first = re.findall(
        r"``stuck_seconds`` \((\d+) or more; (\d+) before a step was measured", lease_timeouts.__doc__ or ""
    )[0]
    assert LeaseTimeouts().stuck_seconds == float(first)
    assert LeaseTimeouts(max_step=0.001).stuck_seconds == float(lowest)


def test_the_list_has_the_limits_of_tasks_without_steps() -> None:
    first, second = re.findall(
        r"such as an export, takes longer than ([\d,]+), then ([\d,]+)", lease_timeouts.__doc__ or ""
    )[0]
    assert LeaseTimeouts(max_step=0.001).stepless_seconds == float(first)
    assert LeaseTimeouts(stepless_expiries=1).stepless_seconds == float(second.replace(",", ""))
