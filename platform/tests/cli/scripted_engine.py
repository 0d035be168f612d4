"""A Docker engine on a Unix socket that says what a test tells it to."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

API_VERSION = "1.44"


@dataclass(frozen=True)
class EngineRequest:
    """What the engine was asked."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class ScriptedEngine:
    """Answers /version, /build, /images/NAME/push and /images/NAME/json; a context manager that serves meanwhile."""

    socket: Path
    build: list[dict[str, Any]] = field(default_factory=list)
    push: list[dict[str, Any]] = field(default_factory=list)
    image: dict[str, Any] | None = None
    requests: list[EngineRequest] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def __enter__(self) -> ScriptedEngine:
        self._server = ThreadingUnixStreamServer(str(self.socket), _handler(self))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, list[dict[str, Any]]]:
        """Status and messages for a path."""
        if path.endswith("/version"):
            return 200, [{"ApiVersion": API_VERSION}]
        if path.endswith("/build"):
            return 200, self.build
        if path.endswith("/push"):
            return 200, self.push
        return (404, [{"message": "no such image"}]) if self.image is None else (200, [self.image])


def _handler(engine: ScriptedEngine) -> type[BaseHTTPRequestHandler]:
    class EngineHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._drain()
            url = urlsplit(self.path)
            engine.requests.append(EngineRequest(url.path, dict(parse_qsl(url.query)), dict(self.headers)))
            status, messages = engine.answer(url.path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")  # one message a chunk, as engines stream
            self.send_header("Connection", "close")
            self.end_headers()
            for chunk in (*(json.dumps(message).encode() + b"\r\n" for message in messages), b""):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

        def do_POST(self) -> None:
            self.do_GET()

        def _drain(self) -> None:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                while size := int(self.rfile.readline(), 16):
                    self.rfile.read(size + 2)
                self.rfile.readline()
            else:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def address_string(self) -> str:
            return "test"

        def log_message(self, *_: object) -> None:
            pass

    return EngineHandler
