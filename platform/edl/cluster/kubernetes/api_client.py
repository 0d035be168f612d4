"""The API server, as plain objects: one request a method, one stream for watches and logs, errors translated.

Requests are retried by urllib3 as told when the connection was made. Names are fixed and deletions name a uid, so that
a request that arrives twice does nothing twice; but the second creation is told that its name is taken, which is why a
POST is retried only where the server has surely not carried it out. All of this is safe to use from several threads.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import urlencode

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from edl.cluster.kubernetes.api_errors import NoResponseError, ServerBusyError, error_from_response
from edl.cluster.kubernetes.resource_kinds import PODS, Manifest, ResourceKind, manifest_kind

# --------------------------------------------------------------------------------------------------
# Lines that arrive from the API server for as long as they are wanted: watches and logs.


_MAX_LINE_BYTES = 32 << 20
"""Bytes of one watch event; an object is at most 1.5 MiB in etcd."""
_URLLIB3_PREFIX = re.compile(r"^HTTPS?Connection(?:Pool)?\(.*?\): ")
"""How urllib3 begins: with its own object."""


class ResponseStream:
    """Lines that arrive; ``close`` may be called from another thread and ends the iteration."""

    def __init__(self, response: urllib3.BaseHTTPResponse, where: str) -> None:
        self._response, self._where = response, where
        self._closed = threading.Event()

    def lines(self) -> Iterator[bytes]:
        """Yield each line without its end, until the server ends the stream.

        Raises:
            NoResponseError: it fell silent or broke off.
        """
        rest = b""
        try:
            for chunk in self._response.stream(1 << 16):
                *whole, rest = (rest + chunk).split(b"\n")
                if len(rest) > _MAX_LINE_BYTES:
                    raise NoResponseError("The server sends a line without an end", where=self._where)
                yield from whole
            if rest:
                yield rest
        except (HTTPError, OSError, ValueError) as error:
            if not self._closed.is_set():
                raise NoResponseError(connection_error_text(error), where=self._where) from error
        finally:
            self._response.close()

    def release(self) -> None:
        """End the stream for good, from the thread that reads it; its connection is closed."""
        self._closed.set()
        self._response.close()

    def events(self) -> Iterator[tuple[str, Manifest]]:
        """Yield type and object of each change.

        Raises:
            ResourceExpiredError: the server cannot continue from that version: list again.
            NoResponseError: as ``lines``; also for a line that cannot be read.
        """
        for line in self.lines():
            if not line:
                continue
            try:
                event = json.loads(line)
                kind, value = str(event["type"]), event["object"]
            except (ValueError, KeyError, TypeError) as error:
                raise NoResponseError("The server sends what is no watch event", where=self._where) from error
            if kind == "ERROR":
                code = int(value.get("code") or 500)
                raise error_from_response(code, json.dumps(value).encode(), where=self._where)
            yield kind, value

    def close(self) -> None:
        """End the stream, from any thread; whoever waits for its next line wakes up."""
        if not self._closed.is_set():
            self._closed.set()
            with suppress(HTTPError, OSError, RuntimeError, ValueError):  # it had ended by itself
                self._response.shutdown()

    def __enter__(self) -> ResponseStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def connection_error_text(error: BaseException) -> str:
    """What urllib3 says of a server that does not answer."""
    cause = getattr(error, "reason", None) or error
    return f"The API server does not answer: {_URLLIB3_PREFIX.sub('', str(cause))}"


MERGE_PATCH, STRATEGIC_MERGE_PATCH, JSON_PATCH = "merge", "strategic", "json"
_PATCH_TYPES = {
    MERGE_PATCH: "application/merge-patch+json",
    STRATEGIC_MERGE_PATCH: "application/strategic-merge-patch+json",
    JSON_PATCH: "application/json-patch+json",
}
ALL_NAMESPACES = ""
"""Instead of a namespace: all of them."""
REQUEST_TIMEOUT_SECONDS = 10.0
"""How long one answer may take."""


_RETRYABLE_POST_STATUSES = (429, 503)
"""Answers that say that the server did not begin."""


class RateLimiter(Protocol):
    """How fast requests may follow each other; see ``edl.cluster.kubernetes.rate_limiter.TokenBucketLimiter``."""

    def __call__(self) -> None:
        """Return when the next request may be sent."""

    def pause_requests(self, seconds: float) -> None:
        """The server asks to be left alone for that long."""


RequestHook = Callable[[str], AbstractContextManager[object]]
"""Of a server's address: what goes on while a request to it is on its way, such as telling people that it is silent."""


def _no_request_hook(_: str) -> AbstractContextManager[object]:
    return nullcontext()


class NoRateLimiter:
    """As fast as they come."""

    def __call__(self) -> None:
        """Return at once."""

    def pause_requests(self, seconds: float) -> None:
        """Do nothing: who asks reads the error."""


@dataclass(frozen=True, slots=True)
class KubeConnection:
    """A way to one API server.

    Attributes:
        host: ``https://host:port``.
        http_pool: with the server's certificate authority and the client's certificate.
        auth_headers: of each request: proof of who asks; asked each time, since tokens are renewed.
        namespace: what a missing namespace means.
        context: of the kubeconfig; None in a pod.
    """

    host: str
    http_pool: urllib3.PoolManager
    auth_headers: Callable[[], Mapping[str, str]]
    namespace: str
    context: str | None = None


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """What the server said.

    Attributes:
        body: the object.
        server_time: the server's clock, in unix seconds, to the second; None if it does not say.
    """

    body: Manifest
    server_time: float | None


@dataclass(frozen=True, slots=True)
class ResourceList:
    """Objects of one moment; a watch that begins at ``resource_version`` misses nothing."""

    items: tuple[Manifest, ...]
    resource_version: str
    server_time: float | None = None


class KubeClient:
    """Requests over one connection.

    Args:
        connection: from ``edl.cluster.kubernetes.kubeconfig.load_connection``.
        rate_limiter: called before each request; may wait, so that a thousand lost pods do not flood the server.
        retries: of urllib3; see the module's docstring.
        may_write: called before each request that changes something; False: the request raises NoResponseError instead.
        request_hook: a context manager around each request, left when the response begins or with the error.
    """

    def __init__(
        self,
        connection: KubeConnection,
        *,
        rate_limiter: RateLimiter | None = None,
        retries: urllib3.Retry | None = None,
        may_write: Callable[[], bool] = lambda: True,
        request_hook: RequestHook = _no_request_hook,
    ) -> None:
        self._connection, self._rate_limiter, self._retries, self._may_write = (
            connection,
            rate_limiter or NoRateLimiter(),
            retries,
            may_write,
        )
        self._request_hook = request_hook

    def with_fence(self, may_write: Callable[[], bool]) -> KubeClient:
        """The same server, asked for changes only while ``may_write`` says so.

        For who may lose the right to decide without noticing, as a master does whose node is cut off: what it wanted
        then must not be carried out when the network is back. A request that was sent in time is over, also for the
        network, ``REQUEST_TIMEOUT_SECONDS`` later.
        """
        return KubeClient(
            self._connection,
            rate_limiter=self._rate_limiter,
            retries=self._retries,
            may_write=may_write,
            request_hook=self._request_hook,
        )

    @property
    def connection(self) -> KubeConnection:
        """The way to the server, for what is no plain request."""
        return self._connection

    @property
    def namespace(self) -> str:
        """What a missing namespace means."""
        return self._connection.namespace

    @property
    def context(self) -> str | None:
        """The kubeconfig's context in use; None in a pod."""
        return self._connection.context

    @property
    def host(self) -> str:
        """Address of the API server."""
        return self._connection.host

    # ------------------------------------------------------------------ objects

    def get(self, kind: ResourceKind, name: str, namespace: str | None = None) -> Manifest:
        """One object; raises NotFoundError."""
        return self.request("GET", kind.path(self._namespace_or_default(namespace), name)).body

    def list(
        self, kind: ResourceKind, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> ResourceList:
        """All objects that a label and a field selector choose; ``namespace=EVERYWHERE`` looks in all of them."""
        path = kind.path(self._namespace_or_default(namespace))
        answer = self.request("GET", path, query={"labelSelector": labels, "fieldSelector": fields})
        body = answer.body
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        items = tuple({**head, **item} for item in body.get("items") or ())
        return ResourceList(items, str(body.get("metadata", {}).get("resourceVersion", "")), answer.server_time)

    def create(self, manifest: Manifest, *, namespace: str | None = None, dry_run: bool = False) -> Manifest:
        """Create an object and return it as the server has it; ConflictError if its name is taken.

        Args:
            manifest: its own namespace wins over ``namespace``.
            namespace: of the object.
            dry_run: admission only; nothing is stored.
        """
        where = manifest.get("metadata", {}).get("namespace") or self._namespace_or_default(namespace)
        path = manifest_kind(manifest).path(where)
        return self.request("POST", path, query=_dry_run_query(dry_run), body=manifest).body

    def replace(self, manifest: Manifest, *, namespace: str | None = None) -> Manifest:
        """Put an object in the place of the one with its resourceVersion; ConflictError if that has changed."""
        where = manifest["metadata"].get("namespace") or self._namespace_or_default(namespace)
        return self.request(
            "PUT", manifest_kind(manifest).path(where, manifest["metadata"]["name"]), body=manifest
        ).body

    def patch(
        self,
        kind: ResourceKind,
        name: str,
        body: Manifest | Sequence[Manifest],
        *,
        namespace: str | None = None,
        style: str = MERGE_PATCH,
        dry_run: bool = False,
    ) -> Manifest:
        """Change parts of an object: a merge patch, a strategic one, or a list of JSON patch operations."""
        path = kind.path(self._namespace_or_default(namespace), name)
        return self.request(
            "PATCH", path, query=_dry_run_query(dry_run), body=body, content_type=_PATCH_TYPES[style]
        ).body

    def delete(
        self,
        kind: ResourceKind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        grace: int | None = None,
        propagation: str = "Background",
        dry_run: bool = False,
    ) -> Manifest:
        """Delete an object; the server goes on for as long as finalizers and grace periods take.

        Args:
            kind: of the object.
            name: of the object.
            namespace: of the object.
            uid: delete only this one, never a later one of the same name; ConflictError if it is another.
            grace: seconds; 0 removes a pod at once, also from a dead node.
            propagation: what becomes of what it owns; the server's own default for some clients is to orphan it.
            dry_run: admission only.
        """
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if dry_run:
            options["dryRun"] = ["All"]
        return self.request("DELETE", kind.path(self._namespace_or_default(namespace), name), body=options).body

    # ------------------------------------------------------------------ streams

    def watch(
        self,
        kind: ResourceKind,
        *,
        resource_version: str,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        timeout_seconds: int = 300,
        idle_timeout: float = 90.0,
    ) -> ResponseStream:
        """Follow changes from a listing on, with bookmarks; the stream ends by itself after ``timeout_seconds``.

        Each line is ``{"type": ADDED | MODIFIED | DELETED | BOOKMARK | ERROR, "object": ...}``; an ERROR
        makes ``ResponseStream.events`` raise the error that it stands for. A stream that is silent for ``idle_timeout``
        seconds raises NoResponseError.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        return self._open_stream(kind.path(self._namespace_or_default(namespace)), query, idle_timeout)

    def logs(
        self,
        pod: str,
        *,
        namespace: str | None = None,
        container: str = "",
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> ResponseStream:
        """What a container printed; ``follow`` goes on with what it prints."""
        query = {
            "container": container,
            "follow": "true" if follow else "",
            "previous": "true" if previous else "",
            "tailLines": "" if tail is None else str(tail),
        }
        silence = None if follow else REQUEST_TIMEOUT_SECONDS
        return self._open_stream(PODS.path(self._namespace_or_default(namespace), pod, "log"), query, silence)

    # ------------------------------------------------------------------ any request

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> ApiResponse:
        """Send a request and read the answer whole.

        Raises:
            ApiError: one of its subclasses; NoResponseError when there was no answer.
        """
        response = self._send_request(
            method,
            path,
            query,
            body=None if body is None else json.dumps(body).encode(),
            content_type=content_type,
            timeout=urllib3.Timeout(total=REQUEST_TIMEOUT_SECONDS),
            retries=self._retries_for(method),
            preload_content=True,
        )
        where = f"{method} {self.host}{path}"
        return ApiResponse(_parse_object(response.data, where), _parse_http_date(response.headers.get("Date")))

    def _open_stream(self, path: str, query: Mapping[str, str], idle_timeout: float | None) -> ResponseStream:
        timeout = urllib3.Timeout(connect=REQUEST_TIMEOUT_SECONDS, read=idle_timeout)
        response = self._send_request("GET", path, query, timeout=timeout, retries=False, preload_content=False)
        return ResponseStream(response, f"GET {self.host}{path}")

    def _send_request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        *,
        content_type: str = "application/json",
        **how: Any,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request as urllib3 is told, and raise what a refusal means."""
        self._rate_limiter()
        query_string = urlencode({name: value for name, value in (query or {}).items() if value})
        headers = {"Accept": "application/json", "Content-Type": content_type, **self._connection.auth_headers()}
        url, where = f"{self.host}{path}" + (f"?{query_string}" if query_string else ""), f"{method} {self.host}{path}"
        if method != "GET" and not self._may_write():
            raise NoResponseError("Not sent: the right to decide for this job was not renewed in time", where=where)
        try:
            with self._request_hook(self.host):
                response = self._connection.http_pool.request(method, url, headers=headers, redirect=False, **how)
        except HTTPError as error:
            raise NoResponseError(connection_error_text(error), where=where, hint=self._unreachable_hint()) from error
        if response.status >= 300:
            after = response.headers.get("Retry-After")
            refusal = error_from_response(response.status, _error_body(response), where=where, retry_after=after)
            if isinstance(refusal, ServerBusyError) and refusal.retry_after:
                self._rate_limiter.pause_requests(refusal.retry_after)
            raise refusal
        return response

    def _unreachable_hint(self) -> str:
        """What to look at when nobody does."""
        if self.context is None:
            return f"The cluster's own API server, {self.host}, cannot be reached from this pod."
        return (
            f"Is {self.host} up, and can it be reached from here? It is the cluster of the context {self.context}; "
            "--context chooses another."
        )

    def _retries_for(self, method: str) -> urllib3.Retry | bool:
        if self._retries is None:
            return False
        return (
            self._retries.new(read=False, status_forcelist=_RETRYABLE_POST_STATUSES)
            if method == "POST"
            else self._retries
        )

    def _namespace_or_default(self, namespace: str | None) -> str:
        return self._connection.namespace if namespace is None else namespace


def _dry_run_query(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _error_body(response: urllib3.BaseHTTPResponse) -> bytes:
    """The body of a refusal; empty when it breaks off: the code says enough."""
    try:
        return response.data
    except HTTPError:
        return b""
    finally:
        response.close()


def _parse_object(text: bytes, where: str) -> Manifest:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise NoResponseError("What answers there is no API server, or was cut off", where=where) from error
    return value if isinstance(value, dict) else {"items": value}


def _parse_http_date(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        return parsedate_to_datetime(header).timestamp()
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------
# How a server that vanished without a word is noticed, also by a watch that waits: after 25 s.


_KEEPALIVE_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
KEEPALIVE_OPTIONS = (
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _KEEPALIVE_PROBES.items()
        if hasattr(socket, name)
    ),
)
"""For connections to an API server."""
NO_LINGER_OPTIONS = (*KEEPALIVE_OPTIONS, (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)))
"""The same; closing one throws away what it has not delivered.

Otherwise the kernel goes on for minutes, and a request that was given up on a node without a network would arrive when
the network is back.
"""
