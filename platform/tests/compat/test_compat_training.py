"""Callbacks and the layer Embedding: under Keras alone, and as a job's model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402

import edl.layers  # noqa: E402
from edl.api.errors import BadInputError  # noqa: E402
from elasticdl.python.elasticdl.callbacks import (  # noqa: E402
    LearningRateScheduler,
    MaxStepsStopping,
    SavedModelExporter,
)
from elasticdl.python.elasticdl.layers.embedding import Embedding  # noqa: E402


def fit(callbacks: list[Any], *, epochs: int = 1) -> Any:
    """Six steps an epoch; returns the model."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse", run_eagerly=True)
    ones = np.ones((6, 1), np.float32)
    model.fit(ones, ones, batch_size=1, epochs=epochs, verbose=0, callbacks=callbacks)
    return model


def test_the_rate_follows_the_number_of_updates_over_epochs() -> None:
    versions = []

    def schedule(model_version: int) -> float:
        versions.append(model_version)
        return 0.1 if model_version < 8 else 0.01

    model = fit([LearningRateScheduler(schedule)], epochs=2)
    assert versions == list(range(12))
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)


def test_training_stops_after_the_steps() -> None:
    assert int(fit([MaxStepsStopping(max_steps=4)]).optimizer.iterations) == 4


def test_the_exporter_is_refused_with_what_to_write() -> None:
    with pytest.raises(BadInputError, match=r"export\.path") as refused:
        SavedModelExporter(None, None, None)
    assert (refused.value.where or "").startswith(f"{__file__}:")


def test_the_embedding_is_that_of_edl() -> None:
    layer = Embedding(output_dim=3, input_dim=5, mask_zero=True, input_length=2, name="words")
    assert type(layer) is edl.layers.Embedding
    assert (layer.input_dim, layer.output_dim, layer.mask_zero, layer.name) == (5, 3, True, "words")
    assert layer(np.array([[1, 0]])).shape == (1, 2, 3)


def test_an_embedding_without_a_number_of_ids_takes_every_id() -> None:
    for input_dim in (None, 0):
        assert Embedding(3, input_dim, "uniform", combiner="sum").input_dim is None


def test_an_unknown_argument_of_the_embedding_is_refused() -> None:
    with pytest.raises((TypeError, ValueError), match="embedding_service_endpoint"):
        Embedding(3, 5, embedding_service_endpoint="redis")
