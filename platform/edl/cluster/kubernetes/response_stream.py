"""Lines that arrive from the API server for as long as they are wanted: watches and logs."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress

import urllib3
from urllib3.exceptions import HTTPError

from edl.cluster.kubernetes.api_errors import NoResponseError, error_from_response
from edl.cluster.kubernetes.resource_kinds import Manifest

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
            GoneError: the server cannot go on from there: list again.
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
