"""A clock on which a training loop waits for its minibatches for half of the time."""

from __future__ import annotations

import itertools

import pytest

from edl.worker import data_wait

WAIT_WARNING = (data_wait.WARNING_TOPIC, data_wait.describe_wait(0.5, 4.0))
"""Topic and text of the warning of a loop with this clock: after its third minibatch, the first one not counted."""


def use_waiting_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every training loop of this test wait a second for each minibatch, and train it for a second.

    The clock is read when a minibatch is asked for, and when it comes. Waits are summed up over four seconds.
    """
    clock = itertools.count().__next__
    monkeypatch.setattr(data_wait.measure_wait, "__defaults__", (lambda: float(clock()),))
    monkeypatch.setattr(data_wait, "MEASURED_SECONDS", 4.0)
    monkeypatch.setattr(data_wait, "MEASURED_STEPS", 2)
