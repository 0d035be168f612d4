"""``edl.layers.Embedding`` in a model of Keras 2."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from edl.layers.embedding import Embedding


def make_keras2_embedding(layer: Embedding) -> Any:
    """A layer of Keras 2 that calls a layer of EDL. EDL trains the table of that layer, also on parameter servers.

    Args:
        layer: not built yet.
    """
    return _layer_class()(layer)


@functools.cache
def _layer_class() -> Any:
    tf_keras: Any = importlib.import_module("tf_keras")

    class Keras2Embedding(tf_keras.layers.Layer):  # type: ignore[misc]
        """A layer without variables of its own."""

        def __init__(self, layer: Embedding) -> None:
            super().__init__(name=layer.name)
            # Keras 2 would take its variables, which are of Keras 3, for its own.
            object.__setattr__(self, "edl_layer", layer)

        def call(self, inputs: Any) -> Any:
            return self.edl_layer(inputs)

        def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
            return self.edl_layer.compute_mask(inputs, mask)

        def get_config(self) -> Any:
            raise NotImplementedError("a model of Keras 2 with edl.layers.Embedding can only be a SavedModel")

    return Keras2Embedding
