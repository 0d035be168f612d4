"""Names, labels and annotations of everything that a job is made of on Kubernetes."""

from __future__ import annotations

from edl.api.cluster_port import Role

JOB, ROLE, INDEX = "edl.dev/job", "edl.dev/role", "edl.dev/index"
ELEVATED = "edl.dev/elevated"
"""Label of a worker that has the higher class of a divided priority."""
DESIRED = "edl.dev/desired"
"""Annotation of the Job: what people want of it, as JSON; see ``edl.cluster.status_port.Desired``."""
RUN = "edl.dev/run"
"""Annotation of the Job and of its pod template: the run that it goes on with, or ``latest``."""
SUBMISSION = "edl.dev/submission"
"""Annotation of the Job: which call of ``edl submit`` made it. Tells a request that arrived twice from a taken name."""
INCARNATION = "edl.dev/incarnation"
"""Annotation of the Lease: the number of the newest master."""
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
"""Label that the Job controller puts on the master's pod: the uid of the Job."""
LATEST = "latest"
AT_CHECKPOINT = "@checkpoint"
"""Behind a run in that annotation: it goes on from its newest intact checkpoint, without its journal."""

MANAGED_BY = "edl"
MASTER_ACCOUNT, POD_ACCOUNT = "edl-job-master", "edl-none"
CONTROL_PORT, BULK_PORT = 7070, 7071
CONTAINER = "edl"
"""The one container of every pod."""

SPEC_KEY, TOKEN_KEY = "job.json", "token"
SPEC_DIR, TOKEN_DIR = "/etc/edl/spec", "/etc/edl/token"
RUNTIME_DIR, HOME_DIR = "/run/edl", "/home/edl"


def master(job: str) -> str:
    """Name of the Job, the Service and the Lease of a job's master."""
    return f"edl-{job}-master"


def pod(job: str, role: Role, index: int) -> str:
    """Name of a parameter server's or worker's pod."""
    return f"edl-{job}-{role}-{index}"


def spec(job: str) -> str:
    """Name of the ConfigMap that holds the JobSpec."""
    return f"edl-{job}-spec"


def status(job: str) -> str:
    """Name of the ConfigMap in which the master publishes."""
    return f"edl-{job}-status"


def token(job: str) -> str:
    """Name of the Secret that holds the job's token."""
    return f"edl-{job}-token"


def master_address(job: str, namespace: str) -> str:
    """Where workers and parameter servers reach the master."""
    return f"{master(job)}.{namespace}:{CONTROL_PORT}"


def labels(job: str, role: Role | None = None, index: int | None = None) -> dict[str, str]:
    """Labels of an object of a job; of a pod, with its role and index."""
    found = {
        "app.kubernetes.io/name": "edl",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/part-of": "edl",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        JOB: job,
    }
    if role is not None:
        found |= {"app.kubernetes.io/component": role.value, ROLE: role.value}
    if index is not None:
        found[INDEX] = str(index)
    return found


def selector(job: str | None = None, role: Role | None = None, index: int | None = None) -> str:
    """Label selector of all that belongs to a job (of any job: None), or of its pods of a role."""
    parts = [JOB if job is None else f"{JOB}={job}"]
    if role is not None:
        parts.append(f"{ROLE}={role}")
    if index is not None:
        parts.append(f"{INDEX}={index}")
    return ",".join(parts)
