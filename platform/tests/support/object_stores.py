"""Object stores for tests, as processes that speak the real protocols."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_SECONDS = 60


@contextmanager
def start_server(arguments: list[str], address: str) -> Iterator[str]:
    """A server as a process; ``address`` is a pattern of the line in which it says where it listens."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    assert process.stdout is not None
    watchdog = threading.Timer(_START_SECONDS, process.kill)
    watchdog.start()
    lines, reader = [], None
    try:
        for line in process.stdout:
            lines.append(line)
            if match := re.search(address, line):
                break
        else:
            raise AssertionError(f"the server ended: {''.join(lines)}")
        watchdog.cancel()
        # Else the server would wait when the pipe is full.
        reader = threading.Thread(target=process.stdout.read, daemon=True)
        reader.start()
        yield match[0]
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        if reader is not None:
            reader.join()
        process.stdout.close()


class S3Bucket:
    """A bucket of moto's server."""

    scheme = "s3"

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint, self.name = endpoint, name
        self.request("PUT", f"/{name}")

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self.request("PUT", f"/{self.name}/{key}", content)

    def delete(self, key: str) -> None:
        """Remove an object."""
        self.request("DELETE", f"/{self.name}/{key}")

    def url(self, key: str) -> str:
        """The address of an object."""
        return f"{self.scheme}://{self.name}/{key}"

    def request(self, method: str, path: str, content: bytes | None = None) -> bytes:
        """A request to the server itself."""
        request = urllib.request.Request(self.endpoint + path, content, method=method)
        # moto lets nobody without a name write over an object.
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request")
        request.add_header("Content-Type", "application/octet-stream")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return bytes(answer.read())


class GcsBucket(S3Bucket):
    """A bucket of gcp-storage-emulator."""

    scheme = "gs"

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint, self.name = endpoint, name

    def put(self, key: str, content: bytes) -> None:
        name = key.replace("/", "%2F")
        self.request("POST", f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={name}", content)

    def delete(self, key: str) -> None:
        self.request("DELETE", f"/storage/v1/b/{self.name}/o/{key.replace('/', '%2F')}")


def copy_folder(bucket: S3Bucket, folder: Path, prefix: str, known: set[str]) -> None:
    """Make the objects below a prefix those of a folder; ``known`` are the keys of an earlier call."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for name, path in files.items():
        bucket.put(f"{prefix}/{name}", path.read_bytes())
    for name in known - set(files):
        bucket.delete(f"{prefix}/{name}")
    known.clear()
    known.update(files)
