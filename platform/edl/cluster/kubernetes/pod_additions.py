"""What a spec adds to its pods in Kubernetes' own words, as far as it can be wrong: names that are EDL's, and syntax.

Whether an affinity or a toleration makes sense is for the API server to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_template import SAFE_TO_EVICT
from edl.cluster.kubernetes.strategic_merge import MERGE_KEYS, told_apart
from edl.jobfile.consistency_rules import Broken
from edl.jobfile.pod_spec import Pod

_OURS = {*names.labels("job", Role.MASTER, 0), SAFE_TO_EVICT, "job-name", "controller-uid", "HOME"}
_OUR_PREFIXES = ("edl.dev/", "batch.kubernetes.io/", "EDL_")

_PART = r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
# Syntax: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
_KEY = re.compile(rf"({_DOMAIN}/)?{_PART}")
_VALUE = re.compile(rf"({_PART})?")
_VARIABLE = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*")


def added(pod: Pod) -> Iterator[Broken]:
    """What is wrong with the additions of a spec."""
    yield from _variables(pod.env, "pod.env")
    yield from _labels(pod.labels, "pod.labels")
    yield from _keys(pod.annotations, "pod.annotations")
    yield from _selector(pod.node_selector)
    yield from _overrides(pod.overrides)


def _variables(names_: Mapping[str, Any] | list[str], path: str) -> Iterator[Broken]:
    for name in names_:
        yield from _reserved(name, path)
        if not _VARIABLE.fullmatch(name):
            yield Broken(path, f"found '{name}', must be the name of an environment variable")


def _labels(labels: Mapping[str, Any], path: str) -> Iterator[Broken]:
    yield from _keys(labels, path)
    yield from _values(labels, path)


def _selector(labels: Mapping[str, Any]) -> Iterator[Broken]:
    """Labels of nodes, of which none is EDL's."""
    for name in labels:
        yield from _key(name, "pod.node_selector")
    yield from _values(labels, "pod.node_selector")


def _keys(keys: Mapping[str, Any], path: str) -> Iterator[Broken]:
    for name in keys:
        yield from _reserved(name, path)
        yield from _key(name, path)


def _key(name: str, path: str) -> Iterator[Broken]:
    if not _KEY.fullmatch(name):
        hint = "up to 63 letters, digits, -, _ and ., perhaps after the name of a domain and /"
        yield Broken(path, f"found '{name}', must be a key as Kubernetes has them", hint)


def _values(labels: Mapping[str, Any], path: str) -> Iterator[Broken]:
    for name, value in labels.items():
        if value is not None and not (isinstance(value, str) and _VALUE.fullmatch(value)):
            hint = "up to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit"
            yield Broken(f"{path}.{name}", f"found '{value}', must be the value of a label", hint)


def _reserved(name: str, path: str) -> Iterator[Broken]:
    if name in _OURS or name.startswith(_OUR_PREFIXES):
        yield Broken(f"{path}.{name}", f"found '{name}', which EDL sets itself", "leave it out, or choose another name")


def _overrides(overrides: Mapping[str, Any]) -> Iterator[Broken]:
    path = "pod.overrides"
    for name, value in overrides.items():
        if name not in ("metadata", "spec"):
            yield Broken(f"{path}.{name}", "unknown field", "allowed here: metadata, spec")
        elif not isinstance(value, Mapping):
            yield Broken(f"{path}.{name}", f"found '{value}', must be a mapping")
        elif name == "metadata":
            yield from _metadata(value, f"{path}.metadata")
        else:
            yield from _spec(value, f"{path}.spec")


def _metadata(metadata: Mapping[str, Any], path: str) -> Iterator[Broken]:
    for name, value in metadata.items():
        if name not in ("labels", "annotations"):
            yield Broken(f"{path}.{name}", "is EDL's to set", "allowed here: labels, annotations")
        elif not isinstance(value, Mapping):
            yield Broken(f"{path}.{name}", f"found '{value}', must be a mapping")
        else:
            yield from _labels(value, f"{path}.{name}") if name == "labels" else _keys(value, f"{path}.{name}")


def _spec(spec: Mapping[str, Any], path: str) -> Iterator[Broken]:
    if "restartPolicy" in spec:
        yield Broken(
            f"{path}.restartPolicy", "is EDL's to set: its master replaces lost pods, and Kubernetes the master"
        )
    wrong = list(_lists(spec, path))
    yield from wrong
    if not wrong:
        for container in spec.get("containers", ()):
            if container["name"] == names.CONTAINER:
                variables = [each["name"] for each in container.get("env", ())]
                yield from _variables(variables, f"{path}.containers.env")


def _lists(value: Any, path: str, field: str = "") -> Iterator[Broken]:
    """Lists that are merged item by item, at any depth, in which an item cannot be told from another."""
    if field in MERGE_KEYS and not told_apart(value, MERGE_KEYS[field]):
        yield Broken(path, f"must be a list of mappings, each with its own {MERGE_KEYS[field]}")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _lists(inner, f"{path}.{name}", name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _lists(inner, f"{path}[{index}]")
