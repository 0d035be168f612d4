"""Current usage of a job's pods beside their requests, from the metrics API if the cluster has one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from edl.api.cluster_port import PodPhase
from edl.api.errors import BadInputError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import NotFoundError, ServerBusyError
from edl.cluster.kubernetes.pod_status import pod_phase
from edl.cluster.kubernetes.resource_kinds import POD_METRICS, Manifest
from edl.ops.cluster_capacity import pod_requests
from edl.ops.job_view import list_job_pods, pod_label
from edl.ops.resource_quantities import ResourceAmounts, parse_resources, sum_resources


class NoMetricsError(BadInputError):
    """The cluster has no metrics API."""


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One pod.

    Attributes:
        pod: ``worker-3``.
        node: name of its node; empty until the pod is scheduled.
        phase: phase of the pod.
        used_resources: CPU in cores and memory in bytes; None if there is no measurement yet.
        requested_resources: requests of the pod.
    """

    pod: str
    node: str
    phase: str
    used_resources: ResourceAmounts | None
    requested_resources: ResourceAmounts


def list_pod_usage(api: KubeClient, job: str) -> list[PodUsage]:
    """The usage of each pod of a job. The cluster measures it about every 15 s.

    Raises:
        NoMetricsError: the cluster has no metrics API.
    """
    try:
        measured = api.list(POD_METRICS, labels=names.label_selector(job)).items
    except (NotFoundError, ServerBusyError) as error:  # without metrics-server: 404, or 503 while it starts
        raise NoMetricsError(
            "This cluster does not measure the CPU and memory of pods: it has no metrics API",
            hint="Its admin can install metrics-server; "
            f"`edl status {job}` shows samples/s, and `kubectl describe node` the requests of pods.",
        ) from error
    return combine_usage(list_job_pods(api, job), measured)


def combine_usage(pods: Iterable[Manifest], measured: Iterable[Manifest]) -> list[PodUsage]:
    """The usage of the pods that have not ended."""
    used = {each["metadata"]["name"]: _measured_usage(each) for each in measured}
    return [
        _pod_usage(pod, used.get(pod["metadata"]["name"]))
        for pod in pods
        if pod_phase(pod) in (PodPhase.PENDING, PodPhase.RUNNING)
    ]


def _pod_usage(pod: Manifest, used: Mapping[str, Fraction] | None) -> PodUsage:
    asked = {name: amount for name, amount in pod_requests(pod).items() if name != "pods"}
    return PodUsage(pod_label(pod), str(pod["spec"].get("nodeName") or ""), pod_phase(pod), used, asked)


def _measured_usage(metrics: Manifest) -> dict[str, Fraction]:
    return sum_resources(parse_resources(container.get("usage")) for container in metrics.get("containers") or ())
