"""The command line of ElasticDL's tutorial on GKE, and the commands that the tutorial goes on with.

As it is but for the image, the cores and memory, which this cluster does not have, and a model that takes its time.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from e2e.jobs import ClusterJob, delete_pod, digits
from e2e.namespaces import Namespace
from e2e.observer import phase
from e2e.pods import SMALL_CPU
from e2e.programs import ProgramError, call
from e2e.volume import CLAIM, MOUNT

ELASTICDL = Path(sys.executable).with_name("elasticdl")
JOB = "test-mnist"


def command_line(namespace: Namespace) -> list[str]:
    """The tutorial's flags."""
    room = f"cpu={SMALL_CPU},memory=768Mi"
    pace = digits(JOB, image="", seconds=45, workers=4)["pod"]["env"]
    return [
        "train",
        f"--image_name={namespace.images.zoo}",
        "--model_zoo=model_zoo",
        "--model_def=paced.custom_model",
        f"--training_data={MOUNT}/mnist/train",
        f"--validation_data={MOUNT}/mnist/test",
        "--num_epochs=10",
        f"--master_resource_request={room}",
        f"--master_resource_limit={room}",
        "--master_pod_priority=high",
        f"--worker_resource_request={room}",
        "--worker_resource_limit=cpu=1,memory=1Gi",
        "--worker_pod_priority=low",
        f"--ps_resource_request={room}",
        f"--ps_resource_limit={room}",
        "--ps_pod_priority=high",
        "--minibatch_size=64",
        "--num_minibatches_per_task=4",
        "--num_ps_pods=2",
        "--num_workers=4",
        "--evaluation_steps=200",
        "--grads_to_wait=1",
        f"--job_name={JOB}",
        "--log_level=INFO",
        "--image_pull_policy=IfNotPresent",
        f"--volume=mount_path={MOUNT},claim_name={CLAIM}",
        "--distribution_strategy=ParameterServerStrategy",
        "--log_loss_steps=50",
        f"--envs={','.join(f'{name}={value}' for name, value in pace.items())}",
    ]


def printed(namespace: Namespace, pod: str, pattern: str) -> list[str]:
    """``kubectl logs POD | grep PATTERN``."""
    done = namespace.user.try_kubectl("logs", pod)
    return [line for line in done.stdout.splitlines() if re.search(pattern, line)]


@pytest.mark.timeout(420)
def test_the_tutorials_line(namespace: Namespace) -> None:
    environment = {} if namespace.user.kubeconfig is None else {"KUBECONFIG": str(namespace.user.kubeconfig)}
    flags = [*command_line(namespace), f"--namespace={namespace.name}"]
    submitted = call(ELASTICDL, *flags, env=environment, cwd=namespace.folder)
    if submitted.returncode:
        raise ProgramError(f"{submitted.stdout}\n{submitted.stderr}")
    assert f"The master pod is: elasticdl-{JOB}-master." in submitted.stdout
    job = ClusterJob(namespace, JOB, namespace.folder / ".edl/elasticdl" / f"{JOB}.yaml")
    job.wait_training(workers=4)

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
    job.finish_quickly()
    evaluations = job.wait_for(
        "a line with an evaluation", lambda: printed(namespace, f"elasticdl-{JOB}-master", "Evaluation") or None
    )
    assert re.search(r"Evaluation metrics\[v=[0-9]+\]: \{.*'accuracy': [0-9.]+", evaluations[0])

    assert job.wait_end() == "Complete"
    pods = lambda: {pod["metadata"]["name"]: phase(pod) for pod in namespace.observer.pods()}  # noqa: E731
    job.wait_for("the pod with the log ends", lambda: pods().get(f"elasticdl-{JOB}-master") == "Succeeded" or None, 30)
    assert printed(namespace, f"elasticdl-{JOB}-master", "job Done"), "it has the log to its end"
    summary = job.page("summary.json")
    assert (summary["records_lost"], summary["workers_lost"]) == (0, 1)
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []
