"""Whether the gradients of a ``train_step`` can be averaged over workers: they must be those of a mean over records.

The workers' gradients are weighted by their records and summed. That equals one process with all records if the
gradients of a minibatch are the mean of those of its parts. A loss that is a sum, one that compares records with each
other, and gradients that the step clips or normalizes are not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.keras.custom_train_step import train_step_error
from edl.keras.evaluation_metrics import count_records
from edl.keras.model_contract import has_own_train_step
from edl.keras.model_loss import can_slice
from edl.keras.replica import ModelReplica
from edl.keras.several_updates import SeveralUpdatesReplica

_LOG = logging.getLogger(__name__)
_TOLERANCE = 1e-2
"""Of the norm of all gradients: mixed precision rounds to about a thousandth."""


def check_step_gradients(
    replica: ModelReplica | SeveralUpdatesReplica, features: Any, labels: Any, weights: Any = None
) -> None:
    """Warn if the gradients of a minibatch are not the mean of those of its halves; its first update counts.

    If the model has statistics, its first half is compared with itself: twice the same records have the same
    statistics. That finds sums, and not all that compares records. A model with random layers, and a step that draws
    random numbers, are not checked, nor is a minibatch with a sparse tensor. The model does not change.

    Raises:
        BadInputError: the gradients are those of a sum over records.
    """
    everything = (features, labels, weights)
    if not has_own_train_step(replica.model) or replica.is_random:
        return
    if any(not can_slice(leaf) for leaf in tf.nest.flatten(everything)):
        return
    half = int(count_records(features)) // 2
    if not half:
        return
    first, second = (_cut(everything, part) for part in (slice(0, half), slice(half, 2 * half)))
    halves = [first, first if replica.has_statistics else second]
    both = tf.nest.map_structure(lambda *parts: None if parts[0] is None else tf.concat(list(parts), 0), *halves)
    whole, again = (_sum_gradients(replica, [both]) for _ in range(2))
    parts = _sum_gradients(replica, halves)
    limit = _TOLERANCE * np.linalg.norm(whole)
    if not np.isfinite(limit) or np.linalg.norm(whole - again) > limit or np.linalg.norm(whole - parts) <= limit:
        return
    if np.linalg.norm(whole - 2 * parts) <= limit:
        raise train_step_error(
            replica.model,
            "gives gradients that are sums over the records",
            "differentiate the mean over the records, such as tf.reduce_mean(), or the loss of compute_loss()",
        )
    _LOG.warning(
        "the gradients that train_step() gives for a minibatch are not the mean of those of its halves: the step "
        "compares records, or clips or normalizes gradients. Each worker computes them for its own minibatch, and they "
        "are averaged"
    )


def _cut(minibatch: Sequence[Any], part: slice) -> tuple[Any, ...]:
    """A part of features, labels and weights, or None."""
    return tuple(None if each is None else tf.nest.map_structure(itemgetter(part), each) for each in minibatch)


def _sum_gradients(replica: ModelReplica | SeveralUpdatesReplica, minibatches: Sequence[Any]) -> NDArray[Any]:
    """The sum of the gradients of minibatches, as several ranks would sum them; in float64."""
    for number, minibatch in enumerate(minibatches):
        replica.compute(*minibatch, adds=number > 0)
    update = replica.updates[0] if isinstance(replica, SeveralUpdatesReplica) else replica
    pairs = zip(update.buffers, update.gradient_counts, strict=True)
    found = np.concatenate([buffer[:count].astype(np.float64) for buffer, count in pairs])
    replica.restore_statistics()
    return found
