"""The page *SQL in, model out*, word for word: what it runs on a laptop, in a home of its own and in its order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_commands import DOCS, blocks, run

PAGE = DOCS / "sql.md"
SECONDS = 600.0

pytestmark = [pytest.mark.jobs, pytest.mark.repetition, pytest.mark.timeout(SECONDS + 30), pytest.mark.tensorflow]

_CELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in sys.argv[1:]:
    done = shell.run_cell(cell)
    assert done.success, done.error_in_exec or done.error_before_exec
"""


def fences(kind: str) -> list[str]:
    """The texts of a kind of fence, in the order of the page."""
    texts = re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert texts, kind
    return texts


def test_the_page_runs_on_a_laptop(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    pytest.importorskip("pandas")
    programs = Path(sys.executable).parent
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    for name in ("EDL_DATABASE", "EDL_MODELS"):
        env.pop(name, None)
    # What needs no database of the reader's, no terminal and no cluster.
    demo, export = (each.text for each in blocks(PAGE) if "--demo " in f"{each.text} " and '"' in each.text)
    follow = next(each.text for each in blocks(PAGE) if each.text.startswith("cd income"))
    wide, own = (each for each in fences("sql") if "FROM employee" in each)
    module, python = (each for each in fences("python") if "def custom_model" in each or "edl.sql(" in each)

    output = run(demo, folder=tmp_path, env=env, seconds=SECONDS)
    assert "my_elasticdl_model@1" in output
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "my_module.py").write_text(module, encoding="utf-8")
    for name, statement in (("my_wide_model", wide), ("my_own_model", own)):
        (tmp_path / f"{name}.sql").write_text(statement, encoding="utf-8")
        output = run(f"edl sql --demo {name}.sql", folder=tmp_path, env=env, seconds=SECONDS)
        assert f"{name}@1" in output
    run(f"{export} && {follow}", folder=tmp_path, env=env, seconds=SECONDS)
    stored = json.loads((tmp_path / ".edl/models/my_income_model/1/model.json").read_text(encoding="utf-8"))
    runs = tmp_path / "income" / ".edl" / "local"
    again = json.loads((runs / "my-income-model" / "r2" / "summary.json").read_text(encoding="utf-8"))["metrics"]
    assert again == pytest.approx(stored["metrics"], abs=1e-6), "the folder trains the same"
    assert stored["refit_epochs"]
    first, second = (
        json.loads((runs / "my-income-model-refit" / run / "summary.json").read_text(encoding="utf-8"))["records_done"]
        for run in ("r1", "r2")
    )
    assert first == second == stored["refit_epochs"] * stored["rows"], "all rows, in each epoch"

    cells = [each for each in fences("text") if each.startswith("%")]
    assert [each.split()[0] for each in cells] == ["%load_ext", "%%edl"]
    program = [sys.executable, "-c", _CELL, *cells]
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "income_model@1" in done.stdout
    program = [sys.executable, "-c", f"{python}\nassert frame['accuracy'][0] > 0.8, frame"]
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
