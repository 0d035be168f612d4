"""Where workers find the parameter servers, under a version that changes with the set of those they may talk to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from edl.api.cluster_port import Role
from edl.core.partition import initial_placement
from edl.core.state import JobState
from edl.master.ps_connection import PsConnection
from edl.transport import edl_pb2 as pb

_INCARNATION_SHIFT = 32


class PsConnectionSource(Protocol):
    """Who knows where PS listen."""

    def addresses(self) -> Mapping[str, PsConnection]:
        """Links by uid."""


class PlacementTable:
    """The parameter servers as workers see them. Call with the shell's lock held.

    Args:
        state: of the job.
        servers: where each PS listens.
        incarnation: of this master; its placements are newer than those of every master before.
    """

    def __init__(self, state: JobState, servers: PsConnectionSource, incarnation: int) -> None:
        self._state, self._servers, self._incarnation = state, servers, incarnation
        self._placed: tuple[str, ...] = ()
        self._version_counter = 1

    def version(self) -> int:
        """Of the placement as it is now. A PS belongs to it that listens and holds all it can be given."""
        restored = self._state.checkpoint is not None
        live = self._state.pods.live(Role.PS)
        placed = tuple(ps.uid for ps in live if ps.attached and (ps.initialized or not restored))
        if placed != self._placed:
            self._placed = placed
            self._version_counter += 1
        return (self._incarnation << _INCARNATION_SHIFT) + self._version_counter

    def placement(self) -> pb.Placement:
        """The placement as it is now."""
        version, links, count = self.version(), self._servers.addresses(), self._state.settings.ps
        found = [links[uid] for uid in self._placed if uid in links]
        addresses = [pb.PsAddress(index=x.index, uid=x.uid, bulk_address=x.bulk_address) for x in found]
        return pb.Placement(version=version, ps=addresses, slots=initial_placement(count) if count else ())
