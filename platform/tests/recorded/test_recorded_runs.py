"""Run directories of an earlier version: the commands say of them what they said then."""

from __future__ import annotations

import json

import pytest
from recorded.make import HALF, HERE, recorded_output
from recorded.unpacked_runs import unpacked


@pytest.mark.timeout(120)
def test_status_and_events_of_recorded_runs_are_shown_as_they_were() -> None:
    with unpacked():
        for name in ("async-done", "quarantine", *HALF):
            recorded = json.loads((HERE / "shown" / f"{name}.json").read_text())
            now = recorded_output(name)
            assert {key: now["status"].get(key) for key in recorded["status"]} == recorded["status"], name
            assert now["events"] == recorded["events"], name
