"""The weights that a job begins with: compared with the model by name, and read in parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError, StorageError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.storage import initial_weights
from edl.storage.initial_weights import InitialWeights
from edl.storage.safetensors_writer import write_array_file

KERNEL, TABLE = VariableSpec("kernel", (3, 2)), TableSpec("items", 9, 2, {"name": "constant", "value": 7.0}, 1)
UNBOUNDED = TableSpec("users", 0, 2, {"name": "zeros"}, 1)
VALUES = np.arange(6, dtype=np.float32).reshape(3, 2)
ROW_IDS = np.array([4, 0, 8])
ROWS = np.array([[4, 4], [0, 0], [8, 8]], np.float32)


def of_servers(path: Path, table: TableSpec = TABLE) -> InitialWeights:
    """A shard of parameter servers: a variable, and three rows of a table."""
    declared = {"dense": [KERNEL.to_json()], "tables": [table.to_json()], "fingerprint": "f", "optimizer": None}
    arrays = {"dense/kernel": VALUES, f"rows/{table.name}/ids": ROW_IDS, f"rows/{table.name}/values": ROWS}
    write_array_file(path, arrays, {"declaration": json.dumps(declared)})
    return InitialWeights.open(path)


def of_ranks(path: Path) -> InitialWeights:
    """The arrays of a model that has the table itself."""
    table = np.repeat(np.arange(9, dtype=np.float32)[:, None], 2, 1)
    write_array_file(path, {"dense/kernel": VALUES, "dense/items": table, "slot/0": VALUES}, {})
    return InitialWeights.open(path)


def test_a_variable_has_the_stored_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_weights, "_CHUNK_BYTES", 8)  # a row at a time
    weights = of_ranks(tmp_path / "model.safetensors")
    weights.check_model([KERNEL], [TABLE])
    np.testing.assert_array_equal(weights.read_variable(KERNEL), VALUES)
    ids, rows = weights.read_rows(TABLE, lambda ids: ids % 2 == 0)
    assert ids.tolist() == [0, 2, 4, 6, 8]
    assert rows[:, 0].tolist() == [0, 2, 4, 6, 8]


def test_a_table_of_servers_becomes_a_variable_with_the_rows_that_were_never_trained(tmp_path: Path) -> None:
    weights = of_servers(tmp_path / "ps-0.safetensors")
    in_memory = VariableSpec("items", (9, 2))
    weights.check_model([KERNEL, in_memory])
    values = weights.read_variable(in_memory)
    assert values[:, 0].tolist() == [0, 7, 7, 7, 4, 7, 7, 7, 8]


def test_what_differs_is_named_on_both_sides(tmp_path: Path) -> None:
    weights = of_servers(tmp_path / "ps-0.safetensors")
    other = [VariableSpec("kernel", (3, 4)), VariableSpec("bias", (4,))]
    with pytest.raises(BadInputError, match=r"model\.init_from") as caught:
        weights.check_model(other)
    assert not missing_keys(caught.value.message, "'kernel'", "[3, 4]", "[3, 2]", "'bias'", "'items'")
    assert caught.value.where == str(tmp_path / "ps-0.safetensors")


def test_a_table_without_a_fixed_size_is_no_variable(tmp_path: Path) -> None:
    weights = of_servers(tmp_path / "ps-0.safetensors", UNBOUNDED)
    weights.check_model([KERNEL], [UNBOUNDED])
    with pytest.raises(BadInputError, match="users"):
        weights.check_model([KERNEL, VariableSpec("users", (9, 2))])


def test_a_directory_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="manifest"):
        InitialWeights.open(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(StorageError, match="safetensors"):
        InitialWeights.open(tmp_path / "model.safetensors")


def test_an_array_whose_number_is_not_decimal_is_no_state(tmp_path: Path) -> None:
    write_array_file(tmp_path / "model.safetensors", {"state/²": VALUES, "state/1": VALUES}, {})
    assert list(InitialWeights.open(tmp_path / "model.safetensors").states) == [1]
