"""The weights of another job that a job begins with (``model.init_from``).

They are arrays of a checkpoint, or of a file that a worker wrote from a ``.keras`` file. Of a checkpoint only the
weights count, not the optimizer's state and not the ledger. Workers and parameter servers read what they own, and only
until the run has a checkpoint: a run that continues never begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
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
_GENERATOR_SHAPE = (2,)
_GENERATOR_TYPES = frozenset({"int64", "uint32"})
"""The types of a ``keras.random.SeedGenerator``: that of Keras 3.15 on TensorFlow, and that of older files."""

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
class StateVariable:
    """A variable of the model outside the flat buffer.

    Attributes:
        name: path in the model.
        dtype: NumPy's name of the type.
        shape: shape of the variable.
        of_generator: whether it is the state of a random generator, which is never read.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    of_generator: bool


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
                if array.name.startswith(STATE_PREFIX) and array.name.removeprefix(STATE_PREFIX).isdecimal()
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
            return _read_array(self.dense[variable.name])
        rows, dim = variable.shape
        stored = self.tables[variable.name].spec
        assert stored is not None  # ``check_model`` compared its shape
        # Rows that were never trained are not stored: their values follow from the seed of that job.
        values = initial_rows(stored.initializer, stored.seed, np.arange(rows, dtype=np.int64), dim)
        for ids, part in self._row_chunks(variable.name):
            values[ids] = part
        return values

    def read_states(self, variables: Sequence[StateVariable]) -> dict[int, Array]:
        """The values of variables outside the flat buffer, by their position in ``variables``.

        A file has their numbers, not their names, and a layer with random numbers moves the numbers of those after it.
        So they are matched by their order without states of random generators. In a file these cannot be told from
        other arrays of their type and shape: if the variables are not the same ones in the same order, all such
        variables begin anew. So do all variables if the file has none, as one of parameter servers.

        Args:
            variables: all that the model has outside the flat buffer, in its order.

        Raises:
            BadInputError: they belong to another model.
            StorageError: a file is damaged or cannot be read.
        """
        if not self.states:
            return {}
        stored = [self.states[number] for number in sorted(self.states)]
        wanted = {number: variable for number, variable in enumerate(variables) if not variable.of_generator}
        if _types(stored) == _types(variables):
            return {number: _read_array(stored[number]) for number in wanted}
        if _types(stored) != _types(wanted.values()):
            stored = [array for array in stored if not _may_be_generator(array)]
            wanted = {number: variable for number, variable in wanted.items() if not _may_be_generator(variable)}
            self._check_states(list(wanted.values()), stored)
        return {number: _read_array(array) for number, array in zip(wanted, stored, strict=True)}

    def _check_states(self, variables: Sequence[StateVariable], stored: Sequence[StoredArray]) -> None:
        for variable, array in zip_longest(variables, stored):
            if variable is None:
                difference = f"'{array.name}' {_type_text(array)} is there, and not in the model"
            elif array is None or _types([variable]) != _types([array]):
                difference = f"the variable '{variable.name}' is {_type_text(variable)} in the model, and "
                difference += "missing there" if array is None else f"{_type_text(array)} there"
            else:
                continue
            raise BadInputError(
                f"these weights belong to another model (model.init_from): {difference}",
                where=str(self.path),
                hint=_OTHER_MODEL_HINT,
            )

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


def _read_array(array: StoredArray) -> Array:
    return np.concatenate(list(_chunks(array)) or [np.empty(0, np.float32)]).reshape(array.shape)


def _types(variables: Iterable[StateVariable | StoredArray]) -> list[tuple[str, tuple[int, ...]]]:
    return [(variable.dtype, variable.shape) for variable in variables]


def _may_be_generator(variable: StateVariable | StoredArray) -> bool:
    return variable.shape == _GENERATOR_SHAPE and variable.dtype in _GENERATOR_TYPES


def _type_text(variable: StateVariable | StoredArray) -> str:
    return f"{variable.dtype} {_shape_text(variable.shape)}"


def _shape_text(shape: Iterable[int]) -> str:
    return str(list(shape))
