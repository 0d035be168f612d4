"""Which cluster the tests run on, and what they may assume of it.

`KUBECONFIG` names the cluster. kind (a context ``kind-*``) and the local cluster (`E2E_LOCAL_CLUSTER` is its command)
are known; on any other `E2E_IMAGES` and `E2E_STORAGE_CLASS` say how images get to it and which storage is shared.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from e2e.faults import ClusterFaults, KindFaults, LocalClusterFaults, NoFaults
from e2e.programs import call, run_program

from edl.cluster.kubernetes.kubeconfig import make_client


class ImageDelivery(StrEnum):
    """How images get to the nodes."""

    KIND = "kind"
    LOCAL_CLUSTER = "local-cluster"
    REGISTRY = "registry"


class UnknownSiteError(Exception):
    """The cluster is not known and the environment does not say what is needed."""


@dataclass(frozen=True)
class TargetSite:
    """A cluster.

    Attributes:
        delivery: how images get there.
        prefix: of image names in a registry; empty otherwise.
        storage_class: of ReadWriteMany claims; None: kind's shared folder, as static volumes.
        faults: what can be broken.
        script: the local cluster's command.
        kind_name: name of the kind cluster.
    """

    delivery: ImageDelivery
    faults: ClusterFaults
    prefix: str = ""
    storage_class: str | None = None
    script: Path | None = None
    kind_name: str = ""

    @property
    def can_break(self) -> bool:
        """Whether nodes and API server can be broken."""
        return not isinstance(self.faults, NoFaults)


def detect_site() -> TargetSite:
    """The cluster of ``KUBECONFIG``.

    Raises:
        UnknownSiteError: a choice is missing; says which.
    """
    images, storage = os.environ.get("E2E_IMAGES", ""), os.environ.get("E2E_STORAGE_CLASS") or None
    script = _local_cluster()
    context = make_client().context or ""
    if script is not None and images in ("", ImageDelivery.LOCAL_CLUSTER):
        return TargetSite(
            ImageDelivery.LOCAL_CLUSTER, LocalClusterFaults(script), storage_class=storage or "shared", script=script
        )
    if context.startswith("kind-") and images in ("", ImageDelivery.KIND):
        name = context.removeprefix("kind-")
        return TargetSite(
            ImageDelivery.KIND, KindFaults(f"{name}-control-plane"), storage_class=storage, kind_name=name
        )
    missing = [name for name, value in (("E2E_IMAGES", images), ("E2E_STORAGE_CLASS", storage)) if not value]
    if missing or images in tuple(ImageDelivery):
        raise UnknownSiteError(
            f"Context {context!r} is neither kind nor the local cluster. Set {' and '.join(missing) or 'E2E_IMAGES'}: "
            "E2E_IMAGES=kind | local-cluster | PREFIX (a registry that you may push to and the nodes may pull from); "
            "E2E_STORAGE_CLASS=NAME (a class with ReadWriteMany volumes). For the local cluster, E2E_LOCAL_CLUSTER is "
            "the path of its command."
        )
    return TargetSite(ImageDelivery.REGISTRY, NoFaults(), prefix=images.rstrip("/"), storage_class=storage)


def _local_cluster() -> Path | None:
    """Its command, if it runs the cluster of ``KUBECONFIG``."""
    named = os.environ.get("E2E_LOCAL_CLUSTER")
    if not named:
        return None
    script = Path(named).resolve()
    done = call(script, "kubeconfig")
    own = done.returncode == 0 and Path(done.stdout.strip()) == Path(os.environ.get("KUBECONFIG", "")).resolve()
    return script if own else None


def nodes() -> list[str]:
    """Names of the nodes that take pods of any kind."""
    from edl.cluster.kubernetes.resource_kinds import NODES

    return sorted(
        node["metadata"]["name"]
        for node in make_client().list(NODES).items
        if not any(taint["effect"] == "NoSchedule" for taint in node["spec"].get("taints") or ())
    )


def on_node(node: str, *command: str) -> str:
    """Run a command in the container of one of kind's nodes."""
    return run_program("docker", "exec", node, *command)
