"""The loss of a minibatch, with the semantics of Keras' ``compile`` and ``fit``.

The model module defines it in one of three ways:

* ``loss(labels, predictions)``: a function of all labels and all predictions. It returns one value, one value per
  record (these are averaged), or a mapping of such values by output (these are added);
* ``loss = "mse"``, or a ``keras.losses.Loss``: applied to each of the model's outputs;
* ``loss = {"output": "mse", ...}`` or a list: a loss for each output, which may also be a function of that output's
  labels and predictions. Outputs without a loss do not contribute.

``loss_weights`` weighs the outputs. Sample weights, the optional third part of a record from ``feed``, weigh records.
As in Keras' ``sum_over_batch_size``, the sum is divided by the number of records, not by the sum of the weights.
``class_weight`` gives each training record the weight of its class.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import itemgetter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.keras.feed_schema import SchemaFeed
from edl.keras.model_contract import WEIGHT_ARGUMENT_NAMES, ModelModule
from edl.keras.out_of_range_ids import refuse_broadcast
from edl.keras.user_code import source_file, user_code

_SHAPE_DEPENDENT_LOSSES = ("crossentropy", "ce")
"""Names that Keras' compile resolves by the shapes of labels and predictions."""

_COMPARING = ("circle", "dice", "tversky")
"""Keras' functions whose value depends on all records of a minibatch together."""

_MASKED_REDUCTIONS = ("mean", "sum_over_batch_size", "mean_with_sample_weight")
"""Reductions with which Keras divides a loss by its mask's sum."""


class LossReduction(Enum):
    """How the loss of a minibatch follows from the losses of its records.

    It decides how the gradients of several minibatches make the gradient of their union.
    """

    MEAN = "the mean over records"
    WEIGHTED_MEAN = "the mean over records, divided by the sum of their weights"
    SUM = "the sum over records"


class ModelLoss:
    """The loss of a model in training and evaluation; may be called in a traced function.

    Args:
        module: the user's module.
        outputs: names of the model's outputs, in order.

    Raises:
        BadInputError: ``loss``, ``loss_weights`` or ``class_weight`` is not valid in Keras.
    """

    def __init__(self, module: ModelModule, outputs: Sequence[str] = ()) -> None:
        self._module = module
        self._outputs = tuple(outputs)
        self._feed_file = source_file(module.feed)
        loss = module.loss
        is_function = callable(loss) and not isinstance(loss, keras.losses.Loss | type)
        self._is_function = is_function and not module.loss_of_each_output
        self._ignored_mask_warned = False
        self._takes_sample_weights = self._is_function and _has_weight_argument(loss)
        self._resolved_losses = None if self._is_function else _resolve_losses(loss, module)
        self._class_weight_table = _class_weight_table(module)

    def __call__(
        self, labels: Any, predictions: Any, weights: Any = None, model_losses: Sequence[Any] = (), *, training: bool
    ) -> Any:
        """The loss, a float32 scalar.

        Args:
            labels: the labels that ``feed`` yielded.
            predictions: the model's outputs.
            weights: the sample weights that ``feed`` yielded: ``(n,)`` or ``(n, 1)``, or one of these for each output.
            model_losses: the model's own losses, which are added.
            training: whether ``class_weight`` is applied; like Keras, only in training.

        Raises:
            BadInputError: labels, weights or outputs do not match; or, in training, a loss is not reduced.
        """
        if training:
            weights = self.training_weights(labels, weights)
        if self._is_function:
            loss = self._compute_function_loss(labels, predictions, weights)
        else:
            loss = self._compute_output_losses(labels, predictions, weights, training=training)
        extra = (tf.cast(tf.reduce_sum(each), tf.float32) for each in model_losses)
        return tf.add_n([tf.cast(loss, tf.float32), *extra])

    # ------------------------------------------------------------------ reduction

    @property
    def declared_reduction(self) -> LossReduction | None:
        """The reduction, if Keras computes the loss; else :meth:`try_reduction` finds it.

        Raises:
            BadInputError: the outputs' losses have different reductions.
        """
        losses = _declared_losses(self._resolved_losses)
        if self._is_function or any(not isinstance(loss, str) and not _is_keras_loss(loss) for _, loss in losses):
            return None
        reductions = {name: _keras_reduction(loss) for name, loss in losses}
        different = {reduction: name for name, reduction in reductions.items()}
        if len(different) > 1:
            texts = " and ".join(f"{name} is {reduction.value}" for reduction, name in different.items())
            raise self._input_error(
                f"the losses of the outputs have different reductions: {texts}",
                "give all of them the same reduction; loss_weights weighs the outputs",
            )
        return next(iter(different), LossReduction.MEAN)

    def try_reduction(self, labels: Any, predictions: Any, weights: Any = None) -> LossReduction | None:
        """Find the reduction of a user's loss: compute it for a minibatch, and for the same records twice.

        A loss that is neither a mean nor a sum, for example because it compares records with each other, counts as a
        mean, with a warning.

        Returns:
            None if this minibatch cannot tell: its loss is 0 or not finite, for other predictions, too.
        """
        # Parts and repetitions of predictions have no mask, so neither has the whole.
        predictions = tf.nest.map_structure(tf.identity, predictions)
        once = self._loss_value(labels, predictions, weights)
        if not once or not np.isfinite(once):
            # A layer that starts with zeros predicts 0 for all records, and a sum of products is 0 then.
            predictions = tf.nest.map_structure(_varied_values, predictions)
            once = self._loss_value(labels, predictions, weights)
        if not once or not np.isfinite(once):
            return None
        doubled = [None if each is None else _repeat_records(each) for each in (labels, predictions, weights)]
        ratio = self._loss_value(*doubled) / once
        if abs(ratio - 2) < _RATIO_TOLERANCE:
            return LossReduction.SUM
        if abs(ratio - 1) >= _RATIO_TOLERANCE:
            _LOG.warning(
                "the loss is neither a mean nor a sum over records (of the same records twice, it is %.3g times as "
                "large): each worker computes it for its own minibatch, and the results are averaged",
                ratio,
            )
        if weights is not None:
            heavier = tf.nest.map_structure(lambda weight: 2 * tf.convert_to_tensor(weight), weights)
            ratio = self._loss_value(labels, predictions, heavier) / once
            if abs(ratio - 1) < _RATIO_TOLERANCE:
                return LossReduction.WEIGHTED_MEAN
        self._warn_if_not_additive(labels, predictions, weights)
        return LossReduction.MEAN

    def warn_of_compared_records(self) -> None:
        """Warn if Keras computes one of the losses for a whole minibatch, although its reduction is called a mean."""
        for name, loss in _declared_losses(self._resolved_losses):
            if _compares_records(loss):
                _LOG.warning(
                    "%s is %s, which compares the records of a minibatch: each worker computes it for its own "
                    "minibatch, and the results are averaged",
                    name,
                    getattr(loss, "called", type(loss).__name__),
                )

    def _warn_if_not_additive(self, labels: Any, predictions: Any, weights: Any) -> None:
        """Warn if a mean loss of a minibatch is not the mean of the losses of its two parts."""
        everything = (labels, predictions, weights)
        records = int(tf.nest.flatten(predictions)[0].shape[0])
        first = records // 3 or 1
        if records < 2 or any(not can_slice(leaf) for leaf in tf.nest.flatten(everything)):
            return
        total = 0.0
        for part in (slice(0, first), slice(first, records)):
            cut = [None if each is None else tf.nest.map_structure(itemgetter(part), each) for each in everything]
            total += self._loss_value(*cut) * (part.stop - part.start)
        whole = self._loss_value(*everything)
        if np.isfinite(total) and abs(total / records - whole) > _RATIO_TOLERANCE * abs(whole):
            _LOG.warning(
                "the loss of a minibatch is not the mean of the losses of its records: it compares records, or divides "
                "by a number of its own. Each worker computes it for its own minibatch, and the results are averaged"
            )

    def _loss_value(self, labels: Any, predictions: Any, weights: Any) -> float:
        # Not as in training, which refuses a loss that a ``train_step`` may reduce by itself.
        return float(self(labels, predictions, self.training_weights(labels, weights), training=False))

    def minibatch_weight(
        self,
        reduction: LossReduction,
        records: Any,
        labels: Any,
        weights: Any = None,
        predictions: Any = None,
        loss_labels: Any = None,
        *,
        has_added_losses: bool = False,
    ) -> Any:
        """The number by which a minibatch's loss is multiplied, so that the sum belongs to the union of minibatches.

        Args:
            reduction: the reduction of the loss.
            records: the number of records, a tensor.
            labels: the labels that ``feed`` yielded.
            weights: the sample weights that ``feed`` yielded, if any.
            predictions: the model's outputs, whose masks count; None if they are not known.
            loss_labels: the labels that the loss gets; None: those that ``feed`` yielded.
            has_added_losses: whether layers add losses to it (``add_loss``), which are means over records.

        Returns:
            a float64 scalar: the number of records for a mean, whatever the sample weights, because Keras divides by
            the number of records, and with a mask the number of unmasked values; the sum of the sample weights if the
            loss divides by it, with a mask those of unmasked values; 1 for a sum.

        Raises:
            BadInputError: the loss divides by the sum of the sample weights, and each output has its own.
        """
        if reduction is LossReduction.SUM:
            return tf.constant(1, tf.float64)
        weights = self.training_weights(labels, weights)
        mask = None
        if predictions is not None:
            mask = self._loss_mask(labels if loss_labels is None else loss_labels, predictions)
        by_weights = reduction is LossReduction.WEIGHTED_MEAN and weights is not None
        if has_added_losses and (by_weights or mask is not None):
            _LOG.warning(
                "the loss divides by the %s, but a layer adds a loss of its own (add_loss, activity_regularizer): it "
                "is averaged over the workers in proportion to their shares of this sum, and not of the records",
                "sum of the sample weights" if by_weights else "number of unmasked values",
            )
        if not by_weights:
            return tf.cast(records, tf.float64) if mask is None else tf.reduce_sum(mask)
        leaves = tf.nest.flatten(weights)
        if len(leaves) > 1:
            raise self._input_error(
                "feed gives sample weights for each output, but each loss divides by their sum "
                "(mean_with_sample_weight): EDL cannot combine the losses of several workers",
                "use the reduction sum_over_batch_size",
            )
        if mask is not None:
            return tf.reduce_sum(mask * expand_weights(leaves[0], mask, "the mask", self._feed_file))
        return tf.reduce_sum(tf.cast(leaves[0], tf.float64))

    def _loss_mask(self, labels: Any, predictions: Any) -> Any:
        """The mask by whose sum Keras divides the losses, as float64; None if there is none.

        Keras applies the mask of a prediction in its class ``Loss``, not in a function of all outputs. A loss with
        ``ignore_class`` has a mask of its labels besides.
        """
        if self._is_function:
            return None
        by_output = self._tensors_by_output(predictions, "the model")
        losses = self._losses_by_output(by_output)
        masks = [getattr(by_output[name], "_keras_mask", None) for name in losses]
        if any(_ignores_class(loss) for loss in losses.values()):
            labels_by_output = self._labels_by_output(labels, by_output, losses)
            masks = [
                _add_label_mask(mask, loss, labels_by_output[name], by_output[name])
                for mask, (name, loss) in zip(masks, losses.items(), strict=True)
            ]
        if all(mask is None for mask in masks):
            return None
        # One without reduction gives a value per record, of which a ``train_step`` may take the mean over all.
        if any(getattr(loss, "reduction", "mean") not in _MASKED_REDUCTIONS for loss in losses.values()):
            return None
        if any(mask is not masks[0] for mask in masks):
            _LOG.warning(
                "the losses of %s divide by different masks: each worker computes them for its own minibatch, and the "
                "results are averaged by records",
                ", ".join(losses),
            )
            return None
        return tf.cast(masks[0], tf.float64)

    def training_weights(self, labels: Any, weights: Any) -> Any:
        """The sample weights of training records: those of ``class_weight``, else those that ``feed`` yielded.

        Raises:
            BadInputError: there are both, or labels without a class.
        """
        return weights if self._class_weight_table is None else self._class_sample_weights(labels, weights)

    # ------------------------------------------------------------------ one function of all outputs

    def _compute_function_loss(self, labels: Any, predictions: Any, weights: Any) -> Any:
        function = self._module.loss
        self._warn_of_ignored_mask(predictions)
        if weights is not None and self._takes_sample_weights:
            function_loss = function(labels, predictions, weights)
            refuse_broadcast("loss()", function, labels, predictions, function_loss, weights)
            weights = None
        else:
            function_loss = function(labels, predictions)
            refuse_broadcast("loss()", function, labels, predictions, function_loss)
        if not isinstance(function_loss, Mapping):
            return weighted_mean(function_loss, weights, "loss()", self._feed_file)
        known_outputs = self._tensors_by_output(predictions, "the model")
        self._refuse_unknown_outputs(function_loss, known_outputs, "loss() gives")
        parts = self._weights_by_output(weights, known_outputs)
        return self._weighted_loss_sum(
            {
                name: weighted_mean(function_loss[name], parts[name], f"loss() of '{name}'", self._feed_file)
                for name in known_outputs
                if name in function_loss
            }
        )

    def _warn_of_ignored_mask(self, predictions: Any) -> None:
        masked = any(getattr(each, "_keras_mask", None) is not None for each in tf.nest.flatten(predictions))
        if masked and not self._ignored_mask_warned:
            self._ignored_mask_warned = True
            _LOG.warning(
                "the model's predictions have a mask, which a function loss() does not apply by itself: exclude "
                "padding in it, or use a keras.losses.Loss, such as loss = keras.losses.MeanSquaredError()"
            )

    # ------------------------------------------------------------------ one loss per output

    def _compute_output_losses(self, labels: Any, predictions: Any, weights: Any, *, training: bool) -> Any:
        by_output = self._tensors_by_output(predictions, "the model")
        losses = self._losses_by_output(by_output)
        labels_by_output = self._labels_by_output(labels, by_output, losses)
        parts = self._weights_by_output(weights, by_output)
        loss_by_output = {}
        for name, output_loss in losses.items():
            label, prediction = labels_by_output[name], by_output[name]
            loss = _loss_for_shapes(output_loss, label, prediction)
            if _is_keras_loss(loss):
                self._refuse_string_labels(
                    label, f"the loss {getattr(loss, 'called', type(loss).__name__)} needs numbers"
                )
            value = loss(label, prediction, parts[name])
            if _is_user_loss(loss):
                loss_text = f"the loss {type(loss).__name__}" + (f" of '{name}'" if len(by_output) > 1 else "")
                refuse_broadcast(loss_text, loss, label, prediction, value, where=source_file(type(loss)))
            if training and value.shape.rank != 0:
                self._refuse_unreduced(loss, name if len(by_output) > 1 else "")
            loss_by_output[name] = tf.reduce_mean(value)
        return self._weighted_loss_sum(loss_by_output)

    def _refuse_unreduced(self, loss: Any, output: str) -> None:
        of_output = f" of '{output}'" if output else ""
        raise self._input_error(
            f"the loss {type(loss).__name__}{of_output} gives a value per record (reduction={loss.reduction!r}), "
            "so Keras would train their sum, and count regularizers once for each of them",
            "let it return one number: give it reduction='sum_over_batch_size' for the mean, or reduction='sum'",
        )

    def _refuse_string_labels(self, labels: Any, reason: str) -> None:
        if tf.convert_to_tensor(labels).dtype == tf.string:
            raise self._input_error(
                f"feed gives labels that are strings, but {reason}",
                "convert them to numbers in feed: digits with tf.strings.to_number, names with "
                "keras.layers.StringLookup(vocabulary=[...], num_oov_indices=0)",
            )

    def _losses_by_output(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """The loss of each output that has one, in the order of the outputs."""
        losses = self._resolved_losses
        if isinstance(losses, Mapping):
            self._refuse_unknown_outputs(losses, outputs, "loss has")
            loss_by_output = {name: losses.get(name) for name in outputs}
        elif isinstance(losses, list):
            if len(losses) != len(outputs):
                raise self._input_error(
                    f"loss has {len(losses)} entries, but the model has {len(outputs)} outputs: {_quote_names(outputs)}"
                )
            loss_by_output = dict(zip(outputs, losses, strict=True))
        else:
            loss_by_output = dict.fromkeys(outputs, losses)
        return {name: loss for name, loss in loss_by_output.items() if loss is not None}

    def _labels_by_output(
        self, labels: Any, outputs: Mapping[str, Any], losses: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        if isinstance(labels, Mapping):
            missing = [name for name in losses if name not in labels]
            if missing and len(labels) == len(outputs) == 1:
                return dict(zip(outputs, labels.values(), strict=True))
            if missing:
                raise self._input_error(
                    f"feed gives labels for {_quote_names(labels)}, but '{missing[0]}' has a loss and no labels"
                )
            return labels
        label_list = list(labels) if isinstance(labels, list | tuple) else [labels]
        if len(label_list) != len(outputs):
            outputs_text = f"the model has {len(outputs)} outputs: {_quote_names(outputs)}"
            if isinstance(self._module.feed, SchemaFeed):
                raise BadInputError(
                    f"gives one label per record, but {outputs_text}",
                    where="data.schema.label",
                    hint="remove data.schema, and define feed(dataset, mode, metadata) in the model module: it gives "
                    "labels by the outputs' names, as a dict",
                )
            count = len(label_list)
            raise self._input_error(
                f"feed gives {count} {'label' if count == 1 else 'labels'} per record, but {outputs_text}",
                "give labels by the outputs' names, as a dict",
            )
        return dict(zip(outputs, label_list, strict=True))

    def _weighted_loss_sum(self, by_output: Mapping[str, Any]) -> Any:
        weights = _output_loss_weights(self._module, by_output)
        values = [tf.cast(value, tf.float32) * weights[name] for name, value in by_output.items()]
        if not values:
            raise self._input_error("none of the model's outputs has a loss")
        return tf.add_n(values)

    def _tensors_by_output(self, structure: Any, origin: str) -> dict[str, Any]:
        """The tensors of a flat structure by output name, or by index if there are no names."""
        if isinstance(structure, Mapping):
            # What is in lists has this order in Keras.
            in_order = structure if isinstance(structure, OrderedDict) else sorted(structure)
            tensors = {name: structure[name] for name in in_order}
        else:
            tensor_list = list(structure) if isinstance(structure, list | tuple) else [structure]
            names = (
                self._outputs if len(self._outputs) == len(tensor_list) else tuple(map(str, range(len(tensor_list))))
            )
            tensors = dict(zip(names, tensor_list, strict=True))
        nested = [name for name, value in tensors.items() if isinstance(value, Mapping | list | tuple)]
        if nested:
            raise self._input_error(
                f"{origin} gives several tensors for '{nested[0]}'", "write loss(labels, predictions) as a function"
            )
        return tensors

    def _weights_by_output(self, weights: Any, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The sample weights of each output; a single tensor applies to all, as in Keras."""
        if isinstance(weights, Mapping):
            self._refuse_unknown_outputs(weights, outputs, "feed gives sample weights for")
            return {name: weights.get(name) for name in outputs}
        if not isinstance(weights, list | tuple):
            return dict.fromkeys(outputs, weights)
        if len(weights) != len(outputs):
            raise self._input_error(
                f"feed gives {len(weights)} sample weights, but the model has {len(outputs)} outputs"
            )
        return dict(zip(outputs, weights, strict=True))

    def _refuse_unknown_outputs(
        self, values_by_name: Mapping[str, Any], outputs: Mapping[str, Any], beginning: str
    ) -> None:
        unknown = [name for name in values_by_name if name not in outputs]
        if unknown:
            raise self._input_error(
                f"{beginning} '{unknown[0]}', but the outputs of the model are {_quote_names(outputs)}"
            )

    # ------------------------------------------------------------------ class weights

    def _class_sample_weights(self, labels: Any, weights: Any) -> Any:
        """Class weights as in Keras.

        The class is the label, or the index of the 1 in a one-hot label; other records get 1.
        """
        table = self._class_weight_table
        assert table is not None
        if weights is not None:
            raise self._input_error(
                "feed yields sample weights, but the model module also has class_weight",
                "multiply both in feed, and remove class_weight",
            )
        if isinstance(labels, Mapping | list | tuple):
            raise self._input_error(
                "class_weight needs a single output, but the labels have several", "yield sample weights in feed"
            )
        self._refuse_string_labels(labels, "the classes of class_weight are numbers")
        labels = tf.convert_to_tensor(labels)
        if labels.shape.rank > 1 and labels.shape[-1] != 1:
            classes = tf.argmax(labels, axis=-1, output_type=tf.int32)
        else:
            squeezed = tf.squeeze(labels, axis=-1) if labels.shape.rank > 1 else labels
            classes = tf.cast(tf.round(squeezed) if labels.dtype.is_floating else squeezed, tf.int32)
        known = tf.logical_and(classes >= 0, classes < len(table))
        # tf.gather raises on a CPU for a class outside of the table, so these look up class 0
        # first.
        class_weights = tf.gather(tf.constant(table), tf.where(known, classes, 0))
        return tf.where(known, class_weights, 1.0)

    def _input_error(self, message: str, hint: str | None = None) -> BadInputError:
        return BadInputError(message, where=self._feed_file, hint=hint)


_RATIO_TOLERANCE = 0.01
"""How far the ratio of two losses may be from a whole number: float32 sums in another order differ slightly."""


def _declared_losses(losses: Any) -> list[tuple[str, Any]]:
    """The losses that are set, by their name in messages."""
    if isinstance(losses, Mapping):
        named = [(f"loss['{name}']", loss) for name, loss in losses.items()]
    elif isinstance(losses, list):
        named = [(f"loss[{at}]", loss) for at, loss in enumerate(losses)]
    else:
        named = [("loss", losses)]
    return [(name, loss) for name, loss in named if loss is not None]


def _keras_reduction(loss: Any) -> LossReduction:
    """The reduction of a loss that Keras computes; a loss per record is averaged."""
    by_name = {"sum": LossReduction.SUM, "mean_with_sample_weight": LossReduction.WEIGHTED_MEAN}
    return by_name.get(getattr(loss, "reduction", ""), LossReduction.MEAN)


def _varied_values(predictions: Any) -> Any:
    """Values between 0.25 and 0.75 of the same shape and type, the same ones each time; probabilities are possible."""
    tensor = tf.convert_to_tensor(predictions)
    if not tensor.dtype.is_floating:
        return tensor
    return tf.cast(tf.constant(np.random.default_rng(0).uniform(0.25, 0.75, tensor.shape)), tensor.dtype)


def _repeat_records(structure: Any) -> Any:
    """The same records twice."""

    def repeat(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            return tf.sparse.concat(0, [leaf, leaf])
        return tf.concat([leaf, leaf], 0)

    return tf.nest.map_structure(repeat, structure)


def _compares_records(loss: Any) -> bool:
    if isinstance(loss, keras.losses.Circle) or (_is_keras_loss(loss) and getattr(loss, "called", "") in _COMPARING):
        return True
    # Without axis, they sum over all records.
    return isinstance(loss, keras.losses.Dice | keras.losses.Tversky) and loss.axis is None


def _ignores_class(loss: Any) -> bool:
    return getattr(loss, "ignore_class", None) is not None


def _add_label_mask(mask: Any, loss: Any, labels: Any, predictions: Any) -> Any:
    """The mask of predictions together with that of labels, which a loss with ``ignore_class`` gives its values."""
    if not _ignores_class(loss):
        return mask
    given = (keras.ops.convert_to_tensor(each, dtype=loss.dtype) for each in (labels, predictions))
    of_labels = getattr(loss.call(*given), "_keras_mask", None)
    if mask is None or of_labels is None:
        return mask if of_labels is None else of_labels
    return tf.logical_and(mask, of_labels)


def can_slice(leaf: Any) -> bool:
    """Whether a leaf of a minibatch can be cut by records; None can."""
    if leaf is None or isinstance(leaf, tf.RaggedTensor):
        return True
    return not isinstance(leaf, tf.SparseTensor) and tf.convert_to_tensor(leaf).shape.rank != 0


def _is_user_loss(loss: Any) -> bool:
    """Whether the loss class is the user's own.

    Keras' and EDL's classes align the ranks of labels and predictions.
    """
    return type(loss).__module__.partition(".")[0] not in ("keras", "edl")


def _is_keras_loss(loss: Any) -> bool:
    """Whether Keras computes the loss."""
    return loss.is_keras_function if isinstance(loss, _FunctionLoss) else _is_keras_module(type(loss).__module__)


def _is_keras_module(module: str) -> bool:
    return module.partition(".")[0] == "keras"


class _FunctionLoss(keras.losses.Loss):  # type: ignore[misc]
    """A function of one output's labels and predictions, squeezed to equal ranks as Keras' compile does."""

    def __init__(self, function: Callable[[Any, Any], Any], name: str) -> None:
        super().__init__(name=name)
        self.called = name
        self._function = function

    @property
    def is_keras_function(self) -> bool:
        """Whether the function is one of Keras, which needs numbers."""
        return _is_keras_module(getattr(self._function, "__module__", ""))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._function(*match_ranks(y_true, y_pred))


def match_ranks(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Align the ranks if one of the two has an extra last dimension of 1, as Keras' losses do."""
    labels, predictions = tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions)
    ranks = labels.shape.rank, predictions.shape.rank
    if ranks[0] == ranks[1] + 1 and labels.shape[-1] == 1:
        return (labels, predictions[..., None]) if ranks[1] == 1 else (labels[..., 0], predictions)
    if ranks[1] == ranks[0] + 1 and predictions.shape[-1] == 1:
        return (labels[..., None], predictions) if ranks[0] == 1 else (labels, predictions[..., 0])
    return labels, predictions


def weighted_mean(values: Any, weights: Any, value_text: str, where: str | None = None) -> Any:
    """The mean of weighted values: the sum divided by the number of values, not by the sum of weights.

    Args:
        values: any shape, records first; a scalar only without weights.
        weights: ``(n,)``, or as many dimensions as the values; None: no weights.
        value_text: the name of the values in messages.
        where: the user's file.

    Raises:
        BadInputError: there are weights, but the value is a scalar for all records.
    """
    values = tf.convert_to_tensor(values)
    if weights is None:
        return tf.reduce_mean(values)
    return tf.reduce_mean(values * expand_weights(weights, values, value_text, where))


def expand_weights(weights: Any, values: Any, value_text: str, where: str | None = None) -> Any:
    """The sample weights with as many dimensions as the values.

    Raises:
        BadInputError: the values are one number for all records.
    """
    if values.shape.rank == 0:
        raise BadInputError(
            f"{value_text} is one number for all records of the minibatch: sample weights cannot be applied to it",
            where=where,
            hint=(
                "return one value per record, or take the weights as a third argument: "
                "loss(labels, predictions, sample_weights=None)"
            ),
        )
    weights = tf.cast(tf.convert_to_tensor(weights), values.dtype)
    if weights.shape.rank == values.shape.rank + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while weights.shape.rank < values.shape.rank:
        weights = weights[..., None]
    return weights


def classification_kind(labels: Any, predictions: Any) -> str:
    """``binary``, ``sparse`` or ``categorical``: how Keras' compile resolves accuracy and crossentropy."""
    if predictions.shape[-1] == 1:
        return "binary"
    sparse = labels.shape.rank < predictions.shape.rank or labels.shape[-1] == 1
    return "sparse" if sparse else "categorical"


_CROSSENTROPIES: Mapping[str, str] = {
    "binary": "binary_crossentropy",
    "sparse": "sparse_categorical_crossentropy",
    "categorical": "categorical_crossentropy",
}


def _loss_for_shapes(loss: Any, labels: Any, predictions: Any) -> Any:
    if not isinstance(loss, str):
        return loss
    name = _CROSSENTROPIES[classification_kind(tf.convert_to_tensor(labels), predictions)]
    return _FunctionLoss(keras.losses.get(name), name)


def _resolve_losses(losses: Any, module: ModelModule) -> Any:
    """Convert a loss, or a list or mapping of losses, to objects."""
    if isinstance(losses, Mapping):
        return {name: _resolve_loss(each, module, f"loss['{name}']") for name, each in losses.items()}
    if isinstance(losses, list | tuple):
        return [_resolve_loss(each, module, f"loss[{at}]") for at, each in enumerate(losses)]
    return _resolve_loss(losses, module, "loss")


def _resolve_loss(loss: Any, module: ModelModule, loss_text: str) -> Any:
    where = source_file(module.feed)
    if (
        loss is None
        or isinstance(loss, keras.losses.Loss)
        or (isinstance(loss, str) and loss in _SHAPE_DEPENDENT_LOSSES)
    ):
        return loss
    if isinstance(loss, type) and issubclass(loss, keras.losses.Loss):
        raise BadInputError(
            f"{loss_text} is the class {loss.__name__}, expected an instance: {loss.__name__}()", where=where
        )
    if isinstance(loss, str):
        try:
            keras_loss = keras.losses.get(loss)
        except ValueError as error:
            hint = "a name is one of keras.losses, such as mse or sparse_categorical_crossentropy"
            raise BadInputError(f"{loss_text}: Keras knows no loss called '{loss}'", where=where, hint=hint) from error
        return keras_loss if isinstance(keras_loss, keras.losses.Loss) else _FunctionLoss(keras_loss, loss)
    if not callable(loss):
        raise BadInputError(
            f"{loss_text} is {type(loss).__name__}, expected a name, a keras.losses.Loss or a function of (labels, "
            "predictions)",
            where=where,
        )

    def guarded(labels: Any, predictions: Any) -> Any:
        with user_code(module.zoo, loss_text, function=loss):
            return loss(labels, predictions)

    name = getattr(loss, "__name__", "")
    # A lambda's name would not be a valid TensorFlow scope.
    return _FunctionLoss(guarded, name if name.isidentifier() else "loss")


def _output_loss_weights(module: ModelModule, outputs: Mapping[str, Any]) -> Mapping[str, float]:
    loss_weights, where = module.loss_weights, source_file(module.feed)
    if loss_weights is None:
        return dict.fromkeys(outputs, 1.0)
    if isinstance(loss_weights, Mapping):
        unknown = [name for name in loss_weights if name not in outputs]
        if unknown:
            raise BadInputError(
                f"loss_weights has '{unknown[0]}', but the outputs with a loss are {_quote_names(outputs)}", where=where
            )
        return {name: float(loss_weights.get(name, 1.0)) for name in outputs}
    weights = [loss_weights] if isinstance(loss_weights, int | float) else list(loss_weights)
    if len(weights) != len(outputs):
        raise BadInputError(
            f"loss_weights has {len(weights)} entries, but there are {len(outputs)} losses: {_quote_names(outputs)}",
            where=where,
        )
    return dict(zip(outputs, map(float, weights), strict=True))


def _class_weight_table(module: ModelModule) -> Any:
    """Weights by class, 1 for unlisted classes; None if there are none."""
    class_weight, where = module.class_weight, source_file(module.feed)
    class_weight = class_weight() if callable(class_weight) else class_weight
    if class_weight is None:
        return None
    try:
        weights = {int(label): float(weight) for label, weight in dict(class_weight).items()}
    except (TypeError, ValueError) as error:
        raise BadInputError(f"class_weight is {class_weight!r}, expected weights by class", where=where) from error
    if not weights or min(weights) < 0 or not all(np.isfinite(list(weights.values()))):
        raise BadInputError(
            f"class_weight is {class_weight!r}: classes are counted from 0, and weights are finite numbers", where=where
        )
    table = np.ones(max(weights) + 1, np.float32)
    for label, weight in weights.items():
        table[label] = weight
    return table


def _has_weight_argument(function: Callable[..., Any]) -> bool:
    try:
        names = [str(name).lower() for name in inspect.signature(function).parameters]
    except ValueError:
        # Built in C: there is no signature to inspect.
        return False
    return len(names) > 2 and names[2] in WEIGHT_ARGUMENT_NAMES


def _quote_names(names: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


# --------------------------------------------------------------------------------------------------
# Loss scaling: in float16, gradients below 6e-8 become 0 unless the loss is scaled. ``keras.fit``
# wraps the optimizer of a ``mixed_float16`` model in a ``LossScaleOptimizer``. EDL uses the
# optimizer as it is: parameter servers support no scaling one, and strategy Local uses what the
# user's ``optimizer()`` returns.


_LOG = logging.getLogger(__name__)


def uses_dynamic_loss_scaling(optimizer: Any) -> bool:
    """Whether the optimizer lowers its scale when gradients are not finite, and skips that step."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def updating_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers that update variables: without a ``LossScaleOptimizer``, and each of a ``MultiOptimizer``."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return list(optimizer.optimizers) if isinstance(optimizer, keras.optimizers.MultiOptimizer) else [optimizer]


def warn_if_loss_unscaled(model: Any, optimizer: Any, *, trains_locally: bool) -> None:
    """Warn and name a layer that computes in float16 if the loss is not scaled.

    Args:
        model: the user's model.
        optimizer: the user's optimizer.
        trains_locally: whether Keras' optimizer updates the variables, not the PS.
    """
    if uses_dynamic_loss_scaling(optimizer) or getattr(optimizer, "loss_scale_factor", None):
        return
    containers = (keras.Model, keras.layers.InputLayer)
    half_precision_layers = (
        layer for layer in model._flatten_layers(include_self=False) if layer.compute_dtype == "float16"
    )
    layer = next((layer for layer in half_precision_layers if not isinstance(layer, containers)), None)
    if layer is None and not (model.compute_dtype == "float16" and model.trainable_weights):
        return
    layer_text = f"the layer '{layer.name}'" if layer is not None else "the model"
    policy = (layer or model).dtype_policy.name
    scaling = ", or return a keras.optimizers.LossScaleOptimizer from optimizer()" if trains_locally else ""
    _LOG.warning(
        "%s computes in float16 (policy %s), but the loss is not scaled as keras.fit would do: gradients below 6e-8 "
        "become 0. Use the policy mixed_bfloat16, which needs no scaling%s",
        layer_text,
        policy,
        scaling,
    )
