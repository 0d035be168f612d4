"""``adapt_from`` gives a layer what Keras' own ``adapt`` gives it, within the error that the statistics state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402

from edl.data.table_statistics import TableStatistics  # noqa: E402
from edl.layers import adapt_from  # noqa: E402

ROWS = 30_000


def summarize(columns: dict[str, Any], top: int = 1000) -> dict[str, Any]:
    statistics = TableStatistics()
    table = pa.table(columns)
    for start in range(0, len(table), 7_000):
        statistics.add(table.slice(start, 7_000))
    return json.loads(json.dumps(statistics.to_json(top)))


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {
        "age": random.gamma(4, 10, ROWS),
        "km": random.normal(-3, 20, ROWS),
        "city": random.choice(["Ulm", "Bonn", "Köln", "Jena", ""], ROWS, p=[0.4, 0.3, 0.2, 0.05, 0.05]).tolist(),
        "id": random.zipf(1.5, ROWS) % 500,
    }


@pytest.fixture(scope="module")
def statistics(columns: dict[str, Any]) -> dict[str, Any]:
    return summarize(columns)


def test_normalization_of_columns(columns: dict[str, Any], statistics: dict[str, Any]) -> None:
    values = np.stack([columns["age"], columns["km"]], 1).astype(np.float32)
    own = keras.layers.Normalization()
    own.adapt(values)
    layer = adapt_from(statistics, ["age", "km"], keras.layers.Normalization())
    np.testing.assert_allclose(layer(values), own(values), rtol=1e-3, atol=1e-4)


def test_normalization_without_an_axis(columns: dict[str, Any], statistics: dict[str, Any]) -> None:
    values = columns["age"].astype(np.float32)
    own = keras.layers.Normalization(axis=None)
    own.adapt(values)
    layer = adapt_from(statistics, "age", keras.layers.Normalization(axis=None))
    np.testing.assert_allclose(layer(values), own(values), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"max_tokens": 3}, {"mask_token": ""}, {"num_oov_indices": 2}])
def test_lookup_of_strings(columns: dict[str, Any], statistics: dict[str, Any], options: dict[str, Any]) -> None:
    own = keras.layers.StringLookup(**options)
    own.adapt(np.array(columns["city"]))
    layer = adapt_from(statistics, "city", keras.layers.StringLookup(**options))
    assert layer.get_vocabulary() == own.get_vocabulary()
    cities = np.array(["Ulm", "Jena", "Rom", ""])
    np.testing.assert_array_equal(layer(cities), own(cities))


def test_equally_frequent_strings_have_the_order_of_keras() -> None:
    words = ["b", "a", "C", "é", "a", "b", "z"]
    own = keras.layers.StringLookup()
    own.adapt(np.array(words))
    assert (
        adapt_from(summarize({"w": words}), "w", keras.layers.StringLookup()).get_vocabulary() == own.get_vocabulary()
    )


def test_lookup_of_integers_has_the_same_values(columns: dict[str, Any], statistics: dict[str, Any]) -> None:
    own = keras.layers.IntegerLookup()
    own.adapt(columns["id"])
    layer = adapt_from(statistics, "id", keras.layers.IntegerLookup())
    assert set(layer.get_vocabulary()) == set(own.get_vocabulary())
    assert layer.get_vocabulary()[:6] == own.get_vocabulary()[:6]


@pytest.mark.parametrize("bins", [4, 7, 100])
def test_boundaries_of_bins_have_the_ranks_that_they_should(
    columns: dict[str, Any], statistics: dict[str, Any], bins: int
) -> None:
    own = keras.layers.Discretization(num_bins=bins, epsilon=0.001)
    own.adapt(columns["age"].astype(np.float32))
    layer = adapt_from(statistics, "age", keras.layers.Discretization(num_bins=bins))
    assert len(layer.bin_boundaries) == len(own.bin_boundaries) == bins - 1
    ordered = np.sort(columns["age"])
    allowed = statistics["columns"][0]["quantile_error"] + 1 / 2000 + 2 / ROWS
    ranks, of_keras = (np.searchsorted(ordered, each.bin_boundaries) / ROWS for each in (layer, own))
    assert np.abs(ranks - np.arange(1, bins) / bins).max() <= allowed
    assert np.abs(ranks - of_keras).max() <= allowed + 0.01


def test_the_result_is_read_from_a_file_and_the_layer_is_saved(
    tmp_path: Path, columns: dict[str, Any], statistics: dict[str, Any]
) -> None:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(statistics))
    layer = adapt_from(path, "city", keras.layers.StringLookup())
    again = keras.layers.StringLookup.from_config(layer.get_config())
    assert again.get_vocabulary() == layer.get_vocabulary()


@pytest.mark.parametrize(
    ("column", "make", "named"),
    [
        ("size", lambda: keras.layers.Normalization(), "no column size"),
        ("city", lambda: keras.layers.Normalization(), "needs numbers"),
        ("age", lambda: keras.layers.StringLookup(), "does not look up"),
        ("age", lambda: keras.layers.Discretization(bin_boundaries=[1.0]), "num_bins"),
        (["age", "km"], lambda: keras.layers.Discretization(num_bins=3), "one column"),
        ("age", lambda: keras.layers.Dense(2), "does not know Dense"),
    ],
)
def test_what_cannot_be_adapted_is_named(statistics: dict[str, Any], column: Any, make: Any, named: str) -> None:
    layer = make()
    with pytest.raises(ValueError, match=named):
        adapt_from(statistics, column, layer)


def test_a_vocabulary_that_is_not_listed_whole_is_refused(columns: dict[str, Any]) -> None:
    statistics = summarize(columns, top=2)
    with pytest.raises(ValueError, match="--top"):
        adapt_from(statistics, "city", keras.layers.StringLookup())
    layer = adapt_from(statistics, "city", keras.layers.StringLookup(max_tokens=3))
    assert layer.get_vocabulary() == ["[UNK]", "Ulm", "Bonn"]


def test_statistics_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="edl data stats"):
        adapt_from({"version": 99, "columns": []}, "a", keras.layers.Normalization())


@pytest.mark.parametrize("cut", ["b" * 300, "é" * 200, "a" + "é" * 200], ids=["ascii", "two_bytes", "half_a_character"])
def test_texts_that_statistics_have_cut_are_no_vocabulary(cut: str) -> None:
    # Looked up as they are cut, no text of the data would be found.
    statistics = summarize({"review": [cut, "good", "good"]})
    with pytest.raises(ValueError, match=r"review has texts of more than 25. bytes"):
        adapt_from(statistics, "review", keras.layers.StringLookup())
    layer = adapt_from(statistics, "review", keras.layers.StringLookup(max_tokens=2))
    assert layer.get_vocabulary() == ["[UNK]", "good"]
