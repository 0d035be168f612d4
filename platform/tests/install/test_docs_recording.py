"""The recording of the live view: how its script reads a terminal, and what the file in the repository is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from xml.etree import ElementTree

import pytest
from support.doc_commands import DOCS

pytestmark = pytest.mark.install

FILE = DOCS / "recording.svg"
TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.fixture
def recording() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS / "generate"))
    import recording

    yield recording
    sys.path.remove(str(DOCS / "generate"))


def shown_text(svg: str) -> str:
    return "\n".join(element.text or "" for element in ElementTree.fromstring(svg).iter(TEXT)).replace("\xa0", " ")


def test_a_live_view_that_is_redrawn_replaces_its_lines(recording: ModuleType) -> None:
    screen = recording.Screen()
    screen.feed("the plan\r\n\x1b[?25l\x1b[1mTraining\x1b[0m\r\nworker 0")
    screen.feed("\r\x1b[2K\x1b[1A\x1b[2K\x1b[32mDone\x1b[0m\r\nworker 1\r\n")
    assert screen.visible() == ["the plan", "\x1b[32mDone\x1b[0m", "worker 1"]


def test_frames_follow_one_another_and_show_no_path_of_the_machine(recording: ModuleType) -> None:
    moments = [
        recording.Moment(0.0, (f"run r1 in {recording.ROOT}/.edl/local/mnist/r1",)),
        recording.Moment(30.0, ("worker 0 ended (pid 7): Killed (SIGKILL)",)),
        recording.Moment(60.0, ("Done",)),
    ]
    svg = recording.animate(recording.choose_frames(moments))
    assert svg.count('<g class="edl-rec-frame') == 3
    assert "run r1 in .edl/local/mnist/r1" in shown_text(svg)
    assert str(recording.ROOT) not in svg


def test_the_recording_shows_a_kill_and_needs_nothing_from_elsewhere() -> None:
    svg = FILE.read_text(encoding="utf-8")
    assert FILE.stat().st_size < 200_000
    assert "worker 0 ended" in shown_text(svg)
    assert "0 lost" in shown_text(svg)
    assert svg.replace('xmlns="http://www.w3.org/2000/svg"', "").count("http") == 0
