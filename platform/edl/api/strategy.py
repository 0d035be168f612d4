"""The ``strategy`` section of the JobSpec: how the gradients of workers become updates.

The status of a job contains it, too. It has a module of its own so that a reader of statuses does not import the whole
JobSpec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edl.api.fields import Field


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the gradients of workers become updates of the parameters."""

    name: Annotated[
        str,
        Field(
            "ParameterServer for elastic jobs; Local for debugging in one process.",
            choices=("ParameterServer", "Local"),
            later=("AllReduce",),
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
