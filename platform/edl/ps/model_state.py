"""The parameters that a parameter server holds, with the number of applied pushes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from edl.core.decision import Decision
from edl.numerics.array_types import Floats
from edl.numerics.embedding_table import EmbeddingTable, RowRetention
from edl.numerics.memory_errors import PartialUpdateError
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_snapshot import ParameterSnapshot
from edl.numerics.parameter_store import NumpyParameterStore, ParameterStore, PushGradients, TableParameterStore
from edl.ps.applied_steps import AppliedSteps
from edl.ps.init_from_rows import InitialRowsReader
from edl.ps.keras_checkpoint import KerasCheckpoint
from edl.ps.shard_restore import CutSnapshot
from edl.transport.peer_errors import PeerRefusedError

# --------------------------------------------------------------------------------------------------
# Which store holds the parameters, by the job's choice and the machine's abilities. The native
# store produces the same bits as the NumPy store and is many times faster. So the parameter servers
# of one job may use different stores, and a PS may restart with the other one.


log = logging.getLogger(__name__)

NATIVE_STORE, NUMPY_STORE = "native", "numpy"
_REQUESTED_REASON = "ps.store asks for it"


@dataclass(frozen=True, slots=True)
class NativeExtension:
    """The native code available to this process.

    Attributes:
        optimizers: the optimizers that it has kernels for.
        problem: why it is not available; empty if it is.
    """

    optimizers: tuple[str, ...] = ()
    problem: str = ""


def find_extension() -> NativeExtension:
    """Try to import the native extension."""
    try:
        from edl.numerics.native_table import NATIVE_OPTIMIZERS
    except ImportError as error:
        return NativeExtension(problem=f"the native extension cannot be imported ({error})")
    return NativeExtension(NATIVE_OPTIMIZERS)


def choose_store(
    requested_store: str, extension: NativeExtension, optimizer: OptimizerSpec | None = None
) -> Decision[str]:
    """Choose the native store if it is available, unless the job asks for NumPy.

    Args:
        requested_store: the job's ``ps.store``.
        extension: the native extension of this process.
        optimizer: the model's optimizer; None before it is known.
    """
    if requested_store == NUMPY_STORE:
        return Decision(NUMPY_STORE, _REQUESTED_REASON)
    if extension.problem:
        return Decision(NUMPY_STORE, extension.problem)
    if optimizer is not None and optimizer.name not in extension.optimizers:
        return Decision(
            NUMPY_STORE, f"optimizer {optimizer.name} has no native kernel; {', '.join(extension.optimizers)} have"
        )
    return Decision(
        NATIVE_STORE, _REQUESTED_REASON if requested_store == NATIVE_STORE else "the native extension is available"
    )


@dataclass(frozen=True, slots=True)
class StoreFactory:
    """Creates the stores of one parameter server.

    Attributes:
        requested_store: the job's ``ps.store``: ``auto``, ``native`` or ``numpy``.
        table_threads: number of threads that share a large batch of one native table.
        retention: which rows tables keep.
        native_extension: the native extension of this process.
    """

    requested_store: str = "auto"
    table_threads: int = 1
    retention: RowRetention = field(default_factory=RowRetention)
    native_extension: NativeExtension = field(default_factory=find_extension)

    def choose_store_kind(self, optimizer: OptimizerSpec | None = None) -> Decision[str]:
        return choose_store(self.requested_store, self.native_extension, optimizer)

    def make_store(self, declaration: ModelDeclaration, initial_values: Floats) -> TableParameterStore:
        """A store with these initial values and empty tables.

        Raises:
            PeerRefusedError: kind ``model``, if the job requires native tables and they are not available.
        """
        decision = self.choose_store_kind(declaration.optimizer)
        if decision.value != self.choose_store_kind().value:
            log.info("tables are %s (%s)", decision.value, decision.reason)
        if decision.value == NATIVE_STORE:
            # Raises ImportError without the extension.
            from edl.numerics.native_table import NativeParameterStore

            return NativeParameterStore(declaration, initial_values, self.retention, threads=self.table_threads)
        if self.requested_store == NATIVE_STORE:
            raise PeerRefusedError(
                f"ps.store is native, but {decision.reason}", kind="model", hint=self._native_store_hint
            )
        return NumpyParameterStore(declaration, initial_values, self.retention)

    def restore_store(self, snapshot: ParameterSnapshot, version: int = 0) -> TableParameterStore:
        """A store with the content of a snapshot; raises like :meth:`make_store`."""
        store = self.make_store(snapshot.declaration, snapshot.flat_values)
        store.load_snapshot(snapshot, version)
        return store

    @property
    def _native_store_hint(self) -> str:
        with_numpy = "Without ps.store the parameter servers use NumPy."
        return (
            f"{with_numpy} `make native` builds the extension; EDL's image has it."
            if self.native_extension.problem
            else with_numpy
        )


_OTHER_MODEL_HINT = (
    "restore the model and the optimizer that this run started with, or start a new run, without --resume"
)


class ModelState:
    """Parameters and their version; used under the server's lock.

    Args:
        store_factory: creates the store.
        read_initial_rows: returns the rows that the tables of a newly declared model begin with.

    Attributes:
        version: number of applied updates.
        initialized: whether there are parameters, declared by a worker or restored from a checkpoint.
    """

    def __init__(
        self, store_factory: StoreFactory | None = None, read_initial_rows: InitialRowsReader = lambda declared: {}
    ) -> None:
        self.version = 0
        self._store_factory = store_factory or StoreFactory()
        self._read_initial_rows = read_initial_rows
        self._store: ParameterStore | None = None
        # Parameters merged from shards of a different number of PS have values but no order of the
        # flat buffer yet: only workers know the order.
        self._has_slab_order = False
        # Its part of a checkpoint of strategy AllReduce follows from the model, which a worker declares.
        self._undeclared_checkpoint: KerasCheckpoint | None = None
        self._partial_update_error: PartialUpdateError | None = None

    @property
    def initialized(self) -> bool:
        """See the class."""
        return self._store is not None or self._undeclared_checkpoint is not None

    @property
    def tables(self) -> Mapping[str, EmbeddingTable]:
        """Tables by name; empty before there are parameters."""
        return {} if self._store is None else self._store.tables

    def declare_model(self, declaration: ModelDeclaration, initial_values: Floats) -> bool:
        """Create the parameters unless they exist; returns whether they were created.

        Raises:
            PeerRefusedError: kind ``model``, if this PS holds another model or optimizer, or the job's
                ``ps.store`` cannot hold this one; kind ``storage``, if a restored checkpoint, or the weights that
                the job begins with, cannot be read.
            OutOfMemoryError: there is no memory for the model; nothing was created.
        """
        if self._undeclared_checkpoint is not None:
            snapshot = self._undeclared_checkpoint.convert(declaration)
            self._replace_store(self._store_factory.restore_store(snapshot, self.version))
            return False
        if self._store is None:
            self._replace_store(self._make_first_store(declaration, initial_values))
            return True
        # Values restored for a different number of servers get their order from the first
        # declaration.
        if not self._has_slab_order and self._store.declaration.equals_ignoring_order(declaration):
            with self._store.take_snapshot() as unordered:
                self._replace_store(
                    self._store_factory.restore_store(unordered.rearrange(declaration.variables), self.version)
                )
        if difference := self._store.declaration.describe_difference(declaration):
            raise PeerRefusedError(difference, kind="model", hint=_OTHER_MODEL_HINT)
        return False

    def _make_first_store(self, declaration: ModelDeclaration, initial_values: Floats) -> ParameterStore:
        rows = self._read_initial_rows(declaration)
        if not rows:
            return self._store_factory.make_store(declaration, initial_values)
        slots = {
            slot: np.full(declaration.trained_size, start, np.float32)
            for slot, start in declaration.optimizer.slot_starts.items()
        }
        log.info("begins with %d rows of another job", sum(len(each.ids) for each in rows.values()))
        return self._store_factory.restore_store(ParameterSnapshot(declaration, initial_values, slots, rows))

    def require_store(self) -> ParameterStore:
        """The parameters, for reading and writing.

        Raises:
            PeerRefusedError: kind ``uninitialized``, until a worker has declared the variables.
            PartialUpdateError: a push was partially applied, and nothing was restored since.
        """
        if self._partial_update_error is not None:
            raise PartialUpdateError(self._partial_update_error.message, hint=self._partial_update_error.hint)
        if self._store is None or not self._has_slab_order:
            raise PeerRefusedError("no worker has declared the variables to this PS yet", kind="uninitialized")
        return self._store

    def require_unchanged_store(self, declaration: ModelDeclaration) -> ParameterStore:
        """The parameters, if the request was checked against their declaration.

        Raises:
            PeerRefusedError: kind ``busy`` if they were replaced since then.
        """
        store = self.require_store()
        if store.declaration is not declaration:
            raise PeerRefusedError("the parameters were replaced while the request waited", kind="busy")
        return store

    def apply_push(self, gradients: PushGradients | None) -> None:
        """Apply a push and count it.

        Raises:
            TableFullError: a table has no room for its rows; nothing was changed.
            OutOfMemoryError: there is no memory for its rows; nothing was changed.
            PartialUpdateError: memory ran out in the middle; parameters are not readable any more.
        """
        if gradients is not None:
            try:
                self.require_store().apply_gradients(gradients, self.version + 1)
            except PartialUpdateError as error:
                # Refuse every later request: a snapshot of these values must not become a
                # checkpoint.
                self._partial_update_error = error
                raise
        # Empty pushes count too: workers use the version as the global step.
        self.version += 1

    def preallocate_copy(self) -> None:
        """Allocate memory for the next copy. Called without the server's lock: new pages take longer than the copy."""
        if self._store is not None:
            self._store.preallocate_copy()

    def copy_at_cut(self, cut: int, applied_steps: AppliedSteps) -> CutSnapshot:
        """The state at a cut; the caller releases its snapshot."""
        return CutSnapshot(cut, self.require_store().take_snapshot(), self.version, applied_steps.steps_by_lease())

    def restore_cut(self, cut: CutSnapshot | KerasCheckpoint) -> None:
        """Replace the parameters by those of a cut.

        Raises:
            OutOfMemoryError: there is no memory for them; the present parameters stay.
        """
        if isinstance(cut, KerasCheckpoint):
            self._replace_store(None, undeclared_checkpoint=cut)
        else:
            self._replace_store(
                self._store_factory.restore_store(cut.snapshot, cut.version), has_slab_order=cut.has_slab_order
            )
        self.version = cut.version

    def _replace_store(
        self,
        store: ParameterStore | None,
        *,
        has_slab_order: bool = True,
        undeclared_checkpoint: KerasCheckpoint | None = None,
    ) -> None:
        self._store, self._has_slab_order, self._partial_update_error = store, has_slab_order, None
        self._undeclared_checkpoint = undeclared_checkpoint
