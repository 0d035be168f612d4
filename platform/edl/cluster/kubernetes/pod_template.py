"""One pod of a job: who it is, what it runs, what it asks for, where it may run.

The same for every role, except where the role is looked at: what only masters know, what only parameter servers offer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl.api.cluster_port import PLAIN, Role, Wish
from edl.cluster.kubernetes import names, security_context, volume_mounts
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.cluster.kubernetes.strategic_merge import merge
from edl.core import worker_priority
from edl.jobfile.document_tree import Json
from edl.jobfile.job_spec import JobSpec, Master, ParameterServers, Workers
from edl.jobfile.path_resolution import pod_storage
from edl.jobfile.pod_spec import Resources, SecretKey
from edl.jobfile.quantities import cores_text, size_text

GPU = "nvidia.com/gpu"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
GRACE_SECONDS = 30
DISK, DISK_REQUEST = "ephemeral-storage", 256 << 20
"""Kubernetes' name for a node's own disk, and the bytes of it that a pod asks for, unless its limit is lower."""
_UNHEALTHY_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_LOST_SECONDS: Mapping[Role, int | None] = {Role.MASTER: 30, Role.PS: 120, Role.WORKER: 10}
"""The master deletes a PS of which nobody hears (``edl.core.unreachable_ps``), and one that answers is to be kept."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which pod of a job this is.

    Attributes:
        namespace: where it will live; None: wherever its manifest is applied.
        token_secret: name of the Secret that holds the job's token.
        run_dir: directory of the run on the volumes; None for a master, which finds its own.
        run: the run that a master goes on with; None starts a new one.
    """

    role: Role
    index: int
    token_secret: str
    namespace: str | None = None
    run_dir: str | None = None
    run: str | None = None


def template(spec: JobSpec, place: Place, wish: Wish = PLAIN) -> Manifest:
    """Metadata and spec of a pod, as a Job's template has them."""
    merged = merge({"metadata": _metadata(spec, place), "spec": _spec(spec, place, wish)}, spec.pod.overrides)
    labels = merged["metadata"].get("labels", {}) | _identity(spec, place, wish)
    annotations = merged["metadata"].get("annotations", {})
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": merged["spec"]}


def role_section(spec: JobSpec, role: Role) -> Master | ParameterServers | Workers:
    """The part of the spec that is about one role."""
    sections: dict[Role, Master | ParameterServers | Workers] = {
        Role.MASTER: spec.master,
        Role.PS: spec.ps,
        Role.WORKER: spec.workers,
    }
    return sections[role]


def _identity(spec: JobSpec, place: Place, wish: Wish) -> dict[str, str]:
    """Labels by which EDL finds the pod; nothing overrides them."""
    index = None if place.role is Role.MASTER else place.index
    elevated = {names.ELEVATED: "true"} if wish.elevated else {}
    return names.labels(spec.name, place.role, index) | elevated


def _metadata(spec: JobSpec, place: Place) -> Manifest:
    annotations = {**spec.pod.annotations, SAFE_TO_EVICT: "true" if place.role is Role.WORKER else "false"}
    if place.run is not None:
        annotations[names.RUN] = place.run
    return {"labels": dict(spec.pod.labels), "annotations": annotations}


def _spec(spec: JobSpec, place: Place, wish: Wish) -> Manifest:
    master = place.role is Role.MASTER
    section = role_section(spec, place.role)
    found: Manifest = {
        "restartPolicy": "OnFailure" if master else "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "priorityClassName": worker_priority.parse(section.priority).class_of(elevated=wish.elevated),
        "serviceAccountName": spec.security.master_account if master else spec.security.pod_account,
        "automountServiceAccountToken": master,
        "enableServiceLinks": False,
        "securityContext": security_context.of_pod(spec.security.run_as),
        "containers": [_container(spec, place, section.resources, wish)],
        "volumes": volume_mounts.volumes(spec, place.token_secret),
        "tolerations": tolerations(spec.pod.tolerations, _NODE_LOST_SECONDS[place.role]),
    }
    return found | _optional(spec)


def _optional(spec: JobSpec) -> Manifest:
    """What only some specs ask for."""
    asked = {
        "nodeSelector": dict(spec.pod.node_selector),
        "affinity": dict(spec.pod.affinity),
        "imagePullSecrets": [{"name": name} for name in spec.pod.image_pull_secrets],
    }
    return {name: value for name, value in asked.items() if value}


def _container(spec: JobSpec, place: Place, resources: Resources, wish: Wish) -> Manifest:
    return {
        "name": names.CONTAINER,
        "image": spec.image,
        "command": ["edl-role"],
        "args": [place.role.value, f"{names.SPEC_DIR}/{names.SPEC_KEY}"],
        "env": environment(spec, place),
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(place.role)],
        "resources": requests(resources, wish.memory_factor),
        "securityContext": security_context.of_container(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": volume_mounts.volume_mounts(spec),
    }


def _ports(role: Role) -> list[tuple[str, int]]:
    control, bulk = ("control", names.CONTROL_PORT), ("bulk", names.BULK_PORT)
    return {Role.MASTER: [control], Role.PS: [control, bulk], Role.WORKER: []}[role]


def requests(resources: Resources, memory_factor: float) -> Manifest:
    """Requests and limits: memory is promised and bounded; CPU is promised only, what is idle may be used.

    Of its node's disk a pod is promised little and may use more, as few do: a limit alone would be its request too.
    """
    memory = {"memory": size_text(math.ceil(resources.memory * memory_factor))}
    devices = {GPU: str(resources.gpu)} if resources.gpu else {}
    promised, bounded = _disk(resources.ephemeral_storage)
    return {
        "requests": {"cpu": cores_text(resources.cpu), **memory, **promised, **devices},
        "limits": {**memory, **bounded, **devices},
    }


def _disk(most: int | None) -> tuple[Manifest, Manifest]:
    """Request and limit of the node's own disk; empty where it is not bounded."""
    if most is None:
        return {}, {}
    return {DISK: size_text(min(most, DISK_REQUEST))}, {DISK: size_text(most)}


def tolerations(own: tuple[Mapping[str, Json], ...], seconds: int | None) -> list[dict[str, Any]]:
    """The spec's tolerations, and how long a pod stays on a node that is lost, where the spec does not say it.

    Clusters add 300 s themselves to pods without such tolerations. None: until somebody deletes it.
    """
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    said = [one.get("key") for one in own if one.get("effect") in (None, "", "NoExecute")]
    waits = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", **limit} for key in _UNHEALTHY_NODE if key not in said
    ]
    return [*(dict(one) for one in own), *waits]


def environment(spec: JobSpec, place: Place) -> list[Manifest]:
    """The variables of a pod's container: who it is, where it finds what it needs, then the spec's own."""
    values = {
        "EDL_ROLE": place.role.value,
        "EDL_INDEX": str(place.index),
        "EDL_TOKEN_FILE": f"{names.TOKEN_DIR}/{names.TOKEN_KEY}",
        "EDL_RUNTIME_DIR": names.RUNTIME_DIR,
        "HOME": names.HOME_DIR,
        "XDG_CACHE_HOME": f"{names.HOME_DIR}/.cache",
        "KERAS_HOME": f"{names.HOME_DIR}/.keras",
        "PYTHONUNBUFFERED": "1",
        **_whereabouts(spec, place),
    }
    fields = _FIELDS | (_MASTER_FIELDS if place.role is Role.MASTER else {})
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, **_value(value)} for name, value in spec.pod.env.items()),
    ]


def _value(value: str | SecretKey) -> Manifest:
    if isinstance(value, SecretKey):
        return {"valueFrom": {"secretKeyRef": {"name": value.secret, "key": value.key}}}
    return {"value": value}


_FIELDS = {
    "EDL_UID": "metadata.uid",
    "EDL_NAMESPACE": "metadata.namespace",
    "EDL_POD": "metadata.name",
    "EDL_NODE": "spec.nodeName",
    "EDL_HOST": "status.podIP",
}
_MASTER_FIELDS = {
    "EDL_JOB_UID": f"metadata.labels['{names.CONTROLLER_UID}']",
    "EDL_RUN": f"metadata.annotations['{names.RUN}']",
}


def _whereabouts(spec: JobSpec, place: Place) -> dict[str, str]:
    if place.role is Role.MASTER:
        return {"EDL_STORAGE": pod_storage(spec), "EDL_TOKEN_SECRET": place.token_secret}
    assert place.namespace is not None
    assert place.run_dir is not None
    address = names.master_address(spec.name, place.namespace)
    return {"EDL_RUN_DIR": place.run_dir, "EDL_MASTER_ADDRESS": address}
