"""What a spec adds to its pods in Kubernetes' own words, as far as it can be wrong: names that are EDL's, and syntax.

Whether an affinity or a toleration makes sense is for the API server to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_template import SAFE_TO_EVICT_ANNOTATION
from edl.cluster.kubernetes.strategic_merge import MERGE_KEYS, has_unique_keys
from edl.jobfile.consistency_rules import RuleViolation
from edl.jobfile.pod_spec import PodSpec

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
    """What is wrong with the additions of a spec."""
    yield from _check_variables(pod.env, "pod.env")
    yield from _check_labels(pod.labels, "pod.labels")
    yield from _check_keys(pod.annotations, "pod.annotations")
    yield from _check_node_selector(pod.node_selector)
    yield from _check_overrides(pod.overrides)


def _check_variables(names_: Mapping[str, Any] | list[str], path: str) -> Iterator[RuleViolation]:
    for name in names_:
        yield from _check_reserved(name, path)
        if not _VARIABLE_NAME.fullmatch(name):
            yield RuleViolation(path, f"found '{name}', must be the name of an environment variable")


def _check_labels(labels: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    yield from _check_keys(labels, path)
    yield from _check_label_values(labels, path)


def _check_node_selector(labels: Mapping[str, Any]) -> Iterator[RuleViolation]:
    """Labels of nodes, of which none is EDL's."""
    for name in labels:
        yield from _check_key(name, "pod.node_selector")
    yield from _check_label_values(labels, "pod.node_selector")


def _check_keys(keys: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    for name in keys:
        yield from _check_reserved(name, path)
        yield from _check_key(name, path)


def _check_key(name: str, path: str) -> Iterator[RuleViolation]:
    if not _LABEL_KEY.fullmatch(name):
        hint = "up to 63 letters, digits, -, _ and ., perhaps after the name of a domain and /"
        yield RuleViolation(path, f"found '{name}', must be a key as Kubernetes has them", hint)


def _check_label_values(labels: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    for name, value in labels.items():
        if value is not None and not (isinstance(value, str) and _LABEL_VALUE.fullmatch(value)):
            hint = "up to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit"
            yield RuleViolation(f"{path}.{name}", f"found '{value}', must be the value of a label", hint)


def _check_reserved(name: str, path: str) -> Iterator[RuleViolation]:
    if name in _RESERVED_NAMES or name.startswith(_RESERVED_PREFIXES):
        yield RuleViolation(
            f"{path}.{name}", f"found '{name}', which EDL sets itself", "leave it out, or choose another name"
        )


def _check_overrides(overrides: Mapping[str, Any]) -> Iterator[RuleViolation]:
    path = "pod.overrides"
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
            yield RuleViolation(f"{path}.{name}", "is EDL's to set", "allowed here: labels, annotations")
        elif not isinstance(value, Mapping):
            yield RuleViolation(f"{path}.{name}", f"found '{value}', must be a mapping")
        else:
            yield from (
                _check_labels(value, f"{path}.{name}") if name == "labels" else _check_keys(value, f"{path}.{name}")
            )


def _check_pod_spec(spec: Mapping[str, Any], path: str) -> Iterator[RuleViolation]:
    if "restartPolicy" in spec:
        yield RuleViolation(
            f"{path}.restartPolicy", "is EDL's to set: its master replaces lost pods, and Kubernetes the master"
        )
    wrong = list(_check_merge_lists(spec, path))
    yield from wrong
    if not wrong:
        for container in spec.get("containers", ()):
            if container["name"] == names.ROLE_CONTAINER:
                variables = [each["name"] for each in container.get("env", ())]
                yield from _check_variables(variables, f"{path}.containers.env")


def _check_merge_lists(value: Any, path: str, field: str = "") -> Iterator[RuleViolation]:
    """Lists that are merged item by item, at any depth, in which an item cannot be told from another."""
    if field in MERGE_KEYS and not has_unique_keys(value, MERGE_KEYS[field]):
        yield RuleViolation(path, f"must be a list of mappings, each with its own {MERGE_KEYS[field]}")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _check_merge_lists(inner, f"{path}.{name}", name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _check_merge_lists(inner, f"{path}[{index}]")
