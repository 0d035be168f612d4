"""Weights that do not come from live parameter servers: a ``.keras`` file, or a checkpoint's directory.

``<run>/predict.json`` of a prediction run says which: ``{"from": PATH, "output": DIRECTORY}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edl.core.errors import BadInputError
from edl.spec.initializer import initial_rows
from edl.store.jsonfiles import read_json
from edl.worker.slab import Floats, Ids, Rows, RowsByTable, TableLike, VariableLike

PREDICT_FILE = "predict.json"


@dataclass(frozen=True, slots=True)
class PredictRun:
    """What a prediction run works with.

    Attributes:
        weights: a ``.keras`` file or the directory of a checkpoint.
        output: directory of the ``.npz`` files.
    """

    weights: Path
    output: Path

    @classmethod
    def of(cls, run_dir: Path) -> PredictRun | None:
        """What the run directory says; None for a run that trains.

        Raises:
            StorageError: the file cannot be read.
        """
        path = run_dir / PREDICT_FILE
        if not path.exists():
            return None
        value = read_json(path)
        try:
            return cls(Path(value["from"]), Path(value["output"]))
        except (KeyError, TypeError) as error:
            raise BadInputError(
                f"lacks {error}", where=str(path), hint='it has the fields "from" and "output"'
            ) from error

    @property
    def is_checkpoint(self) -> bool:
        """Whether the weights are those of a checkpoint, with served tables apart."""
        return self.weights.is_dir()


class StoredWeights:
    """All arrays of a checkpoint, in memory.

    Args:
        arrays: ``dense/<variable>``, ``rows/<table>/ids`` and ``rows/<table>/values``, of all shards.
        tables: served tables of the model.
    """

    def __init__(self, shards: Iterable[Mapping[str, Any]], tables: Iterable[TableLike]) -> None:
        self._dense: dict[str, Floats] = {}
        parts: dict[str, list[tuple[Ids, Floats]]] = {}
        for arrays in shards:
            for name, array in arrays.items():
                kind, _, rest = name.partition("/")
                if kind == "dense":
                    self._dense[rest] = array
                elif kind == "rows" and rest.endswith("/ids"):
                    table = rest.removesuffix("/ids")
                    parts.setdefault(table, []).append((array, arrays[f"rows/{table}/values"]))
        # A checkpoint of strategy Local holds every table as a dense variable of the same name
        whole = {name: [(np.arange(len(array)), array)] for name, array in self._dense.items() if array.ndim}
        self._tables = {t.name: _SortedRows(t, parts.get(t.name) or whole.get(t.name, [])) for t in tables}

    @classmethod
    def read(cls, directory: Path, tables: Iterable[TableLike]) -> StoredWeights:
        """The weights of a committed checkpoint.

        Raises:
            StorageError: it is not complete or not as it was written.
        """
        from edl.store import checkpoint  # loads safetensors

        manifest = checkpoint.load_manifest(directory)
        if isinstance(manifest, checkpoint.Skipped):
            raise BadInputError(f"is no checkpoint: {manifest.reason}", where=str(directory))
        return cls((checkpoint.read_shard(directory / shard.file)[0] for shard in manifest.shards), tables)

    def slab(self, variables: Iterable[VariableLike]) -> Floats:
        """The dense values in the order of a model's variables.

        Raises:
            BadInputError: a variable is missing or of another shape: the checkpoint is of another model.
        """
        flat: list[Floats] = [np.empty(0, np.float32)]
        for variable in variables:
            array = self._dense.get(variable.name)
            if array is None or array.shape != tuple(variable.shape):
                found = "is not in the checkpoint" if array is None else f"has the shape {list(array.shape)} there"
                raise BadInputError(f"variable '{variable.name}' {list(variable.shape)} of the model {found}")
            flat.append(array.ravel())
        return np.concatenate(flat)

    def pull_rows(self, ids: Mapping[str, Ids], pin: int = 0) -> RowsByTable:
        """Rows by table, those that were never trained as they were initialized."""
        del pin
        return {table: self._tables[table].rows(wanted) for table, wanted in ids.items()}


class _SortedRows:
    def __init__(self, table: TableLike, parts: list[tuple[Ids, Floats]]) -> None:
        self._table = table
        ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in parts)])
        values = np.concatenate([np.empty((0, table.dim), np.float32), *(values for _, values in parts)])
        order = np.argsort(ids)
        self._ids, self._values = ids[order], values[order]

    def rows(self, wanted: Ids) -> Rows:
        table = self._table
        values = initial_rows(table.initializer, table.seed, wanted, table.dim)
        at = np.searchsorted(self._ids, wanted)
        known = at < len(self._ids)
        known[known] = self._ids[at[known]] == wanted[known]
        values[known] = self._values[at[known]]
        return Rows(wanted, values)
