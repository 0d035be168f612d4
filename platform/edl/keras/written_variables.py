"""Which variables and lookup tables a graph writes, found without running it.

TensorFlow tells of an operation which of its resources it only reads, but knows this of variables alone: a lookup in a
table counts as a write there, and so does a function, a condition or a loop that contains one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

_TABLE_READS = frozenset({"LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2"})
_CALLS: dict[str, tuple[tuple[str, ...], int]] = {
    **dict.fromkeys(["PartitionedCall", "StatefulPartitionedCall"], (("f",), 0)),
    **dict.fromkeys(["If", "StatelessIf"], (("then_branch", "else_branch"), 1)),
    **dict.fromkeys(["Case", "StatelessCase"], (("branches",), 1)),
    **dict.fromkeys(["While", "StatelessWhile"], (("cond", "body"), 0)),
}
"""Operations that call functions: the attributes that name these, and how many inputs come before the arguments."""


def find_written_variables(graph: Any) -> Iterator[tuple[Any, int]]:
    """Generate the operations of a graph that write variables or tables, each with the ``id`` of the handle.

    An operation that is not known to read only counts as one that writes.
    """
    outer_by_inner = {id(inner): id(outer) for outer, inner in graph.captures}
    functions = _WritingFunctions(graph)
    for operation in graph.get_operations():
        inputs = list(operation.inputs)
        handles = [at for at, value in enumerate(inputs) if value.dtype == tf.resource]
        if not handles or operation.type in _TABLE_READS:
            continue
        written = {id(handle) for handle in auto_control_deps_utils.get_read_write_resource_inputs(operation)[1]}
        suspects = [at for at in handles if id(inputs[at]) in written]
        for at in functions.select_written(operation.type, operation.node_def.attr, suspects) if suspects else ():
            if id(inputs[at]) in outer_by_inner:
                yield operation, outer_by_inner[id(inputs[at])]


class _WritingFunctions:
    """Tells which of their arguments the functions of a graph write."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._written: dict[str, frozenset[int]] = {}

    def select_written(self, kind: str, attributes: Mapping[str, Any], inputs: Sequence[int]) -> list[int]:
        """Those of an operation's inputs, by position, that it writes if they are resources."""
        if kind in _TABLE_READS or kind in auto_control_deps_utils.RESOURCE_READ_OPS:
            return []
        if kind not in _CALLS:
            return list(inputs)
        names, offset = _CALLS[kind]
        called = [
            function.name
            for name in names
            for function in (attributes[name].list.func if kind.endswith("Case") else [attributes[name].func])
        ]
        return [at for at in inputs if any(at - offset in self._find_written(name) for name in called)]

    def _find_written(self, name: str) -> frozenset[int]:
        if name not in self._written:
            definition = self._graph._get_function(name).definition
            arguments = {argument.name: at for at, argument in enumerate(definition.signature.input_arg)}
            # Until more is known: a function may call itself.
            self._written[name] = frozenset(arguments.values())
            written: set[int] = set()
            for node in definition.node_def:
                # An input that another operation made is named "operation:output:position", an order "^operation".
                arguments_by_place = {at: arguments[value] for at, value in enumerate(node.input) if value in arguments}
                written.update(
                    arguments_by_place[at] for at in self.select_written(node.op, node.attr, list(arguments_by_place))
                )
            self._written[name] = frozenset(written)
        return self._written[name]
