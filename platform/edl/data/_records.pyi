import numpy as np
from numpy.typing import NDArray

def gather(
    payloads: list[bytes], owners: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[bytes]: ...
def record_ends(payload: bytes, records: int) -> bytes | None: ...
