"""The content of a submission: the rendered objects, the kinds of pods, and the objects they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, Role
from edl.api.job_spec import JobSpec
from edl.cluster.kubernetes.job_manifests import render_job, render_master_pod, render_pod
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.core.priority_rule import elevated_worker_count, parse_priority
from edl.jobfile.path_resolution import pod_storage_path
from edl.jobfile.strategy_choice import count_parameter_servers
from edl.ops.job_forecast import PodGroup

_PLACEHOLDER_TOKEN = "0" * 64
"""Replaces the token where nothing is created."""


@dataclass(frozen=True, slots=True)
class SubmissionRequest:
    """A submission.

    Attributes:
        job_name: name of the job.
        manifests: the result of ``render_job``, with the Job suspended.
        pod_groups: the kinds of pods of the job, as rendered.
        claims: names of the PersistentVolumeClaims that the pods mount.
        pull_secrets: names of the Secrets for pulling the image.
        replaces_ended: whether an ended Job of the same name may be replaced.
    """

    job_name: str
    manifests: Sequence[Manifest]
    pod_groups: Sequence[PodGroup]
    claims: Sequence[str] = ()
    pull_secrets: Sequence[str] = ()
    replaces_ended: bool = False


def build_request(
    spec: JobSpec, *, namespace: str | None = None, token: str = _PLACEHOLDER_TOKEN, run: str | None = None
) -> SubmissionRequest:
    """The request for a job.

    Args:
        namespace: None if no cluster is chosen yet.
        run: the run to resume: its id, or ``latest``.

    Raises:
        SpecError: the spec is not valid for a cluster.
    """
    manifests = render_job(spec, namespace=namespace, token=token, run=run, suspend=True)
    claims = [volume.claim for volume in spec.volumes] + [spec.storage.claim]
    return SubmissionRequest(
        spec.name,
        manifests,
        _pod_groups(spec, manifests[-1], namespace or "default"),
        tuple(dict.fromkeys(claim for claim in claims if claim)),
        spec.pod.image_pull_secrets,
        replaces_ended=run is not None,
    )


def _pod_groups(spec: JobSpec, job: Manifest, namespace: str) -> tuple[PodGroup, ...]:
    def render_role_pod(role: Role, options: PodOptions = DEFAULT_OPTIONS) -> Manifest:
        return render_pod(
            spec, role, 0, namespace=namespace, job_uid="", run_dir=pod_storage_path(spec), options=options
        )

    raised = elevated_worker_count(parse_priority(spec.workers.priority).share, spec.workers.max)
    groups = [
        PodGroup(Role.MASTER, 1, render_master_pod(job)),
        PodGroup(Role.PS, count_parameter_servers(spec), render_role_pod(Role.PS)),
        PodGroup(Role.WORKER, raised, render_role_pod(Role.WORKER, PodOptions(elevated=True))),
        PodGroup(Role.WORKER, spec.workers.max - raised, render_role_pod(Role.WORKER)),
    ]
    return tuple(group for group in groups if group.count)
