"""A ``train_step`` with several updates, as of a GAN, under strategy AllReduce: the ranks sum the gradients of each.

``replica_choice`` takes it unless the step makes one update by ``self.optimizer``; ``train_step_tracing`` finds them.
The gradients of an update depend on the updates before it. So a step is: compute the first gradients, sum them over all
ranks, apply the sums, compute the next gradients with the new variables, and so on. Whoever calls this has the network.

A step that is abandoned in its middle has changed variables. So before it sets the learning rate or makes its first
update the values of all variables are kept, and :meth:`SeveralUpdatesReplica.restore_statistics` puts them back. To
keep them costs nothing until a variable is assigned: TensorFlow then takes new memory for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from edl.api.strategy import MAX_DENSE_GRADIENT
from edl.keras.model_contract import ModelModule
from edl.keras.model_loss import LossReduction
from edl.keras.out_of_range_ids import assert_dense_ids_in_range, explain_dense_id_errors
from edl.keras.replica_state import ReplicaStep, SeveralOptimizersState
from edl.keras.segmented_trace import SegmentedTrace
from edl.keras.traced_function import TRACING_LOCK, signature_key
from edl.keras.train_step_tracing import TracedUpdate, UpdateTracer
from edl.keras.trainable_model import AssignValues
from edl.keras.user_code import user_code

Array = NDArray[Any]


@dataclass(frozen=True)
class _RunningStep:
    """A minibatch whose gradients are being computed.

    Attributes:
        trace: the graphs.
        values: what the later graphs get of the earlier ones.
    """

    trace: SegmentedTrace
    values: dict[int, Any]


class SeveralUpdatesReplica(SeveralOptimizersState):
    """A rank's model, optimizers and metrics. Not thread-safe.

    After an exception of a method other than :meth:`find_updates` the state is undefined.

    Args:
        module: the user's model module.
        seed: the seed of the initial values, equal on all ranks.
        rank_seed: a number of this rank, as of ``ModelReplica``.
        sample: the features of a minibatch.
        first: features, labels and weights (or None) of a minibatch; only types and shapes count.
        max_dense_gradient: ``strategy.max_dense_gradient``, in bytes, of each update.
        begin: as of ``TrainableModel``.

    Attributes:
        updates: the updates of a step, in order.
        buffers: those of all updates.

    Raises:
        BadInputError: several ranks cannot train the model; the error names the layer or variable.
        UserCodeError: the user's code raised an exception.
    """

    def __init__(
        self,
        module: ModelModule,
        *,
        seed: int,
        rank_seed: int,
        sample: Any,
        first: tuple[Any, Any, Any],
        max_dense_gradient: int = MAX_DENSE_GRADIENT,
        begin: AssignValues | None = None,
    ) -> None:
        super().__init__(module, seed=seed, rank_seed=rank_seed, sample=sample, begin=begin)
        self._tracer = UpdateTracer(self.model, self.optimizer)
        with user_code(module.zoo, "train_step()"), assert_dense_ids_in_range():
            updates = self._tracer.find_updates(self.pack_data(*first))
            self._refuse_new_variables()
            if self._tracer.uses_loss and self._objective.declared_reduction is not LossReduction.MEAN:
                self._tracer.refuse_other_losses()
            for update in updates:
                if not update.optimizer.built:
                    # As Keras does with the first update.
                    update.optimizer.build(list(update.trained))
        self._step_updates = updates
        self._optimizers = {update.name: update.optimizer for update in updates}
        self.updates = tuple(
            self._make_update(each.optimizer, each.trained, each.statistics, max_dense_gradient) for each in updates
        )
        self.buffers: tuple[Array, ...] = tuple(buffer for update in self.updates for buffer in update.buffers)
        self._traces: dict[Any, SegmentedTrace] = {}
        self._running: list[_RunningStep] = []
        self._next = 0
        """The number of the update that is applied next."""
        self._kept: Sequence[Any] = ()
        """The values of the state before a step that is not complete; empty: the step has changed nothing yet."""
        self._seed_randomness(seed, rank_seed)

    @property
    def gradient_counts(self) -> tuple[int, ...]:
        """Of each buffer, the elements at its beginning that are gradients."""
        return tuple(count for update in self.updates for count in update.gradient_counts)

    @property
    def skips_infinite_gradients(self) -> bool:
        """Whether all optimizers expect infinite gradients."""
        return all(update.skips_infinite_gradients for update in self.updates)

    @property
    def has_statistics(self) -> bool:
        """As of ``ModelReplica``."""
        return any(update.statistics for update in self.updates)

    def _describe_sums(self) -> Any:
        return [
            [
                each.name,
                type(each.optimizer).__name__,
                *([v.path for v in part] for part in (each.trained, each.statistics)),
            ]
            for each in self._step_updates
        ]

    # ------------------------------------------------------------------ a step

    def compute(self, features: Any, labels: Any, weights: Any = None, *, adds: bool = False) -> ReplicaStep:
        """Compute the gradients of the first update, and write this rank's addend to its buffers.

        Args:
            features: the features that ``feed`` yielded.
            labels: the labels that ``feed`` yielded.
            weights: the sample weights that ``feed`` yielded, if any.
            adds: a further minibatch of the same step: its addends are added.

        Returns:
            The result; its loss is 0 if further updates follow.

        Raises:
            BadInputError: an id is outside of an embedding, or several ranks cannot train the model.
            UserCodeError: the model or the loss raised an exception.
        """
        data = self.pack_data(features, labels, weights)
        trace = self._find_trace(data)
        if not adds:
            self._running.clear()
            self._old_seed_states = [tf.identity(variable.value) for variable in self._seed_states]
        self._running.append(_RunningStep(trace, trace.bind(data)))
        return self._run(0, self._running[-1], adds=adds)

    def compute_update(self, number: int, minibatch: int) -> ReplicaStep:
        """Compute the gradients of a later update: those before it have been applied.

        Args:
            number: of the update, from 1.
            minibatch: the number of the minibatch, in the order of the calls of :meth:`compute`.

        Returns:
            The result; the loss is that of the step if this is the last update.
        """
        return self._run(number, self._running[minibatch], adds=minibatch > 0)

    keeps_addend = False
    """The gradients of the later updates depend on the first one, which an abandoned step undoes."""

    def write_again(self) -> None:
        """As of ``ModelReplica``."""
        raise AssertionError("an abandoned step is computed again from its first update")

    def clear(self) -> None:
        """Set the buffers of the last update, which the loop sums, to the addend of a rank without records."""
        self.updates[-1].clear()

    def set_learning_rate(self, rate: float) -> None:
        """Set the rate of ``model.optimizer`` for the step that is made next; undone with the step."""
        self._keep_state()
        super().set_learning_rate(rate)

    def apply_next(self, total_weight: float, rate_factor: float | None = None) -> None:
        """Apply the sums of the next update: see :meth:`ReplicaUpdate.apply`."""
        self._keep_state()
        self.updates[self._next].apply(total_weight, rate_factor)
        self._next += 1
        if self._next == len(self.updates):
            self._next, self._kept, self._old_seed_states = 0, (), ()
            self._running.clear()

    def apply(self, total_weight: float, rate_factor: float | None = None) -> None:
        """Apply the sums of all updates that have not been applied: the last one, or all on a worker that follows."""
        self.apply_next(total_weight, rate_factor)
        while self._next:
            self.apply_next(total_weight, rate_factor)

    def _keep_state(self) -> None:
        """Keep what :meth:`restore_statistics` puts back, unless this step has changed it already."""
        if not self._kept and len(self.updates) > 1:
            self._kept = [tf.identity(variable.value) for _, variable in self._state_variables()]

    def restore_statistics(self) -> None:
        """Undo a step that is not complete."""
        if self._kept:
            for (_, variable), value in zip(self._state_variables(), self._kept, strict=True):
                variable.assign(value)
        # After it: the state of the only rank has those of random generators, as the first update left them.
        super().restore_statistics()
        self._next, self._kept = 0, ()
        self._running.clear()

    def take_step(
        self, features: Any, labels: Any, weights: Any = None, *, rate_factor: float | None = None
    ) -> ReplicaStep:
        """Take a step as the only rank; one that is not finite is not applied."""
        result = self.compute(features, labels, weights)
        for number in range(1, len(self.updates)):
            if not result.is_finite:
                break
            self.apply_next(result.weight or 1.0, rate_factor)
            result = self.compute_update(number, 0)
        if result.is_finite:
            self.apply_next(result.weight or 1.0, rate_factor)
        else:
            self.restore_statistics()
        return result

    def _run(self, number: int, running: _RunningStep, *, adds: bool) -> ReplicaStep:
        update = self.updates[number]
        with user_code(self.module.zoo, "train_step()"), explain_dense_id_errors(self.model):
            loss, weight, *rest = running.trace.segments[number].run(running.values)
        gradients, tails = rest[: len(update.trained)], rest[len(update.trained) :]
        result = ReplicaStep(float(loss), float(weight), math.isfinite(loss), "")
        if update.write(gradients, tails, result.weight, adds=adds) and result.is_finite:
            return result
        return replace(result, is_finite=False, nonfinite_name=update.find_nonfinite())

    # ------------------------------------------------------------------ traced functions

    def _find_trace(self, data: Any) -> SegmentedTrace:
        key = tuple(signature_key(leaf) for leaf in tf.nest.flatten(data))
        trace = self._traces.get(key)
        if trace is None:
            with TRACING_LOCK, user_code(self.module.zoo, "train_step()"), explain_dense_id_errors(self.model):
                trace = self._trace(data)
            self._traces[key] = trace
        return trace

    def _trace(self, data: Any) -> SegmentedTrace:
        before: list[list[Any]] = []

        def begin_segment() -> None:
            before.append(self.updates[len(before)].read_statistics())

        def make_results(traced: TracedUpdate) -> Sequence[Any]:
            return self._make_results(traced, before[traced.number])

        with assert_dense_ids_in_range():
            trace = self._tracer.trace(self._step_updates, begin_segment, make_results, data)
        self._refuse_new_variables()
        return trace

    def _make_results(self, traced: TracedUpdate, before: Sequence[Any]) -> Sequence[Any]:
        """Loss, weight, the gradients, and the ends of the buffers."""
        update = self.updates[traced.number]
        features, labels, *weights = traced.data
        records = tf.cast(tf.shape(tf.nest.flatten(features)[0])[0], tf.float64)
        # A step of the user's gives the gradients of a mean.
        weight = self._weigh_minibatch(LossReduction.MEAN, records, labels, weights[0] if weights else None)
        addend, tails = update.make_addend(traced.gradients, before, LossReduction.MEAN, records)
        loss = tf.constant(0.0) if traced.loss is None else traced.loss
        return loss, weight, *addend, *tails
