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
from edl.transport.address import TcpAddress, UnixAddress, parse
from edl.transport.grpc_options import SERVER_OPTIONS
from edl.transport.handshake import TOKEN_KEY, VERSION_KEY, check_token, check_version
from edl.transport.listener import refuse_live_socket
from edl.transport.message_validation import check
from edl.transport.peer_errors import Refused, kind_of, sendable
from edl.transport.status_mapping import KIND_KEY

log = logging.getLogger(__name__)

MESSAGE_SECONDS = 5.0
"""What a caller with the token gets to send its message after the headers."""

_GRACE = 0.5  # seconds that calls get to end when the server stops
_PRIVATE = 0o600
_LONGEST_VERSION = 9  # digits
_Result = TypeVar("_Result")
_SERVING: set[ControlServer] = set()
"""Those that have not been stopped: gRPC ends a server that nobody refers to, whoever waits for its answers."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler knows of the call beside its message: it is the ``context`` of the generated servicers.

    Attributes:
        pool: threads for what must wait.
        peer: says where the call comes from.
        deadline: monotonic seconds after which the caller no longer waits; None: it waits for ever.
    """

    pool: ThreadPoolExecutor
    peer: Callable[[], str]
    deadline: float | None = None

    async def on_thread(self, work: Callable[[], _Result]) -> _Result:
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
        _SERVING.add(self)

    def stop(self, grace: float = _GRACE) -> None:
        """Take no more calls, wake those that wait, cancel what is left after ``grace`` seconds; again is harmless.

        Returns when every handler has returned: one that waits must be woken by ``before_stop``.
        """
        self.stopping.set()
        self._before_stop()
        _on_loop(self._server.stop(grace))
        self._pool.shutdown()
        _SERVING.discard(self)


def serve(
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
    wanted = parse(address)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="control")
    guard = Guard(token, pool)
    register(guard)
    try:
        server, bound = _on_loop(_start(guard, wanted))
    except BaseException:
        pool.shutdown()
        raise
    return ControlServer(server, pool, bound, before_stop)


async def _start(guard: Guard, wanted: UnixAddress | TcpAddress) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(handlers=[guard], options=SERVER_OPTIONS)
    bound = _bind(server, wanted)
    await server.start()
    return server, bound


def _bind(server: grpc.aio.Server, wanted: UnixAddress | TcpAddress) -> str:
    try:
        if isinstance(wanted, UnixAddress):
            refuse_live_socket(wanted)
        port = server.add_insecure_port(str(wanted))
        if isinstance(wanted, UnixAddress):
            os.chmod(wanted.path, _PRIVATE)
            return str(wanted)
    except (OSError, RuntimeError) as error:
        raise RefusedError(f"The server cannot listen: {error}", where=str(wanted)) from error
    return str(TcpAddress(wanted.host, port))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process's servers, on a thread of its own; all of gRPC's events are read by one loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="control-loop", daemon=True).start()
    return loop


def _on_loop(work: Coroutine[Any, Any, _Result]) -> _Result:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


class Guard(grpc.GenericRpcHandler):
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
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

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
            self._check(details)
        except Refused as refused:
            return _refusing(refused)
        handler = self._guarded.get(details.method)
        if handler is None:
            found = (servicer.service(details) for servicer in self._servicers)
            original = next((each for each in found if each is not None), None)
            if original is None or original.unary_unary is None:
                return None
            handler = self._guarded[details.method] = self._handler(details.method, original)
        return handler

    def _check(self, details: grpc.HandlerCallDetails) -> None:
        sent = dict(details.invocation_metadata)
        token = sent.get(TOKEN_KEY, "")
        check_token(token if isinstance(token, bytes) else token.encode(), self._token)
        version = str(sent.get(VERSION_KEY, "none"))
        numeric = version.isascii() and version.isdecimal() and len(version) <= _LONGEST_VERSION
        check_version(int(version) if numeric else version[:_LONGEST_VERSION])

    def _handler(self, method: str, original: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of a method as one of a stream that has one message: only so can its coming be awaited."""
        handle, decode = original.unary_unary, original.request_deserializer
        assert handle is not None
        assert decode is not None

        def read(data: bytes) -> Any:
            try:
                message = decode(data)
            except DecodeError as error:
                raise Refused(f"the call's message cannot be read: {error}", kind="bad") from error
            return check(message) if isinstance(message, Message) else message

        async def work(data: bytes, call: Call) -> Any:
            if iscoroutinefunction(handle):
                return await handle(read(data), call)  # type: ignore[arg-type]  # see Call
            return await call.on_thread(lambda: handle(read(data), call))  # type: ignore[arg-type]

        async def respond(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            data = await _message(messages, context)
            left = context.time_remaining()
            call = Call(self._pool, context.peer, None if left is None else time.monotonic() + left)
            try:
                return await work(data, call)
            except RefusedError as refused:
                await _refuse(context, refused)
            except RetryableError as busy:
                await _abort(context, grpc.StatusCode.UNAVAILABLE, str(busy))
            except Exception as error:
                log.exception("the handler of %s failed", method)
                await _abort(context, grpc.StatusCode.UNKNOWN, f"The server failed inside: {error!r}")

        return grpc.stream_unary_rpc_method_handler(respond, None, original.response_serializer)


async def _message(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """The message of a call that has proved the token."""
    try:
        async with asyncio.timeout(MESSAGE_SECONDS):
            return await anext(messages)
    except TimeoutError:
        late = f"no message came within {MESSAGE_SECONDS:g} s of the call's headers"
        await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, late)
    except StopAsyncIteration:
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")


def _refusing(refused: RefusedError) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await _refuse(context, refused)

    return grpc.stream_unary_rpc_method_handler(refuse)


async def _refuse(context: grpc.aio.ServicerContext[Any, Any], refused: RefusedError) -> NoReturn:
    kind = kind_of(refused)
    code = grpc.StatusCode.UNAUTHENTICATED if kind == "token" else grpc.StatusCode.FAILED_PRECONDITION
    await _abort(context, code, str(refused), ((KIND_KEY, kind),))


async def _abort(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    text: str,
    trailers: Sequence[tuple[str, str]] = (),
) -> NoReturn:
    """End a call with what went wrong. A text that cannot be sent would leave it without an answer."""
    await context.abort(code, sendable(text), tuple(trailers))
