"""One rank's model under strategy AllReduce: gradients and statistics as buffers that the ranks sum.

This module has no network. A step has three parts:

1. ``compute`` runs the model and writes this rank's addend to the buffers; a rank without records calls ``clear``.
2. The caller sums each buffer over all ranks.
3. ``apply`` divides the sums, updates the statistics and runs the Keras optimizer once. All ranks apply the same sums
   to the same state, so their states stay equal to the bit.

**Buffers.** There is one for each float type of variables: the gradients in the order of the trained variables, each
aligned, then the changes of statistics. The widest buffer ends with a few counts. They tell ranks that have not run the
model what to do: how many records the step has, whether the loss is a sum, and which variables have a gradient. A
gradient is copied once, from TensorFlow's memory to the buffer; TensorFlow reads the sum in place.

**Statistics** are all variables that the forward pass changes, such as the moving values of BatchNormalization. A rank
contributes the change, multiplied by its number of records. Hence all statistics become the mean, weighted by records,
of the values that the ranks computed.

The moving variance of BatchNormalization also contains the spread between the ranks' batch means, so that it is the one
of the union. With momentum *m*, a rank's batch mean differs from the union's by the difference of their changes of the
moving mean, divided by *1 - m*. This is exact if each layer is called once a step, for inputs with the same number of
elements in each record and without a mask; otherwise the batch means are weighted by records instead of elements.
``renorm=True`` has no such correction: its statistics are the weighted means. A rank normalizes with the mean and
variance of its own minibatch in any case.

**Weights.** See :meth:`edl.keras.model_loss.ModelLoss.minibatch_weight`. The result is that of one process on the union
of the minibatches, except for BatchNormalization, random layers, losses that compare records with each other, and
several outputs with different masks, which a warning names: Keras divides each one's loss by its own number of unmasked
values, and EDL weighs their sum by records.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.framework import auto_control_deps_utils

from edl.api.errors import BadInputError
from edl.api.strategy import MAX_DENSE_GRADIENT
from edl.keras.custom_train_step import CustomTrainStep, has_custom_train_step
from edl.keras.evaluated_copy import CopiedValues, copy_values
from edl.keras.evaluation_metrics import count_records
from edl.keras.model_building import FLOAT_TYPES, derive_feature_spec, is_seed_state, seed_worker_randomness
from edl.keras.model_contract import ModelModule, refuse_stateful_layers
from edl.keras.model_loss import LossReduction, uses_dynamic_loss_scaling
from edl.keras.out_of_range_ids import MODEL_LOCATION, assert_dense_ids_in_range, explain_dense_id_errors
from edl.keras.traced_function import TracedFunction, as_array, as_tensor
from edl.keras.trainable_model import TrainableModel, updating_optimizers
from edl.keras.update_function import UpdateFunction
from edl.keras.user_code import user_code
from edl.numerics.aligned_memory import ALIGNMENT, allocate_aligned
from edl.numerics.checksum import crc32
from edl.reporting.unit_formats import format_bytes

Array = NDArray[Any]

_RECORDS, _AVERAGED, _SUMMED, _COUNTS = range(4)
"""The counts at the end of a buffer: records, ranks whose loss is a mean, ranks whose loss is a sum. After them, for
each trained variable, the number of ranks that have a gradient for it."""
_PACKED_ALIGNMENT = 8
_BLOCK_ELEMENTS = 1 << 16
COMPILED_UPDATE_ELEMENTS = 1 << 18
"""XLA compiles the update of a model with at least so many trained elements. Compiling takes about half a second, which
saves less than half a millisecond a step in a smaller model."""


@dataclass(frozen=True, slots=True)
class ReplicaStep:
    """One rank's result of a minibatch.

    Attributes:
        loss: the loss, including the model's own losses; may be NaN.
        weight: the weight of the minibatch. The sum over all ranks is the argument of :meth:`ModelReplica.apply`. For a
            mean loss, the weighted mean of the ranks' losses is the loss of the step.
        finite: whether the loss, the gradients and the statistics are finite. With dynamic loss scaling only the loss
            counts: the optimizer skips steps whose gradients are not finite, and lowers its scale.
        nonfinite: the first variable whose gradient or statistic is not finite, or ``loss``; empty if all are finite.
    """

    loss: float
    weight: float
    finite: bool
    nonfinite: str


@dataclass(frozen=True)
class _Section:
    """The variables of one type, and their places in its buffer.

    Attributes:
        dtype: the type of the variables.
        slots: by position among the trained variables, the place of its gradient. Between them there are zeros.
        tail: the place of the statistics' changes and, in one section, of the counts.
        statistics: the positions of these variables among the statistics.
        has_counts: whether the counts are in this section.
    """

    dtype: str
    slots: Mapping[int, slice]
    tail: slice
    statistics: tuple[int, ...]
    has_counts: bool


@dataclass(frozen=True)
class _MovingVariance:
    """How the spread between batch means enters a moving variance: see the module's docstring."""

    mean_position: int
    momentum: float


class ModelReplica(TrainableModel):
    """A rank's model, optimizer and metrics; supports every Keras optimizer. Not thread-safe.

    After an exception of :meth:`compute` or :meth:`apply` the state is undefined.

    Args:
        module: the user's model module.
        seed: the seed of the initial values, equal on all ranks.
        rank_seed: a number of this rank. With ``f = splitmix64``, the state of random layer number *n* starts from
            ``f(f(f(seed) ^ rank_seed) ^ n)``, so Dropout differs between the ranks.
        sample: the features of a minibatch.
        max_dense_gradient: ``strategy.max_dense_gradient``, in bytes.

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
        max_dense_gradient: int = MAX_DENSE_GRADIENT,
    ) -> None:
        super().__init__(module, seed=seed, sample=sample, float32_only=False)
        self._max_dense_gradient = max_dense_gradient
        refuse_stateful_layers(self.model)
        _refuse_synchronized_layers(self.model)
        self._trained = tuple(self.model.trainable_variables)
        if not self._trained:
            raise BadInputError("the model has no trained variable")
        self._known_variables = {id(variable) for variable in self.model.variables}
        self._optimizer_variable_count = len(self.optimizer.variables)
        changed = self._find_changed_variables(sample)
        self._seed_states = tuple(v for v in self.model.variables if is_seed_state(v))
        self._statistics = tuple(v for v in changed if not is_seed_state(v))
        self._custom_step: CustomTrainStep | None = None
        if has_custom_train_step(self.model):
            may_change = (*self._statistics, *self._seed_states)
            self._custom_step = CustomTrainStep(self.model, self.optimizer, self._trained, may_change)
        self._moving_variances = _find_moving_variances(self.model, self._statistics)
        self._sections = _make_sections(self._trained, self._statistics)
        self.buffers: tuple[Array, ...] = tuple(
            allocate_aligned(section.tail.stop, dtype=tf.as_dtype(section.dtype).as_numpy_dtype)
            for section in self._sections
        )
        """What is summed over all ranks: one-dimensional, one for each float type of variables."""
        self.gradient_counts = tuple(section.tail.start for section in self._sections)
        """Of each buffer, the elements at its beginning that are gradients."""
        self.skips_infinite_gradients = uses_dynamic_loss_scaling(self.optimizer)
        self.clear()
        by_position = {
            at: buffer[slot]
            for section, buffer in zip(self._sections, self.buffers, strict=True)
            for at, slot in section.slots.items()
        }
        self._gradient_views = [by_position[at] for at in range(len(self._trained))]
        self._tail_views = [buffer[s.tail] for s, buffer in zip(self._sections, self.buffers, strict=True)]
        self._reduction = self._objective.declared_reduction
        self._objective.warn_of_compared_records()
        self._step_uses_loss = False
        self._compute_by_reduction: dict[LossReduction | None, TracedFunction] = {}
        self._compiles_update = sum(map(_element_count, self._trained)) >= COMPILED_UPDATE_ELEMENTS
        self._apply_by_case: dict[tuple[tuple[bool, ...], bool, bool], UpdateFunction] = {}
        self._old_seed_states: Sequence[Any] = ()
        seed_worker_randomness(self.variables.local_variables, seed, rank_seed)

    def metric_values(self, states: Mapping[str, Any]) -> dict[str, float]:
        """The values of states that ``edl.core.evaluation.merge_metric_states`` merged."""
        return self._compute_metrics(states)

    # ------------------------------------------------------------------ a step

    def compute(self, features: Any, labels: Any, weights: Any = None, *, adds: bool = False) -> ReplicaStep:
        """Run the model forward and backward, and write this rank's addend to the buffers.

        Of the model's variables, only the states of random generators change. So several minibatches whose addends
        are added (``adds``) are the same as minibatches of several ranks, also for BatchNormalization.

        Args:
            features: the features that ``feed`` yielded.
            labels: the labels that ``feed`` yielded.
            weights: the sample weights that ``feed`` yielded, if any.
            adds: add to the buffers, which have the addend of the minibatches before, instead of replacing them.

        Raises:
            BadInputError: an id is outside of an embedding, or several ranks cannot train the model.
            UserCodeError: the model or the loss raised an exception.
        """
        with (
            user_code(self.module.zoo, "the model or its loss", function=self.module.loss),
            explain_dense_id_errors(self.model),
        ):
            if self._reduction is None and self._custom_step is None:
                predictions = self._predict_graph(features)
                self._refuse_loss_writes(labels, predictions, weights)
                self._reduction = self._objective.try_reduction(labels, predictions, weights)
            traced = self._compute_by_reduction.get(self._reduction)
            if traced is None:
                traced = TracedFunction(partial(self._compute_graph, self._reduction))
                self._compute_by_reduction[self._reduction] = traced
            optional = () if weights is None else (weights,)
            loss, weight, gradients, tails, seed_states = traced(features, labels, *optional)
            if self._step_uses_loss:
                self._refuse_summed_loss(features, labels, weights)
        if not adds:
            self._old_seed_states = seed_states
        result = ReplicaStep(float(loss), float(weight), math.isfinite(loss), "")
        write = _add_product if adds else _multiply_into
        finite = [
            write(view, _host_array(gradient).reshape(-1), result.weight)
            for view, gradient in zip(self._gradient_views, gradients, strict=True)
        ]
        finite += [write(view, _host_array(tail), 1.0) for view, tail in zip(self._tail_views, tails, strict=True)]
        # Dynamic loss scaling expects infinite gradients: it skips the step and lowers the scale.
        if result.finite and (self.skips_infinite_gradients or all(finite)):
            return result
        return replace(result, finite=False, nonfinite=self._find_nonfinite())

    def clear(self) -> None:
        """Set the buffers to the addend of a rank without records: zero."""
        for buffer in self.buffers:
            buffer.fill(0)

    def restore_statistics(self) -> None:
        """Undo what :meth:`compute` changed in the model since the last step was applied."""
        for variable, old in zip(self._seed_states, self._old_seed_states, strict=False):
            variable.assign(old)
        self._old_seed_states = ()

    def set_learning_rate(self, rate: float) -> None:
        """Set the optimizer's learning rate, which is part of the state."""
        self.optimizer.learning_rate = rate

    def apply(self, total_weight: float, learning_rate_factor: float | None = None) -> None:
        """Apply the buffers, which hold the sums over all ranks.

        Args:
            total_weight: the sum of all ranks' weights. A summed loss is not divided by it.
            learning_rate_factor: the update uses the optimizer's learning rate times this number. The rate that
                callbacks and checkpoints see stays as it is. None: 1.

        Raises:
            ValueError: no rank had records.
            BadInputError: the loss is a sum on one rank and a mean on another; or the optimizer creates a variable.
            UserCodeError: the optimizer raised an exception.
        """
        counts = np.asarray(self._counts(), np.float64)
        if not counts[_RECORDS] > 0:
            raise ValueError("no rank has records in this step")
        if counts[_AVERAGED] and counts[_SUMMED]:
            raise BadInputError(
                "the loss is a sum over records on one rank and a mean on another",
                where=MODEL_LOCATION,
                hint="return one value per record from loss()",
            )
        summed = bool(counts[_SUMMED])
        case = (tuple(bool(count) for count in counts[_COUNTS:]), summed, learning_rate_factor is not None)
        function = self._apply_by_case.get(case)
        if function is None:
            function = UpdateFunction(partial(self._apply_graph, *case), compiles=self._compiles_update)
            self._apply_by_case[case] = function
        # Without a weight (all sample weights are 0) the gradients are 0 as well.
        divisor = 1.0 if summed else total_weight or 1.0
        with user_code(self.module.zoo, "the optimizer", function=self.module.optimizer):
            function(
                [as_tensor(view) for view in self._gradient_views],
                [as_tensor(view) for view in self._tail_views],
                tf.constant(divisor, tf.float64),
                tf.constant(counts[_RECORDS], tf.float64),
                tf.constant(learning_rate_factor or 1.0, tf.float64),
            )
        self._old_seed_states = ()

    # ------------------------------------------------------------------ state

    def copy_final_values(self) -> CopiedValues:
        """The values of the model's variables as ``fit`` would leave them now: the averages with ``use_ema``."""
        if not any(optimizer.use_ema for optimizer in updating_optimizers(self.optimizer)):
            return copy_values(self.model)
        state = self.pack_state()
        try:
            self.finalize()
            return copy_values(self.model)
        finally:
            self.unpack_state(state)

    def state_sizes(self) -> dict[str, int]:
        """The bytes of each array that :meth:`state_arrays` returns."""
        return {name: _byte_size(variable) for name, variable in self._state_variables()}

    def state_arrays(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Everything that must be equal on all ranks, by its name in checkpoints: see ``named_variables``.

        The states of random generators are left out.

        Args:
            names: copy only these arrays; None: all.
        """
        wanted = None if names is None else set(names)
        return {
            name: _host_array(variable).copy()
            for name, variable in self._state_variables()
            if wanted is None or name in wanted
        }

    def load_state(self, arrays: Mapping[str, Any]) -> None:
        """Assign arrays that :meth:`state_arrays` returned; further ones, such as states of random layers, are ignored.

        Raises:
            BadInputError: another model or optimizer has written them; nothing was assigned.
        """
        variables = self._state_variables()
        for name, variable in variables:
            if name not in arrays or _describe(variable) != _describe(arrays[name]):
                raise BadInputError(
                    f"the checkpoint was written with another model or optimizer: they differ in {name}",
                    hint="start a new run, without --resume",
                )
        for name, variable in variables:
            variable.assign(arrays[name])

    def pack_state(self) -> NDArray[np.uint8]:
        """A copy of the state as one array; its size is a multiple of eight bytes."""
        packed = allocate_aligned(self._packed_size(), dtype=np.uint8)
        packed.fill(0)
        start = 0
        for _, variable in self._state_variables():
            size = _byte_size(variable)
            packed[start : start + size] = _host_array(variable).reshape(-1).view(np.uint8)
            start += _padded(size)
        return packed

    def unpack_state(self, packed: Array) -> None:
        """Assign a state that :meth:`pack_state` copied.

        Raises:
            BadInputError: another model or optimizer has written it; nothing was assigned.
        """
        data = np.ascontiguousarray(packed).reshape(-1).view(np.uint8)
        if data.size != self._packed_size():
            raise BadInputError(
                f"the state of the other rank has {data.size:,} bytes, this rank's has {self._packed_size():,}: their "
                "models or optimizers differ",
                where=MODEL_LOCATION,
            )
        start = 0
        for _, variable in self._state_variables():
            size = _byte_size(variable)
            values = data[start : start + size].view(_numpy_type(variable)).reshape(tuple(variable.shape))
            # A copy: TensorFlow may use an aligned array without one.
            variable.assign(values.copy())
            start += _padded(size)

    def digest(self) -> int:
        """A digest of 64 bits of the state: names, shapes, types and values.

        The values are in it as a CRC-32 of each variable: all ranks wait for it when a round begins, and a
        cryptographic hash takes dozens of times as long.
        """
        found = hashlib.blake2b(digest_size=8)
        for name, variable in self._state_variables():
            found.update(json.dumps([name, *_describe(variable), _checksum(variable)]).encode())
        return int.from_bytes(found.digest(), "big")

    def variable_digests(self) -> dict[str, int]:
        """A digest of 32 bits of each variable's values, by its name in checkpoints."""
        return {name: _checksum(variable) for name, variable in self._state_variables()}

    def fingerprint(self) -> str:
        """A digest of names, shapes and types of the state, and of what is summed.

        Only ranks with equal fingerprints may train together.
        """
        state = [[name, *_describe(variable)] for name, variable in self._state_variables()]
        roles = [[v.path for v in variables] for variables in (self._trained, self._statistics)]
        return hashlib.sha256(json.dumps([state, roles]).encode()).hexdigest()

    def _state_variables(self) -> list[tuple[str, Any]]:
        return [(name, variable) for name, variable in self.named_variables() if not is_seed_state(variable)]

    def _packed_size(self) -> int:
        return sum(_padded(_byte_size(variable)) for _, variable in self._state_variables())

    # ------------------------------------------------------------------ buffers

    def _counts(self) -> Array:
        """The counts at the end of their buffer."""
        (tail,) = (tail for s, tail in zip(self._sections, self._tail_views, strict=True) if s.has_counts)
        return tail[-_COUNTS - len(self._trained) :]

    def _find_nonfinite(self) -> str:
        """The first variable whose gradient or statistic in the buffers is not finite."""
        found = (v.path for v, view in zip(self._trained, self._gradient_views, strict=True) if not _is_finite(view))
        if name := next(found, ""):
            return name
        for section, tail in zip(self._sections, self._tail_views, strict=True):
            start = 0
            for variable in (self._statistics[at] for at in section.statistics):
                size = _element_count(variable)
                if not _is_finite(tail[start : start + size]):
                    return str(variable.path)
                start += size
        return "loss"

    # ------------------------------------------------------------------ traced functions

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
            BadInputError: it creates a variable, or changes one that is neither a float nor a random generator's state.
        """
        with user_code(self.module.zoo, "the model"):
            forward = tf.function(self._forward_graph, autograph=False)
            graph = forward.get_concrete_function(derive_feature_spec(self.model, sample)).graph
        _refuse_foreign_writes(graph, self.model.variables, "the model")
        outer_by_inner = {id(inner): id(outer) for outer, inner in graph.captures}
        written = {
            outer_by_inner.get(id(handle))
            for operation in graph.get_operations()
            for handle in auto_control_deps_utils.get_read_write_resource_inputs(operation)[1]
        }
        changed = [variable for variable in self.model.variables if id(variable.value.handle) in written]
        for variable in changed:
            if variable.dtype not in FLOAT_TYPES and not is_seed_state(variable):
                raise BadInputError(
                    f"training changes the variable '{variable.path}' ({variable.dtype}), but the changes of several "
                    "workers can only be averaged for floats",
                    where=MODEL_LOCATION,
                    hint="make it a float32 variable",
                )
        return changed

    def _forward_graph(self, features: Any) -> Any:
        with assert_dense_ids_in_range():
            predictions = self.model(features, training=True)
        self._refuse_new_variables()
        return predictions

    def _refuse_new_variables(self) -> None:
        new = next((v for v in self.model.variables if id(v) not in self._known_variables), None)
        if new is not None:
            raise BadInputError(
                f"the variable '{new.path}' was created by a training step, after the model was built",
                where=MODEL_LOCATION,
                hint="create all variables in build(), or in a call with training=False",
            )

    def _compute_graph(self, reduction: LossReduction | None, features: Any, labels: Any, weights: Any = None) -> Any:
        seeds = [tf.identity(variable.value) for variable in self._seed_states]
        before = [tf.identity(variable.value) for variable in self._statistics]
        if self._custom_step is None:
            loss, gradients, predictions = self._differentiate(reduction, features, labels, weights)
            count = count_records(predictions)
        else:
            step = self._custom_step.compute(features, labels, self._objective.training_weights(labels, weights))
            self._refuse_new_variables()
            loss, gradients, count, predictions = step.loss, step.gradients, step.records, step.predictions
            # A step with a loss of its own gives the gradients of a mean.
            self._step_uses_loss = predictions is not None
            reduction = (self._step_uses_loss and reduction) or LossReduction.MEAN
        records = tf.cast(count, tf.float64)
        changes = [tf.identity(v.value) - old for v, old in zip(self._statistics, before, strict=True)]
        # Until the step is applied, the model is as before: another rank may fail.
        for variable, old in zip(self._statistics, before, strict=True):
            variable.value.assign(old)
        weight = self._objective.minibatch_weight(
            reduction or LossReduction.MEAN, records, labels, weights, predictions
        )
        self._refuse_large_tables(gradients)
        has_gradient = [gradient is not None for gradient in gradients]
        # A missing one becomes a 0, which fills its place in the buffer.
        found = [
            tf.zeros([], v.dtype) if g is None else tf.convert_to_tensor(g)
            for v, g in zip(self._trained, gradients, strict=True)
        ]
        tails = self._make_tails(reduction, records, has_gradient, changes)
        return loss, weight, found, tails, seeds

    def _refuse_large_tables(self, gradients: Sequence[Any]) -> None:
        """Refuse gradients of looked-up rows that are too large once they are dense."""
        tables = [v for v, g in zip(self._trained, gradients, strict=True) if isinstance(g, tf.IndexedSlices)]
        size = sum(map(_byte_size, tables))
        if size > self._max_dense_gradient:
            largest = max(tables, key=_byte_size)
            raise BadInputError(
                f"the gradients of looked-up rows have {format_bytes(size)} in each step, "
                f"{format_bytes(_byte_size(largest))} of them for the variable '{largest.path}' "
                f"{tuple(largest.shape)}, and strategy.max_dense_gradient is "
                f"{format_bytes(self._max_dense_gradient)}",
                where=MODEL_LOCATION,
                hint="under AllReduce they are as large as their tables; train with strategy: {name: ParameterServer}, "
                "which sends the rows of a minibatch, or raise strategy.max_dense_gradient",
            )

    def _differentiate(
        self, reduction: LossReduction | None, features: Any, labels: Any, weights: Any
    ) -> tuple[Any, list[Any], Any]:
        """Loss, gradients and predictions."""
        with tf.GradientTape() as tape:
            predictions = self._forward_graph(features)
            loss, differentiated = self._compute_losses(reduction, labels, predictions, weights)
            scaled = self.optimizer.scale_loss(differentiated)  # the optimizer divides the gradients again
        gradients = tape.gradient(scaled, [variable.value for variable in self._trained])
        return loss, gradients, predictions

    def _compute_losses(
        self, reduction: LossReduction | None, labels: Any, predictions: Any, weights: Any
    ) -> tuple[Any, Any]:
        """The loss, and what of it this rank differentiates: of a summed loss, all but the regularizers.

        Each rank's regularizers would be added as well. :meth:`apply` adds their gradient once instead.
        """
        own = list(self.model.losses)
        loss = self._objective(labels, predictions, weights, own, training=True)
        if reduction is not LossReduction.SUM:
            return loss, loss
        if len(own) > len(_regularized(self._trained)):
            raise BadInputError(
                "the loss is a sum over records, but a layer adds a loss of its own (add_loss or an "
                "activity_regularizer): EDL cannot combine those of several workers",
                where=MODEL_LOCATION,
                hint="return one value per record from loss(), or add the term there",
            )
        return loss, self._objective(labels, predictions, weights, (), training=True) if own else loss

    def _make_tails(
        self, reduction: LossReduction | None, records: Any, has_gradient: Sequence[bool], changes: Sequence[Any]
    ) -> list[Any]:
        """The ends of the buffers: the statistics' changes times the number of records, and the counts."""
        with_spread = list(changes)
        for at, moving in self._moving_variances.items():
            difference = changes[moving.mean_position]
            with_spread[at] += difference * difference / (1 - moving.momentum)
        averaged = reduction in (LossReduction.MEAN, LossReduction.WEIGHTED_MEAN)
        flags = tf.constant([averaged, reduction is LossReduction.SUM, *has_gradient])
        tails = []
        for section in self._sections:
            pieces = [tf.reshape(_multiply(with_spread[at], records), [-1]) for at in section.statistics]
            if section.has_counts:
                pieces += [tf.cast(records, section.dtype)[None], tf.cast(flags, section.dtype)]
            tails.append(tf.concat(pieces, 0) if pieces else tf.zeros([0], section.dtype))
        return tails

    def _apply_graph(
        self,
        has_gradient: tuple[bool, ...],
        summed: bool,
        scales_rate: bool,
        gradient_sums: Sequence[Any],
        tails: Sequence[Any],
        divisor: Any,
        records: Any,
        rate_factor: Any,
    ) -> None:
        # The quotients are new tensors, so that no variable ever shares a buffer's memory.
        gradients: list[Any] = [
            _divide(tf.reshape(total, variable.shape), divisor) if present else None
            for total, variable, present in zip(gradient_sums, self._trained, has_gradient, strict=True)
        ]
        changes: list[Any] = [None] * len(self._statistics)
        for section, tail in zip(self._sections, tails, strict=True):
            start = 0
            for at in section.statistics:
                variable = self._statistics[at]
                size = _element_count(variable)
                changes[at] = _divide(tf.reshape(tail[start : start + size], variable.shape), records)
                start += size
        self._assign_statistics(changes)
        if summed:
            self._add_regularizer_gradients(gradients)
        # Keras warns about variables without a gradient and does not change them.
        with _scaled_learning_rate(self.optimizer, rate_factor) if scales_rate else nullcontext():
            self.optimizer.apply(gradients, list(self._trained))
        new = list(self.optimizer.variables)[self._optimizer_variable_count :]
        if new:
            raise BadInputError(
                f"the optimizer's variable '{new[0].path}' was created by a step, after the optimizer was built",
                where="the optimizer",
                hint="create all variables in build()",
            )

    def _assign_statistics(self, changes: Sequence[Any]) -> None:
        values = [v.value + change for v, change in zip(self._statistics, changes, strict=True)]
        for at, moving in self._moving_variances.items():
            difference = changes[moving.mean_position]
            spread = values[at] - difference * difference / (1 - moving.momentum)
            # The union's variance is not negative, but the difference of rounded numbers may be.
            values[at] = tf.maximum(spread, self._statistics[at].value * moving.momentum)
        for variable, value in zip(self._statistics, values, strict=True):
            variable.value.assign(value)

    def _add_regularizer_gradients(self, gradients: list[Any]) -> None:
        regularized = _regularized(self._trained)
        if not regularized:
            return
        with tf.GradientTape() as tape:
            losses = [tf.reduce_sum(variable.regularizer(variable)) for variable in regularized]
            scaled = self.optimizer.scale_loss(tf.add_n([tf.cast(loss, tf.float32) for loss in losses]))
        found = dict(
            zip(map(id, regularized), tape.gradient(scaled, [variable.value for variable in regularized]), strict=True)
        )
        for at, variable in enumerate(self._trained):
            more = found.get(id(variable))
            if more is not None:
                gradients[at] = more if gradients[at] is None else gradients[at] + more


@contextmanager
def _scaled_learning_rate(optimizer: Any, factor: Any) -> Iterator[None]:
    """An update that is traced inside uses the optimizer's rate times ``factor``; its variable and schedule stay."""
    updaters = updating_optimizers(optimizer)

    def scale(current: Callable[[], Any]) -> Any:
        rate = tf.convert_to_tensor(current())
        return rate * tf.cast(factor, rate.dtype)

    for each in updaters:
        each._get_current_learning_rate = partial(scale, each._get_current_learning_rate)
    try:
        yield
    finally:
        for each in updaters:
            del each._get_current_learning_rate


def _refuse_foreign_writes(graph: Any, variables: Iterable[Any], writer: str) -> None:
    """Refuse an assignment to a variable that is none of these; states of random generators may differ.

    Raises:
        BadInputError: names the variable.
    """
    known = {id(variable.value.handle) for variable in variables}
    names = {id(variable.handle): variable.name for variable in graph.variables}
    outer_by_inner = {id(inner): id(outer) for outer, inner in graph.captures}
    for operation in graph.get_operations():
        if not operation.type.startswith(("Assign", "ResourceScatter", "Stateful", "Partitioned", "If", "While")):
            continue
        for handle in auto_control_deps_utils.get_read_write_resource_inputs(operation)[1]:
            written = outer_by_inner.get(id(handle))
            name = "" if written is None else names.get(written, "")
            if not name or written in known or "seed_generator_state" in name:
                continue
            raise BadInputError(
                f"{writer} writes the variable '{name.partition(':')[0]}', which the model does not have: every worker "
                "would have another value, and a checkpoint none",
                where=MODEL_LOCATION,
                hint="make it a float weight of a layer (add_weight), or let a callback set it from "
                "model.optimizer.iterations or the epoch",
            )


def _regularized(variables: Iterable[Any]) -> list[Any]:
    return [variable for variable in variables if getattr(variable, "regularizer", None) is not None]


def _make_sections(trained: Sequence[Any], statistics: Sequence[Any]) -> tuple[_Section, ...]:
    """A section for each type of variables. The widest type has the counts: float16 and bfloat16 cannot count."""
    types = {variable.dtype for variable in (*trained, *statistics)}
    with_counts = "float64" if "float64" in types else "float32"
    sections = []
    for dtype in sorted(types | {with_counts}):
        slots: dict[int, slice] = {}
        end = 0
        step = ALIGNMENT // int(tf.as_dtype(dtype).size)
        for at, variable in enumerate(trained):
            if variable.dtype == dtype:
                slots[at] = slice(end, end + _element_count(variable))
                end = -(-slots[at].stop // step) * step
        changed = tuple(at for at, variable in enumerate(statistics) if variable.dtype == dtype)
        size = sum(_element_count(statistics[at]) for at in changed)
        size += _COUNTS + len(trained) if dtype == with_counts else 0
        sections.append(_Section(dtype, slots, slice(end, end + size), changed, dtype == with_counts))
    return tuple(sections)


def _find_moving_variances(model: Any, statistics: Sequence[Any]) -> dict[int, _MovingVariance]:
    """The moving variances of BatchNormalization, by their position among the statistics."""
    positions = {id(variable): at for at, variable in enumerate(statistics)}
    found = {}
    for layer in model._flatten_layers():
        if not isinstance(layer, keras.layers.BatchNormalization) or getattr(layer, "renorm", False):
            continue
        mean, variance = positions.get(id(layer.moving_mean)), positions.get(id(layer.moving_variance))
        if mean is not None and variance is not None and layer.momentum < 1:
            found[variance] = _MovingVariance(mean, float(layer.momentum))
    return found


def _refuse_synchronized_layers(model: Any) -> None:
    for layer in model._flatten_layers():
        if getattr(layer, "synchronized", False):
            raise BadInputError(
                f"the layer '{layer.name}' ({type(layer).__name__}) has synchronized=True, but EDL does not combine "
                "the batch means of several workers within a step",
                where=MODEL_LOCATION,
                hint="remove synchronized=True: moving means and variances are combined after each step",
            )


def _multiply(tensor: Any, factor: Any) -> Any:
    """The product in the tensor's type. float16 and bfloat16 cannot count records, so it is computed in float32."""
    wide = tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor
    return tf.cast(wide * tf.cast(factor, wide.dtype), tensor.dtype)


def _multiply_into(target: Array, values: Array, factor: float) -> bool:
    """Write the product, and return whether the values are finite; one value fills the whole target."""
    return _write_blocks(target, values, factor, _write_product)


def _add_product(target: Array, values: Array, factor: float) -> bool:
    """Add the product, and return whether the values are finite."""
    return _write_blocks(target, values, factor, _write_sum)


def _write_blocks(target: Array, values: Array, factor: float, write: Callable[[Array, Array, float], None]) -> bool:
    # In blocks that stay in the processor's cache, the check costs a tenth of one that reads the memory again.
    finite, flags = True, np.empty(min(_BLOCK_ELEMENTS, values.size), np.bool_)
    # An overflow of the product is not noticed here: it is none of the gradient.
    with np.errstate(all="ignore"):
        for start in range(0, target.size, _BLOCK_ELEMENTS):
            end = start + _BLOCK_ELEMENTS
            block = values[start:end] if values.size > 1 else values
            write(target[start:end], block, factor)
            finite = finite and bool(np.isfinite(block, out=flags[: block.size]).all())
    return finite


def _write_product(target: Array, values: Array, factor: float) -> None:
    if target.itemsize < 4:
        np.copyto(target, (values.astype(np.float32) * np.float32(factor)).astype(target.dtype))
    else:
        np.multiply(values, target.dtype.type(factor), out=target)


def _write_sum(target: Array, values: Array, factor: float) -> None:
    if target.itemsize < 4:
        total = target.astype(np.float32) + values.astype(np.float32) * np.float32(factor)
        np.copyto(target, total.astype(target.dtype))
    else:
        target += values * target.dtype.type(factor)


def _divide(tensor: Any, divisor: Any) -> Any:
    wide = tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor
    return tf.cast(wide / tf.cast(divisor, wide.dtype), tensor.dtype)


def _host_array(value: Any) -> Array:
    """The values of a tensor or variable, without a copy where TensorFlow allows it."""
    tensor = tf.convert_to_tensor(value)
    # bfloat16 has no code in Python's buffer protocol.
    array: Array = tensor.numpy() if tensor.dtype == tf.bfloat16 else as_array(tensor)
    return array


def _is_finite(values: Array) -> bool:
    return bool(np.isfinite(values.astype(np.float64)).all())


def _element_count(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=int))


def _numpy_type(variable: Any) -> Any:
    return np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)


def _checksum(variable: Any) -> int:
    return crc32(np.ascontiguousarray(_host_array(variable)).reshape(-1).view(np.uint8).data)


def _byte_size(variable: Any) -> int:
    return _element_count(variable) * int(_numpy_type(variable).itemsize)


def _padded(size: int) -> int:
    return -(-size // _PACKED_ALIGNMENT) * _PACKED_ALIGNMENT


def _describe(variable: Any) -> list[Any]:
    """Shape and type of a variable or an array."""
    return [list(variable.shape), str(variable.dtype)]
