"""Serves start, delete and watch to the master over a Unix socket."""

from __future__ import annotations

import heapq
import hmac
import itertools
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from edl.api.cluster_port import PodStatus, Role
from edl.api.errors import BadInputError, EdlError, RefusedError
from edl.cluster.local import supervisor_protocol

# --------------------------------------------------------------------------------------------------
# The supervisor's event loop: sockets, signals and timers in one thread, without polling.
#
# There is one thread because the kernel ties children to the thread that forked them
# (``edl.cluster.local.parent_death``).


ReadyCallback = Callable[[int], None]
"""Called with the selector's event mask."""


class EventLoop:
    """Calls back when files are ready, timers expire or signals arrive. Runs in the main thread, which gets signals."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_order = itertools.count()
        self._signals: dict[int, Callable[[], None]] = {}
        self._previous_handlers: dict[int, Any] = {}
        self._pending_signals: set[int] = set()
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        self.watch(self._wakeup, selectors.EVENT_READ, lambda _: self._drain_wakeup())

    def watch(self, file: socket.socket | int, events: int, ready: ReadyCallback) -> None:
        """Call ``ready`` whenever the file is ready. A second call changes ``events``."""
        if file in self._selector.get_map():
            self._selector.modify(file, events, ready)
        else:
            self._selector.register(file, events, ready)

    def unwatch(self, file: socket.socket | int) -> None:
        """Stop watching a file."""
        self._selector.unregister(file)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``call`` once, ``seconds`` from now."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._timer_order), call))

    def on_signal(self, signum: int, call: Callable[[], None]) -> None:
        """Call ``call`` from the loop, not from the signal handler, when the signal arrives."""
        self._signals[signum] = call
        self._previous_handlers[signum] = signal.signal(signum, self._record_signal)

    def run_once(self) -> None:
        """Wait until something happens, and call the callbacks."""
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, mask in self._selector.select(timeout):
            # an earlier callback of this turn may have closed the file
            if self._selector.get_map().get(key.fd) is key:
                key.data(mask)
        while self._pending_signals:
            self._signals[self._pending_signals.pop()]()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._selector.close()
        self._wakeup.close()
        self._wakeup_writer.close()

    def _record_signal(self, signum: int, frame: FrameType | None) -> None:
        # Signals are recorded here and not read from the wakeup socket. A child that gets a signal between fork and
        # exec writes to that socket too, and its signal must not be taken for one of the supervisor's.
        self._pending_signals.add(signum)

    def _drain_wakeup(self) -> None:
        while True:
            try:
                if not self._wakeup.recv(4096):
                    return
            except BlockingIOError:
                return


MAX_CONNECTIONS = 64
AUTHENTICATION_SECONDS = 5.0
"""Time after which a connection without a valid token is closed."""
MAX_BACKLOG_BYTES = 8 * 1024 * 1024
"""Bytes that may wait for a slow reader. Beyond that its connection is closed; it can connect and list again."""

EXHAUSTED_PAUSE_SECONDS = 0.2
"""Pause in accepting connections after an error."""

MAX_INDEX = 2**31 - 1
MAX_GRACE_SECONDS = 86_400.0


class PodOperations(Protocol):
    """Carries out requests; implemented by the supervisor."""

    def start(self, role: Role, index: int) -> str:
        """Start a pod, or return the uid of the live one."""
        ...

    def delete(self, uid: str, grace: float) -> None:
        """Tell a pod to exit."""
        ...

    def list_pods(self) -> Iterable[PodStatus]:
        """Return all pods that a watch lists."""
        ...


class SupervisorServer:
    """Listens on a Unix socket at ``path`` (mode 0600) until it is closed."""

    def __init__(self, loop: EventLoop, path: Path, token: str, pods: PodOperations) -> None:
        self._loop = loop
        self._token = token.encode()
        self._pods = pods
        self._connections: set[_ClientConnection] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        # only this user may connect; the token is checked in addition
        path.chmod(0o600)
        self._listener.listen()
        self._listener.setblocking(False)
        self._watch_listener()

    def publish(self, pod: PodStatus) -> None:
        """Send a change to every watch."""
        # a copy, because a connection that fails removes itself from the set
        for connection in [each for each in self._connections if each.watching]:
            connection.send(supervisor_protocol.pod_message(pod))

    def close(self) -> None:
        """Close all connections."""
        if self._accepting:
            self._loop.unwatch(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            connection.close()

    def _watch_listener(self) -> None:
        if self._listener.fileno() >= 0:  # close() may have been called during the pause
            self._accepting = True
            self._loop.watch(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Either the client has left, or this process has no free file descriptor. In the second case the listener
            # stays ready and the loop would spin, so accepting pauses.
            print(f"a connection to the supervisor could not be accepted: {error}", file=sys.stderr, flush=True)
            self._loop.unwatch(self._listener)
            self._accepting = False
            self._loop.call_later(EXHAUSTED_PAUSE_SECONDS, self._watch_listener)
            return
        # a bound on memory and descriptors, whatever local programs do
        if len(self._connections) >= MAX_CONNECTIONS:
            peer.close()
            return
        self._connections.add(_ClientConnection(self._loop, peer, self))

    def forget_connection(self, connection: _ClientConnection) -> None:
        """Remove a connection that was closed."""
        self._connections.discard(connection)

    def check_token(self, message: supervisor_protocol.Message) -> bool:
        """Check the first message of a connection.

        Raises:
            RefusedError: the version or the token is wrong.
        """
        if message.get("edl") != supervisor_protocol.PROTOCOL_VERSION:
            raise RefusedError(
                f"The supervisor has version {supervisor_protocol.PROTOCOL_VERSION} of the protocol, "
                f"the client has {message.get('edl')!r}"
            )
        # compare_digest takes the same time for every wrong token. ``edl.transport.handshake.check_job_token`` does the
        # same for the two planes, with an error that needs gRPC; the supervisor starts without it.
        if not hmac.compare_digest(str(message.get("token", "")).encode(), self._token):
            raise RefusedError("The token does not belong to this job")
        return True

    def handle_request(self, connection: _ClientConnection, message: supervisor_protocol.Message) -> None:
        """Carry out a request and answer it.

        Raises:
            EdlError: the request is invalid or refused.
        """
        match message:
            case {"op": "start", "role": str(role), "index": int(index)}:
                connection.send({"uid": self._pods.start(_parse_role(role), _check_index(index))})
            case {"op": "delete", "uid": str(uid), "grace": int() | float() as grace}:
                self._pods.delete(uid, _check_grace(grace))
                connection.send({})
            case {"op": "watch"}:
                connection.watching = True
                for pod in self._pods.list_pods():
                    connection.send(supervisor_protocol.pod_message(pod))
                # the list is sent within one turn of the loop, so no change can be missed between list and watch
                connection.send({"synced": True})
            case _:
                raise BadInputError(f"The supervisor does not know the request {message.get('op')!r}")


class _ClientConnection:
    """One client: its incomplete line, and the bytes that wait to be sent."""

    def __init__(self, loop: EventLoop, peer: socket.socket, server: SupervisorServer) -> None:
        self.watching = False
        self._loop = loop
        self._socket = peer
        self._server = server
        self._lines = supervisor_protocol.MessageDecoder()
        self._backlog = bytearray()
        self._authenticated = False
        self._open = True
        peer.setblocking(False)
        loop.watch(peer, selectors.EVENT_READ, self._on_ready)
        loop.call_later(AUTHENTICATION_SECONDS, self._close_unauthenticated)

    def send(self, message: supervisor_protocol.Message) -> None:
        """Send as much as the socket accepts, and keep the rest for later."""
        if not self._open:
            return
        self._backlog += supervisor_protocol.encode_message(message)
        self._flush()

    def close(self) -> None:
        """Close the connection. Closing twice does nothing."""
        if self._open:
            self._open = False
            self._loop.unwatch(self._socket)
            self._socket.close()
            self._server.forget_connection(self)

    def _close_unauthenticated(self) -> None:
        if not self._authenticated:
            self.close()

    def _on_ready(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if mask & selectors.EVENT_READ and self._open:
            self._read()

    def _flush(self) -> None:
        try:
            del self._backlog[: self._socket.send(self._backlog)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        # checked after sending, so that a large list to a fast reader passes
        if len(self._backlog) > MAX_BACKLOG_BYTES:
            self.close()
            return
        writing = selectors.EVENT_WRITE if self._backlog else 0
        self._loop.watch(self._socket, selectors.EVENT_READ | writing, self._on_ready)

    def _read(self) -> None:
        try:
            data = self._socket.recv(supervisor_protocol.MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for message in self._lines.feed(data):
                self._handle_message(message)
        except RefusedError as error:
            self.send(supervisor_protocol.error_message(error))
            self.close()

    def _handle_message(self, message: supervisor_protocol.Message) -> None:
        if not self._authenticated:
            self._authenticated = self._server.check_token(message)
            self.send({"edl": supervisor_protocol.PROTOCOL_VERSION})
            return
        try:
            self._server.handle_request(self, message)
        except RefusedError:  # ends the connection, unlike other errors
            raise
        except EdlError as error:
            self.send(supervisor_protocol.error_message(error))


def _parse_role(name: str) -> Role:
    if name not in (Role.PS, Role.WORKER):
        raise BadInputError(f"A master starts roles 'ps' and 'worker', not {name!r}")
    return Role(name)


def _check_index(index: int) -> int:
    if isinstance(index, bool) or not 0 <= index <= MAX_INDEX:  # bool is a subclass of int
        raise BadInputError(f"A pod's index must be a number from 0 to {MAX_INDEX}, not {index}")
    return index


def _check_grace(seconds: float) -> float:
    if seconds > MAX_GRACE_SECONDS:
        raise BadInputError(f"A pod's grace period must be at most {MAX_GRACE_SECONDS:g} s, not {seconds:g}")
    return max(0.0, float(seconds))
