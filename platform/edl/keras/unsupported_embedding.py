"""The refusal of an Embedding that is too large to stay dense and cannot be served: which one, why, what to do."""

from __future__ import annotations

import math
from typing import Any

from edl.api.errors import BadInputError


class UnsupportedEmbeddingError(BadInputError):
    """See the module's docstring."""

    _keras_call_info_injected = True
    """Keras gives an error a text of its own at each layer that it passes, unless it carries this mark."""


def unsupported_embedding_error(layer: Any, reason: str, remedy: str | None = None) -> UnsupportedEmbeddingError:
    """The error for an Embedding.

    Args:
        layer: a ``keras.layers.Embedding``.
        reason: a clause that follows a colon.
        remedy: what to do, where a dense table is refused or wrong for the same reason.
    """
    return UnsupportedEmbeddingError(
        f"the Embedding '{layer.path}' ({describe_embedding(layer)}) cannot be served by the parameter servers:"
        f" {reason}",
        hint=remedy or _dense_table_hint(layer),
    )


def _dense_table_hint(layer: Any) -> str | None:
    size = table_bytes(layer)
    remedy = "change that, or keep the table dense in every worker: ps.embedding_threshold above "
    return f"{remedy}{size:.0f}" if math.isfinite(size) else None


def table_bytes(layer: Any) -> float:
    """Size of an Embedding's table as float32; infinite if its ids have no bound."""
    return math.inf if layer.input_dim is None else 4 * layer.input_dim * layer.output_dim


def describe_embedding(layer: Any) -> str:
    """Rows and columns for people."""
    return f"{'any id' if layer.input_dim is None else layer.input_dim} x {layer.output_dim}"
