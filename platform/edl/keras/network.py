"""The user's model as functions over flat float32 arrays.

The worker's Keras variables are never assigned: each step gets the parameters as a flat buffer and returns gradients.
Each kind of step is one ``tf.function``, which is traced once for any number of records. It splits the buffer into the
values of the model's variables (in a Keras StatelessScope), runs the model, and concatenates the gradients and the
changes of statistics to a flat buffer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.keras.evaluation_metrics import EvaluationMetrics, output_names
from edl.keras.keras2_models import warn_of_dense_embeddings
from edl.keras.model_building import (
    ModelVariables,
    build_model,
    derive_feature_spec,
    is_seed_state,
    load_weights,
    seed_worker_randomness,
)
from edl.keras.model_contract import ModelModule, call_model, refuse_stateful_layers, with_arguments_of
from edl.keras.model_loss import ModelLoss, warn_if_loss_unscaled
from edl.keras.optimizer_translation import (
    TranslatedOptimizer,
    keras_variable_name,
    refuse_partitioned_lamb,
    translate_optimizer,
)
from edl.keras.out_of_range_ids import (
    MODEL_LOCATION,
    assert_dense_ids_in_range,
    explain_dense_id_errors,
    id_out_of_range_error,
    refuse_unsupported_uses,
)
from edl.keras.ps_embedding import PsEmbedding, find_ps_embeddings
from edl.keras.row_binding import BoundRows, IdTracer, LookupRecording, check_id_dependencies, using_row_provider
from edl.keras.traced_function import TracedFunction, as_array
from edl.keras.user_code import user_code
from edl.numerics.array_types import Floats
from edl.numerics.model_declaration import check_table_shape
from edl.numerics.parameter_store import RowsByTable
from edl.numerics.unique_ids import UniqueIdFinder, UniqueIds, positions_in

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one minibatch.

    Attributes:
        loss: the loss of the minibatch, including the model's own losses; may be NaN.
        flat_gradients: clipped gradients of trained variables; for statistics, the new minus the old value. Read-only.
        row_gradients: by PS-backed table, clipped gradients ``[n, dim]`` in the order of the passed rows. Read-only.
    """

    loss: float
    flat_gradients: Floats
    row_gradients: Mapping[str, Floats]


class KerasNetwork:
    """The steps of a user's model. Create it with :meth:`build`.

    Not thread-safe, with one exception: :meth:`unique_ids` may run while another thread calls another method.

    Attributes:
        module: the user's module.
        model: the Keras model; its variables hold initial values.
        optimizer: the user's optimizer, divided between PS and worker. :meth:`train` applies its clipping.
        sample: the features that the model was built with.
    """

    def __init__(
        self,
        module: ModelModule,
        model: Any,
        variables: ModelVariables,
        ps_embeddings: tuple[PsEmbedding, ...],
        keras_optimizer: Any,
        sample: Any,
    ) -> None:
        self.module = module
        self.model = model
        self.keras_optimizer = keras_optimizer
        trained_names = {
            variables.specs[at].name: keras_variable_name(variables.weights[at]) for at in variables.trained_positions
        }
        tables = {layer.served_table.name: f"{layer.served_table.name}:0" for layer in ps_embeddings}
        self.optimizer: TranslatedOptimizer = translate_optimizer(keras_optimizer, trained_names | tables, module.zoo)
        refuse_partitioned_lamb(self.optimizer.spec, list(tables), len(variables.ps_slices))
        self.sample = sample
        self._variables = variables
        self._ps_embeddings = ps_embeddings
        self._initial_values = variables.read_values()
        outputs = output_names(model)
        self._metrics = EvaluationMetrics.from_module(module, outputs)
        self._model_loss = ModelLoss(module, outputs)
        self._traced_train = TracedFunction(self._train_graph)
        self._traced_evaluate = TracedFunction(self._evaluate_graph)
        self._traced_predict = TracedFunction(self._predict_graph)
        self._id_tracer = IdTracer(self._ids_graph)
        self._unique_id_finder = UniqueIdFinder()
        self._warned_variables: set[str] = set()

    @classmethod
    def build(
        cls,
        module: ModelModule,
        *,
        seed: int,
        embedding_threshold: int,
        ps_of_variable: Callable[[str], int],
        ps_count: int,
        sample: Any = None,
        worker_index: int = 0,
    ) -> KerasNetwork:
        """Build the user's model and its steps.

        Args:
            module: the user's module.
            seed: the seed of the initial values, which are equal in all workers.
            embedding_threshold: the size in bytes from which an Embedding's table is stored on the PS.
            ps_of_variable: the index of the PS that owns a variable.
            ps_count: number of PS.
            sample: features of a minibatch, as ``feed`` yields them; needed by models that are built by their first
                call.
            worker_index: the worker's index. Each worker has its own reproducible random numbers, for example for
                Dropout.

        Raises:
            BadInputError: EDL cannot train the model with this optimizer; the error names the unsupported part.
            UserCodeError: the user's code raised an exception.
        """
        model = build_model(module, seed=seed, sample=sample, ps_embedding_bytes=embedding_threshold)
        module = with_arguments_of(model, module)
        warn_of_dense_embeddings(model, embedding_threshold)
        refuse_stateful_layers(model)
        ps_embeddings = find_ps_embeddings(model, embedding_threshold)
        if ps_embeddings:
            for table in (layer.served_table for layer in ps_embeddings):
                check_table_shape(table)
            with user_code(module.zoo, "the model"):
                check_id_dependencies(model, ps_embeddings, derive_feature_spec(model, sample))
        variables = ModelVariables.from_model(model, ps_of_variable, ps_count)
        if not variables.trained_positions and not ps_embeddings:
            raise BadInputError("the model has no trained variable")
        network = cls(module, model, variables, ps_embeddings, module.optimizer(), sample)
        warn_if_loss_unscaled(model, network.keras_optimizer, trains_locally=False)
        seed_worker_randomness(variables.local_variables, seed, worker_index)
        return network

    @property
    def variables(self) -> tuple[VariableSpec, ...]:
        """The dense variables in the order of the flat buffer."""
        return self._variables.specs

    @property
    def states(self) -> dict[str, Any]:
        """Variables outside the flat buffer that are exported: none, since parameter servers change none of them."""
        return {}

    @property
    def metric_directions(self) -> dict[str, str | None]:
        """By metric, whether ``up`` or ``down`` is better; None if Keras does not define it."""
        return self._metrics.directions

    @property
    def ps_slices(self) -> tuple[slice, ...]:
        """The slice of the flat buffer that each PS owns."""
        return self._variables.ps_slices

    @property
    def offsets(self) -> tuple[slice, ...]:
        """The slice of the flat buffer that each variable has."""
        return self._variables.offsets

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The PS-backed tables."""
        return tuple(layer.served_table for layer in self._ps_embeddings)

    @property
    def fingerprint(self) -> str:
        """A digest of variables and tables: equal in all workers of a job."""
        return self._variables.fingerprint([[t.name, t.rows, t.dim, dict(t.initializer)] for t in self.tables])

    @property
    def trace_count(self) -> int:
        """The number of traces of the training step."""
        return self._traced_train.trace_count

    def initial_values(self) -> Floats:
        """The initial values as a new flat buffer."""
        return self._initial_values.copy()

    def begin_with(self, flat_values: Floats) -> None:
        """Replace the initial values."""
        self._initial_values = flat_values
        self._variables.assign_values(flat_values)

    def assign_states(self, arrays: Mapping[int, Any]) -> None:
        """Assign variables outside the flat buffer, by their number in the checkpoint of a model that was trained."""
        for number, variable in enumerate(self._variables.local_variables):
            if number in arrays and not is_seed_state(variable):
                variable.assign(arrays[number])

    def load_weights_file(self, path: Path) -> Floats:
        """Load the values of a ``.keras`` or ``.weights.h5`` file of this model into a flat buffer.

        Raises:
            BadInputError: the file cannot be read or belongs to another model, or the model has a PS-backed table.
        """
        if self.tables:
            table = self.tables[0]
            reason = "is on the parameter servers" if table.rows else "has no input_dim"
            raise BadInputError(
                f"the embedding '{table.name}' {reason}, so its rows cannot be read from a Keras file",
                where=str(path),
                hint="give the run instead, as in edl predict --from r2: its checkpoint has the rows. Or load the file "
                "with Keras",
            )
        # The file is loaded into the model's own variables, which hold the initial values
        # otherwise; they are restored below.
        try:
            load_weights(self.module, self.model, path)
            return self._variables.read_values()
        # Keras, HDF5 and zipfile raise many kinds of exceptions for a file that does not fit.
        except Exception as error:
            raise BadInputError(f"the weights cannot be loaded into the model: {error}", where=str(path)) from error
        finally:
            self._variables.assign_values(self._initial_values)

    def unique_ids(self, features: Any) -> dict[str, NDArray[np.int64]]:
        """The unique ids ``[n]`` that a minibatch looks up in each PS-backed table.

        Another thread may train at the same time.

        Raises:
            BadInputError: an id is outside of its table.
            UserCodeError: the model raised an exception.
        """
        return dict(self._find_unique_ids(features))

    def train(
        self, flat_values: Floats, rows: RowsByTable, features: Any, labels: Any, weights: Any = None
    ) -> StepResult:
        """Compute the loss and the gradients of a minibatch.

        Args:
            flat_values: the values of the dense variables; not modified.
            rows: by PS-backed table, the ids that :meth:`unique_ids` returned, and their rows.
            features: the features that ``feed`` yielded.
            labels: the labels that ``feed`` yielded.
            weights: the sample weights that ``feed`` yielded, if any.

        Raises:
            BadInputError: an id is outside of a dense table.
            UserCodeError: the model or the loss raised an exception.
        """
        with (
            user_code(self.module.zoo, "the model or its loss", function=self.module.loss),
            explain_dense_id_errors(self.model),
        ):
            loss, gradients, row_gradients = self._traced_train(
                flat_values, self._bind_rows(rows, features), features, labels, *_optional_argument(weights)
            )
        # Gradients are views of TensorFlow's memory. Clipping writes in place, so it needs a copy.
        read_tensor = as_array if self.optimizer.clip is None else _copy_tensor
        gradients_by_table = zip(self.tables, row_gradients, strict=True)
        step = StepResult(
            float(loss),
            read_tensor(gradients),
            {table.name: read_tensor(gradient) for table, gradient in gradients_by_table},
        )
        if self.optimizer.clip is not None:
            self.optimizer.clip([*self._trained_views(step.flat_gradients), *step.row_gradients.values()])
        return step

    def evaluate(self, flat_values: Floats, rows: RowsByTable, features: Any, labels: Any, weights: Any = None) -> None:
        """Update the loss and the metrics with a minibatch. For the arguments see :meth:`train`.

        Raises:
            BadInputError: the states of a metric cannot be added, and it has no ``merge_state``.
            UserCodeError: the model, the loss or a metric raised an exception.
        """
        with (
            user_code(self.module.zoo, "the model or its metrics", function=self.module.loss),
            explain_dense_id_errors(self.model),
        ):
            # Before the first update: the states of a metric that cannot be added are never sent.
            if not self._metrics.states_verified:
                self._metrics.verify_states_add_up(
                    labels, self._traced_predict(flat_values, self._bind_rows(rows, features), features), weights
                )
            self._traced_evaluate(
                flat_values, self._bind_rows(rows, features), features, labels, *_optional_argument(weights)
            )

    def reset_metrics(self) -> None:
        """Reset the loss and the metrics, for the next evaluation task."""
        self._metrics.reset()

    def metric_states(self) -> dict[str, Any]:
        """By metric, as JSON: whether its states can be added, and the states."""
        return self._metrics.collect_states()

    def metric_values(self, states: Mapping[str, Any]) -> dict[str, float]:
        """The values of states that ``edl.core.evaluation.merge_metric_states`` merged."""
        with user_code(self.module.zoo, "eval_metrics_fn()"):
            return self._metrics.compute_values(states)

    def predict(self, flat_values: Floats, rows: RowsByTable, features: Any) -> Any:
        """The outputs of a minibatch: arrays, nested as the model nests its outputs."""
        with user_code(self.module.zoo, "the model"), explain_dense_id_errors(self.model):
            outputs = self._traced_predict(flat_values, self._bind_rows(rows, features), features)
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)

    def _find_unique_ids(self, features: Any) -> Iterator[tuple[str, UniqueIds]]:
        if not self._ps_embeddings:
            return
        with user_code(self.module.zoo, "the model"), explain_dense_id_errors(self.model):
            ids_by_table = self._id_tracer(features)
        for table, ids in zip(self.tables, self._unique_id_finder.find_by_table(ids_by_table), strict=True):
            yield table.name, _check_id_range(table, ids)

    def _bind_rows(self, rows: RowsByTable, features: Any) -> tuple[tuple[Any, Any], ...]:
        """For each table, the position of each lookup's row among the rows, and the rows."""
        # Callers may pass plain arrays of ids, without the positions that unique_ids found.
        pulled_rows = {table.name: rows[table.name] for table in self.tables}
        known_ids = {name: ids for name, (ids, _) in pulled_rows.items() if isinstance(ids, UniqueIds)}
        unique_ids = known_ids if len(known_ids) == len(pulled_rows) else dict(self._find_unique_ids(features))
        return tuple((positions_in(ids, unique_ids[name]), values) for name, (ids, values) in pulled_rows.items())

    def _trained_views(self, flat_values: Floats) -> list[Floats]:
        return [flat_values[self._variables.offsets[index]] for index in self._variables.trained_positions]

    # ------------------------------------------------------------------ traced functions

    def _train_graph(self, flat_values: Any, rows: Any, features: Any, labels: Any, weights: Any = None) -> Any:
        values = self._split_flat_values(flat_values)
        trained = [values[index] for index in self._variables.trained_positions]
        row_values = [values for _, values in rows]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([trained, row_values])
            loss, scope = self._compute_loss(values, rows, features, labels, weights)
        self._refuse_untrainable_uses(loss.graph, scope, values, row_values)
        gradients_or_none, row_gradients_or_none = tape.gradient(loss, [trained, row_values])
        self._check_missing_gradients(
            gradients_or_none, [self.variables[index].name for index in self._variables.trained_positions]
        )
        # A table that no call uses has no gradient, and nothing is pushed for it.
        is_looked_up = [values.consumers() for values in row_values]
        self._check_missing_gradients(
            compress(row_gradients_or_none, is_looked_up), compress([table.name for table in self.tables], is_looked_up)
        )
        gradients, row_gradients = (
            _zeros_where_none(gradients_or_none, trained),
            _zeros_where_none(row_gradients_or_none, row_values),
        )
        self._update_local_variables(scope)
        # For a statistic the worker sends its change, because the PS adds the changes of all
        # workers.
        by_position = dict(zip(self._variables.trained_positions, gradients, strict=True))
        pieces = [
            by_position[index] if index in by_position else scope.get_current_value(weight) - values[index]
            for index, weight in enumerate(self._variables.weights)
        ]
        flat = [tf.reshape(tf.convert_to_tensor(piece), [-1]) for piece in pieces]
        return loss, tf.concat([tf.zeros([0]), *flat], 0), [tf.convert_to_tensor(g) for g in row_gradients]

    def _compute_loss(self, values: Any, rows: Any, features: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
        with self._value_scope(values, rows) as scope:
            predictions = call_model(self.model, features, training=True)
            model_losses = self.model.losses
        with self._refusing_reads("the loss"):
            loss = self._model_loss(labels, predictions, weights, model_losses, training=True)
        return loss, scope

    @contextmanager
    def _refusing_reads(self, reader: str) -> Iterator[None]:
        """Refuse code that reads a variable of the model: only the model's call has the values of the job."""
        graph = tf.compat.v1.get_default_graph()
        before = {id(outer) for outer, _ in graph.captures}
        yield
        read = {id(outer) for outer, _ in graph.captures} - before
        for spec, weight in zip(self.variables, self._variables.weights, strict=True):
            if id(weight.value.handle) in read:
                raise BadInputError(
                    f"{reader} reads {_quote_variable(spec.name)} of the model, which keeps its initial value in a "
                    "worker: the parameter servers have the trained one",
                    where=MODEL_LOCATION,
                    hint="use a regularizer, or add_loss() in call(); or train with strategy: {name: AllReduce} or "
                    "{name: Local}",
                )

    def _refuse_untrainable_uses(self, graph: Any, scope: Any, values: Any, row_values: Any) -> None:
        weights = dict(
            zip([_quote_variable(spec.name) for spec in self.variables], self._variables.weights, strict=True)
        )
        values_by_name = dict(zip(weights, values, strict=True))
        tables = {f"the embedding '{table.name}'": rows for table, rows in zip(self.tables, row_values, strict=True)}
        refuse_unsupported_uses(graph, values_by_name | tables, weights)
        for index in self._variables.trained_positions:
            if scope.get_current_value(self._variables.weights[index]) is not values[index]:
                raise BadInputError(
                    f"{_quote_variable(self.variables[index].name)} is trained, but the model also assigns to it "
                    "(as keras.layers.SpectralNormalization does): EDL cannot combine both",
                    where=MODEL_LOCATION,
                    hint="remove that layer, or use strategy AllReduce or Local",
                )

    def _check_missing_gradients(self, gradients: Iterable[Any], names: Iterable[str]) -> None:
        """Warn about variables without a gradient, which keep their values as in Keras.

        Refuse them if the optimizer would change them without a gradient.
        """
        for gradient, name in zip(gradients, names, strict=True):
            if gradient is not None:
                continue
            if update_cause := self.optimizer.zero_gradient_update(name):
                raise BadInputError(
                    f"the loss has no gradient for '{name}', but {update_cause} would change it nevertheless",
                    where=MODEL_LOCATION,
                    hint="set trainable = False for its layer",
                )
            if name not in self._warned_variables:
                self._warned_variables.add(name)
                _LOG.warning("the loss has no gradient for '%s': it keeps its value", name)

    def _update_local_variables(self, scope: Any) -> None:
        """Assign the new states of random generators; refuse other local variables that training changes."""
        for variable in self._variables.local_variables:
            value = scope.get_current_value(variable)
            if value is None:
                continue
            if not is_seed_state(variable):
                raise BadInputError(
                    f"training changes the variable '{variable.path}' ({variable.dtype}), but EDL keeps only float32 "
                    "statistics",
                    where=MODEL_LOCATION,
                    hint="make it a float32 variable, or train with strategy: {name: Local}, which keeps any type",
                )
            variable.assign(value)

    def _evaluate_graph(self, flat_values: Any, rows: Any, features: Any, labels: Any, weights: Any = None) -> None:
        with self._value_scope(self._split_flat_values(flat_values), rows):
            predictions = call_model(self.model, features, training=False)
            model_losses = self.model.losses
        with self._refusing_reads("the loss or a metric"):
            loss = self._model_loss(labels, predictions, weights, model_losses, training=False)
            self._metrics.update(loss, labels, predictions, weights)

    def _predict_graph(self, flat_values: Any, rows: Any, features: Any) -> Any:
        with self._value_scope(self._split_flat_values(flat_values), rows):
            return call_model(self.model, features, training=False)

    def _ids_graph(self, features: Any) -> list[Any]:
        recording = LookupRecording(self._ps_embeddings)
        with using_row_provider(recording), keras.StatelessScope(collect_losses=True):
            call_model(self.model, features, training=False)
        return [recording.ids_by_layer[layer] for layer in self._ps_embeddings]

    def _split_flat_values(self, flat_values: Any) -> list[Any]:
        specs = self._variables.specs
        flat = tf.split(flat_values, [spec.size for spec in specs]) if specs else []
        return [tf.reshape(piece, spec.shape) for piece, spec in zip(flat, specs, strict=True)]

    def _value_scope(self, values: Any, rows: Any) -> Any:
        """A scope in which the model's variables have these values and PS-backed layers these rows."""
        bound_rows = BoundRows(dict(zip(self._ps_embeddings, rows, strict=True)))
        return _ValueScope(zip(self._variables.weights, values, strict=True), bound_rows)


class _ValueScope(ExitStack):
    def __init__(self, values: Any, bound_rows: BoundRows) -> None:
        super().__init__()
        self._values = list(values)
        self._bound_rows = bound_rows

    def __enter__(self) -> Any:
        super().__enter__()
        self.enter_context(assert_dense_ids_in_range())
        self.enter_context(using_row_provider(self._bound_rows))
        return self.enter_context(keras.StatelessScope(state_mapping=self._values, collect_losses=True))


def _optional_argument(weights: Any) -> tuple[Any, ...]:
    """The argument ``weights`` of a traced function; omitted if None, because traced functions take only tensors."""
    return () if weights is None else (weights,)


def _check_id_range(table: TableSpec, ids: UniqueIds) -> UniqueIds:
    # One comparison checks both bounds: as unsigned numbers, negative ids are larger than all
    # others.
    if table.rows and ids.size and np.asarray(ids).view(np.uint64).max() >= table.rows:
        wrong_id = ids.min() if ids.min() < 0 else ids.max()
        raise id_out_of_range_error(int(wrong_id), table.rows, {table.name: table.dim})
    return ids


def _quote_variable(variable: str) -> str:
    return f"the variable '{variable}'"


def _zeros_where_none(gradients: Any, values: Any) -> list[Any]:
    pairs = zip(gradients, values, strict=True)
    return [tf.zeros_like(value) if gradient is None else gradient for gradient, value in pairs]


def _copy_tensor(tensor: Any) -> Floats:
    """A writable copy of a tensor's values."""
    return as_array(tensor).copy()
