"""The program of a job with ``command``: its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edl.worker.command_program import program_variables


def test_modules_of_the_zoo_can_be_imported_below_its_parent_folder(tmp_path: Path) -> None:
    variables = program_variables({"PYTHONPATH": "/mine"}, tmp_path / "model_zoo")
    assert variables["PYTHONPATH"].split(os.pathsep) == ["/mine", str(tmp_path)]
    assert program_variables({}, tmp_path / "model_zoo")["PYTHONPATH"] == str(tmp_path)


def test_python_is_the_interpreter_of_edl_and_does_not_buffer_unless_the_user_says_so(tmp_path: Path) -> None:
    variables = program_variables({"PATH": "/bin"}, tmp_path)
    assert variables["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/bin"]
    assert variables["PYTHONUNBUFFERED"] == "1"
    assert program_variables({"PYTHONUNBUFFERED": ""}, tmp_path)["PYTHONUNBUFFERED"] == ""
