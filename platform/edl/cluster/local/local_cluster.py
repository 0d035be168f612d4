"""The cluster port of a master on this machine: a client of the supervisor's socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, PodStatus, Role, WatchSynced
from edl.api.errors import BadInputError, RetryableError
from edl.cluster.local import supervisor_protocol
from edl.cluster.watch_deduplicator import WatchDeduplicator
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry, no_jitter

ANSWER_SECONDS = 10.0
"""Maximum time for one answer. Starting a process takes milliseconds."""
CONNECT_SECONDS = 5.0
"""Time for which connecting is retried."""
_CONNECT_BACKOFF = ExponentialBackoff(first_seconds=0.01, max_seconds=0.5)


class LocalCluster:
    """The pods of one run on this machine. Safe to use from several threads."""

    def __init__(self, path: Path, token: str, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._path = path
        self._token = token
        self._connect_seconds = connect_seconds
        self._request_lock = threading.Lock()
        self._request_connection: _SupervisorConnection | None = None
        self._closed = threading.Event()
        self._state_lock = threading.Lock()
        self._connections: set[_SupervisorConnection] = set()

    @classmethod
    def from_environment(cls, token: str, variables: Mapping[str, str] | None = None) -> LocalCluster:
        """Return the cluster that the environment names; ``variables`` replaces ``os.environ``.

        Raises:
            BadInputError: ``EDL_CLUSTER_SOCKET`` is not set.
        """
        path = (os.environ if variables is None else variables).get("EDL_CLUSTER_SOCKET")
        if not path:
            raise BadInputError(
                "The environment has no EDL_CLUSTER_SOCKET", hint="Roles are started by `edl run`, not by hand."
            )
        return cls(Path(path), token)

    def start(self, role: Role, index: int, options: PodOptions = DEFAULT_OPTIONS) -> str:
        """Start a pod; see ``edl.api.cluster_port.JobCluster.start``. A request without an answer is sent again.

        Options have no effect: processes on one machine have no memory limit and no priority.
        """
        return str(self._request({"op": "start", "role": role.value, "index": index})["uid"])

    def delete(self, uid: str, *, grace: float) -> None:
        """Tell a pod to exit; see ``edl.api.cluster_port.JobCluster.delete``."""
        self._request({"op": "delete", "uid": uid, "grace": grace})

    def watch(self) -> Iterator[PodStatus | WatchSynced]:
        """Yield pods and changes; see ``edl.api.cluster_port.JobCluster.watch``.

        Raises:
            RetryableError: the supervisor cannot be reached.
            RefusedError: the supervisor refuses the token or the version.
        """
        watch_deduplicator = WatchDeduplicator()
        synced = False
        # each connection begins with a full list, so a lost connection is followed by another one
        while not self._closed.is_set():
            listed_pods: list[PodStatus] | None = []
            for message in self._watch_messages():
                if listed_pods is None:
                    yield from watch_deduplicator.apply_change(supervisor_protocol.pod_from_message(message))
                elif "synced" not in message:
                    listed_pods.append(supervisor_protocol.pod_from_message(message))
                else:
                    yield from watch_deduplicator.apply_list(listed_pods)
                    listed_pods = None
                    if not synced:
                        synced = True
                        yield WatchSynced()

    def close(self) -> None:
        """End every watch and release the connections; calls after it raise ``RetryableError``."""
        # without the request lock, which a request that waits for an answer holds: shutting down ends that wait
        self._closed.set()
        with self._state_lock:
            for connection in self._connections:
                connection.shut_down()
        with self._request_lock:
            if self._request_connection is not None:
                self._release(self._request_connection)
                self._request_connection = None

    def _request(self, request: supervisor_protocol.Message) -> supervisor_protocol.Message:
        with self._request_lock:
            try:
                return self._request_once(request)
            except ConnectionError:  # the connection may be from before a pause of the supervisor; try a new one once
                return self._request_again(request)

    def _request_again(self, request: supervisor_protocol.Message) -> supervisor_protocol.Message:
        try:
            return self._request_once(request)
        except ConnectionError as error:
            raise RetryableError(f"The supervisor does not respond: {error}", where=str(self._path)) from error

    def _request_once(self, request: supervisor_protocol.Message) -> supervisor_protocol.Message:
        # one connection for all requests; it stays open between them
        if self._request_connection is None:
            self._request_connection = self._connect()
        try:
            answer = self._request_connection.request(request)
        except ConnectionError:
            self._release(self._request_connection)
            self._request_connection = None
            raise
        supervisor_protocol.raise_error(answer, where=str(self._path))
        return answer

    def _watch_messages(self) -> Iterator[supervisor_protocol.Message]:
        """Yield the messages of one watch connection, until it ends."""
        try:
            connection = self._connect()
        except RetryableError:
            if self._closed.is_set():
                return
            raise
        try:
            # a connection of its own, because a watch never ends
            connection.start_watch()
            while (message := connection.receive()) is not None:
                supervisor_protocol.raise_error(message, where=str(self._path))
                yield message
        except ConnectionError:
            return
        finally:
            self._release(connection)

    def _connect(self) -> _SupervisorConnection:
        """Connect and authenticate; retries for ``connect_seconds``."""
        retry = Retry(_CONNECT_BACKOFF, self._closed.wait, timeout_seconds=self._connect_seconds, jitter=no_jitter)
        while True:
            try:
                return self._connect_once()
            except OSError as error:
                if not retry.wait() or self._closed.is_set():
                    raise RetryableError(f"The supervisor cannot be reached: {error}", where=str(self._path)) from error

    def _connect_once(self) -> _SupervisorConnection:
        connection = _SupervisorConnection(self._path)
        with self._state_lock:
            if self._closed.is_set():
                connection.close()
                raise RetryableError("The cluster is closed", where=str(self._path))
            self._connections.add(connection)
        try:
            supervisor_protocol.raise_error(
                connection.request(supervisor_protocol.hello_message(self._token)), where=str(self._path)
            )
        except BaseException:
            self._release(connection)
            raise
        return connection

    def _release(self, connection: _SupervisorConnection) -> None:
        with self._state_lock:
            self._connections.discard(connection)
        connection.close()


class _SupervisorConnection:
    """One connection to the supervisor.

    Raises:
        OSError: the supervisor does not listen.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lines = supervisor_protocol.MessageDecoder()
        self._received: list[supervisor_protocol.Message] = []
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def request(self, message: supervisor_protocol.Message) -> supervisor_protocol.Message:
        """Send a message and return its answer.

        Raises:
            ConnectionError: the connection ended, or the answer took too long.
        """
        try:
            self._socket.sendall(supervisor_protocol.encode_message(message))
            answer = self.receive()
        except OSError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        if answer is None:
            raise ConnectionError("The connection ended")
        return answer

    def start_watch(self) -> None:
        """Request the stream of changes. It may be silent for any time, so there is no timeout."""
        self._socket.sendall(supervisor_protocol.encode_message({"op": "watch"}))
        self._socket.settimeout(None)

    def receive(self) -> supervisor_protocol.Message | None:
        """Return the next message, or None if the connection ended."""
        while not self._received:
            data = self._socket.recv(supervisor_protocol.MAX_LINE_BYTES)
            if not data:
                return None
            self._received = self._lines.feed(data)
        return self._received.pop(0)

    def shut_down(self) -> None:
        """Wake a thread that waits for this connection. That thread closes it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the connection has ended already
            return

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
