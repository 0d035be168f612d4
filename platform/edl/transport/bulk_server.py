"""The server of the bulk plane: accepts connections, authenticates them, and passes frames to a handler."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edl.api.errors import RefusedError, RetryableError
from edl.transport.bulk_connection import (
    MAX_META_BYTES,
    BulkConnection,
    FrameKind,
    FrameLimits,
    OutgoingFrame,
    ReceivedFrame,
)
from edl.transport.edl_pb2 import Refusal
from edl.transport.handshake import MAX_TOKEN_BYTES, check_job_token
from edl.transport.listener import SocketListener
from edl.transport.peer_errors import PeerRefusedError, refusal_kind, to_sendable_text

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandOver:
    """A handler's last answer on a connection that leaves the server.

    Attributes:
        answer: sent first.
        take: gets the socket, which it owns then; called in the connection's thread.
    """

    answer: OutgoingFrame
    take: Callable[[socket.socket], None]


class _LimitedWarning:
    """Counts what a warning is about, so that it is logged at most once in a period. Not thread-safe."""

    def __init__(self) -> None:
        self._count, self._last_time = 0, float("-inf")

    def count_if_due(self, now: float) -> int:
        """Count one more; return how many since the last warning if one is due at ``now`` (seconds), else 0."""
        self._count += 1
        if now - self._last_time < _WARNING_PERIOD_SECONDS:
            return 0
        count, self._count, self._last_time = self._count, 0, now
        return count


FrameHandler = Callable[[ReceivedFrame], OutgoingFrame | HandOver]

_UNAUTHENTICATED_LIMITS = FrameLimits(meta=MAX_TOKEN_BYTES, body=0)
_HANDSHAKE_SECONDS = 5.0  # seconds for the whole first frame
_STOP_SECONDS = 5.0  # seconds that stop() waits for handlers
_MORE_MEMORY_HINT = "give it more memory, or send less at once"
_EXHAUSTED_PAUSE_SECONDS = 0.1  # pause if the process has no file descriptor left
_WARNING_PERIOD_SECONDS = 10.0  # seconds between two warnings about dropped or refused connections


class BulkServer:
    """Serves bulk requests, with one thread for each connection.

    If a handler raises RefusedError, the reply is REFUSED and the connection continues. RetryableError closes the
    connection: the peer may try again. Any other exception is logged, answered with REFUSED (``internal``), and
    ends the connection.

    Args:
        address: ``unix:<path>`` or ``host:port``; with port 0 the kernel chooses one.
        token: the job's token.
        handle_frame: returns the reply to a frame; called in the connection's thread. The frame's body is valid until
            it returns, and the buffers of the reply must not change until they are sent.
        max_body_bytes: maximum bytes of a body.
        idle_timeout: seconds without progress after which a peer counts as gone.
        max_connections: limit of authenticated connections; further ones are closed.
        max_unauthenticated: limit of connections that have not proved the token, each for at most five seconds. A
            further one replaces the oldest: peers with the token prove it at once and do not need to wait.
        on_disconnect: called in a connection's thread when it has ended.
    """

    def __init__(
        self,
        address: str,
        token: str,
        handle_frame: FrameHandler,
        *,
        max_body_bytes: int,
        idle_timeout: float = 600.0,
        max_connections: int = 1024,
        max_unauthenticated: int = 64,
        on_disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = address
        self._token = token.encode()
        self._handle = handle_frame
        self._limits = FrameLimits(MAX_META_BYTES, max_body_bytes)
        self._idle = idle_timeout
        self._max_connections = max_connections
        self._max_unproven = max_unauthenticated
        self._on_disconnect = on_disconnect
        self._lock = threading.Lock()
        self._threads_by_connection: dict[BulkConnection, threading.Thread] = {}
        # Oldest first. A dropped connection is in neither of these two collections.
        self._unauthenticated: dict[BulkConnection, None] = {}
        self._authenticated: set[BulkConnection] = set()
        self._dropped_connections = _LimitedWarning()
        self._refused_connections = _LimitedWarning()
        self._stopping = threading.Event()
        self._listener: SocketListener | None = None
        self._waker, self._woken = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept_all, name="bulk-accept", daemon=True)

    def start(self) -> None:
        """Listen. ``address`` is then the address for clients.

        Raises:
            RefusedError: the address cannot be used, or another live server listens there.
        """
        self._listener = SocketListener(self.address)
        self.address = self._listener.address
        self._acceptor.start()

    def stop(self) -> None:
        """Close all connections and wait at most five seconds for the handlers. Stopping twice does nothing."""
        with self._lock:
            self._stopping.set()
            threads = list(self._threads_by_connection.values())
            for connection in self._threads_by_connection:
                connection.shut_down()
        self._waker.close()  # wakes the acceptor, which waits in select()
        if self._listener is not None:
            self._acceptor.join()
            self._listener.close()
        self._woken.close()
        _join_threads(threads)

    def _accept_all(self) -> None:
        assert self._listener is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener.sock, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while not self._stopping.is_set():
                ready.select()
                self._accept(self._listener.sock)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, peer = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("%s: a connection could not be accepted: %s", self.address, error)
            self._stopping.wait(_EXHAUSTED_PAUSE_SECONDS)
            return
        sock.setblocking(True)  # accepted sockets inherit the mode on some systems
        self._admit_connection(sock, f"a client at {peer[0]}:{peer[1]}" if peer else f"a client of {self.address}")

    def _admit_connection(self, sock: socket.socket, peer: str) -> None:
        with self._lock:
            if self._stopping.is_set():
                sock.close()
                return
            if len(self._unauthenticated) >= self._max_unproven:
                self._drop_oldest()
            try:
                self._start_thread(BulkConnection(sock, peer, _UNAUTHENTICATED_LIMITS, _HANDSHAKE_SECONDS))
            except (OSError, RuntimeError) as error:  # the peer has left, or no thread can be started
                log.warning("%s: %s could not be served: %s", self.address, peer, error)
                sock.close()

    def _start_thread(self, connection: BulkConnection) -> None:
        """Start the connection's thread. Needs the lock: stop() cannot join a thread that has not started."""
        thread = threading.Thread(target=self._serve_connection, args=(connection,), name="bulk", daemon=True)
        thread.start()
        self._threads_by_connection[connection] = thread
        self._unauthenticated[connection] = None

    def _drop_oldest(self) -> None:
        """Close the oldest unauthenticated connection. Needs the lock."""
        oldest = next(iter(self._unauthenticated))
        del self._unauthenticated[oldest]
        oldest.shut_down()
        what = "%s: %s did not prove the token and is closed for a newer connection; %d since the last warning"
        if count := self._dropped_connections.count_if_due(time.monotonic()):
            log.warning(what, self.address, oldest.peer, count)

    def _mark_authenticated(self, connection: BulkConnection) -> None:
        """Record that a connection has proved the token.

        Raises:
            RetryableError: it was dropped before, or there are too many connections.
        """
        with self._lock:
            if connection not in self._unauthenticated:
                raise RetryableError(f"{connection.peer} proved the token too late")
            del self._unauthenticated[connection]
            if len(self._authenticated) >= self._max_connections:
                log.warning(
                    "%s: %s is closed: there are already %d connections",
                    self.address,
                    connection.peer,
                    len(self._authenticated),
                )
                raise RetryableError(f"{connection.peer} is closed: there are too many connections")
            self._authenticated.add(connection)

    def _serve_connection(self, connection: BulkConnection) -> None:
        try:
            self._authenticate(connection)
            while not isinstance(answer := self._handle_frame(connection.receive()), HandOver):
                connection.send(*answer)
            connection.send(*answer.answer)
            answer.take(connection.release_socket())
        except RetryableError as gone:
            log.debug("%s", gone)
        except PeerRefusedError as refused:
            self._refuse_and_close(connection, refused)
        except MemoryError:
            self._refuse_and_close(
                connection,
                PeerRefusedError("The server has no memory for a frame", kind="full", hint=_MORE_MEMORY_HINT),
            )
        finally:
            with self._lock:
                del self._threads_by_connection[connection]
                self._unauthenticated.pop(connection, None)
                self._authenticated.discard(connection)
            connection.close()
            self._on_disconnect()

    def _authenticate(self, connection: BulkConnection) -> None:
        hello = connection.receive(frame_timeout=_HANDSHAKE_SECONDS)
        if hello.kind is not FrameKind.HELLO:
            raise PeerRefusedError(f"The first frame must be HELLO, not {hello.kind.name}", kind="token")
        check_job_token(hello.meta, self._token)
        self._mark_authenticated(connection)
        # from now on the limits of requests, which are much larger than those of an unknown peer
        connection.set_limits(self._limits)
        connection.set_timeout(self._idle)
        connection.send(FrameKind.WELCOME)

    def _handle_frame(self, frame: ReceivedFrame) -> OutgoingFrame | HandOver:
        try:
            return self._handle(frame)
        except RefusedError as refused:
            return refusal_frame(refused)
        except RetryableError:
            raise
        except Exception as error:
            log.exception("%s: the handler of %s failed", self.address, frame.kind.name)
            raise PeerRefusedError(f"Internal error of the server: {error!r}", kind="internal") from error

    def _refuse_and_close(self, connection: BulkConnection, refused: PeerRefusedError) -> None:
        # A peer without the token can connect a thousand times a second: its refusals must not fill the log.
        with self._lock:
            count = self._refused_connections.count_if_due(time.monotonic())
        if count:
            more = f"; {count} since the last warning" if count > 1 else ""
            log.warning("%s: %s is refused: %s%s", self.address, connection.peer, refused, more)
        try:
            connection.send_last_frame(refusal_frame(refused))
        except RetryableError as gone:
            log.debug("%s", gone)


def refusal_frame(error: RefusedError) -> OutgoingFrame:
    """Return the frame with the reason of a refusal."""
    refusal_message = Refusal(
        reason=to_sendable_text(error.message), kind=refusal_kind(error), hint=to_sendable_text(error.hint or "")
    )
    return OutgoingFrame(FrameKind.REFUSED, refusal_message.SerializeToString())


def _join_threads(threads: Iterable[threading.Thread]) -> None:
    until = time.monotonic() + _STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            log.warning("a bulk handler still runs while its server stops")
