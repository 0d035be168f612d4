"""What every scenario starts from: the cluster, its images, the data, a namespace of its own, evidence of failures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from e2e import baseline, evidence, faults, images, install, namespaces, outcome, site
from e2e.baseline import UndisturbedBaseline
from e2e.images import JobImages
from e2e.jobs import RECORDS
from e2e.machine_speed import allowed_seconds
from e2e.namespaces import Namespace
from e2e.programs import EDL, run_program
from e2e.site import TargetSite

THIRDS = 3
ARTIFACTS = Path(__file__).parent / "artifacts"
_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def target_site() -> TargetSite:
    """The cluster of ``KUBECONFIG``."""
    return site.detect_site()


@pytest.fixture(scope="session")
def job_images() -> JobImages:
    """The images that were delivered to it."""
    return images.delivered_images()


@pytest.fixture(scope="session", autouse=True)
def installed_cluster() -> None:
    """The cluster's part of what admins install. It stays: `e2e/run` and `python -m e2e.install --remove` remove it."""
    install.ensure_installed()


@pytest.fixture(scope="module")
def cleared_cluster(installed_cluster: None) -> Iterator[None]:
    """A cluster without anything of EDL's, for tests that install it themselves; afterwards it is as before."""
    with install.nothing_installed():
        yield


@pytest.fixture(scope="session")
def helm_only() -> None:
    """Of Helm alone: Kustomize has no releases, and checks no values."""
    if install.install_method() is not install.InstallMethod.HELM:
        pytest.skip("releases and values are Helm's")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in MNIST's format, on this machine."""
    folder = tmp_path_factory.mktemp("digits") / "mnist"
    run_program(
        EDL, "data", "mnist", folder, "--source", "digits", "--records", str(RECORDS), "--compression", "snappy"
    )
    return folder


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Path:
    """Of this test's files; kept when it fails."""
    path = ARTIFACTS / request.node.name.removeprefix("test_").replace("[", "-").rstrip("]")
    shutil.rmtree(path, ignore_errors=True)
    return path


@pytest.fixture
def has_failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Whether this test has failed: what a fixture asks at its end."""
    return lambda: request.node.stash.get(_FAILED, False)


MakeNamespace = Callable[..., Namespace]


@pytest.fixture
def make_namespace(
    target_site: TargetSite, job_images: JobImages, data: Path, folder: Path, has_failed: Callable[[], bool]
) -> Iterator[MakeNamespace]:
    """Makes namespaces, with the data on their claims unless nothing trains there."""
    opened: list[Namespace] = []
    with ExitStack() as stack:

        def open_named(name: str = "", *, volume: bool = True, training: bool = True) -> Namespace:
            own = folder if not name else folder.with_name(f"{folder.name}-{name}")
            namespace = stack.enter_context(namespaces.new_namespace(target_site, job_images, own, volume=volume))
            opened.append(namespace)
            if volume and training:
                namespace.copy_to_claim(data, "/mnist")
            return namespace

        yield open_named
        if has_failed():
            for namespace in opened:
                evidence.collect_evidence(namespace)


@pytest.fixture
def namespace(make_namespace: MakeNamespace) -> Namespace:
    """A namespace with the data on its claim."""
    return make_namespace()


@pytest.fixture(scope="session")
def undisturbed(target_site: TargetSite, job_images: JobImages, data: Path) -> Callable[[int], UndisturbedBaseline]:
    """Where jobs end that nobody disturbs, by number of workers."""
    return lambda workers: baseline.baseline(target_site, job_images, data, ARTIFACTS, workers)


@pytest.fixture(autouse=True)
def require_breakable(request: pytest.FixtureRequest) -> None:
    """Tests that break nodes or the API server need a cluster on which that is possible."""
    if request.node.get_closest_marker("breaks") and not request.getfixturevalue("target_site").can_break:
        pytest.skip("nodes and API server can be broken on kind and on the local cluster only")


@pytest.fixture(autouse=True)
def require_whole_cluster(request: pytest.FixtureRequest) -> None:
    """A test that has the cluster for itself begins with all nodes, whatever the one before it did to them."""
    if request.node.get_closest_marker("alone"):
        faults.all_ready()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--third", type=int, choices=range(THIRDS), help="of the tests marked in_turn, run only those of this number"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of ``--third``, order them, and give them more time on a slow machine."""
    third = config.getoption("third")
    if third is not None:
        config.hook.pytest_deselected(items=[item for item in items if turn_of(item) not in (None, third)])
        items[:] = [item for item in items if turn_of(item) in (None, third)]
    sort_items(items)
    for item in items:
        timeout = item.get_closest_marker("timeout")
        seconds = allowed_seconds(timeout.args[0] if timeout else float(config.getini("timeout")))
        item.add_marker(pytest.mark.timeout(seconds), append=False)


def turn_of(item: pytest.Item) -> int | None:
    """Which of three runs of ``.ci/run`` has this test; None: each has it.

    Raises:
        pytest.UsageError: the mark names no such run, so that the test would never be run.
    """
    mark = item.get_closest_marker("in_turn")
    if mark is None:
        return None
    if mark.kwargs or mark.args not in {(turn,) for turn in range(THIRDS)}:
        raise pytest.UsageError(f"{item.nodeid}: in_turn wants one number below {THIRDS}")
    return int(mark.args[0])


def sort_items(items: list[pytest.Item]) -> None:
    """What takes long or is waited for comes first, so that no process is left with it alone, or idle.

    That is baselines, then groups, which one process runs one after the other. What is compared with a baseline comes
    when there is one, and what begins with a cluster without EDL last.
    """

    def test_order(item: pytest.Item) -> int:
        if "cleared_cluster" in item.fixturenames:
            return 4
        if "undisturbed" in item.fixturenames:
            return 0 if item.path.stem == "test_undisturbed" else 3
        return 1 if item.get_closest_marker("xdist_group") else 2

    items.sort(key=test_order)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note how many scenarios passed, when `e2e/run --all` asks for it."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if "E2E_OUTCOME" in os.environ and reporter and not hasattr(session.config, "workerinput"):
        outcome.add_counts(
            os.environ["E2E_OUTCOME"], {name: len(reporter.stats.get(name, ())) for name in outcome.COUNTED}
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember a failure for the fixtures that keep evidence."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report
