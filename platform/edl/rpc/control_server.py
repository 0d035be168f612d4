"""The server's half of the control plane: gRPC behind a guard that every call must pass."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from edl.core.errors import RefusedError, RetryableError
from edl.rpc.address import TcpAddress, UnixAddress, parse
from edl.rpc.listening import refuse_live_socket
from edl.rpc.options import SERVER_OPTIONS
from edl.rpc.proof import TOKEN_KEY, VERSION_KEY, check_token, check_version
from edl.rpc.refusal import Refused, kind_of
from edl.rpc.verdict import KIND_KEY

log = logging.getLogger(__name__)

Handler = Callable[[Any, grpc.ServicerContext], Any]

_GRACE = 0.5  # seconds that calls get to end when the server stops
_PRIVATE = 0o600


class ControlServer:
    """A running gRPC server.

    Attributes:
        address: where clients connect to.
        stopping: set when the server stops; handlers that wait for something must look at it.
    """

    def __init__(
        self, server: grpc.Server, pool: ThreadPoolExecutor, address: str, before_stop: Callable[[], None]
    ) -> None:
        self.address = address
        self.stopping = threading.Event()
        self._server = server
        self._pool = pool
        self._before_stop = before_stop

    def stop(self, grace: float = _GRACE) -> None:
        """Take no more calls, wake those that wait, cancel what is left after ``grace`` seconds; again is harmless.

        Returns when every handler has returned: one that waits must be woken by ``before_stop``.
        """
        self.stopping.set()
        self._before_stop()
        self._server.stop(grace).wait()
        self._pool.shutdown()


def serve(
    register: Callable[[grpc.Server], None],
    address: str,
    token: str,
    threads: int,
    *,
    before_stop: Callable[[], None] = lambda: None,
) -> ControlServer:
    """Start a server.

    Args:
        register: adds the servicers (``edl_pb2_grpc.add_MasterServicer_to_server``). A handler that raises
            RefusedError or RetryableError makes the client raise the same.
        address: ``unix:<path>`` or ``host:port``; port 0 lets the kernel choose.
        token: the job's; calls without it are refused.
        threads: calls that are handled at the same time, those that wait included.
        before_stop: wakes handlers that wait, so that ``stop`` is prompt.

    Raises:
        RefusedError: the address cannot be used, or another live server listens there.
    """
    wanted = parse(address)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="control")
    server = grpc.server(pool, interceptors=[Guard(token)], options=SERVER_OPTIONS)
    register(server)
    bound = _bind(server, wanted)
    server.start()
    return ControlServer(server, pool, bound, before_stop)


def _bind(server: grpc.Server, wanted: UnixAddress | TcpAddress) -> str:
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


class Guard(grpc.ServerInterceptor):
    """Checks token and version of every call, and translates what handlers raise.

    The guarded handler of a method is made once; a call that passes costs two look-ups and one comparison.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a call, or one that refuses it."""
        try:
            self._check(details)
        except Refused as refused:
            return grpc.unary_unary_rpc_method_handler(_refuses(refused))
        handler = self._guarded.get(details.method)
        if handler is None:
            original = continuation(details)
            if original is None or original.unary_unary is None:
                return original
            handler = self._guarded[details.method] = _translating(original)
        return handler

    def _check(self, details: grpc.HandlerCallDetails) -> None:
        sent = dict(details.invocation_metadata)
        token = sent.get(TOKEN_KEY, "")
        check_token(token if isinstance(token, bytes) else token.encode(), self._token)
        version = str(sent.get(VERSION_KEY, "none"))
        check_version(int(version) if version.isdecimal() else version)


def _refuses(refused: RefusedError) -> Handler:
    def abort(_: Any, context: grpc.ServicerContext) -> Any:
        _abort(context, refused)

    return abort


def _translating(original: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    handle = original.unary_unary
    assert handle is not None

    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return handle(request, context)
        except RefusedError as refused:
            _abort(context, refused)
        except RetryableError as busy:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(busy))

    return grpc.unary_unary_rpc_method_handler(guarded, original.request_deserializer, original.response_serializer)


def _abort(context: grpc.ServicerContext, refused: RefusedError) -> None:
    kind = kind_of(refused)
    context.set_trailing_metadata(((KIND_KEY, kind),))
    code = grpc.StatusCode.UNAUTHENTICATED if kind == "token" else grpc.StatusCode.FAILED_PRECONDITION
    context.abort(code, str(refused))
