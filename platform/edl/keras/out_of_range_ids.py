"""Reports out-of-range ids: the table, the id and the remedy, for PS-backed and dense tables alike.

Keras looks negative ids of a dense table up from its end, and a GPU has rows of zeros for ids past it. So a step looks
at the ids of dense tables itself. Where a model looks rows up without Keras' layer, TensorFlow says only how many rows
there are, and in which operation.
"""

from __future__ import annotations

import functools
import re
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
    r".*\[x \([^)]*\) = \] \[(?P<id>-?\d+)\]"
)
"""What ``check_ids_in_table`` raises."""


def id_out_of_range_error(wrong_id: int, rows: int, dims: Mapping[str, int]) -> BadInputError:
    """The error for an out-of-range id.

    Args:
        wrong_id: the id.
        rows: of the table that was meant.
        dims: length of a row by name of the table: of the one that was meant, or of all that it may have been.
    """
    named = " or ".join(f"'{name}' ({rows} x {dim})" for name, dim in dims.items())
    return BadInputError(
        f"id {wrong_id} is outside of the embedding {named}, whose ids are 0 to {rows - 1}",
        hint="raise the Embedding's input_dim, or map ids into that range: in feed, or by a layer such as Hashing",
    )


@contextmanager
def explain_dense_id_errors(model: Any) -> Iterator[None]:
    """Convert TensorFlow's error for an out-of-range id to one that names the Embedding.

    Raises:
        BadInputError: in place of TensorFlow's error, where it is one of an Embedding.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        translated = _error_from_assertion(str(error)) or _error_from_gather(str(error), model)
        if translated is None:
            raise
        raise translated from error


@contextmanager
def assert_dense_ids_in_range() -> Iterator[None]:
    """Make Keras' dense Embeddings refuse out-of-range ids, while a step is traced in this context.

    The step asserts it then, and :func:`explain_dense_id_errors` says which Embedding it was. Steps are traced one at
    a time.
    """
    call = keras.layers.Embedding.call

    @functools.wraps(call)
    def call_within_table(layer: Any, inputs: Any) -> Any:
        # The step asserts it wherever the layer is called.
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
    found = _ASSERTION_ERROR.search(text)
    if found is None:
        return None
    return id_out_of_range_error(
        int(found["id"]), int(found["rows"]), {f"{found['layer']}/embeddings": int(found["dim"])}
    )


def _error_from_gather(text: str, model: Any) -> BadInputError | None:
    found, node = _GATHER_ERROR.search(text), _NODE_NAME.search(text)
    if found is None or node is None:
        return None
    wrong, rows = int(found["id"]), int(found["rows"])
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
# Unsupported uses of variables, by which a variable would silently not be trained; they are refused
# by name.
#
# Keras trains variables. Here a step gets their values as tensors of its graph, and the model may see the difference:
#
# * what is computed in ``keras.remat``, ``tf.recompute_grad`` or ``tf.custom_gradient`` has gradients for its arguments
#   and for variables, and none for other tensors that it uses;
# * a ``tf.function`` of the model's own keeps the tensors of the graph in which it was called first, and another step
#   cannot use these;
# * ``weight.value`` that was taken in ``build`` is the variable itself, with the value that it had at first.


MODEL_LOCATION = "the model"
"""The place of what is wrong whatever the records are."""
_CUSTOM_GRADIENT_PROBLEM = (
    "is used inside of keras.remat, tf.recompute_grad or tf.custom_gradient, and would get no gradient there: EDL "
    "gives a step values and no variables",
    "call the layer outside of it (without remat), or use strategy Local",
)
_TF_FUNCTION_PROBLEM = (
    "is used by a tf.function of the model's own, which keeps the values of the step in which it was called first",
    "leave the decorator out: the whole step is traced once anyway",
)
_FUNCTION_CALL_TYPES = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_GRADIENT_OVERRIDE_ATTRIBUTE = "_gradient_op_type"
"""The attribute by which ``tf.custom_gradient`` names the gradient of an IdentityN."""

TensorId: TypeAlias = tuple[str, int]


def refuse_unsupported_uses(graph: Any, tensors_by_name: Mapping[str, Any], weights_by_name: Mapping[str, Any]) -> None:
    """Check a traced forward pass for unsupported uses, before its gradients are traced.

    Args:
        graph: of the step.
        tensors_by_name: the tensors of this step's values, by their name in messages.
        weights_by_name: the Keras variables behind the values, by the same names.

    Raises:
        BadInputError: the model uses one of them in one of these ways; says which, and what to do instead.
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
                f"{name} is used as a tf.Variable that was taken from it before (such as self.kernel = weight.value in "
                "build()), and would keep its initial value",
                where=MODEL_LOCATION,
                hint="use the weight itself in call()",
            )


def _has_custom_gradient(operation: Any) -> bool:
    return any(name == _GRADIENT_OVERRIDE_ATTRIBUTE for name in operation.node_def.attr)


def _tensors_inside_gradient(operation: Any) -> Iterator[Any]:
    """The tensors inside a custom gradient's function: those its results depend on, up to its arguments.

    Its operation passes results on, which are used, and arguments, which are not: they are there for their gradients.
    """
    passed_tensors = list(zip(operation.inputs, operation.outputs, strict=True))
    seen = {_tensor_id(tensor) for tensor, out in passed_tensors if not out.consumers()}
    pending_tensors: Sequence[Any] = [tensor for tensor, out in passed_tensors if out.consumers()]
    while pending_tensors:
        following = []
        for tensor in pending_tensors:
            if (tensor_id := _tensor_id(tensor)) not in seen:
                seen.add(tensor_id)
                yield tensor
                following += tensor.op.inputs
        pending_tensors = following


def _tensor_id(tensor: Any) -> TensorId:
    return tensor.op.name, tensor.value_index


# --------------------------------------------------------------------------------------------------
# Losses of one label and one prediction per record that accidentally broadcast.
#
# Labels ``(n,)`` and predictions ``(n, 1)``, which is what ``Dense(1)`` gives, are broadcast by TensorFlow: their
# difference is ``(n, n)``. Its mean is a number like any other, and it falls, but it has little to do with the records.
# Keras' ``compile`` gives both one shape before it calls a loss. EDL cannot: a loss that does it by itself, as with
# ``tf.expand_dims(labels, 1)``, would then be given a shape too many, and be broadcast for that reason.


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

    It is found by the shape ``(n, n)`` of what it gives, or by that of what it averages by itself. Looks at shapes
    alone, so that nothing of it is left in a traced step.

    Args:
        function_name: the function's name in messages.
        function: of labels and predictions, and of sample weights where there are some; the user's.
        labels: as ``feed`` gave them.
        predictions: as the model gave them.
        result: the result of the function.
        weights: sample weights that the function was given.
        where: the user's file, for a function that does not say it itself.

    Raises:
        BadInputError: it does; says which shapes there are.
    """
    arguments = (labels, predictions) if weights is None else (labels, predictions, weights)
    if not _could_broadcast(
        *({_format_shape(leaf) for leaf in tf.nest.flatten(each)} for each in (labels, predictions))
    ):
        return
    if _returns_square(function, arguments, result):
        does = "gives the shape (n, n) for n records"
    elif _computes_square(function, arguments):
        does = "compares each label with every prediction, (n, n) values for n records, before it averages them"
    else:
        return
    raise BadInputError(
        f"{function_name} {does}: labels have the shape {_format_shapes(labels)} and predictions "
        f"{_format_shapes(predictions)}",
        where=where or source_file(function),
        hint="give both the same shape, as tf.reshape(labels, tf.shape(predictions)) does, or return one value a "
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
    (found,) = tf.function(function, autograph=False).get_concrete_function(*specs).outputs
    return found


def _computes_square(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether the function combines ``(n,)`` and ``(n, 1)`` into ``(n, n)``.

    The function is traced once more, for a number of records that no other dimension has: where that number is twice
    in a shape, both are records. Losses of pairs of records make them of one rank, and so are none of this.
    """
    specs = tf.nest.map_structure(_spec_for_probe_count, arguments)
    if any(spec is None for spec in tf.nest.flatten(specs)):
        return False
    graph = tf.Graph()
    with graph.as_default(), _inline_tf_functions():
        placeholders = tf.nest.map_structure(lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), specs)
        try:
            function(*placeholders)
        except Exception:  # noqa: BLE001  it did not raise in the step: this trace alone is what it cannot stand
            return False
    labels, predictions, *weights = ({leaf.op for leaf in tf.nest.flatten(each)} for each in placeholders)
    given_by_feed = labels.union(*weights)
    for operation in graph.get_operations():
        if not any(output.shape == (_PROBE_RECORD_COUNT, _PROBE_RECORD_COUNT) for output in operation.outputs):
            continue
        flat = [value for value in operation.inputs if value.shape == (_PROBE_RECORD_COUNT,)]
        column = [value for value in operation.inputs if value.shape == (_PROBE_RECORD_COUNT, 1)]
        for one, other in product(flat, column):
            made_of = set(iter_dependencies(one)), set(iter_dependencies(other))
            if any(a & given_by_feed and b & predictions for a, b in (made_of, made_of[::-1])):
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
    """A tensor's type and shape for ``_COUNT`` records; None without a static shape."""
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
