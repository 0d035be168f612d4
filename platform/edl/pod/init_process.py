"""Process 1 of a container: starts the role, forwards signals to it, reaps, copies its output, and ends as it ends.

The kernel gives process 1 no default action for signals and makes it the parent of every orphan; a role knows nothing
of either. What the role wrote before its end has been written to standard output when this process ends, also when a
process that the role left behind still holds the pipe open.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

# --------------------------------------------------------------------------------------------------
# A copy of a role's output in a file, as far as the file's disk keeps up: a log must never stop what it is about.


BACKLOG_BYTES = 4 << 20
"""Bytes that wait for the disk at most; what comes on top is left out, and the file says so."""


class LogFile:
    """Writes on a thread of its own. No method but ``close`` waits, and that one not for long.

    Args:
        on_failure: called once, with a sentence, when the file cannot be written; nothing is written after that.
        limit: bytes that may wait.
    """

    def __init__(self, on_failure: Callable[[str], None], *, limit: int = BACKLOG_BYTES) -> None:
        self._on_failure, self._limit = on_failure, limit
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._dropped_bytes = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def open(self, path: Path, heading: str) -> None:
        """Append to ``path``, beginning with what waits already; the folder is made if it is missing.

        Args:
            path: the file.
            heading: a line that says whose output follows.
        """
        self._thread = threading.Thread(target=self._write_loop, args=(path, heading), name="log", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Hand over output."""
        with self._changed:
            if self._backlog_bytes + len(data) > self._limit:
                self._dropped_bytes += len(data)
                return
            if self._dropped_bytes:
                data = b"[%d bytes left out: the disk was too slow]\n" % self._dropped_bytes + data
                self._dropped_bytes = 0
            self._backlog.append(data)
            self._backlog_bytes += len(data)
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Give the disk up to ``timeout`` seconds for what waits."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    def _write_loop(self, path: Path, heading: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                file.write(heading.encode() + b"\n")
                while data := self._next_block():
                    _write_all(file.fileno(), data)
        except OSError as error:
            with self._changed:
                self._limit = 0
                self._backlog.clear()
            self._on_failure(f"{path}: {error.strerror or error}; this log goes on without the file")

    def _next_block(self) -> bytes:
        """What waits, once something does; nothing when it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._backlog or self._closing)
            data = b"".join(self._backlog)
            self._backlog.clear()
            self._backlog_bytes = 0
            return data


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


FORWARDED = (signal.SIGTERM, signal.SIGINT)
LOG_FLUSH_SECONDS = 2.0
"""What a slow disk gets at the end for the copy of the output."""
_CHUNK = 1 << 16

AnnounceLog = Callable[[str, str], None]
"""Tells process 1 where the copy of the output goes: the file, and the heading in it."""


class InitProcess:
    """One child and its output.

    Args:
        exec_child: runs in the child: prepares it, announces where its log goes, and becomes the role by ``exec``. A
            SystemExit that it raises is the end of the child.
    """

    def __init__(self, exec_child: Callable[[AnnounceLog], None]) -> None:
        self._exec_child = exec_child
        self._log = LogFile(lambda sentence: _write_stdout(f"edl-role: {sentence}\n".encode()))
        self._announcement = b""
        self._exit_code: int | None = None

    def run(self) -> int:
        """Start the child and stay until it has ended; returns its exit code as a shell has it (128 + n)."""
        woken, wake = _make_pipe()
        os.set_blocking(wake, False)
        output, child_output = _make_pipe()
        word, child_word = _make_pipe()
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGCHLD):
            signal.signal(number, lambda number, _: None)  # the descriptor says which; this keeps it from killing us
        self._child = self._fork_child(child_output, child_word)
        os.close(child_output)
        os.close(child_word)
        self._poll_until_exit({woken: self._handle_signals, output: self._copy_output, word: self._read_announcement})
        while self._read_announcement(word) or self._copy_output(
            output
        ):  # what the child said and wrote before it ended
            pass
        self._log.close(LOG_FLUSH_SECONDS)
        assert self._exit_code is not None
        return self._exit_code

    def _poll_until_exit(self, handlers: dict[int, Callable[[int], bool]]) -> None:
        poll = select.poll()
        for descriptor in handlers:
            poll.register(descriptor, select.POLLIN)
        while self._exit_code is None:
            for descriptor, _ in poll.poll():
                if not handlers[descriptor](descriptor):
                    poll.unregister(descriptor)

    # ------------------------------------------------------------------ the child

    def _fork_child(self, output: int, word: int) -> int:
        """Start the child; it gets signals from its first moment on, and none of our handlers."""
        every = {*FORWARDED, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, every)
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            for number in every:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, every)
            self._run_child(output, word)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, every)
        return child

    def _run_child(self, output: int, word: int) -> NoReturn:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._exec_child(partial(_send_announcement, word))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - a forked child must not return into its parent's code
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    # ------------------------------------------------------------------ what happens

    def _handle_signals(self, woken: int) -> bool:
        for number in _read_available(woken) or b"":
            if number == signal.SIGCHLD:
                self._reap_children()
            elif number in FORWARDED and self._exit_code is None:
                os.kill(self._child, number)  # not reaped yet, so the number is still its own
        return True

    def _reap_children(self) -> None:
        """Take note of every process that ended: the child, and orphans that became ours."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._child:
                    code = os.waitstatus_to_exitcode(status)
                    self._exit_code = code if code >= 0 else 128 - code

    def _copy_output(self, output: int) -> bool:
        """Pass on what the child wrote; whether there was something."""
        data = _read_available(output)
        if not data:
            return data is None and self._exit_code is None
        _write_stdout(data)
        self._log.write(data)
        return True

    def _read_announcement(self, word: int) -> bool:
        """Take in where the log goes; whether there is more to hear: the word ends when the child becomes the role."""
        data = _read_available(word)
        self._announcement += data or b""
        if data or data is None:
            return True
        if self._announcement:
            path, heading = self._announcement.decode().splitlines()
            self._log.open(Path(path), heading)
            self._announcement = b""
        return False


def _send_announcement(word: int, path: str, heading: str) -> None:
    os.write(word, f"{path}\n{heading}\n".encode())


def _make_pipe() -> tuple[int, int]:
    """A pipe that is not inherited by ``exec`` and whose reading end does not wait."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # beyond the user's share of pipe memory
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * _CHUNK)
    return reading, writing


def _read_available(descriptor: int) -> bytes | None:
    """What is there; None for nothing yet, empty at the end."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _write_stdout(data: bytes) -> None:
    """Write to standard output; whoever closed it does not want it."""
    view = memoryview(data)
    with suppress(BrokenPipeError):
        while view:
            view = view[os.write(1, view) :]
