"""The claim that all pods of a namespace share, and what tests bring there and take from there."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e import site
from e2e.pods import pod
from e2e.programs import ProgramError, apply, kubectl
from e2e.site import ImageDelivery, TargetSite

from edl.cluster.kubernetes.resource_kinds import Manifest

CLAIM = "fileserver-claim"
MOUNT = "/data"
READER = "reader"
_KIND_FOLDER = "/edl-shared"
"""Where e2e/kind.yaml mounts one folder of the machine into every node."""


@dataclass(frozen=True)
class SharedVolume:
    """The claim of one namespace, and a pod that reads it."""

    site: TargetSite
    namespace: str
    image: str

    def create_claim(self, *, claim: bool = True) -> None:
        """Make claim and reader, or the reader of a claim that is there; the reader is up afterwards."""
        if claim:
            self._make_claim()
        volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}}]
        mounts = [{"name": "shared", "mountPath": MOUNT}]
        reader = pod(READER, self.image, "sleep", "infinity", mounts=mounts, volumes=volumes, priorityClassName="high")
        apply(reader, "-n", self.namespace)
        kubectl("-n", self.namespace, "wait", "--for=condition=Ready", f"pod/{READER}", "--timeout=90s")

    def _make_claim(self) -> None:
        if self.site.storage_class is None:
            self._make_static()
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        names = {"storageClassName": self.site.storage_class or "", **self._volume_name()}
        apply(_object("v1", "PersistentVolumeClaim", CLAIM, {**spec, **names}), "-n", self.namespace)

    @property
    def node(self) -> str:
        """Where the reader runs: a scenario that loses this node cannot look at its runs."""
        return kubectl("-n", self.namespace, "get", "pod", READER, "-o", "jsonpath={.spec.nodeName}")

    def create_file(self, file: str) -> None:
        """Make an empty file, given by its path in pods."""
        kubectl("-n", self.namespace, "exec", READER, "--", "touch", file)

    def fetch_folder(self, path: str, folder: Path) -> Path:
        """What is below ``path`` of the claim, as it is now, into a folder of this machine."""
        folder.mkdir(parents=True, exist_ok=True)
        command = ["kubectl", "-n", self.namespace, "exec", READER, "--", "tar", "-C", MOUNT + path, "-cf", "-", "."]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        if done.returncode > 1:  # 1: a file grew while it was read
            raise ProgramError(f"{path} of {self.namespace}: {done.stderr.decode()}")
        # Not tarfile: safe extraction came with Python 3.11.4, and distributions have older ones.
        subprocess.run(["tar", "-xf", "-", "-C", folder], input=done.stdout, check=True, timeout=120)
        return folder

    def remove_claim(self) -> None:
        """Remove what deleting the namespace leaves."""
        if self.site.storage_class is None and self.site.delivery is ImageDelivery.KIND:
            kubectl("delete", "persistentvolume", self.namespace, "--ignore-not-found", "--wait=false")
            site.on_node(f"{self.site.kind_name}-control-plane", "rm", "-rf", f"{_KIND_FOLDER}/{self.namespace}")

    def _make_static(self) -> None:
        folder = f"{_KIND_FOLDER}/{self.namespace}"
        node = f"{self.site.kind_name}-control-plane"
        site.on_node(node, "install", "-d", "-m", "0777", folder)
        spec = {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": folder, "type": "Directory"},
        }
        apply(_object("v1", "PersistentVolume", self.namespace, spec))

    def _volume_name(self) -> Manifest:
        return {} if self.site.storage_class else {"volumeName": self.namespace}


def _object(version: str, kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
