"""Whether the gradients of a step can be averaged over workers: they must be those of a mean over records.

The workers' gradients are weighted by their records and summed. That equals one process with all records if the
gradients of a minibatch are the mean of those of its parts. A loss that is a sum, one that compares records with each
other, and gradients that a ``train_step`` clips or normalizes are not. Losses that layers add are looked at one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.keras.custom_train_step import combination_error
from edl.keras.evaluation_metrics import count_records
from edl.keras.model_contract import call_model, has_own_train_step
from edl.keras.model_loss import can_slice
from edl.keras.out_of_range_ids import MODEL_LOCATION, assert_dense_ids_in_range, explain_dense_id_errors
from edl.keras.replica_choice import AnyReplica
from edl.keras.several_updates_train_step import SeveralUpdatesReplica
from edl.keras.user_code import user_code

_LOG = logging.getLogger(__name__)
_TOLERANCE = 1e-2
"""Of the norm of all gradients: mixed precision rounds to about a thousandth."""
_COMPARED_RECORDS = 16
_SUM_TOLERANCE = 0.1
"""How far the ratio of a sum to a mean may be from 2, because of random layers and of rounding."""


def check_step_gradients(replica: AnyReplica, features: Any, labels: Any, weights: Any = None) -> None:
    """Warn if the gradients of a minibatch are not the mean of those of its halves; its first update counts.

    If the model has statistics, its first half is compared with itself: twice the same records have the same
    statistics. That finds sums, and not all that compares records. What clips the gradients gives the same for both, so
    the second time its features get the labels of the second half, unless statistics depend on labels. A model with
    random layers, and a step that draws random numbers, are not checked, nor is a minibatch with a sparse tensor. The
    model does not change.

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
    whole, parts = _compare_gradients(replica, halves)
    limit = _TOLERANCE * np.linalg.norm(whole)
    if np.linalg.norm(whole - 2 * parts) <= limit < np.linalg.norm(whole - parts):
        raise combination_error(
            replica.model,
            "gives gradients that are sums over the records",
            "differentiate the mean over the records, such as tf.reduce_mean(), or the loss of compute_loss()",
        )
    if np.linalg.norm(whole - parts) <= limit and replica.has_statistics:
        whole, parts = _compare_labels(replica, first, (first[0], *second[1:]))
        limit = _TOLERANCE * np.linalg.norm(whole)
    if np.linalg.norm(whole - parts) <= limit:
        return
    _LOG.warning(
        "the gradients that train_step() gives for a minibatch are not the mean of those of its halves: the step "
        "adds a sum over the records to a mean, compares records, or clips or normalizes gradients. Each worker "
        "computes them for its own minibatch, and they are averaged"
    )


def check_added_losses(replica: AnyReplica, features: Any) -> None:
    """Refuse a loss that a layer adds (``add_loss``) and that is a sum over records.

    Each worker would add the sum of its own records, and the mean over workers would make it too small. The forward
    pass runs for a few records, once together and once in halves. Random layers make values differ, but not by a
    factor of two. The model does not change.

    Raises:
        BadInputError: the value for some records is the sum of those for their halves, or an id is outside of an
            embedding.
        UserCodeError: the model raised an exception.
    """
    half = min(_COMPARED_RECORDS, int(count_records(features)) // 2)
    if not half or any(not can_slice(leaf) for leaf in tf.nest.flatten(features)):
        return
    state = replica.pack_state()
    # No step was taken before, so an error of the model or of a record may show here first.
    with (
        user_code(replica.module.zoo, "the model"),
        explain_dense_id_errors(replica.model),
        assert_dense_ids_in_range(),
    ):
        both, *halves = (
            _read_added_losses(replica.model, tf.nest.map_structure(itemgetter(part), features))
            for part in (slice(0, 2 * half), slice(0, half), slice(half, 2 * half))
        )
    replica.unpack_state(state)
    for whole, first, second in zip(both, *halves, strict=True):
        mean = (first + second) / 2
        if mean and abs(whole / mean - 2) < _SUM_TOLERANCE:
            raise BadInputError(
                f"a layer adds a loss that is a sum over the records: {whole:.4g} for {2 * half} records, and "
                f"{first:.4g} and {second:.4g} for its halves. Averaged over workers, it would be too small",
                where=MODEL_LOCATION,
                hint="add a mean, such as add_loss(tf.reduce_mean(...)), with a factor if it shall count for more",
            )


def _read_added_losses(model: Any, features: Any) -> list[float]:
    call_model(model, features, training=True)
    return [float(tf.convert_to_tensor(loss)) for loss in model.losses]


def _cut(minibatch: Sequence[Any], part: slice) -> tuple[Any, ...]:
    """A part of features, labels and weights, or None."""
    return tuple(None if each is None else tf.nest.map_structure(itemgetter(part), each) for each in minibatch)


def _compare_gradients(replica: AnyReplica, halves: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The sum of the gradients of all records as one minibatch, and as two; zeros if they tell nothing."""
    both = tf.nest.map_structure(lambda *parts: None if parts[0] is None else tf.concat(list(parts), 0), *halves)
    whole, again, parts = (_sum_buffers(replica, each)[0] for each in ([both], [both], halves))
    limit = _TOLERANCE * np.linalg.norm(whole)
    # Not finite, or another one in each call.
    if not np.isfinite(limit) or not np.isfinite(parts).all() or np.linalg.norm(whole - again) > limit:
        return np.zeros_like(whole), np.zeros_like(whole)
    return whole, parts


def _compare_labels(replica: AnyReplica, first: Any, second: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same for the same features with two kinds of labels, if the statistics are those of the features alone."""
    state = replica.pack_state()
    try:
        statistics, others = (_sum_buffers(replica, [each])[1] for each in (first, second))
        if np.allclose(statistics, others, rtol=1e-3, atol=1e-6):
            return _compare_gradients(replica, [first, second])
    except BadInputError:
        # Labels of other records need not fit: a sequence of labels may be longer than that of the features.
        replica.unpack_state(state)
    return np.zeros(1), np.zeros(1)


def _sum_buffers(replica: AnyReplica, minibatches: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The sums of the gradients of minibatches, as several ranks would sum them, and of what is summed beside them."""
    for number, minibatch in enumerate(minibatches):
        replica.compute(*minibatch, adds=number > 0)
    update = replica.updates[0] if isinstance(replica, SeveralUpdatesReplica) else replica
    pairs = list(zip(update.buffers, update.gradient_counts, strict=True))
    gradients = [buffer[:count].astype(np.float64) for buffer, count in pairs]
    others = [buffer[count:].astype(np.float64) for buffer, count in pairs]
    replica.restore_statistics()
    return np.concatenate(gradients), np.concatenate(others)
