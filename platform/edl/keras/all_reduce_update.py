"""One update under strategy AllReduce: the buffers that are summed over all ranks, and what applies the sums.

``replica_state`` chooses it for every job that may have a second rank; ``optimizer_update`` is its port. A rank that
adds several minibatches in a step (gradient accumulation) adds them to the same buffers.

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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.keras.model_contract import ModelModule
from edl.keras.model_loss import LossReduction, updating_optimizers
from edl.keras.optimizer_update import ReplicaUpdate
from edl.keras.out_of_range_ids import MODEL_LOCATION
from edl.keras.traced_function import as_tensor, host_array
from edl.keras.user_code import user_code
from edl.keras.xla_compiled_update import UpdateFunction
from edl.numerics.aligned_memory import ALIGNMENT, allocate_aligned
from edl.reporting.unit_formats import format_bytes

Array = NDArray[Any]

_RECORDS, _AVERAGED, _SUMMED, _COUNTS = range(4)
"""The counts at the end of a buffer: records, ranks whose loss is a mean, ranks whose loss is a sum. After them, for
each trained variable, the number of ranks that have a gradient for it."""
_BLOCK_ELEMENTS = 1 << 16
COMPILED_UPDATE_ELEMENTS = 1 << 18
"""XLA compiles an update of at least so many trained elements. Compiling takes about half a second, which saves less
than half a millisecond a step in a smaller model."""


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


class SummedUpdate(ReplicaUpdate):
    """One update of some variables by one optimizer, with the sums over all ranks.

    Args:
        module: the user's model module.
        model: the built model.
        optimizer: a Keras optimizer that is built.
        trained: the variables that it changes.
        statistics: the variables whose changes are averaged over the ranks.
        max_dense_gradient: ``strategy.max_dense_gradient``, in bytes.
        of_own_step: as of :class:`ReplicaUpdate`.
    """

    def __init__(
        self,
        module: ModelModule,
        model: Any,
        optimizer: Any,
        trained: Sequence[Any],
        statistics: Sequence[Any],
        max_dense_gradient: int,
        *,
        of_own_step: bool = False,
    ) -> None:
        super().__init__(optimizer, trained, statistics, of_own_step=of_own_step)
        self._module = module
        self._optimizer_variable_count = len(optimizer.variables)
        self._max_dense_gradient = max_dense_gradient
        self._moving_variances = _find_moving_variances(model, self.statistics)
        self._sections = _make_sections(self.trained, self.statistics)
        self.buffers = tuple(
            allocate_aligned(section.tail.stop, dtype=tf.as_dtype(section.dtype).as_numpy_dtype)
            for section in self._sections
        )
        self.gradient_counts = tuple(section.tail.start for section in self._sections)
        self.clear()
        by_position = {
            at: buffer[slot]
            for section, buffer in zip(self._sections, self.buffers, strict=True)
            for at, slot in section.slots.items()
        }
        self._gradient_views = [by_position[at] for at in range(len(self.trained))]
        self._tail_views = [buffer[s.tail] for s, buffer in zip(self._sections, self.buffers, strict=True)]
        self._is_compiled = sum(map(element_count, self.trained)) >= COMPILED_UPDATE_ELEMENTS
        self._apply_by_case: dict[tuple[tuple[bool, ...], bool, bool], UpdateFunction] = {}

    def clear(self) -> None:
        """Set the buffers to the addend of a rank without records: zero."""
        for buffer in self.buffers:
            buffer.fill(0)

    def write(self, gradients: Sequence[Any], tails: Sequence[Any], weight: float, *, adds: bool) -> bool:
        """Write this rank's addend to the buffers, multiplied by its weight, and return whether it is finite."""
        write = _add_product if adds else _multiply_into
        finite = [
            write(view, host_array(gradient).reshape(-1), weight)
            for view, gradient in zip(self._gradient_views, gradients, strict=True)
        ]
        finite += [write(view, host_array(tail), 1.0) for view, tail in zip(self._tail_views, tails, strict=True)]
        # Dynamic loss scaling expects infinite gradients: it skips the update and lowers the scale.
        return self.skips_infinite_gradients or all(finite)

    def apply(self, total_weight: float, rate_factor: float | None = None) -> None:
        """Apply the buffers, which hold the sums over all ranks.

        Args:
            total_weight: the sum of all ranks' weights. A summed loss is not divided by it.
            rate_factor: the update uses the optimizer's learning rate times this number. The rate that
                callbacks and checkpoints see stays as it is. None: 1.

        Raises:
            ValueError: no rank had records.
            BadInputError: the loss is a sum on one rank and a mean on another; a sum exceeds the range of float16; or
                the optimizer creates a variable.
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
        self._refuse_infinite_sums()
        summed = bool(counts[_SUMMED])
        # Without a weight (all sample weights are 0) all gradients are 0, with those of the regularizers.
        adds_regularizers = summed or not total_weight
        case = (tuple(bool(count) for count in counts[_COUNTS:]), adds_regularizers, rate_factor is not None)
        function = self._apply_by_case.get(case)
        if function is None:
            function = UpdateFunction(partial(self._apply_graph, *case), compiles=self._is_compiled)
            self._apply_by_case[case] = function
        divisor = 1.0 if summed else total_weight or 1.0
        with user_code(self._module.zoo, "the optimizer", function=self._module.optimizer):
            function(
                [as_tensor(view) for view in self._gradient_views],
                [as_tensor(view) for view in self._tail_views],
                tf.constant(divisor, tf.float64),
                tf.constant(counts[_RECORDS], tf.float64),
                tf.constant(rate_factor or 1.0, tf.float64),
            )

    def _refuse_infinite_sums(self) -> None:
        """Refuse a sum of finite gradients that float16 cannot hold: it is multiplied by the records of the step."""
        if self.skips_infinite_gradients:
            return
        for section, buffer in zip(self._sections, self.buffers, strict=True):
            if section.dtype == "float16" and not _is_finite(buffer):
                raise BadInputError(
                    f"the gradient of '{self.find_nonfinite()}', summed over the records of a step, exceeds the range "
                    "of float16 (65,504)",
                    where=MODEL_LOCATION,
                    hint="use float32 variables, such as with the policy mixed_float16, or bfloat16",
                )

    def find_nonfinite(self) -> str:
        """The first variable whose gradient or statistic in the buffers is not finite."""
        nonfinite = (v.path for v, view in zip(self.trained, self._gradient_views, strict=True) if not _is_finite(view))
        if name := next(nonfinite, ""):
            return name
        for section, tail in zip(self._sections, self._tail_views, strict=True):
            start = 0
            for variable in (self.statistics[at] for at in section.statistics):
                size = element_count(variable)
                if not _is_finite(tail[start : start + size]):
                    return str(variable.path)
                start += size
        return "loss"

    # ------------------------------------------------------------------ traced functions

    def make_addend(
        self, gradients: Sequence[Any], before: Sequence[Any], reduction: LossReduction | None, records: Any
    ) -> tuple[list[Any], list[Any]]:
        """As of :class:`ReplicaUpdate`.

        Raises:
            BadInputError: gradients of looked-up rows are too large once they are dense: together they have more than
                ``max_dense_gradient`` bytes.
        """
        self._refuse_large_tables(gradients)
        return super().make_addend(gradients, before, reduction, records)

    def _refuse_large_tables(self, gradients: Sequence[Any]) -> None:
        tables = [v for v, g in zip(self.trained, gradients, strict=True) if isinstance(g, tf.IndexedSlices)]
        size = sum(map(byte_size, tables))
        if size > self._max_dense_gradient:
            largest = max(tables, key=byte_size)
            raise BadInputError(
                f"the gradients of looked-up rows have {format_bytes(size)} in each step, "
                f"{format_bytes(byte_size(largest))} of them for the variable '{largest.path}' "
                f"{tuple(largest.shape)}, and strategy.max_dense_gradient is "
                f"{format_bytes(self._max_dense_gradient)}",
                where=MODEL_LOCATION,
                hint="under AllReduce they are as large as their tables; train with strategy: {name: ParameterServer}, "
                "which sends the rows of a minibatch, or raise strategy.max_dense_gradient",
            )

    def _make_tails(
        self,
        gradients: Sequence[Any],
        has_gradient: Sequence[bool],
        before: Sequence[Any],
        after: Sequence[Any],
        reduction: LossReduction | None,
        records: Any,
    ) -> list[Any]:
        """The ends of the buffers: the statistics' changes times the number of records, and the counts."""
        changes = [new - old for new, old in zip(after, before, strict=True)]
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
        adds_regularizers: bool,
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
            for total, variable, present in zip(gradient_sums, self.trained, has_gradient, strict=True)
        ]
        changes: list[Any] = [None] * len(self.statistics)
        for section, tail in zip(self._sections, tails, strict=True):
            start = 0
            for at in section.statistics:
                variable = self.statistics[at]
                size = element_count(variable)
                changes[at] = _divide(tf.reshape(tail[start : start + size], variable.shape), records)
                start += size
        self._assign_statistics(changes)
        if adds_regularizers:
            self._add_regularizer_gradients(gradients)
        with _scaled_learning_rate(self.optimizer, rate_factor) if scales_rate else nullcontext():
            self._call_optimizer(gradients)
        new = list(self.optimizer.variables)[self._optimizer_variable_count :]
        if new:
            raise BadInputError(
                f"the optimizer's variable '{new[0].path}' was created by a step, after the optimizer was built",
                where="the optimizer",
                hint="create all variables in build()",
            )

    def _assign_statistics(self, changes: Sequence[Any]) -> None:
        values = [v.value + change for v, change in zip(self.statistics, changes, strict=True)]
        for at, moving in self._moving_variances.items():
            difference = changes[moving.mean_position]
            spread = values[at] - difference * difference / (1 - moving.momentum)
            # The union's variance is not negative, but the difference of rounded numbers may be.
            values[at] = tf.maximum(spread, tf.zeros_like(spread))
        for variable, value in zip(self.statistics, values, strict=True):
            variable.value.assign(value)

    def _add_regularizer_gradients(self, gradients: list[Any]) -> None:
        regularized = regularized_variables(self.trained)
        if not regularized:
            return
        with tf.GradientTape() as tape:
            losses = [tf.reduce_sum(variable.regularizer(variable)) for variable in regularized]
            scaled = self.optimizer.scale_loss(tf.add_n([tf.cast(loss, tf.float32) for loss in losses]))
        gradient_by_id = dict(
            zip(map(id, regularized), tape.gradient(scaled, [variable.value for variable in regularized]), strict=True)
        )
        for at, variable in enumerate(self.trained):
            more = gradient_by_id.get(id(variable))
            if more is not None:
                gradients[at] = more if gradients[at] is None else gradients[at] + more

    def _counts(self) -> Array:
        """The counts at the end of their buffer."""
        (tail,) = (tail for s, tail in zip(self._sections, self._tail_views, strict=True) if s.has_counts)
        return tail[-_COUNTS - len(self.trained) :]


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


def regularized_variables(variables: Iterable[Any]) -> list[Any]:
    """Those of the variables that have a regularizer."""
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
                slots[at] = slice(end, end + element_count(variable))
                end = -(-slots[at].stop // step) * step
        changed = tuple(at for at, variable in enumerate(statistics) if variable.dtype == dtype)
        size = sum(element_count(statistics[at]) for at in changed)
        size += _COUNTS + len(trained) if dtype == with_counts else 0
        sections.append(_Section(dtype, slots, slice(end, end + size), changed, dtype == with_counts))
    return tuple(sections)


def _find_moving_variances(model: Any, statistics: Sequence[Any]) -> dict[int, _MovingVariance]:
    """The moving variances of BatchNormalization, by their position among the statistics."""
    positions = {id(variable): at for at, variable in enumerate(statistics)}
    moving_variances = {}
    for layer in model._flatten_layers():
        if not isinstance(layer, keras.layers.BatchNormalization) or getattr(layer, "renorm", False):
            continue
        mean, variance = positions.get(id(layer.moving_mean)), positions.get(id(layer.moving_variance))
        if mean is not None and variance is not None and layer.momentum < 1:
            moving_variances[variance] = _MovingVariance(mean, float(layer.momentum))
    return moving_variances


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


def _is_finite(values: Array) -> bool:
    return bool(np.isfinite(values.astype(np.float64)).all())


def element_count(variable: Any) -> int:
    """The number of a variable's elements."""
    return int(np.prod(variable.shape, dtype=int))


def byte_size(variable: Any) -> int:
    """The bytes of a variable's values."""
    return element_count(variable) * int(tf.as_dtype(variable.dtype).size)
