"""Uses of a variable by which a step would learn nothing of it, without a word: they are refused by name.

Keras trains variables. Here a step gets their values as tensors of its graph, and the model may see the difference:

* what is computed in ``keras.remat``, ``tf.recompute_grad`` or ``tf.custom_gradient`` has gradients for its arguments
  and for variables, and none for other tensors that it uses;
* a ``tf.function`` of the model's own keeps the tensors of the graph in which it was called first, and another step
  cannot use these;
* ``weight.value`` that was taken in ``build`` is the variable itself, with the value that it had at first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from edl.api.errors import BadInputError

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


def refuse_unsupported_uses(graph: Any, given: Mapping[str, Any], held: Mapping[str, Any]) -> None:
    """Look through a traced forward pass, before its gradients are.

    Args:
        graph: of the step.
        given: the tensors of this step's values, by what they are called in a message.
        held: the Keras variables that stand behind values, by the same.

    Raises:
        BadInputError: the model uses one of them in one of these ways; says which, and what to do instead.
    """
    names = {_tensor_id(tensor): name for name, tensor in given.items()}
    for operation in graph.get_operations():
        used: Iterable[Any]
        if operation.type == "IdentityN" and _has_custom_gradient(operation):
            used, (wrong, remedy) = _tensors_inside_gradient(operation), _CUSTOM_GRADIENT_PROBLEM
        elif operation.type in _FUNCTION_CALL_TYPES:
            used, (wrong, remedy) = operation.inputs, _TF_FUNCTION_PROBLEM
        else:
            continue
        for name in filter(None, (names.get(_tensor_id(tensor)) for tensor in used)):
            raise BadInputError(f"{name} {wrong}", where=MODEL_LOCATION, hint=remedy)
    captured = {id(outer) for outer, _ in graph.captures if outer.dtype == tf.resource}
    for name, weight in held.items():
        if id(weight.value.handle) in captured:
            raise BadInputError(
                f"{name} is used as a tf.Variable that was taken from it before (such as self.kernel = weight.value in "
                "build()), and would keep its initial value",
                where=MODEL_LOCATION,
                hint="use the weight itself in call()",
            )


def _has_custom_gradient(operation: Any) -> bool:
    return any(name == _GRADIENT_OVERRIDE_ATTRIBUTE for name in operation.node_def.attr)


def _tensors_inside_gradient(operation: Any) -> Iterator[Any]:
    """The tensors that the results of a custom gradient's function depend on, up to its arguments.

    Its operation passes results on, which are used, and arguments, which are not: they are there for their gradients.
    """
    passed = list(zip(operation.inputs, operation.outputs, strict=True))
    seen = {_tensor_id(tensor) for tensor, out in passed if not out.consumers()}
    left: Sequence[Any] = [tensor for tensor, out in passed if out.consumers()]
    while left:
        following = []
        for tensor in left:
            if (place := _tensor_id(tensor)) not in seen:
                seen.add(place)
                yield tensor
                following += tensor.op.inputs
        left = following


def _tensor_id(tensor: Any) -> TensorId:
    return tensor.op.name, tensor.value_index
