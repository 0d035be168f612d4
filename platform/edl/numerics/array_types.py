"""The types of arrays that a parameter server holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""Values, gradients and slot variables: flat ``[n]`` for slabs, ``[n, dim]`` for rows."""

Ids = NDArray[np.int64]
"""Row ids, ``[n]``."""

StepNumbers = NDArray[np.uint32]
"""Of each row, the step that named it last, ``[n]``."""
