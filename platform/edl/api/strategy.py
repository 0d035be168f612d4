"""The ``strategy`` section of the JobSpec: how the gradients of workers become updates.

The status of a job contains the part about parameter servers, too. It has a module of its own so that a reader of
statuses does not import the whole JobSpec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edl.api.fields import Field, Quantity

MAX_DENSE_GRADIENT = 256 << 20
"""The default of ``strategy.max_dense_gradient``, in bytes."""


@dataclass(frozen=True, slots=True)
class PushStrategy:
    """How pushes to parameter servers become updates of the parameters: what a status shows of the strategy."""

    name: Annotated[
        str,
        Field(
            "ParameterServer for elastic jobs; AllReduce for synchronous steps of dense models without "
            "parameter servers; Local for debugging in one process.",
            choices=("ParameterServer", "AllReduce", "Local"),
        ),
    ] = "ParameterServer"
    mode: Annotated[
        str,
        Field("async: each push is one update; sync: several pushes form one update.", choices=("async", "sync")),
    ] = "async"
    grads_to_wait: Annotated[
        int,
        Field(
            "With mode: sync, the number of pushes per update; fewer if fewer workers can send.",
            unit="pushes",
            minimum=1,
        ),
    ] = 1
    version_tolerance: Annotated[
        int,
        Field(
            "With mode: sync, the number of updates that the values of a push may lack; a push that "
            "lacks more is computed again.",
            unit="updates",
        ),
    ] = 0
    staleness_aware: Annotated[
        bool,
        Field("With mode: async, divide the learning rate of a push by its staleness (updates since its values)."),
    ] = False
    get_model_steps: Annotated[
        int,
        Field(
            "Steps of a worker between two pulls of the dense values; in between it updates its own "
            "copy. Refused with Ftrl.",
            unit="steps",
            minimum=1,
        ),
    ] = 1
    overlap: Annotated[
        bool,
        Field("Send one step and pull the rows of the next one while computing; gradients then lack one more push."),
    ] = False


@dataclass(frozen=True, slots=True)
class Strategy(PushStrategy):
    """How the gradients of workers become updates of the parameters."""

    learning_rate_scaling: Annotated[
        str,
        Field(
            "With AllReduce: how the learning rate follows the number of workers of a step, divided by "
            "reference_world. none: it does not; linear: in proportion; sqrt: with the square root.",
            choices=("none", "linear", "sqrt"),
        ),
    ] = "none"
    reference_world: Annotated[
        int | None,
        Field(
            "With learning_rate_scaling: the number of workers for which the model's learning rate was chosen.",
            unit="workers",
            minimum=1,
        ),
    ] = None
    global_batch: Annotated[
        int | None,
        Field(
            "With AllReduce: the records of a step of all workers together, at any number of workers. Each takes "
            "an equal share, in parts of at most train.minibatch_size. null: each worker takes train.minibatch_size.",
            unit="records",
            minimum=1,
        ),
    ] = None
    gradient_compression: Annotated[
        str,
        Field(
            "With AllReduce: the type of float32 gradients between workers. bfloat16 and float16 halve the bytes; the "
            "rounding errors of a worker's gradients are added to its next ones. none: they travel as float32.",
            choices=("none", "bfloat16", "float16"),
        ),
    ] = "none"
    max_dense_gradient: Annotated[
        int,
        Field(
            "With AllReduce: the most bytes that the gradients of looked-up rows (Embedding layers) may have. They are "
            "as large as their tables, and travel with every step. A model above it is refused.",
            unit="bytes",
            quantity=Quantity.SIZE,
        ),
    ] = MAX_DENSE_GRADIENT
