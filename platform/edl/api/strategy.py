"""How the workers of a job combine what they learn: the part of the JobSpec that a status has too.

It stands apart so that a reader of statuses does not load the whole JobSpec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edl.api.fields import Field


@dataclass(frozen=True, slots=True)
class Strategy:
    """How workers combine what they learn."""

    name: Annotated[
        str,
        Field(
            "ParameterServer for elastic jobs; Local for one process to debug in.",
            choices=("ParameterServer", "Local"),
            later=("AllReduce",),
        ),
    ] = "ParameterServer"
    mode: Annotated[
        str,
        Field("async: each push is an update at once; sync: several pushes are one update.", choices=("async", "sync")),
    ] = "async"
    grads_to_wait: Annotated[
        int,
        Field(
            "Pushes that an update waits for under mode: sync, or as many as workers can send.",
            unit="pushes",
            minimum=1,
        ),
    ] = 1
    version_tolerance: Annotated[
        int,
        Field(
            "Updates since its values that a push may miss under mode: sync; one that misses more is computed anew.",
            unit="updates",
        ),
    ] = 0
    staleness_aware: Annotated[
        bool,
        Field("Whether, under mode: async, the learning rate is divided by the updates since a push's values."),
    ] = False
    get_model_steps: Annotated[
        int,
        Field(
            "Steps of a worker from one pull of the dense values to the next; between, it moves a copy of its own "
            "(refused with Ftrl).",
            unit="steps",
            minimum=1,
        ),
    ] = 1
    overlap: Annotated[
        bool,
        Field(
            "Whether a worker sends one step and fetches rows for another while it computes; its gradients then lack "
            "one push more."
        ),
    ] = False
