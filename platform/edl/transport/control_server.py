"""The server's half of the control plane: gRPC behind a guard that every call must pass.

A call takes a thread only once its message is here. Calls are accepted by one event loop (``grpc.aio``), which checks
token and version on the headers and waits for the message of a call that has proved them. Handlers then run on a pool
of threads, or on the loop where they are coroutines. gRPC's synchronous server gives each call a thread as soon as its
headers come: peers that send no message would take all of them.
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
from edl.transport.handshake import SERVER_OPTIONS, TOKEN_KEY, VERSION_KEY, check_job_token, check_protocol_version
from edl.transport.listener import TcpAddress, UnixAddress, check_socket_unused, parse_address
from edl.transport.message_validation import check_message
from edl.transport.open_files import control_connection_limit
from edl.transport.peer_errors import KIND_KEY, PeerRefusedError, refusal_kind, to_sendable_text

log = logging.getLogger(__name__)

MESSAGE_TIMEOUT_SECONDS = 5.0
"""What a caller with the token gets to send its message after the headers."""

_GRACE_SECONDS = 0.5  # seconds that calls get to end when the server stops
_SOCKET_MODE = 0o600
_MAX_VERSION_DIGITS = 9  # digits
_ResultT = TypeVar("_ResultT")
_RUNNING_SERVERS: set[ControlServer] = set()
"""Those that have not been stopped: gRPC ends a server that nobody refers to, whoever waits for its answers."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a handler knows of the call beside its message: it is the ``context`` of the generated servicers.

    Attributes:
        pool: threads for what must wait.
        peer: says where the call comes from.
        deadline: monotonic seconds after which the caller no longer waits; None: it waits for ever.
    """

    pool: ThreadPoolExecutor
    peer: Callable[[], str]
    deadline: float | None = None

    async def run_on_thread(self, work: Callable[[], _ResultT]) -> _ResultT:
        """Run on a thread of the pool what a handler on the event loop must not wait for."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    def time_remaining(self) -> float | None:
        """Seconds that the caller waits on, from 0; None: for ever."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


class ControlServer:
    """A running gRPC server.

    Attributes:
        address: where clients connect to.
        stopping: set when the server stops; handlers that wait for something must look at it.
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
        """Take no more calls, wake those that wait, cancel what is left after ``grace_seconds``; again is harmless.

        Returns when every handler has returned: one that waits must be woken by ``before_stop``.
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
        register: adds the servicers (``edl_pb2_grpc.add_MasterServicer_to_server``). Their methods get a ``Call`` as
            context; coroutines run on the event loop, which they must not keep waiting, all others on threads. A
            handler that raises RefusedError or RetryableError makes the client raise the same.
        address: ``unix:<path>`` or ``host:port``; port 0 lets the kernel choose.
        token: the job's; calls without it are refused.
        threads: calls that are handled at the same time, those that wait included. A call whose message is missing
            takes none.
        before_stop: wakes handlers that wait, so that ``stop`` is prompt.

    Raises:
        RefusedError: the address cannot be used, or another live server listens there.
    """
    parsed_address = parse_address(address)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="control")
    guard = AuthenticatingHandler(token, pool)
    register(guard)
    try:
        server, bound = _run_on_loop(_start_grpc_server(guard, parsed_address))
    except BaseException:
        pool.shutdown()
        raise
    return ControlServer(server, pool, bound, before_stop)


async def _start_grpc_server(
    guard: AuthenticatingHandler, address: UnixAddress | TcpAddress
) -> tuple[grpc.aio.Server, str]:
    options = (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", control_connection_limit()))
    server = grpc.aio.server(handlers=[guard], options=options)
    bound = _bind_address(server, address)
    await server.start()
    return server, bound


def _bind_address(server: grpc.aio.Server, address: UnixAddress | TcpAddress) -> str:
    try:
        if isinstance(address, UnixAddress):
            check_socket_unused(address)
        port = server.add_insecure_port(str(address))
        if isinstance(address, UnixAddress):
            os.chmod(address.path, _SOCKET_MODE)
            return str(address)
    except (OSError, RuntimeError) as error:
        raise RefusedError(f"The server cannot listen: {error}", where=str(address)) from error
    return str(TcpAddress(address.host, port))


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process's servers, on a thread of its own; all of gRPC's events are read by one loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="control-loop", daemon=True).start()
    return loop


def _run_on_loop(work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
    return asyncio.run_coroutine_threadsafe(work, _event_loop()).result()


class AuthenticatingHandler(grpc.GenericRpcHandler):
    """Checks token and version of every call, waits for its message, and translates what handlers raise.

    It stands where the generated code expects a server, and collects its methods.

    Args:
        token: the job's.
        pool: handlers run there.
    """

    def __init__(self, token: str, pool: ThreadPoolExecutor) -> None:
        self._token = token.encode()
        self._pool = pool
        self._servicers: list[grpc.GenericRpcHandler] = []
        self._wrapped_handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    # ------------------------------------------------------------------ what generated code calls

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve what these handle."""
        self._servicers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """The same methods once more, for servers that look them up by themselves: nothing to do."""

    # ------------------------------------------------------------------ on the event loop, with the headers only

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a call, or one that refuses it without waiting for its message."""
        try:
            self._check_metadata(details)
        except PeerRefusedError as refused:
            return _refusing_handler(refused)
        handler = self._wrapped_handlers.get(details.method)
        if handler is None:
            found = (servicer.service(details) for servicer in self._servicers)
            original = next((each for each in found if each is not None), None)
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
        """The handler of a method as one of a stream that has one message: only so can its coming be awaited."""
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
                return await handle(read(data), call)  # type: ignore[arg-type]  # see Call
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
                await _abort_call(context, grpc.StatusCode.UNKNOWN, f"The server failed inside: {error!r}")

        return grpc.stream_unary_rpc_method_handler(respond, None, original.response_serializer)


async def _receive_message(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """The message of a call that has proved the token."""
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
    """End a call with what went wrong. A text that cannot be sent would leave it without an answer."""
    await context.abort(code, to_sendable_text(text), tuple(trailers))
