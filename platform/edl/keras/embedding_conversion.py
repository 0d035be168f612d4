"""Large Embeddings without their tables, while the user's model is made and built.

A served table may be larger than the memory of a worker, and a worker never reads it. So the large Embeddings that are
built in here become served layers before Keras would make their variables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from edl.keras.ps_embedding import convert_to_ps_embedding
from edl.keras.unsupported_embedding import table_bytes


@contextmanager
def converting_large_embeddings(threshold: float, seed: int) -> Iterator[None]:
    """Change how Embeddings are built.

    Args:
        threshold: bytes of a table from which on it is served.
        seed: the job's; each table's seed is made of it and the table's name.
    """
    build = keras.layers.Embedding.build

    @functools.wraps(build)
    def build_lean(layer: Any, input_shape: Any = None) -> None:
        if table_bytes(layer) < threshold:
            build(layer, input_shape)
        elif not layer.built:
            convert_to_ps_embedding(layer, seed)

    keras.layers.Embedding.build = build_lean
    try:
        yield
    finally:
        keras.layers.Embedding.build = build
