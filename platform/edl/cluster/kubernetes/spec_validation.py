"""What makes a spec unfit for a cluster, and what is worth knowing before it goes there; no cluster is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from edl.cluster.kubernetes import names, volume_mounts
from edl.cluster.kubernetes.pod_additions import added
from edl.jobfile.consistency_rules import Broken
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.path_resolution import UNSHARED_STORAGE, is_shared, pod_storage, volume_of
from edl.jobfile.pod_spec import SecretKey, Volume

_LARGEST_ID = 2**31 - 1
SHORTEST_TTL = 60
"""Seconds that the objects of an ended job stay at least."""
_IN_A_VOLUME = (
    "give the volume that holds it, such as volumes: [{claim: NAME, mount: /data}], and a path below its mount"
)


def problems(spec: JobSpec) -> list[Broken]:
    """What of the spec cannot be on a cluster: the field to change, what is wrong with it, what can be done."""
    return [
        *_image(spec),
        *_strategy(spec),
        *_data(spec),
        *_export(spec),
        *_volumes(spec),
        *_storage(spec),
        *_user(spec),
        *added(spec.pod),
        *_tokens(spec),
        *_kept_for(spec),
    ]


def notes(spec: JobSpec) -> list[str]:
    """What works, and costs something that is easily overlooked."""
    return [*_without_volume(spec), *_host_paths(spec), *_data_elsewhere(spec), *_unkept_export(spec)]


def _image(spec: JobSpec) -> Iterator[Broken]:
    if spec.image is None:
        yield Broken(
            "image", "is missing", "name the image that every role runs; edl zoo build makes one with your model"
        )


def _strategy(spec: JobSpec) -> Iterator[Broken]:
    if spec.strategy.name == "Local":
        yield Broken("strategy.name", "found 'Local', which is one process on this machine", "use ParameterServer")


def _data(spec: JobSpec) -> Iterator[Broken]:
    for name, path in _data_paths(spec):
        if not path.startswith("/"):
            yield Broken(name, _misplaced(path), _IN_A_VOLUME)


def _data_paths(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for name in ("training", "validation", "prediction"):
        yield from ((f"data.{name}", path) for path in getattr(spec.data, name) if "://" not in path)


def _export(spec: JobSpec) -> Iterator[Broken]:
    path = spec.export and spec.export.path
    if path and not (_kept(path, spec) or _scratch(path, spec)):
        yield Broken("export.path", f"{_misplaced(path)}: pods can write nowhere else", _IN_A_VOLUME)


def _misplaced(path: str) -> str:
    if not path.startswith("/"):
        return f"found '{path}', must be an absolute path on a cluster"
    return f"found '{path}', which is not in a volume"


def _kept(path: str, spec: JobSpec) -> bool:
    return path.startswith("/") and volume_of(path, volume_mounts.shared_volumes(spec)) is not None


def _scratch(path: str, spec: JobSpec) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in volume_mounts.scratch(spec).values())


def _volumes(spec: JobSpec) -> Iterator[Broken]:
    for index, volume in enumerate(spec.volumes):
        where = f"volumes[{index}]"
        if volume.claim is None and volume.host_path is None:
            hint = "name a PersistentVolumeClaim of the job's namespace; edl data cp brings data into it"
            yield Broken(f"{where}.claim", "is missing", hint)
        if volume.claim is not None and volume.host_path is not None:
            yield Broken(f"{where}.host_path", f"found '{volume.host_path}', but claim is given too", "leave one out")
        if ":" in volume.mount:
            yield Broken(f"{where}.mount", f"found '{volume.mount}', which Kubernetes cannot mount at for its ':'")
        for ours in _hidden(volume):
            yield Broken(f"{where}.mount", f"found '{volume.mount}', which would hide {ours}, where EDL mounts its own")


def _hidden(volume: Volume) -> list[str]:
    return [ours for ours in volume_mounts.RESERVED if PurePosixPath(ours).is_relative_to(volume.mount)]


def _storage(spec: JobSpec) -> Iterator[Broken]:
    claim, path = spec.storage.claim, pod_storage(spec)
    if not path.startswith("/"):
        yield Broken("storage.path", f"found '{path}', must be an absolute path on a cluster", _IN_A_VOLUME)
    elif not is_shared(spec):
        if path != UNSHARED_STORAGE:
            yield Broken("storage.path", f"found '{path}', but the job has no volume", _IN_A_VOLUME)
    elif claim is not None and claim not in {volume.claim for volume in spec.volumes}:
        yield from _own_mount(path, claim, spec)
    else:
        volume = volume_of(path, spec.volumes)
        if volume is None or claim not in (None, volume.claim):
            wanted = f"a path on the claim '{claim}'" if claim else "a path in a volume"
            yield Broken("storage.path", f"found '{path}', must be {wanted}", _IN_A_VOLUME)


def _own_mount(path: str, claim: str, spec: JobSpec) -> Iterator[Broken]:
    """A claim that only holds storage is mounted at its path."""
    taken = [volume.mount for volume in spec.volumes if PurePosixPath(volume.mount) == PurePosixPath(path)]
    hidden = _hidden(Volume(mount=path))
    if taken or hidden or ":" in path:
        yield Broken(
            "storage.path", f"found '{path}', where the claim '{claim}' cannot be mounted", "choose another path"
        )


def _user(spec: JobSpec) -> Iterator[Broken]:
    user, group = spec.security.run_as.user, spec.security.run_as.group
    if user == 0:
        yield Broken("security.run_as.user", "found 0, which is root; pods must not run as root")
    for name, number in (("user", user), ("group", group)):
        if number > _LARGEST_ID:
            yield Broken(f"security.run_as.{name}", f"found {number}, must be at most {_LARGEST_ID}")


def _kept_for(spec: JobSpec) -> Iterator[Broken]:
    ttl = spec.ttl_after_finished
    if ttl is not None and ttl < SHORTEST_TTL:
        hint = "Who waits for the job's end, edl wait or a release's submitter, must be able to read it."
        yield Broken("ttl_after_finished", f"found {ttl:g} seconds, must be at least {SHORTEST_TTL}", hint)


def _tokens(spec: JobSpec) -> Iterator[Broken]:
    """A job's token proves its roles to each other: it is mounted as a file, and no variable of the user's code."""
    for name, value in spec.pod.env.items():
        if isinstance(value, SecretKey) and value.secret == names.token(spec.name):
            yield Broken(
                f"pod.env.{name}.secret", f"found '{value.secret}', which is the job's own token", "leave it out"
            )


def _without_volume(spec: JobSpec) -> Iterator[str]:
    if not is_shared(spec):
        yield (
            "the job has no volume, so nothing outlives its pod: no checkpoint is kept, losing a parameter server "
            "takes training back to its start, losing the master's pod begins the job anew, and logs and the exported "
            "model go with their pods"
        )


def _host_paths(spec: JobSpec) -> Iterator[str]:
    for index, volume in enumerate(spec.volumes):
        if volume.host_path is not None:
            yield (
                f"volumes[{index}].host_path: namespaces that enforce the Pod Security Standard restricted or baseline "
                f"refuse it, and elsewhere an admin must allow {volume.host_path} by admission.allowedHostPaths of the "
                f"chart edl; it must be the same directory on every node, writable for uid {spec.security.run_as.user}"
            )


def _data_elsewhere(spec: JobSpec) -> Iterator[str]:
    """What the image holds, or pod.overrides mount, can be known by nobody before the pods run."""
    for name, path in _data_paths(spec):
        if path.startswith("/") and not _kept(path, spec):
            yield f"{name}: {path} is not in a volume of the job, so the image or pod.overrides must bring it"


def _unkept_export(spec: JobSpec) -> Iterator[str]:
    path = spec.export and spec.export.path
    if path and not _kept(path, spec) and _scratch(path, spec):
        yield f"export.path: {path} is not in a volume, the exported model goes with the worker that writes it"
