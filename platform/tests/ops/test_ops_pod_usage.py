"""What pods use, beside what they asked for."""

from __future__ import annotations

from typing import Any

import pytest
from support.in_memory_cluster import InMemoryCluster
from support.job_objects import put_job, put_pod

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.api_client import ResourceList
from edl.cluster.kubernetes.api_errors import error_from_response
from edl.cluster.kubernetes.resource_kinds import POD_METRICS, Manifest, ResourceKind
from edl.ops.pod_usage import NoMetricsError, combine_usage, list_pod_usage
from edl.ops.resource_quantities import format_amounts

MEASURED = {
    "metadata": {"name": "edl-mnist-worker-1"},
    "containers": [{"usage": {"cpu": "1500m", "memory": "512Mi"}}, {"usage": {"cpu": "1n"}}],
}


def test_pods_that_run_or_wait_with_what_was_measured() -> None:
    cluster = InMemoryCluster()
    pods = [
        put_pod(cluster, Role.WORKER, 1),
        put_pod(cluster, Role.WORKER, 2, {"phase": "Pending"}),
        put_pod(cluster, Role.WORKER, 3, {"phase": "Failed"}),
    ]
    first, second = combine_usage(pods, [MEASURED])
    assert (first.pod, first.node, format_amounts(first.requested_resources)) == ("worker-1", "n1", "1 CPU, 1 GiB")
    assert first.used_resources is not None
    assert format_amounts(first.used_resources) == "1.5 CPU, 512 MiB"
    assert (second.used_resources, second.phase) == (None, "Pending")


@pytest.mark.parametrize("code", [404, 503])
def test_a_cluster_that_does_not_measure_says_so(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, listing = InMemoryCluster(), InMemoryCluster.list

    def unmeasured(self: InMemoryCluster, kind: ResourceKind, **options: Any) -> ResourceList:
        if kind is POD_METRICS:
            raise error_from_response(code, b"{}", where="")
        return listing(self, kind, **options)

    put_job(cluster)
    monkeypatch.setattr(InMemoryCluster, "list", unmeasured)
    with pytest.raises(NoMetricsError, match="no metrics API") as missing:
        list_pod_usage(cluster, "mnist")
    assert missing.value.exit_code == 2


def test_nothing_is_measured_yet() -> None:
    pods: list[Manifest] = [put_pod(InMemoryCluster(), Role.MASTER)]
    assert [use.used_resources for use in combine_usage(pods, [])] == [None]
