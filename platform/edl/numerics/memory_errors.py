"""Out-of-memory errors of a parameter server: what the memory was for, and what helps.

Most requests allocate memory before they change anything: they are refused, and the server
continues. If memory runs out in the middle of a push, the values are inconsistent: none are served
or written to a checkpoint until a checkpoint is restored.
"""

from __future__ import annotations

from edl.api.errors import RefusedError

OUT_OF_MEMORY_HINT = (
    "raise ps.resources.memory (under edl run, free memory on this machine), raise ps.count so that each parameter "
    "server holds less, or bound the tables with ps.max_rows or ps.evict_after_steps; then continue with --resume"
)


class OutOfMemoryError(RefusedError):
    """There is no memory for a request. The request changed nothing."""

    kind = "full"


class PartialUpdateError(RefusedError):
    """A push was only partially applied. The values must not be used any more."""

    kind = "full"


def out_of_memory_error(what: str) -> OutOfMemoryError:
    """Makes the error that refuses a request. ``what`` names the allocation, with shapes."""
    return OutOfMemoryError(f"this parameter server does not have enough memory for {what}", hint=OUT_OF_MEMORY_HINT)


def partial_update_error(what: str) -> PartialUpdateError:
    """The error that refuses the partially applied push and every later request."""
    return PartialUpdateError(
        f"this parameter server ran out of memory during a push, in {what}: the update was only partially applied, and "
        "the parameters are inconsistent",
        hint=OUT_OF_MEMORY_HINT,
    )
