"""The extension that ``make native`` builds from ``edl/numerics/native``; ``collective_bindings.cpp`` is its source."""

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES: int

class RoundBroken(RuntimeError): ...  # noqa: N818 - named as in C++
class FaultInjected(RuntimeError): ...  # noqa: N818

def add_into(into: NDArray[np.uint8], other: NDArray[np.uint8], element: int, isa: str = "") -> None: ...
def compress(
    values: NDArray[np.float32],
    residual: NDArray[np.float32],
    halves: NDArray[np.uint16],
    element: int,
    isa: str = "",
) -> None: ...
def expand(halves: NDArray[np.uint16], values: NDArray[np.float32], element: int, isa: str = "") -> None: ...

class Ring:
    def __init__(
        self,
        incarnation: int,
        number: int,
        rank: int,
        size: int,
        previous: int,
        next_: int,
        previous_memory: tuple[int, int, int] | None,
        next_memory: tuple[int, int, int] | None,
        timeout: float,
        first_within: float,
    ) -> None: ...
    def all_reduce(self, buffer: NDArray[np.uint8], element: int, algorithm: int, control: bytes) -> list[bytes]: ...
    def abort(self, reason: str) -> None: ...
    def close(self) -> None: ...
    def fail_after(self, count: int) -> None: ...
    @property
    def broken(self) -> bool: ...
    @property
    def lost_rank(self) -> int: ...
    @property
    def reason(self) -> str: ...
