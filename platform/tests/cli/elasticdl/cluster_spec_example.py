"""A cluster spec as users of ElasticDL write them: objects of the Kubernetes client in, the same ones out."""

from __future__ import annotations

from typing import Any

from kubernetes import client


class ExampleCluster:
    """Nodes with a taint, and workers on one kind of node."""

    def with_pod(self, pod: Any) -> Any:
        pod.metadata.labels["team"] = "a"
        pod.spec.tolerations = [
            *(pod.spec.tolerations or []),
            client.V1Toleration(key="pool", operator="Equal", value="training", effect="NoSchedule"),
        ]
        if pod.metadata.labels["elasticdl-replica-type"] == "worker":
            pod.spec.node_selector = {"kind": "fast"}
            pod.spec.containers[0].env.append(client.V1EnvVar(name="NCCL_DEBUG", value="INFO"))
        return pod

    def with_service(self, service: Any) -> Any:
        service.metadata.annotations = {"example.com/internal": "true"}
        return service


cluster = ExampleCluster()
