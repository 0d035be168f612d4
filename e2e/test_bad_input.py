"""What is refused before anything is made: one clear message, exit code 2, nothing half-created."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import pytest
from e2e import figures
from e2e.conftest import Places
from e2e.images import Images
from e2e.jobs import Job, digits
from e2e.namespaces import Namespace
from e2e.pods import pod
from e2e.programs import apply, call, edl
from e2e.volume import CLAIM, MOUNT

from edl.cluster.kubernetes.resource_kinds import Manifest

pytestmark = pytest.mark.xdist_group("bad-input")


@pytest.fixture
def place(places: Places) -> Namespace:
    """A namespace without data: nothing gets as far as reading it."""
    return places(training=False)


@pytest.fixture
def spec(place: Namespace) -> Manifest:
    """A job that would run."""
    return digits("refused", image=place.images.zoo, seconds=10, workers=1)


def refused(place: Namespace, spec: Manifest, *told: str) -> None:
    """Submission ends with code 2, says all of this, and leaves nothing."""
    job = Job.write(place, spec)
    done = job.edl("submit", "--yes")
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert [text for text in told if text not in said] == [], said
    assert job.leftovers() == []


def test_each_refusal_says_what_and_leaves_nothing(place: Namespace, spec: Manifest) -> None:
    refused(place, spec | {"master": {**spec["master"], "priority": "urgent"}}, "urgent", "PriorityClass")
    refused(place, spec | {"volumes": [{"claim": "no-such-claim", "mount": MOUNT}]}, "no-such-claim")
    host = {"volumes": [{"host_path": "/tmp", "mount": MOUNT}]}
    refused(place, spec | host, "restricted", "hostPath")
    of_another = {"env": spec["pod"]["env"] | {"KEY": {"secret": "database", "key": "password"}}}
    refused(place, spec | {"pod": of_another}, "environment of a container", "admission.allowedSecrets")
    refused(place, spec | {"name": "x" * 41}, "name")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"requests.cpu": "60m"}},
    }
    apply(quota, "-n", place.name)
    refused(place, spec, "quota", "tight")
    place.kubectl("delete", "resourcequota", "tight")


def test_a_name_that_is_taken(place: Namespace, spec: Manifest, data: Path) -> None:
    place.bring(data, "/mnist")
    first = Job.write(place, spec)
    first.submit()
    second = first.edl("submit", "--yes")
    assert second.returncode == 2
    assert "refused" in second.stderr
    assert first.batch_job, "the first goes on"
    first.must("delete", "--yes")
    assert first.leftovers() == []


def test_a_volume_that_the_uid_cannot_write(place: Namespace, spec: Manifest) -> None:
    """The master's container ends with the uid and the path; submit ends with code 1 and removes everything."""
    volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}}]
    mounts = [{"name": "shared", "mountPath": MOUNT}]
    locking = pod(
        "locking",
        place.images.submitter,
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
    apply(locking, "-n", place.name)
    place.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/locking", "--timeout=60s")
    job = Job.write(place, spec | {"storage": {"path": f"{MOUNT}/locked"}})
    done = job.edl("submit", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1000" in done.stdout + done.stderr
    assert f"{MOUNT}/locked" in done.stdout + done.stderr
    job.wait_removed()


def test_an_image_without_the_entry_point(place: Namespace, spec: Manifest) -> None:
    """As the node sees it: `edl-role` is nowhere on the PATH of the container."""
    env = spec["pod"]["env"] | {"PATH": "/nowhere"}
    job = Job.write(place, spec | {"pod": spec["pod"] | {"env": env}})
    done = job.edl("submit", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "The image has no edl-role" in done.stdout + done.stderr
    job.wait_removed()


def test_an_image_that_cannot_be_a_master(place: Namespace, spec: Manifest) -> None:
    """The light image has an `edl-role`, and none for masters: what the container said is passed on."""
    job = Job.write(place, spec | {"image": place.images.submitter})
    done = job.edl("submit", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the image has no gRPC" in done.stdout + done.stderr
    job.wait_removed()


def test_no_cluster(built: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    file = tmp_path / "job.json"
    file.write_text(json.dumps(digits("refused", image=built.zoo, seconds=10, workers=1)))
    done = edl("submit", file, "--yes", "--namespace", "any")
    assert done.returncode == 2
    assert "KUBECONFIG" in done.stderr


@pytest.mark.alone
def test_a_client_dry_run_is_light(places: Places) -> None:
    """It contacts nothing, does not import the Kubernetes client, and answers at once: the median of five."""
    place = places(volume=False)
    job = Job.write(place, digits("refused", image=place.images.zoo, seconds=10, workers=1))
    times = []
    for _ in range(5):
        began = time.monotonic()
        job.must("submit", "--dry-run=client")
        times.append(time.monotonic() - began)
    figures.record("dry_run_client", statistics.median(times), of=[round(value, 2) for value in times])
    probe = call("kubectl", "-n", place.name, "get", "jobs", "-o", "name")
    assert "refused" not in probe.stdout
