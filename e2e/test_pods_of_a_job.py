"""What the pods of a job get and leave: bounds, values of Secrets, files of the run, and nothing after their time."""

from __future__ import annotations

import time

from e2e.install import SECRET
from e2e.jobs import ClusterJob, digits, in_container
from e2e.ledger import STORAGE
from e2e.namespaces import Namespace
from e2e.programs import apply
from e2e.volume import MOUNT, READER

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.cluster.kubernetes.spec_validation import MIN_TTL_SECONDS
from edl.ops.resource_quantities import parse_quantity

VALUE = "of-the-bucket"
ROLES = (Role.MASTER, Role.PS, Role.WORKER)
SIZES = {Role.MASTER: "1Gi", Role.PS: "2Gi", Role.WORKER: "3Gi"}
REMOVED_SECONDS = 30.0
"""After the time to live, until all that belongs to the Job is collected."""


def test_a_job_from_its_pods_to_its_removal(namespace: Namespace) -> None:
    """One job: bounds of its nodes' disks, a Secret's value in each process, modes of files, and its time to live."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {"key": VALUE}}
    apply(secret, "-n", namespace.name)
    spec = digits("bounded", image=namespace.images.zoo, seconds=60, workers=1)
    spec["pod"]["env"]["E2E_BUCKET"] = {"secret": SECRET, "key": "key"}
    for role, part in zip(ROLES, (spec["master"], spec["ps"], spec["workers"]), strict=True):
        part["resources"] = part["resources"] | {"ephemeral_storage": SIZES[role]}
    job = ClusterJob.write(namespace, spec | {"ttl_after_finished": MIN_TTL_SECONDS})
    job.submit()
    job.wait_training(workers=1)
    pods = {Role.MASTER: job.master(), **{role: namespace.observer.pod(job.pod_name(role, 0)) for role in ROLES[1:]}}
    for role, pod in pods.items():
        _is_bounded(pod, SIZES[role])
        name = pod["metadata"]["name"]
        assert f"E2E_BUCKET={VALUE}" in in_container(namespace, name, "cat", "/proc/1/environ").split("\0")
    _is_for_its_group(job)
    job.finish_quickly()
    assert job.wait_end() == "Complete"
    assert "secret/" in " ".join(job.leftovers()), "the token is there as long as the Job"
    ended = time.monotonic()
    job.wait_removed(MIN_TTL_SECONDS + REMOVED_SECONDS)
    assert time.monotonic() - ended > MIN_TTL_SECONDS / 2
    assert job.name not in namespace.user.edl("list").stdout


def _is_bounded(pod: Manifest, size: str) -> None:
    for container in pod["spec"]["containers"]:
        requested, most = (
            parse_quantity(container["resources"][kind]["ephemeral-storage"]) for kind in ("requests", "limits")
        )
        assert 0 < requested <= most == parse_quantity(size), pod["metadata"]["name"]


def _is_for_its_group(job: ClusterJob) -> None:
    """Others who use the volume read nothing of it; the value of a Secret stands in none of its files."""
    folder = f"{MOUNT}{STORAGE}/{job.namespace.name}/{job.name}/{job.uid}"
    modes = in_container(job.namespace, READER, "stat", "-c", "%a %u %g", folder, f"{folder}/spec.json")
    user = job.spec.get("security", {}).get("run_as", {"user": 1000, "group": 1000})
    whose = f"{user['user']} {user['group']}"
    assert modes.splitlines() == [f"750 {whose}", f"640 {whose}"]
    leaks = in_container(job.namespace, READER, "sh", "-c", f"grep -rl {VALUE} {folder} || true")
    assert leaks == ""
