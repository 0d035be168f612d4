"""A client of the API server: one method for each request, a stream for watches and logs, and translated errors.

urllib3 retries requests if the connection says so. Most requests can be repeated: names are fixed, and deletions name a
uid. But a repeated creation fails because the name is taken. Therefore a POST is retried only if the server has
certainly not carried it out. All methods may be called from several threads.
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
# Streams of lines: watches and logs.


_MAX_LINE_BYTES = 32 << 20
"""Limit of one watch event. An object in etcd has at most 1.5 MiB."""
_URLLIB3_PREFIX = re.compile(r"^HTTPS?Connection(?:Pool)?\(.*?\): ")
"""The prefix of urllib3's messages: the representation of its own object."""


class ResponseStream:
    """A stream of lines. ``close`` may be called from another thread and ends the iteration."""

    def __init__(self, response: urllib3.BaseHTTPResponse, where: str) -> None:
        self._response, self._where = response, where
        self._closed = threading.Event()

    def lines(self) -> Iterator[bytes]:
        """Yield each line without its line end, until the server ends the stream.

        Raises:
            NoResponseError: the stream was silent for too long, or the connection broke.
        """
        rest = b""
        try:
            for chunk in self._response.stream(1 << 16):
                *complete, rest = (rest + chunk).split(b"\n")
                if len(rest) > _MAX_LINE_BYTES:
                    raise NoResponseError("The server sent a line without an end", where=self._where)
                yield from complete
            if rest:
                yield rest
        except (HTTPError, OSError, ValueError) as error:
            if not self._closed.is_set():
                raise NoResponseError(connection_error_text(error), where=self._where) from error
        finally:
            self._response.close()

    def release(self) -> None:
        """End the stream, from the thread that reads it, and close its connection."""
        self._closed.set()
        self._response.close()

    def events(self) -> Iterator[tuple[str, Manifest]]:
        """Yield type and object of each change.

        Raises:
            ResourceExpiredError: the server cannot continue from that version; list again.
            NoResponseError: as in ``lines``, or a line is not a watch event.
        """
        for line in self.lines():
            if not line:  # a blank line between two events
                continue
            try:
                event = json.loads(line)
                kind, value = str(event["type"]), event["object"]
            except (ValueError, KeyError, TypeError) as error:
                raise NoResponseError(
                    "The server sent something that is not a watch event", where=self._where
                ) from error
            # a watch reports errors, such as 410, as an event of a response with status 200
            if kind == "ERROR":
                code = int(value.get("code") or 500)
                raise error_from_response(code, json.dumps(value).encode(), where=self._where)
            yield kind, value

    def close(self) -> None:
        """End the stream from any thread; a thread that waits for its next line wakes up."""
        if not self._closed.is_set():
            self._closed.set()
            with suppress(HTTPError, OSError, RuntimeError, ValueError):  # the stream has ended already
                self._response.shutdown()

    def __enter__(self) -> ResponseStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def connection_error_text(error: BaseException) -> str:
    """A message for an error of urllib3, without the name of its internal object."""
    cause = getattr(error, "reason", None) or error
    return f"The API server does not answer: {_URLLIB3_PREFIX.sub('', str(cause))}"


MERGE_PATCH, STRATEGIC_MERGE_PATCH, JSON_PATCH = "merge", "strategic", "json"
_PATCH_TYPES = {
    MERGE_PATCH: "application/merge-patch+json",
    STRATEGIC_MERGE_PATCH: "application/strategic-merge-patch+json",
    JSON_PATCH: "application/json-patch+json",
}
ALL_NAMESPACES = ""
"""Used as a namespace: all namespaces."""
REQUEST_TIMEOUT_SECONDS = 10.0
"""Maximum time for one response."""


_RETRYABLE_POST_STATUSES = (429, 503)
"""Status codes that mean that the server did not begin to carry out the request."""


class RateLimiter(Protocol):
    """Limits the rate of requests; see ``edl.cluster.kubernetes.rate_limiter.TokenBucketLimiter``."""

    def __call__(self) -> None:
        """Return when the next request may be sent."""

    def pause_requests(self, seconds: float) -> None:
        """The server asked for a pause."""


RequestHook = Callable[[str], AbstractContextManager[object]]
"""Makes a context manager that is active while a request to a server's address is in flight, for example to tell users
that the server is slow."""


def _no_request_hook(_: str) -> AbstractContextManager[object]:
    return nullcontext()


class NoRateLimiter:
    """Does not limit the rate."""

    def __call__(self) -> None:
        """Return at once."""

    def pause_requests(self, seconds: float) -> None:
        """Do nothing: the caller gets the server's error."""


@dataclass(frozen=True, slots=True)
class KubeConnection:
    """How to reach one API server.

    Attributes:
        host: ``https://host:port``.
        http_pool: connection pool, with the server's certificate authority and the client's certificate.
        auth_headers: returns the authentication headers; called for each request, because tokens are renewed.
        namespace: the default namespace.
        context: context of the kubeconfig; None in a pod.
    """

    host: str
    http_pool: urllib3.PoolManager
    auth_headers: Callable[[], Mapping[str, str]]
    namespace: str
    context: str | None = None


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """The response to one request.

    Attributes:
        body: the object.
        server_time: the server's clock in unix seconds, to the second; None if the response has no date.
    """

    body: Manifest
    server_time: float | None


@dataclass(frozen=True, slots=True)
class ResourceList:
    """The objects at one moment. A watch from ``resource_version`` on misses no change."""

    items: tuple[Manifest, ...]
    resource_version: str
    server_time: float | None = None


class KubeClient:
    """Sends requests over one connection.

    Args:
        connection: result of ``edl.cluster.kubernetes.kubeconfig.load_connection``.
        rate_limiter: called before each request. It may wait, so that a thousand lost pods do not flood the server.
        retries: retry policy of urllib3; see the module's docstring.
        may_write: called before each request that changes something. If it returns False, the request raises
            NoResponseError instead.
        request_hook: a context manager around each request, until the response begins or an error occurs.
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
        """A client for the same server that sends changes only while ``may_write`` returns True.

        A master whose node is cut off may lose the right to decide without noticing. Its requests must not be carried
        out when the network is back. A request that was sent in time has arrived or is lost for good
        ``REQUEST_TIMEOUT_SECONDS`` later.
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
        """The connection, for requests that this class does not have."""
        return self._connection

    @property
    def namespace(self) -> str:
        """The default namespace."""
        return self._connection.namespace

    @property
    def context(self) -> str | None:
        """The context of the kubeconfig; None in a pod."""
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
        """All objects that a label and a field selector match; ``namespace=ALL_NAMESPACES`` lists all namespaces."""
        path = kind.path(self._namespace_or_default(namespace))
        answer = self.request("GET", path, query={"labelSelector": labels, "fieldSelector": fields})
        body = answer.body
        # items of a list have neither apiVersion nor kind
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        items = tuple({**head, **item} for item in body.get("items") or ())
        return ResourceList(items, str(body.get("metadata", {}).get("resourceVersion", "")), answer.server_time)

    def create(self, manifest: Manifest, *, namespace: str | None = None, dry_run: bool = False) -> Manifest:
        """Create an object and return it as stored; raises ConflictError if its name is taken.

        Args:
            manifest: the object. Its own namespace takes precedence over ``namespace``.
            namespace: namespace of the object.
            dry_run: run admission only, and store nothing.
        """
        where = manifest.get("metadata", {}).get("namespace") or self._namespace_or_default(namespace)
        path = manifest_kind(manifest).path(where)
        return self.request("POST", path, query=_dry_run_query(dry_run), body=manifest).body

    def replace(self, manifest: Manifest, *, namespace: str | None = None) -> Manifest:
        """Replace the object that has the same resourceVersion; raises ConflictError if it has changed."""
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
        """Delete an object. It disappears when its finalizers and grace period are over.

        Args:
            kind: kind of the object.
            name: name of the object.
            namespace: namespace of the object.
            uid: delete only the object with this uid, and never a later one of the same name; raises ConflictError if
                the uid differs.
            grace: grace period in seconds; 0 removes a pod at once, also from a dead node.
            propagation: what happens to the objects that it owns. It is always sent, because the default of some
                clients and servers is to orphan them.
            dry_run: run admission only.
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
        """Follow changes after a list, with bookmarks. The server ends the stream after ``timeout_seconds``.

        Each line is ``{"type": ADDED | MODIFIED | DELETED | BOOKMARK | ERROR, "object": ...}``. For an ERROR,
        ``ResponseStream.events`` raises the corresponding error. A stream that is silent for ``idle_timeout`` seconds
        raises NoResponseError.
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
        """The log of a container; ``follow`` also streams what it prints from now on."""
        query = {
            "container": container,
            "follow": "true" if follow else "",
            "previous": "true" if previous else "",
            "tailLines": "" if tail is None else str(tail),
        }
        # a container may print nothing for hours; the keepalive of the connection detects a lost server
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
        """Send a request and read the whole response.

        Raises:
            ApiError: one of its subclasses; NoResponseError if there was no response.
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
        # a stream has no total timeout, only a limit of its silence
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
        """Send a request with these options of urllib3; raise the error of a response with an error status."""
        self._rate_limiter()
        query_string = urlencode({name: value for name, value in (query or {}).items() if value})
        headers = {"Accept": "application/json", "Content-Type": content_type, **self._connection.auth_headers()}
        url, where = f"{self.host}{path}" + (f"?{query_string}" if query_string else ""), f"{method} {self.host}{path}"
        # after the rate limiter, which may have waited: the right to write may have expired meanwhile
        if method != "GET" and not self._may_write():
            raise NoResponseError("Not sent: this master did not renew its Lease in time", where=where)
        try:
            with self._request_hook(self.host):
                # redirect=False: a redirect is an error like any other status from 300 on
                response = self._connection.http_pool.request(method, url, headers=headers, redirect=False, **how)
        except HTTPError as error:
            raise NoResponseError(connection_error_text(error), where=where, hint=self._unreachable_hint()) from error
        if response.status >= 300:
            # 429 and 503 may ask for a delay, which applies to all requests of this client
            after = response.headers.get("Retry-After")
            server_error = error_from_response(response.status, _error_body(response), where=where, retry_after=after)
            if isinstance(server_error, ServerBusyError) and server_error.retry_after:
                self._rate_limiter.pause_requests(server_error.retry_after)
            raise server_error
        return response

    def _unreachable_hint(self) -> str:
        """What the user can check if there is no response."""
        if self.context is None:
            return f"The cluster's own API server, {self.host}, cannot be reached from this pod."
        return (
            f"Is {self.host} up, and can it be reached from here? It is the cluster of the context {self.context}; "
            "--context selects another one."
        )

    def _retries_for(self, method: str) -> urllib3.Retry | bool:
        if self._retries is None:
            return False
        return (
            # a broken connection or another status does not tell whether the object was created
            self._retries.new(read=False, status_forcelist=_RETRYABLE_POST_STATUSES)
            if method == "POST"
            else self._retries
        )

    def _namespace_or_default(self, namespace: str | None) -> str:
        return self._connection.namespace if namespace is None else namespace


def _dry_run_query(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _error_body(response: urllib3.BaseHTTPResponse) -> bytes:
    """The body of an error response; empty if the connection breaks, because the status code suffices."""
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
        raise NoResponseError("The response is not from an API server, or is truncated", where=where) from error
    return value if isinstance(value, dict) else {"items": value}


def _parse_http_date(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        return parsedate_to_datetime(header).timestamp()
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------
# TCP keepalive detects a server that vanished silently within 25 s, also for a watch that waits for changes.


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
"""Socket options of connections to an API server."""
NO_LINGER_OPTIONS = (*KEEPALIVE_OPTIONS, (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)))
"""The same, and closing a connection discards data that was not delivered.

Otherwise the kernel retransmits for minutes, and a request that was abandoned on a node without a network would arrive
when the network is back.
"""
