"""One rank's model: gradients and statistics as buffers that the ranks of strategy AllReduce sum.

This module has no network. A step has three parts:

1. ``compute`` runs the model and writes this rank's addend to the buffers; a rank without records calls ``clear``.
2. The caller sums each buffer over all ranks.
3. ``apply`` divides the sums, updates the statistics and runs the Keras optimizer once. All ranks apply the same sums
   to the same state, so their states stay equal to the bit.

``all_reduce_update`` says what is in the buffers, and how statistics are combined. ``replica_choice`` says which models
are trained by this module. Under strategy Local there is never a second rank: the replica has no buffers,
``local_strategy_update`` applies its gradients, and what several ranks cannot combine is trained.

**Weights.** See :meth:`edl.keras.model_loss.ModelLoss.minibatch_weight`. The result is that of one process on the union
of the minibatches, except for BatchNormalization, random layers, losses that compare records with each other, and
several outputs with different masks, which a warning names: Keras divides each one's loss by its own number of unmasked
values, and EDL weighs their sum by records.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.api.strategy import MAX_DENSE_GRADIENT
from edl.core.short_list import format_short_list
from edl.keras.all_reduce_update import regularized_variables
from edl.keras.custom_train_step import CustomTrainStep
from edl.keras.evaluation_metrics import count_records
from edl.keras.keras2_models import assigned_handles
from edl.keras.model_building import FLOAT_TYPES, derive_feature_spec, find_users_statistics, is_seed_state
from edl.keras.model_contract import ModelModule, call_model, has_own_train_step
from edl.keras.model_loss import LossReduction
from edl.keras.out_of_range_ids import MODEL_LOCATION, assert_dense_ids_in_range, explain_dense_id_errors
from edl.keras.replica_state import ReplicaState, ReplicaStep
from edl.keras.traced_function import TracedFunction
from edl.keras.trainable_model import AssignValues
from edl.keras.user_code import user_code
from edl.keras.written_variables import find_written_variables

Array = NDArray[Any]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _KeptAddend:
    """What was written to the buffers for a minibatch.

    Attributes:
        gradients: of each trained variable.
        tails: the ends of the buffers.
        weight: of the minibatch.
        seed_states: the states of random generators after it, once they were put back; empty before that.
    """

    gradients: Sequence[Any]
    tails: Sequence[Any]
    weight: float
    seed_states: Sequence[Any] = ()


class ModelReplica(ReplicaState):
    """A rank's model, optimizer and metrics; supports every Keras optimizer. Not thread-safe.

    After an exception of :meth:`compute` or :meth:`apply` the state is undefined.

    Args:
        module: the user's model module.
        seed: the seed of the initial values, equal on all ranks.
        rank_seed: a number of this rank. With ``f = splitmix64``, the state of random layer number *n* starts from
            ``f(f(f(seed) ^ rank_seed) ^ n)``, so Dropout differs between the ranks. None: this is the only rank
            (strategy Local). Then it starts as ``seed`` makes it, and is part of the state.
        sample: the features of a minibatch.
        max_dense_gradient: ``strategy.max_dense_gradient``, in bytes.
        begin: as of ``TrainableModel``.

    Raises:
        BadInputError: several ranks cannot train the model; the error names the layer or variable.
        UserCodeError: the user's code raised an exception.
    """

    def __init__(
        self,
        module: ModelModule,
        *,
        seed: int,
        rank_seed: int | None,
        sample: Any,
        max_dense_gradient: int = MAX_DENSE_GRADIENT,
        begin: AssignValues | None = None,
    ) -> None:
        super().__init__(module, seed=seed, rank_seed=rank_seed, sample=sample, begin=begin)
        self._max_dense_gradient = max_dense_gradient
        self._use_statistics(v for v in self._find_changed_variables(sample) if not is_seed_state(v))
        self._reduction: LossReduction | None = None
        if not self._is_only_rank:
            self._warn_of_users_statistics()
            self._reduction = self._objective.declared_reduction
            self._objective.warn_of_compared_records()
        self._step_uses_loss = False
        self._kept: _KeptAddend | None = None
        self._compute_by_reduction: dict[LossReduction | None, TracedFunction] = {}
        self._seed_randomness(seed, rank_seed)

    def _warn_of_users_statistics(self) -> None:
        if paths := find_users_statistics(self.model, self._statistics):
            _LOG.warning(
                "a forward pass changes %s: each worker computes with the value of its own minibatch, and the step's "
                "result is the mean of these, weighted by records; this suits a moving mean, and not a maximum",
                format_short_list(paths),
            )

    def _use_statistics(self, statistics: Iterable[Any]) -> None:
        """Prepare for steps that change these variables besides the trained ones."""
        self._statistics = tuple(statistics)
        self._custom_step: CustomTrainStep | None = None
        if has_own_train_step(self.model):
            self._custom_step = CustomTrainStep(
                self.model, self.optimizer, self._trained, self._statistics, self._seed_states
            )
        self._update = self._make_update(self.optimizer, self._trained, self._statistics, self._max_dense_gradient)
        self.buffers: tuple[Array, ...] = self._update.buffers
        """What is summed over all ranks: one-dimensional, one for each float type of variables; the only rank has none.
        """
        self.gradient_counts = self._update.gradient_counts
        """Of each buffer, the elements at its beginning that are gradients."""
        self.skips_infinite_gradients = self._update.skips_infinite_gradients

    def add_statistics(self, changed: Iterable[Any]) -> None:
        """Add variables that ``train_step`` changes and a call of the model does not; before the first step."""
        known = {id(variable) for variable in self._statistics}
        if further := [variable for variable in changed if id(variable) not in known]:
            self._use_statistics((*self._statistics, *further))

    @property
    def has_statistics(self) -> bool:
        """Whether layers use statistics of a minibatch."""
        return bool(self._statistics)

    def compute(self, features: Any, labels: Any, weights: Any = None, *, adds: bool = False) -> ReplicaStep:
        """Run the model forward and backward, and write this rank's addend to the buffers.

        Of the model's variables, only the states of random generators change. So several minibatches whose addends
        are added (``adds``: gradient accumulation) are the same as minibatches of several ranks, also for
        BatchNormalization.

        Args:
            features: the features that ``feed`` yielded.
            labels: the labels that ``feed`` yielded.
            weights: the sample weights that ``feed`` yielded, if any.
            adds: add to the buffers, which have the addend of the minibatches before, instead of replacing them.

        Raises:
            BadInputError: an id is outside of an embedding, or several ranks cannot train the model.
            UserCodeError: the model or the loss raised an exception.
        """
        self._kept = None
        if not self._compute_by_reduction:
            self._refuse_other_trained()
        with (
            user_code(self.module.zoo, "the model or its loss", function=self.module.loss),
            explain_dense_id_errors(self.model),
        ):
            if self._reduction is None and self._custom_step is None and not self._is_only_rank:
                predictions = self._predict_graph(features)
                self._refuse_loss_writes(labels, predictions, weights)
                self._reduction = self._objective.try_reduction(labels, predictions, weights)
            traced = self._compute_by_reduction.get(self._reduction)
            if traced is None:
                # Of the only rank, models may look at the number of records, as in ``fit`` with arrays.
                traced = TracedFunction(partial(self._compute_graph, self._reduction), any_count=not self._is_only_rank)
                self._compute_by_reduction[self._reduction] = traced
            optional = () if weights is None else (weights,)
            loss, weight, common, gradients, tails, seed_states = traced(features, labels, *optional)
            if self._step_uses_loss and not self._is_only_rank:
                self._refuse_summed_loss(features, labels, weights)
        if not adds:
            self._old_seed_states = seed_states
        common_loss = None if math.isnan(common) else float(common)
        result = ReplicaStep(float(loss), float(weight), math.isfinite(loss), "", common_loss)
        is_finite = self._update.write(gradients, tails, result.weight, adds=adds)
        if result.is_finite and is_finite:
            if not adds:
                self._kept = _KeptAddend(gradients, tails, result.weight)
            return result
        return replace(result, is_finite=False, nonfinite_name=self._update.find_nonfinite())

    @property
    def keeps_addend(self) -> bool:
        """Whether :meth:`write_again` has an addend: it was finite, of one minibatch, and no step was applied since."""
        return self._kept is not None

    def write_again(self) -> None:
        """Write the newest minibatch's addend to the buffers again, as if :meth:`compute` were called for it.

        It is for a step that was abandoned: the buffers have partial sums, and :meth:`restore_statistics` was called.
        The caller knows that the state is the one for which it was computed. Until a step is applied, TensorFlow's
        gradients are kept for this; nothing is copied.
        """
        kept = self._kept
        assert kept is not None
        if kept.seed_states:
            self._old_seed_states = [tf.identity(variable.value) for variable in self._seed_states]
            for variable, value in zip(self._seed_states, kept.seed_states, strict=True):
                variable.assign(value)
        self._update.write(kept.gradients, kept.tails, kept.weight, adds=False)

    def restore_statistics(self) -> None:
        """Undo what a step that was not applied has changed in the model."""
        if self._kept is not None and self._old_seed_states:
            self._kept = replace(
                self._kept, seed_states=tuple(tf.identity(variable.value) for variable in self._seed_states)
            )
        super().restore_statistics()

    def clear(self) -> None:
        """Set the buffers to the addend of a rank without records: zero."""
        self._update.clear()

    def apply(self, total_weight: float, rate_factor: float | None = None) -> None:
        """Apply the buffers, which hold the sums over all ranks: see :meth:`ReplicaUpdate.apply`."""
        # Before it: an update needs memory for a gradient of its own.
        self._kept = None
        self._update.apply(total_weight, rate_factor)
        self._old_seed_states = ()

    def take_step(
        self, features: Any, labels: Any, weights: Any = None, *, rate_factor: float | None = None
    ) -> ReplicaStep:
        """Take a step as the only rank; one that is not finite is not applied."""
        result = self.compute(features, labels, weights)
        if result.is_finite:
            self.apply(result.weight or 1.0, rate_factor)
        else:
            self.restore_statistics()
        return result

    def _describe_sums(self) -> Any:
        return [[v.path for v in variables] for variables in (self._trained, self._statistics)]

    # ------------------------------------------------------------------ traced functions

    def _refuse_other_trained(self) -> None:
        """Refuse what a callback did before the first step: ``fit`` makes the optimizer after it, EDL before."""
        trained = {id(variable) for variable in self._trained}
        now = {id(variable) for variable in self.model.trainable_variables}
        for variable in self.model.variables:
            if (id(variable) in trained) != (id(variable) in now):
                raise BadInputError(
                    f"`trainable` of the variable '{variable.path}' was changed after the model was built, by a "
                    "callback: its optimizer is made already",
                    where=MODEL_LOCATION,
                    hint="set trainable in custom_model()",
                )

    def _refuse_summed_loss(self, features: Any, labels: Any, weights: Any) -> None:
        """Refuse a ``train_step`` whose ``compute_loss`` gives a sum; until a minibatch can tell, it is a mean."""
        assert self._custom_step is not None
        reduction = self._reduction
        if reduction is None:
            reduction = self._objective.try_reduction(labels, self._predict_graph(features), weights)
        if reduction is LossReduction.SUM:
            self._custom_step.refuse_summed_loss()
        self._step_uses_loss = reduction is None

    def _refuse_loss_writes(self, labels: Any, predictions: Any, weights: Any) -> None:
        """Refuse a loss that counts its calls, say: each rank would have another number."""

        def compute_loss(labels: Any, predictions: Any, weights: Any) -> Any:
            return self._objective(labels, predictions, weights, (), training=True)

        traced = tf.function(compute_loss, autograph=False).get_concrete_function(labels, predictions, weights)
        _refuse_foreign_writes(traced.graph, (), "the loss")

    def _find_changed_variables(self, sample: Any) -> list[Any]:
        """The model's variables that a forward pass in training changes.

        Raises:
            BadInputError: several ranks train the model, and it creates a variable, or changes one that is neither a
                float nor a random generator's state.
        """
        exact = self._is_only_rank and sample is not None
        with user_code(self.module.zoo, "the model"):
            forward = tf.function(self._forward_graph, autograph=False)
            graph = forward.get_concrete_function(sample if exact else derive_feature_spec(self.model, sample)).graph
        written = {handle for _, handle in find_written_variables(graph)}
        variables = (*self.model.variables, *self._carried)
        changed = [variable for variable in variables if id(variable.value.handle) in written]
        if self._is_only_rank:
            return changed
        _refuse_foreign_writes(graph, self.model.variables, "the model", assigned_handles(self.model))
        for variable in changed:
            if variable.dtype not in FLOAT_TYPES and not is_seed_state(variable):
                raise BadInputError(
                    f"training changes the variable '{variable.path}' ({variable.dtype}), but the changes of several "
                    "workers can only be averaged for floats",
                    where=MODEL_LOCATION,
                    hint="make it a float32 variable, or train with strategy: {name: Local}, which keeps any type",
                )
        return changed

    def _forward_graph(self, features: Any) -> Any:
        with assert_dense_ids_in_range():
            predictions = call_model(self.model, features, training=True)
        self._refuse_new_variables()
        return predictions

    def _compute_graph(self, reduction: LossReduction | None, features: Any, labels: Any, weights: Any = None) -> Any:
        seeds = [tf.identity(variable.value) for variable in self._seed_states]
        before = self._update.read_statistics()
        loss_labels, common = labels, None
        if self._custom_step is None:
            loss, common, gradients, predictions = self._differentiate(reduction, features, labels, weights)
            count = count_records(predictions)
        else:
            step = self._custom_step.compute(features, labels, self._objective.training_weights(labels, weights))
            self._refuse_new_variables()
            loss, gradients, count, predictions = step.loss, step.gradients, step.records, step.predictions
            loss_labels = step.labels
            # A step with a loss of its own gives the gradients of a mean.
            self._step_uses_loss = predictions is not None
            reduction = (self._step_uses_loss and reduction) or LossReduction.MEAN
        records = tf.cast(count, tf.float64)
        weight = self._weigh_minibatch(
            reduction or LossReduction.MEAN,
            records,
            labels,
            weights,
            predictions,
            loss_labels,
            has_added_losses=predictions is not None and self._has_added_losses(),
        )
        addend, tails = self._update.make_addend(gradients, before, reduction, records)
        return loss, weight, tf.constant(math.nan) if common is None else common, addend, tails, seeds

    def _differentiate(
        self, reduction: LossReduction | None, features: Any, labels: Any, weights: Any
    ) -> tuple[Any, Any, list[Any], Any]:
        """Loss, its part that all ranks have (see ``ReplicaStep``), gradients and predictions."""
        with tf.GradientTape() as tape:
            predictions = self._forward_graph(features)
            loss, differentiated, common = self._compute_losses(reduction, labels, predictions, weights)
            scaled = self.optimizer.scale_loss(differentiated)  # the optimizer divides the gradients again
        gradients = tape.gradient(scaled, [variable.value for variable in self._trained])
        return loss, common, gradients, predictions

    def _has_added_losses(self) -> bool:
        """Whether layers have added other losses than the regularizers of variables in the newest call."""
        return len(self.model.losses) > len(regularized_variables(self._trained))

    def _compute_losses(
        self, reduction: LossReduction | None, labels: Any, predictions: Any, weights: Any
    ) -> tuple[Any, Any, Any]:
        """The loss, what of it this rank differentiates, and the rest: of a summed loss, the regularizers.

        Each rank's regularizers would be added as well. :meth:`apply` adds their gradient once instead.
        """
        own = list(self.model.losses)
        loss = self._objective(labels, predictions, weights, own, training=True)
        if reduction is not LossReduction.SUM:
            return loss, loss, None
        if self._has_added_losses():
            raise BadInputError(
                "the loss is a sum over records, but a layer adds a loss of its own (add_loss, an "
                "activity_regularizer, or in a model of Keras 2 any regularizer): EDL cannot combine those of "
                "several workers",
                where=MODEL_LOCATION,
                hint="return one value per record from loss(), or add the term there",
            )
        common = tf.add_n([tf.zeros([]), *(tf.cast(tf.reduce_sum(each), tf.float32) for each in own)])
        return loss, self._objective(labels, predictions, weights, (), training=True) if own else loss, common


def _refuse_foreign_writes(graph: Any, variables: Iterable[Any], writer: str, handles: Iterable[Any] = ()) -> None:
    """Refuse an assignment to a variable that is none of these; states of random generators may differ.

    Raises:
        BadInputError: names the variable.
    """
    known = {id(handle) for handle in (*(variable.value.handle for variable in variables), *handles)}
    names = {id(variable.handle): variable.name for variable in graph.variables}
    for operation, written in find_written_variables(graph):
        name = names.get(written, "")
        if (
            not name
            or written in known
            or "seed_generator_state" in name
            or not operation.type.startswith(("Assign", "ResourceScatter", "Stateful", "Partitioned", "If", "While"))
        ):
            continue
        raise BadInputError(
            f"{writer} writes the variable '{name.partition(':')[0]}', which the model does not have: every worker "
            "would have another value, and a checkpoint none",
            where=MODEL_LOCATION,
            hint="make it a float weight of a layer (add_weight), or let a callback set it from "
            "model.optimizer.iterations or the epoch",
        )
