"""A small HTTP server of files, with Range and ETag, scripted faults, and a limit of bandwidth and latency.

``python range_server.py FOLDER MEGABYTES_PER_SECOND LATENCY_SECONDS`` serves a folder and prints its address.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_PIECE_BYTES = 1 << 17


@dataclass
class ServerBehaviour:
    """What a test changes while the server runs.

    Args:
        folder: that is served.
        failures: statuses of the next requests, which are not served.
        authorization: what the header of this name must have.
        ignores_range: sends the whole file, whatever was asked for.
        faults: of the next answers with a part of a file: ``cut`` (the connection ends within it), ``short`` (fewer
            bytes than asked for, with their length), ``moved`` (other bytes, as Content-Range says).
        requests: method, path and Range of each request.
        bytes_per_second: of all connections together; 0: no limit.
        latency: seconds before each answer.
    """

    folder: Path
    failures: list[int] = field(default_factory=list)
    authorization: str = ""
    ignores_range: bool = False
    faults: list[str] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    bytes_per_second: float = 0
    latency: float = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free_at: float = 0

    def pace(self, count: int) -> None:
        """Wait until the line has sent so many bytes."""
        if self.bytes_per_second:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + count / self.bytes_per_second
                wait = self._free_at - time.monotonic()
            time.sleep(max(0.0, wait))


def _handler(behaviour: ServerBehaviour) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *args: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            range_header = self.headers.get("Range", "")
            behaviour.requests.append((self.command, self.path, range_header))
            if behaviour.latency:
                time.sleep(behaviour.latency)
            if behaviour.failures:
                self._refuse(behaviour.failures.pop(0))
                return
            if behaviour.authorization and self.headers.get("Authorization") != behaviour.authorization:
                self._refuse(401)
                return
            path = behaviour.folder / self.path.partition("?")[0].lstrip("/")
            if not path.is_file():
                self._refuse(404)
                return
            stat = path.stat()
            start, end, status = 0, stat.st_size, 200
            if (match := re.fullmatch(r"bytes=(\d+)-(\d+)", range_header)) and not behaviour.ignores_range:
                start, end, status = int(match[1]), min(int(match[2]) + 1, stat.st_size), 206
            fault = behaviour.faults.pop(0) if status == 206 and with_body and behaviour.faults else ""
            if fault == "short":
                end = (start + end) // 2
            elif fault == "moved":
                start, end = start + 1, end + 1
            self.send_response(status)
            self.send_header("Content-Length", str(end - start))
            mark = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:20]
            self.send_header("ETag", f'"{mark}"')
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{stat.st_size}")
            self.end_headers()
            if with_body:
                with path.open("rb") as stream:
                    stream.seek(start)
                    content = stream.read(end - start)
                    self._send(content[: len(content) // 2] if fault == "cut" else content)
                    self.close_connection = self.close_connection or fault == "cut"

        def _send(self, content: bytes) -> None:
            for at in range(0, len(content), _PIECE_BYTES):
                behaviour.pace(len(content[at : at + _PIECE_BYTES]))
                try:
                    self.wfile.write(content[at : at + _PIECE_BYTES])
                except OSError:
                    self.close_connection = True
                    return

        def _refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


@contextmanager
def serve_folder(folder: Path) -> Iterator[tuple[str, ServerBehaviour]]:
    """A server in threads of this process; its address and behaviour."""
    behaviour = ServerBehaviour(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(behaviour))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", behaviour
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _main(folder: str, megabytes: str, latency: str) -> None:
    behaviour = ServerBehaviour(Path(folder), bytes_per_second=float(megabytes) * 1e6, latency=float(latency))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(behaviour))
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _main(*sys.argv[1:])
