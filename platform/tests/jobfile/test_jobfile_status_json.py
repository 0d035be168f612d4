"""Status, events and summary as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.text_keys import missing_keys

from edl.api.run_events import EVENTS, EvaluationEnded, JobEnded, RoleEnded, RoleStarted
from edl.api.status import RoleStatus, Status, Summary
from edl.jobfile import event_json
from edl.jobfile.document_tree import SpecError
from edl.jobfile.section_type import from_json, to_json


def test_an_event_is_one_line() -> None:
    line = event_json.line(RoleStarted(time=1700000000.5, role="worker", index=0, pid=4711))
    assert line == '{"event": "role_started", "time": 1700000000.5, "role": "worker", "index": 0, "pid": 4711}'


def test_every_kind_of_event() -> None:
    assert list(EVENTS) == [
        "run_started",
        "role_asked",
        "role_started",
        "role_leaving",
        "role_ended",
        "scaled",
        "world_changed",
        "lease_revoked",
        "records_returned",
        "records_leased",
        "stalled",
        "stall_ended",
        "evaluation_started",
        "evaluation_ended",
        "checkpoint_saved",
        "rolled_back",
        "quarantined",
        "warning",
        "callback_decided",
        "exported",
        "job_ended",
    ]


def test_an_end_by_a_signal() -> None:
    ended = RoleEnded(time=1.0, role="worker", index=1, pid=7, reason="killed by SIGKILL", exit_code=-9)
    assert event_json.parse_event_line(event_json.line(ended)) == ended


def test_numbers_that_are_not_finite_become_null() -> None:
    ended = EvaluationEnded(time=1.0, step=10, metrics={"accuracy": float("nan"), "loss": np.float32(0.5)})
    assert json.loads(event_json.line(ended))["metrics"] == {"accuracy": None, "loss": 0.5}
    status = Status(job="a", run="r1", run_dir="x", phase="Training", updated=1.0, loss=float("inf"))
    assert to_json(status)["loss"] is None


def test_the_summary_has_the_documented_keys() -> None:
    documented = {
        "records_total",
        "records_done",
        "records_repeated",
        "records_lost",
        "records_rolled_back",
        "updates_rolled_back",
        "samples_per_second",
        "seconds",
        "workers_lost",
        "metrics",
        "export",
    }
    added = {
        "logs",
        "records_skipped",
        "updates_rolled_back_of",
        "parameters",
        "steps_not_applied",
        "export_loading",
        "states_taken",
        "steps_added",
        "updates_skipped",
        "warnings",
        "began_with",
        "records_not_trained",
    }
    assert set(to_json(Summary(records_total=1, records_done=1))) == documented | added


def test_the_summary_travels_with_the_end() -> None:
    summary = Summary(
        records_total=4, records_done=4, updates_rolled_back=3, updates_rolled_back_of={"dense/kernel": 3}
    )
    ended = JobEnded(time=2.0, phase="Done", reason="all records are done", summary=summary)
    assert event_json.parse_event_line(event_json.line(ended)) == ended


def test_status_lists_its_roles() -> None:
    status = Status(
        job="mnist",
        run="r1",
        run_dir="/tmp/r1",
        phase="Training",
        updated=5.0,
        workers=(RoleStatus(index=0, pid=7, state="training", uid="w0"),),
    )
    assert to_json(status)["workers"] == [
        {
            "index": 0,
            "pid": 7,
            "state": "training",
            "uid": "w0",
            "node": "",
            "reason": "",
            "samples_per_second": None,
        }
    ]
    assert from_json(Status, to_json(status)) == status


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("{", ("JSON",)),
        ("[]", ("event", "None", "run_started")),
        ('{"event": "started"}', ("event", "'started'", "run_started")),
        ('{"event": "exported", "time": 1}', ("path", "missing")),
        ('{"event": "exported", "time": "1", "path": "x"}', ("time", "'1'", "number")),
        ('{"event": "exported", "time": 1, "path": "x", "pth": 1}', ("pth", "unknown", "'path'")),
    ],
)
def test_reading_is_strict(line: str, keys: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        event_json.parse_event_line(line, "events.jsonl:3")
    assert str(caught.value).startswith("events.jsonl:3: ")
    assert not missing_keys(str(caught.value), *keys)


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(SpecError, match=r"status.json: phase: .*'Traning'[\s\S]*'Training'"):
        from_json(Status, {"job": "a", "run": "r", "run_dir": "x", "phase": "Traning", "updated": 1}, "status.json")
