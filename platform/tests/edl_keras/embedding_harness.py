"""A model with served tables: rows as the parameter servers would give them, and plain Keras beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.keras import model_export
from edl.keras.model_contract import ModelModule
from edl.keras.network import KerasNetwork
from edl.numerics.initializers import initial_rows
from edl.numerics.parameter_store import RowBatch

SERVE_ALL = 1
"""A threshold that every table reaches."""


def squared(labels: Any, predictions: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.cast(labels, tf.float32) - predictions))


def module_of(model: Any, loss: Any = squared) -> ModelModule:
    """A module of functions, without a file."""
    return ModelModule(
        zoo=Path(__file__).parent,
        make_model=model,
        loss=loss,
        optimizer=lambda: keras.optimizers.SGD(0.1),
        eval_metrics_fn=dict,
        feed=lambda dataset, mode, metadata: dataset,
    )


def network_of(model: Any, sample: Any = None, threshold: int = SERVE_ALL) -> KerasNetwork:
    return KerasNetwork.build(
        module_of(model),
        seed=7,
        embedding_threshold=threshold,
        ps_of_variable=lambda name: 0,
        ps_count=1,
        sample=sample,
    )


def rows_for(network: KerasNetwork, features: Any) -> dict[str, RowBatch]:
    """What parameter servers that nobody pushed to would answer."""
    wanted = network.unique_ids(features)
    return {
        t.name: RowBatch(wanted[t.name], initial_rows(t.initializer, t.seed, np.asarray(wanted[t.name]), t.dim))
        for t in network.tables
    }


def plain_of(network: KerasNetwork, rows: Mapping[str, RowBatch] = MappingProxyType({})) -> Any:
    """The same model and values in plain Keras; ``rows`` are those that were trained."""
    stored = {table.name: [] for table in network.tables} | {name: [tuple(some)] for name, some in rows.items()}
    return model_export.build_export_model(network, network.initial_values(), stored)


def write_export(network: KerasNetwork, rows: Mapping[str, RowBatch], folder: Path) -> None:
    """``model.keras`` and ``saved_model`` in a folder."""
    stored = {table.name: [] for table in network.tables} | {name: [tuple(some)] for name, some in rows.items()}
    model_export.export_model(network, network.initial_values(), stored, folder / "model.keras", folder / "saved_model")


def check_step(network: KerasNetwork, features: Any, labels: Any) -> None:
    """One step gives the loss, predictions and gradients of plain Keras, of rows and of dense variables."""
    rows = rows_for(network, features)
    plain = plain_of(network, rows)
    step = network.train(network.initial_values(), rows, features, labels)
    with tf.GradientTape() as tape:
        loss = tf.add_n([squared(labels, plain(features, training=True)), *plain.losses])
    plain_gradients = tape.gradient(loss, [v.value for v in plain.trainable_weights])
    expected = {
        v.path: np.zeros(v.shape) if g is None else tf.convert_to_tensor(g).numpy()
        for v, g in zip(plain.trainable_weights, plain_gradients, strict=True)
    }
    np.testing.assert_allclose(step.loss, float(loss), rtol=1e-5)
    for name, gradient in gradients(network, step, rows).items():
        np.testing.assert_allclose(gradient, expected.pop(name), rtol=1e-4, atol=1e-7, err_msg=name)
    assert not expected, "variables that nothing trains"
    outputs = network.predict(network.initial_values(), rows, features)
    np.testing.assert_allclose(outputs, plain(features, training=False), rtol=1e-5, atol=1e-6)


def gradients(network: KerasNetwork, step: Any, rows: Mapping[str, RowBatch]) -> dict[str, Any]:
    """By variable, the whole gradient: of rows that were not pulled it is zero."""
    full_gradients = {
        spec.name: step.flat_gradients[place].reshape(spec.shape)
        for spec, place in zip(network.variables, network.offsets, strict=True)
        if not spec.statistic
    }
    for table in network.tables:
        ids = np.asarray(rows[table.name].ids)
        places = ids if table.rows else 1 + np.searchsorted(np.sort(ids), ids)
        full_gradients[table.name] = np.zeros((table.rows or len(ids) + 1, table.dim), np.float32)
        np.add.at(full_gradients[table.name], places, step.row_gradients[table.name])
    return full_gradients
