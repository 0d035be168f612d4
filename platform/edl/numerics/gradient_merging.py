"""Merges the gradients of several minibatches into the gradient of one larger minibatch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edl.numerics.array_types import Floats, RowBatch
from edl.numerics.parameter_store import PushGradients


def merge_gradients(parts: Sequence[PushGradients], learning_rate: float) -> PushGradients | None:
    """The mean gradient over the records of all parts; None if there is nothing to apply.

    A loss is a mean over the records of its minibatch, and ``weight`` says how many those are. So the sum of
    ``weight / sum of weights`` times each gradient is the gradient of all records as one minibatch. Statistics move by
    the mean of what the parts move them by. One part is passed on as it is, to the bit.

    Args:
        parts: in an order that does not depend on which came first, since sums in float32 do.
        learning_rate: of the update.
    """
    if not parts:
        return None
    if len(parts) == 1:
        single = parts[0]
        return PushGradients(single.flat, single.rows, learning_rate, single.record_weight)
    factors = _record_weights(parts)
    slab = parts[0].flat * factors[0]
    scratch = np.empty_like(slab)
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        slab += np.multiply(part.flat, factor, out=scratch)
    tables = sorted({table for part in parts for table in part.rows})
    rows = {table: _merge_rows(table, parts, factors) for table in tables}
    return PushGradients(slab, rows, learning_rate, sum(part.record_weight for part in parts) / len(parts))


def _record_weights(parts: Sequence[PushGradients]) -> list[np.float32]:
    total = sum(part.record_weight for part in parts)
    if not total > 0:
        return [np.float32(1 / len(parts))] * len(parts)
    return [np.float32(part.record_weight / total) for part in parts]


def _merge_rows(table: str, parts: Sequence[PushGradients], factors: Sequence[np.float32]) -> RowBatch:
    """Concatenate the rows: the table sums duplicate ids."""
    ids, values = [], list[Floats]()
    for part, factor in zip(parts, factors, strict=True):
        if table in part.rows:
            ids.append(part.rows[table].ids)
            values.append(part.rows[table].values * factor)
    return RowBatch(np.concatenate(ids), np.concatenate(values))
