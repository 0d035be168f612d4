"""The connections of this worker's current round, which any thread may abort."""

from __future__ import annotations

from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener
from edl.collective.communicator import Communicator
from edl.transport.listener import BULK_PORT, TcpAddress
from edl.transport.process_identity import ProcessIdentity


class RoundConnection:
    """Connects this worker to one round at a time.

    Only the main thread connects, reduces and closes. The thread that hears from the master aborts: a reduction may
    wait for a neighbour that is stopped.

    Args:
        listener: takes the connections of the neighbours.
    """

    def __init__(self, listener: CollectiveListener) -> None:
        self._listener = listener
        self._communicator: Communicator | None = None

    @property
    def token(self) -> str:
        """The job's token, which all connections of a round present."""
        return self._listener.token

    @property
    def communicator(self) -> Communicator | None:
        """The communicator of the round; None while this worker is connected to none."""
        return self._communicator

    def connect(self, round_id: RoundId, rank: int, addresses: tuple[str, ...]) -> Communicator:
        """Connect to the neighbours in a round.

        Raises:
            RoundBrokenError: the round ended before it was connected.
        """
        self._communicator = Communicator.connect(self._listener, round_id, rank, addresses)
        return self._communicator

    def close(self) -> None:
        """Close the connections; the other members see a broken round."""
        if self._communicator is not None:
            self._communicator.close()
            self._communicator = None

    def abort(self, round_id: RoundId, reason: str) -> None:
        """End the reduction of this round, or of an earlier one, that the main thread waits for; from any thread."""
        communicator = self._communicator
        if communicator is not None and communicator.round_id <= round_id:
            communicator.abort(reason)
        self._listener.cancel_round(reason, round_id)


def ring_address(identity: ProcessIdentity) -> str:
    """Where this worker's neighbours connect: a port of the pod, or a Unix socket of this process."""
    if identity.pod_host is not None:
        return str(TcpAddress(identity.pod_host, BULK_PORT))
    return f"unix:{identity.runtime_dir / identity.socket_name('ring')}"
