"""One run in several forked processes: see support/forked_run.py."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
from support.forked_run import tensorflow_has_begun

pytest_plugins = ["pytester"]

CONFTEST = """
import os
import pytest
from support.forked_run import ForkedRun

def pytest_configure(config):
    config.pluginmanager.register(ForkedRun(2))

def log(text):
    with open(os.environ["LOG"], "a") as file:
        print(os.getpid(), text, file=file)

@pytest.fixture(scope="session")
def whole():
    log("session begins")
    yield
    log("session ends")

@pytest.fixture(scope="module")
def shared():
    log("file begins")
    yield
    log("file ends")
"""
TWO_FILES = """
import os
from conftest import log
import pytest

def test_meets_the_other_file():
    with open(os.environ["FIFO"], "{mode}"):
        pass

@pytest.mark.parametrize("number", range(3))
def test_number(number, whole, shared, tmp_path):
    (tmp_path / "file").touch()
    log(f"{name} {{number}} {{tmp_path}}")
"""
OUTCOMES = """
import os
import signal
import warnings
import pytest

tries = []

@pytest.fixture
def fails_at_its_end():
    yield
    raise ValueError("the end of a fixture")

def test_passes():
    print("printed by a test that passes")

def test_fails():
    print("printed by a test that fails")
    assert not "a value that pytest shows"

def test_is_skipped():
    pytest.skip("reason of a skip")

@pytest.mark.xfail(strict=True)
def test_is_expected_to_fail():
    assert False

def test_of_a_fixture(fails_at_its_end):
    pass

def test_passes_at_the_second_try():
    tries.append(1)
    assert len(tries) == 2

def test_warns():
    warnings.warn("text of a warning", RuntimeWarning)

def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_it():
    pass
"""

BROKEN_END = """
import pytest

@pytest.fixture(scope="session")
def broken():
    yield
    raise ValueError("a server stays")

def test(broken): ...
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("LOG", str(pytester.path / "log"))
    monkeypatch.setenv("FIFO", str(pytester.path / "fifo"))
    pytester.makeconftest(CONFTEST)
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "no:xdist", *options, timeout=100)


def test_files_are_run_side_by_side_with_their_fixtures(project: pytest.Pytester) -> None:
    os.mkfifo(project.path / "fifo")
    # Each opens the pipe at its end, and waits until the other has.
    project.makepyfile(test_one=TWO_FILES.format(name="one", mode="w"), test_two=TWO_FILES.format(name="two", mode="r"))
    run(project).assert_outcomes(passed=8)
    logs = defaultdict(list)
    for line in (project.path / "log").read_text().splitlines():
        pid, text = line.split(" ", 1)
        logs[pid].append(text)
    assert len(logs) == 2
    folders = []
    for name, lines in zip(("one", "two"), sorted(logs.values(), key=lambda lines: lines[2]), strict=True):
        assert lines[:2] == ["session begins", "file begins"]
        assert [line.rpartition(" ")[0] for line in lines[2:5]] == [f"{name} {number}" for number in range(3)]
        assert lines[5:] == ["file ends", "session ends"]
        folders += [line.rpartition(" ")[2] for line in lines[2:5]]
    assert len(set(folders)) == 6


def test_outcomes_are_those_of_one_process(project: pytest.Pytester) -> None:
    """A process that is killed fails its test; the next ones of the file are run in another process."""
    project.makepyfile(test_outcomes=OUTCOMES)
    result = run(project, "--reruns", "1", "-rR")
    # What fails is tried twice, and the first part of one passes twice. A process that is killed is a failure at once.
    result.assert_outcomes(passed=6, failed=2, skipped=1, xfailed=1, errors=1, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "*a value that pytest shows*",
            "printed by a test that fails",
            "*ValueError: the end of a fixture",
            "*RuntimeWarning: text of a warning",
            "*the process of this test ended with -9*",
            "RERUN test_outcomes.py::test_passes_at_the_second_try*",
        ]
    )
    result.stdout.no_fnmatch_line("*printed by a test that passes*")


def test_errors_of_the_collection_end_the_run(project: pytest.Pytester) -> None:
    project.makepyfile(test_one="import no_such_module", test_two="def test(): ...")
    result = run(project)
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_the_first_failure_ends_the_run_if_asked_for(project: pytest.Pytester) -> None:
    tests = "from conftest import log\ndef test_one(whole): assert False\ndef test_two(): log('next')"
    project.makepyfile(test_one=tests)
    result = run(project, "-x")
    result.assert_outcomes(failed=1)
    assert [line.partition(" ")[2] for line in (project.path / "log").read_text().splitlines()] == [
        "session begins",
        "session ends",
    ]


def test_an_error_at_the_end_of_a_session_is_one_of_the_run(project: pytest.Pytester) -> None:
    project.makepyfile(test_one=BROKEN_END)
    result = run(project)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stderr.fnmatch_lines("ValueError: a server stays")


BEGUN = """
import sys
import types

context = types.SimpleNamespace(_initialized=True)
sys.modules["tensorflow.python.eager.context"] = types.SimpleNamespace(_context=context)

def test(): ...
"""


def test_a_module_that_makes_a_tensor_is_refused(project: pytest.Pytester) -> None:
    """The threads of TensorFlow would be missing in the forked processes, which would wait for them."""
    project.makepyfile(test_one=BEGUN)
    result = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*test_one.py makes a tensor*")


@pytest.mark.tensorflow
def test_tensorflow_begins_with_a_tensor() -> None:
    import tensorflow as tf

    tf.constant(1)
    assert tensorflow_has_begun()


def test_a_process_that_is_stuck_fails_its_test(project: pytest.Pytester) -> None:
    project.makeconftest(CONFTEST.replace("ForkedRun(2)", "ForkedRun(2, stuck_seconds=5)"))
    project.makepyfile(test_one="import os\ndef test_stuck(): os.read(os.pipe()[0], 1)\ndef test_next(): ...")
    result = run(project)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("*the process of this test ended with -9*")
