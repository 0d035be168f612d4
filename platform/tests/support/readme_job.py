"""The README's whole job: its files and commands."""

from __future__ import annotations

import re
from pathlib import Path

from support.doc_commands import ROOT, DocCommand, blocks

README = ROOT / "README.md"


def write_readme_job(folder: Path) -> list[DocCommand]:
    """Write the model and the job file as a reader of the README does; returns the commands that use them."""
    names = {"python": "flowers.py", "yaml": "job.yaml"}
    for kind, text in re.findall(r"```(python|yaml)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        (folder / names.pop(kind)).write_text(text, encoding="utf-8")
    assert not names
    commands = [each for each in blocks(README) if each.text.startswith(("edl data", "edl validate", "edl run"))]
    assert [each.text.split()[1] for each in commands] == ["data", "validate", "run"]
    return commands
