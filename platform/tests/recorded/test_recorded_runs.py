"""Run directories of an earlier version: the commands say of them what they said then."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded.make import HALF, HERE, recorded_output
from recorded.unpacked_runs import unpacked


@pytest.mark.timeout(120)
def with_recorded_keys(now: Any, recorded: Any) -> Any:
    """What is shown now without the keys that were added since."""
    if isinstance(now, dict) and isinstance(recorded, dict):
        return {key: with_recorded_keys(now.get(key), recorded[key]) for key in recorded}
    if isinstance(now, list) and isinstance(recorded, list) and len(now) == len(recorded):
        return [with_recorded_keys(*pair) for pair in zip(now, recorded, strict=True)]
    return now


def test_status_and_events_of_recorded_runs_are_shown_as_they_were() -> None:
    with unpacked():
        for name in ("async-done", "quarantine", *HALF):
            recorded = json.loads((HERE / "shown" / f"{name}.json").read_text())
            now = recorded_output(name)
            assert with_recorded_keys(now["status"], recorded["status"]) == recorded["status"], name
            assert with_recorded_keys(now["events"], recorded["events"]) == recorded["events"], name
