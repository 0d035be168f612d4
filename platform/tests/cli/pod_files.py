"""What runs in the pod of a copy, as a process of this machine; its connection may break by script."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from edl.cluster.kubernetes.api_errors import NoResponseError


class LocalExecution:
    """``edl.pod.files`` over pipes, with the methods of `PodExec`.

    Args:
        root: what the claim holds.
        breaks_after: bytes that may be sent before the connection breaks; None: it holds.
    """

    def __init__(self, root: Path, breaks_after: int | None = None) -> None:
        command = [sys.executable, "-m", "edl.pod.files", str(root)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._room = breaks_after
        self.stderr_tail = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read(size)

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if self._room is not None:
            if len(data) > self._room:
                raise NoResponseError("The connection broke")
            self._room -= len(data)
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def has_pending_input(self) -> bool:
        return bool(select.select([self._process.stdout], [], [], 0)[0])


def serve(root: Path, monkeypatch: pytest.MonkeyPatch, *breaks_after: int) -> list[str]:
    """Let every pod serve ``root``; the first connections break. Returns the pods that are connected to."""
    pods: list[str] = []
    breaking = list(breaks_after)

    def run(api: object, pod: str) -> LocalExecution:
        pods.append(pod)
        return LocalExecution(root, breaking.pop(0) if breaking else None)

    monkeypatch.setattr("edl.ops.helper_pod.exec_file_server", run)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return pods
