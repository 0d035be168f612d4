"""What a parameter server holds at the moment: the parameters and how many pushes are in them, or nothing yet."""

from __future__ import annotations

from collections.abc import Mapping

from edl.numerics.array_types import Floats
from edl.numerics.embedding_table import EmbeddingTable
from edl.numerics.memory_errors import PartialUpdateError
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_store import ParameterStore, PushGradients
from edl.ps.applied_steps import AppliedSteps
from edl.ps.shard_restore import CutSnapshot
from edl.ps.store_factory import StoreFactory
from edl.transport.peer_errors import PeerRefusedError

_OTHER_MODEL_HINT = (
    "give the model and the optimizer back as this run began with them, or start a new run, without --resume"
)


class ModelState:
    """Parameters and their version; used under the server's lock.

    Args:
        stores: makes what holds them.

    Attributes:
        version: pushes that were applied.
        initialized: there are parameters, declared by a worker or restored from a checkpoint.
    """

    def __init__(self, stores: StoreFactory | None = None) -> None:
        self.version = 0
        self._store_factory = stores or StoreFactory()
        self._store: ParameterStore | None = None
        # Parameters put together from the shards of another number of PS have all values but no order of the slab
        # yet: only workers know it.
        self._has_slab_order = False
        self._partial_update_error: PartialUpdateError | None = None

    @property
    def initialized(self) -> bool:
        """See the class."""
        return self._store is not None

    @property
    def tables(self) -> Mapping[str, EmbeddingTable]:
        """By name; none before there are parameters."""
        return {} if self._store is None else self._store.tables

    def declare(self, declared: ModelDeclaration, dense: Floats) -> bool:
        """Make the parameters, unless they are there; whether they were made.

        Raises:
            Refused: kind ``model``, if another model or optimizer is here, or no store may hold this one.
            OutOfMemoryError: for this one; nothing is held.
        """
        if self._store is None:
            self._hold(self._store_factory.make(declared, dense))
            return True
        if not self._has_slab_order and self._store.declaration.equals_ignoring_order(declared):
            with self._store.snapshot() as unordered:
                self._hold(self._store_factory.restored(unordered.rearrange(declared.dense), self.version))
        if difference := self._store.declaration.describe_difference(declared):
            raise PeerRefusedError(difference, kind="model", hint=_OTHER_MODEL_HINT)
        return False

    def store(self) -> ParameterStore:
        """The parameters.

        Raises:
            Refused: kind ``uninitialized``, until a worker has said in which order they are.
            PartialUpdateError: a push is in them in part; until they are restored.
        """
        if self._partial_update_error is not None:
            raise PartialUpdateError(self._partial_update_error.message, hint=self._partial_update_error.hint)
        if self._store is None or not self._has_slab_order:
            raise PeerRefusedError("no worker has declared the variables to this PS yet", kind="uninitialized")
        return self._store

    def require_unchanged_store(self, declared: ModelDeclaration) -> ParameterStore:
        """The parameters, if they are still those that a request was checked against.

        Raises:
            Refused: kind ``busy`` if they were replaced since then.
        """
        store = self.store()
        if store.declaration is not declared:
            raise PeerRefusedError("the parameters were replaced while the request waited", kind="busy")
        return store

    def apply(self, gradients: PushGradients | None) -> None:
        """Apply what a push brings, and count it.

        Raises:
            TableFullError: a table has no room for its rows; nothing was changed.
            OutOfMemoryError: the same of memory.
            PartialUpdateError: memory ran out later: nothing is given away from now on.
        """
        if gradients is not None:
            try:
                self.store().apply(gradients, self.version + 1)
            except PartialUpdateError as error:
                self._partial_update_error = error
                raise
        self.version += 1

    def make_room(self) -> None:
        """Prepare memory for the next copy; without the server's lock, because that takes a while."""
        if self._store is not None:
            self._store.make_room()

    def copy(self, cut: int, leases: AppliedSteps) -> CutSnapshot:
        """The state at a cut; who takes it releases its snapshot."""
        return CutSnapshot(cut, self.store().snapshot(), self.version, leases.applied())

    def restore(self, cut: CutSnapshot) -> None:
        """Hold what a cut held, instead of what is here; raises Refused (``model``) if no store may.

        OutOfMemoryError.
        """
        self._hold(self._store_factory.restored(cut.snapshot, cut.version), ordered=cut.has_slab_order)
        self.version = cut.version

    def _hold(self, store: ParameterStore, *, ordered: bool = True) -> None:
        self._store, self._has_slab_order, self._partial_update_error = store, ordered, None
