"""Run directories of an earlier version: the commands say of them what they said then."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli.cli_harness import run_edl
from recorded.make import ENDED, HALF, HALF_WITH_TABLES, HERE, recorded_output
from recorded.unpacked_runs import PLACE, unpacked


def with_recorded_keys(now: Any, recorded: Any) -> Any:
    """What is shown now without the keys that were added since."""
    if isinstance(now, dict) and isinstance(recorded, dict):
        return {key: with_recorded_keys(now.get(key), recorded[key]) for key in recorded}
    if isinstance(now, list) and isinstance(recorded, list) and len(now) == len(recorded):
        return [with_recorded_keys(*pair) for pair in zip(now, recorded, strict=True)]
    return now


def test_status_and_events_of_recorded_runs_are_shown_as_they_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def edl(*words: str) -> str:
        # In this process: the start of twelve would take most of the time.
        assert run_edl(*words) == 0
        return capsys.readouterr().out

    with unpacked():
        monkeypatch.chdir(PLACE)
        for name in (*ENDED, *HALF, *HALF_WITH_TABLES):
            recorded = json.loads((HERE / "shown" / f"{name}.json").read_text())
            now = recorded_output(name, edl)
            if name == "async-killed":  # no process recorded a reason, so `edl status` itself gives one
                assert now["status"]["status"]["reason"]
                recorded["status"]["status"]["reason"] = now["status"]["status"]["reason"]
            assert with_recorded_keys(now["status"], recorded["status"]) == recorded["status"], name
            assert with_recorded_keys(now["events"], recorded["events"]) == recorded["events"], name
