"""A JobSpec as manifests: plain values, made without a cluster, a clock or chance.

``render_job`` is what a person applies; from it a master starts, and asks for the pods that ``render_pod`` describes.
"""

from __future__ import annotations

import json
import math

from edl.api.cluster_port import PLAIN, Role, Wish
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_template import Place, template
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, PODS, SECRETS, SERVICES, Kind, Manifest
from edl.cluster.kubernetes.spec_validation import notes as notes
from edl.cluster.kubernetes.spec_validation import problems as problems
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.loader import dump
from edl.jobfile.problems import Problem, SpecError

BACKOFF_LIMIT = 2**31 - 1
"""Restarts of the master that Kubernetes allows: all there can be, since the master ends the job by its own rules."""


def render_job(
    spec: JobSpec,
    *,
    namespace: str | None,
    token: str | None,
    token_secret: str | None = None,
    run: str | None = None,
    suspend: bool = False,
) -> list[Manifest]:
    """Everything that a job is begun with; the Job comes last, as ``edl submit`` wants it.

    Args:
        namespace: None leaves it to whoever applies the manifests.
        token: the job's secret; None when ``token_secret`` is given.
        token_secret: name of a Secret that exists and holds the token under ``token``; none is rendered then.
        run: the run to go on with: its id, or ``latest``.
        suspend: whether the Job waits before it starts its master.

    Raises:
        SpecError: the spec is unfit for a cluster; see ``problems``.
    """
    assert (token is None) != (token_secret is None), "either a token or the name of the Secret that holds it"
    if found := problems(spec):
        raise SpecError([Problem(f"job {spec.name}", each.path, each.message, each.hint) for each in found])
    secrets = [_secret(spec.name, token)] if token is not None else []
    place = Place(Role.MASTER, 0, token_secret or names.token(spec.name), run=run)
    job = _job(spec, place, suspend)
    manifests = [_spec(spec), _status(spec.name), *secrets, _service(spec.name), job]
    return [_placed(manifest, namespace) for manifest in manifests]


def render_pod(
    spec: JobSpec,
    role: Role,
    index: int,
    *,
    namespace: str,
    job_uid: str,
    run_dir: str,
    wish: Wish = PLAIN,
    token_secret: str | None = None,
    spec_uid: str = "",
) -> Manifest:
    """The pod of a parameter server or worker, owned by the job's Job.

    Args:
        spec: as submitted, or with its paths resolved for pods: both give the same pod.
        job_uid: uid of the Job; empty while there is none, then nobody owns the pod.
        run_dir: directory of the run, as pods see it.
        token_secret: name of the Secret that holds the token; by default the one that ``render_job`` renders.
        spec_uid: uid of the job's ConfigMap; empty while it is not known, then ``kubectl drain`` needs ``--force``.
    """
    place = Place(role, index, token_secret or names.token(spec.name), namespace, run_dir)
    pod = _object(PODS, names.pod(spec.name, role, index), template(spec, place, wish))
    if job_uid:
        controllers = [controller(spec.name, spec_uid)] if spec_uid else []
        pod["metadata"]["ownerReferences"] = [owner(spec.name, job_uid), *controllers]
    return _placed(pod, namespace)


def master_pod(job: Manifest) -> Manifest:
    """The pod that the Job controller will make of a rendered Job, to be shown to an API server beforehand."""
    pod = _object(PODS, job["metadata"]["name"], job["spec"]["template"])
    return _placed(pod, job["metadata"].get("namespace"))


def owner(job: str, uid: str) -> Manifest:
    """The reference by which an object is deleted with the job's Job.

    Not as a controller, and without blocking the deletion: the Job controller strips the reference otherwise.
    """
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.name,
        "name": names.master(job),
        "uid": uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


def controller(job: str, spec_uid: str) -> Manifest:
    """The reference that ``kubectl drain`` and cluster autoscalers ask a pod for: to what would make it anew.

    They look for ``controller: true`` of whatever kind, and the Job cannot be that: its controller strips the
    reference. The job's ConfigMap, which the Job owns, stands for it, so that the pod still goes when the Job goes.
    """
    return {
        "apiVersion": CONFIGMAPS.api_version,
        "kind": CONFIGMAPS.name,
        "name": names.spec(job),
        "uid": spec_uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _job(spec: JobSpec, place: Place, suspend: bool) -> Manifest:
    ttl = spec.ttl_after_finished
    content: Manifest = {
        "metadata": {
            "labels": names.labels(spec.name, Role.MASTER),
            "annotations": {} if place.run is None else {names.RUN: place.run},
        },
        "spec": {
            "suspend": suspend,
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": BACKOFF_LIMIT,
            "podReplacementPolicy": "TerminatingOrFailed",
            **({} if ttl is None else {"ttlSecondsAfterFinished": math.ceil(ttl)}),
            "template": template(spec, place),
        },
    }
    return _object(JOBS, names.master(spec.name), content)


def _spec(spec: JobSpec) -> Manifest:
    text = json.dumps(dump(spec), indent=2, ensure_ascii=False) + "\n"
    return _object(CONFIGMAPS, names.spec(spec.name), {**_labelled(spec.name), "data": {names.SPEC_KEY: text}})


def _status(job: str) -> Manifest:
    return _object(CONFIGMAPS, names.status(job), {**_labelled(job), "data": {}})


def _secret(job: str, token: str) -> Manifest:
    content = {"type": "Opaque", "immutable": True, "stringData": {names.TOKEN_KEY: token}}
    return _object(SECRETS, names.token(job), _labelled(job) | content)


def _service(job: str) -> Manifest:
    content: Manifest = {
        "type": "ClusterIP",
        "selector": {names.JOB: job, names.ROLE: Role.MASTER.value},
        "ports": [{"name": "control", "port": names.CONTROL_PORT, "targetPort": "control"}],
    }
    metadata = {"metadata": {"labels": names.labels(job, Role.MASTER)}}
    return _object(SERVICES, names.master(job), {**metadata, "spec": content})


def _labelled(job: str) -> Manifest:
    return {"metadata": {"labels": names.labels(job)}}


def _object(kind: Kind, name: str, content: Manifest) -> Manifest:
    metadata = {key: value for key, value in content["metadata"].items() if value}
    head = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name, **metadata}}
    return head | {key: value for key, value in content.items() if key != "metadata"}


def _placed(manifest: Manifest, namespace: str | None) -> Manifest:
    if namespace is None:
        return manifest
    name, rest = manifest["metadata"]["name"], manifest["metadata"]
    return manifest | {"metadata": {"name": name, "namespace": namespace, **{k: rest[k] for k in rest if k != "name"}}}
