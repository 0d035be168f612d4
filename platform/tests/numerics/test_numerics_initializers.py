"""Initial rows depend on seed and id only, and have the asked distribution."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.numerics.initializers import initial_rows, variance_scaling

UNIFORM = {"name": "uniform", "minval": -0.05, "maxval": 0.05}
NORMAL = {"name": "normal", "mean": 1.0, "stddev": 0.5}
TRUNCATED = {"name": "truncated_normal", "mean": 1.0, "stddev": 0.5}
DIGEST = "c403e38cad6d184259d10017b8435a59b481d6017e0f3f73a2f40ca10b3d7582"
GOLDEN = [[0.010939452797174454, -0.039992112666368484], [-0.00622439943253994, 0.01723029650747776]]


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20), st.integers(0, 2**63 - 1))
def test_a_row_does_not_depend_on_its_neighbours(ids: list[int], seed: int) -> None:
    for initializer in (UNIFORM, NORMAL, TRUNCATED):
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


def test_the_truncated_normal_is_the_normal_without_what_is_far() -> None:
    """Its deviation is known: Keras divides by it; and where the first draw is near, it is the normal's."""
    ids = np.arange(50_000, dtype=np.int64)
    normal, truncated = initial_rows(NORMAL, 3, ids, 4), initial_rows(TRUNCATED, 3, ids, 4)
    near = np.abs(normal - 1.0) <= 1.0
    assert np.abs(truncated - 1.0).max() <= 1.0
    np.testing.assert_array_equal(truncated[near], normal[near])
    assert abs(truncated.mean() - 1.0) < 0.005
    assert abs(truncated.std() / 0.5 - 0.87962566103423978) < 0.005
    shares, _ = np.histogram((truncated[~near] - 1.0) / 0.5, bins=[-2, -1, 0, 1, 2], density=True)
    below, within = (math.erf(z / math.sqrt(2)) for z in (1, 2))
    np.testing.assert_allclose(shares[1:3].sum(), below / within, atol=0.02)
    assert abs(shares[0] - shares[3]) < 0.02


def test_the_bits_of_every_distribution_are_fixed() -> None:
    """What was trained on one machine, or with an earlier version, goes on with the same initial rows."""
    ids = np.arange(5000, dtype=np.int64)
    rows = [initial_rows(initializer, 9, ids, 6) for initializer in (UNIFORM, NORMAL, TRUNCATED)]
    assert hashlib.sha256(np.stack(rows).astype("<f4").tobytes()).hexdigest() == DIGEST


@pytest.mark.tensorflow
@pytest.mark.parametrize("shape", [(4000, 8), (6, 4000)])
@pytest.mark.parametrize(
    "name",
    ["GlorotUniform", "GlorotNormal", "HeUniform", "HeNormal", "LecunUniform", "LecunNormal", "VarianceScaling"],
)
def test_variance_scaling_has_the_moments_and_bounds_of_keras(name: str, shape: tuple[int, int]) -> None:
    import keras

    other = {"scale": 0.7, "mode": "fan_out", "distribution": "untruncated_normal"}
    theirs = getattr(keras.initializers, name)(seed=1, **(other if name == "VarianceScaling" else {}))
    ours = variance_scaling(shape, scale=theirs.scale, mode=theirs.mode, distribution=theirs.distribution)
    expected = np.asarray(theirs(shape))
    rows = initial_rows(ours, 5, np.arange(shape[0], dtype=np.int64), shape[1])
    assert abs(rows.mean()) < 0.03 * expected.std()
    assert rows.std() == pytest.approx(expected.std(), rel=0.02)
    if theirs.distribution != "untruncated_normal":
        assert np.abs(rows).max() == pytest.approx(np.abs(expected).max(), rel=0.02)


@given(st.integers(1, 10**9), st.integers(1, 4096), st.floats(1e-6, 1e6))
def test_variance_scaling_counts_rows_as_inputs(rows: int, dim: int, scale: float) -> None:
    def deviation(**given: object) -> float:
        return variance_scaling((rows, dim), scale=scale, distribution="untruncated_normal", **given)["stddev"]

    assert deviation(mode="fan_in") == pytest.approx(math.sqrt(scale / rows))
    assert deviation(mode="fan_out") == pytest.approx(math.sqrt(scale / dim))
    assert deviation(mode="fan_avg") == pytest.approx(math.sqrt(2 * scale / (rows + dim)))
    assert deviation(mode="fan_in", input_axes=[1], output_axes=[0]) == deviation(mode="fan_out")
    assert deviation(mode="fan_out", input_axes=[0, 1], output_axes=[]) == pytest.approx(math.sqrt(scale))


def test_a_distribution_that_keras_has_not_is_refused() -> None:
    with pytest.raises(BadInputError, match="'cauchy'"):
        variance_scaling((2, 2), scale=1.0, mode="fan_in", distribution="cauchy")


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
