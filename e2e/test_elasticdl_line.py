"""The command line of ElasticDL's tutorial on GKE, and the commands that the tutorial goes on with.

As it is but for the image: its name, that it is pulled only where it is not there, because the nodes of a test have it
already, and that its model takes its time (``zoo/mnist``). Cores and memory are as typed on a cluster with room for ten
pods of two cores, and small ones on any other. Thirteen nodes of two cores have that room: up to three of them run
small pods.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from e2e.capacity import count_fitting_pods, node_offers
from e2e.conftest import MakeNamespace
from e2e.jobs import ClusterJob, delete_pod
from e2e.namespaces import Namespace
from e2e.observer import phase
from e2e.pods import SMALL_CPU, template
from e2e.programs import EDL, ProgramError, apply, call, run_program
from e2e.volume import CLAIM, MOUNT

ELASTICDL = Path(sys.executable).with_name("elasticdl")
JOB = "test-mnist"
TYPED = "cpu=2,memory=2048Mi"
"""What the tutorial asks for each pod, and each pod of its nginx."""
TYPED_CPU = 2
NGINX_REPLICAS = 5


RECORDS = 12_000
"""A fifth of MNIST, in four files and so in four tasks an epoch: each worker has one."""


@pytest.fixture(scope="module")
def tutorial_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in MNIST's format, as many as the tutorial's tasks need to keep four workers busy."""
    folder = tmp_path_factory.mktemp("tutorial") / "mnist"
    write = ("data", "mnist", folder, "--source", "digits", "--records", str(RECORDS), "--compression", "snappy")
    run_program(EDL, *write)
    return folder


def command_line(namespace: Namespace, *, request: str, worker_limit: str) -> list[str]:
    """The tutorial's flags."""
    return [
        "train",
        f"--image_name={namespace.images.zoo}",
        "--model_zoo=model_zoo",
        "--model_def=mnist.mnist_functional_api.custom_model",
        f"--training_data={MOUNT}/mnist/train",
        f"--validation_data={MOUNT}/mnist/test",
        "--num_epochs=5",
        f"--master_resource_request={request}",
        f"--master_resource_limit={request}",
        "--master_pod_priority=high",
        f"--worker_resource_request={request}",
        f"--worker_resource_limit={worker_limit}",
        "--worker_pod_priority=low",
        f"--ps_resource_request={request}",
        f"--ps_resource_limit={request}",
        "--ps_pod_priority=high",
        "--minibatch_size=64",
        "--num_minibatches_per_task=64",
        "--num_ps_pods=2",
        "--num_workers=4",
        "--evaluation_steps=200",
        "--grads_to_wait=1",
        f"--job_name={JOB}",
        "--log_level=INFO",
        "--image_pull_policy=IfNotPresent",
        f"--volume=mount_path={MOUNT},claim_name={CLAIM}",
        "--distribution_strategy=ParameterServerStrategy",
    ]


def printed(namespace: Namespace, pod: str, pattern: str) -> list[str]:
    """``kubectl logs POD | grep PATTERN``."""
    done = namespace.user.try_kubectl("logs", pod)
    return [line for line in done.stdout.splitlines() if re.search(pattern, line)]


def submit(namespace: Namespace, flags: list[str]) -> ClusterJob:
    """``elasticdl train``, until four workers train."""
    environment = {} if namespace.user.kubeconfig is None else {"KUBECONFIG": str(namespace.user.kubeconfig)}
    submitted = call(ELASTICDL, *flags, f"--namespace={namespace.name}", env=environment, cwd=namespace.folder)
    if submitted.returncode:
        raise ProgramError(f"{submitted.stdout}\n{submitted.stderr}")
    assert f"The master pod is: elasticdl-{JOB}-master." in submitted.stdout
    job = ClusterJob(namespace, JOB, namespace.folder / ".edl/elasticdl" / f"{JOB}.yaml")
    job.wait_training(workers=4)
    return job


def check_pods_and_deletion(job: ClusterJob) -> None:
    """The tutorial's pods and labels; ``kubectl delete pod …-worker-0`` gives worker-4; the greps in the logs."""
    namespace = job.namespace
    listed = namespace.user.kubectl("get", "pods", "-o", "name").replace("pod/", "").split()
    roles = [*(f"worker-{index}" for index in range(4)), "ps-0", "ps-1", "master"]
    assert {f"elasticdl-{JOB}-{role}" for role in roles} <= set(listed)
    own = f"elasticdl-job-name={JOB},elasticdl-replica-type=worker"
    workers = namespace.user.kubectl("get", "pods", "-l", own, "-o", "name").split()
    assert len(workers) == 4

    delete_pod(namespace, f"elasticdl-{JOB}-worker-0")
    job.wait_for("worker-4 trains", lambda: 4 in job.training_workers() or None)
    loss = job.wait_for("a line with the loss", lambda: printed(namespace, f"elasticdl-{JOB}-worker-1", "Loss") or None)
    assert re.search(r"Loss = [0-9.e-]+, steps = [0-9]+", loss[0])


def check_evaluation_and_end(job: ClusterJob, *, workers_lost: int) -> None:
    """The master's lines, the end of the pod that has its log, and the count of records."""
    namespace = job.namespace
    job.finish_quickly()
    evaluations = job.wait_for(
        "a line with an evaluation", lambda: printed(namespace, f"elasticdl-{JOB}-master", "Evaluation") or None
    )
    assert re.search(r"Evaluation metrics\[v=[0-9]+\]: \{.*'accuracy': [0-9.]+", evaluations[0])

    assert job.wait_end() == "Complete"
    pods = lambda: {pod["metadata"]["name"]: phase(pod) for pod in namespace.observer.pods()}  # noqa: E731
    job.wait_for("the pod with the log ends", lambda: pods().get(f"elasticdl-{JOB}-master") == "Succeeded" or None, 30)
    assert printed(namespace, f"elasticdl-{JOB}-master", "job Done"), "it has the log to its end"
    finished = namespace.user.kubectl("get", "pods", "-l", "status=Finished", "-o", "name").split()
    assert f"pod/elasticdl-{JOB}-master" in finished, "as scripts of ElasticDL ask"
    summary = job.page("summary.json")
    assert (summary["records_lost"], summary["workers_lost"]) == (0, workers_lost)
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []


@pytest.mark.timeout(420)
@pytest.mark.in_turn(0)
def test_the_tutorials_line(make_namespace: MakeNamespace, tutorial_data: Path) -> None:
    namespace = make_namespace(training=False)
    namespace.copy_to_claim(tutorial_data, "/mnist")
    room = f"cpu={SMALL_CPU},memory=768Mi"
    job = submit(namespace, command_line(namespace, request=room, worker_limit="cpu=1,memory=1Gi"))
    check_pods_and_deletion(job)
    check_evaluation_and_end(job, workers_lost=1)


def start_nginx(namespace: Namespace, name: str, replicas: int) -> None:
    """A Deployment like the tutorial's ``test-nginx``: two cores and 2 GiB a pod, priority ``high``."""
    labels = {"app": name}
    pods = template(
        namespace.images.submitter,
        "sleep",
        "infinity",
        labels=labels,
        cpu=str(TYPED_CPU),
        memory="2048Mi",
        priorityClassName="high",
    )
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pods}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    apply(deployment, "-n", namespace.name)

    def all_run() -> bool | None:
        running = [
            pod
            for pod in namespace.observer.pods()
            if pod["metadata"].get("labels", {}).get("app") == name and phase(pod) == "Running"
        ]
        return len(running) == replicas or None

    namespace.observer.wait_for(f"{name} has its room", all_run, 90)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_tutorials_line_with_requests_as_typed(make_namespace: MakeNamespace, tutorial_data: Path) -> None:
    """Its seven pods of two cores, its deleted worker, its nginx that takes three workers' room, and the way back."""
    namespace, other = make_namespace(training=False), make_namespace("nginx", volume=False)
    namespace.copy_to_claim(tutorial_data, "/mnist")
    room = count_fitting_pods(node_offers(namespace.api), TYPED_CPU)
    # The seven pods, two of nginx's five, and a node of which the pod with the log takes a little.
    if room < 10:
        pytest.skip(f"the nodes have room for {room} pods of two cores, and the tutorial needs 10")
    job = submit(namespace, command_line(namespace, request=TYPED, worker_limit=TYPED))
    check_pods_and_deletion(job)

    spare = count_fitting_pods(node_offers(namespace.api), TYPED_CPU)
    fitting_replicas = NGINX_REPLICAS - 3
    if spare > fitting_replicas:
        start_nginx(other, "filler", spare - fitting_replicas)
    start_nginx(other, "test-nginx", NGINX_REPLICAS)
    job.wait_training(workers=1, seconds=90)
    waiting = job.in_phase("Pending")
    assert len(waiting) == 3
    job.wait_more_steps()

    other.kubectl("scale", "deployment/test-nginx", "--replicas=1")
    job.wait_for("the workers that waited train", lambda: set(waiting) <= set(job.training_workers()) or None, 120)
    check_evaluation_and_end(job, workers_lost=4)
