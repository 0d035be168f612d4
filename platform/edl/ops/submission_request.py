"""What a submission asks a cluster for: the rendered objects, the kinds of pods that follow, what these need there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.api.cluster_port import PLAIN, Role, Wish
from edl.cluster.kubernetes.job_manifests import master_pod, render_job, render_pod
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.core.worker_priority import elevated, parse
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.path_resolution import pod_storage
from edl.ops.job_forecast import Crowd

_NO_TOKEN = "0" * 64
"""Stands for the token wherever nothing is created."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be submitted.

    Attributes:
        job: its name.
        manifests: of ``render_job``, the Job suspended.
        crowds: the kinds of pods that there will be, as rendered.
        claims: names of the PersistentVolumeClaims that the pods mount.
        pull_secrets: names of the Secrets that the image is pulled with.
        replaces: whether a Job of that name that has ended may be replaced.
    """

    job: str
    manifests: Sequence[Manifest]
    crowds: Sequence[Crowd]
    claims: Sequence[str] = ()
    pull_secrets: Sequence[str] = ()
    replaces: bool = False


def request_of(
    spec: JobSpec, *, namespace: str | None = None, token: str = _NO_TOKEN, run: str | None = None
) -> Request:
    """The request for a job.

    Args:
        namespace: None while no cluster is chosen.
        run: the run to go on with: its id, or ``latest``.

    Raises:
        SpecError: the spec is unfit for a cluster.
    """
    manifests = render_job(spec, namespace=namespace, token=token, run=run, suspend=True)
    claims = [volume.claim for volume in spec.volumes] + [spec.storage.claim]
    return Request(
        spec.name,
        manifests,
        _crowds(spec, manifests[-1], namespace or "default"),
        tuple(dict.fromkeys(claim for claim in claims if claim)),
        spec.pod.image_pull_secrets,
        replaces=run is not None,
    )


def _crowds(spec: JobSpec, job: Manifest, namespace: str) -> tuple[Crowd, ...]:
    def pod(role: Role, wish: Wish = PLAIN) -> Manifest:
        return render_pod(spec, role, 0, namespace=namespace, job_uid="", run_dir=pod_storage(spec), wish=wish)

    raised = elevated(parse(spec.workers.priority).share, spec.workers.max)
    found = [
        Crowd(Role.MASTER, 1, master_pod(job)),
        Crowd(Role.PS, spec.ps.count, pod(Role.PS)),
        Crowd(Role.WORKER, raised, pod(Role.WORKER, Wish(elevated=True))),
        Crowd(Role.WORKER, spec.workers.max - raised, pod(Role.WORKER)),
    ]
    return tuple(crowd for crowd in found if crowd.count)
