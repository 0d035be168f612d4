"""The ``restricted`` Pod Security Standard, from its documentation: what a pod's spec does that it forbids.

Written from https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline and restricted, for Linux
pods), and not from what EDL renders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Spec = dict[str, Any]

VOLUME_TYPES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SAFE_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}
SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
APPARMOR_TYPES = {None, "RuntimeDefault", "Localhost"}
SECCOMP_TYPES = {"RuntimeDefault", "Localhost"}


def violations(spec: Spec) -> list[str]:
    """Each thing that the standard forbids, by the path of its field; empty for a pod that passes."""
    return [*_pod(spec), *(violation for each in _containers(spec) for violation in _container(each, spec))]


def _containers(spec: Spec) -> list[Spec]:
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return [container for kind in kinds for container in spec.get(kind, [])]


def _pod(spec: Spec) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", []):
        if set(volume) - {"name"} - VOLUME_TYPES:
            yield f"volumes.{volume['name']}"
    context = spec.get("securityContext", {})
    for sysctl in context.get("sysctls", []):
        if sysctl["name"] not in SAFE_SYSCTLS:
            yield f"sysctls.{sysctl['name']}"
    yield from _context(context)


def _container(container: Spec, pod: Spec) -> Iterator[str]:
    own, outer = container.get("securityContext", {}), pod.get("securityContext", {})
    yield from _context(own)
    if own.get("privileged"):
        yield "privileged"
    if own.get("procMount") not in (None, "Default"):
        yield "procMount"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    yield from _capabilities(own.get("capabilities", {}))
    if not own.get("runAsNonRoot", outer.get("runAsNonRoot")):
        yield "runAsNonRoot"
    profile = own.get("seccompProfile", outer.get("seccompProfile", {}))
    if profile.get("type") not in SECCOMP_TYPES:
        yield "seccompProfile"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "hostPort"
    yield from _probes(container)


def _context(context: Spec) -> Iterator[str]:
    """What a pod's security context and a container's have in common."""
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield "seLinuxOptions"
    if context.get("appArmorProfile", {}).get("type") not in APPARMOR_TYPES:
        yield "appArmorProfile"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess"
    if context.get("runAsUser") == 0:
        yield "runAsUser"
    if context.get("runAsNonRoot") is False:
        yield "runAsNonRoot"
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in SECCOMP_TYPES:
        yield "seccompProfile"


def _capabilities(capabilities: Spec) -> Iterator[str]:
    if "ALL" not in capabilities.get("drop", []):
        yield "capabilities.drop"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities.add"


def _probes(container: Spec) -> Iterator[str]:
    hooks = [container.get(f"{name}Probe", {}) for name in ("liveness", "readiness", "startup")]
    hooks += [container.get("lifecycle", {}).get(name, {}) for name in ("postStart", "preStop")]
    if any(hook.get(kind, {}).get("host") for hook in hooks for kind in ("httpGet", "tcpSocket")):
        yield "host"
