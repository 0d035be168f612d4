"""Renders a JobSpec as manifests: plain values, made without a cluster, a clock or random numbers.

``render_job`` renders what a user applies. A master starts from it and requests the pods that ``render_pod`` renders.
"""

from __future__ import annotations

import json
import math
import secrets

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, Role
from edl.api.job_spec import JobSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_template import (
    PodIdentity,
    apply_strategic_merge,
    render_log_pod_template,
    render_pod_template,
)
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, PODS, SECRETS, SERVICES, Manifest, ResourceKind
from edl.cluster.kubernetes.spec_validation import find_spec_problems
from edl.jobfile.document_tree import SpecError, SpecProblem
from edl.jobfile.loader import dump_job_spec

MASTER_BACKOFF_LIMIT = 2**31 - 1
"""Restarts of the master that Kubernetes allows: the maximum, because the master ends the job by its own rules."""


def new_job_token() -> str:
    """A random secret by which the job's processes authenticate each other."""
    return secrets.token_hex(32)


def render_job(
    spec: JobSpec,
    *,
    namespace: str | None,
    token: str | None,
    token_secret: str | None = None,
    run: str | None = None,
    suspend: bool = False,
) -> list[Manifest]:
    """The objects of a new job. The Job is last, because the others must exist when its master starts.

    Args:
        namespace: None leaves it to whoever applies the manifests.
        token: the job's token; None if ``token_secret`` is given.
        token_secret: name of an existing Secret with the token under the key ``token``; no Secret is rendered then.
        run: the run to resume: its id, or ``latest``.
        suspend: create the Job suspended, so that its master does not start yet.

    Raises:
        SpecError: the spec cannot run on a cluster; see ``find_spec_problems``.
    """
    assert (token is None) != (token_secret is None), "either a token or the name of the Secret that has it"
    if problems := find_spec_problems(spec):
        raise SpecError(
            [SpecProblem(f"job {spec.name}", each.field_path, each.message, each.hint) for each in problems]
        )
    secrets = [_token_secret(spec.name, token)] if token is not None else []
    identity = PodIdentity(Role.MASTER, 0, token_secret or names.token_secret(spec.name), run=run)
    job = _job_manifest(spec, identity, suspend)
    manifests = [_spec_configmap(spec), _status_configmap(spec.name), *secrets, _master_service(spec), job]
    return [_with_namespace(manifest, namespace) for manifest in manifests]


def render_pod(
    spec: JobSpec,
    role: Role,
    index: int,
    *,
    namespace: str,
    job_uid: str,
    run_dir: str,
    options: PodOptions = DEFAULT_OPTIONS,
    token_secret: str | None = None,
    spec_uid: str = "",
) -> Manifest:
    """The pod of a parameter server or worker, owned by the job's Job.

    Args:
        spec: as submitted, or with its paths resolved for pods: both give the same pod.
        job_uid: uid of the Job; empty if there is none yet, and the pod then has no owner.
        run_dir: directory of the run, as pods see it.
        token_secret: name of the Secret with the token; by default the one that ``render_job`` renders.
        spec_uid: uid of the job's ConfigMap; empty if it is unknown, and ``kubectl drain`` then needs ``--force``.
    """
    identity = PodIdentity(role, index, token_secret or names.token_secret(spec.name), namespace, run_dir)
    name = names.pod_name(spec.name, role, index, spec.pod.name_prefix)
    pod = _make_object(PODS, name, render_pod_template(spec, identity, options))
    if job_uid:
        controllers = [controller_reference(spec.name, spec_uid)] if spec_uid else []
        pod["metadata"]["ownerReferences"] = [owner_reference(spec.name, job_uid), *controllers]
    return _with_namespace(pod, namespace)


def render_log_pod(
    spec: JobSpec, *, namespace: str, job_uid: str, run_dir: str, since: float, spec_uid: str = ""
) -> Manifest:
    """The pod that prints the master's log, owned by the job's Job; see ``master.log_pod``."""
    name = names.log_pod_name(spec.name, spec.pod.name_prefix)
    pod = _make_object(PODS, name, render_log_pod_template(spec, run_dir, since))
    controllers = [controller_reference(spec.name, spec_uid)] if spec_uid else []
    pod["metadata"]["ownerReferences"] = [owner_reference(spec.name, job_uid), *controllers]
    return _with_namespace(pod, namespace)


def render_master_pod(job: Manifest) -> Manifest:
    """The pod that the Job controller will make from a rendered Job, for a dry run on an API server."""
    pod = _make_object(PODS, job["metadata"]["name"], job["spec"]["template"])
    return _with_namespace(pod, job["metadata"].get("namespace"))


def owner_reference(job: str, uid: str) -> Manifest:
    """The owner reference with which an object is deleted together with the job's Job.

    The Job is not its controller and does not block on its deletion: otherwise the Job controller would remove the
    reference.
    """
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.name,
        "name": names.master_name(job),
        "uid": uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


def controller_reference(job: str, spec_uid: str) -> Manifest:
    """The controller reference that ``kubectl drain`` and cluster autoscalers require of a pod.

    They accept ``controller: true`` with any kind. It cannot be the Job, whose controller would remove the reference.
    So it is the job's ConfigMap. The Job owns the ConfigMap, so the pod is still deleted with the Job.
    """
    return {
        "apiVersion": CONFIGMAPS.api_version,
        "kind": CONFIGMAPS.name,
        "name": names.spec_configmap(job),
        "uid": spec_uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _job_manifest(spec: JobSpec, identity: PodIdentity, suspend: bool) -> Manifest:
    ttl = spec.ttl_after_finished
    annotations = {} if identity.run is None else {names.RUN_ANNOTATION: identity.run}
    if spec.task != "train":
        annotations[names.TASK_ANNOTATION] = spec.task
    content: Manifest = {
        "metadata": {
            "labels": names.object_labels(spec.name, Role.MASTER),
            "annotations": annotations,
        },
        "spec": {
            "suspend": suspend,
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": MASTER_BACKOFF_LIMIT,
            # a pod on a lost node stays Terminating; its successor must not wait until it has failed
            "podReplacementPolicy": "TerminatingOrFailed",
            **({} if ttl is None else {"ttlSecondsAfterFinished": math.ceil(ttl)}),
            "template": render_pod_template(spec, identity),
        },
    }
    return _make_object(JOBS, names.master_name(spec.name), content)


def _spec_configmap(spec: JobSpec) -> Manifest:
    text = json.dumps(dump_job_spec(spec), indent=2, ensure_ascii=False) + "\n"
    return _make_object(
        CONFIGMAPS, names.spec_configmap(spec.name), {**_labelled_metadata(spec.name), "data": {names.SPEC_KEY: text}}
    )


def _status_configmap(job: str) -> Manifest:
    return _make_object(CONFIGMAPS, names.status_configmap(job), {**_labelled_metadata(job), "data": {}})


def _token_secret(job: str, token: str) -> Manifest:
    content = {"type": "Opaque", "immutable": True, "stringData": {names.TOKEN_KEY: token}}
    return _make_object(SECRETS, names.token_secret(job), _labelled_metadata(job) | content)


def _master_service(spec: JobSpec) -> Manifest:
    content: Manifest = {
        "type": "ClusterIP",
        "selector": {names.JOB_LABEL: spec.name, names.ROLE_LABEL: Role.MASTER.value},
        "ports": [{"name": "control", "port": names.CONTROL_PORT, "targetPort": "control"}],
    }
    merged = apply_strategic_merge({"metadata": {}, "spec": content}, spec.master.service_overrides)
    # after the overrides, which must not replace these labels
    labels = merged["metadata"].get("labels", {}) | names.object_labels(spec.name, Role.MASTER)
    metadata = {"labels": labels, "annotations": merged["metadata"].get("annotations", {})}
    return _make_object(SERVICES, names.master_name(spec.name), {"metadata": metadata, "spec": merged["spec"]})


def _labelled_metadata(job: str) -> Manifest:
    return {"metadata": {"labels": names.object_labels(job)}}


def _make_object(kind: ResourceKind, name: str, content: Manifest) -> Manifest:
    metadata = {key: value for key, value in content["metadata"].items() if value}
    head = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name, **metadata}}
    return head | {key: value for key, value in content.items() if key != "metadata"}


def _with_namespace(manifest: Manifest, namespace: str | None) -> Manifest:
    if namespace is None:
        return manifest
    name, rest = manifest["metadata"]["name"], manifest["metadata"]
    return manifest | {"metadata": {"name": name, "namespace": namespace, **{k: rest[k] for k in rest if k != "name"}}}
