"""A ``train_step`` that makes one update by ``self.optimizer``, under strategies AllReduce and Local.

``replica_choice`` says which steps that are; ``several_updates_train_step`` and ``whole_train_step`` train others.

The user's method runs while a graph is traced, and its optimizer keeps the gradients instead of applying them.
They are summed over all ranks, and Keras' optimizer applies the sum afterwards. So whatever leads to one call of
``self.optimizer.apply`` or ``apply_gradients`` works; code behind that call sees the variables before the update.
What has no place in this is refused by name: a second update in the step, or a variable that the step writes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from edl.api.errors import BadInputError
from edl.keras.compiled_model import restore_compile
from edl.keras.user_code import source_file
from edl.keras.written_variables import find_written_variables


@dataclass(frozen=True, slots=True)
class StepGradients:
    """What one traced call of ``train_step`` gave.

    Attributes:
        loss: the value ``loss`` of the step, or the loss that ``compute_loss`` returned.
        gradients: for each trained variable; None: it has none.
        records: number of records of the minibatch.
        predictions: those of the loss that ``compute_loss`` returned; None: the step did not call it.
        labels: those of this loss.
    """

    loss: Any
    gradients: list[Any]
    records: Any
    predictions: Any = None
    labels: Any = None


@dataclass(frozen=True, slots=True)
class ComputedLoss:
    """What ``compute_loss`` returned, and the labels and predictions that it got."""

    loss: Any
    labels: Any
    predictions: Any


def is_of_present_graph(tensor: Any) -> bool:
    """Whether a tensor belongs to the graph that is being traced, and not to a function or condition inside it."""
    present = tf.compat.v1.get_default_graph()
    return getattr(tensor, "graph", present) is present


@contextmanager
def capture_losses(model: Any) -> Iterator[Sequence[ComputedLoss]]:
    """Yield a list that gets a value for each call of ``model.compute_loss``.

    Raises:
        BadInputError: the model is not compiled, so Keras knows no loss.
    """
    losses: list[ComputedLoss] = []
    compute_loss = model.compute_loss

    def record_loss(x: Any = None, y: Any = None, y_pred: Any = None, *arguments: Any, **named: Any) -> Any:
        if not model.compiled:
            raise train_step_error(
                model,
                "calls compute_loss(), but the model is not compiled, so Keras knows no loss",
                "compile the model with loss, optimizer and metrics, and remove loss(), optimizer() and "
                "eval_metrics_fn() from the module",
            )
        losses.append(ComputedLoss(compute_loss(x, y, y_pred, *arguments, **named), y, y_pred))
        return losses[-1].loss

    vars(model)["compute_loss"] = record_loss
    try:
        yield losses
    finally:
        del vars(model)["compute_loss"]


@contextmanager
def capture_updates(optimizers: Mapping[str, Any], keep: Callable[..., None]) -> Iterator[None]:
    """Let ``apply`` of these optimizers hand over what it gets; they stay what they are otherwise.

    ``apply_gradients`` calls it, and one that an optimizer overrides has changed the gradients before.

    Args:
        optimizers: by a name.
        keep: called with the name, the optimizer and a list of gradients with variables.
    """

    def capture(name: str, optimizer: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        if trainable_variables is None:
            trainable_variables = getattr(optimizer, "_trainable_variables", ())
        keep(name, optimizer, list(zip(grads, trainable_variables, strict=True)))

    try:
        for name, optimizer in optimizers.items():
            vars(optimizer)["apply"] = partial(capture, name, optimizer)
        yield
    finally:
        for optimizer in optimizers.values():
            vars(optimizer).pop("apply", None)


def train_step_error(model: Any, what: str, hint: str) -> BadInputError:
    """The error of a ``train_step`` that EDL cannot train."""
    return BadInputError(
        f"train_step() of the model ({type(model).__name__}) {what}",
        where=source_file(type(model)) or "the model",
        hint=hint,
    )


def combination_error(model: Any, what: str, hint: str) -> BadInputError:
    """The error of a ``train_step`` that several ranks cannot combine, but one rank can train."""
    return train_step_error(
        model,
        f"{what}, which strategy AllReduce cannot combine over the workers",
        f"{hint}; or train with strategy: {{name: Local}}",
    )


def missing_loss_error(model: Any) -> BadInputError:
    """The error of a ``train_step`` whose loss EDL does not learn."""
    return train_step_error(
        model, "neither calls compute_loss() nor returns a value 'loss'", "return {'loss': loss, ...} from it"
    )


class CustomTrainStep:
    """Calls ``train_step`` of a model in a traced function.

    Args:
        model: the user's model.
        optimizer: becomes ``model.optimizer``.
        trained: the trained variables, in the order of the gradients.
        statistics: variables that a step may write before its update.
        seed_states: the states of random generators, which it may write anywhere.
    """

    def __init__(
        self, model: Any, optimizer: Any, trained: Sequence[Any], statistics: Iterable[Any], seed_states: Iterable[Any]
    ) -> None:
        restore_compile(model)
        self._model = model
        self._optimizer = optimizer
        self._trained = trained
        self._statistics = tuple(statistics)
        self._seed_states = tuple(seed_states)
        model.optimizer = optimizer

    def compute(self, features: Any, labels: Any, weights: Any) -> StepGradients:
        """Run the step on a minibatch; its gradients must be those of a mean over the records.

        Raises:
            BadInputError: the step does what EDL cannot train; the error names it.
        """
        for metric in self._model.metrics:
            # So a returned metric is that of this minibatch, and one that was not finite leaves no trace.
            metric.reset_state()
        graph = tf.compat.v1.get_default_graph()
        updates: list[Sequence[tuple[Any, Any]]] = []
        before_update = 0

        def keep(name: str, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
            nonlocal before_update
            updates.append(pairs)
            before_update = len(graph.get_operations())

        with capture_losses(self._model) as losses, capture_updates({"optimizer": self._optimizer}, keep):
            logs = self._model.train_step((features, labels) if weights is None else (features, labels, weights))
        if not updates:
            self._refuse_writes(graph, ())
        gradients = self._sort_gradients(updates)
        self._refuse_writes(graph, set(graph.get_operations()[before_update:]))
        # What fit reports: a step may add terms to the loss that compute_loss() returns.
        loss = logs.get("loss") if isinstance(logs, Mapping) else None
        if loss is None:
            if not losses:
                raise missing_loss_error(self._model)
            loss = losses[-1].loss
        records = tf.shape(tf.nest.flatten(features)[0])[0]
        loss = tf.reduce_mean(tf.cast(loss, tf.float32))
        if not losses:
            return StepGradients(loss, gradients, records)
        return StepGradients(loss, gradients, records, losses[-1].predictions, losses[-1].labels)

    def refuse_summed_loss(self) -> None:
        """Raise the error of a step that uses a summed loss: its gradients would count by records."""
        raise combination_error(
            self._model,
            "uses a loss that is a sum over records",
            "return one value per record from the loss of compile(), or give it reduction='sum_over_batch_size'",
        )

    def _sort_gradients(self, updates: Sequence[Sequence[tuple[Any, Any]]]) -> list[Any]:
        if len(updates) != 1:
            count = len(updates)
            raise train_step_error(
                self._model,
                f"applies {count} updates" if count else "does not apply gradients through self.optimizer",
                "call self.optimizer.apply(gradients, variables) or apply_gradients() exactly once; or make "
                "the same updates for every minibatch, with optimizers that are attributes of the model",
            )
        positions = {id(variable): at for at, variable in enumerate(self._trained)}
        positions |= {id(variable.value): at for at, variable in enumerate(self._trained)}
        gradients: list[Any] = [None] * len(self._trained)
        for gradient, variable in updates[0]:
            at = positions.get(id(variable))
            if at is None:
                raise train_step_error(
                    self._model,
                    f"applies a gradient to '{getattr(variable, 'path', getattr(variable, 'name', variable))}', which "
                    "is no trained variable of the model",
                    "pass variables of self.trainable_variables",
                )
            gradients[at] = gradient
        return gradients

    def _refuse_writes(self, graph: Any, after_update: Container[Any]) -> None:
        """Refuse a step that writes other variables than those that may change and its own metrics.

        Args:
            graph: that of the step.
            after_update: its operations behind ``apply``. They see the variables before the update, so of theirs only
                metrics and the states of random generators may change.
        """
        allowed = {id(v.value.handle) for v in (*self._seed_states, *self._model.metrics_variables)}
        statistics = {id(v.value.handle) for v in self._statistics}
        named = {id(v.value.handle): v.path for v in (*self._model.variables, *self._optimizer.variables)}
        for operation, written in find_written_variables(graph):
            if written in statistics and operation in after_update:
                raise train_step_error(
                    self._model, f"changes the variable '{named.get(written)}' after its update", CALL_BEFORE
                )
            if written not in allowed | statistics:
                raise train_step_error(
                    self._model,
                    describe_write(operation, named.get(written)),
                    WRITE_REMEDY,
                )


LOCAL_REMEDY = "or train with strategy: {name: Local}, which calls train_step() as fit does"
CALL_BEFORE = f"call the layers before it, or with training=False; {LOCAL_REMEDY}"
"""What to do about a layer that changes a variable behind the update."""
WRITE_REMEDY = (
    "let an optimizer of the model change variables, with apply() or apply_gradients(): it is called when the "
    f"gradients of all workers are summed, so the step sees the variables before its update; {LOCAL_REMEDY}"
)


def describe_write(operation: Any, variable: str | None) -> str:
    """What a step does wrong that writes this variable of the model, or else a resource that has no name."""
    if variable is not None:
        return f"writes the variable '{variable}' by itself"
    return f"uses the operation '{operation.name}' ({operation.type}), which may write a variable or a table"
