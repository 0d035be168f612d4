"""A function that TensorFlow traces into several graphs, one behind the other, so that other code runs in between.

``train_step_tracing`` uses it for a ``train_step`` with several updates.

``tf.function`` makes one graph of a call. Here the traced function says where a graph ends (:meth:`SegmentTrace.cut`),
and its rest is traced into the next one. Each graph is nested in the graphs before it, so it may use their tensors, as
the body of a ``tf.cond`` may: also a gradient tape that began before the cut works. A tensor that a later graph uses
becomes a result of its own graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import function_type_utils
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies
from tensorflow.python.framework.func_graph import FuncGraph

from edl.core.partition import splitmix64

_MAX_SEED = 0x7FFFFFFF


@dataclass(frozen=True)
class Segment:
    """One graph.

    Attributes:
        graph: the graph.
        function: runs it.
        captured: the tensors and variables that it gets: of the arguments and of the segments before.
        kept: its tensors that later segments use. They follow its results.
    """

    graph: Any
    function: Any
    captured: Sequence[Any]
    kept: Sequence[Any]

    def run(self, values: dict[int, Any]) -> list[Any]:
        """Run it; returns its results.

        Args:
            values: the values of traced tensors, by ``id``; those of later use are added.
        """
        outputs = self.function._call_flat([], [values.get(id(each), each) for each in self.captured])
        count = len(outputs) - len(self.kept)
        values.update(zip(map(id, self.kept), outputs[count:], strict=True))
        return list(outputs[:count])


@dataclass(frozen=True)
class SegmentedTrace:
    """A traced function.

    Attributes:
        arguments: the traced tensors of the arguments.
        segments: its graphs, in order.
        value: what the trace of the function returned.
    """

    arguments: Sequence[Any]
    segments: Sequence[Segment]
    value: Any

    def bind(self, *arguments: Any) -> dict[int, Any]:
        """The first values of a call: those of the arguments, whose leaves are tensors."""
        flat = tf.nest.flatten(arguments, expand_composites=True)
        return dict(zip(map(id, self.arguments), flat, strict=True))


class SegmentTrace:
    """The graphs that are being traced; a context manager, inside of the trace of a ``tf.function``."""

    def __init__(self) -> None:
        self._open: list[_OpenGraph] = []
        self.segments: list[Segment] = []

    @property
    def is_current(self) -> bool:
        """Whether operations are added to the newest graph itself, not to a condition, loop or function inside it."""
        return tf.compat.v1.get_default_graph() is self._open[-1].graph

    def __enter__(self) -> Self:
        self._begin()
        return self

    def cut(self, results: Sequence[Any]) -> None:
        """End the present graph with these results; what follows is traced into the next one."""
        self._open[-1].finish(results)
        self._begin()

    def end(self, results: Sequence[Any]) -> None:
        """End the last graph with these results."""
        self._open[-1].finish(results)
        needed: dict[int, Any] = {}
        while self._open:
            each = self._open.pop()
            segment = each.close(list(needed.values()))
            self.segments.insert(0, segment)
            needed |= {id(tensor): tensor for tensor in segment.captured if not _is_eager(tensor)}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            self._open.pop().contexts.close()

    def _begin(self) -> None:
        self._open.append(_OpenGraph(len(self._open)))


class _OpenGraph:
    """A graph to which operations are added; it is the default graph of this thread until it is closed."""

    def __init__(self, number: int) -> None:
        self.graph = FuncGraph(f"train_step_{number}")
        if self.graph.seed is not None:
            # TensorFlow numbers the random operations of each graph from zero: equal ones would draw equal numbers.
            self.graph.seed = splitmix64(self.graph.seed + number) & _MAX_SEED
        self.contexts = ExitStack()
        self.contexts.enter_context(self.graph.as_default())
        self._dependencies = self.contexts.enter_context(AutomaticControlDependencies())
        self._results: list[Any] = []

    def finish(self, results: Sequence[Any]) -> None:
        self._results = [self._dependencies.mark_as_return(tf.convert_to_tensor(each)) for each in results]

    def close(self, needed: Sequence[Any]) -> Segment:
        graph = self.graph
        kept = [tensor for tensor in needed if tensor.graph is graph]
        returned = [self._dependencies.mark_as_return(tensor) for tensor in kept]
        self.contexts.close()
        captured = list(graph.external_captures)
        graph.inputs = graph.internal_captures
        graph.outputs.extend([*self._results, *returned])
        graph.control_outputs.extend(self._dependencies.ops_which_must_run)
        graph.structured_input_signature = ((), {})
        graph.structured_outputs = list(graph.outputs)
        function = ConcreteFunction.from_func_graph(graph, function_type_utils.derive_from_graph(graph), {})
        return Segment(graph, function, captured, kept)


def trace_segments(function: Callable[..., Any], specs: Any) -> SegmentedTrace:
    """Trace a function into several graphs.

    Args:
        function: is called with a :class:`SegmentTrace` and the arguments; ends its last graph itself.
        specs: the nested specs of the arguments.
    """
    traces: list[SegmentedTrace] = []

    def trace(*arguments: Any) -> None:
        with SegmentTrace() as segments:
            value = function(segments, *arguments)
        leaves = tf.nest.flatten(arguments, expand_composites=True)
        traces.append(SegmentedTrace(leaves, segments.segments, value))

    tf.function(trace, autograph=False).get_concrete_function(*specs)
    return traces[-1]


def _is_eager(tensor: Any) -> bool:
    return not tf.is_symbolic_tensor(tensor)
