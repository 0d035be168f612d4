"""What of Keras' initializers the parameter servers compute: the same distribution, or refused."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import keras  # noqa: E402

from edl.keras.ps_embedding import to_row_initializer  # noqa: E402
from edl.numerics.initializers import initial_rows  # noqa: E402

CLASSES = {
    name: kind
    for name, kind in vars(keras.initializers).items()
    if inspect.isclass(kind) and issubclass(kind, keras.initializers.Initializer) and name == kind.__name__
}
REFUSED = {"Initializer", "Identity", "Orthogonal", "STFT"}
SHAPE = (3000, 12)


def values(initializer) -> np.ndarray:
    initializer.seed = 7
    return np.asarray(initializer(SHAPE))


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - REFUSED))
def test_rows_have_the_distribution_of_keras(name):
    initializer = CLASSES[name]()
    expected = values(initializer)
    computed = to_row_initializer(initializer, SHAPE)
    rows = initial_rows(computed, 3, np.arange(SHAPE[0]), SHAPE[1])
    deviation = expected.std()
    assert abs(rows.mean() - expected.mean()) <= 0.03 * deviation
    assert rows.std() == pytest.approx(deviation, rel=0.02)
    at = np.linspace(0.02, 0.98, 25)
    np.testing.assert_allclose(np.quantile(rows, at), np.quantile(expected, at), atol=0.06 * deviation)


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.TruncatedNormal(mean=0.3, stddev=0.2),
        keras.initializers.VarianceScaling(0.4, mode="fan_avg", distribution="uniform"),
        keras.initializers.VarianceScaling(2.0, input_axes=[1], output_axes=[0]),
        keras.initializers.VarianceScaling(distribution="untruncated_normal", mode="fan_out"),
    ],
    ids=lambda initializer: str(initializer.get_config()),
)
def test_arguments_are_honoured(initializer):
    expected = values(initializer)
    rows = initial_rows(to_row_initializer(initializer, SHAPE), 3, np.arange(SHAPE[0]), SHAPE[1])
    assert rows.mean() == pytest.approx(expected.mean(), abs=float(0.03 * expected.std()))
    assert rows.std() == pytest.approx(expected.std(), rel=0.02)


@pytest.mark.parametrize("name", ["Orthogonal", "Identity"])
def test_what_needs_the_whole_table_is_none(name):
    assert to_row_initializer(CLASSES[name](), SHAPE) is None


def test_a_vocabulary_without_a_bound_has_no_fan():
    assert to_row_initializer(keras.initializers.GlorotUniform(), (0, 8)) is None
    assert to_row_initializer(keras.initializers.TruncatedNormal(), (0, 8)) is not None


def test_a_subclass_of_an_initializer_is_none():
    class UserInitializer(keras.initializers.GlorotUniform):
        pass

    assert to_row_initializer(UserInitializer(), SHAPE) is None
