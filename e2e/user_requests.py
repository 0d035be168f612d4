"""What is tried as a data scientist, by the rows of docs/reference/rights.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from e2e import rights_objects
from e2e.api_requests import ApiRequest, create, delete, delete_shown, get, merge, post
from e2e.rights_objects import COPY_POD, ENDED, FOREIGN, OTHER, OTHER_CLASS, OWN, STRANGER, RightsObjects

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import Manifest

ANNOTATION = {"metadata": {"annotations": {"edl.dev/desired": "{}"}}}
_ELSEWHERE = "/api/v1/namespaces/kube-system"
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def user_requests(at: RightsObjects) -> dict[str, ApiRequest]:
    """Requests by their rows; what deletes comes last."""
    return dict([*_read_requests(at), *_exec_requests(at), *_pods(at), *_jobs(at), *_services(at), *_secrets(at)])


def secret_uses(secret: str) -> dict[str, Manifest]:
    """Every way in which a pod can use a Secret, as fields of its spec; ``container`` is one container's."""
    one, all_of_it = variable(secret), {"envFrom": [{"secretRef": {"name": secret}}]}
    first = {"name": "first", "image": "registry.invalid/none"}
    return {
        "volume": volume({"secret": {"secretName": secret}}),
        "projected volume": volume({"projected": {"sources": [{"secret": {"name": secret}}]}}),
        "CSI volume": volume({"csi": {"driver": "tried.edl.dev", "nodePublishSecretRef": {"name": secret}}}),
        "FlexVolume": volume({"flexVolume": {"driver": "edl/tried", "secretRef": {"name": secret}}}),
        "variable": {"container": one},
        "all variables": {"container": all_of_it},
        "variable of an init container": {"initContainers": [first | one]},
        "all variables of an init container": {"initContainers": [first | all_of_it]},
    }


def host_accesses() -> dict[str, Manifest]:
    """What a pod could take of its node or past the claims, as fields of its spec.

    Not an image as volume: API servers without that feature drop the field, and what is left is an emptyDir.
    """
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "a directory of its node": volume({"hostPath": {"path": "/srv"}}),
        "an NFS volume": volume({"nfs": {"server": "files.invalid", "path": "/"}}),
        "a CSI volume": volume({"csi": {"driver": "tried.edl.dev"}}),
        "an ephemeral volume": volume({"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}),
        "its node's network": {"hostNetwork": True},
        "its node's processes": {"hostPID": True},
        "its node's IPC": {"hostIPC": True},
        "all privileges": {"container": {"securityContext": {"privileged": True}}},
        "all privileges in an init container": {
            "initContainers": [
                {"name": "first", "image": "registry.invalid/none", "securityContext": {"privileged": True}}
            ]
        },
        "no PriorityClass": {"priorityClassName": ""},
    }


def volume(source: Manifest) -> Manifest:
    """A pod's spec with a volume."""
    return {"volumes": [{"name": "tried", **source}]}


def variable(secret: str) -> Manifest:
    """A container with one variable from a Secret."""
    return {"env": [{"name": "TRIED", "valueFrom": {"secretKeyRef": {"name": secret, "key": "token"}}}]}


def token_of(job: str) -> Manifest:
    """A pod's spec with the token of a job."""
    return volume({"secret": {"secretName": names.token_secret(job)}})


def _read_requests(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    core = f"/api/v1/namespaces/{at.namespace}"
    yield "read a Secret", get(f"{core}/secrets/{FOREIGN}")
    yield "list Secrets", get(f"{core}/secrets")
    yield "change a Secret", merge(f"{core}/secrets/{names.token_secret(OWN)}", ANNOTATION)
    yield "list pods of another namespace", get(f"{_ELSEWHERE}/pods")
    yield "create a Job in another namespace", create("kube-system", rights_objects.job("tried"))
    yield "list namespaces", get("/api/v1/namespaces")
    yield "list nodes", get("/api/v1/nodes")
    yield "change a node", merge("/api/v1/nodes/any", {"spec": {"unschedulable": True}})
    yield "list PriorityClasses", get(_CLASSES)
    yield "create a PriorityClass", post(_CLASSES, "scheduling.k8s.io/v1", "PriorityClass", value=1)
    yield "change a PriorityClass", merge(f"{_CLASSES}/low", {"description": "tried"})
    yield "delete a PriorityClass", delete(f"{_CLASSES}/low")
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    yield "delete an admission policy", delete(f"{policies}/edl-data-scientist-pods")


def _exec_requests(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    core = f"/api/v1/namespaces/{at.namespace}"
    worker = f"{core}/pods/{names.pod_name(OWN, Role.WORKER, 0)}"
    yield "create a RoleBinding", role_binding(at)
    yield "create a ServiceAccount", post(f"{core}/serviceaccounts", "v1", "ServiceAccount")
    yield "create a token of an account", token_request(at)
    yield "create a claim", post(f"{core}/persistentvolumeclaims", "v1", "PersistentVolumeClaim")
    yield "delete a claim", delete(f"{core}/persistentvolumeclaims/any")
    yield "create a Deployment", post(f"/apis/apps/v1/namespaces/{at.namespace}/deployments", "apps/v1", "Deployment")
    yield "create a CronJob", post(f"/apis/batch/v1/namespaces/{at.namespace}/cronjobs", "batch/v1", "CronJob")
    yield "change a pod", merge(worker, ANNOTATION)
    yield "evict a pod", post(f"{worker}/eviction", "policy/v1", "Eviction")
    yield "add a debugging container to a pod", merge(f"{worker}/ephemeralcontainers", {"spec": {}})
    yield "attach to a worker", ApiRequest("POST", f"{worker}/attach")
    yield "forward a port of a worker", ApiRequest("POST", f"{worker}/portforward")
    yield "exec into a worker", run_in_pod(worker)
    yield "exec into a pod of edl data", run_in_pod(f"{core}/pods/{COPY_POD}")


def role_binding(at: RightsObjects) -> ApiRequest:
    """Give rights away."""
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "view"}
    path = f"/apis/{group}/v1/namespaces/{at.namespace}/rolebindings"
    return post(path, f"{group}/v1", "RoleBinding", roleRef=role, subjects=[])


def token_request(at: RightsObjects) -> ApiRequest:
    """Ask for a token of the masters' account."""
    path = f"/api/v1/namespaces/{at.namespace}/serviceaccounts/{names.MASTER_ACCOUNT}/token"
    return ApiRequest("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})


def run_in_pod(pod: str) -> ApiRequest:
    """Run a program in a pod."""
    return ApiRequest(
        "POST", f"{pod}/exec", query={"command": "true", "stdout": "true", "container": names.ROLE_CONTAINER}
    )


def _pods(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    def pod_request(
        name: str = "tried", *, dry_run: bool = False, owned: bool = True, of: str = OWN, **spec: Any
    ) -> ApiRequest:
        manifest = at.worker(name, of, **spec)
        if not owned:
            del manifest["metadata"]["ownerReferences"]
        return create(at.namespace, manifest, dry_run=dry_run)

    yield "a pod of a Job", pod_request()
    yield "a pod of nobody", pod_request(owned=False)
    yield "a pod of edl data", pod_request("edl-data-89abcdef", owned=False)
    yield "a pod of edl data with the token of a job", pod_request("edl-data-89abcdef", owned=False, **token_of(OWN))
    for row, account in _ACCOUNTS.items():
        yield f"a pod under {row}", pod_request(serviceAccountName=account)
    yield "a pod of PriorityClass low", pod_request(priorityClassName="low")
    yield "a pod of another PriorityClass", pod_request(priorityClassName=OTHER_CLASS)
    yield "a pod with the token of its job", pod_request(**token_of(OWN))
    yield "a pod with the token of another job", pod_request(**token_of(OTHER))
    for way, spec in secret_uses(FOREIGN).items():
        yield f"a pod with a foreign Secret: {way}", pod_request(**spec)
    for what, spec in host_accesses().items():
        yield f"a pod with {what}", pod_request(**spec)
    as_master = {"serviceAccountName": names.MASTER_ACCOUNT}
    yield "dry run of a master's pod", pod_request(dry_run=True, owned=False, **as_master, **token_of(OWN))
    yield "dry run of a worker's pod", pod_request(dry_run=True, owned=False, **token_of(OWN))
    yield "dry run of a pod under another account", pod_request(dry_run=True, serviceAccountName=STRANGER)
    yield "dry run of a pod with a foreign Secret", pod_request(dry_run=True, **secret_uses(FOREIGN)["volume"])


_ACCOUNTS = {
    "no account": "",
    "the account of masters": names.MASTER_ACCOUNT,
    "the account of data scientists": "edl-data-scientist",
    "another account": STRANGER,
}


def _jobs(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    make_job = _job_maker(at)
    tried, as_master = names.object_labels("tried", Role.MASTER), {"serviceAccountName": names.MASTER_ACCOUNT}
    yield "a Job", make_job()
    yield "a Job of a submitter", make_job(serviceAccountName="edl-data-scientist")
    yield "a Job of a master", create(at.namespace, rights_objects.master_job("tried", **token_of("tried")))
    yield "a Job under no account", make_job(serviceAccountName="")
    yield "a Job under another account", make_job(serviceAccountName=STRANGER)
    yield "a Job under the account of masters that is none", make_job(**as_master)
    other = rights_objects.job(names.master_name("tried"), tried, names.object_labels(OTHER, Role.MASTER), **as_master)
    yield "a Job of a master of another job than its label says", create(at.namespace, other)
    yield "a Job of another PriorityClass", make_job(priorityClassName=OTHER_CLASS)
    yield "a Job with the token of its job", make_job(**token_of(OWN))
    yield "a Job with the token of another job", make_job(**token_of(OTHER))
    for way, spec in secret_uses(FOREIGN).items():
        yield f"a Job with a foreign Secret: {way}", make_job(**spec)
    for what, spec in host_accesses().items():
        yield f"a Job with {what}", make_job(**spec)
    many = rights_objects.master_job("tried")
    many["spec"]["parallelism"] = 2
    yield "a Job of a master with two pods at once", create(at.namespace, many)
    path = f"/apis/batch/v1/namespaces/{at.namespace}/jobs/{names.master_name(OWN)}"
    yield "have a master's Job run two pods at once", merge(path, {"spec": {"parallelism": 2}})
    yield "annotate a master's Job", merge(path, ANNOTATION)
    yield "label a master's Job with another job", merge(path, {"metadata": {"labels": {names.JOB_LABEL: OTHER}}})


def _job_maker(at: RightsObjects) -> Callable[..., ApiRequest]:
    return lambda **spec: create(at.namespace, rights_objects.job("tried", names.object_labels(OWN), **spec))


def _services(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    def service_request(**spec: Any) -> ApiRequest:
        return create(at.namespace, rights_objects.service("tried", {"ports": [{"port": 80}], **spec}))

    yield "a Service", service_request()
    yield "a Service that is a load balancer", service_request(type="LoadBalancer")
    yield "a Service at a port of every node", service_request(type="NodePort")
    yield "a Service that is a name elsewhere", service_request(type="ExternalName", externalName="elsewhere.invalid")
    yield "a Service with addresses outside the cluster", service_request(externalIPs=["192.0.2.1"])
    path = f"/api/v1/namespaces/{at.namespace}/services/{names.master_name(OWN)}"
    yield "make the Service of a job a load balancer", merge(path, {"spec": {"type": "LoadBalancer"}})


def _secrets(at: RightsObjects) -> Iterator[tuple[str, ApiRequest]]:
    path = f"/api/v1/namespaces/{at.namespace}/secrets"
    yield "a token of a job", create(at.namespace, rights_objects.secret(names.token_secret("tried"), "tried"))
    yield "a Secret of another name", create(at.namespace, rights_objects.secret("tried", "tried"))
    account = {"annotations": {"kubernetes.io/service-account.name": STRANGER}}
    disguised = rights_objects.secret(
        names.token_secret("tried"), "tried", "kubernetes.io/service-account-token", **account
    )
    yield "a Secret with the token of an account, named like that of a job", create(at.namespace, disguised)
    yield "delete the token of a job", delete(f"{path}/{names.token_secret(ENDED)}")
    yield "delete another Secret", delete(f"{path}/{FOREIGN}")
    yield "delete another Secret such that it is shown", delete_shown(f"{path}/{FOREIGN}")
