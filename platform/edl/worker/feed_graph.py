"""What the graph of a ``feed`` must not contain, because it runs anew for the records of each minibatch.

With ``keras.fit`` such operations run once over the whole data set. Here they would begin again with every minibatch,
without an error and with other records than the user means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def find_seeded_operation(graph: Any) -> str | None:
    """The name of an operation, also of a function in the graph, that draws random numbers with a seed.

    Its random numbers are a sequence that begins with the seed, and functions of data sets are made anew for each
    minibatch. So record number 3 of all minibatches would get the same numbers.
    """
    definition = graph.as_graph_def()
    functions = (function.node_def for function in definition.library.function)
    for nodes in (definition.node, *functions):
        for node in nodes:
            if any(node.attr[key].i for key in ("seed", "seed2") if key in node.attr):
                return str(node.name)
    return None


# --------------------------------------------------------------------------------------------------
# Steps that depend on the position of a record in the data set.


_STEPS = {
    "ScanDataset": ("scan()", "its state would begin anew with each minibatch"),
    "ReduceDataset": (
        "reduce()",
        "compute it before training: of the columns of a table, `edl data stats` prints statistics",
    ),
    "TakeWhileDataset": ("take_while()", "filter() leaves records out by their values"),
    "WindowDataset": ("window()", "training records come in random order: store windows as records"),
    "UniqueDataset": ("unique()", "remove duplicates from the data"),
    "DirectedInterleaveDataset": (
        "sample_from_datasets() or choose_from_datasets()",
        "data.weights and data.repeat set how often the records of a path are used",
    ),
    "SnapshotDataset": ("snapshot()", "EDL reads the records anew in each epoch"),
    "SnapshotDatasetV2": ("snapshot()", "EDL reads the records anew in each epoch"),
    "MakeIterator": ("iter()", "use map() and filter()"),
}
"""Operations that are refused whatever their arguments are: the name that users know, and a hint."""
_ZIP_HINT = (
    "pair records by what is in them; seeds of random operations come from a tf.random.Generator that the module makes"
)
_PAIRING_OPS = frozenset({"MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2", "PrefetchDataset",
                          "ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3", "CacheDataset", "CacheDatasetV2",
                          "OptionsDataset"})  # fmt: skip
"""Operations that have one element for each of their input."""


def find_positional_step(source: tf.data.Dataset, dataset: tf.data.Dataset) -> tuple[str, str] | None:
    """A step from ``source`` to ``dataset`` that depends on more than single records, with a hint; None: there is none.

    Steps inside of functions (``flat_map``, ``interleave``), and those of other data sets, mean what they mean in
    ``tf.data``.
    """
    result, records = (tf.data.experimental.to_variant(each) for each in (dataset, source))
    # A data set that was made before ``feed`` was called has no operation in this graph.
    if not tf.is_symbolic_tensor(result):
        return None
    derived = {records.op}
    for operation in records.graph.get_operations():  # inputs come before what uses them
        if any(each.op in derived for each in operation.inputs):
            derived.add(operation)
    ancestors = set(_ancestors(result.op))
    for operation in records.graph.get_operations():
        if operation in derived and (operation in ancestors or operation.type == "MakeIterator"):
            positional_step = _STEPS.get(operation.type) or _find_by_arguments(operation, derived)
            if positional_step is not None:
                return positional_step
    return None


def uses_records(source: tf.data.Dataset, dataset: tf.data.Dataset) -> bool:
    """Whether ``dataset`` is made of ``source``. Otherwise every minibatch would have the same elements.

    Elements of ``from_generator`` come from Python, so those are not made of ``source`` either.
    """
    result, records = (tf.data.experimental.to_variant(each) for each in (dataset, source))
    return tf.is_symbolic_tensor(result) and records.op in _ancestors(result.op)


def _ancestors(operation: Any) -> Iterator[Any]:
    """The operation, and all whose results it uses."""
    waiting, visited = [operation], {operation}
    while waiting:
        yield (current := waiting.pop())
        unvisited = {each.op for each in current.inputs} - visited
        visited |= unvisited
        waiting.extend(unvisited)


def _find_by_arguments(operation: Any, derived: set[Any]) -> tuple[str, str] | None:
    match operation.type:
        case "SkipDataset" if _static_input(operation, 1) != 0:
            return "skip()", "filter() leaves records out by their values, data.reader.header the header of a CSV file"
        case "TakeDataset" if (count := _static_input(operation, 1)) is None or count > 0:
            return "take()", "name fewer files in data, or end training with train.max_steps"
        case "ShardDataset" if _static_input(operation, 1) != 1:
            return "shard()", "EDL gives every record to one worker"
        case "CacheDataset" | "CacheDatasetV2" if _static_input(operation, 1) != b"":
            return "cache() with a file", "every minibatch would be the first one; EDL reads records ahead of training"
        case "ConcatenateDataset" if any(each.op not in derived for each in operation.inputs):
            return "concatenate() with another data set", "name all files in data"
        case "ZipDataset" if _pairing_root(operation) is operation:
            return "zip() or enumerate() with another data set", _ZIP_HINT
        case "BatchDatasetV2" | "ParallelBatchDataset" | "PaddedBatchDatasetV2" | "MapAndBatchDataset" if (
            _static_input(operation, -1) != 0
        ):
            return "batch(drop_remainder=True)", "set train.batches.drop_remainder in the job file instead"
    return None


def _static_input(operation: Any, number: int) -> Any:
    """The value of an argument; None if it is known only when the graph runs."""
    value = tf.get_static_value(operation.inputs[number])
    return None if value is None else value.item()


def _pairing_root(operation: Any) -> Any:
    """The operation of whose elements this one has one each; of a ``zip`` of several such ones it is the ``zip``."""
    while operation.type in _PAIRING_OPS:
        operation = operation.inputs[0].op
    if operation.type != "ZipDataset":
        return operation
    roots = {_pairing_root(each.op) for each in operation.inputs}
    return next(iter(roots)) if len(roots) == 1 else operation
