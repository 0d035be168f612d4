"""What admins install, installed as ``INSTALL_METHOD`` says: with Helm (the default) or with Kustomize.

python -m e2e.install             the cluster's part; nothing to do if it is there
python -m e2e.install --remove    remove it

The cluster's part is there once for all scenarios: its objects have no namespace and their names are fixed. Each
scenario's namespace gets the part of a team. What is there and was not made by these tests is never touched: it stops
them, with a message that says what it is.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from hashlib import sha256
from shutil import which
from typing import Any

from e2e.programs import ROOT, ProgramError, apply, kubectl
from e2e.releases import CHART, HelmRelease, objects

from edl.cluster.kubernetes.resource_kinds import Manifest

SYSTEM = "edl-system"
"""Namespace of the release that has the cluster's part."""
OWN = "edl.dev/e2e"
"""Label of what these tests make."""
LABELS = {OWN: "true"}
CLUSTER_KINDS = (
    "clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings"
)
CLUSTER, TEAM = ROOT / "e2e" / "overlay", ROOT / "kustomize" / "base" / "team"
SECRET = "e2e-bucket"
"""A Secret that the admin allows to jobs, besides their own; e2e/overlay names it, too."""
VALUES: Manifest = {"commonLabels": LABELS, "admission": {"allowedSecrets": [SECRET]}}
_INSTALLED = f"{OWN}-installed"
_LOCK = ROOT / "e2e" / ".state" / "install.lock"


class InstallMethod(StrEnum):
    """How admins install."""

    HELM = "helm"
    KUSTOMIZE = "kustomize"


class StrangersError(ProgramError):
    """Objects of these names are there, and these tests have not made them."""


def install_method() -> InstallMethod:
    """What ``INSTALL_METHOD`` says.

    Raises:
        ProgramError: it says something else.
    """
    method = os.environ.get("INSTALL_METHOD") or InstallMethod.HELM
    if method not in tuple(InstallMethod):
        raise ProgramError(f"INSTALL_METHOD={method}: it is {' or '.join(InstallMethod)}")
    return InstallMethod(method)


# ---------------------------------------------------------------------- the cluster's part


def ensure_installed() -> None:
    """Install the cluster's part, unless it is there as the files of this checkout have it.

    Raises:
        StrangersError: something is in its place.
    """
    with _installation_lock():
        _install_if_needed()


def _install_if_needed() -> None:
    wanted, installed = _files_fingerprint(), _installed_fingerprint()
    if installed == wanted:
        return
    if installed is not None:
        clear_releases("edl")
    if foreign := foreign_objects(rendered_objects()):
        raise StrangersError(_foreign_install_text(foreign))
    apply(system({_INSTALLED: wanted}))
    if install_method() is InstallMethod.HELM:
        HelmRelease("edl", SYSTEM).install(VALUES)
    else:
        kubectl("apply", "-k", str(CLUSTER))


@contextmanager
def nothing_installed() -> Iterator[None]:
    """Nothing is installed when the block begins, and all is again when it ends; ``ensure_installed`` waits."""
    with _installation_lock():
        clear_releases("edl")
        try:
            yield
        finally:
            _install_if_needed()


def remove_installation() -> None:
    """Remove what ``ensure_installed`` has installed, with its namespace."""
    with _installation_lock():
        if _installed_fingerprint() is not None:
            clear_releases("edl")
            kubectl("delete", "namespace", SYSTEM)


def clear_releases(*releases: str) -> None:
    """Remove releases of the cluster's part, and what is left of it but their namespace, which takes long to go."""
    for name in releases if which("helm") else ():
        HelmRelease(name, SYSTEM).uninstall("--ignore-not-found", "--no-hooks")
    kubectl("delete", CLUSTER_KINDS, "-l", OWN, "--ignore-not-found")
    apply(system())  # it remembers nothing any more


def rendered_objects() -> list[Manifest]:
    """The objects of the cluster's part."""
    if install_method() is InstallMethod.HELM:
        return HelmRelease("edl", SYSTEM).template(VALUES)
    return objects(kubectl("kustomize", str(CLUSTER)))


def foreign_objects(wanted: list[Manifest]) -> list[str]:
    """The objects of the cluster, as ``kind/name``, that have the names of wanted ones and not these tests' label."""
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in [*wanted, system()]}
    existing = json.loads(kubectl("get", f"{CLUSTER_KINDS},namespaces", "-o", "json"))["items"]
    return [
        f"{manifest['kind'].lower()}/{manifest['metadata']['name']}"
        for manifest in existing
        if (manifest["kind"], manifest["metadata"]["name"]) in names
        and OWN not in (manifest["metadata"].get("labels") or {})
    ]


def _foreign_install_text(found: list[str]) -> str:
    return (
        "These tests install EDL in the whole cluster and remove it again. Somebody else has installed some of it:\n"
        f"  {' '.join(found)}\n"
        "If nobody needs these objects, remove them (`helm uninstall`, or kubectl delete with the names above) and try "
        f"again. Those that these tests make have the label {OWN}."
    )


def system(annotations: dict[str, str] | None = None) -> Manifest:
    """The namespace of the cluster's part; it remembers what is installed."""
    meta: dict[str, Any] = {"name": SYSTEM, "labels": LABELS, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


def _installed_fingerprint() -> str | None:
    """What ``ensure_installed`` has installed, or was about to; empty if a test has; None if nothing is there."""
    namespace = json.loads(kubectl("get", "namespace", SYSTEM, "--ignore-not-found", "-o", "json") or "{}")
    meta = namespace.get("metadata") or {}
    if OWN not in (meta.get("labels") or {}):
        return None
    return str((meta.get("annotations") or {}).get(_INSTALLED, ""))


def _files_fingerprint() -> str:
    """Of the files that are installed."""
    folders = [CHART] if install_method() is InstallMethod.HELM else [ROOT / "kustomize" / "base", CLUSTER]
    content = sha256(install_method().encode() + json.dumps(VALUES).encode())
    for file in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        content.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return content.hexdigest()[:16]


@contextmanager
def _installation_lock() -> Iterator[None]:
    """Scenarios run in several processes; the first one installs."""
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---------------------------------------------------------------------- a team's part


def install_team(namespace: str) -> None:
    """Install a team's part in a namespace that exists."""
    if install_method() is InstallMethod.HELM:
        teams = [{"namespace": namespace, "dataCopy": True}]
        HelmRelease("edl-team", namespace).install({"cluster": {"create": False}, "teams": teams})
    else:
        kubectl("apply", "-n", namespace, "-k", str(TEAM))


def main() -> None:
    """Install or remove the cluster's part."""
    parser = argparse.ArgumentParser(description="Install the cluster's part of EDL for the end-to-end tests.")
    parser.add_argument("--remove", action="store_true", help="remove it")
    options = parser.parse_args()
    try:
        remove_installation() if options.remove else ensure_installed()
    except ProgramError as error:
        sys.exit(f"e2e: {error}")


if __name__ == "__main__":
    main()
