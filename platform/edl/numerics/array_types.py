"""The array types that parameter servers hold and exchange with workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""Values, gradients and slot variables: flat ``[n]`` for slabs, ``[n, dim]`` for rows."""

Ids = NDArray[np.int64]
"""Row ids, ``[n]``."""

StepNumbers = NDArray[np.uint32]
"""For each row, the step that last named it, ``[n]``."""


class RowBatch(NamedTuple):
    """Rows of a table: ids ``[n]``, and their values or gradients, ``[n, dim]`` float32.

    Pulled rows contain each id once. Gradients may contain an id several times; the table sums
    them.
    """

    ids: Ids
    values: Floats


RowsByTable: TypeAlias = Mapping[str, RowBatch]
