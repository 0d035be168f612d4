from __future__ import annotations

import gc
import importlib
import importlib.util
import itertools
import os
import re
import signal
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pytest_rerunfailures import ClientStatusDB, StatusDB
from support.examples import examples
from support.logging_levels import restored_logging

from edl.keras.tensorflow_import import import_tensorflow

# A busy machine is no failure: how long things take is for benchmarks. Property tests that name no number try as many
# as Hypothesis' own default is, or an eighth (support/examples.py).
settings.register_profile(
    "patient", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

os.environ["EDL_TEST_FORKS"] = "0" if os.environ.get("EDL_TEST_THOROUGH") == "1" else "1"

HOMES = {"faults": ("faults",), "install": ("install",), "jobs": ("jobs",), "native": ("numerics", "collective")}
"""Folders of all tests with a mark: make looks for them there only, because collecting takes as long as a job."""
EXTENSIONS = ("edl.numerics._native", "edl.numerics._distinct", "edl.data._records", "edl.collective._ring")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-scenarios", action="store_true", help="write what the core does now into tests/scenarios/*.txt"
    )
    parser.addoption("--third", type=int, choices=(0, 1, 2), help="run this third of the tests: `make third`")
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what is rendered and said now into the golden files of tests/cluster, tests/ops and tests/jobfile",
    )


def pytest_configure() -> None:
    """Behind a shell's ``&`` Ctrl-C is ignored, and that is inherited. Jobs of tests must not: they are interrupted."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A test is begun without asking xdist's controller how often it has failed.

    pytest-rerunfailures asks so that a test can have a second try after its process has crashed, which xdist refuses
    for files of tests. It sends two messages a test on one connection: Nagle's algorithm holds back the second until
    the first is acknowledged, after 40 ms. A second try after a failure needs none of it.
    """
    if isinstance(connected := getattr(session.config, "failures_db", None), ClientStatusDB):
        connected.sock.close()
        session.config.failures_db = StatusDB()


def import_share(config: pytest.Config) -> None:
    """Each of xdist's processes begins with another part of the test modules.

    pytest rewrites the assertions of a module at its first import and keeps the result on disk. If all processes went
    through the modules in one order, each of them would rewrite all modules of a fresh checkout: it takes longer than
    to collect them.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    folder = Path(__file__).parent
    roots = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    modules = sorted({path.resolve() for root in roots for path in root.rglob("test_*.py")})
    if folder in map(Path.resolve, roots):
        import_tensorflow()  # without scikit-learn, which Keras would import
    names = [".".join(path.relative_to(folder).with_suffix("").parts) for path in modules if folder in path.parents]
    for name in names[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # pytest imports it again, and reports what that raises
            importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Garbage is never looked for among modules and tests, and more rarely elsewhere: a sixth of the processor time.

    TensorFlow, Keras and some thousand tests are a million objects, and a traced model is many new ones.
    """
    gc.disable()
    try:
        import_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A marked test in another folder would never run. Property tests are marked: they try more in `make third`."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker("examples")
    marks = marks_of(item)
    if "first_cases" in marks:
        mark_further_case(item)
    for mark in HOMES.keys() & marks:
        if not set(HOMES[mark]) & set(item.path.parts):
            raise pytest.UsageError(f"{item.nodeid} is marked {mark}: it belongs into platform/tests/{HOMES[mark][0]}")


def marks_of(item: pytest.Item) -> set[str]:
    """The names of all marks. To ask a test for one mark after the other took a tenth of the time to collect all."""
    return {mark.name for mark in item.iter_markers()}


CASES_SEEN: Counter[str] = Counter()


def mark_further_case(item: pytest.Item) -> None:
    """Of a test that is marked ``first_cases(n)``, what comes after n sets of parameters is a repetition."""
    if mark := item.get_closest_marker("first_cases"):
        function = item.nodeid.partition("[")[0]
        CASES_SEEN[function] += not item.get_closest_marker("repetition")
        if CASES_SEEN[function] > mark.args[0]:
            item.add_marker("repetition")


def third_of(item: pytest.Item) -> int:
    """Which of three runs a test is part of: as its mark ``in_third`` says, else all cases of a function in one."""
    if mark := item.get_closest_marker("in_third"):
        return int(mark.args[0])
    return zlib.crc32(item.nodeid.partition("[")[0].encode()) % 3


FOLDERS = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder. That of pytest is numbered after a look at those of all tests before, which takes a millisecond."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}-{next(FOLDERS)}", numbered=False)


LEFT_OUT = {"repetition", "thorough", "install"}
PROCESSES = {"jobs", "faults"}


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """The order in which one run has all files: those of jobs are spread over the others, which run as jobs wait.

    Long files begin, because one that began late would run alone at the end.
    """
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    weights: Counter[Path] = Counter()
    waiting: set[Path] = set()
    for item in items:
        marks = marks_of(item)
        files[item.path].append(item)
        weights[item.path] += weight(marks)
        if PROCESSES & marks:
            waiting.add(item.path)
    shares: list[tuple[float, list[pytest.Item]]] = []
    # Jobs are over before the others: one that ran alone at the end would leave a core idle.
    for group, end in ((waiting, 0.8), (files.keys() - waiting, 1.0)):
        total, before = sum(weights[path] for path in group) or 1, 0
        for path in sorted(group, key=lambda path: (-weights[path], path)):
            shares.append((end * before / total, files[path]))
            before += weights[path]
    return [item for _, file in sorted(shares, key=itemgetter(0)) for item in file]


def weight(marks: set[str]) -> int:
    """About how long a test takes beside others: to trace a model takes as long as some other tests."""
    if LEFT_OUT & marks:
        return 0
    return 5 if "tensorflow" in marks else 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--third N`` only that third is run; with ``--no-loadscope-reorder`` all kinds of files come in turn."""
    if not config.getoption("loadscopereorder", True):
        items[:] = in_turn(items)
    third = config.getoption("third")
    if third is not None:
        config.hook.pytest_deselected(items=[item for item in items if third_of(item) != third])
        items[:] = [item for item in items if third_of(item) == third]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """A job that a test runs in this process sets what the process prints: the next test reads the log again."""
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    with restored_logging([] if plugin is None else [plugin.caplog_handler, plugin.report_handler]):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of native code is skipped where any of that is not there; with EDL_NATIVE=1 it fails."""
    if not item.get_closest_marker("native"):
        return
    missing = [name for name in EXTENSIONS if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"{' and '.join(missing)} not built: `make native` does it, with a C++20 compiler"
        (pytest.fail if os.environ.get("EDL_NATIVE") == "1" else pytest.skip)(reason)
