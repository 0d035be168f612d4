"""Names, labels and annotations of the Kubernetes objects of a job."""

from __future__ import annotations

from edl.api.cluster_port import Role

JOB_LABEL, ROLE_LABEL, INDEX_LABEL = "edl.dev/job", "edl.dev/role", "edl.dev/index"
ELEVATED_LABEL = "edl.dev/elevated"
"""Label of a worker that has the higher class of a divided priority."""
DESIRED_ANNOTATION = "edl.dev/desired"
"""Annotation of the Job: its desired state as JSON; see ``edl.cluster.status_port.DesiredState``."""
RUN_ANNOTATION = "edl.dev/run"
"""Annotation of the Job and its pod template: the run to resume, see ``edl.storage.run_directory.NEWEST_RUN``."""
TASK_ANNOTATION = "edl.dev/task"
"""Annotation of the Job of a job that does not train: evaluate or predict."""
SUBMISSION_ANNOTATION = "edl.dev/submission"
"""Annotation of the Job: id of the call of ``edl submit`` that created it. If the name is taken, the id tells whether
the same call created it before, with a request that was repeated."""
INCARNATION_ANNOTATION = "edl.dev/incarnation"
"""Annotation of the Lease: number of the newest master."""
CONTROLLER_UID_LABEL = "batch.kubernetes.io/controller-uid"
"""Label of the master's pod, set by the Job controller: uid of the Job."""

MANAGED_BY = "edl"
MASTER_ACCOUNT, POD_ACCOUNT = "edl-job-master", "edl-none"
CONTROL_PORT, BULK_PORT = 7070, 7071
ROLE_CONTAINER = "edl"
"""Name of the role's container in every pod."""

SPEC_KEY, TOKEN_KEY = "job.json", "token"
SPEC_DIR, TOKEN_DIR = "/etc/edl/spec", "/etc/edl/token"
RUNTIME_DIR, HOME_DIR = "/run/edl", "/home/edl"


def master_name(job: str) -> str:
    """Name of the Job, the Service and the Lease of a job's master."""
    return f"edl-{job}-master"


def pod_name(job: str, role: Role, index: int, prefix: str = "edl") -> str:
    """Name of a parameter server's or worker's pod; ``prefix`` is ``pod.name_prefix``."""
    return f"{prefix}-{job}-{role}-{index}"


def log_pod_name(job: str, prefix: str) -> str:
    """Name of the pod that prints the master's log; ``prefix`` is ``pod.name_prefix``."""
    return f"{prefix}-{job}-master"


def spec_configmap(job: str) -> str:
    """Name of the ConfigMap with the JobSpec."""
    return f"edl-{job}-spec"


def status_configmap(job: str) -> str:
    """Name of the ConfigMap with the published status."""
    return f"edl-{job}-status"


def token_secret(job: str) -> str:
    """Name of the Secret with the job's token."""
    return f"edl-{job}-token"


def master_address(job: str, namespace: str) -> str:
    """Address of the master for workers and parameter servers."""
    return f"{master_name(job)}.{namespace}:{CONTROL_PORT}"


def object_labels(job: str, role: Role | None = None, index: int | None = None) -> dict[str, str]:
    """Labels of an object of a job; for a pod also its role and index."""
    labels = {
        "app.kubernetes.io/name": "edl",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/part-of": "edl",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        JOB_LABEL: job,
    }
    if role is not None:
        labels |= {"app.kubernetes.io/component": role.value, ROLE_LABEL: role.value}
    if index is not None:
        labels[INDEX_LABEL] = str(index)
    return labels


def label_selector(job: str | None = None, role: Role | None = None, index: int | None = None) -> str:
    """Label selector of a job's objects (with None of all jobs), optionally of the pods of one role."""
    parts = [JOB_LABEL if job is None else f"{JOB_LABEL}={job}"]
    if role is not None:
        parts.append(f"{ROLE_LABEL}={role}")
    if index is not None:
        parts.append(f"{INDEX_LABEL}={index}")
    return ",".join(parts)
