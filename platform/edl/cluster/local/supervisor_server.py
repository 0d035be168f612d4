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
# One thread because children are tied to the thread that forked them (``edl.cluster.local.parent_death``).


ReadyCallback = Callable[[int], None]
"""Called with the selector's event mask."""


class EventLoop:
    """Calls back what is due. Must live in the main thread, where signals arrive."""

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
        """Call ``ready`` whenever the file is ready; again with other ``events`` to change them."""
        if file in self._selector.get_map():
            self._selector.modify(file, events, ready)
        else:
            self._selector.register(file, events, ready)

    def unwatch(self, file: socket.socket | int) -> None:
        """Watch a file no more."""
        self._selector.unregister(file)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once, ``seconds`` from now."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._timer_order), call))

    def on_signal(self, signum: int, call: Callable[[], None]) -> None:
        """Call from the loop, not from the signal handler, when the signal arrives."""
        self._signals[signum] = call
        self._previous_handlers[signum] = signal.signal(signum, self._record_signal)

    def run_once(self) -> None:
        """Wait until something is due and do it."""
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, mask in self._selector.select(timeout):
            # An earlier callback of this turn may have closed the file.
            if self._selector.get_map().get(key.fd) is key:
                key.data(mask)
        while self._pending_signals:
            self._signals[self._pending_signals.pop()]()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Give signals back to whoever had them."""
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._selector.close()
        self._wakeup.close()
        self._wakeup_writer.close()

    def _record_signal(self, signum: int, frame: FrameType | None) -> None:
        # What arrived is noted here and not read from the wakeup socket: a child that gets a signal between fork and
        # exec writes to that socket too, and must not be mistaken for the supervisor.
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
"""A connection that has not proven the token by then is closed."""
MAX_BACKLOG_BYTES = 8 * 1024 * 1024
"""Bytes that may wait for a slow reader before its connection is closed; it connects again and lists."""

EXHAUSTED_PAUSE_SECONDS = 0.2
"""Seconds without further connections after one could not be accepted."""

MAX_INDEX = 2**31 - 1
MAX_GRACE_SECONDS = 86_400.0


class PodOperations(Protocol):
    """Does what is asked for."""

    def start(self, role: Role, index: int) -> str:
        """Start a pod, or return the uid of the live one."""
        ...

    def delete(self, uid: str, grace: float) -> None:
        """Tell a pod to go."""
        ...

    def list_pods(self) -> Iterable[PodStatus]:
        """Return every pod that a watch lists."""
        ...


class SupervisorServer:
    """Listens on ``path`` (mode 0600) until closed."""

    def __init__(self, loop: EventLoop, path: Path, token: str, pods: PodOperations) -> None:
        self._loop = loop
        self._token = token.encode()
        self._pods = pods
        self._connections: set[_ClientConnection] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen()
        self._listener.setblocking(False)
        self._watch_listener()

    def publish(self, pod: PodStatus) -> None:
        """Tell every watch about a change."""
        for connection in [each for each in self._connections if each.watching]:
            connection.send(supervisor_protocol.pod_message(pod))

    def close(self) -> None:
        """End every connection."""
        if self._accepting:
            self._loop.unwatch(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            connection.close()

    def _watch_listener(self) -> None:
        if self._listener.fileno() >= 0:  # not closed meanwhile
            self._accepting = True
            self._loop.watch(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # The client is gone already, or this process has no file descriptor left: then the listener stays ready.
            print(f"a connection to the supervisor could not be accepted: {error}", file=sys.stderr, flush=True)
            self._loop.unwatch(self._listener)
            self._accepting = False
            self._loop.call_later(EXHAUSTED_PAUSE_SECONDS, self._watch_listener)
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            peer.close()
            return
        self._connections.add(_ClientConnection(self._loop, peer, self))

    def forget_connection(self, connection: _ClientConnection) -> None:
        """Forget a connection that closed."""
        self._connections.discard(connection)

    def check_token(self, message: supervisor_protocol.Message) -> bool:
        """Check a first message.

        Raises:
            RefusedError: wrong version or wrong token.
        """
        if message.get("edl") != supervisor_protocol.PROTOCOL_VERSION:
            raise RefusedError(
                f"The supervisor speaks version {supervisor_protocol.PROTOCOL_VERSION} of its protocol, "
                f"the client {message.get('edl')!r}"
            )
        if not hmac.compare_digest(str(message.get("token", "")).encode(), self._token):
            raise RefusedError("The token is not this job's")
        return True

    def handle_request(self, connection: _ClientConnection, message: supervisor_protocol.Message) -> None:
        """Do what a request asks for and answer it.

        Raises:
            EdlError: the request is wrong or refused.
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
                connection.send({"synced": True})
            case _:
                raise BadInputError(f"The supervisor does not know the request {message.get('op')!r}")


class _ClientConnection:
    """One client: what it sent so far, what waits to be sent to it."""

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
        """Send as much as the socket takes and keep the rest for later."""
        if not self._open:
            return
        self._backlog += supervisor_protocol.encode_message(message)
        self._flush()

    def close(self) -> None:
        """End the connection; does nothing the second time."""
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
        except RefusedError:
            raise
        except EdlError as error:
            self.send(supervisor_protocol.error_message(error))


def _parse_role(name: str) -> Role:
    if name not in (Role.PS, Role.WORKER):
        raise BadInputError(f"A master starts roles 'ps' and 'worker', not {name!r}")
    return Role(name)


def _check_index(index: int) -> int:
    if isinstance(index, bool) or not 0 <= index <= MAX_INDEX:  # to Python, true is a number
        raise BadInputError(f"A pod's index is a number from 0 to {MAX_INDEX}, not {index}")
    return index


def _check_grace(seconds: float) -> float:
    if seconds > MAX_GRACE_SECONDS:
        raise BadInputError(f"A pod's grace is at most {MAX_GRACE_SECONDS:g} s, not {seconds:g}")
    return max(0.0, float(seconds))
