"""A process that measures when it is asked to, and lies still while others are measured.

It says ``ready`` once, then answers each line of its standard input, a JSON object, with a line of JSON. So what takes
long to start is started once, and still takes turns with the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self

READY = {"ready": True}


class PeerScript:
    """A script of this folder that calls :func:`serve`, as a context manager; ready when it is entered.

    Args:
        script: its name.
        arguments: of the script.
        python: that runs it.

    Attributes:
        name: of the script, without its ending.
    """

    def __init__(self, script: str, *arguments: str, python: str = sys.executable) -> None:
        self.name = Path(script).stem
        self._command = [python, str(Path(__file__).parent / script), *arguments]

    def start(self) -> None:
        """Start it without waiting until it is ready; ``receive_answer`` then returns what it says first."""
        self._errors = TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> Self:
        self.start()
        self.ready_message = self.receive_answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def send_question(self, **question: Any) -> None:
        """Ask for something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def receive_answer(self) -> dict[str, Any]:
        """The answer to the question before.

        Raises:
            RuntimeError: it ended instead.
        """
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            self._errors.seek(0)
            raise RuntimeError(f"{' '.join(self._command)} ended:\n{self._errors.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def ask_question(self, **question: Any) -> dict[str, Any]:
        """Tell and hear."""
        self.send_question(**question)
        return self.receive_answer()


def ask_all(peers: Sequence[PeerScript], **question: Any) -> list[dict[str, Any]]:
    """Ask several at the same moment."""
    for peer in peers:
        peer.send_question(**question)
    return [peer.receive_answer() for peer in peers]


def serve_questions(answer: Callable[[dict[str, Any]], dict[str, Any]], **said: Any) -> None:
    """Be a peer: answer questions until there are no more. ``said`` goes with being ready."""
    _write_line(READY | said)
    for line in sys.stdin:
        _write_line(answer(json.loads(line)))


def _write_line(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
