"""Processes of test jobs that are forked instead of started: EDL, TensorFlow and Keras are imported once for all.

`Popen` has a server fork ``edl run`` and the like. Its supervisor, and the roles of that, are forked as well. Each of
them is a process of its own, with its environment, session, files and parent. One thing is not as after a start by the
system: modules have been imported already. So some tests start their processes (``JobProcess(started=True)``), and so
does whatever this module does not know: a program of a job, a worker of Keras 2.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

ROLES = ("edl.master", "edl.ps", "edl.worker")
OTHERS = ("edl.cli.app", "edl.cluster.local")
READ_AT_IMPORT = ("TF_", "KERAS_", "XLA_", "OMP_", "PYTHON")
"""Variables that a process reads when it starts or imports a library: one that has others is not forked."""
NOT_READ = ("PYTHONPATH", "PYTHONUNBUFFERED", "TF_CPP_MIN_LOG_LEVEL")
"""Of these, those which `become` sets, and one that only chooses what TensorFlow logs."""
MODULES = (
    "edl.cli.run",
    "edl.master.master_process",
    "edl.ps.server_process",
    "edl.worker.worker_process",
    "edl.worker.runtime",
)
"""What processes of jobs import that is of EDL, beside TensorFlow and Keras. No module starts a thread of its own."""
_MESSAGE_BYTES = 1 << 20


# --------------------------------------------------------------------------------------------------
# In tests: ask for a process.


class ForkServer:
    """A process that has imported what processes of a job import, and forks them.

    All of xdist's processes share one: that which needs it first binds its name and starts it. It ends with the last.
    """

    def __init__(self) -> None:
        name = f"\0edl-fork-server-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while self._is_unreachable(name):
            pass  # the server that has the name does not listen yet, or no longer
        self._lock = threading.Lock()

    def _is_unreachable(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(name)
            except OSError:
                pass  # another process has started the server
            else:
                listener.listen()
                self._process = self._start(listener.fileno())
            return self._socket.connect_ex(name) != 0

    def _start(self, listener: int) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener)],
            env={**environment, "TF_CPP_MIN_LOG_LEVEL": "1"},
            stdin=subprocess.DEVNULL,
            pass_fds=[listener],
            start_new_session=True,
        )

    def fork(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> socket.socket:
        """Fork ``python -m COMMAND`` with these as standard input, output and error.

        Returns where its pid and its end come.
        """
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"command": list(command), "cwd": str(cwd), "environment": dict(environment)}).encode()
        with self._lock, other:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
            socket.send_fds(self._socket, [request], [other.fileno(), *descriptors])
        return mine

    def close(self) -> None:
        """Need it no longer. It waits for the processes that it forked, so that their processor time is counted."""
        self._socket.close()
        if self._process is not None:
            self._process.wait()


_servers: list[ForkServer] = []


def _server() -> ForkServer:
    if not _servers:
        _servers.append(ForkServer())
        atexit.register(_servers[0].close)
    return _servers[0]


class Popen:
    """A forked ``edl WORDS``, with as much of `subprocess.Popen` as tests use. Its output is read as text.

    Args:
        words: the arguments of ``edl``.
        cwd: its working folder.
        text: its standard input.
        environment: by default that of the tests.
        errors: an open file for its standard error, which is a pipe otherwise.
        module: which it runs in place of ``edl``.

    Raises:
        RuntimeError: the server has ended.
    """

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        text: str = "",
        environment: Mapping[str, str] | None = None,
        errors: IO[bytes] | None = None,
        module: str = "edl.cli.app",
    ) -> None:
        self.returncode: int | None = None
        with tempfile.TemporaryFile() as source:
            source.write(text.encode())
            source.seek(0)
            out_reader, out_writer = os.pipe()
            error_reader, error_writer = os.pipe() if errors is None else (-1, os.dup(errors.fileno()))
            try:
                standard = [source.fileno(), out_writer, error_writer]
                variables = os.environ if environment is None else environment
                self._news = _server().fork([module, *words], cwd, variables, standard)
            finally:
                os.close(out_writer)
                os.close(error_writer)
        self.stdout: IO[str] | None = os.fdopen(out_reader, encoding="utf-8")
        self.stderr: IO[str] | None = None if errors is not None else os.fdopen(error_reader, encoding="utf-8")
        self._lock = threading.Lock()
        self.pid = self._number(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def _number(self, timeout: float | None) -> int:
        self._news.settimeout(timeout)
        message = self._news.recv(64)
        if not message:
            raise RuntimeError("the fork server has ended: its error is in the output of the tests")
        return int(message)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the number of the signal that killed it.

        Raises:
            subprocess.TimeoutExpired: it has not ended after ``timeout`` seconds.
        """
        with self._lock:
            if self.returncode is None:
                try:
                    self.returncode = self._number(timeout)
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired("edl", timeout or 0.0) from None
                self._news.close()
            return self.returncode

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[str], cwd: Path, timeout: float, text: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A forked ``edl WORDS`` to its end.

    Raises:
        subprocess.TimeoutExpired: it has not ended after ``timeout`` seconds; it is killed.
    """
    with Popen(words, cwd, text, environment) as process, ThreadPoolExecutor(2) as readers:
        assert process.stdout is not None
        assert process.stderr is not None
        output, errors = readers.submit(process.stdout.read), readers.submit(process.stderr.read)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(["edl", *words], code, output.result(), errors.result())


def start_edl(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: int, stderr: IO[bytes]) -> Popen:
    """In place of `subprocess.Popen` where EDL itself starts ``python -P -m edl.cli.app``: that is forked, too."""
    assert list(command[:4]) == [sys.executable, "-P", "-m", "edl.cli.app"]
    assert stdout == subprocess.PIPE
    return Popen(command[4:], cwd, environment=env, errors=stderr)


# --------------------------------------------------------------------------------------------------
# In the server, and in what it forked: be another process.


PLAIN_PATH, PLAIN_ERRORS = list(sys.path), sys.stdout.errors or "strict"
PLAIN_VARIABLES: dict[str, str] = {}
SET_AT_IMPORT: dict[str, str] = {}


def import_all() -> None:
    """What takes a started process its first seconds."""
    from edl.keras.tensorflow_import import import_tensorflow

    before = dict(os.environ)
    PLAIN_VARIABLES.update(_read_at_import(before))
    import_tensorflow()
    SET_AT_IMPORT.update({name: value for name, value in os.environ.items() if name not in before})
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()


def serve(listener: socket.socket) -> None:
    """Fork a process for each request, until all processes of the tests have closed their ends."""
    clients = selectors.DefaultSelector()
    clients.register(listener, selectors.EVENT_READ)
    accepted = False
    while not accepted or len(clients.get_map()) > 1:
        for key, _ in clients.select():
            client = key.fileobj
            assert isinstance(client, socket.socket)
            if client is listener:
                client, _ = listener.accept()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MESSAGE_BYTES)
                clients.register(client, selectors.EVENT_READ)
                accepted = True
                continue
            message, descriptors, *_ = socket.recv_fds(client, _MESSAGE_BYTES, 4)
            if message:
                _serve_request(json.loads(message), descriptors, listener)
            else:
                clients.unregister(client)
                client.close()
    listener.close()  # another server may have the name while this one waits
    while _reap(0):
        pass


def _serve_request(request: Mapping[str, Any], descriptors: Sequence[int], listener: socket.socket) -> None:
    while _reap(os.WNOHANG):
        pass
    # The one that waits: a process of the tests' cannot, because it is not the parent.
    if os.fork() == 0:
        listener.close()
        _fork_and_tell(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _reap(options: int) -> int:
    with suppress(ChildProcessError):
        return os.waitpid(-1, options)[0]
    return 0


def _fork_and_tell(request: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    news, *standard = descriptors
    pid = os.fork()
    if pid == 0:
        os.chdir(request["cwd"])
        os.setsid()
        become([sys.executable, "-m", *request["command"]], request["environment"], standard)
    for descriptor in standard:
        os.close(descriptor)
    reader = socket.socket(fileno=news)
    with suppress(OSError):  # the tests' process may be gone
        reader.send(str(pid).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        reader.send(str(code).encode())
    os._exit(0)


def become(command: Sequence[str], environment: Mapping[str, str], standard: Sequence[int]) -> NoReturn:
    """Be what ``python [-P] -m MODULE WORDS`` is after its start, as far as a process can see; then end as it ends."""
    code = 1
    try:
        _forget(environment, standard)
        at = command.index("-m")
        module, sys.argv = command[at + 1], list(command[at + 1 :])
        if module == "edl.worker":
            os.environ.update({**SET_AT_IMPORT, **os.environ})
        subprocess.Popen = _ForkedPopen  # type: ignore[misc]
        os.execve = _execve  # type: ignore[assignment]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            if isinstance(leaving.code, str):
                print(leaving.code, file=sys.stderr)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:  # as the interpreter reports it
        traceback.print_exc()
        code = 1
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _forget(environment: Mapping[str, str], standard: Sequence[int]) -> None:
    """Leave behind what a new process does not have: signal handlers, exit hooks, files, streams, log handlers."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    logging.shutdown()
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    atexit.register(logging.shutdown)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    _close_files()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path] + PLAIN_PATH
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", errors=PLAIN_ERRORS, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, PLAIN_ERRORS, unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace", unbuffered)  # type: ignore[misc]
    random.seed()
    import numpy as np

    np.random.seed()  # a forked process has its parent's state


def _stream(descriptor: int, errors: str, unbuffered: bool) -> Any:
    buffering = -1 if descriptor == 1 and not unbuffered else 1
    stream = os.fdopen(descriptor, "w", buffering, encoding="utf-8", errors=errors, closefd=False)
    if unbuffered:
        stream.reconfigure(write_through=True)
    return stream


def _close_files() -> None:
    """Files that are not inherited by a started process become /dev/null.

    They are not closed: an object of the parent's that is thrown away here would close another file with its number.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        with suppress(OSError):  # that of the list itself is closed by now
            if descriptor > 2 and descriptor != nothing and not os.get_inheritable(descriptor):
                os.fstat(descriptor)
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _is_forked(command: Sequence[Any], environment: Mapping[str, str]) -> bool:
    if list(command[:3]) != [sys.executable, "-P", "-m"] or command[3] not in (*OTHERS, *ROLES):
        return False
    if _read_at_import(environment) != PLAIN_VARIABLES:
        return False
    if command[3] in OTHERS:
        return True
    try:
        spec = json.loads(Path(environment["EDL_RUN_DIR"], "spec.json").read_bytes())
    except (OSError, KeyError, ValueError):
        return False
    return (spec.get("model") or {}).get("keras") != 2


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT) and name not in NOT_READ
    }


_StartedPopen = subprocess.Popen


class _ForkedPopen(_StartedPopen):  # type: ignore[type-arg]
    """`subprocess.Popen` that forks the supervisor and the roles of a job, and starts all else."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        _, pass_fds, cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[:13]
        environment = os.environ if env is None else env
        if shell or not isinstance(args, list) or pass_fds or not _is_forked(args, environment):
            super()._execute_child(args, executable, preexec_fn, *rest)  # type: ignore[misc]
            return
        environment = dict(environment)
        start_new_session = rest[-2]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            if start_new_session:
                os.setsid()
            if preexec_fn is not None:
                preexec_fn()
            if cwd is not None:
                os.chdir(cwd)
            standard = (p2cread, c2pwrite, errwrite)
            become(
                args, environment, [own if descriptor == -1 else descriptor for own, descriptor in enumerate(standard)]
            )
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


_start_program = os.execve


def _execve(path: Any, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """A process that would become a role: the worker of strategy Local."""
    if _is_forked(argv, env):
        sys.stdout.flush()
        sys.stderr.flush()
        become(argv, dict(env), [0, 1, 2])
    subprocess.Popen = _StartedPopen  # type: ignore[misc]
    _start_program(path, argv, env)


if __name__ == "__main__":
    import_all()
    serve(socket.socket(fileno=int(sys.argv[1])))
