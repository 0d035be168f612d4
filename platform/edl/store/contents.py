"""What a checkpoint's shard holds, from its header: names only, no array is read and NumPy is not needed."""

from __future__ import annotations

import json
from pathlib import Path

from edl.core.errors import StorageError
from edl.store.durable import translated

_LARGEST_HEADER = 100 << 20  # bytes; what the safetensors package itself accepts
_DENSE, _ROWS, _IDS = "dense/", "rows/", "/ids"


def variables_in(directory: Path, ps_index: int) -> list[str]:
    """The variables and tables in a parameter server's part of the cut in ``directory``, sorted.

    A shard that is not there any more has none.

    Raises:
        StorageError: it cannot be read, or is not in the format.
    """
    names: set[str] = set()
    for name in _array_names(directory / f"ps-{ps_index}.safetensors"):
        if name.startswith(_DENSE):
            names.add(name.removeprefix(_DENSE))
        elif name.startswith(_ROWS) and name.endswith(_IDS):
            names.add(name.removeprefix(_ROWS).removesuffix(_IDS))
    return sorted(names)


def _array_names(path: Path) -> list[str]:
    with translated(path, "read a checkpoint"):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = file.read(length) if length <= _LARGEST_HEADER else b""
        except FileNotFoundError:
            return []
    try:
        return [name for name in json.loads(header) if name != "__metadata__"]
    except ValueError as error:
        raise StorageError("is not a safetensors file", where=str(path)) from error
