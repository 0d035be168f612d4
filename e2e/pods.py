"""Pods of the tests' own: they pass ``restricted`` and ask for next to nothing."""

from __future__ import annotations

from typing import Any

from edl.cluster.kubernetes.resource_kinds import Manifest

SMALL_CPU = 0.05
"""Cores that masters and parameter servers ask for here, so that workers decide what fits."""


def pod(name: str, image: str, *command: str, labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """A pod that runs a command, as ``restricted`` wants it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        **_pod_spec(image, command, spec),
    }


def template(image: str, *command: str, labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """The same as a template of a Job or Deployment."""
    return {"metadata": {"labels": labels or {}}, **_pod_spec(image, command, spec)}


def _pod_spec(image: str, command: tuple[str, ...], spec: dict[str, Any]) -> Manifest:
    container = {
        "name": "main",
        "image": image,
        "command": list(command),
        "resources": {"requests": {"cpu": spec.pop("cpu", "10m"), "memory": spec.pop("memory", "32Mi")}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": spec.pop("mounts", []),
    }
    rest = {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
    }
    return {"spec": {**rest, **spec, "containers": [container]}}
