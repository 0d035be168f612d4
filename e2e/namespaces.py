"""A namespace for each scenario: it enforces ``restricted``, has what admins install, a shared claim and its data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from e2e import install
from e2e.images import JobImages
from e2e.observer import NamespaceObserver
from e2e.programs import ProgramError, apply, call, kubectl
from e2e.site import TargetSite
from e2e.user_account import UserAccount, data_scientist, forget_account
from e2e.volume import CLAIM, SharedVolume

from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.kubeconfig import make_client

LABELS = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/warn": "restricted",
    **install.LABELS,
}


@dataclass(frozen=True)
class Namespace:
    """Where one scenario happens.

    Attributes:
        name: of the namespace.
        site: the cluster.
        images: on its nodes.
        folder: of this machine, for job files, fetched runs and evidence.
        person: does what users do.
    """

    name: str
    site: TargetSite
    images: JobImages
    folder: Path
    api: KubeClient
    observer: NamespaceObserver
    user: UserAccount
    volume: SharedVolume = field(repr=False)

    def kubectl(self, *arguments: str, seconds: float = 120.0) -> str:
        """``kubectl`` in this namespace, with the rights of who runs the tests."""
        return kubectl("-n", self.name, *arguments, seconds=seconds)

    def copy_to_claim(self, folder: Path, path: str) -> None:
        """``edl data cp``: a folder of this machine to the claim."""
        done = self.user.edl("data", "cp", folder, f"{CLAIM}:{path}", "--image", self.images.submitter, seconds=300)
        if done.returncode:
            raise ProgramError(f"edl data cp: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")


@contextmanager
def new_namespace(
    site: TargetSite, images: JobImages, folder: Path, *, volume: bool = True, base: bool = True
) -> Iterator[Namespace]:
    """Make a namespace; it goes, with all that is in it, when the block ends.

    Args:
        site: the cluster.
        images: on its nodes.
        folder: of this machine, for what belongs to the scenario; names the namespace too.
        volume: with the shared claim.
        base: with what a team needs: accounts, their rights, and what else admins install.
    """
    name = fresh_name(folder)
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": LABELS}})
    # No pod is accepted before the controller manager has made it: half a minute after the API server was away.
    kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", "--timeout=90s")
    with open_namespace(site, images, folder, name) as namespace:
        if base:
            install.install_team(name)
        if volume:
            namespace.volume.create_claim()
        yield replace(namespace, user=data_scientist(name)) if base else namespace


def fresh_name(folder: Path) -> str:
    """A name for a namespace that nobody has."""
    return f"e2e-{folder.name[:30].replace('_', '-').strip('-')}-{uuid4().hex[:5]}"


@contextmanager
def open_namespace(site: TargetSite, images: JobImages, folder: Path, name: str) -> Iterator[Namespace]:
    """A namespace that is there, whoever made it; it goes when the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    api = make_client(namespace=name)
    observer = NamespaceObserver(api, name)
    shared = SharedVolume(site, name, images.submitter)
    try:
        yield Namespace(name, site, images, folder, api, observer, UserAccount(name), shared)
    finally:
        observer.close()
        forget_account(name)
        call("kubectl", "delete", "namespace", name, "--wait=false")
        call("kubectl", "-n", name, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
        shared.remove_claim()
