"""What a pod sees beside its image: spec and token, folders of its own to write in, the job's volumes."""

from __future__ import annotations

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.path_resolution import UNSHARED_STORAGE_DIR, has_shared_storage, pod_storage_path
from edl.jobfile.pod_spec import VolumeSpec

SCRATCH_DIRS = {"home": names.HOME_DIR, "run": names.RUNTIME_DIR, "tmp": "/tmp"}  # noqa: S108 (a pod's own)
"""Folders that a pod may write, by their volume's name: its root filesystem is read-only."""
RESERVED_MOUNTS = (*SCRATCH_DIRS.values(), names.SPEC_DIR, names.TOKEN_DIR)
"""Where no volume of the spec may be mounted."""


def pod_volumes(spec: JobSpec, token_secret: str) -> list[Manifest]:
    """The volumes of a pod; a claim that is mounted twice is one volume."""
    shared = {_volume_name(volume, spec): _volume_source(volume) for volume in shared_volumes(spec)}
    return [
        {"name": "spec", "configMap": {"name": names.spec_configmap(spec.name)}},
        # readable by the pod's group, which is fsGroup, and by nobody else
        {"name": "token", "secret": {"secretName": token_secret, "defaultMode": 0o440}},
        *({"name": name, "emptyDir": {}} for name in scratch_dirs(spec)),
        *({"name": name, **source} for name, source in shared.items()),
    ]


def container_mounts(spec: JobSpec) -> list[Manifest]:
    """Where the container sees them."""
    return [
        {"name": "spec", "mountPath": names.SPEC_DIR, "readOnly": True},
        {"name": "token", "mountPath": names.TOKEN_DIR, "readOnly": True},
        *({"name": name, "mountPath": path} for name, path in scratch_dirs(spec).items()),
        *({"name": _volume_name(volume, spec), "mountPath": volume.mount} for volume in shared_volumes(spec)),
    ]


def scratch_dirs(spec: JobSpec) -> dict[str, str]:
    """Folders that are the pod's own and go with it, by their volume's name."""
    return SCRATCH_DIRS | ({} if has_shared_storage(spec) else {"storage": UNSHARED_STORAGE_DIR})


def shared_volumes(spec: JobSpec) -> tuple[VolumeSpec, ...]:
    """The spec's volumes, and that of ``storage.claim`` when it is not one of them."""
    claim = spec.storage.claim
    if claim is None or any(volume.claim == claim for volume in spec.volumes):
        return spec.volumes
    return (*spec.volumes, VolumeSpec(mount=pod_storage_path(spec), claim=claim))


def _volume_name(volume: VolumeSpec, spec: JobSpec) -> str:
    """One name for volumes of the same content: that of the first of them."""
    return f"volume-{[_volume_source(each) for each in shared_volumes(spec)].index(_volume_source(volume))}"


def _volume_source(volume: VolumeSpec) -> Manifest:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    return {"hostPath": {"path": volume.host_path, "type": "Directory"}}
