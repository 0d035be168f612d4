"""What the graph of a ``feed`` must not contain, because it runs anew for the records of each minibatch.

With ``keras.fit`` such operations run once over the whole data set. Here they would begin again with every minibatch,
without an error and with other records than the user means.
"""

from __future__ import annotations

from typing import Any


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
