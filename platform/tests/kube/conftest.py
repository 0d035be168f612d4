from __future__ import annotations

from collections.abc import Iterator

import pytest
from kube.kube_stand import KubeStand


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what is rendered now into tests/kube/golden/*.yaml"
    )


@pytest.fixture
def stand() -> Iterator[KubeStand]:
    """A cluster at a scripted API server."""
    stand = KubeStand()
    yield stand
    stand.close()
