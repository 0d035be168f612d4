from __future__ import annotations

from pathlib import Path

from support.pod_diagram import mermaid, renewed

from edl.core.pod_lifecycle import PodState

DOCUMENT = Path(__file__).parents[3] / "docs/design/0004-pods.md"


def test_the_document_shows_the_table_as_it_is() -> None:
    text = DOCUMENT.read_text()
    assert renewed(text) == text, f"python -m support.pod_diagram {DOCUMENT}"


def test_what_changes_nothing_is_not_drawn() -> None:
    drawn = mermaid({PodState.RUNNING: {PodState.PENDING: PodState.RUNNING, PodState.DELETED: PodState.DELETED}})
    assert "live --> deleted" in drawn
    assert "pending" not in drawn


def test_an_end_that_not_every_live_pod_can_have_is_drawn_where_it_belongs() -> None:
    gone = {PodState.DELETED: PodState.DELETED}
    drawn = mermaid({PodState.PENDING: gone, PodState.RUNNING: {**gone, PodState.SUCCEEDED: PodState.SUCCEEDED}})
    assert "live --> deleted" in drawn
    assert "running --> succeeded" in drawn
