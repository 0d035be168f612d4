"""Records taken in any order out of the payloads that they lie in.

A shuffled minibatch reads memory at random and waits for nearly every record. The native code asks for the memory of
the next records while it copies one. ``make native`` builds it; without it Python does the same, slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]


def gather_in_python(payloads: list[bytes], owners: Numbers, begins: Numbers, ends: Numbers) -> list[bytes]:
    """Record ``i`` is ``payloads[owners[i]][begins[i]:ends[i]]``; all three arrays are ``[records]``."""
    places = zip(owners.tolist(), begins.tolist(), ends.tolist(), strict=True)
    return [payloads[owner][begin:end] for owner, begin, end in places]


def fastest_gather() -> Callable[[list[bytes], Numbers, Numbers, Numbers], list[bytes]]:
    """The fastest that there is on this machine."""
    try:
        from edl.data._records import gather
    except ImportError:
        return gather_in_python
    return gather
