from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl.api.errors import StorageError
from edl.storage.checkpoint_contents import list_shard_variables, read_checkpoint_contents
from edl.storage.checkpoint_shards import write_shard


def test_the_names_in_a_shard(tmp_path: Path) -> None:
    zeros = np.zeros(3, np.float32)
    names = ["dense/a/kernel", "dense/b", "slot/momentum/a/kernel"]
    names += ["rows/items/ids", "rows/items/values", "rows/items/slot/m"]
    write_shard(tmp_path, 1, dict.fromkeys(names, zeros))
    assert list_shard_variables(tmp_path, 1) == ["a/kernel", "b", "items"]
    assert list_shard_variables(tmp_path, 0) == []


def test_variables_of_several_optimizers_are_slots_of_no_variable(tmp_path: Path) -> None:
    """A GAN's: they have the attribute of the optimizer in their names."""
    names = ["dense/a/kernel", "slot/d_optimizer/0", "slot/optimizers/1/10", "state/0"]
    write_shard(tmp_path, 0, {name: np.zeros(2, np.float32) for name in names})
    contents = read_checkpoint_contents([tmp_path / "ps-0.safetensors"])
    assert [variable.spec.name for variable in contents.variables] == ["a/kernel"]
    assert sorted(array.name for array in contents.other_arrays) == names[1:]


def test_a_file_that_is_no_shard_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ps-0.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(StorageError, match="not a safetensors file"):
        list_shard_variables(tmp_path, 0)
