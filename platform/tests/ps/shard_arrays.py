"""What stands in the shard of a cut, in memory."""

from __future__ import annotations

import numpy as np

from edl.ps.shard_restore import CutSnapshot
from edl.ps.shard_writer import make_shard_content


def shard_arrays(cut: CutSnapshot) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays by name, of variables views of the cut, and the strings beside them."""
    shard = make_shard_content(cut)
    parts: dict[str, list[np.ndarray]] = {name: [] for name, _, _ in shard.array_shapes}
    for name, values in shard.array_chunks:
        parts[name].append(values.copy() if name.startswith("rows/") else values)
    arrays = {}
    for name, dtype, shape in shard.array_shapes:
        pieces = parts[name]
        arrays[name] = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty((0, *shape[1:]), dtype), *pieces])
    return arrays, dict(shard.metadata)
