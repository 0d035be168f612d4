"""One pod of a job: who it is, what it runs, what it asks for, where it may run.

The same for every role, except where the role is looked at: what only masters know, what only parameter servers offer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, Role
from edl.cluster.kubernetes import names, security_context, volume_mounts
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.cluster.kubernetes.strategic_merge import apply_strategic_merge
from edl.core import worker_priority
from edl.jobfile.document_tree import JsonValue
from edl.jobfile.job_spec import JobSpec, MasterSpec, ParameterServerSpec, WorkerSpec
from edl.jobfile.path_resolution import pod_storage_path
from edl.jobfile.pod_spec import ResourceSpec, SecretKeyRef
from edl.jobfile.quantities import format_cores, format_size

GPU_RESOURCE = "nvidia.com/gpu"
SAFE_TO_EVICT_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict"
POD_GRACE_SECONDS = 30
DISK_RESOURCE, DISK_REQUEST_BYTES = "ephemeral-storage", 256 << 20
"""Kubernetes' name for a node's own disk, and the bytes of it that a pod asks for, unless its limit is lower."""
_UNHEALTHY_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_LOST_SECONDS: Mapping[Role, int | None] = {Role.MASTER: 30, Role.PS: 120, Role.WORKER: 10}
"""The master deletes a PS of which nobody hears (``edl.core.unreachable_ps``), and one that answers is to be kept."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
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


def render_pod_template(spec: JobSpec, place: PodIdentity, wish: PodOptions = DEFAULT_OPTIONS) -> Manifest:
    """Metadata and spec of a pod, as a Job's template has them."""
    merged = apply_strategic_merge(
        {"metadata": _pod_metadata(spec, place), "spec": _pod_spec(spec, place, wish)}, spec.pod.overrides
    )
    labels = merged["metadata"].get("labels", {}) | _identity_labels(spec, place, wish)
    annotations = merged["metadata"].get("annotations", {})
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": merged["spec"]}


def role_section(spec: JobSpec, role: Role) -> MasterSpec | ParameterServerSpec | WorkerSpec:
    """The part of the spec that is about one role."""
    sections: dict[Role, MasterSpec | ParameterServerSpec | WorkerSpec] = {
        Role.MASTER: spec.master,
        Role.PS: spec.ps,
        Role.WORKER: spec.workers,
    }
    return sections[role]


def _identity_labels(spec: JobSpec, place: PodIdentity, wish: PodOptions) -> dict[str, str]:
    """Labels by which EDL finds the pod; nothing overrides them."""
    index = None if place.role is Role.MASTER else place.index
    elevated = {names.ELEVATED_LABEL: "true"} if wish.elevated else {}
    return names.object_labels(spec.name, place.role, index) | elevated


def _pod_metadata(spec: JobSpec, place: PodIdentity) -> Manifest:
    annotations = {**spec.pod.annotations, SAFE_TO_EVICT_ANNOTATION: "true" if place.role is Role.WORKER else "false"}
    if place.run is not None:
        annotations[names.RUN_ANNOTATION] = place.run
    return {"labels": dict(spec.pod.labels), "annotations": annotations}


def _pod_spec(spec: JobSpec, place: PodIdentity, wish: PodOptions) -> Manifest:
    master = place.role is Role.MASTER
    section = role_section(spec, place.role)
    found: Manifest = {
        "restartPolicy": "OnFailure" if master else "Never",
        "terminationGracePeriodSeconds": POD_GRACE_SECONDS,
        "priorityClassName": worker_priority.parse_priority(section.priority).priority_class(elevated=wish.elevated),
        "serviceAccountName": spec.security.master_account if master else spec.security.pod_account,
        "automountServiceAccountToken": master,
        "enableServiceLinks": False,
        "securityContext": security_context.pod_security_context(spec.security.run_as),
        "containers": [_render_container(spec, place, section.resources, wish)],
        "volumes": volume_mounts.pod_volumes(spec, place.token_secret),
        "tolerations": pod_tolerations(spec.pod.tolerations, _NODE_LOST_SECONDS[place.role]),
    }
    return found | _optional_fields(spec)


def _optional_fields(spec: JobSpec) -> Manifest:
    """What only some specs ask for."""
    asked = {
        "nodeSelector": dict(spec.pod.node_selector),
        "affinity": dict(spec.pod.affinity),
        "imagePullSecrets": [{"name": name} for name in spec.pod.image_pull_secrets],
    }
    return {name: value for name, value in asked.items() if value}


def _render_container(spec: JobSpec, place: PodIdentity, resources: ResourceSpec, wish: PodOptions) -> Manifest:
    return {
        "name": names.ROLE_CONTAINER,
        "image": spec.image,
        "command": ["edl-role"],
        "args": [place.role.value, f"{names.SPEC_DIR}/{names.SPEC_KEY}"],
        "env": container_environment(spec, place),
        "ports": [{"name": name, "containerPort": port} for name, port in _container_ports(place.role)],
        "resources": resource_requirements(resources, wish.memory_factor),
        "securityContext": security_context.container_security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": volume_mounts.container_mounts(spec),
    }


def _container_ports(role: Role) -> list[tuple[str, int]]:
    control, bulk = ("control", names.CONTROL_PORT), ("bulk", names.BULK_PORT)
    return {Role.MASTER: [control], Role.PS: [control, bulk], Role.WORKER: []}[role]


def resource_requirements(resources: ResourceSpec, memory_factor: float) -> Manifest:
    """Requests and limits: memory is promised and bounded; CPU is promised only, what is idle may be used.

    Of its node's disk a pod is promised little and may use more, as few do: a limit alone would be its request too.
    """
    memory = {"memory": format_size(math.ceil(resources.memory * memory_factor))}
    devices = {GPU_RESOURCE: str(resources.gpu)} if resources.gpu else {}
    promised, bounded = _disk_amounts(resources.ephemeral_storage)
    return {
        "requests": {"cpu": format_cores(resources.cpu), **memory, **promised, **devices},
        "limits": {**memory, **bounded, **devices},
    }


def _disk_amounts(most: int | None) -> tuple[Manifest, Manifest]:
    """Request and limit of the node's own disk; empty where it is not bounded."""
    if most is None:
        return {}, {}
    return {DISK_RESOURCE: format_size(min(most, DISK_REQUEST_BYTES))}, {DISK_RESOURCE: format_size(most)}


def pod_tolerations(own: tuple[Mapping[str, JsonValue], ...], seconds: int | None) -> list[dict[str, Any]]:
    """The spec's tolerations, and how long a pod stays on a node that is lost, where the spec does not say it.

    Clusters add 300 s themselves to pods without such tolerations. None: until somebody deletes it.
    """
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    said = [one.get("key") for one in own if one.get("effect") in (None, "", "NoExecute")]
    waits = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", **limit}
        for key in _UNHEALTHY_NODE_TAINTS
        if key not in said
    ]
    return [*(dict(one) for one in own), *waits]


def container_environment(spec: JobSpec, place: PodIdentity) -> list[Manifest]:
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
        **_location_variables(spec, place),
    }
    fields = _FIELD_REFS | (_MASTER_FIELD_REFS if place.role is Role.MASTER else {})
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, **_env_value(value)} for name, value in spec.pod.env.items()),
    ]


def _env_value(value: str | SecretKeyRef) -> Manifest:
    if isinstance(value, SecretKeyRef):
        return {"valueFrom": {"secretKeyRef": {"name": value.secret, "key": value.key}}}
    return {"value": value}


_FIELD_REFS = {
    "EDL_UID": "metadata.uid",
    "EDL_NAMESPACE": "metadata.namespace",
    "EDL_POD": "metadata.name",
    "EDL_NODE": "spec.nodeName",
    "EDL_HOST": "status.podIP",
}
_MASTER_FIELD_REFS = {
    "EDL_JOB_UID": f"metadata.labels['{names.CONTROLLER_UID_LABEL}']",
    "EDL_RUN": f"metadata.annotations['{names.RUN_ANNOTATION}']",
}


def _location_variables(spec: JobSpec, place: PodIdentity) -> dict[str, str]:
    if place.role is Role.MASTER:
        return {"EDL_STORAGE": pod_storage_path(spec), "EDL_TOKEN_SECRET": place.token_secret}
    assert place.namespace is not None
    assert place.run_dir is not None
    address = names.master_address(spec.name, place.namespace)
    return {"EDL_RUN_DIR": place.run_dir, "EDL_MASTER_ADDRESS": address}
