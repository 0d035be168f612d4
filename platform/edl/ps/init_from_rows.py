"""The rows that a parameter server's tables begin with, if the job begins with the weights of another one.

The values of dense variables come with a worker's declaration. Rows do not: a table may be larger than a worker's
memory, and each server reads the rows that it owns. Rows without such values are initialised lazily:
``edl.numerics.initializers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edl.api.errors import BadInputError, StorageError
from edl.api.job_spec import JobSpec
from edl.core.partition import initial_placement, slot_of_row
from edl.numerics.array_types import Ids
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_snapshot import RowArrays
from edl.storage.run_directory import RunDirectory
from edl.transport.peer_errors import PeerRefusedError

InitialRowsReader = Callable[[ModelDeclaration], Mapping[str, RowArrays]]
"""Returns the rows that the tables of a declared model begin with, by table; none for new tables."""


def make_initial_rows_reader(run: RunDirectory, spec: JobSpec, ps_index: int) -> InitialRowsReader:
    """The reader of one parameter server of a job."""
    owners = np.asarray(initial_placement(spec.ps.count))

    def owns(ids: Ids) -> np.ndarray:
        owned: np.ndarray = owners[slot_of_row(ids.astype(np.uint64))] == ps_index
        return owned

    def read(declaration: ModelDeclaration) -> Mapping[str, RowArrays]:
        if spec.model.init_from is None or not declaration.tables:
            return {}
        # A server whose tables are new never loads the readers of files.
        from edl.storage.initial_weights import CONVERTED_FILE, InitialWeights, find_initial_weights
        from edl.storage.run_weights import HELD_DIRECTORY

        try:
            weights = find_initial_weights(run, spec)
            if weights is None:
                return {}
            path = weights.readable_path
            initial = InitialWeights.open(path if path.is_dir() else run.path / HELD_DIRECTORY / CONVERTED_FILE)
            rows_by_table = {table.name: initial.read_rows(table, owns) for table in declaration.tables}
        except BadInputError as error:
            raise PeerRefusedError(error.message, kind="model", hint=error.hint) from error
        except StorageError as error:
            raise PeerRefusedError(str(error), kind="storage") from error
        return {
            name: RowArrays(
                ids,
                values,
                {slot: np.full_like(values, start) for slot, start in declaration.optimizer.slot_starts.items()},
            )
            for name, (ids, values) in rows_by_table.items()
        }

    return read
