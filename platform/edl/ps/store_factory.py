"""Which store a parameter server keeps its parameters in: as the job asks, and as this machine can.

The native store has the NumPy store's bits and is many times faster. So parameter servers of one job may differ, and
one may come back with the other store.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from edl.core.decision import Decision
from edl.numerics.array_types import Floats
from edl.numerics.model_declaration import Declaration
from edl.numerics.numpy_store import NumpyStore
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_snapshot import Snapshot
from edl.numerics.row_retention import Retention
from edl.numerics.table_store import TableStore
from edl.transport.peer_errors import Refused

log = logging.getLogger(__name__)

NATIVE, NUMPY = "native", "numpy"
_ASKED = "ps.store asks for it"


@dataclass(frozen=True, slots=True)
class Extension:
    """What this process has of native code.

    Attributes:
        optimizers: those that it has kernels for.
        problem: why there is none; empty where there is.
    """

    optimizers: tuple[str, ...] = ()
    problem: str = ""


def extension() -> Extension:
    """Look for it, by importing it."""
    try:
        from edl.numerics.native_table import OPTIMIZERS
    except ImportError as error:
        return Extension(problem=f"the native extension cannot be imported ({error})")
    return Extension(OPTIMIZERS)


def choose(wanted: str, found: Extension, optimizer: OptimizerSpec | None = None) -> Decision[str]:
    """NATIVE or NUMPY: NATIVE wherever that can be had, unless the job asks for NUMPY.

    Args:
        wanted: what the job's ``ps.store`` says.
        found: the extension.
        optimizer: of the model; None before it is known.
    """
    if wanted == NUMPY:
        return Decision(NUMPY, _ASKED)
    if found.problem:
        return Decision(NUMPY, found.problem)
    if optimizer is not None and optimizer.name not in found.optimizers:
        return Decision(NUMPY, f"optimizer {optimizer.name} has no native kernel; {', '.join(found.optimizers)} have")
    return Decision(NATIVE, _ASKED if wanted == NATIVE else "the native extension is there")


@dataclass(frozen=True, slots=True)
class Stores:
    """Makes the stores of one parameter server.

    Attributes:
        wanted: what the job's ``ps.store`` says: ``auto``, ``native`` or ``numpy``.
        threads: that share a large batch of one native table.
        retention: which rows tables keep.
        found: the extension.
    """

    wanted: str = "auto"
    threads: int = 1
    retention: Retention = field(default_factory=Retention)
    found: Extension = field(default_factory=extension)

    def choose(self, optimizer: OptimizerSpec | None = None) -> Decision[str]:
        """See the function of this name."""
        return choose(self.wanted, self.found, optimizer)

    def make(self, declaration: Declaration, dense: Floats) -> TableStore:
        """A store with this slab and empty tables.

        Raises:
            Refused: kind ``model``, if the job insists on native tables and they cannot be had.
        """
        chosen = self.choose(declaration.optimizer)
        if chosen.value != self.choose().value:
            log.info("tables are %s (%s)", chosen.value, chosen.reason)
        if chosen.value == NATIVE:
            from edl.numerics.native_store import NativeStore  # an ImportError where there is no extension

            return NativeStore(declaration, dense, self.retention, threads=self.threads)
        if self.wanted == NATIVE:
            raise Refused(f"ps.store is native, but {chosen.reason}", kind="model", hint=self._remedy)
        return NumpyStore(declaration, dense, self.retention)

    def restored(self, snapshot: Snapshot, version: int = 0) -> TableStore:
        """A store that holds what a snapshot of this version holds; raises what :meth:`make` does."""
        store = self.make(snapshot.declaration, snapshot.dense)
        store.load(snapshot, version)
        return store

    @property
    def _remedy(self) -> str:
        with_numpy = "Without ps.store the parameter servers use NumPy."
        return (
            f"{with_numpy} `make native` builds the extension; EDL's image has it."
            if self.found.problem
            else with_numpy
        )
