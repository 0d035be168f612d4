"""Checks that a spec can run on a cluster, and finds costs that are easily overlooked. It asks no cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from edl.api.cluster_port import Role
from edl.api.job_spec import JobSpec
from edl.api.pod_spec import PodSpec, SecretKeyRef, VolumeSpec
from edl.cluster.kubernetes import names, pod_template
from edl.cluster.kubernetes.pod_template import MERGE_KEYS, SAFE_TO_EVICT_ANNOTATION, has_unique_keys
from edl.jobfile.database_address import CREDENTIAL_VARIABLES, path_of_data
from edl.jobfile.document_tree import RuleViolation
from edl.jobfile.keras_version import BACKEND_REMEDY, BACKEND_VARIABLE
from edl.jobfile.path_resolution import (
    UNSHARED_STORAGE_DIR,
    find_volume,
    has_shared_storage,
    names_path,
    pod_storage_path,
)
from edl.jobfile.quantities import format_cores, format_size
from edl.jobfile.strategy_choice import uses_all_reduce

# --------------------------------------------------------------------------------------------------
# Checks of the parts of a spec in Kubernetes' syntax: reserved names and syntax.
#
# Whether an affinity or a toleration makes sense is left to the API server.


_RESERVED_NAMES = {
    *names.object_labels("job", Role.MASTER, 0),
    SAFE_TO_EVICT_ANNOTATION,
    "job-name",
    "controller-uid",
    "HOME",
}
_RESERVED_PREFIXES = ("edl.dev/", "batch.kubernetes.io/", "EDL_")

_NAME_PART = r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
# Syntax: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
_LABEL_KEY = re.compile(rf"({_DOMAIN}/)?{_NAME_PART}")
_LABEL_VALUE = re.compile(rf"({_NAME_PART})?")
_VARIABLE_NAME = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*")


def check_pod_additions(pod: PodSpec) -> Iterator[RuleViolation]:
    """Problems of a spec's additions to its pods."""
    yield from _check_variables(pod.env, "pod.env")
    yield from _check_labels(pod.labels, "pod.labels")
    yield from _check_keys(pod.annotations, "pod.annotations")
    yield from _check_node_selector(pod.node_selector)
    yield from _check_overrides(pod.overrides, "pod.overrides")
    yield from _check_identity_labels(pod)


def _check_identity_labels(pod: PodSpec) -> Iterator[RuleViolation]:
    more = pod.identity_labels
    by_field = {"job": more.job, "role": more.role, "index": more.index, "status": more.status}
    field_by_label = dict.fromkeys(pod.labels, "pod.labels")
    for name, label in by_field.items():
        if label is None:
            continue
        path = f"pod.identity_labels.{name}"
        yield from _check_key(label, path)
        if _is_reserved(label):
            yield RuleViolation(path, f"found '{label}', which EDL sets itself", "use another label")
        elif label in field_by_label:
            yield RuleViolation(path, f"found '{label}', which {field_by_label[label]} sets too", "use another label")
        field_by_label[label] = path


def _check_variables(names_: Mapping[str, Any] | list[str], path: str) -> Iterator[RuleViolation]:
    for name in names_:
        yield from _check_reserved(name, path)
        if not _VARIABLE_NAME.fullmatch(name):
            yield RuleViolation(path, f"found '{name}', must be the name of an environment variable")


def _check_labels(labels: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    yield from _check_keys(labels, path)
    yield from _check_label_values(labels, path)


def _check_node_selector(labels: Mapping[str, Any]) -> Iterator[RuleViolation]:
    """Labels of nodes, where no name is reserved."""
    for name in labels:
        yield from _check_key(name, "pod.node_selector")
    yield from _check_label_values(labels, "pod.node_selector")


def _check_keys(keys: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    for name in keys:
        yield from _check_reserved(name, path)
        yield from _check_key(name, path)


def _check_key(name: str, path: str) -> Iterator[RuleViolation]:
    if not _LABEL_KEY.fullmatch(name):
        hint = "up to 63 letters, digits, -, _ and ., optionally after a domain name and /"
        yield RuleViolation(path, f"found '{name}', must be a key in Kubernetes' syntax", hint)


def _check_label_values(labels: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    for name, value in labels.items():
        if value is not None and not (isinstance(value, str) and _LABEL_VALUE.fullmatch(value)):
            hint = "up to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit"
            yield RuleViolation(f"{path}.{name}", f"found '{value}', must be the value of a label", hint)


def _check_reserved(name: str, path: str) -> Iterator[RuleViolation]:
    if _is_reserved(name):
        yield RuleViolation(
            f"{path}.{name}", f"found '{name}', which EDL sets itself", "leave it out, or choose another name"
        )


def _is_reserved(name: str) -> bool:
    if name in CREDENTIAL_VARIABLES:
        return False
    return name in _RESERVED_NAMES or name.startswith(_RESERVED_PREFIXES)


def _check_overrides(overrides: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    for name, value in overrides.items():
        if name not in ("metadata", "spec"):
            yield RuleViolation(f"{path}.{name}", "unknown field", "allowed here: metadata, spec")
        elif not isinstance(value, Mapping):
            yield RuleViolation(f"{path}.{name}", f"found '{value}', must be a mapping")
        elif name == "metadata":
            yield from _check_metadata(value, f"{path}.metadata")
        else:
            yield from _check_pod_spec(value, f"{path}.spec")


def _check_metadata(metadata: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    for name, value in metadata.items():
        if name not in ("labels", "annotations"):
            yield RuleViolation(f"{path}.{name}", "is set by EDL", "allowed here: labels, annotations")
        elif not isinstance(value, Mapping):
            yield RuleViolation(f"{path}.{name}", f"found '{value}', must be a mapping")
        else:
            yield from (
                _check_labels(value, f"{path}.{name}") if name == "labels" else _check_keys(value, f"{path}.{name}")
            )


def _check_pod_spec(spec: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    if "restartPolicy" in spec:
        yield RuleViolation(
            f"{path}.restartPolicy", "is set by EDL: its master replaces lost pods, and Kubernetes replaces the master"
        )
    wrong = list(_check_merge_lists(spec, path))
    yield from wrong
    if not wrong:
        for container in spec.get("containers", ()):
            if container["name"] == names.ROLE_CONTAINER:
                variables = [each["name"] for each in container.get("env", ())]
                yield from _check_variables(variables, f"{path}.containers.env")


def _check_role_overrides(spec: JobSpec) -> Iterator[RuleViolation]:
    for section, overrides in (
        ("master", spec.master.overrides),
        ("ps", spec.ps.overrides),
        ("workers", spec.workers.overrides),
    ):
        yield from _check_overrides(overrides, f"{section}.overrides")


def _check_service_overrides(overrides: Mapping[str, Any]) -> Iterator[RuleViolation]:
    path = "master.service_overrides"
    for name, value in overrides.items():
        if name not in ("metadata", "spec"):
            yield RuleViolation(f"{path}.{name}", "unknown field", "allowed here: metadata, spec")
        elif not isinstance(value, Mapping):
            yield RuleViolation(f"{path}.{name}", f"found '{value}', must be a mapping")
        elif name == "metadata":
            yield from _check_metadata(value, f"{path}.metadata")
        else:
            for reserved in ("selector", "ports"):
                if reserved in value:
                    yield RuleViolation(
                        f"{path}.spec.{reserved}", "is set by EDL: the job's pods reach their master by it"
                    )


def _check_merge_lists(value: Any, path: str, field: str = "") -> Iterator[RuleViolation]:
    """Problems of lists that are merged item by item, at any depth: items without a unique key."""
    if field in MERGE_KEYS and not has_unique_keys(value, MERGE_KEYS[field]):
        yield RuleViolation(path, f"must be a list of mappings, each with its own {MERGE_KEYS[field]}")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _check_merge_lists(inner, f"{path}.{name}", name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _check_merge_lists(inner, f"{path}[{index}]")


_MAX_USER_ID = 2**31 - 1
MIN_TTL_SECONDS = 60
"""Minimum time for which the objects of an ended job are kept."""
_VOLUME_HINT = (
    "add the volume that contains it, such as volumes: [{claim: NAME, mount: /data}], and use a path below its mount"
)


def find_spec_problems(spec: JobSpec) -> list[RuleViolation]:
    """What in the spec cannot run on a cluster: the field to change, what is wrong, and a remedy."""
    return [
        *_check_image(spec),
        *_check_strategy(spec),
        *_check_task(spec),
        *_check_data(spec),
        *_check_export(spec),
        *_check_volumes(spec),
        *_check_storage(spec),
        *_check_user(spec),
        *check_pod_additions(spec.pod),
        *_check_role_overrides(spec),
        *_check_service_overrides(spec.master.service_overrides),
        *_check_limits(spec),
        *_check_log_pod(spec),
        *_check_token_use(spec),
        *_check_keras_backend(spec),
        *_check_ttl(spec),
    ]


def find_spec_warnings(spec: JobSpec) -> list[str]:
    """What works, but has consequences that are easily overlooked."""
    return [*_warn_without_volume(spec), *_warn_host_paths(spec), *_warn_data_outside(spec), *_warn_export_lost(spec)]


def _check_image(spec: JobSpec) -> Iterator[RuleViolation]:
    if spec.image is None:
        yield RuleViolation(
            "image", "is missing", "name the image that all roles run; edl zoo build makes one with your model"
        )


def _check_log_pod(spec: JobSpec) -> Iterator[RuleViolation]:
    if spec.master.log_pod and not has_shared_storage(spec):
        yield RuleViolation(
            "master.log_pod", "found true, but the job has no volume to read the log from", _VOLUME_HINT
        )


def _check_limits(spec: JobSpec) -> Iterator[RuleViolation]:
    for section, resources in (
        ("master", spec.master.resources),
        ("ps", spec.ps.resources),
        ("workers", spec.workers.resources),
    ):
        limits = resources.limits
        path = f"{section}.resources.limits"
        if limits.cpu is not None and limits.cpu < resources.cpu:
            text = f"found {format_cores(limits.cpu)}, below the request of {format_cores(resources.cpu)}"
            yield RuleViolation(f"{path}.cpu", text, f"raise it, or lower {section}.resources.cpu")
        if limits.memory is not None and limits.memory < resources.memory:
            text = f"found {format_size(limits.memory)}, below the request of {format_size(resources.memory)}"
            yield RuleViolation(f"{path}.memory", text, f"raise it, or lower {section}.resources.memory")


def _check_strategy(spec: JobSpec) -> Iterator[RuleViolation]:
    if spec.strategy.name == "Local" and spec.task == "train":
        yield RuleViolation(
            "strategy.name", "found 'Local', which is one process on this machine", "use ParameterServer or AllReduce"
        )


def _check_task(spec: JobSpec) -> Iterator[RuleViolation]:
    """A job that evaluates, predicts or begins with the weights of another one: all its pods must read them."""
    trains = spec.task == "train"
    weights = spec.model.init_from if trains else spec.model.weights
    field = "model.init_from" if trains else "model.weights"
    if trains and weights is None:
        return
    if not has_shared_storage(spec):
        named = weights if trains else spec.task
        yield RuleViolation(
            field if trains else "task",
            f"found '{named}', but the job has no volume: its pods must read the weights, and the master writes down "
            "for all workers which they are",
            "set storage.claim to the volume with the trained runs, or add it to volumes",
        )
    if weights is not None and names_path(weights) and not weights.startswith("/"):
        yield RuleViolation(
            field,
            _misplaced_path_text(weights),
            "name a run, such as mnist (the job's newest one) or mnist/RUN, or give an absolute path in a volume",
        )


def find_submission_problems(spec: JobSpec) -> list[RuleViolation]:
    """What in the spec prevents that a job is submitted now."""
    lacks_data = spec.task == "train" and not spec.data.training and bool(spec.data.prediction)
    missing = RuleViolation("data.training", "is missing", "a job that only predicts has task: predict")
    return [*([missing] if lacks_data else []), *find_spec_problems(spec)]


def _check_data(spec: JobSpec) -> Iterator[RuleViolation]:
    for name, path in _local_data_paths(spec):
        if not path.startswith("/"):
            yield RuleViolation(name, _misplaced_path_text(path), _VOLUME_HINT)


def _local_data_paths(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for name in ("training", "validation", "prediction"):
        files = [path_of_data(path) for path in getattr(spec.data, name)]
        yield from ((f"data.{name}", file) for file in files if file is not None)


def _check_export(spec: JobSpec) -> Iterator[RuleViolation]:
    path = spec.export and spec.export.path
    # checked for the export, which is written; data may also be in the image
    if path and not (_is_in_volume(path, spec) or _is_in_scratch(path, spec)):
        yield RuleViolation(
            "export.path", f"{_misplaced_path_text(path)}: pods can only write to volumes", _VOLUME_HINT
        )


def _misplaced_path_text(path: str) -> str:
    if not path.startswith("/"):
        return f"found '{path}', must be an absolute path on a cluster"
    return f"found '{path}', which is not in a volume"


def _is_in_volume(path: str, spec: JobSpec) -> bool:
    return path.startswith("/") and find_volume(path, pod_template.shared_volumes(spec)) is not None


def _is_in_scratch(path: str, spec: JobSpec) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in pod_template.scratch_dirs(spec).values())


def _check_volumes(spec: JobSpec) -> Iterator[RuleViolation]:
    for index, volume in enumerate(spec.volumes):
        where = f"volumes[{index}]"
        # a volume with local only serves edl run
        if volume.claim is None and volume.host_path is None:
            hint = "name a PersistentVolumeClaim of the job's namespace; edl data cp brings data into it"
            yield RuleViolation(f"{where}.claim", "is missing", hint)
        if volume.claim is not None and volume.host_path is not None:
            yield RuleViolation(
                f"{where}.host_path", f"found '{volume.host_path}', but claim is given too", "leave one out"
            )
        # Kubernetes refuses a mountPath with a colon
        if ":" in volume.mount:
            yield RuleViolation(
                f"{where}.mount", f"found '{volume.mount}', at which Kubernetes cannot mount because of its ':'"
            )
        for ours in _hidden_mounts(volume):
            yield RuleViolation(f"{where}.mount", f"found '{volume.mount}', which would hide {ours}, a mount of EDL")


def _hidden_mounts(volume: VolumeSpec) -> list[str]:
    return [ours for ours in pod_template.RESERVED_MOUNTS if PurePosixPath(ours).is_relative_to(volume.mount)]


def _check_storage(spec: JobSpec) -> Iterator[RuleViolation]:
    claim, path = spec.storage.claim, pod_storage_path(spec)
    if not path.startswith("/"):
        yield RuleViolation("storage.path", f"found '{path}', must be an absolute path on a cluster", _VOLUME_HINT)
    elif not has_shared_storage(spec):
        if path != UNSHARED_STORAGE_DIR:
            yield RuleViolation("storage.path", f"found '{path}', but the job has no volume", _VOLUME_HINT)
    elif claim is not None and claim not in {volume.claim for volume in spec.volumes}:
        yield from _check_storage_mount(path, claim, spec)
    else:
        volume = find_volume(path, spec.volumes)
        if volume is None or claim not in (None, volume.claim):
            wanted = f"a path on the claim '{claim}'" if claim else "a path in a volume"
            yield RuleViolation("storage.path", f"found '{path}', must be {wanted}", _VOLUME_HINT)


def _check_storage_mount(path: str, claim: str, spec: JobSpec) -> Iterator[RuleViolation]:
    """Check a claim for storage only, which is mounted at the storage path."""
    mounts = [volume.mount for volume in spec.volumes if PurePosixPath(volume.mount) == PurePosixPath(path)]
    hidden = _hidden_mounts(VolumeSpec(mount=path))
    if mounts or hidden or ":" in path:
        yield RuleViolation(
            "storage.path", f"found '{path}', where the claim '{claim}' cannot be mounted", "choose another path"
        )


def _check_user(spec: JobSpec) -> Iterator[RuleViolation]:
    user, group = spec.security.run_as.user, spec.security.run_as.group
    if user == 0:
        yield RuleViolation("security.run_as.user", "found 0, which is root; pods must not run as root")
    for name, number in (("user", user), ("group", group)):
        if number > _MAX_USER_ID:
            yield RuleViolation(f"security.run_as.{name}", f"found {number}, must be at most {_MAX_USER_ID}")


def _check_ttl(spec: JobSpec) -> Iterator[RuleViolation]:
    ttl = spec.ttl_after_finished
    if ttl is not None and ttl < MIN_TTL_SECONDS:
        hint = "edl wait and the submitter of a release must have time to read how the job ended."
        yield RuleViolation("ttl_after_finished", f"found {ttl:g} seconds, must be at least {MIN_TTL_SECONDS}", hint)


def _check_keras_backend(spec: JobSpec) -> Iterator[RuleViolation]:
    backend = spec.pod.env.get(BACKEND_VARIABLE, "tensorflow")
    if backend != "tensorflow" and not spec.command:
        message = f"found {backend!r}, but EDL trains Keras models with the backend TensorFlow"
        yield RuleViolation(f"pod.env.{BACKEND_VARIABLE}", message, BACKEND_REMEDY)


def _check_token_use(spec: JobSpec) -> Iterator[RuleViolation]:
    """Refuse a variable with the job's token: it authenticates roles, and user code must not find it."""
    for name, value in spec.pod.env.items():
        if isinstance(value, SecretKeyRef) and value.secret == names.token_secret(spec.name):
            yield RuleViolation(
                f"pod.env.{name}.secret", f"found '{value.secret}', which is the job's own token", "leave it out"
            )


def _warn_without_volume(spec: JobSpec) -> Iterator[str]:
    if not has_shared_storage(spec):
        loss = "all workers" if uses_all_reduce(spec) else "a parameter server"
        yield (
            f"the job has no volume, so nothing outlives its pod: no checkpoint is kept, losing {loss} "
            "means that training starts again, losing the master's pod means that the job starts again, and logs and "
            "the exported model are lost with their pods"
        )


def _warn_host_paths(spec: JobSpec) -> Iterator[str]:
    for index, volume in enumerate(spec.volumes):
        if volume.host_path is not None:
            yield (
                f"volumes[{index}].host_path: namespaces that enforce the Pod Security Standard restricted or baseline "
                f"refuse it, and elsewhere an admin must allow {volume.host_path} with admission.allowedHostPaths of "
                f"the chart edl; it must be the same directory on every node, writable for uid "
                f"{spec.security.run_as.user}"
            )


def _warn_data_outside(spec: JobSpec) -> Iterator[str]:
    """Data outside of volumes is in the image or mounted by pod.overrides, which cannot be checked here."""
    for name, path in _local_data_paths(spec):
        if path.startswith("/") and not _is_in_volume(path, spec):
            yield f"{name}: {path} is not in a volume of the job, so the image or pod.overrides must provide it"


def _warn_export_lost(spec: JobSpec) -> Iterator[str]:
    path = spec.export and spec.export.path
    if path and not _is_in_volume(path, spec) and _is_in_scratch(path, spec):
        yield f"export.path: {path} is not in a volume, so the exported model is lost with the worker that writes it"
