"""What follows when a pod ran out of memory: successors get more, or the job ends and says which field is too small."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.decision import Decision

MAX_RAISES = 3
"""A model that needs more than three times the factor has a leak or a wrong spec."""


@dataclass(frozen=True, slots=True)
class MemoryRaise:
    """What workers that are asked for now get; survives the master.

    Attributes:
        raise_count: how often it was raised.
        since: workers with a lower index were asked for with less.
    """

    raise_count: int = 0
    since: int = 0

    def factor(self, each: float) -> float:
        """Of the memory that the spec says, when each raise multiplies it by ``each``."""
        return each**self.raise_count


NO_MEMORY_RAISE = MemoryRaise()


def decide_after_oom(
    memory: MemoryRaise, index: int, next_index: int, each: float, size: str
) -> Decision[MemoryRaise | None]:
    """What workers get after the one with ``index`` ran out of memory; None: the job cannot go on.

    Several that run out of it together raise it once: the index says what each of them had.

    Args:
        next_index: of the worker that is asked for next.
        each: ``workers.oom_memory_factor``.
        size: what the spec asks for, for people.
    """
    who = f"worker-{index} ran out of memory"
    if index < memory.since:
        return Decision(memory, f"{who}: workers that are asked for now get more already")
    if each <= 1:
        return Decision(
            None,
            f"{who}: workers.resources.memory{_size_suffix(size)} is too little. Raise it, or set"
            " workers.oom_memory_factor above 1 to have successors ask for more",
        )
    if memory.raise_count >= MAX_RAISES:
        return Decision(
            None,
            f"{who} with {memory.factor(each):.3g} times workers.resources.memory{_size_suffix(size)}: raise that; "
            f"workers.oom_memory_factor multiplies it {MAX_RAISES} times at most",
        )
    raised = MemoryRaise(memory.raise_count + 1, next_index)
    return Decision(raised, f"{who}: the next ones get {raised.factor(each):.3g} times workers.resources.memory")


def ps_oom_reason(index: int, size: str) -> str:
    """Why a job ends whose PS ran out of memory: the one after it would have to hold as much."""
    return (
        f"ps-{index} ran out of memory: ps.resources.memory{_size_suffix(size)} is too little for its share of the"
        " parameters"
    )


def _size_suffix(size: str) -> str:
    return f" of {size}" if size else ""
