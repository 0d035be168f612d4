from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.kubernetes.kube_cluster_harness import KubeClusterHarness


@pytest.fixture
def harness() -> Iterator[KubeClusterHarness]:
    """A cluster at a scripted API server."""
    harness = KubeClusterHarness()
    yield harness
    harness.close()
