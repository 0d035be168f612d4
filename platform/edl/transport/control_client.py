"""The client of the control plane. All gRPC calls pass through it; the server is in control_server.py.

Every call has the job's token, the protocol's version and a deadline. It ends with a reply, a RetryableError or a
RefusedError that names the peer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from edl.api.errors import EdlError, RetryableError
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry, draw_jitter
from edl.transport.control_methods import ControlMethod, ReplyT, RequestT
from edl.transport.grpc_options import CLIENT_OPTIONS
from edl.transport.handshake import PROTOCOL_VERSION, TOKEN_KEY, VERSION_KEY
from edl.transport.listener import parse_address
from edl.transport.message_validation import parse_message
from edl.transport.peer_errors import PeerRefusedError, translate_rpc_error

_RECONNECT_CODES = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED},
)
"""After these, the connection may be dead (a vanished pod answers no packet), so the next attempt uses a new one."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry. With the defaults, a client finds a restarted master in well under a second.

    Attributes:
        timeout_seconds: seconds after the first attempt, after which no other attempt begins.
        backoff: the delays between attempts.
    """

    timeout_seconds: float = 10.0
    backoff: ExponentialBackoff = field(default_factory=lambda: ExponentialBackoff(0.05, 0.5))


class ControlChannel:
    """Calls one peer, from any number of threads. It connects with the first call, and survives restarts of the peer.

    Args:
        address: ``unix:<path>`` or ``host:port``.
        token: the job's token.
        sleep, jitter, clock: those of retries; see ``edl.retry.attempts``.

    Raises:
        BadInputError: the address is invalid.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = draw_jitter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parse_address(address)  # raises for an invalid one: gRPC would only fail in the first call
        self.address = address
        self._metadata = ((TOKEN_KEY, token), (VERSION_KEY, str(PROTOCOL_VERSION)))
        self._sleep, self._jitter, self._clock = sleep, jitter, clock
        self._lock = threading.Lock()
        self._closed = False
        self._connection = _GrpcConnection(address)

    def call(
        self,
        method: ControlMethod[RequestT, ReplyT],
        request: RequestT,
        *,
        timeout: float,
        retry: RetryPolicy | None = None,
    ) -> ReplyT:
        """Call a method of the peer.

        Args:
            method: one of ``MasterMethods`` or ``PsControlMethods``.
            request: its request.
            timeout: seconds for each attempt.
            retry: how long to retry when the peer is unreachable, silent or busy; ``None``: one attempt.

        Raises:
            RetryableError: the peer was unreachable, silent or busy in every attempt.
            RefusedError: the peer rejects the request; a retry is pointless.
        """
        if retry is None:
            return self._call_once(method, request, timeout)
        attempts = Retry(
            retry.backoff,
            self._sleep,
            timeout_seconds=retry.timeout_seconds,
            jitter=self._jitter,
            clock=self._clock,
        )
        while True:
            try:
                return self._call_once(method, request, timeout)
            except RetryableError:
                if not attempts.wait():
                    raise

    def close(self) -> None:
        """Close the connection and end its calls. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def __enter__(self) -> ControlChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call_once(self, method: ControlMethod[RequestT, ReplyT], request: RequestT, deadline: float) -> ReplyT:
        line = self._connection  # another thread may replace it during the call
        try:
            return line.invoke(method, request, deadline, self._metadata)
        except PeerRefusedError as error:
            raise PeerRefusedError(f"{method.name}: {error.message}", kind=error.kind, where=self.address) from error
        except grpc.RpcError as error:
            status = error.code()
            if status in _RECONNECT_CODES:
                self._reconnect(line)
            if status is grpc.StatusCode.CANCELLED and self._closed:
                raise self._connection_lost_error() from error
            raise translate_rpc_error(error, method.name, self.address, deadline) from error
        except ValueError as error:  # gRPC's error for a call on a channel that another thread has closed
            if line.is_usable:
                raise
            raise self._connection_lost_error() from error

    def _connection_lost_error(self) -> EdlError:
        if self._closed:
            return PeerRefusedError("This channel was closed", kind="closed", where=self.address)
        return RetryableError("The connection was lost in another call", where=self.address)

    def _reconnect(self, line: _GrpcConnection) -> None:
        """Open a new connection, unless another thread has replaced ``line`` already."""
        with self._lock:
            if line is self._connection and not self._closed:
                self._connection = _GrpcConnection(self.address)
                line.close_when_idle()


class _GrpcConnection:
    """One gRPC channel and its callables. When it is replaced, it closes after its last call.

    A call that found the peer silent must not abort the long poll of another thread, which may still be answered.
    """

    def __init__(self, address: str) -> None:
        self.is_usable = True
        self._channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
        self._callables: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._active_calls = 0

    def invoke(
        self,
        method: ControlMethod[RequestT, ReplyT],
        request: RequestT,
        deadline: float,
        metadata: tuple[tuple[str, str], ...],
    ) -> ReplyT:
        with self._lock:
            self._active_calls += 1
        try:
            reply: bytes = self._method_callable(method)(request, timeout=deadline, metadata=metadata)
        finally:
            with self._lock:
                self._active_calls -= 1
                if not self.is_usable and not self._active_calls:
                    self._channel.close()
        return parse_message(method.reply, reply)

    def close_when_idle(self) -> None:
        with self._lock:
            self.is_usable = False
            if not self._active_calls:
                self._channel.close()

    def close(self) -> None:
        self.is_usable = False
        self._channel.close()

    def _method_callable(self, method: ControlMethod[RequestT, ReplyT]) -> Callable[..., Any]:
        # creating a callable takes longer than a call, so they are kept
        function = self._callables.get(method.path)
        if function is None:
            function = self._callables[method.path] = self._channel.unary_unary(
                method.path, method.request.SerializeToString
            )
        return function
