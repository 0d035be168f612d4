"""%%edl in a notebook with a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.sql_jobs.demo_table import make_demo

pytestmark = [pytest.mark.jobs, pytest.mark.repetition, pytest.mark.timeout(600)]


def test_a_notebook_trains_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for name in ("ipykernel", "pandas"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    make_demo()
    monkeypatch.setenv("EDL_DATABASE", "sqlite:///edl-demo.db")
    monkeypatch.setenv("EDL_MODELS", str(tmp_path / "models"))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    cells = [
        "%load_ext edl",
        "%%edl\nSELECT age, education, hours_per_week, income FROM employee\n"
        "TO TRAIN linear WITH train.epochs=2 LABEL income INTO m",
        "%%edl --to rows\nSELECT age, education, hours_per_week FROM employee TO PREDICT guessed.income USING m",
        "print(len(rows), sorted(rows.income.unique()))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [
        "".join(each.get("text", "") or each.get("data", {}).get("text/plain", "") for each in cell.outputs)
        for cell in notebook.cells
    ]
    for part in ("model linear: TO TRAIN names it", "accuracy", "The model is m@1"):
        assert part in outputs[1]
    assert "4,000 rows with predictions of m@1 in guessed" in outputs[2]
    assert outputs[3].startswith("4000 ['")
