"""What the pods of a job use now, beside what they asked for: the metrics API, where there is one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from edl.api.errors import BadInputError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import Api
from edl.cluster.kubernetes.api_errors import BusyError, NotFoundError
from edl.cluster.kubernetes.resource_kinds import POD_METRICS, Manifest
from edl.ops.cluster_capacity import requests_of
from edl.ops.job_view import label_of, pods_of
from edl.ops.resource_quantities import Resources, resources, total


class NoMetricsError(BadInputError):
    """The cluster has no metrics API."""


@dataclass(frozen=True, slots=True)
class Use:
    """One pod.

    Attributes:
        pod: ``worker-3``.
        node: where it runs; empty while it has no place.
        phase: of the pod.
        used: CPU in cores and memory in bytes; None while nothing is measured.
        asked: its requests.
    """

    pod: str
    node: str
    phase: str
    used: Resources | None
    asked: Resources


def uses(api: Api, job: str) -> list[Use]:
    """What each pod of a job uses; measured by the cluster every 15 s or so.

    Raises:
        NoMetricsError: the cluster does not measure.
    """
    try:
        measured = api.list(POD_METRICS, labels=names.selector(job)).items
    except (NotFoundError, BusyError) as error:  # without metrics-server: 404, or 503 while it starts
        raise NoMetricsError(
            "This cluster does not measure what pods use: it has no metrics API",
            hint="Its admin can install metrics-server; "
            f"`edl status {job}` shows samples/s, and `kubectl describe node` what is asked for.",
        ) from error
    return combine(pods_of(api, job), measured)


def combine(pods: Iterable[Manifest], measured: Iterable[Manifest]) -> list[Use]:
    """Pods that have not ended, with what was measured of them."""
    used = {each["metadata"]["name"]: _used(each) for each in measured}
    return [
        _use(pod, used.get(pod["metadata"]["name"]))
        for pod in pods
        if pod.get("status", {}).get("phase") in ("Pending", "Running")
    ]


def _use(pod: Manifest, used: Mapping[str, Fraction] | None) -> Use:
    asked = {name: amount for name, amount in requests_of(pod).items() if name != "pods"}
    return Use(label_of(pod), str(pod["spec"].get("nodeName") or ""), str(pod["status"]["phase"]), used, asked)


def _used(metrics: Manifest) -> dict[str, Fraction]:
    return total(resources(container.get("usage")) for container in metrics.get("containers") or ())
