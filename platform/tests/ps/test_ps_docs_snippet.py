"""The page about checkpoints shows how to read a shard without EDL: it is run as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import NumpyParameterStore, PushGradients, RowBatch
from edl.ps.shard_restore import CutSnapshot
from edl.ps.shard_writer import write_cut_shard

PAGE = Path(__file__).parents[3] / "docs/reference/checkpoints.md"
TABLE = TableSpec("users/embeddings", 1000, 2, {"name": "zeros"}, seed=0)
TELL = """
print(json.dumps({
    "variables": {name: value.tolist() for name, value in variables.items()},
    "tables": {name: {id: row.tolist() for id, row in rows.items()} for name, rows in tables.items()},
    "slot": arrays["rows/users/embeddings/slot/accumulator"].tolist(),
    "imported": sorted(sys.modules),
}))
"""


def test_the_pages_ten_lines_read_a_shard_of_a_parameter_server(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in snippet.splitlines() if line]) <= 10

    dense = (VariableSpec("a/kernel", (2, 2)), VariableSpec("a/mean", (1,), statistic=True))
    declared = ModelDeclaration(dense, (TABLE,), OptimizerSpec("adagrad", {"initial_accumulator_value": 0.0}), "model")
    store = NumpyParameterStore(declared, np.arange(5, dtype=np.float32))
    rows = RowBatch(np.array([900, 3]), np.full((2, 2), 4, np.float32))
    store.apply_gradients(PushGradients(np.zeros(5, np.float32), {TABLE.name: rows}, 0.5, 1.0), 1)
    write_cut_shard(tmp_path, 0, CutSnapshot(1, store.take_snapshot(), 1, {}))

    code = f"import sys; sys.modules['edl'] = None\n{snippet}{TELL}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["variables"] == {"a/kernel": [[0, 1], [2, 3]], "a/mean": [4]}
    assert printed["tables"][TABLE.name].keys() == {"900", "3"}
    np.testing.assert_allclose(printed["tables"][TABLE.name]["3"], [-0.5, -0.5], rtol=1e-5)
    assert printed["slot"] == [[16, 16], [16, 16]]
    assert not {"tensorflow", "keras", "torch"} & set(printed["imported"])
