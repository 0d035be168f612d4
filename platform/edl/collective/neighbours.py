"""Connects a rank to both of its neighbours in the ring."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from edl.api.errors import EdlError, RetryableError
from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener, RoundAdmission
from edl.collective.round_errors import RoundBrokenError
from edl.collective.round_frames import JoinRequest, RoundHeader
from edl.collective.shared_memory import RING_BYTES, SharedSegment, can_share_memory, receive_entry, send_entry
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind, set_kernel_timeout
from edl.transport.peer_errors import PeerRefusedError

# Between attempts while the neighbour is not listening yet. Short, because all ranks wait for the last one.
_BACKOFF = ExponentialBackoff(first_seconds=0.01, max_seconds=0.04)
# Shortest timeout in seconds. For the kernel, a socket timeout of zero means no timeout.
_LEAST_SECONDS = 0.05


@dataclass(slots=True)
class Neighbours:
    """Connections to the two neighbouring ranks. The holder closes them.

    Attributes:
        previous: socket that receives data and sends heartbeats.
        next: socket that sends data and receives heartbeats.
        previous_memory: shared memory that data arrives in; None if it arrives on the socket.
        next_memory: shared memory that data is sent through; None if it is sent on the socket.
    """

    previous: socket.socket
    next: socket.socket
    previous_memory: SharedSegment | None = None
    next_memory: SharedSegment | None = None

    def close(self) -> None:
        """Close everything."""
        self.previous.close()
        self.next.close()
        for segment in (self.previous_memory, self.next_memory):
            if segment is not None:
                segment.close()


def connect_neighbours(
    listener: CollectiveListener,
    round_id: RoundId,
    rank: int,
    members: Sequence[str],
    *,
    timeout: float,
    shared_memory: bool,
) -> Neighbours:
    """Connect to the next rank and wait for the previous one.

    ``listener.cancel_round`` ends the wait from another thread.

    Args:
        listener: the listener of this process. Its address is ``members[rank]``.
        round_id: an id later than every earlier round.
        rank: the rank of this process.
        members: addresses by rank, at least two.
        timeout: seconds for both connections together.
        shared_memory: use shared memory in each direction in which both ranks support it.

    Raises:
        RoundBrokenError: a neighbour did not connect in time or is in another round, or the round
            was cancelled.
        RefusedError: this process knows a later round.
    """
    deadline = time.monotonic() + timeout
    admission = listener.open_round(round_id, rank, len(members))
    try:
        return _connect_both(listener, admission, members, deadline, shared_memory and can_share_memory())
    finally:
        admission.finish()


def _connect_both(
    listener: CollectiveListener,
    admission: RoundAdmission,
    members: Sequence[str],
    deadline: float,
    shared_memory: bool,
) -> Neighbours:
    # Every rank connects forward before it waits for the rank behind it. The listener accepts in
    # its own threads, so the ring cannot deadlock.
    next_memory = None
    next_socket, shared = _join_next(listener, admission, members, deadline, shared_memory)
    try:
        if shared:
            next_memory = SharedSegment.create()
        header = RoundHeader(
            FrameKind.ENTER_ROUND, admission.round_id, admission.rank, offset=RING_BYTES if next_memory else 0
        )
        next_rank = (admission.rank + 1) % admission.size
        try:
            send_entry(next_socket, header.encode(), next_memory)
        except OSError as error:
            raise RoundBrokenError(next_rank, f"rank {next_rank} closed its connection: {error}") from error
        previous, previous_memory = _take_previous(admission, deadline)
    except BaseException:
        next_socket.close()
        if next_memory is not None:
            next_memory.close()
        raise
    return Neighbours(previous, next_socket, previous_memory, next_memory)


def _join_next(
    listener: CollectiveListener,
    admission: RoundAdmission,
    members: Sequence[str],
    deadline: float,
    shared_memory: bool,
) -> tuple[socket.socket, bool]:
    """Try to connect to the next rank until it accepts or the deadline has passed."""
    rank = (admission.rank + 1) % admission.size
    address = members[rank]
    offered = shared_memory and address.startswith("unix:")
    request = JoinRequest(admission.round_id, admission.rank, rank, admission.size, offered)
    problem, retry = "it was not asked", Retry(_BACKOFF, admission.wait)
    while (left := deadline - time.monotonic()) > 0:
        admission.check()
        try:
            with BulkClient(address, listener.token, timeout=max(left, _LEAST_SECONDS), max_body=0) as client:
                with _cancelled_with(admission, client):
                    reply = client.request(FrameKind.JOIN_ROUND, request.encode())
                client.check_reply_kind(FrameKind.JOIN_ROUND, reply)
                agreed = JoinRequest.decode(reply.meta)
                _check_answer(request, agreed)
                return client.release_socket(), offered and agreed.shared_memory
        except RoundBrokenError:
            raise
        except PeerRefusedError as refused:
            # All processes of a job have the token and the version with which the master accepted this one. So the
            # address is another job's by now, and the neighbour cannot be reached; this worker's log says why.
            if refused.kind in ("token", "version"):
                problem = f"another job has its address: {refused.message}"
                retry.wait()
                continue
            raise RoundBrokenError(rank, f"rank {rank} refuses: {refused.message}") from refused
        except RetryableError as error:
            problem = str(error)
            retry.wait()
    admission.check()
    raise RoundBrokenError(rank, f"rank {rank} cannot be reached: {problem}")


def _check_answer(request: JoinRequest, agreed: JoinRequest) -> None:
    if replace(agreed, shared_memory=request.shared_memory) != request:
        raise RoundBrokenError(request.receiver, f"rank {request.receiver} answers {agreed} to {request}")


@contextmanager
def _cancelled_with(admission: RoundAdmission, client: BulkClient) -> Iterator[None]:
    """Shut the client's connection down when the round is cancelled, to end this thread's wait."""
    admission.on_cancel(client.shut_down)
    try:
        yield
    finally:
        admission.on_cancel(None)


def _take_previous(admission: RoundAdmission, deadline: float) -> tuple[socket.socket, SharedSegment | None]:
    """Wait for the previous rank. Skip connections that it has given up."""
    rank = (admission.rank - 1) % admission.size
    while True:
        sock, shared_memory = admission.take_previous(deadline)
        try:
            set_kernel_timeout(sock, max(deadline - time.monotonic(), _LEAST_SECONDS))
            admission.on_cancel(partial(_shut_down, sock))
            header, segment = receive_entry(sock, rank)
        except (OSError, EdlError):
            sock.close()
            continue
        finally:
            admission.on_cancel(None)
        size = RING_BYTES if shared_memory else 0
        entered = RoundHeader(FrameKind.ENTER_ROUND, admission.round_id, rank, offset=size).encode()
        if header == entered and (segment is not None) == shared_memory:
            return sock, segment
        sock.close()
        if segment is not None:
            segment.close()
        raise RoundBrokenError(rank, f"rank {rank} entered another round than it joined")


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):  # the peer has closed it already
        sock.shutdown(socket.SHUT_RDWR)
