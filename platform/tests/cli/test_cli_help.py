"""``--help`` of ``edl`` and of each command that has commands: plain text, in which no description is cut."""

from __future__ import annotations

from importlib import import_module

import pytest
import typer.main
from typer.testing import CliRunner

from edl.cli.app import COMMANDS, app

GROUPS = [
    name for name in COMMANDS if hasattr(typer.main.get_command(import_module(f"edl.cli.{name}").app), "list_commands")
]


def test_groups_are_found() -> None:
    assert {"checkpoint", "data", "zoo"} <= set(GROUPS)


@pytest.mark.parametrize("words", [[], *([name] for name in GROUPS)], ids=" ".join)
def test_help_has_no_frames_and_each_description_whole(words: list[str]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"], terminal_width=80).output
    descriptions = shown.partition("Commands:")[2].splitlines()[1:]
    assert descriptions
    assert "╭" not in shown
    assert [line for line in descriptions if line.endswith("...")] == []
