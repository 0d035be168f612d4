from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.kubernetes.kube_cluster_harness import KubeClusterHarness


@pytest.fixture
def stand() -> Iterator[KubeClusterHarness]:
    """A cluster at a scripted API server."""
    stand = KubeClusterHarness()
    yield stand
    stand.close()
