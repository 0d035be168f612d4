"""What is tried with the token of a job's master, by the rows of docs/reference/rights.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from e2e import rights_objects
from e2e.api_requests import ApiRequest, create, delete, delete_shown, get, merge, operations, post
from e2e.rights_objects import FOREIGN, OTHER, OTHER_CLASS, OWN, STRANGER, RightsObjects
from e2e.user_requests import ANNOTATION, host_accesses, role_binding, run_in_pod, secret_uses, token_of, token_request

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names

_OTHER_JOB = {"metadata": {"labels": {names.JOB_LABEL: OTHER}}}


def master_requests(at: RightsObjects) -> dict[str, ApiRequest]:
    """Requests by their rows; what deletes a thing comes after what changes it."""
    return dict([*_without_right(at), *_services(at), *_status_requests(at), *_leases(at), *_pods(at), *_secrets(at)])


def _core(at: RightsObjects, plural: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{at.namespace}/{plural}" + (f"/{name}" if name else "")


def _job(at: RightsObjects, job: str) -> str:
    return f"/apis/batch/v1/namespaces/{at.namespace}/jobs/{names.master_name(job)}"


def _lease(at: RightsObjects, job: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{at.namespace}/leases/{names.master_name(job)}"


def _without_right(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    token = _core(at, "secrets", names.token_secret(OWN))
    yield "read the token of its job", get(token)
    yield "list Secrets", get(_core(at, "secrets"))
    yield "create a Secret", create(at.namespace, rights_objects.secret(names.token_secret("tried"), OWN))
    yield "change the token of its job", merge(token, {"metadata": {"ownerReferences": [at.owner(OWN)]}})
    yield "list ConfigMaps", get(_core(at, "configmaps"))
    yield "create a ConfigMap", create(at.namespace, rights_objects.config("tried", OWN))
    yield "create a Job", create(at.namespace, rights_objects.job("tried", names.object_labels(OWN)))
    yield "delete its Job", delete(_job(at, OWN))
    yield "delete its Lease", delete(_lease(at, OWN))
    yield "create a RoleBinding", role_binding(at)
    yield "create a token of its account", token_request(at)
    yield "exec into its worker", run_in_pod(_core(at, "pods", names.pod_name(OWN, Role.WORKER, 0)))
    yield "list nodes", get("/api/v1/nodes")
    yield "list pods of another namespace", get("/api/v1/namespaces/kube-system/pods")


def _secrets(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    yield "delete the token of another job", delete(_core(at, "secrets", names.token_secret(OTHER)))
    yield "delete an unlabelled Secret", delete(_core(at, "secrets", FOREIGN))
    yield "delete an unlabelled Secret such that it is shown", delete_shown(_core(at, "secrets", FOREIGN))
    yield "delete the token of its job", delete(_core(at, "secrets", names.token_secret(OWN)))


def _services(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    owned = {"metadata": {"ownerReferences": [at.owner(OWN)]}}
    own, other = (_core(at, "services", names.master_name(job)) for job in (OWN, OTHER))
    yield "own the Service of its job", merge(own, owned)
    yield "own the Service of another job", merge(other, owned)
    ports = operations(own, ("replace", "/spec/ports/0/port", 7071))
    yield "change the ports of the Service of its job", ports


def _status_requests(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    own, other = (_core(at, "configmaps", names.status_configmap(job)) for job in (OWN, OTHER))
    page = {"data": {"page": "2"}}
    yield "publish in the status of its job", merge(own, page)
    yield "publish in the status of another job", merge(other, page)
    yield "change an unlabelled ConfigMap", merge(_core(at, "configmaps", STRANGER), page)
    yield "give its ConfigMap to another job", merge(own, _OTHER_JOB)
    yield "annotate its Job", merge(_job(at, OWN), ANNOTATION)
    yield "have its Job run two pods at once", merge(_job(at, OWN), {"spec": {"parallelism": 2}})
    yield "annotate the Job of another job", merge(_job(at, OTHER), ANNOTATION)
    yield (
        "write an event",
        post(
            _core(at, "events"),
            "v1",
            "Event",
            involvedObject={"kind": "Pod", "namespace": at.namespace, "name": rights_objects.MASTER_POD},
            reason="Tried",
        ),
    )


def _leases(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    renewed = {"spec": {"holderIdentity": "tried"}}
    yield "take its Lease", create(at.namespace, rights_objects.lease(OWN))
    yield "renew its Lease", merge(_lease(at, OWN), renewed)
    yield "take the Lease of another job", create(at.namespace, rights_objects.lease("third"))
    yield "renew the Lease of another job", merge(_lease(at, OTHER), renewed)


def _pods(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    own, other = (_core(at, "pods", names.pod_name(job, Role.WORKER, 0)) for job in (OWN, OTHER))
    yield "label its worker", merge(own, {"metadata": {"labels": {names.ELEVATED_LABEL: "true"}}})
    yield "give its worker to another job", merge(own, _OTHER_JOB)
    yield "label the worker of another job", merge(other, {"metadata": {"labels": {names.ELEVATED_LABEL: "true"}}})
    yield "delete its worker", delete(own)
    yield "delete the worker of another job", delete(other)
    yield "delete an unlabelled pod", delete(_core(at, "pods", STRANGER))
    yield from _workers(at)


def _workers(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    def worker_request(of: str = OWN, owner: str | None = OWN, **spec: Any) -> ApiRequest:
        worker_pod = at.worker(names.pod_name(of, Role.WORKER, 1), of, **spec)
        worker_pod["metadata"]["ownerReferences"] = [at.owner(owner)] if owner else []
        return create(at.namespace, worker_pod)

    def controlled_request(kind: str, of: str) -> ApiRequest:
        worker_pod = at.worker(names.pod_name(OWN, Role.WORKER, 1), OWN)
        keeper = {
            "apiVersion": "v1",
            "kind": kind,
            "name": names.spec_configmap(of),
            "uid": at.uids[of],
            "controller": True,
        }
        worker_pod["metadata"]["ownerReferences"] = [at.owner(OWN), keeper]
        return create(at.namespace, worker_pod)

    yield "create a worker", worker_request()
    yield "create a worker that its job's ConfigMap controls", controlled_request("ConfigMap", OWN)
    yield "create a worker that another job's ConfigMap controls", controlled_request("ConfigMap", OTHER)
    yield "create a worker that a Secret controls", controlled_request("Secret", OWN)
    yield "create a worker of another job", worker_request(OTHER, OTHER)
    yield "create a worker that nobody owns", worker_request(owner=None)
    yield "create a worker that another Job owns", worker_request(owner=OTHER)
    yield "create a worker under its own account", worker_request(serviceAccountName=names.MASTER_ACCOUNT)
    yield "create a worker of another PriorityClass", worker_request(priorityClassName=OTHER_CLASS)
    yield "create a worker with the token of its job", worker_request(**token_of(OWN))
    yield "create a worker with the token of another job", worker_request(**token_of(OTHER))
    for way, spec in secret_uses(FOREIGN).items():
        yield f"create a worker with a foreign Secret: {way}", worker_request(**spec)
    for what, spec in host_accesses().items():
        yield f"create a worker with {what}", worker_request(**spec)
