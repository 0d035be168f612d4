"""Process 1 of a container: starts the role, forwards signals, reaps, copies output, and exits with its exit code.

The kernel does not apply default actions of signals to process 1 and makes it the parent of all orphans. Roles handle
neither. All output of the role before its end is written to standard output before this process exits, even if a child
of the role still holds the pipe open.
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
# A copy of the role's output in a file. It is best effort, because logging must never block the role.


BACKLOG_BYTES = 4 << 20
"""Bytes that may wait for the disk. Output beyond that is dropped, and the file says so."""


class LogFile:
    """Writes a file on a thread of its own. Only ``close`` waits, and not for long.

    Args:
        on_failure: called once, with a sentence, if the file cannot be written; nothing is written after that.
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
        """Append to ``path``, beginning with the output that waits already. The folder is created if necessary.

        Args:
            path: the file.
            heading: a line that names the process whose output follows.
        """
        self._thread = threading.Thread(target=self._write_loop, args=(path, heading), name="log", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue output; drop it if the queue is full."""
        with self._changed:
            if self._backlog_bytes + len(data) > self._limit:
                self._dropped_bytes += len(data)
                return
            if self._dropped_bytes:
                data = b"[%d bytes dropped: the disk was too slow]\n" % self._dropped_bytes + data
                self._dropped_bytes = 0
            self._backlog.append(data)
            self._backlog_bytes += len(data)
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds until everything is written."""
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
                self._limit = 0  # from now on, write() drops everything
                self._backlog.clear()
            self._on_failure(f"{path}: {error.strerror or error}; logging continues without this file")

    def _next_block(self) -> bytes:
        """Wait for output and take all of it; empty if the file is closed and nothing is left."""
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
"""Time for a slow disk to write the rest of the output at the end."""
_CHUNK = 1 << 16

AnnounceLog = Callable[[str, str], None]
"""Tells process 1 the path of the log file, and the heading to write into it."""


class InitProcess:
    """Runs one child and copies its output.

    Args:
        exec_child: runs in the child. It prepares the role, announces the path of its log, and becomes the role by
            ``exec``. If it raises SystemExit, the child exits.
    """

    def __init__(self, exec_child: Callable[[AnnounceLog], None]) -> None:
        self._exec_child = exec_child
        self._log = LogFile(lambda sentence: _write_stdout(f"edl-role: {sentence}\n".encode()))
        self._announcement = b""
        self._exit_code: int | None = None

    def run(self) -> int:
        """Start the child and wait for its end; return its exit code as a shell reports it (128 + n)."""
        woken, wake = _make_pipe()
        os.set_blocking(wake, False)
        output, child_output = _make_pipe()
        word, child_word = _make_pipe()
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGCHLD):
            # the wakeup descriptor reports the signal; a handler is only needed to replace the default action
            signal.signal(number, lambda number, _: None)
        self._child = self._fork_child(child_output, child_word)
        os.close(child_output)
        os.close(child_word)
        self._poll_until_exit({woken: self._handle_signals, output: self._copy_output, word: self._read_announcement})
        # the child has exited; its announcement and output may still be in the pipes
        while self._read_announcement(word) or self._copy_output(output):
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
        """Fork the child. It can get signals from its first moment on, and has none of our handlers."""
        # blocked around the fork: a signal in the child before its handlers are reset would wake this process
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
            # a role must not wait for input that nobody gives
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._exec_child(partial(_send_announcement, word))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - a forked child must not return into its parent's code
            traceback.print_exc()
        finally:
            # os._exit skips the flush at exit, and must be used: the child shares the parent's state
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    # ------------------------------------------------------------------ events

    def _handle_signals(self, woken: int) -> bool:
        for number in _read_available(woken) or b"":
            if number == signal.SIGCHLD:
                self._reap_children()
            elif number in FORWARDED and self._exit_code is None:
                os.kill(self._child, number)  # not reaped yet, so its pid cannot belong to another process
        return True

    def _reap_children(self) -> None:
        """Reap every process that has ended: the child, and orphans that this process inherited."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._child:
                    code = os.waitstatus_to_exitcode(status)
                    self._exit_code = code if code >= 0 else 128 - code

    def _copy_output(self, output: int) -> bool:
        """Copy output of the child; return whether there may be more."""
        data = _read_available(output)
        if not data:
            return data is None and self._exit_code is None
        _write_stdout(data)
        self._log.write(data)
        return True

    def _read_announcement(self, word: int) -> bool:
        """Read where the log goes; return whether more may follow. The pipe ends when the child becomes the role."""
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
    """A pipe that ``exec`` closes, with a reading end that does not block."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # the user's limit of pipe memory is reached: the default size works, too
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * _CHUNK)
    return reading, writing


def _read_available(descriptor: int) -> bytes | None:
    """Available bytes; None if there are none yet, empty at the end."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _write_stdout(data: bytes) -> None:
    """Write to standard output; ignored if nobody reads it."""
    view = memoryview(data)
    with suppress(BrokenPipeError):
        while view:
            view = view[os.write(1, view) :]
