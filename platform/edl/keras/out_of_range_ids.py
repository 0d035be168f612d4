"""Reports out-of-range ids: the table, the id and the remedy, for PS-backed and dense tables alike.

In a dense table, Keras counts negative ids from the end, and a GPU returns zeros for ids after the end. So each step
checks the ids of dense tables. If a model looks up rows without Keras' layer, TensorFlow's error has only the number of
rows and the name of the operation.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.keras.traced_function import iter_dependencies, spec_for_any_count
from edl.keras.user_code import source_file
from edl.layers import Embedding as EdlEmbedding
from edl.layers.checks import check_ids_in_table

_GATHER_ERROR = re.compile(r"indices\[[\d,]*\] = (?P<id>-?\d+) is not in \[0, (?P<rows>\d+)\)")
_NODE_NAME = re.compile(r"\{\{node (?P<scopes>[^}]+)\}\}")
_ASSERTION_ERROR = re.compile(
    r"an id is outside of the Embedding (?P<layer>\S+) \((?P<rows>\d+) x (?P<dim>\d+)\)"
    r"[\s\S]*?(\[x \([^)]*\) = \] \[|elements of x:\n\[|\nx \(shape=\(\) dtype=\w+\) = \n)(?P<id>-?\d+)"
)
"""The message of ``check_ids_in_table``, in a graph or without one."""


def id_out_of_range_error(wrong_id: int, rows: int, dims: Mapping[str, int]) -> BadInputError:
    """The error for an out-of-range id.

    Args:
        wrong_id: the id.
        rows: the table's number of rows.
        dims: length of a row by name of the table; several tables if the error does not show which one it was.
    """
    named = " or ".join(f"'{name}' ({rows} x {dim})" for name, dim in dims.items())
    return BadInputError(
        f"id {wrong_id} is outside of the embedding {named}, whose ids are 0 to {rows - 1}",
        hint="raise the Embedding's input_dim, or map ids into that range, in feed or with a layer such as Hashing",
    )


@contextmanager
def explain_dense_id_errors(model: Any) -> Iterator[None]:
    """Convert TensorFlow's error for an out-of-range id to one that names the Embedding.

    Raises:
        BadInputError: instead of TensorFlow's error, if an Embedding caused it.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        translated = _error_from_assertion(str(error)) or _error_from_gather(str(error), model)
        if translated is None:
            raise
        raise translated from error


_TRACE_LOCK = threading.Lock()


@contextmanager
def assert_dense_ids_in_range() -> Iterator[None]:
    """Add an assertion to Keras' dense Embeddings, in steps that are traced in this context.

    :func:`explain_dense_id_errors` converts the assertion's error to one that names the Embedding. Not reentrant, and
    another thread waits: the context replaces a method of Keras' class.
    """
    with _TRACE_LOCK, _asserting_call():
        yield


@contextmanager
def _asserting_call() -> Iterator[None]:
    call = keras.layers.Embedding.call

    @functools.wraps(call)
    def call_within_table(layer: Any, inputs: Any) -> Any:
        # EDL's own layer has this assertion itself.
        if not isinstance(layer, EdlEmbedding):
            inputs = _assert_ids_in_table(layer, inputs)
        return call(layer, inputs)

    keras.layers.Embedding.call = call_within_table
    try:
        yield
    finally:
        keras.layers.Embedding.call = call


def _assert_ids_in_table(layer: Any, ids: Any) -> Any:
    table = f"the Embedding {layer.path} ({layer.input_dim} x {layer.output_dim})"
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(check_ids_in_table(ids.flat_values, layer.input_dim, table))
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, check_ids_in_table(ids.values, layer.input_dim, table), ids.dense_shape)
    return check_ids_in_table(tf.convert_to_tensor(ids), layer.input_dim, table)


def _error_from_assertion(text: str) -> BadInputError | None:
    match = _ASSERTION_ERROR.search(text)
    if match is None:
        return None
    return id_out_of_range_error(
        int(match["id"]), int(match["rows"]), {f"{match['layer']}/embeddings": int(match["dim"])}
    )


def _error_from_gather(text: str, model: Any) -> BadInputError | None:
    match, node = _GATHER_ERROR.search(text), _NODE_NAME.search(text)
    if match is None or node is None:
        return None
    wrong, rows = int(match["id"]), int(match["rows"])
    scopes = node["scopes"].split("/")
    dims = {
        layer.embeddings.path: layer.output_dim
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Embedding)
        and layer.input_dim == rows
        and _is_operation_of_layer(layer, scopes)
    }
    # Keras wraps negative ids around to the end of the table.
    return id_out_of_range_error(wrong - rows if wrong < 0 else wrong, rows, dims) if dims else None


def _is_operation_of_layer(layer: Any, scopes: Sequence[str]) -> bool:
    """Whether a layer created the operation; TensorFlow numbers scopes of equal names."""
    return any(re.fullmatch(rf"{re.escape(layer.name)}(_\d+)?", scope) for scope in scopes)


# --------------------------------------------------------------------------------------------------
# Unsupported uses of variables, which are refused by name: the variable would silently not be
# trained.
#
# Keras trains variables. A step of EDL gets their values as tensors of its graph, which differ:
#
# * ``keras.remat``, ``tf.recompute_grad`` and ``tf.custom_gradient`` compute gradients for arguments
#   and for variables, but not for other tensors that are used inside;
# * a ``tf.function`` in the model keeps the tensors of the graph that called it first, and another
#   step cannot use these;
# * ``weight.value``, saved in ``build``, is the variable itself with its initial value.


MODEL_LOCATION = "the model"
"""The location in errors that do not depend on the records."""
_CUSTOM_GRADIENT_PROBLEM = (
    "is used inside keras.remat, tf.recompute_grad or tf.custom_gradient, and would get no gradient there: EDL passes "
    "values to a step instead of variables",
    "call the layer outside of it (without remat), or use strategy Local",
)
_TF_FUNCTION_PROBLEM = (
    "is used by a tf.function in the model, which keeps the values of the step that called it first",
    "remove the decorator: EDL traces the whole step anyway",
)
_FUNCTION_CALL_TYPES = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_GRADIENT_OVERRIDE_ATTRIBUTE = "_gradient_op_type"
"""The attribute by which ``tf.custom_gradient`` names the gradient of an IdentityN."""

TensorId: TypeAlias = tuple[str, int]


def refuse_unsupported_uses(graph: Any, tensors_by_name: Mapping[str, Any], weights_by_name: Mapping[str, Any]) -> None:
    """Check a traced forward pass for unsupported uses, before its gradients are traced.

    Args:
        graph: the step's graph.
        tensors_by_name: the tensors of this step's values, by their name in messages.
        weights_by_name: the Keras variables of the values, by the same names.

    Raises:
        BadInputError: the model uses a variable in one of these ways; the error names the variable and a remedy.
    """
    names = {_tensor_id(tensor): name for name, tensor in tensors_by_name.items()}
    for operation in graph.get_operations():
        used_tensors: Iterable[Any]
        if operation.type == "IdentityN" and _has_custom_gradient(operation):
            used_tensors, (problem, remedy) = _tensors_inside_gradient(operation), _CUSTOM_GRADIENT_PROBLEM
        elif operation.type in _FUNCTION_CALL_TYPES:
            used_tensors, (problem, remedy) = operation.inputs, _TF_FUNCTION_PROBLEM
        else:
            continue
        for name in filter(None, (names.get(_tensor_id(tensor)) for tensor in used_tensors)):
            raise BadInputError(f"{name} {problem}", where=MODEL_LOCATION, hint=remedy)
    captured_handles = {id(outer) for outer, _ in graph.captures if outer.dtype == tf.resource}
    for name, weight in weights_by_name.items():
        if id(weight.value.handle) in captured_handles:
            raise BadInputError(
                f"{name} is used through a tf.Variable that was saved earlier (such as self.kernel = weight.value in "
                "build()), and would keep its initial value",
                where=MODEL_LOCATION,
                hint="use the weight itself in call()",
            )


def _has_custom_gradient(operation: Any) -> bool:
    return any(name == _GRADIENT_OVERRIDE_ATTRIBUTE for name in operation.node_def.attr)


def _tensors_inside_gradient(operation: Any) -> Iterator[Any]:
    """The tensors inside a custom gradient's function: the results depend on them, and they are no arguments.

    The operation's outputs are the function's results and its arguments. Results have consumers; arguments have none,
    because TensorFlow adds them only to compute their gradients.
    """
    passed_tensors = list(zip(operation.inputs, operation.outputs, strict=True))
    known_ids = {_tensor_id(tensor) for tensor, out in passed_tensors if not out.consumers()}
    pending_tensors: Sequence[Any] = [tensor for tensor, out in passed_tensors if out.consumers()]
    while pending_tensors:
        following = []
        for tensor in pending_tensors:
            if (tensor_id := _tensor_id(tensor)) not in known_ids:
                known_ids.add(tensor_id)
                yield tensor
                following += tensor.op.inputs
        pending_tensors = following


def _tensor_id(tensor: Any) -> TensorId:
    return tensor.op.name, tensor.value_index


# --------------------------------------------------------------------------------------------------
# Losses of one label and one prediction per record that accidentally broadcast.
#
# TensorFlow broadcasts labels ``(n,)`` and predictions ``(n, 1)``, the shape of ``Dense(1)``: their
# difference is ``(n, n)``. The mean of it falls in training, but compares labels with predictions
# of other records. Keras' ``compile`` gives both the same shape before it calls a loss. EDL cannot
# do that: a loss that reshapes by itself, as with ``tf.expand_dims(labels, 1)``, would then
# broadcast.


_PROBE_RECORD_COUNT = 7919
"""A record count that no other dimension of a model has: a prime."""


def refuse_broadcast(
    function_name: str,
    function: Callable[..., Any],
    labels: Any,
    predictions: Any,
    result: Any,
    weights: Any = None,
    where: str | None = None,
) -> None:
    """Refuse a function that broadcasts labels and predictions of ``(n,)`` and ``(n, 1)``, or vice versa.

    Its result has the shape ``(n, n)``, or a tensor that it averages has. The check uses only static shapes, so it adds
    no operations to a traced step.

    Args:
        function_name: the function's name in messages.
        function: the user's function of labels and predictions, and of sample weights if there are any.
        labels: the labels that ``feed`` yielded.
        predictions: the model's outputs.
        result: the result of the function.
        weights: the sample weights that the function got.
        where: the user's file, if the function has no source file.

    Raises:
        BadInputError: the function broadcasts; the error has the shapes.
    """
    arguments = (labels, predictions) if weights is None else (labels, predictions, weights)
    if not _could_broadcast(
        *({_format_shape(leaf) for leaf in tf.nest.flatten(each)} for each in (labels, predictions))
    ):
        return
    if _returns_square(function, arguments, result):
        problem = "returns the shape (n, n) for n records"
    elif _computes_square(function, arguments):
        problem = "compares each label with every prediction, (n, n) values for n records, before it averages them"
    else:
        return
    raise BadInputError(
        f"{function_name} {problem}: labels have the shape {_format_shapes(labels)} and predictions "
        f"{_format_shapes(predictions)}",
        where=where or source_file(function),
        hint="give both the same shape, as tf.reshape(labels, tf.shape(predictions)) does, or return one value per "
        "record",
    )


def _could_broadcast(labels: set[str], predictions: set[str]) -> bool:
    """Whether labels are one value per record, and predictions too, in a different shape."""
    return ("(n,)" in labels and "(n, 1)" in predictions) or ("(n, 1)" in labels and "(n,)" in predictions)


def _returns_square(function: Callable[..., Any], arguments: tuple[Any, ...], result: Any) -> bool:
    flat = {_format_shape(leaf) for leaf in tf.nest.flatten(arguments)}
    if flat != {"(n,)", "(n, 1)"} or not _is_square(result):
        return False
    # With a fixed number of records, an output could have as many values per record as there are
    # records.
    return result.shape[0] is None or _is_square(_call_for_any_count(function, arguments))


def _is_square(result: Any) -> bool:
    shape = result.shape if isinstance(result, tf.Tensor) else tf.TensorShape([])
    return shape.rank is not None and shape.rank > 1 and shape[0] == shape[1] != 1


def _call_for_any_count(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    specs = tf.nest.map_structure(spec_for_any_count, arguments)
    (output,) = tf.function(function, autograph=False).get_concrete_function(*specs).outputs
    return output


def _computes_square(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether the function combines ``(n,)`` and ``(n, 1)`` into ``(n, n)``.

    Traces the function once more, for a number of records that no other dimension has: a shape with that number twice
    has two dimensions of records. Losses that compare pairs of records on purpose combine tensors of equal rank, so
    they are not refused.
    """
    specs = tf.nest.map_structure(_spec_for_probe_count, arguments)
    if any(spec is None for spec in tf.nest.flatten(specs)):
        return False
    graph = tf.Graph()
    with graph.as_default(), _inline_tf_functions():
        placeholders = tf.nest.map_structure(lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), specs)
        try:
            function(*placeholders)
        except Exception:  # noqa: BLE001  the step was traced without an error: only this extra trace fails
            return False
    labels, predictions, *weights = ({leaf.op for leaf in tf.nest.flatten(each)} for each in placeholders)
    feed_operations = labels.union(*weights)
    for operation in graph.get_operations():
        if not any(output.shape == (_PROBE_RECORD_COUNT, _PROBE_RECORD_COUNT) for output in operation.outputs):
            continue
        flat = [value for value in operation.inputs if value.shape == (_PROBE_RECORD_COUNT,)]
        column = [value for value in operation.inputs if value.shape == (_PROBE_RECORD_COUNT, 1)]
        for one, other in product(flat, column):
            dependencies = set(iter_dependencies(one)), set(iter_dependencies(other))
            if any(a & feed_operations and b & predictions for a, b in (dependencies, dependencies[::-1])):
                return True
    return False


@contextmanager
def _inline_tf_functions() -> Iterator[None]:
    """Inline a user's ``tf.function`` into the calling graph, within this context."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _spec_for_probe_count(leaf: Any) -> tf.TensorSpec | None:
    """A tensor's type and shape for ``_PROBE_RECORD_COUNT`` records; None without a static shape."""
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank is None:
        return None
    return tf.TensorSpec([_PROBE_RECORD_COUNT, *leaf.shape[1:]] if leaf.shape.rank else [], leaf.dtype)


def _format_shapes(structure: Any) -> str:
    return ", ".join(dict.fromkeys(_format_shape(leaf) for leaf in tf.nest.flatten(structure)))


def _format_shape(leaf: Any) -> str:
    """The shape in words if there is one value per record."""
    rank = leaf.shape.rank if isinstance(leaf, tf.Tensor) else None
    if rank == 1:
        return "(n,)"
    return "(n, 1)" if rank == 2 and leaf.shape[1] == 1 else "another"
