"""The server of the control plane: a gRPC server that authenticates every call.

One event loop (``grpc.aio``) accepts the calls. It checks token and version in the headers, then waits
for the message. Handlers run on a pool of threads, coroutines on the loop, so a call occupies a thread
only after its message has arrived. gRPC's synchronous server assigns a thread as soon as the headers
arrive: peers that send no message could occupy all threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from inspect import iscoroutinefunction
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from edl.api.errors import RefusedError, RetryableError
from edl.transport.grpc_options import SERVER_OPTIONS
from edl.transport.handshake import TOKEN_KEY, VERSION_KEY, check_job_token, check_protocol_version
from edl.transport.listener import SOCKET_MODE, TcpAddress, UnixAddress, check_socket_unused, parse_address
from edl.transport.message_validation import check_message
from edl.transport.open_files import control_connection_limit
from edl.transport.peer_errors import KIND_KEY, PeerRefusedError, refusal_kind, to_sendable_text

log = logging.getLogger(__name__)

MESSAGE_TIMEOUT_SECONDS = 5.0
"""Time for an authenticated caller to send its message after the headers."""

_GRACE_SECONDS = 0.5  # time for calls to end when the server stops
_MAX_VERSION_DIGITS = 9
_ResultT = TypeVar("_ResultT")
_RUNNING_SERVERS: set[ControlServer] = set()
"""Servers that have not been stopped. gRPC ends a server without references, even during calls."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """A call without its message; handlers get it as the ``context`` of the generated servicers.

    Attributes:
        pool: threads for blocking work.
        peer: returns the address of the caller.
        deadline: monotonic time in seconds until which the caller waits; None: it has no deadline.
    """

    pool: ThreadPoolExecutor
    peer: Callable[[], str]
    deadline: float | None = None

    async def run_on_thread(self, work: Callable[[], _ResultT]) -> _ResultT:
        """Run blocking work of a coroutine handler on a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None: the call has no deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


class ControlServer:
    """A running gRPC server.

    Attributes:
        address: the address for clients.
        stopping: set when the server stops; handlers that wait must check it.
    """

    def __init__(
        self, server: grpc.aio.Server, pool: ThreadPoolExecutor, address: str, before_stop: Callable[[], None]
    ) -> None:
        self.address = address
        self.stopping = threading.Event()
        self._server = server
        self._pool = pool
        self._before_stop = before_stop
        _RUNNING_SERVERS.add(self)

    def stop(self, grace_seconds: float = _GRACE_SECONDS) -> None:
        """Accept no more calls, wake waiting handlers, and cancel what still runs after ``grace_seconds``.

        Returns when every handler has returned; ``before_stop`` must wake those that wait. Stopping twice
        does nothing.
        """
        self.stopping.set()
        self._before_stop()
        _run_on_loop(self._server.stop(grace_seconds))
        self._pool.shutdown()
        _RUNNING_SERVERS.discard(self)


def start_control_server(
    register: Callable[[Any], None],
    address: str,
    token: str,
    threads: int,
    *,
    before_stop: Callable[[], None] = lambda: None,
) -> ControlServer:
    """Start a server.

    Args:
        register: adds the servicers (``edl_pb2_grpc.add_MasterServicer_to_server``). Their methods get a
            ``CallContext`` as context. Coroutines run on the event loop, which they must not block;
            other methods run on threads. If a handler raises RefusedError or RetryableError, the client
            raises the same.
        address: ``unix:<path>`` or ``host:port``; with port 0 the kernel chooses one.
        token: the job's token; calls without it are refused.
        threads: maximum calls that are handled at a time, including those that wait. A call whose message
            has not arrived does not count.
        before_stop: wakes waiting handlers, so that ``stop`` returns soon.

    Raises:
        RefusedError: the address cannot be used, or another live server listens there.
    """
    parsed_address = parse_address(address)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="control")
    handler = AuthenticatingHandler(token, pool)
    register(handler)
    try:
        server, bound = _run_on_loop(_start_grpc_server(handler, parsed_address))
    except BaseException:
        pool.shutdown()
        raise
    return ControlServer(server, pool, bound, before_stop)


async def _start_grpc_server(
    handler: AuthenticatingHandler, address: UnixAddress | TcpAddress
) -> tuple[grpc.aio.Server, str]:
    options = (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", control_connection_limit()))
    server = grpc.aio.server(handlers=[handler], options=options)
    bound = _bind_address(server, address)
    await server.start()
    return server, bound


def _bind_address(server: grpc.aio.Server, address: UnixAddress | TcpAddress) -> str:
    try:
        if isinstance(address, UnixAddress):
            check_socket_unused(address)
        port = server.add_insecure_port(str(address))
        if isinstance(address, UnixAddress):
            os.chmod(address.path, SOCKET_MODE)
            return str(address)
    except (OSError, RuntimeError) as error:
        raise RefusedError(f"The server cannot listen: {error}", where=str(address)) from error
    return str(TcpAddress(address.host, port))


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all servers of this process, on its own thread: gRPC reads all events in one loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="control-loop", daemon=True).start()
    return loop


def _run_on_loop(work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
    return asyncio.run_coroutine_threadsafe(work, _event_loop()).result()


class AuthenticatingHandler(grpc.GenericRpcHandler):
    """Checks token and version of every call, waits for its message, and translates exceptions of handlers.

    The generated code registers its methods here instead of at a server.

    Args:
        token: the job's token.
        pool: threads that run the handlers.
    """

    def __init__(self, token: str, pool: ThreadPoolExecutor) -> None:
        self._token = token.encode()
        self._pool = pool
        self._servicers: list[grpc.GenericRpcHandler] = []
        self._wrapped_handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    # ------------------------------------------------------------------ what generated code calls

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve the methods of these handlers."""
        self._servicers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Do nothing: these are the same methods again, for servers that look them up by name."""

    # ------------------------------------------------------------------ on the event loop, with the headers only

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a call, or one that refuses it without waiting for its message."""
        try:
            self._check_metadata(details)
        except PeerRefusedError as refused:
            return _refusing_handler(refused)
        handler = self._wrapped_handlers.get(details.method)
        if handler is None:
            handlers = (servicer.service(details) for servicer in self._servicers)
            original = next((each for each in handlers if each is not None), None)
            if original is None or original.unary_unary is None:
                return None
            handler = self._wrapped_handlers[details.method] = self._wrap_handler(details.method, original)
        return handler

    def _check_metadata(self, details: grpc.HandlerCallDetails) -> None:
        sent = dict(details.invocation_metadata)
        token = sent.get(TOKEN_KEY, "")
        check_job_token(token if isinstance(token, bytes) else token.encode(), self._token)
        version = str(sent.get(VERSION_KEY, "none"))
        numeric = version.isascii() and version.isdecimal() and len(version) <= _MAX_VERSION_DIGITS
        check_protocol_version(int(version) if numeric else version[:_MAX_VERSION_DIGITS])

    def _wrap_handler(self, method: str, original: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        """Wrap a method as one that receives a stream of one message: only then can its arrival be awaited."""
        handle, decode = original.unary_unary, original.request_deserializer
        assert handle is not None
        assert decode is not None
        runs_on_loop = iscoroutinefunction(handle)

        def read(data: bytes) -> Any:
            try:
                message = decode(data)
            except DecodeError as error:
                raise PeerRefusedError(f"the call's message cannot be read: {error}", kind="bad") from error
            return check_message(message) if isinstance(message, Message) else message

        async def work(data: bytes, call: CallContext) -> Any:
            if runs_on_loop:
                return await handle(read(data), call)  # type: ignore[arg-type]  # see CallContext
            return await call.run_on_thread(lambda: handle(read(data), call))  # type: ignore[arg-type]

        async def respond(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            data = await _receive_message(messages, context)
            left = context.time_remaining()
            call = CallContext(self._pool, context.peer, None if left is None else time.monotonic() + left)
            try:
                return await work(data, call)
            except RefusedError as refused:
                await _abort_refused(context, refused)
            except RetryableError as busy:
                await _abort_call(context, grpc.StatusCode.UNAVAILABLE, str(busy))
            except Exception as error:
                log.exception("the handler of %s failed", method)
                await _abort_call(context, grpc.StatusCode.UNKNOWN, f"Internal error of the server: {error!r}")

        return grpc.stream_unary_rpc_method_handler(respond, None, original.response_serializer)


async def _receive_message(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """The message of an authenticated call."""
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT_SECONDS):
            return await anext(messages)
    except TimeoutError:
        late = f"no message came within {MESSAGE_TIMEOUT_SECONDS:g} s of the call's headers"
        await _abort_call(context, grpc.StatusCode.DEADLINE_EXCEEDED, late)
    except StopAsyncIteration:
        await _abort_call(context, grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")


def _refusing_handler(refused: RefusedError) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await _abort_refused(context, refused)

    return grpc.stream_unary_rpc_method_handler(refuse)


async def _abort_refused(context: grpc.aio.ServicerContext[Any, Any], refused: RefusedError) -> NoReturn:
    kind = refusal_kind(refused)
    code = grpc.StatusCode.UNAUTHENTICATED if kind == "token" else grpc.StatusCode.FAILED_PRECONDITION
    await _abort_call(context, code, str(refused), ((KIND_KEY, kind),))


async def _abort_call(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    text: str,
    trailers: Sequence[tuple[str, str]] = (),
) -> NoReturn:
    """End a call with an error. The text is made sendable: otherwise the call would get no response."""
    await context.abort(code, to_sendable_text(text), tuple(trailers))
