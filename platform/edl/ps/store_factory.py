"""Which store a parameter server keeps its parameters in: as the job asks, and as this machine can.

The native store has the NumPy store's bits and is many times faster. So parameter servers of one job may differ, and
one may come back with the other store.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from edl.core.decision import Decision
from edl.numerics.array_types import Floats
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.numpy_store import NumpyParameterStore
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_snapshot import ParameterSnapshot
from edl.numerics.row_retention import RowRetention
from edl.numerics.table_store import TableParameterStore
from edl.transport.peer_errors import PeerRefusedError

log = logging.getLogger(__name__)

NATIVE_STORE, NUMPY_STORE = "native", "numpy"
_REQUESTED_REASON = "ps.store asks for it"


@dataclass(frozen=True, slots=True)
class NativeExtension:
    """What this process has of native code.

    Attributes:
        optimizers: those that it has kernels for.
        problem: why there is none; empty where there is.
    """

    optimizers: tuple[str, ...] = ()
    problem: str = ""


def find_extension() -> NativeExtension:
    """Look for it, by importing it."""
    try:
        from edl.numerics.native_table import NATIVE_OPTIMIZERS
    except ImportError as error:
        return NativeExtension(problem=f"the native extension cannot be imported ({error})")
    return NativeExtension(NATIVE_OPTIMIZERS)


def choose_store(wanted: str, found: NativeExtension, optimizer: OptimizerSpec | None = None) -> Decision[str]:
    """NATIVE or NUMPY: NATIVE wherever that can be had, unless the job asks for NUMPY.

    Args:
        wanted: what the job's ``ps.store`` says.
        found: the extension.
        optimizer: of the model; None before it is known.
    """
    if wanted == NUMPY_STORE:
        return Decision(NUMPY_STORE, _REQUESTED_REASON)
    if found.problem:
        return Decision(NUMPY_STORE, found.problem)
    if optimizer is not None and optimizer.name not in found.optimizers:
        return Decision(
            NUMPY_STORE, f"optimizer {optimizer.name} has no native kernel; {', '.join(found.optimizers)} have"
        )
    return Decision(NATIVE_STORE, _REQUESTED_REASON if wanted == NATIVE_STORE else "the native extension is there")


@dataclass(frozen=True, slots=True)
class StoreFactory:
    """Makes the stores of one parameter server.

    Attributes:
        wanted: what the job's ``ps.store`` says: ``auto``, ``native`` or ``numpy``.
        threads: that share a large batch of one native table.
        retention: which rows tables keep.
        found: the extension.
    """

    wanted: str = "auto"
    threads: int = 1
    retention: RowRetention = field(default_factory=RowRetention)
    found: NativeExtension = field(default_factory=find_extension)

    def choose_store_kind(self, optimizer: OptimizerSpec | None = None) -> Decision[str]:
        """See the function of this name."""
        return choose_store(self.wanted, self.found, optimizer)

    def make(self, declaration: ModelDeclaration, dense: Floats) -> TableParameterStore:
        """A store with this slab and empty tables.

        Raises:
            Refused: kind ``model``, if the job insists on native tables and they cannot be had.
        """
        chosen = self.choose_store_kind(declaration.optimizer)
        if chosen.value != self.choose_store_kind().value:
            log.info("tables are %s (%s)", chosen.value, chosen.reason)
        if chosen.value == NATIVE_STORE:
            from edl.numerics.native_store import NativeParameterStore  # an ImportError where there is no extension

            return NativeParameterStore(declaration, dense, self.retention, threads=self.threads)
        if self.wanted == NATIVE_STORE:
            raise PeerRefusedError(
                f"ps.store is native, but {chosen.reason}", kind="model", hint=self._native_store_hint
            )
        return NumpyParameterStore(declaration, dense, self.retention)

    def restored(self, snapshot: ParameterSnapshot, version: int = 0) -> TableParameterStore:
        """A store that holds what a snapshot of this version holds; raises what :meth:`make` does."""
        store = self.make(snapshot.declaration, snapshot.dense)
        store.load(snapshot, version)
        return store

    @property
    def _native_store_hint(self) -> str:
        with_numpy = "Without ps.store the parameter servers use NumPy."
        return (
            f"{with_numpy} `make native` builds the extension; EDL's image has it."
            if self.found.problem
            else with_numpy
        )
