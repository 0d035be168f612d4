"""The array types that parameter servers hold and exchange with workers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""Values, gradients and slot variables: flat ``[n]`` for slabs, ``[n, dim]`` for rows."""

Ids = NDArray[np.int64]
"""Row ids, ``[n]``."""

StepNumbers = NDArray[np.uint32]
"""For each row, the step that last named it, ``[n]``."""
