"""``pod.overrides``: what the spec does not model, merged into a pod last, as a strategic merge patch would be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}
"""Lists that are merged item by item, and what tells their items apart. Other lists are replaced.

Source: patchMergeKey in the API's types, https://github.com/kubernetes/api/blob/master/core/v1/types.go
"""


def apply_strategic_merge(base: Any, patch: Any, field: str = "") -> Any:
    """``base`` with ``patch`` in it: mappings are merged, null takes a field away, anything else is replaced.

    Args:
        field: the name under which both stand, which says how lists are merged.
    """
    if isinstance(patch, Mapping):
        old = base if isinstance(base, Mapping) else {}
        merged = {**old, **{name: apply_strategic_merge(old.get(name), value, name) for name, value in patch.items()}}
        return {name: value for name, value in merged.items() if value is not None}
    key = MERGE_KEYS.get(field)
    if key is not None and has_unique_keys(patch, key):  # an annotation may have such a name, and any value
        return _merge_items(base if has_unique_keys(base, key) else [], patch, key)
    return patch


def _merge_items(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    items = {item[key]: item for item in base}
    for item in patch:
        items[item[key]] = apply_strategic_merge(items.get(item[key]), item)
    return list(items.values())


def has_unique_keys(value: Any, key: str) -> bool:
    """Whether a list's items are mappings, each with its own text under ``key``."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return False
    keys = [item.get(key) for item in value]
    return all(isinstance(each, str) for each in keys) and len(set(keys)) == len(keys)
