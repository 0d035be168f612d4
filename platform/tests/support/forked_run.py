"""One run of pytest in several processes that are forked when the tests have been collected: ``pytest --forks 4``.

Processes of xdist are started: each of them imports TensorFlow and collects all tests, and the first one is sent six
messages for each test. Here all is collected once, and the tests of a file are run by the next process that is free.
"""

from __future__ import annotations

import atexit
import itertools
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest
from support import fork_server


class Child:
    """A forked process, as the first one sees it."""

    def __init__(self, number: int, pid: int, connection: Connection) -> None:
        self.number, self.pid, self.connection = number, pid, connection
        self.end = os.pidfd_open(pid)
        self.items: deque[int] = deque()
        """Tests of its file that have not ended; indices into the session's."""
        self.heard_at = time.monotonic()

    def close(self) -> int:
        """Wait for its end; returns its exit code, or minus the number of the signal that killed it."""
        self.connection.close()
        os.close(self.end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkedRun:
    """A plugin that runs the tests of a session in several processes, file by file, in the order of the session.

    Args:
        count: how many processes.
        stuck_seconds: a process that says nothing for so long is killed, and its test has failed. pytest-timeout does
            nothing about a test that waits outside of Python.
    """

    def __init__(self, count: int, stuck_seconds: float = 1200) -> None:
        self._count, self._stuck_seconds = count, stuck_seconds
        self._children: list[Child] = []
        self._numbers = itertools.count()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Refuse modules that make tensors when they are imported.

        Raises:
            pytest.UsageError: TensorFlow has begun in this process: its threads would be missing in the others, which
                would wait for them for ever.
        """
        if tensorflow_has_begun():
            raise pytest.UsageError(
                f"{report.nodeid} makes a tensor or variable of TensorFlow when it is imported: make it in a function"
            )

    @pytest.hookimpl
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """In place of pytest's own loop, which has its say first about errors of the collection."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        indices = range(len(session.items))
        files = itertools.groupby(indices, key=lambda index: session.items[index].path)
        todo = deque(deque(group) for _, group in files)
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # those of all are below it
        if any({"jobs", "faults"} & {mark.name for mark in item.iter_markers()} for item in session.items):
            fork_server.start()
        try:
            for _ in range(min(self._count, len(todo))):
                self._fork(session)
            while self._children:
                self._hear(session, todo)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        except (session.Failed, session.Interrupted):
            for child in self._children:
                os.kill(child.pid, signal.SIGINT)  # their tests end now, and the servers of their fixtures
            raise
        finally:
            for child in self._children:
                child.close()
        return True

    def _fork(self, session: pytest.Session) -> None:
        number = next(self._numbers)
        own, other = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # NumPy's threads wait for work, and are started anew in a forked process.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            own.close()
            for child in self._children:
                child.connection.close()  # else no other process would see that the first one has ended
                os.close(child.end)
            _run(session, other, number)
        other.close()
        self._children.append(Child(number, pid, own))

    def _hear(self, session: pytest.Session, todo: deque[deque[int]]) -> None:
        """What came from all processes; those that have ended are replaced while there is something to do."""
        by_source = {source: child for child in self._children for source in (child.connection, child.end)}
        heard = {by_source[source] for source in wait(list(by_source), self._stuck_seconds)}
        for child in self._children:
            if child.items and child not in heard and time.monotonic() - child.heard_at > self._stuck_seconds:
                os.kill(child.pid, signal.SIGKILL)
        for child in heard:
            child.heard_at = time.monotonic()
            try:
                if not child.connection.poll():
                    raise EOFError  # the process has ended; one that it started has its end of the connection
                kind, said = child.connection.recv()
            except (EOFError, ConnectionError):
                self._children.remove(child)
                _report_end(session, child, child.close())
                if child.items:
                    todo.appendleft(child.items)
                    self._fork(session)
                continue
            if kind == "free":
                child.items = todo.popleft() if todo else deque()
                child.connection.send(list(child.items))
            elif kind == "warning":
                session.config.hook.pytest_warning_recorded.call_historic(kwargs=_warning(said))
            else:
                child.items.popleft()
                _report(session, said)


def tensorflow_has_begun() -> bool:
    """Whether this process has started the threads of TensorFlow, which the first tensor does."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = getattr(module, "_context", None)
    return context is not None and bool(context._initialized)


def _warning(said: dict[str, Any]) -> dict[str, Any]:
    text, file, line = said.pop("text"), said.pop("file"), said.pop("line")
    return {**said, "warning_message": warnings.WarningMessage(UserWarning(text), UserWarning, file, line)}


def _report(session: pytest.Session, reports: Sequence[dict[str, Any]]) -> None:
    """Tell the plugins of this process of a test that has ended in another one."""
    hook = session.config.hook
    for number, data in enumerate(reports):
        report = hook.pytest_report_from_serializable(config=session.config, data=data)
        if number == 0:
            hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


def _report_end(session: pytest.Session, child: Child, code: int) -> None:
    """A process that ends in a test fails it."""
    if not child.items:
        if code:
            raise session.Interrupted(f"process {child.number} ended with {code} between tests")
        return
    item = session.items[child.items.popleft()]
    said = f"the process of this test ended with {code}"
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
    _report(session, [session.config.hook.pytest_report_to_serializable(config=session.config, report=report)])


# --------------------------------------------------------------------------------------------------
# In a forked process.


class Reporter:
    """Sends what is told of a test to the first process, once for each test."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection
        self._reports: list[dict[str, Any]] = []
        self._has_begun = False
        config.pluginmanager.register(self)  # at once it hears of all warnings so far, which the first process knows
        self._has_begun = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep it until the test has ended."""
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Send its text: the class of a warning may be one that the first process does not know."""
        if not self._has_begun:
            return
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        said = {"text": text, "file": warning_message.filename, "line": warning_message.lineno}
        self._connection.send(("warning", {**said, "when": when, "nodeid": nodeid, "location": location}))

    def send(self) -> None:
        """The reports of the test that has ended."""
        self._connection.send(("test", self._reports))
        self._reports = []


def _run(session: pytest.Session, connection: Connection, number: int) -> NoReturn:
    code = 1
    try:
        _be_other_process(session.config, number)
        try:
            _run_tests(session, connection)
        finally:
            session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()
        code = 0
    except (EOFError, ConnectionError, KeyboardInterrupt):
        pass  # the first process has ended the run
    except BaseException:
        session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_tests(session: pytest.Session, connection: Connection) -> None:
    reporter = Reporter(session.config, connection)
    for item, following in _items(session, connection):
        # The session instead of a next test: what has its scope stays, and what a file has goes.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following or session)
        reporter.send()
        if session.shouldfail or session.shouldstop:
            break


def _items(session: pytest.Session, connection: Connection) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """The tests of one file after the other, each with the next one of its file."""
    while True:
        connection.send(("free", None))
        items = [session.items[index] for index in connection.recv()]
        if not items:
            return
        yield from itertools.zip_longest(items, items[1:])


def _be_other_process(config: pytest.Config, number: int) -> None:
    """Share no file, no folder, no hook of the end and no random number with the other processes."""
    atexit._clear()
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    config.pluginmanager.unregister(config.pluginmanager.getplugin("terminalreporter"))
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.getbasetemp() / f"process{number}"
    folders._basetemp.mkdir(0o700)
    random.seed()
    import numpy as np

    np.random.seed()
