"""``--cluster_spec`` and ``--cluster_spec_json``: what they do to ElasticDL's pods becomes overrides of EDL's pods.

A cluster spec is a Python file with an object ``cluster``. Its methods ``with_pod(pod)`` and ``with_service(service)``
get and return objects of the Kubernetes client. ElasticDL calls them in the cluster. Here they are called on the pods
that EDL would make, once for each role, and the difference stands in the job file. The JSON form is a mapping with
labels, annotations, tolerations, affinity and env, for all pods or those of one role.
"""

from __future__ import annotations

import base64
import copy
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.api.fields import JsonValue
from edl.api.job_spec import JobSpec
from edl.cluster.kubernetes.job_manifests import render_job
from edl.cluster.kubernetes.names import ROLE_CONTAINER, token_secret
from edl.cluster.kubernetes.pod_template import (
    MERGE_KEYS,
    PodIdentity,
    apply_strategic_merge,
    has_unique_keys,
    render_pod_template,
)
from edl.jobfile.document_tree import closest_match

Manifest: TypeAlias = dict[str, Any]
PatchPod: TypeAlias = Callable[[Manifest, Role], Manifest]
PatchService: TypeAlias = Callable[[Manifest], Manifest]
_ROLE_FIELDS = {Role.MASTER: "master.overrides", Role.PS: "ps.overrides", Role.WORKER: "workers.overrides"}
_ALL_PODS, _SERVICE = "pod.overrides", "master.service_overrides"
_INSTEAD = "use pod.overrides, workers.overrides and others in the job file that --yaml FILE writes"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The two functions of a cluster spec, for plain manifests.

    Attributes:
        source: the flag, for messages.
        patch_pod: the changed manifest of a pod; it may change its argument.
        patch_service: the same for a Service; None: it is not changed.
    """

    source: str
    patch_pod: PatchPod
    patch_service: PatchService | None = None


def find_overrides(spec: JobSpec, cluster: ClusterSpec, roles: tuple[Role, ...]) -> dict[str, JsonValue]:
    """The fields of the job file that make EDL's pods and Service what the cluster spec makes of them.

    Args:
        spec: the job without these fields.
        cluster: from ``load_cluster_spec`` or ``read_cluster_json``.
        roles: the roles that the job has.

    Raises:
        BadInputError: the cluster spec fails, or makes a change that a job file cannot say.
    """
    patches = {role: _pod_patch(spec, cluster, role) for role in roles}
    first = next(iter(patches.values()))
    overrides: dict[str, JsonValue] = {}
    if all(patch == first for patch in patches.values()):
        overrides[_ALL_PODS] = first
    else:
        overrides |= {_ROLE_FIELDS[role]: patch for role, patch in patches.items()}
    if cluster.patch_service is not None:
        service = next(each for each in render_job(spec, namespace=None, token="") if each["kind"] == "Service")
        overrides[_SERVICE] = _difference(service, cluster.patch_service(copy.deepcopy(service)), cluster.source)
    return {field: patch for field, patch in overrides.items() if patch}


def _pod_patch(spec: JobSpec, cluster: ClusterSpec, role: Role) -> Manifest:
    patches = []
    for index in (0, 1):
        pod = _render(spec, role, index)
        patches.append(_difference(pod, cluster.patch_pod(copy.deepcopy(pod), role), cluster.source))
        if role is Role.MASTER:
            break
    if patches[0] != patches[-1]:
        raise BadInputError(
            f"it changes pods of the role {role} by their index, and all pods of a role are alike in EDL",
            where=cluster.source,
            hint=_INSTEAD,
        )
    return patches[0]


def _render(spec: JobSpec, role: Role, index: int) -> Manifest:
    template = render_pod_template(spec, PodIdentity(role, index, token_secret(spec.name), "namespace", run_dir="/run"))
    name = f"{spec.pod.name_prefix}-{spec.name}-{role}-{index}"
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": name, **template["metadata"]}}


# --------------------------------------------------------------------------------------------------
# The difference of two manifests as a strategic merge patch


class _NoPatchError(Exception):
    """No patch says this: an item of a merged list was removed."""


def _difference(before: Manifest, after: Manifest, source: str) -> Manifest:
    try:
        patch: Manifest = _make_patch(before, after, "")
    except _NoPatchError as error:
        raise BadInputError(f"it removes {error}, which EDL's pods need", where=source, hint=_INSTEAD) from error
    return patch


def _make_patch(before: Any, after: Any, field: str) -> Any:
    """The patch with which ``apply_strategic_merge`` makes ``after`` of ``before``; both differ, or are mappings."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        return {
            name: None if after.get(name) is None else _make_patch(before.get(name), after[name], name)
            for name in names
        }
    key = MERGE_KEYS.get(field)
    if key is None or not (has_unique_keys(before, key) and has_unique_keys(after, key)):
        return after
    old = {item[key]: item for item in before}
    new = {item[key]: item for item in after}
    if removed := [name for name in old if name not in new]:
        raise _NoPatchError(f"{removed[0]} of {field}")
    changed = {name: item for name, item in new.items() if old.get(name) != item}
    return [{key: name, **_make_patch(old.get(name, {}), item, "")} for name, item in changed.items()]


# --------------------------------------------------------------------------------------------------
# The Python form


def load_cluster_spec(path: Path, source: str) -> ClusterSpec:
    """The cluster spec of a Python file, whose code runs here.

    Raises:
        BadInputError: the file cannot be read or run, or has no object ``cluster`` with ``with_pod``.
    """
    module = _run_file(path, source)
    cluster = getattr(module, "cluster", None)
    with_pod = getattr(cluster, "with_pod", None)
    if not callable(with_pod):
        raise BadInputError(
            "it has no object called cluster with the method with_pod",
            where=f"{source}: {path}",
            hint="end the file with: cluster = MyCluster()",
        )
    with_service = getattr(cluster, "with_service", None)
    return ClusterSpec(
        source,
        lambda pod, _: _call(with_pod, pod, "V1Pod", path, source),
        (lambda service: _call(with_service, service, "V1Service", path, source)) if callable(with_service) else None,
    )


def _run_file(path: Path, source: str) -> ModuleType:
    try:
        code = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=f"{source}: {path}") from error
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise BadInputError(f"is not Python: {error}", where=f"{source}: {path}{line}") from error
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look modules up
    try:
        exec(code, module.__dict__)  # noqa: S102  the user's own file, named for this on the command line
    except (Exception, SystemExit) as error:
        raise _user_error(error, path, source, "running the file") from error
    return module


def _call(function: Callable[[Any], Any], manifest: Manifest, kind: str, path: Path, source: str) -> Manifest:
    """The manifest that the function makes of one, by way of the Kubernetes client's object."""
    from kubernetes import client  # costs 0.3 s

    api = client.ApiClient(client.Configuration())
    # private, and the only way from a mapping to an object that all versions of the client have
    value = api._ApiClient__deserialize(copy.deepcopy(manifest), kind)
    plain = api.sanitize_for_serialization(value)
    try:
        result = function(value)
    except (Exception, SystemExit) as error:
        raise _user_error(error, path, source, f"{getattr(function, '__name__', 'it')}()") from error
    if type(result) is not type(value):
        name = getattr(function, "__name__", "it")
        raise BadInputError(
            f"{name}() returned {type(result).__name__}, must return the {kind} that it was given",
            where=f"{source}: {path}",
        )
    after = api.sanitize_for_serialization(result)
    # what the client does not know, such as a new field of Kubernetes, stays as it was
    patched: Manifest = apply_strategic_merge(manifest, _difference(plain, after, source))
    return patched


def _user_error(error: BaseException, path: Path, source: str, where: str) -> BadInputError:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f"{path}:{lines[-1]}" if lines else str(path)
    return BadInputError(f"{where} raised {type(error).__name__}: {error}", where=f"{source}: {place}")


# --------------------------------------------------------------------------------------------------
# The JSON form


_POD_PARTS = ("labels", "annotations", "tolerations", "affinity", "env")
_SECTIONS = {
    "pod_spec": None,
    "master_spec": Role.MASTER,
    "master_pod_spec": Role.MASTER,
    "ps_spec": Role.PS,
    "ps_pod_spec": Role.PS,
    "worker_spec": Role.WORKER,
    "worker_pod_spec": Role.WORKER,
}
"""The role of each section; None: all pods. ElasticDL's help has the short names, its code the long ones."""


def read_cluster_json(text: str, source: str) -> ClusterSpec:
    """The cluster spec of a JSON text, which may be encoded in base64.

    Raises:
        BadInputError: it is no JSON, or has a section or a part that ElasticDL does not have.
    """
    document = _parse(text, source)
    for name, section in document.items():
        if name != "service_spec" and name not in _SECTIONS:
            raise BadInputError(f"has no section {name!r}{_near(name, [*_SECTIONS, 'service_spec'])}", where=source)
        if not isinstance(section, dict):
            raise BadInputError(f"{name} must be a mapping", where=source)
        for part in section:
            if name != "service_spec" and part not in _POD_PARTS:
                raise BadInputError(f"{name} has no part {part!r}{_near(part, _POD_PARTS)}", where=source)
            if name != "service_spec":
                _check_part(section[part], part, f"{source}: {name}.{part}")

    def patch_pod(pod: Manifest, role: Role) -> Manifest:
        for name, section in document.items():
            if name in _SECTIONS and _SECTIONS[name] in (None, role):
                _add_parts(pod, section)
        return pod

    def patch_service(service: Manifest) -> Manifest:
        return {**service, "spec": {**service["spec"], **document["service_spec"]}}

    return ClusterSpec(source, patch_pod, patch_service if "service_spec" in document else None)


def _check_part(value: Any, part: str, where: str) -> None:
    if part in ("labels", "annotations", "affinity"):
        fits, wanted = isinstance(value, dict), "a mapping"
    else:
        fits, wanted = isinstance(value, list) and all(isinstance(each, dict) for each in value), "a list of mappings"
    if not fits:
        raise BadInputError(f"found {value!r}, must be {wanted}", where=where)


def _add_parts(pod: Manifest, section: Mapping[str, Any]) -> None:
    for part in ("labels", "annotations"):
        pod["metadata"][part] = {**pod["metadata"].get(part, {}), **section.get(part, {})}
    if "affinity" in section:
        pod["spec"]["affinity"] = section["affinity"]
    if "tolerations" in section:
        pod["spec"]["tolerations"] = [*pod["spec"].get("tolerations", ()), *section["tolerations"]]
    for container in pod["spec"]["containers"]:
        if "env" in section and container["name"] == ROLE_CONTAINER:
            container["env"] = [*container.get("env", ()), *section["env"]]


def _parse(text: str, source: str) -> dict[str, Any]:
    for decode in (str.encode, partial(base64.b64decode, validate=True)):
        try:
            document = json.loads(decode(text))
        except ValueError:  # binascii's error is one, too
            continue
        if isinstance(document, dict):
            return document
    raise BadInputError(
        "must be a JSON object, or one in base64",
        where=source,
        hint='such as {"pod_spec": {"labels": {"team": "a"}}, "worker_pod_spec": {"tolerations": []}}',
    )


def _near(name: str, known: list[str] | tuple[str, ...]) -> str:
    close = closest_match(name, known)
    return f"; did you mean {close!r}?" if close else f"; known are {', '.join(known)}"
