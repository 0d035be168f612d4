"""Which parameter server owns what, as the master versions it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edl.core.partition import owner_of_name, slot_of_row
from edl.transport import edl_pb2 as pb


@dataclass(frozen=True, slots=True)
class PsPlacement:
    """One version of the table slot -> PS, and where each PS listens.

    Attributes:
        version: of the table; higher is newer.
        addresses: bulk address by PS index.
        uids: the PS' pod by index: another uid means another process, which knows nothing of the one before.
        slots: PS index by slot.
    """

    version: int = 0
    addresses: Mapping[int, str] = field(default_factory=dict)
    uids: Mapping[int, str] = field(default_factory=dict)
    slots: tuple[int, ...] = ()

    @classmethod
    def from_message(cls, message: pb.Placement) -> PsPlacement:
        """The placement of a register reply."""
        return cls(
            version=message.version,
            addresses={ps.index: ps.bulk_address for ps in message.ps},
            uids={ps.index: ps.uid for ps in message.ps},
            slots=tuple(message.slots),
        )

    def newer(self, other: PsPlacement) -> PsPlacement:
        """The one with the higher version; ``other`` if equal."""
        return other if other.version >= self.version else self

    @property
    def complete(self) -> bool:
        """Whether every slot has an owner that listens."""
        return bool(self.slots) and all(self.addresses.get(index) for index in set(self.slots))

    @property
    def parts(self) -> int:
        """Number of parameter servers."""
        return max(self.slots, default=-1) + 1

    def ps_of_variable(self, name: str) -> int:
        """Index of the PS that owns a dense variable."""
        return owner_of_name(name, self.slots)

    def ps_of_rows(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index of the PS that owns each row id."""
        slots = slot_of_row(ids.astype(np.uint64)).astype(np.int64)
        owners: npt.NDArray[np.int64] = np.asarray(self.slots, dtype=np.int64)[slots]
        return owners
