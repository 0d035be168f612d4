"""One job as one release of the chart ``edl-job``: Helm sees how it ends; what removes the release removes the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from e2e.conftest import MakeNamespace
from e2e.jobs import END_SECONDS, START_SECONDS, ClusterJob, digits, in_container
from e2e.namespaces import Namespace
from e2e.observer import ADDED, DELETED, ObjectChange, condition, container, phase
from e2e.programs import ROOT, Done
from e2e.releases import HelmRelease
from e2e.volume import MOUNT

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.jobfile.loader import load_job_text

CHART = ROOT / "helm" / "edl-job"
HELM_SECONDS = 420
"""As long as Helm waits for a job's end here."""
WAIT = ("--wait", "--wait-for-jobs", f"--timeout={HELM_SECONDS}s")
INSTANCE = "app.kubernetes.io/instance"
KINDS = "cronjobs,jobs,pods,configmaps,services,secrets,leases"


@dataclass(frozen=True)
class TrainingRelease:
    """A release that trains.

    Attributes:
        job: as its file says.
        release: of the chart.
    """

    job: ClusterJob
    release: HelmRelease

    @classmethod
    def write_release(cls, namespace: Namespace, release: str, spec: Manifest) -> TrainingRelease:
        """A release that is to be, and its job file."""
        return cls(
            ClusterJob.write(namespace, spec), HelmRelease(release, namespace.name, CHART, seconds=HELM_SECONDS + 30)
        )

    @property
    def namespace(self) -> Namespace:
        """The namespace."""
        return self.job.namespace

    def values(self, **more: Any) -> Manifest:
        """The chart's own values: the submitter's image is the one under test."""
        repository, _, tag = self.namespace.images.submitter.rpartition(":")
        return {"submitter": {"image": {"repository": repository, "tag": tag}}, **more}

    def install(self, *options: str, **more: Any) -> Done:
        """``helm install -f job.json``; its end is told in ``commands.txt``, whatever it is."""
        return self._log_command(self.release.try_install(self.values(**more), "-f", str(self.job.file), *options))

    def upgrade(self, *options: str, **more: Any) -> Done:
        """``helm upgrade`` with the job file as it is now."""
        return self._log_command(self.release.try_upgrade(self.values(**more), "-f", str(self.job.file), *options))

    @contextmanager
    def install_meanwhile(self, *options: str) -> Iterator[Future[Done]]:
        """``helm install``, while the block runs beside it."""
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(self.install, *options)

    def submitters(self) -> list[Manifest]:
        """The submitter's pods, those that ended too."""
        return [pod for pod in self.namespace.observer.pods(role="submitter") if self._belongs_here(pod)]

    def submitter(self, *, other_than: str = "") -> Manifest:
        """The submitter's pod that runs, when there is one."""
        find_running = lambda: next(  # noqa: E731
            (
                pod
                for pod in self.submitters()
                if phase(pod) == "Running" and pod["metadata"]["uid"] != other_than and container(pod).get("ready")
            ),
            None,
        )
        return self.job.wait_for("a submitter runs", find_running)

    def wait_for_end(self) -> str:
        """Waits until the submitter's Job has ended: ``Complete`` or ``FailureHandler``."""

        def find_end() -> str | None:
            jobs = [change.object for change in self.namespace.observer.changes(JOBS) if self._is_submitter(change)]
            return next((kind for kind in ("Complete", "Failed") for job in jobs if condition(job, kind)), None)

        return self.job.wait_for("the submitter's Job has ended", find_end, 30)

    def remaining_objects(self) -> list[str]:
        """All that this release and its job have in the namespace."""
        listed = lambda selector: self.namespace.kubectl("get", KINDS, "-l", selector, "-o", "name").split()  # noqa: E731
        return listed(f"{INSTANCE}={self.release.name}") + listed(names.JOB_LABEL)

    def wait_left(self) -> None:
        """Wait until nothing is left of it."""
        self.job.wait_for("nothing is left", lambda: not self.remaining_objects() or None, 90)

    def _belongs_here(self, found: Manifest) -> bool:
        return (found["metadata"].get("labels") or {}).get(INSTANCE) == self.release.name

    def _is_submitter(self, change: ObjectChange) -> bool:
        return self._belongs_here(change.object) and change.labels.get(names.ROLE_LABEL) == "submitter"

    def _log_command(self, done: Done) -> Done:
        with (self.namespace.folder / "commands.txt").open("a") as log:
            log.write(f"$ {' '.join(done.args)}\n{done.stdout}{done.stderr}(exit {done.returncode})\n\n")
        return done


def small_spec(namespace: Namespace, name: str, *, seconds: float, **fields: Any) -> Manifest:
    """A job of 64 steps by one worker, which take about ``seconds``."""
    spec = digits(name, image=namespace.images.zoo, seconds=10 * seconds, workers=1, **fields)
    spec["train"]["epochs"] = 1
    return spec


def masters(training: TrainingRelease) -> list[Manifest]:
    """Every master Job that there ever was, by uid."""
    added = (change for change in training.namespace.observer.changes(JOBS) if change.type == ADDED)
    jobs_by_uid = {change.uid: change.object for change in added if change.labels.get(names.ROLE_LABEL) == "master"}
    return list(jobs_by_uid.values())


def test_a_release_runs_a_job_to_its_end(namespace: Namespace) -> None:
    """`helm install --wait --wait-for-jobs` ends when the job is done; the job belongs to the release."""
    training = TrainingRelease.write_release(namespace, "train-mnist", small_spec(namespace, "mnist", seconds=5))
    done = training.install(*WAIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert training.job.wait_end(10) == "Complete"
    assert training.wait_for_end() == "Complete"
    (master,) = masters(training)
    assert master["metadata"]["labels"][INSTANCE] == "train-mnist"
    (owner,) = master["metadata"]["ownerReferences"]
    assert owner["name"].startswith("train-mnist-submit-")
    again = training.upgrade(*WAIT)
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(masters(training)) == 1, "an upgrade without a change runs nothing"
    training.release.uninstall()
    training.wait_left()


@pytest.mark.in_turn(1)
def test_a_job_that_fails_fails_its_release(namespace: Namespace) -> None:
    """The model crashes: Helm ends with an error, and the Job is Failed for whoever looks at it."""
    spec = small_spec(namespace, "crashing", seconds=2)
    spec["model"]["definition"] = "crashing.custom_model"
    spec["pod"]["env"]["E2E_CRASH_STEP"] = "1"
    training = TrainingRelease.write_release(namespace, "train-crashing", spec)
    done = training.install(*WAIT)
    assert done.returncode != 0, done.stdout
    assert training.wait_for_end() == "Failed"
    assert len(masters(training)) == 1, "a job that failed is not submitted again"
    (exit_code,) = {container(pod)["state"]["terminated"]["exitCode"] for pod in training.submitters()}
    assert exit_code == 1
    training.release.uninstall()
    training.wait_left()


@pytest.mark.in_turn(1)
def test_a_job_that_is_refused_fails_its_release(make_namespace: MakeNamespace) -> None:
    """A claim that nobody has: the reason stands in the status of the submitter's pod, and no master is left."""
    namespace = make_namespace(volume=False)
    spec = small_spec(namespace, "lost", seconds=2) | {"volumes": [{"claim": "nobodys", "mount": MOUNT}]}
    training = TrainingRelease.write_release(namespace, "train-lost", spec)
    done = training.install(*WAIT)
    assert done.returncode != 0, done.stdout
    assert training.wait_for_end() == "Failed"
    (pod,) = training.submitters()
    end = container(pod)["state"]["terminated"]
    assert end["exitCode"] == 2
    assert "nobodys" in end["message"]
    assert training.job.leftovers() == []
    training.release.uninstall()
    training.wait_left()


@pytest.mark.in_turn(2)
def test_an_upgrade_replaces_the_job(namespace: Namespace) -> None:
    """The old job's pods are gone before the new master starts; the old submitter does nothing to the new job."""
    training = TrainingRelease.write_release(namespace, "train-mnist", small_spec(namespace, "mnist", seconds=300))
    training.install()
    training.job.wait_training(workers=1)
    (old,) = masters(training)
    training.job.file.write_text(json.dumps(small_spec(namespace, "mnist", seconds=5)))
    done = training.upgrade(*WAIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert training.wait_for_end() == "Complete"
    first, second = masters(training)
    assert first["metadata"]["uid"] == old["metadata"]["uid"]
    assert training.job.uid == second["metadata"]["uid"], "nobody touched the new one"
    assert training.job.wait_end(10) == "Complete"
    changes = [change for change in namespace.observer.changes() if change.labels.get(names.JOB_LABEL) == "mnist"]
    started = next(at for at, change in enumerate(changes) if is_pod_of(second, change))
    before = {change.uid for change in changes[:started]}
    gone = {change.uid for change in changes[:started] if change.type == DELETED}
    assert before == gone, "a pod of the old job was there when the new master came"
    training.release.uninstall()
    training.wait_left()


@pytest.mark.long  # test_a_stopped_job_goes_on_later, without Helm
def test_an_upgrade_goes_on_with_a_job_that_was_stopped(namespace: Namespace) -> None:
    """The master publishes the earlier end, too; the release ends as the job does that goes on."""
    training = TrainingRelease.write_release(namespace, "train-mnist", small_spec(namespace, "mnist", seconds=40))
    training.install()
    training.job.wait_step(20)
    run = training.job.status()["run"]
    training.job.run_edl("stop")
    assert training.job.wait_end() == "Failed"
    done = training.upgrade(*WAIT, resume="latest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert training.wait_for_end() == "Complete"
    assert len(masters(training)) == 2
    assert training.job.wait_end(10) == "Complete"
    status = training.job.status()
    assert (status["run"], status["phase"]) == (run, "Done")
    training.release.uninstall()
    training.wait_left()


def is_pod_of(master: Manifest, change: ObjectChange) -> bool:
    """Whether a pod is that of a master Job."""
    return change.labels.get(names.CONTROLLER_UID_LABEL) == master["metadata"]["uid"]


@pytest.mark.long  # what it renders is checked with the charts; it waits for the minute
def test_a_schedule_starts_a_job(namespace: Namespace) -> None:
    """Every minute: a job under a name of its own, which goes with its Job when the history has no room for it."""
    training = TrainingRelease.write_release(namespace, "nightly", small_spec(namespace, "nightly", seconds=2))
    done = training.install(schedule="* * * * *", successfulJobsHistoryLimit=0)
    assert done.returncode == 0, done.stdout + done.stderr
    submitted = training.job.wait_for("the first job", lambda: masters(training) or None, 60 + START_SECONDS)
    name = submitted[0]["metadata"]["labels"][names.JOB_LABEL]
    assert name.startswith("nightly-")
    assert name.removeprefix("nightly-").isdecimal()
    complete = lambda: any(  # noqa: E731
        condition(change.object, "Complete") for change in namespace.observer.changes(JOBS) if change.uid == uid
    )
    uid = submitted[0]["metadata"]["uid"]
    training.job.wait_for("it is done", lambda: complete() or None, END_SECONDS)
    first = ClusterJob(namespace, name, training.job.file)
    first.wait_removed(90)
    training.release.uninstall()
    training.wait_left()


@pytest.mark.in_turn(2)
def test_values_that_are_kept_keep_their_nulls(make_namespace: MakeNamespace) -> None:
    """`--reset-then-reuse-values` changes one field; Helm's `--reuse-values` would lose the nulls at the top."""
    namespace = make_namespace(volume=False)
    training = TrainingRelease.write_release(
        namespace, "nightly", small_spec(namespace, "nightly", seconds=2) | {"checkpoint": None}
    )
    training.install(schedule="@yearly", suspend=True)
    done = training.release.try_upgrade({"train": {"epochs": 7}}, "--reset-then-reuse-values")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = lambda: namespace.observer.config_map_data("nightly-submit").get(names.SPEC_KEY)  # noqa: E731
    spec_text = training.job.wait_for(
        "the change", lambda: text if '"epochs":7' in (text := pages() or "") else None, 10
    )
    spec = load_job_text(spec_text, "the ConfigMap")
    assert (spec.checkpoint, spec.export, spec.train.epochs) == (None, None, 7)
    assert spec.train.minibatch_size == training.job.spec["train"]["minibatch_size"]


@pytest.mark.in_turn(1)
def test_uninstall_in_the_middle_leaves_nothing(namespace: Namespace) -> None:
    """Pods, Jobs, ConfigMaps, Services, Secrets, Leases: all that came with the release goes with it."""
    before = set(namespace.kubectl("get", KINDS, "-o", "name").split())
    training = TrainingRelease.write_release(namespace, "train-mnist", small_spec(namespace, "mnist", seconds=300))
    training.install()
    training.job.wait_training(workers=1)
    training.release.uninstall()
    training.wait_left()
    assert set(namespace.kubectl("get", KINDS, "-o", "name").split()) <= before


@pytest.mark.in_turn(2)
def test_a_submitter_that_is_killed_changes_nothing(namespace: Namespace) -> None:
    """Its pod is deleted, its container ends, its pod is forced away, while Helm waits: one job, to its end."""
    training = TrainingRelease.write_release(namespace, "train-mnist", small_spec(namespace, "mnist", seconds=60))
    with training.install_meanwhile(*WAIT) as running:
        training.job.wait_training(workers=1)
        uid = training.job.uid
        pod = training.submitter()
        namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        pod = training.submitter(other_than=pod["metadata"]["uid"])
        name = pod["metadata"]["name"]
        # Process 1 ignores SIGTERM until it has a handler for it; it has when it writes its first line.
        training.job.wait_for("the submitter writes its first line", lambda: namespace.kubectl("logs", name) or None)
        in_container(namespace, pod["metadata"]["name"], "python3", "-c", "import os; os.kill(1, 15)")
        pod = training.submitter(other_than=pod["metadata"]["uid"])
        namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")
        training.job.finish_quickly()
        done = running.result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert training.wait_for_end() == "Complete"
    (master,) = masters(training)
    assert master["metadata"]["uid"] == uid == training.job.uid
    assert training.job.wait_end(10) == "Complete"


@pytest.mark.in_turn(0)
def test_what_cannot_be_submitted_installs_nothing(make_namespace: MakeNamespace) -> None:
    """No job at all, and an account that the namespace does not have: one sentence each, before anything is made."""
    namespace = make_namespace(volume=False)
    release = HelmRelease("train-nothing", namespace.name, CHART)
    nothing = release.try_install({})
    assert nothing.returncode != 0
    assert nothing.stderr.count("no job is given: the values of this chart are a job file") == 1
    training = TrainingRelease.write_release(namespace, "train-nobody", small_spec(namespace, "mnist", seconds=2))
    nobody = training.install("--set", "submitter.serviceAccount=nobody")
    assert nobody.returncode != 0
    assert f'the namespace "{namespace.name}" has no ServiceAccount "nobody"' in nobody.stderr
    assert training.remaining_objects() == []
    assert "sh.helm.release.v1.train" not in namespace.kubectl("get", "secrets", "-o", "name")
