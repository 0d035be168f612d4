"""What applies an update: one function of all variables, which XLA compiles where it can.

``all_reduce_update`` lets XLA compile the update of a large model, ``local_strategy_update`` never does.

Op by op, TensorFlow passes over the memory of large variables about ten times: each operation of an optimizer reads and
writes whole arrays. XLA makes one loop of them, which halves the time of an update of ten million parameters. It may
fuse a product with a sum, so results differ from those op by op in the last bit. They are the same on all processors
with the same instructions, which is what the ranks of a round compare.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_LOG = logging.getLogger(__name__)

_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
"""XLA leaves them out."""
_SEEDED = frozenset({"Multinomial", "ParameterizedTruncatedNormal", "TruncatedNormal"})
_SEEDED_PREFIX = "Random"
"""Random numbers after the seed of the process: XLA draws others, which differ between the ranks."""
_CANNOT_COMPILE = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.NotFoundError)
"""What TensorFlow raises before a compiled function runs, if XLA lacks one of its operations."""


class UpdateFunction:
    """A function of nested tensors that changes variables and returns nothing; traced at the first call.

    Args:
        function: the function. All calls have tensors of the same types and shapes.
        compiles: let XLA compile it. If XLA cannot, because a user's optimizer has an operation that it does not know
            or treats otherwise, the function runs op by op.

    Attributes:
        is_compiled: whether XLA has compiled it.
    """

    def __init__(self, function: Callable[..., None], *, compiles: bool) -> None:
        self._function = function
        self._compiles = compiles
        self.is_compiled = False
        self._trace: Any = None

    def __call__(self, *arguments: Any) -> None:
        flat = tf.nest.flatten(arguments)
        if self._trace is not None:
            _run(self._trace, flat)
            return
        if self._compiles and self._run_compiled(arguments, flat):
            return
        self._trace = self._make_trace(arguments)
        _run(self._trace, flat)

    def _run_compiled(self, arguments: Any, flat: list[Any]) -> bool:
        """Compile the function and run it; False if XLA cannot: then nothing has changed."""
        trace = self._make_trace(arguments, jit_compile=True)
        obstacle = ", ".join(sorted(filter(_is_treated_otherwise, _operation_types(trace))))
        if not obstacle:
            try:
                _run(trace, flat)
            except _CANNOT_COMPILE as error:
                # An error in which XLA has no part is raised again op by op.
                obstacle = error.message.partition("\n")[0]
            else:
                self._trace, self.is_compiled = trace, True
                return True
        _LOG.info("the optimizer's update runs op by op, because XLA cannot compile it: %s", obstacle)
        return False

    def _make_trace(self, arguments: Any, *, jit_compile: bool | None = None) -> Any:
        return tf.function(self._function, autograph=False, jit_compile=jit_compile).get_concrete_function(*arguments)


def _run(trace: Any, flat: list[Any]) -> None:
    # Without the comparison of signatures, as in ``TracedFunction``.
    trace._call_flat(flat, trace.captured_inputs)


def _is_treated_otherwise(operation_type: str) -> bool:
    return operation_type in _CHECKS | _SEEDED or operation_type.startswith(_SEEDED_PREFIX)


def _operation_types(trace: Any) -> set[str]:
    """The types of all operations, with those in branches and called functions."""
    graph = trace.graph.as_graph_def()
    nodes = [graph.node, *(function.node_def for function in graph.library.function)]
    return {node.op for part in nodes for node in part}
