"""How far the end-to-end tests stretch their limits in seconds on a slow machine."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _root_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_the_worst_of_the_last_minutes_counts() -> None:
    from e2e.machine_speed import COUNT_FOR_SECONDS, MEASURE_AFTER_SECONDS, MachineSpeed

    ratios, now = iter([1.5, 3.0, 2.0, 1.2]), 1000.0
    machine = MachineSpeed(lambda: next(ratios), lambda: now)
    assert machine.slowness() == 1.5
    now += MEASURE_AFTER_SECONDS - 1
    assert machine.slowness() == 1.5  # not measured again so soon
    now += 1
    assert machine.slowness() == 3.0
    now += MEASURE_AFTER_SECONDS
    assert machine.slowness() == 3.0  # two minutes ago it was slower than now
    now += COUNT_FOR_SECONDS - MEASURE_AFTER_SECONDS
    assert machine.slowness() == 2.0
    assert not list(ratios)


def test_limits_do_not_shrink_on_a_fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from e2e import machine_speed

    monkeypatch.setattr(machine_speed, "_machine", machine_speed.MachineSpeed(lambda: 0.4))
    assert machine_speed.allowed_seconds(15.0) == 15.0


def test_the_slower_of_loop_and_command_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from e2e import machine_speed

    monkeypatch.setattr(machine_speed, "_loop_seconds", lambda: machine_speed.REFERENCE_SECONDS)
    monkeypatch.setattr(machine_speed, "_command_seconds", lambda: 2 * machine_speed.REFERENCE_COMMAND_SECONDS)
    assert machine_speed.measure_slowness() == 2.0
