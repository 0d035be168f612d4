"""A ``train_step`` of the user's under strategy Local, called whole, as ``keras.Model.fit`` calls it.

``replica_choice`` takes it unless the step makes one update by ``self.optimizer``, and nothing behind it.

Several ranks sum gradients between what a step computes and what it applies, so a step is taken apart there. Of the
only rank a step need not be: its optimizers are called where the step calls them, and it may write variables by itself.
That trains averages of weights (a momentum encoder), two gradients with a perturbation between them (SAM), updates in
``tf.cond``, queues of embeddings, and GANs. A step that is not finite leaves no trace: the variables that it writes are
read before, which copies nothing until they are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from edl.keras.custom_train_step import (
    capture_losses,
    describe_write,
    is_of_present_graph,
    missing_loss_error,
    train_step_error,
)
from edl.keras.model_building import FLOAT_TYPES
from edl.keras.model_contract import ModelModule
from edl.keras.out_of_range_ids import assert_dense_ids_in_range, explain_dense_id_errors
from edl.keras.replica_state import ReplicaStep, SeveralOptimizersState
from edl.keras.traced_function import TracedFunction, read_value
from edl.keras.train_step_tracing import OWN_OPTIMIZER, AppliedUpdate, UpdateTracer, returned_losses
from edl.keras.trainable_model import AssignValues
from edl.keras.user_code import user_code
from edl.keras.written_variables import find_written_variables


class OutsideVariable:
    """A ``tf.Variable`` that the model keeps beside its weights, as one of its state.

    Args:
        variable: the variable.
    """

    def __init__(self, variable: Any) -> None:
        self.value = variable
        self.path = self.name = variable.name.partition(":")[0]
        self.shape = tuple(variable.shape)
        self.dtype = variable.dtype.name

    def assign(self, value: Any) -> None:
        """Assign a tensor or an array."""
        self.value.assign(value)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        return tf.convert_to_tensor(self.value, dtype, name=name)


@dataclass(frozen=True, slots=True)
class _Undo:
    """A variable that a step writes, and its value before."""

    variable: Any
    value: Any


class WholeStepReplica(SeveralOptimizersState):
    """The only rank's model, optimizers and metrics. Not thread-safe.

    Args:
        module: the user's model module.
        seed: the seed of the initial values.
        sample: the features of a minibatch.
        first: features, labels and weights (or None) of a minibatch; only types and shapes count.
        updates: the updates of a step, as another model of this module made them.
        begin: as of ``TrainableModel``.

    Raises:
        BadInputError: a step does what a checkpoint would not have; the error names it.
        UserCodeError: the user's code raised an exception.
    """

    def __init__(
        self,
        module: ModelModule,
        *,
        seed: int,
        sample: Any,
        first: tuple[Any, Any, Any],
        updates: Sequence[AppliedUpdate],
        begin: AssignValues | None = None,
    ) -> None:
        super().__init__(module, seed=seed, rank_seed=None, sample=sample, begin=begin)
        # For its preparations of the model.
        optimizers = UpdateTracer(self.model, self.optimizer).optimizers
        self._is_own_update = [each.name for each in updates] == [OWN_OPTIMIZER]
        self._optimizers = {each.name: optimizers[each.name] for each in updates}
        for each in updates:
            if not optimizers[each.name].built:
                optimizers[each.name].build([self.model.variables[at] for at in each.positions])
        self._written: list[Any] = []
        self._trace = TracedFunction(self._step_graph, any_count=False)
        with user_code(module.zoo, "train_step()"), explain_dense_id_errors(self.model):
            data = self.pack_data(*first)
            self._note_writes(self._trace.find_trace(data)[0].graph, is_first=True)
        self._known_traces = 1

    def named_variables(self) -> Any:
        """As of ``TrainableModel`` if ``model.optimizer`` makes the only update."""
        if self._is_own_update:
            yield from super(SeveralOptimizersState, self).named_variables()
        else:
            yield from super().named_variables()

    def take_step(
        self, features: Any, labels: Any, weights: Any = None, *, rate_factor: float | None = None
    ) -> ReplicaStep:
        """Take a step; one that is not finite leaves no trace."""
        assert rate_factor is None, "the number of ranks does not scale the learning rate of the only one"
        data = self.pack_data(features, labels, weights)
        with user_code(self.module.zoo, "train_step()"), explain_dense_id_errors(self.model):
            graph = self._trace.find_trace(data)[0].graph
            if self._trace.trace_count != self._known_traces:
                self._known_traces = self._trace.trace_count
                self._note_writes(graph, is_first=False)
            before = [_Undo(variable, read_value(variable)) for variable in self._written]
            loss, finite = self._trace(data)
        loss, culprit = float(loss), ""
        if not math.isfinite(loss) or not finite.numpy().all():
            culprit = next(
                (each.path for each, good in zip(self._checked, finite.numpy(), strict=True) if not good), "loss"
            )
            for undo in before:
                undo.variable.assign(undo.value)
        return ReplicaStep(loss, 1.0, not culprit, culprit)

    @property
    def _checked(self) -> list[Any]:
        return [variable for variable in self.model.trainable_variables if variable.dtype in FLOAT_TYPES]

    # ------------------------------------------------------------------ traced functions

    def _step_graph(self, data: Any) -> Any:
        """The loss, and for each trained variable whether it is finite after the step."""
        for metric in self.model.metrics:
            # So a returned metric is that of this minibatch.
            metric.reset_state()
        with capture_losses(self.model) as losses, assert_dense_ids_in_range():
            logs = self.model.train_step(data)
        computed = [each.loss for each in losses[-1:] if is_of_present_graph(each.loss)]
        step_losses = returned_losses(logs) or computed
        if not step_losses:
            raise missing_loss_error(self.model)
        loss = tf.add_n([tf.reduce_mean(tf.cast(each, tf.float32)) for each in step_losses])
        finite = [tf.reduce_all(tf.math.is_finite(tf.cast(each.value, tf.float64))) for each in self._checked]
        return loss, tf.stack(finite) if finite else tf.constant([True])

    def _note_writes(self, graph: Any, *, is_first: bool) -> None:
        """Note the variables that a trace writes, so that a step can be undone and a checkpoint has them.

        Raises:
            BadInputError: it writes a table; or later traces write another variable from outside the model.
        """
        known = {id(v.value.handle): v for v in (*self.model.variables, *self._carried)}
        known |= {id(v.value.handle): v for each in self._optimizers.values() for v in each.variables}
        metrics = {id(v.value.handle) for v in self.model.metrics_variables}
        outside: Mapping[int, Any] = {id(variable.handle): variable for variable in graph.variables}
        noted = {id(variable) for variable in self._written}
        for operation, handle in find_written_variables(graph):
            if handle in metrics:
                continue
            variable = known.get(handle)
            if variable is None:
                if handle not in outside or not is_first:
                    raise train_step_error(self.model, describe_write(operation, None), _ADD_WEIGHT)
                variable = known[handle] = OutsideVariable(outside[handle])
                self._carried = (*self._carried, variable)
            if id(variable) not in noted:
                noted.add(id(variable))
                self._written.append(variable)


_ADD_WEIGHT = "keep what a step writes in variables of the model (add_weight), and write them for every minibatch alike"
