"""What is refused before anything is made: one clear message, exit code 2, nothing half-created."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import pytest
from e2e import figures
from e2e.conftest import MakeNamespace
from e2e.images import JobImages
from e2e.jobs import ClusterJob, digits
from e2e.namespaces import Namespace
from e2e.pods import pod
from e2e.programs import apply, call, edl
from e2e.volume import CLAIM, MOUNT

from edl.cluster.kubernetes.resource_kinds import Manifest

pytestmark = [pytest.mark.xdist_group("bad-input"), pytest.mark.in_turn(0)]


@pytest.fixture
def namespace(make_namespace: MakeNamespace) -> Namespace:
    """A namespace without data: nothing gets as far as reading it."""
    return make_namespace(training=False)


@pytest.fixture
def spec(namespace: Namespace) -> Manifest:
    """A job that would run."""
    return digits("refused", image=namespace.images.zoo, seconds=10, workers=1)


def check_refused(namespace: Namespace, spec: Manifest, *told: str) -> None:
    """Submission ends with code 2, says all of this, and leaves nothing."""
    job = ClusterJob.write(namespace, spec)
    done = job.edl("submit", "--yes")
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert [text for text in told if text not in output] == [], output
    assert job.leftovers() == []


def test_each_refusal_says_what_and_leaves_nothing(namespace: Namespace, spec: Manifest) -> None:
    check_refused(namespace, spec | {"master": {**spec["master"], "priority": "urgent"}}, "urgent", "PriorityClass")
    check_refused(namespace, spec | {"volumes": [{"claim": "no-such-claim", "mount": MOUNT}]}, "no-such-claim")
    host = {"volumes": [{"host_path": "/tmp", "mount": MOUNT}]}
    check_refused(namespace, spec | host, "restricted", "hostPath")
    of_another = {"env": spec["pod"]["env"] | {"KEY": {"secret": "database", "key": "password"}}}
    check_refused(namespace, spec | {"pod": of_another}, "environment of a container", "admission.allowedSecrets")
    check_refused(namespace, spec | {"name": "x" * 41}, "name")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"requests.cpu": "60m"}},
    }
    apply(quota, "-n", namespace.name)
    check_refused(namespace, spec, "quota", "tight")
    namespace.kubectl("delete", "resourcequota", "tight")


def test_a_name_that_is_taken(namespace: Namespace, spec: Manifest, data: Path) -> None:
    namespace.copy_to_claim(data, "/mnist")
    first = ClusterJob.write(namespace, spec)
    first.submit()
    second = first.edl("submit", "--yes")
    assert second.returncode == 2
    assert "refused" in second.stderr
    assert first.batch_job, "the first goes on"
    first.run_edl("delete", "--yes")
    assert first.leftovers() == []


def test_a_volume_that_the_uid_cannot_write(namespace: Namespace, spec: Manifest) -> None:
    """The master's container ends with the uid and the path; submit ends with code 1 and removes everything."""
    volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}}]
    mounts = [{"name": "shared", "mountPath": MOUNT}]
    locking = pod(
        "locking",
        namespace.images.submitter,
        "install",
        "-d",
        "-m",
        "0755",
        f"{MOUNT}/locked",
        volumes=volumes,
        mounts=mounts,
        restartPolicy="Never",
    )
    locking["spec"]["securityContext"]["runAsUser"] = 2000
    apply(locking, "-n", namespace.name)
    namespace.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/locking", "--timeout=60s")
    job = ClusterJob.write(namespace, spec | {"storage": {"path": f"{MOUNT}/locked"}})
    done = job.edl("submit", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1000" in done.stdout + done.stderr
    assert f"{MOUNT}/locked" in done.stdout + done.stderr
    job.wait_removed()


def test_an_image_without_the_entry_point(namespace: Namespace, spec: Manifest) -> None:
    """As the node sees it: `edl-role` is nowhere on the PATH of the container."""
    env = spec["pod"]["env"] | {"PATH": "/nowhere"}
    job = ClusterJob.write(namespace, spec | {"pod": spec["pod"] | {"env": env}})
    done = job.edl("submit", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "edl-role" in done.stdout + done.stderr
    job.wait_removed()


def test_an_image_that_cannot_be_a_master(namespace: Namespace, spec: Manifest) -> None:
    """The light image has an `edl-role`, and none for masters: what the container said is passed on."""
    job = ClusterJob.write(namespace, spec | {"image": namespace.images.submitter})
    done = job.edl("submit", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the image has no gRPC" in done.stdout + done.stderr
    job.wait_removed()


def test_no_cluster(job_images: JobImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    file = tmp_path / "job.json"
    file.write_text(json.dumps(digits("refused", image=job_images.zoo, seconds=10, workers=1)))
    done = edl("submit", file, "--yes", "--namespace", "any")
    assert done.returncode == 2
    assert "KUBECONFIG" in done.stderr


@pytest.mark.alone
def test_a_client_dry_run_is_light(make_namespace: MakeNamespace) -> None:
    """It contacts nothing, does not import the Kubernetes client, and answers at once: the median of five."""
    namespace = make_namespace(volume=False)
    job = ClusterJob.write(namespace, digits("refused", image=namespace.images.zoo, seconds=10, workers=1))
    times = []
    for _ in range(5):
        began = time.monotonic()
        job.run_edl("submit", "--dry-run=client")
        times.append(time.monotonic() - began)
    figures.record_duration("dry_run_client", statistics.median(times), of=[round(value, 2) for value in times])
    probe = call("kubectl", "-n", namespace.name, "get", "jobs", "-o", "name")
    assert "refused" not in probe.stdout
