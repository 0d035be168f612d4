"""Measured numbers: each scenario adds its own; together they are ``results/latest.json`` and the table in the docs."""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.machine_speed import allowed_seconds, slowness

RESULTS, STATE = (Path(__file__).parent / name for name in ("results", ".state"))
LATEST = RESULTS / "latest.json"


@dataclass(frozen=True)
class MeasuredValue:
    """One line of the table.

    Attributes:
        what: was measured.
        at_most: seconds that it may take on the machine for which the limits were set; None: it is only reported.
    """

    what: str
    at_most: float | None = None


MEASURES = {
    "replacement_asked": MeasuredValue("worker pod deleted: replacement asked for after", 0.3),
    "records_returned": MeasuredValue("its unfinished records back at the head of the queue after", 1.0),
    "records_leased": MeasuredValue("its unfinished records leased again, when a worker waits for work, after", 1.0),
    "preemption_wait": MeasuredValue("high-priority pod waits for a preempted worker to go", 3.0),
    "room_to_step": MeasuredValue(
        "room freed: from PodScheduled to the first completed step, beyond container start and TensorFlow import", 2.0
    ),
    "room_to_scheduled": MeasuredValue("the scheduler's own wait, from room to PodScheduled"),
    "master_killed": MeasuredValue("master process killed: leases served again after", 5.0),
    "master_deleted": MeasuredValue(
        "master pod deleted: leases served again after its replacement's container starts", 3.0
    ),
    "master_back_off": MeasuredValue("the Job controller's back-off, from the deletion to the replacement"),
    "workers_idle": MeasuredValue("the workers' idle time meanwhile"),
    "pods_gone": MeasuredValue("job ended: its pods gone after", 10.0),
    "dry_run_client": MeasuredValue("light client: edl submit --dry-run=client", 0.6),
    "install_helm": MeasuredValue("`helm install edl` in an empty cluster, with a team, its namespace and its claim"),
    "install_kustomize": MeasuredValue("`kubectl apply -k` of the cluster's part and a team's in an empty cluster"),
    "upgrade": MeasuredValue("`helm upgrade edl` beside a running job"),
}


def record_duration(name: str, seconds: float, **beside: Any) -> None:
    """Note a measured value, in seconds, and what stands beside it; the worst of several counts.

    Raises:
        AssertionError: it is more than what is required, stretched where this machine is slower.
    """
    what, at_most = MEASURES[name].what, MEASURES[name].at_most
    value = {"seconds": round(seconds, 3), "at_most": at_most, "slowness": round(slowness(), 2), "what": what}
    _add_value(name, value | beside)
    if at_most is not None:
        allowed = allowed_seconds(at_most)
        assert seconds <= allowed, (
            f"{what}: {seconds:.2f} s, allowed {allowed:.2f} s ({at_most:g} s x {slowness():.2f})"
        )


def _add_value(name: str, value: dict[str, Any]) -> None:
    for folder in (RESULTS, STATE):
        folder.mkdir(exist_ok=True)
    with (STATE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        values = json.loads(LATEST.read_text()) if LATEST.exists() else {}
        before = values.get(name)
        if before is None or before["seconds"] <= value["seconds"]:
            values[name] = value
        LATEST.write_text(json.dumps(dict(sorted(values.items())), indent=1) + "\n")


def table(found: dict[str, Any]) -> str:
    """The table of the docs."""
    lines = ["| measure | at most | measured |", "|---|---|---|"]
    for name, measure in MEASURES.items():
        allowed = "reported" if measure.at_most is None else f"{measure.at_most:g} s"
        value = _value_text(found[name]) if name in found else "not measured"
        lines.append(f"| {measure.what} | {allowed} | {value} |")
    slow = max((value.get("slowness", 1.0) for value in found.values()), default=1.0)
    if slow > 1:
        lines += [
            "",
            f"This machine was {slow:.2f} times as slow as that of the limits, which were stretched by as much.",
        ]
    return "\n".join(lines)


def _value_text(value: dict[str, Any]) -> str:
    objects = f" ({value['objects']} objects)" if "objects" in value else ""
    return f"{value['seconds']:.2f} s{objects}"


if __name__ == "__main__" and LATEST.exists():  # else none of the scenarios that ran measures anything
    print(table(json.loads(LATEST.read_text())))
