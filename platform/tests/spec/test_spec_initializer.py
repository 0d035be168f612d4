"""Initial rows depend on seed and id only, and have the asked distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.errors import BadInputError
from edl.spec.initializer import initial_rows

UNIFORM = {"name": "uniform", "minval": -0.05, "maxval": 0.05}
NORMAL = {"name": "normal", "mean": 1.0, "stddev": 0.5}
GOLDEN = [[0.010939452797174454, -0.039992112666368484], [-0.00622439943253994, 0.01723029650747776]]


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20), st.integers(0, 2**63 - 1))
def test_a_row_does_not_depend_on_its_neighbours(ids: list[int], seed: int) -> None:
    for initializer in (UNIFORM, NORMAL):
        together = initial_rows(initializer, seed, np.array(ids, np.int64), 5)
        alone = [initial_rows(initializer, seed, np.array([row], np.int64), 5)[0] for row in ids]
        np.testing.assert_array_equal(together, np.stack(alone))


def test_uniform_and_normal_have_their_moments() -> None:
    ids = np.arange(20_000, dtype=np.int64)
    uniform, normal = initial_rows(UNIFORM, 3, ids, 4), initial_rows(NORMAL, 3, ids, 4)
    assert uniform.dtype == normal.dtype == np.float32
    assert uniform.min() >= -0.05
    assert uniform.max() <= 0.05
    assert abs(uniform.mean()) < 1e-3
    assert abs(uniform.std() - 0.1 / np.sqrt(12)) < 1e-3
    assert abs(normal.mean() - 1.0) < 0.02
    assert abs(normal.std() - 0.5) < 0.02
    assert abs(np.corrcoef(normal[:-1, 0], normal[1:, 0])[0, 1]) < 0.03


def test_seeds_give_unrelated_tables() -> None:
    ids = np.arange(5000, dtype=np.int64)
    first, second = initial_rows(UNIFORM, 0, ids, 2), initial_rows(UNIFORM, 1, ids, 2)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05


def test_fixed_values_keep_checkpoints_of_older_versions_valid() -> None:
    rows = initial_rows(UNIFORM, 7, np.array([0, 1], np.int64), 2)
    np.testing.assert_allclose(rows, GOLDEN, rtol=1e-6)


def test_zeros_and_constant() -> None:
    ids = np.array([4, 9], np.int64)
    np.testing.assert_array_equal(initial_rows({"name": "zeros"}, 0, ids, 3), np.zeros((2, 3)))
    np.testing.assert_array_equal(initial_rows({"name": "constant", "value": 2.5}, 0, ids, 3), np.full((2, 3), 2.5))


@pytest.mark.parametrize(
    "initializer",
    [{"name": "orthogonal"}, {"name": "uniform", "minval": 0}, {"name": "zeros", "value": 1}, {}],
)
def test_what_cannot_be_computed_is_refused(initializer: dict[str, object]) -> None:
    with pytest.raises(BadInputError, match="row initializer"):
        initial_rows(initializer, 0, np.array([0], np.int64), 2)
