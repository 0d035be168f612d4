"""A job under test: its file, `edl` commands on it, and what the API says of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e.namespaces import Namespace
from e2e.observer import ObjectChange, condition, container, phase
from e2e.pods import SMALL_CPU
from e2e.programs import Done, ProgramError, apply, call, kubectl
from e2e.volume import CLAIM, MOUNT

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import Manifest

Found = TypeVar("Found")

MINIBATCH, TASK, EPOCHS, RECORDS = 64, 4, 10, 4096
"""Of every job here: its final metric is compared with that of others."""
STEPS = EPOCHS * math.ceil(RECORDS / MINIBATCH)
START_SECONDS = 120.0
"""From submission to the first step: pods, TensorFlow's import in several of them at once on few processors."""
END_SECONDS = 240.0
UNDISTURBED_SECONDS = 12.0
"""What an undisturbed job trains for (e2e/baseline.py), and any other from the moment in which it is hurried."""


def digits(
    name: str, *, image: str, seconds: float, workers: int, ps: int = 1, cpu: float = 0.1, **fields: Any
) -> Manifest:
    """A job file that trains digits for about ``seconds`` with ``workers`` workers of ``cpu`` cores, unless hurried."""
    small = {"resources": {"cpu": SMALL_CPU, "memory": "512Mi"}}
    a_step = lambda total: f"{total * workers / STEPS:.3f}"  # noqa: E731
    pace = {
        "E2E_STEP_SECONDS": a_step(seconds),
        "E2E_HURRY": _hurry_file(name),
        "E2E_HURRY_SECONDS": a_step(min(seconds, UNDISTURBED_SECONDS)),
    }
    return {
        "apiVersion": "edl.dev/v1",
        "name": name,
        "image": image,
        "model": {"zoo": "model_zoo", "definition": "paced.custom_model"},
        "data": {"training": f"{MOUNT}/mnist/train", "validation": f"{MOUNT}/mnist/test"},
        "train": {"epochs": EPOCHS, "minibatch_size": MINIBATCH, "minibatches_per_task": TASK},
        "checkpoint": {"every_steps": 40},
        "export": None,
        "master": small,
        "ps": {"count": ps, **small},
        "workers": {"min": 1, "max": workers, "resources": {"cpu": cpu, "memory": "1Gi"}},
        "volumes": [{"claim": CLAIM, "mount": MOUNT}],
        "pod": {"env": {**pace, "PYTHONPATH": "/model_zoo/timing"}},
    } | fields


def _hurry_file(job: str) -> str:
    """The file on the volume that tells a job's workers to train on without long pauses."""
    return f"{MOUNT}/hurry-{job}"


@dataclass(frozen=True)
class ClusterJob:
    """One job in one namespace.

    Attributes:
        place: its namespace.
        name: of the job.
        file: of the job, on this machine.
    """

    namespace: Namespace
    name: str
    file: Path

    @classmethod
    def write(cls, namespace: Namespace, spec: Manifest) -> ClusterJob:
        """Write the job file."""
        file = namespace.folder / f"{spec['name']}.json"
        file.write_text(json.dumps(spec, indent=1))
        return cls(namespace, spec["name"], file)

    @property
    def spec(self) -> Manifest:
        """What the job file says."""
        document: Manifest = json.loads(self.file.read_text())
        return document

    # ------------------------------------------------------------------ commands

    def edl(self, command: str, *options: str, seconds: float = 120.0) -> Done:
        """``edl COMMAND JOB`` in the job's namespace, with a data scientist's rights, whatever its exit code."""
        subject = self.file if command == "submit" else self.name
        done = self.namespace.user.edl(command, subject, *options, seconds=seconds)
        with (self.namespace.folder / "commands.txt").open("a") as log:
            log.write(
                f"$ edl {command} {subject} {' '.join(options)}\n{done.stdout}{done.stderr}(exit {done.returncode})\n\n"
            )
        return done

    def run_edl(self, command: str, *options: str, seconds: float = 120.0) -> str:
        """The same, of a command that must succeed; its standard output."""
        done = self.edl(command, *options, seconds=seconds)
        if done.returncode:
            raise ProgramError(f"edl {command} {self.name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def submit(self, *options: str) -> None:
        """``edl submit --yes``: returns when the master has started."""
        self.run_edl("submit", "--yes", "--detach", *options)

    def render_manifests(self) -> str:
        """``edl render``."""
        done = self.namespace.user.edl("render", self.file)
        if done.returncode:
            raise ProgramError(f"edl render: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def submit_applied(self) -> None:
        """``edl render | kubectl apply -f -``: looks whether the objects are there, which needs to read Secrets."""
        apply(self.render_manifests(), "-n", self.namespace.name)

    def submit_created(self) -> None:
        """``edl render | kubectl create -f -``, with a data scientist's rights."""
        self.namespace.user.kubectl("create", "-f", "-", stdin=self.render_manifests())

    def why(self) -> str:
        """What ``edl why`` says, in lower case."""
        return self.run_edl("why").lower()

    # ------------------------------------------------------------------ what the API says

    @property
    def batch_job(self) -> Manifest:
        """The master's Job; empty if there is none."""
        return self.namespace.observer.job(names.master_name(self.name)) or {}

    @property
    def uid(self) -> str:
        """Uid of the Job: the id of the run."""
        return str(self.batch_job["metadata"]["uid"])

    def page(self, name: str) -> Any:
        """A page of the status ConfigMap, such as ``summary.json``; None while the master has not published it."""
        text = self.namespace.observer.config_map_data(names.status_configmap(self.name)).get(name)
        return json.loads(text) if text else None

    def status(self) -> Mapping[str, Any]:
        """The newest status; empty before the first."""
        return self.page("status.json") or {}

    def masters(self) -> list[Manifest]:
        """The master's pods, also those that are going."""
        return self.namespace.observer.pods(job=self.name, role=Role.MASTER.value)

    def master(self) -> Manifest:
        """The newest of the master's pods."""
        masters = self.wait_for("a master's pod", lambda: self.masters() or None)
        return max(masters, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def workers(self) -> dict[int, Manifest]:
        """The workers' pods by index."""
        pods = self.namespace.observer.pods(job=self.name, role=Role.WORKER.value)
        return {int(pod["metadata"]["labels"][names.INDEX_LABEL]): pod for pod in pods}

    def in_phase(self, *phases: str) -> list[int]:
        """Indices of the workers whose pods are in one of these phases."""
        return [index for index, pod in sorted(self.workers().items()) if phase(pod) in phases]

    def training_workers(self) -> list[int]:
        """Indices of the workers that hold a training lease, as the master says."""
        return sorted(worker["index"] for worker in self.status().get("workers", ()) if worker["state"] == "training")

    def pod_name(self, role: Role, index: int) -> str:
        """Name of a worker's or PS's pod."""
        return names.pod_name(self.name, role, index)

    def end_condition(self) -> str | None:
        """``Complete`` or ``FailureHandler`` when the Job has ended."""
        return next(
            (kind for kind in ("Complete", "Failed") if self.batch_job and condition(self.batch_job, kind)), None
        )

    # ------------------------------------------------------------------ waiting

    def wait_for(self, what: str, wanted: Callable[[], Found | None], seconds: float = START_SECONDS) -> Found:
        """The first result of ``wanted``; an error tells what the job was doing instead."""
        try:
            return self.namespace.observer.wait_for(f"job {self.name}: {what}", wanted, seconds)
        except AssertionError as error:
            error.add_note(f"status: {json.dumps(self.status())}")
            raise

    def wait_step(self, step: int, seconds: float = START_SECONDS) -> None:
        """Wait until ``step`` steps are done."""
        self.wait_for(f"step {step}", lambda: self.status().get("step", 0) >= step, seconds)

    def wait_training(self, *, workers: int, seconds: float = START_SECONDS) -> list[int]:
        """Wait until exactly this many workers train; their indices."""
        find_indices = lambda: indices if len(indices := self.training_workers()) == workers else None  # noqa: E731
        return self.wait_for(f"{workers} workers train", find_indices, seconds)

    def wait_more_steps(self, steps: int = 10, seconds: float = 60.0) -> None:
        """Wait until training has gone on by some steps from now."""
        self.wait_step(int(self.status().get("step", 0)) + steps, seconds)

    def finish_quickly(self) -> None:
        """Train the rest at the pace of undisturbed jobs: what was to be seen has been seen."""
        self.namespace.volume.create_file(_hurry_file(self.name))

    def wait_end(self, seconds: float = END_SECONDS) -> str:
        """Wait until the Job has ended: ``Complete`` or ``FailureHandler``."""
        return self.wait_for("its end", self.end_condition, seconds)

    def wait_incarnation(self, beyond: int, seconds: float = START_SECONDS) -> Mapping[str, Any]:
        """Wait for a status of a later master."""
        newer = lambda: status if (status := self.status()).get("incarnation", 0) > beyond else None  # noqa: E731
        return self.wait_for(f"a master after incarnation {beyond}", newer, seconds)

    # ------------------------------------------------------------------ what happened

    def first_change(self, wanted: Callable[[ObjectChange], bool]) -> ObjectChange | None:
        """The first wanted change of a pod of this job."""
        own = lambda change: change.labels.get(names.JOB_LABEL) == self.name  # noqa: E731
        return self.namespace.observer.first_change(lambda change: own(change) and wanted(change))

    def leftovers(self) -> list[str]:
        """Everything that still has the job's label, of all kinds that a job is made of."""
        kinds = "jobs,pods,services,configmaps,secrets,leases"
        return self.namespace.kubectl("get", kinds, "-l", names.label_selector(self.name), "-o", "name").split()

    def wait_removed(self, seconds: float = 60.0) -> None:
        """Wait until nothing with the job's label is left."""
        self.wait_for("nothing is left", lambda: not (self.leftovers()) or None, seconds)

    def worker_uids(self) -> dict[int, tuple[str, int]]:
        """Uid and restarts of each worker's pod: what adoption must not change."""
        return {
            index: (pod["metadata"]["uid"], container(pod).get("restartCount", 0))
            for index, pod in self.workers().items()
        }

    def ps_uids(self) -> dict[str, str]:
        """Uid of each PS's pod, by name."""
        pods = self.namespace.observer.pods(job=self.name, role=Role.PS.value)
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def delete_pod(namespace: Namespace, name: str, *options: str) -> None:
    """``kubectl delete pod`` by a user, without waiting for its end."""
    namespace.user.kubectl("delete", "pod", name, "--wait=false", *options)


def evict_pod(namespace: Namespace, name: str) -> None:
    """Evict a pod as ``kubectl drain`` does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace.name}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{name}/eviction"
    kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def in_container(namespace: Namespace, pod: str, *command: str) -> str:
    """Run a command in a pod's container, which it may bring down; its standard output."""
    return call("kubectl", "-n", namespace.name, "exec", pod, "--", *command).stdout
