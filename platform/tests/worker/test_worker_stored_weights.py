"""What a checkpoint gives a model to predict with: all that the model has, or a refusal that says what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError, StorageError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.initializers import initial_rows
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.storage import checkpoint_manifest, checkpoint_shards
from edl.worker.stored_weights import StoredWeights
from edl.worker.task_loop import describe_failure

UNIFORM = {"name": "uniform", "minval": -1, "maxval": 1}
USERS = TableSpec("users", 10, 2, UNIFORM, 7)
TAGS = TableSpec("tags", 0, 2, UNIFORM, 8)

Arrays = dict[str, Any]


def floats(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def rows(table: str, *known: int, dim: int = 2) -> Arrays:
    """Rows that hold their ids."""
    values = np.repeat(floats(*known)[:, None], dim, axis=1) if known else np.empty((0, dim), np.float32)
    return {f"rows/{table}/ids": np.array(known, np.int64), f"rows/{table}/values": values}


def written(folder: Path, *shards: Arrays, tables: Sequence[TableSpec] | None = (USERS,)) -> Path:
    """A checkpoint of these shards; ``tables`` None: as strategy Local writes it, without strings."""
    directory = checkpoint_manifest.cut_directory(folder, 4)
    infos = []
    for index, arrays in enumerate(shards):
        meta = None if tables is None else {"declaration": declared(arrays, tables)}
        infos.append(checkpoint_shards.write_shard(directory, index, arrays, meta))
    checkpoint_manifest.commit_checkpoint(
        directory, checkpoint_manifest.CheckpointManifest(4, 3, "2026-01-01T00:00:00Z", tuple(infos), {})
    )
    return directory


def declared(arrays: Arrays, tables: Sequence[TableSpec]) -> str:
    dense = [VariableSpec(name[6:], array.shape) for name, array in arrays.items() if name.startswith("dense/")]
    return ModelDeclaration(tuple(dense), tuple(tables), OptimizerSpec("sgd"), "model").to_json()


def refusal(directory: Path, tables: Sequence[TableSpec] = (), variables: Sequence[VariableSpec] = ()) -> BadInputError:
    """What is said to a model; the job ends with it at once, with code 2."""
    with pytest.raises(BadInputError) as caught:
        StoredWeights.from_checkpoint(directory, tables).flat_values(variables)
    assert (describe_failure(caught.value).kind, describe_failure(caught.value).exit_code) == ("input", 2)
    assert caught.value.where == str(directory)
    assert "model.params" in str(caught.value.hint)
    assert "edl predict --from RUN" in str(caught.value.hint)
    return caught.value


def test_rows_come_from_all_shards_and_the_rest_as_initialized(tmp_path: Path) -> None:
    weights = StoredWeights.from_checkpoint(written(tmp_path, rows("users", 5, 1), rows("users", 8)), [USERS])
    values = weights.pull_rows({"users": np.array([8, 0, 1, 9])})["users"].values
    start = initial_rows(UNIFORM, 7, np.array([0, 9]), 2)
    np.testing.assert_array_equal(values, [[8, 8], start[0], [1, 1], start[1]])


def test_rows_that_were_not_trained_are_as_the_trained_model_had_them(tmp_path: Path) -> None:
    """Also if the model would begin otherwise now: another train.seed, another initializer."""
    weights = StoredWeights.from_checkpoint(
        written(tmp_path, rows("users", 5)), [replace(USERS, initializer={}, seed=1)]
    )
    values = weights.pull_rows({"users": np.array([5, 6])})["users"].values
    np.testing.assert_array_equal(values, [[5, 5], initial_rows(UNIFORM, 7, np.array([6]), 2)[0]])


def test_a_table_of_which_nothing_was_trained_yet_is_in_the_checkpoint(tmp_path: Path) -> None:
    weights = StoredWeights.from_checkpoint(written(tmp_path, rows("users"), rows("users")), [USERS])
    ids = np.array([3, 4])
    np.testing.assert_array_equal(weights.pull_rows({"users": ids})["users"].values, initial_rows(UNIFORM, 7, ids, 2))


@pytest.mark.parametrize("tables", [(), None])
def test_a_table_that_was_trained_dense_can_be_served(tmp_path: Path, tables: tuple[TableSpec, ...] | None) -> None:
    """Below ps.embedding_threshold then, and under strategy Local always."""
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    weights = StoredWeights.from_checkpoint(written(tmp_path, {"dense/users": values}, tables=tables), [USERS])
    np.testing.assert_array_equal(weights.pull_rows({"users": np.array([0, 9])})["users"].values, values[[0, 9]])


def test_a_table_that_was_served_can_be_dense(tmp_path: Path) -> None:
    weights = StoredWeights.from_checkpoint(written(tmp_path, rows("users", 5), rows("users", 0)), [])
    expected = initial_rows(UNIFORM, 7, np.arange(10), 2)
    expected[[0, 5]] = [[0, 0], [5, 5]]
    np.testing.assert_array_equal(weights.flat_values([VariableSpec("users", (10, 2))]), expected.ravel())


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Its rows would be initial values, and the predictions worth nothing."""
    directory = written(tmp_path, rows("users", 5) | rows("tags"), tables=(USERS, TAGS))
    error = refusal(directory, [USERS, replace(USERS, name="buyers", rows=3000)])
    assert not missing_keys(error.message, "'buyers' [3000, 2]", "'tags' [any id, 2]", "'users' [10, 2]")
    assert "name=" in str(error.hint)
    nothing = written(tmp_path / "other", {"dense/w": floats(1)}, tables=())
    assert not missing_keys(refusal(nothing, [USERS]).message, "'users' [10, 2]", "'w' [1]")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (replace(USERS, dim=3), "[10, 3]"),
        (replace(USERS, rows=11), "[11, 2]"),
        (replace(USERS, rows=0), "[any id, 2]"),
    ],
)
def test_a_table_of_another_shape_is_refused(tmp_path: Path, table: TableSpec, said: str) -> None:
    assert not missing_keys(refusal(written(tmp_path, rows("users", 5)), [table]).message, "'users'", said, "[10, 2]")


@pytest.mark.parametrize("table", [replace(USERS, dim=3), replace(USERS, rows=11), replace(USERS, rows=0)])
def test_a_table_of_another_shape_that_was_dense_is_refused(tmp_path: Path, table: TableSpec) -> None:
    directory = written(tmp_path, {"dense/users": np.zeros((10, 2), np.float32)}, tables=None)
    shape = f"[{table.rows or 'any id'}, {table.dim}]"
    message = f"the table 'users' is {shape} in the model, and a variable of the shape [10, 2] in the checkpoint"
    assert refusal(directory, [table]).message == message


def test_dense_values_come_in_the_models_order(tmp_path: Path) -> None:
    shards = [{"dense/b": floats(3)}, {"dense/a": floats([1, 2])}]
    weights = StoredWeights.from_checkpoint(written(tmp_path, *shards, tables=()), [])
    np.testing.assert_array_equal(weights.flat_values([VariableSpec("a", (1, 2)), VariableSpec("b", (1,))]), [1, 2, 3])


def test_dense_variables_of_another_model_are_refused(tmp_path: Path) -> None:
    directory = written(tmp_path, {"dense/a": floats([1, 2]), "dense/b": floats(3)} | rows("users", 5))
    shape = "the variable 'a' is [2] in the model, and a variable of the shape [1, 2] in the checkpoint"
    assert refusal(directory, [], [VariableSpec("a", (2,))]).message == shape
    missing = (
        "the variable 'c' [2] of the model is not in the checkpoint, which has the variables 'a' [1, 2], 'b' [1] and "
        "the table 'users' [10, 2]"
    )
    assert refusal(directory, [], [VariableSpec("c", (2,))]).message == missing
    served = (
        "the variable 'users' is [10, 3] in the model, and a PS-backed table of the shape [10, 2] in the checkpoint"
    )
    assert refusal(directory, [], [VariableSpec("users", (10, 3))]).message == served


def test_a_table_without_a_bound_cannot_be_dense(tmp_path: Path) -> None:
    directory = written(tmp_path, rows("tags", 5), tables=(TAGS,))
    message = (
        "the variable 'tags' is [10, 2] in the model, and a PS-backed table of the shape [any id, 2] in the checkpoint"
    )
    assert refusal(directory, [], [VariableSpec("tags", (10, 2))]).message == message


def test_of_many_names_some_are_told(tmp_path: Path) -> None:
    directory = written(tmp_path, {f"dense/v{number:02}": floats(1) for number in range(30)}, tables=())
    assert refusal(directory, [], [VariableSpec("c", (2,))]).message.endswith("'v09' [1], and 20 more")


def test_a_checkpoint_that_was_damaged_since_it_was_chosen(tmp_path: Path) -> None:
    directory = written(tmp_path, rows("users", 5))
    shard = checkpoint_shards.shard_path(directory, 0)
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(StorageError, match="is damaged") as caught:
        StoredWeights.from_checkpoint(directory, [USERS])
    assert "edl checkpoint ls --verify" in str(caught.value.hint)
    (directory / "manifest.json").unlink()
    with pytest.raises(BadInputError, match="is not a checkpoint") as refused:
        StoredWeights.from_checkpoint(directory, [USERS])
    assert "edl checkpoint ls --verify" in str(refused.value.hint)


def test_strings_that_are_no_declaration_are_no_crash(tmp_path: Path) -> None:
    directory = checkpoint_manifest.cut_directory(tmp_path, 1)
    info = checkpoint_shards.write_shard(directory, 0, {"dense/a": floats(1)}, {"declaration": json.dumps([1])})
    checkpoint_manifest.commit_checkpoint(
        directory, checkpoint_manifest.CheckpointManifest(1, 1, "2026-01-01T00:00:00Z", (info,), {})
    )
    with pytest.raises(StorageError, match="not the shard of a checkpoint"):
        StoredWeights.from_checkpoint(directory, [])
