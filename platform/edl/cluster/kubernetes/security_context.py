"""What the ``restricted`` Pod Security Standard asks of a pod, and a root filesystem that cannot be written.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.jobfile.pod_spec import RunAsSpec


def pod_security_context(run_as: RunAsSpec) -> Manifest:
    """Security context of a pod: one user for all of it, which owns what its volumes let it own."""
    return {
        "runAsNonRoot": True,
        "runAsUser": run_as.user,
        "runAsGroup": run_as.group,
        "fsGroup": run_as.group,
        # a volume of millions of files would be walked at the start of every pod
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security_context() -> Manifest:
    """Security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
