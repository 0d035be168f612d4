"""Renders one pod of a job: identity, container, resources, volumes, scheduling.

All roles have the same template, except for what only masters know and what only parameter servers offer.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl.api.cluster_port import DEFAULT_OPTIONS, POD_GRACE_SECONDS, PodOptions, Role
from edl.api.fields import JsonValue
from edl.api.job_spec import JobSpec, MasterSpec, ParameterServerSpec, WorkerSpec
from edl.api.pod_spec import ResourceSpec, RunAsSpec, SecretKeyRef, VolumeSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.core import priority_rule
from edl.jobfile.path_resolution import UNSHARED_STORAGE_DIR, has_shared_storage, pod_storage_path
from edl.jobfile.quantities import format_cores, format_size
from edl.jobfile.strategy_choice import uses_all_reduce

# --------------------------------------------------------------------------------------------------
# Volumes of a pod: spec and token, its own writable folders, and the job's volumes.


SCRATCH_DIRS = {"home": names.HOME_DIR, "run": names.RUNTIME_DIR, "tmp": "/tmp"}  # noqa: S108 (a pod's own)
"""Writable folders of a pod, by the name of their volume. The root filesystem is read-only."""
RESERVED_MOUNTS = (*SCRATCH_DIRS.values(), names.SPEC_DIR, names.TOKEN_DIR)
"""Paths at which a volume of the spec must not be mounted."""


def pod_volumes(spec: JobSpec, token_secret: str) -> list[Manifest]:
    """The volumes of a pod. A claim that the spec mounts twice is one volume."""
    shared = {_volume_name(volume, spec): _volume_source(volume) for volume in shared_volumes(spec)}
    return [
        {"name": "spec", "configMap": {"name": names.spec_configmap(spec.name)}},
        # readable by the pod's group, which is fsGroup, and by nobody else
        {"name": "token", "secret": {"secretName": token_secret, "defaultMode": 0o440}},
        *({"name": name, "emptyDir": {}} for name in scratch_dirs(spec)),
        *({"name": name, **source} for name, source in shared.items()),
    ]


def container_mounts(spec: JobSpec) -> list[Manifest]:
    """The mounts of these volumes in the container."""
    return [
        {"name": "spec", "mountPath": names.SPEC_DIR, "readOnly": True},
        {"name": "token", "mountPath": names.TOKEN_DIR, "readOnly": True},
        *({"name": name, "mountPath": path} for name, path in scratch_dirs(spec).items()),
        *(_mount(volume, spec) for volume in shared_volumes(spec)),
    ]


def _mount(volume: VolumeSpec, spec: JobSpec) -> Manifest:
    mount = {"name": _volume_name(volume, spec), "mountPath": volume.mount}
    return mount if volume.sub_path is None else mount | {"subPath": volume.sub_path}


def scratch_dirs(spec: JobSpec) -> dict[str, str]:
    """Folders that belong to the pod and are lost with it, by the name of their volume."""
    return SCRATCH_DIRS | ({} if has_shared_storage(spec) else {"storage": UNSHARED_STORAGE_DIR})


def shared_volumes(spec: JobSpec) -> tuple[VolumeSpec, ...]:
    """The spec's volumes, and the claim of ``storage.claim`` if it is not one of them."""
    claim = spec.storage.claim
    if claim is None or any(volume.claim == claim for volume in spec.volumes):
        return spec.volumes
    return (*spec.volumes, VolumeSpec(mount=pod_storage_path(spec), claim=claim))


def _volume_name(volume: VolumeSpec, spec: JobSpec) -> str:
    """The name of a volume. Volumes with the same source have the name of the first of them."""
    return f"volume-{[_volume_source(each) for each in shared_volumes(spec)].index(_volume_source(volume))}"


def _volume_source(volume: VolumeSpec) -> Manifest:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    # type Directory: a path that does not exist on a node must not be created there by accident
    return {"hostPath": {"path": volume.host_path, "type": "Directory"}}


# --------------------------------------------------------------------------------------------------
# Security contexts that comply with the Pod Security Standard ``restricted``, with a read-only root filesystem.
#
# Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/


def pod_security_context(run_as: RunAsSpec) -> Manifest:
    """Security context of a pod: all containers run as one user, whose group owns the files of volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": run_as.user,
        "runAsGroup": run_as.group,
        "fsGroup": run_as.group,
        # otherwise every start of a pod would change the owner of all files on the volume, perhaps millions
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security_context() -> Manifest:
    """What the Pod Security Standard ``restricted`` asks of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


# --------------------------------------------------------------------------------------------------
# ``pod.overrides``: settings that the spec does not model. They are merged last, as a strategic merge patch would be.


MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}
"""Lists that are merged item by item, and the key that identifies their items. Other lists are replaced.

Source: patchMergeKey in the API's types, https://github.com/kubernetes/api/blob/master/core/v1/types.go
"""


def apply_strategic_merge(base: Any, patch: Any, field: str = "") -> Any:
    """Merge ``patch`` into ``base``: mappings are merged, null removes a field, other values are replaced.

    Args:
        base: the value to change.
        patch: the changes.
        field: the name of the field that has these values, which determines how lists are merged.
    """
    if isinstance(patch, Mapping):
        old = base if isinstance(base, Mapping) else {}
        merged = {**old, **{name: apply_strategic_merge(old.get(name), value, name) for name, value in patch.items()}}
        return {name: value for name, value in merged.items() if value is not None}
    key = MERGE_KEYS.get(field)
    # the keys are checked because an annotation may have one of these names, with any value
    if key is not None and has_unique_keys(patch, key):
        return _merge_items(base if has_unique_keys(base, key) else [], patch, key)
    return patch


def _merge_items(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    items = {item[key]: item for item in base}
    for item in patch:
        items[item[key]] = apply_strategic_merge(items.get(item[key]), item)
    return list(items.values())


def has_unique_keys(value: Any, key: str) -> bool:
    """Whether all items of a list are mappings with distinct texts under ``key``."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return False
    keys = [item.get(key) for item in value]
    return all(isinstance(each, str) for each in keys) and len(set(keys)) == len(keys)


GPU_RESOURCE = "nvidia.com/gpu"
SAFE_TO_EVICT_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DISK_RESOURCE, DISK_REQUEST_BYTES = "ephemeral-storage", 256 << 20
"""Kubernetes' name of a node's own disk, and the request of a pod in bytes, unless its limit is lower."""
_UNHEALTHY_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_LOST_SECONDS: Mapping[Role, int | None] = {Role.MASTER: 30, Role.PS: 120, Role.WORKER: 10}
"""Time for which pods tolerate a lost node.

It is long for parameter servers: one that still answers is kept. One that does not is deleted earlier by the master
(``edl.core.parameter_servers``).
"""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Identifies a pod of a job.

    Attributes:
        namespace: namespace of the pod; None: wherever its manifest is applied.
        token_secret: name of the Secret with the job's token.
        run_dir: directory of the run on the volumes; None for a master, which finds it itself.
        run: the run that a master resumes; None starts a new one.
    """

    role: Role
    index: int
    token_secret: str
    namespace: str | None = None
    run_dir: str | None = None
    run: str | None = None


def render_pod_template(spec: JobSpec, identity: PodIdentity, options: PodOptions = DEFAULT_OPTIONS) -> Manifest:
    """Metadata and spec of a pod, in the form of a Job's template."""
    merged = {"metadata": _pod_metadata(spec, identity), "spec": _pod_spec(spec, identity, options)}
    for overrides in (spec.pod.overrides, role_section(spec, identity.role).overrides):
        merged = apply_strategic_merge(merged, overrides)
    # after the overrides, which must not replace these labels
    labels = merged["metadata"].get("labels", {}) | _identity_labels(spec, identity, options)
    annotations = merged["metadata"].get("annotations", {})
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": merged["spec"]}


LOG_POD_RESOURCES = {
    "requests": {"cpu": "10m", "memory": "32Mi", DISK_RESOURCE: "1Mi"},
    "limits": {"memory": "64Mi", DISK_RESOURCE: "16Mi"},
}
"""Of the pod that prints the master's log: Python without packages needs 12 MiB."""


def render_log_pod_template(spec: JobSpec, run_dir: str, since: float) -> Manifest:
    """Metadata and spec of the pod that prints the master's log: it reads the volume, and has no right on the cluster.

    Without the label of a role, neither the master nor its Service takes it for one of the job's processes.

    Args:
        spec: as submitted.
        run_dir: directory of the run, as pods see it.
        since: when the master that creates it started, in unix seconds.
    """
    files = [posixpath.join(run_dir, "logs", "master-0.log"), posixpath.join(run_dir, "status.json"), f"{since:.0f}"]
    pod_spec: Manifest = {
        "restartPolicy": "Never",
        "priorityClassName": spec.master.priority,
        "serviceAccountName": spec.security.pod_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security_context(spec.security.run_as),
        "containers": [
            {
                "name": "log",
                "image": spec.image,
                **({} if spec.pod.image_pull_policy is None else {"imagePullPolicy": spec.pod.image_pull_policy}),
                "command": ["python3", "-P", "-m", "edl.pod.log_follower", *files],
                "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
                "resources": LOG_POD_RESOURCES,
                "securityContext": container_security_context(),
                "volumeMounts": [{**_mount(volume, spec), "readOnly": True} for volume in shared_volumes(spec)],
            }
        ],
        "volumes": [
            {"name": name, **source}
            for name, source in {
                _volume_name(volume, spec): _volume_source(volume) for volume in shared_volumes(spec)
            }.items()
        ],
        "tolerations": pod_tolerations(spec.pod.tolerations, _NODE_LOST_SECONDS[Role.WORKER]),
    }
    metadata = {
        "labels": {**spec.pod.labels, **_further_labels(spec, Role.MASTER, 0), **names.object_labels(spec.name)},
        "annotations": {**spec.pod.annotations, SAFE_TO_EVICT_ANNOTATION: "true"},
    }
    return {"metadata": metadata, "spec": pod_spec | _optional_fields(spec)}


def role_section(spec: JobSpec, role: Role) -> MasterSpec | ParameterServerSpec | WorkerSpec:
    """The section of the spec about one role."""
    sections: dict[Role, MasterSpec | ParameterServerSpec | WorkerSpec] = {
        Role.MASTER: spec.master,
        Role.PS: spec.ps,
        Role.WORKER: spec.workers,
    }
    return sections[role]


def _identity_labels(spec: JobSpec, identity: PodIdentity, options: PodOptions) -> dict[str, str]:
    """The labels by which EDL finds the pod."""
    index = None if identity.role is Role.MASTER else identity.index
    elevated = {names.ELEVATED_LABEL: "true"} if options.elevated else {}
    return (
        _further_labels(spec, identity.role, identity.index)
        | names.object_labels(spec.name, identity.role, index)
        | elevated
    )


def _further_labels(spec: JobSpec, role: Role, index: int) -> dict[str, str]:
    """The labels of ``pod.identity_labels``."""
    keys = spec.pod.identity_labels
    values = {keys.job: spec.name, keys.role: role.value, keys.index: str(index)}
    return {label: value for label, value in values.items() if label is not None}


def _pod_metadata(spec: JobSpec, identity: PodIdentity) -> Manifest:
    annotations = {
        **spec.pod.annotations,
        SAFE_TO_EVICT_ANNOTATION: "true" if identity.role is Role.WORKER else "false",
    }
    if identity.run is not None:
        annotations[names.RUN_ANNOTATION] = identity.run
    return {"labels": dict(spec.pod.labels), "annotations": annotations}


def _pod_spec(spec: JobSpec, identity: PodIdentity, options: PodOptions) -> Manifest:
    master = identity.role is Role.MASTER
    section = role_section(spec, identity.role)
    pod_spec: Manifest = {
        # a master restarts in its pod; the others never do, so that the end of a container is the end of its pod
        "restartPolicy": "OnFailure" if master else "Never",
        "terminationGracePeriodSeconds": POD_GRACE_SECONDS,
        "priorityClassName": priority_rule.parse_priority(section.priority).priority_class(elevated=options.elevated),
        "serviceAccountName": spec.security.master_account if master else spec.security.pod_account,
        "automountServiceAccountToken": master,
        "enableServiceLinks": False,
        "securityContext": pod_security_context(spec.security.run_as),
        "containers": [_render_container(spec, identity, section.resources, options)],
        "volumes": pod_volumes(spec, identity.token_secret),
        "tolerations": pod_tolerations(spec.pod.tolerations, _NODE_LOST_SECONDS[identity.role]),
    }
    return pod_spec | _optional_fields(spec)


def _optional_fields(spec: JobSpec) -> Manifest:
    """Fields that only some specs set."""
    fields = {
        "nodeSelector": dict(spec.pod.node_selector),
        "affinity": dict(spec.pod.affinity),
        "imagePullSecrets": [{"name": name} for name in spec.pod.image_pull_secrets],
    }
    return {name: value for name, value in fields.items() if value}


def _render_container(spec: JobSpec, identity: PodIdentity, resources: ResourceSpec, options: PodOptions) -> Manifest:
    return {
        "name": names.ROLE_CONTAINER,
        "image": spec.image,
        **({} if spec.pod.image_pull_policy is None else {"imagePullPolicy": spec.pod.image_pull_policy}),
        "command": ["edl-role"],
        "args": [identity.role.value, f"{names.SPEC_DIR}/{names.SPEC_KEY}"],
        "env": container_environment(spec, identity),
        "ports": [{"name": name, "containerPort": port} for name, port in _container_ports(spec, identity.role)],
        "resources": resource_requirements(resources, options.memory_factor),
        "securityContext": container_security_context(),
        # the end of the log becomes the message of a failed container, which `edl why` shows
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": container_mounts(spec),
    }


def _container_ports(spec: JobSpec, role: Role) -> list[tuple[str, int]]:
    control, bulk = ("control", names.CONTROL_PORT), ("bulk", names.BULK_PORT)
    # Under AllReduce the neighbours in the ring connect to a worker; under parameter servers nobody does.
    worker = [bulk] if uses_all_reduce(spec) else []
    return {Role.MASTER: [control], Role.PS: [control, bulk], Role.WORKER: worker}[role]


def resource_requirements(resources: ResourceSpec, memory_factor: float) -> Manifest:
    """Requests and limits. Memory has both. CPU has a request only, unless the spec limits it: idle CPU can be used.

    Of its node's disk a pod requests little and may use more. Without an explicit request, the limit would be the
    request, too.
    """
    limits = resources.limits
    memory = {"memory": format_size(math.ceil(resources.memory * memory_factor))}
    memory_limit = {"memory": format_size(math.ceil((limits.memory or resources.memory) * memory_factor))}
    cpu_limit = {} if limits.cpu is None else {"cpu": format_cores(limits.cpu)}
    devices = {GPU_RESOURCE: str(resources.gpu)} if resources.gpu else {}
    promised, bounded = _disk_amounts(resources.ephemeral_storage)
    return {
        "requests": {"cpu": format_cores(resources.cpu), **memory, **promised, **devices},
        "limits": {**cpu_limit, **memory_limit, **bounded, **devices},
    }


def _disk_amounts(limit: int | None) -> tuple[Manifest, Manifest]:
    """Request and limit of the node's own disk; empty without a limit."""
    if limit is None:
        return {}, {}
    return {DISK_RESOURCE: format_size(min(limit, DISK_REQUEST_BYTES))}, {DISK_RESOURCE: format_size(limit)}


def pod_tolerations(
    spec_tolerations: tuple[Mapping[str, JsonValue], ...], node_lost_seconds: int | None
) -> list[dict[str, Any]]:
    """The spec's tolerations, and the time for which a pod tolerates a lost node, unless the spec sets it.

    Clusters add 300 s to pods without such tolerations. With None, a pod stays until somebody deletes it.
    """
    limit = {} if node_lost_seconds is None else {"tolerationSeconds": node_lost_seconds}
    tolerated_keys = [
        toleration.get("key") for toleration in spec_tolerations if toleration.get("effect") in (None, "", "NoExecute")
    ]
    waits = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", **limit}
        for key in _UNHEALTHY_NODE_TAINTS
        if key not in tolerated_keys
    ]
    return [*(dict(toleration) for toleration in spec_tolerations), *waits]


def container_environment(spec: JobSpec, identity: PodIdentity) -> list[Manifest]:
    """The environment variables of a pod's container: identity, paths and addresses, then those of the spec."""
    values = {
        "EDL_ROLE": identity.role.value,
        "EDL_INDEX": str(identity.index),
        "EDL_TOKEN_FILE": f"{names.TOKEN_DIR}/{names.TOKEN_KEY}",
        "EDL_RUNTIME_DIR": names.RUNTIME_DIR,
        "HOME": names.HOME_DIR,
        "XDG_CACHE_HOME": f"{names.HOME_DIR}/.cache",
        "KERAS_HOME": f"{names.HOME_DIR}/.keras",
        "PYTHONUNBUFFERED": "1",
        **_location_variables(spec, identity),
    }
    fields = _FIELD_REFS | (_MASTER_FIELD_REFS if identity.role is Role.MASTER else {})
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


def _location_variables(spec: JobSpec, identity: PodIdentity) -> dict[str, str]:
    if identity.role is Role.MASTER:
        return {"EDL_STORAGE": pod_storage_path(spec), "EDL_TOKEN_SECRET": identity.token_secret}
    assert identity.namespace is not None
    assert identity.run_dir is not None
    address = names.master_address(spec.name, identity.namespace)
    return {"EDL_RUN_DIR": identity.run_dir, "EDL_MASTER_ADDRESS": address}
