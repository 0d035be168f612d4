"""The weights of another job that a job begins with (``model.init_from``).

They are arrays of a checkpoint, or of a file that a worker wrote from a ``.keras`` file. Of a checkpoint only the
weights count, not the optimizer's state and not the ledger. Workers and parameter servers read what they own, and only
until the run has a checkpoint: a run that continues never begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from edl.api.errors import BadInputError, StorageError
from edl.api.job_spec import JobSpec
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.short_list import format_short_list
from edl.numerics.array_types import Floats, Ids
from edl.numerics.initializers import initial_rows
from edl.storage.checkpoint_contents import CheckpointContents, StoredTable, read_checkpoint_contents
from edl.storage.checkpoint_manifest import SkippedCheckpoint, committed_cuts, load_manifest
from edl.storage.durable_files import translate_os_errors
from edl.storage.run_directory import RunDirectory
from edl.storage.run_weights import RunWeights
from edl.storage.safetensors_header import StoredArray

CONVERTED_FILE = "model.safetensors"
"""What a worker wrote from a ``.keras`` file, in the run's folder for weights of other jobs."""

_CHUNK_BYTES = 16 << 20
"""Rows of a table are read in parts, because a parameter server owns a part of them."""
_MAX_LISTED_NAMES = 10
_OTHER_MODEL_HINT = (
    "Give the layers the names and sizes of that model, or load a part of the weights in the model's own code and "
    "leave model.init_from out."
)
STATE_PREFIX = "state/"
"""Before the number of a variable outside the flat buffer, in the names of arrays."""

Array = NDArray[Any]


def find_initial_weights(run: RunDirectory, spec: JobSpec) -> RunWeights | None:
    """What the run begins with; None: its own initial values, or it has a checkpoint and so has begun.

    Raises:
        BadInputError: the file that names the weights is missing, or lacks a field.
        StorageError: a file cannot be read.
    """
    if spec.task != "train" or spec.model.init_from is None or committed_cuts(run.checkpoints):
        return None
    return RunWeights.require(run, spec.task)


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """Arrays by the names of a model's variables and tables.

    Attributes:
        path: the directory of a checkpoint, or a file; for messages.
        dense: the variables by name. Under strategy Local they include all tables.
        tables: the tables of parameter servers by name.
        states: by number, the variables outside the flat buffer: counters, statistics in float64, states of random
            generators. Parameter servers store none.
    """

    path: Path
    dense: Mapping[str, StoredArray]
    tables: Mapping[str, StoredTable]
    states: Mapping[int, StoredArray] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> InitialWeights:
        """Read what there is, but no array.

        Raises:
            BadInputError: the directory is not a checkpoint.
            StorageError: a file is damaged or cannot be read.
        """
        if path.is_file():
            return cls._from_contents(path, read_checkpoint_contents([path]))
        manifest = load_manifest(path)
        if isinstance(manifest, SkippedCheckpoint):
            raise BadInputError(
                f"is not a checkpoint: {manifest.reason}",
                where=str(path),
                hint="Name a run, a checkpoint or a .keras file that exists (model.init_from).",
            )
        return cls._from_contents(path, read_checkpoint_contents(path / shard.file for shard in manifest.shards))

    @classmethod
    def _from_contents(cls, path: Path, contents: CheckpointContents) -> InitialWeights:
        return cls(
            path,
            {variable.spec.name: variable.values for variable in contents.variables},
            {table.name: table for table in contents.tables},
            {
                int(array.name.removeprefix(STATE_PREFIX)): array
                for array in contents.other_arrays
                if array.name.startswith(STATE_PREFIX) and array.name.removeprefix(STATE_PREFIX).isdigit()
            },
        )

    def check_model(self, variables: Iterable[VariableSpec], tables: Iterable[TableSpec] = ()) -> None:
        """Compare names and shapes with those of the model. Nothing is left over on either side.

        Raises:
            BadInputError: they differ; the error names what differs.
        """
        wanted = {variable.name: ("variable", tuple(variable.shape)) for variable in variables}
        wanted |= {table.name: ("embedding", (table.rows, table.dim)) for table in tables}
        stored = self._shapes()
        differences = [
            f"the {kind} '{name}' is {_shape_text(shape)} in the model, and "
            + (f"{_shape_text(stored[name])} there" if name in stored else "missing there")
            for name, (kind, shape) in wanted.items()
            if stored.get(name) != shape
        ]
        differences += [
            f"'{name}' {_shape_text(shape)} is there, and not in the model"
            for name, shape in stored.items()
            if name not in wanted
        ]
        if differences:
            listed = format_short_list(differences, _MAX_LISTED_NAMES, separator="\n  ")
            raise BadInputError(
                f"these weights belong to another model (model.init_from)\n  {listed}",
                where=str(self.path),
                hint=_OTHER_MODEL_HINT,
            )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {name: array.shape for name, array in self.dense.items()}
        return shapes | {
            name: (0 if table.spec is None else table.spec.rows, table.width) for name, table in self.tables.items()
        }

    def read_variable(self, variable: VariableSpec) -> Array:
        """The values of a variable, in the type in which they are stored.

        Raises:
            StorageError: the file is damaged or cannot be read.
        """
        if variable.name in self.dense:
            return np.concatenate(list(_chunks(self.dense[variable.name])) or [np.empty(0, np.float32)]).reshape(
                variable.shape
            )
        rows, dim = variable.shape
        stored = self.tables[variable.name].spec
        assert stored is not None  # ``check_model`` compared its shape
        # Rows that were never trained are not stored: their values follow from the seed of that job.
        values = initial_rows(stored.initializer, stored.seed, np.arange(rows, dtype=np.int64), dim)
        for ids, part in self._row_chunks(variable.name):
            values[ids] = part
        return values

    def read_states(self, variables: Mapping[int, VariableSpec]) -> dict[int, Array]:
        """The values of variables outside the flat buffer, by number; none of weights of parameter servers.

        Args:
            variables: those that are read, by number, of all the model has outside the flat buffer.

        Raises:
            BadInputError: they belong to another model.
            StorageError: a file is damaged or cannot be read.
        """
        if not self.states:
            return {}
        values = {}
        for number, variable in variables.items():
            stored = self.states.get(number)
            if stored is None or stored.shape != tuple(variable.shape):
                stored_shape = "missing" if stored is None else _shape_text(stored.shape)
                raise BadInputError(
                    f"these weights belong to another model (model.init_from): the variable '{variable.name}' is "
                    f"{_shape_text(variable.shape)} in the model, and {stored_shape} there",
                    where=str(self.path),
                    hint=_OTHER_MODEL_HINT,
                )
            values[number] = np.concatenate(list(_chunks(stored)) or [np.empty(0)]).reshape(variable.shape)
        return values

    def flat_values(self, variables: Iterable[VariableSpec]) -> Floats:
        """The values of variables one after the other, as float32."""
        read = (np.asarray(self.read_variable(variable), np.float32).ravel() for variable in variables)
        return np.concatenate([np.empty(0, np.float32), *read])

    def read_rows(self, table: TableSpec, owns: Callable[[Ids], NDArray[np.bool_]]) -> tuple[Ids, Floats]:
        """The rows of a table that one parameter server owns, with their ids.

        Rows that were never trained are not among them: they are new rows of this job.
        """
        ids, values = [np.empty(0, np.int64)], [np.empty((0, table.dim), np.float32)]
        for chunk_ids, chunk in self._row_chunks(table.name):
            owned = owns(chunk_ids)
            ids.append(chunk_ids[owned])
            values.append(np.asarray(chunk[owned], np.float32))
        return np.concatenate(ids), np.concatenate(values)

    def _row_chunks(self, table: str) -> Iterator[tuple[Ids, Array]]:
        if table in self.dense:
            start = 0
            for values in _chunks(self.dense[table]):
                yield np.arange(start, start + len(values), dtype=np.int64), values
                start += len(values)
            return
        for shard in self.tables[table].shards:
            ids = np.concatenate([np.empty(0, np.int64), *_chunks(shard.ids)])
            start = 0
            for values in _chunks(shard.values):
                yield ids[start : start + len(values)], values
                start += len(values)


def _chunks(array: StoredArray) -> Iterator[Array]:
    """An array in parts of its first axis."""
    try:
        with translate_os_errors(array.path, "read weights"), safe_open(array.path, framework="numpy") as file:
            if not array.shape:
                yield np.asarray(file.get_tensor(array.name)).reshape(1)
                return
            part = file.get_slice(array.name)
            rows = max(1, _CHUNK_BYTES // max(1, array.nbytes // max(1, array.shape[0])))
            for start in range(0, array.shape[0], rows):
                yield np.asarray(part[start : min(start + rows, array.shape[0])])
    except SafetensorError as error:
        raise StorageError(f"'{array.name}' cannot be read: {error}", where=str(array.path)) from error


def _shape_text(shape: Iterable[int]) -> str:
    return str(list(shape))
