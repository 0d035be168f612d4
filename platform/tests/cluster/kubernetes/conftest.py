from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.kubernetes.kube_cluster_harness import KubeStand


@pytest.fixture
def stand() -> Iterator[KubeStand]:
    """A cluster at a scripted API server."""
    stand = KubeStand()
    yield stand
    stand.close()
