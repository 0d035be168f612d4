"""How states are told to people."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.text_keys import missing_keys

from edl.api.status import Status, Summary, WorldStatus
from edl.jobfile.section_type import from_json, to_json
from edl.reporting.event_text import describe_world, summary_rows

RUNNING = WorldStatus(round=4, running=True, size=2, ranks=(0, 2), step=30, changed="worker-1 was lost")


@pytest.mark.parametrize(
    ("world", "keys"),
    [
        (RUNNING, ["round 4", "worker-0, worker-2"]),
        (replace(RUNNING, reason="worker-3 joins"), ["worker-3 joins"]),
        (replace(RUNNING, awaited="worker-2 has not"), ["round 4", "worker-2 has not"]),
        (replace(RUNNING, running=False, awaited="worker-2 has not"), ["no worker trains", "worker-2 has not"]),
        (replace(RUNNING, running=False, reason="1 of at least 2"), ["no worker trains", "1 of at least 2"]),
        (replace(RUNNING, size=100), ["and 98 more"]),
        (replace(RUNNING, difference="other threads", states_taken=1200), ["variables 1,200 times"]),
        (replace(RUNNING, ranks=(0, -1)), ["worker-0, a worker"]),
        (WorldStatus(reason="no worker is ready yet"), ["no round yet", "no worker is ready yet"]),
    ],
)
def test_the_world_in_a_line(world: WorldStatus, keys: list[str]) -> None:
    text = describe_world(world)
    assert not missing_keys(text, *keys)
    assert "\n" not in text


def test_the_world_is_a_part_of_the_status() -> None:
    status = Status(job="a", run="r1", run_dir="x", phase="Training", updated=1.0, world=RUNNING)
    assert from_json(Status, to_json(status), "status.json") == status
    assert to_json(replace(status, world=None))["world"] is None


@pytest.mark.parametrize(("added", "text"), [(1, "1 step more than with full batches"), (2, "2 steps more")])
def test_the_summary_names_steps_with_fewer_records(added: int, text: str) -> None:
    rows = dict(summary_rows(Summary(records_total=4, records_done=4, steps_added=added)))
    assert rows["steps"].startswith(text)
    assert "steps" not in dict(summary_rows(Summary(records_total=4, records_done=4)))


@pytest.mark.parametrize(("skipped", "text"), [(1, "1 update: "), (2000, "2,000 updates: ")])
def test_the_summary_tells_of_skipped_updates(skipped: int, text: str) -> None:
    rows = dict(summary_rows(Summary(records_total=4, records_done=4, updates_skipped=skipped)))
    assert rows["skipped"].startswith(text)
    assert "skipped" not in dict(summary_rows(Summary(records_total=4, records_done=4)))


def test_the_summary_has_the_warnings_and_says_nothing_twice() -> None:
    why = "load_model cannot make L again"
    summary = Summary(4, 4, export="/e", export_loading=f"# {why}", warnings=("a\nb", f"the .keras file: {why}"))
    rows = summary_rows(summary)
    assert [text for name, text in rows if name == "warning"] == ["a b", f"the .keras file: {why}"]
    assert "load with" not in dict(rows)
    assert dict(summary_rows(replace(summary, warnings=())))["load with"] == f"# {why}", (
        "as an earlier version wrote it"
    )
