"""Who trains a model under strategies AllReduce and Local: by its ``train_step``, and by the updates that this makes.

- No ``train_step`` of the user's, or one that makes one update by ``self.optimizer``: ``replica``, which uses
  ``custom_train_step`` for the latter.
- Other updates, under AllReduce: ``several_updates_train_step``.
- Other updates, or variables that the step writes by itself, under Local: ``whole_train_step``.
"""

from __future__ import annotations

from typing import Any

from edl.api.strategy import MAX_DENSE_GRADIENT
from edl.keras.model_contract import ModelModule, has_own_train_step
from edl.keras.out_of_range_ids import assert_dense_ids_in_range
from edl.keras.replica import ModelReplica
from edl.keras.several_updates_train_step import SeveralUpdatesReplica
from edl.keras.train_step_tracing import UpdateTracer
from edl.keras.trainable_model import AssignValues
from edl.keras.user_code import user_code
from edl.keras.whole_train_step import WholeStepReplica

AnyReplica = ModelReplica | SeveralUpdatesReplica
OnlyReplica = ModelReplica | WholeStepReplica


def build_replica(
    module: ModelModule,
    *,
    seed: int,
    rank_seed: int,
    sample: Any,
    first: tuple[Any, Any, Any] | None,
    max_dense_gradient: int = MAX_DENSE_GRADIENT,
    begin: AssignValues | None = None,
) -> AnyReplica:
    """Build a rank's model: for one update a step, or for the updates that its ``train_step`` makes.

    Args:
        first: features, labels and weights (or None) of a minibatch, from which the updates are found; None: there are
            no records.
        max_dense_gradient: ``strategy.max_dense_gradient``, in bytes.
        begin: as of ``TrainableModel``.

    Raises:
        BadInputError: several ranks cannot train the model; the error names the layer or variable.
        UserCodeError: the user's code raised an exception.
    """
    replica = ModelReplica(
        module, seed=seed, rank_seed=rank_seed, sample=sample, max_dense_gradient=max_dense_gradient, begin=begin
    )
    if first is None or not has_own_train_step(replica.model):
        return replica
    with user_code(module.zoo, "train_step()"):
        tracer = UpdateTracer(replica.model, replica.optimizer)
        changed = tracer.find_only_update(replica.pack_data(*first))
    if changed is not None:
        replica.add_statistics(changed)
        return replica
    return SeveralUpdatesReplica(
        module,
        seed=seed,
        rank_seed=rank_seed,
        sample=sample,
        first=first,
        max_dense_gradient=max_dense_gradient,
        begin=begin,
    )


def build_only_replica(
    module: ModelModule,
    *,
    seed: int,
    sample: Any,
    first: tuple[Any, Any, Any] | None,
    begin: AssignValues | None = None,
) -> OnlyReplica:
    """Build the model of strategy Local: as :func:`build_replica`, for a rank that is never joined by a second one."""
    replica = ModelReplica(module, seed=seed, rank_seed=None, sample=sample, begin=begin)
    if first is None or not has_own_train_step(replica.model):
        return replica
    with user_code(module.zoo, "train_step()"), assert_dense_ids_in_range():
        step = UpdateTracer(replica.model, replica.optimizer).find_applied(replica.pack_data(*first))
    if step.is_plain:
        replica.add_statistics(step.statistics)
        return replica
    # Another model: a tf.function of the user's may keep a trace that applies nothing.
    return WholeStepReplica(module, seed=seed, sample=sample, first=first, updates=step.updates, begin=begin)
