"""A Kubernetes API in memory behind `KubeClient`: objects, versions, owners, admission, rights and failures.

This is the one fake of the API that answers by function call: the command line, fences, status
publishers and masters' backends are tested on it. What needs a connection (watches that break off,
time-outs, answers that are cut) is tested on `cluster.kubernetes.api_server.ApiServer`, which
speaks HTTP and knows pods only.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import urllib3

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import ApiResponse, KubeClient, KubeConnection, ResponseStream
from edl.cluster.kubernetes.api_errors import NoResponseError, error_from_response
from edl.cluster.kubernetes.resource_kinds import EVENTS, KIND_BY_NAME, PODS, Manifest, ResourceKind

NOW = 1_800_000_000.0
Key = tuple[str, str, str]
Admission = Callable[[Manifest], str | None]
"""Looks at an object that is to be created, may change it, and refuses it with a message."""

RUNNING: Manifest = {"phase": "Running", "containerStatuses": [{"name": "edl", "state": {"running": {}}}]}


def when(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class InMemoryCluster(KubeClient):
    """Everything happens at once, inside the request that causes it.

    Attributes:
        admissions: asked for each object in turn.
        denied: verb and plural of what this user may not do.
        master: status of a master's pod from the moment at which its Job may run.
        published: pages of the status ConfigMap from then on.
        conditions: of the master's Job from then on.
        held: names of pods that stay after they were told to go, until grace 0.
        created: kind and name of all that was really created, in order.
        logged: lines of a pod's log; ``logs_asked``: the pods and containers whose log was read.
        breaks: raised instead of answering a request: method and plural.
        before: called before each request is looked at, with its method; may raise, wait, or change the cluster.
        away: every request ends in NoResponseError.
        requests: method and name of every request, in order.
    """

    def __init__(self, namespace: str = "team") -> None:
        super().__init__(KubeConnection("https://cluster.test", urllib3.PoolManager(), dict, namespace, "lab"))
        self.objects: dict[Key, Manifest] = {}
        self.now = NOW
        self.admissions: list[Admission] = []
        self.denied: set[tuple[str, str]] = set()
        self.master: Manifest | None = RUNNING
        self.published: dict[str, str] = {}
        self.conditions: list[Manifest] = []
        self.held: set[str] = set()
        self.created: list[tuple[str, str]] = []
        self.dry_runs: list[Manifest] = []
        self.breaks: dict[tuple[str, str], BaseException] = {}
        self.before: Callable[[str], None] = lambda method: None
        self.away = False
        self.requests: list[tuple[str, str]] = []
        self.logged: dict[str, list[str]] = {}
        self.logs_asked: list[tuple[str, str]] = []
        self._uids = itertools.count(1)
        self._versions = itertools.count(1)
        self._lock = threading.RLock()

    def clock(self) -> float:
        """Seconds, as the server and every process see them."""
        return self.now

    # ------------------------------------------------------------------ what others do to the cluster

    def put(self, manifest: Manifest) -> Manifest:
        """Place an object, as others would have created it."""
        with self._lock:
            kind = KIND_BY_NAME[manifest["kind"]]
            thing = copy.deepcopy(manifest)
            meta = thing["metadata"]
            meta.setdefault("uid", f"uid-{next(self._uids)}")
            meta.setdefault("creationTimestamp", when(self.now))
            if kind.namespaced:
                meta.setdefault("namespace", self.namespace)
            if "resourceVersion" not in meta:
                self._note_change(thing)
            self.objects[kind.plural, meta.get("namespace", ""), meta["name"]] = thing
            return thing

    def remove(self, kind: ResourceKind, name: str) -> None:
        """Take an object away, and nothing that it owns."""
        with self._lock:
            del self.objects[self._key(kind, name)]

    def has(self, kind: ResourceKind, name: str) -> bool:
        return self._key(kind, name) in self.objects

    def stored(self, kind: ResourceKind, name: str) -> Manifest:
        """The object itself, not a copy."""
        return self.objects[self._key(kind, name)]

    def _key(self, kind: ResourceKind, name: str) -> Key:
        return kind.plural, self.namespace if kind.namespaced else "", name

    def accounts(self) -> None:
        """Those of the installation."""
        for name in (names.MASTER_ACCOUNT, names.POD_ACCOUNT):
            self.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})

    def node(self, name: str, cpu: str = "4", memory: str = "16Gi", ready: str = "True", **spec: Any) -> Manifest:
        status = {
            "allocatable": {"cpu": cpu, "memory": memory, "ephemeral-storage": "100Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
        }
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        return self.put({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status})

    def claim(self, name: str, mode: str = "ReadWriteMany") -> Manifest:
        spec, kind = {"accessModes": [mode]}, "PersistentVolumeClaim"
        return self.put({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec})

    def objects_of_kind(self, kind: ResourceKind) -> list[Manifest]:
        return [thing for (plural, _, _), thing in self.objects.items() if plural == kind.plural]

    def labelled(self) -> list[str]:
        """Kind and name of all that belongs to a job."""
        return [
            f"{thing['kind']} {thing['metadata']['name']}"
            for thing in self.objects.values()
            if names.JOB_LABEL in (thing["metadata"].get("labels") or {})
        ]

    def deny(self, verb: str, *kinds: ResourceKind) -> None:
        self.denied |= {(verb, kind.plural) for kind in kinds}

    # ------------------------------------------------------------------ requests

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> ApiResponse:
        if path.endswith("/selfsubjectaccessreviews"):
            return self._reviewed(body["spec"]["resourceAttributes"])
        kind, namespace, name = _parsed(path)
        self._arrive(method, name or (body or {}).get("metadata", {}).get("name", ""))
        with self._lock:
            if (method, kind.plural) in self.breaks:
                raise self.breaks[method, kind.plural]
            verb = {"GET": "get" if name else "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
            self._authorize(verb, kind, namespace)
            query, body = query or {}, copy.deepcopy(body)
            if method == "POST":
                result = self._create(kind, namespace, body, dry_run="dryRun" in query)
            elif not name:
                result = {"items": self._listed(kind, namespace, query), "metadata": {"resourceVersion": "1"}}
            else:
                result = self._one(method, kind, namespace, name, body, content_type)
            return ApiResponse(copy.deepcopy(result), self.now)

    def _arrive(self, method: str, name: str) -> None:
        """Outside of the lock: what a test does meanwhile may ask the cluster itself."""
        self.requests.append((method, name))
        self.before(method)
        if self.away:
            raise NoResponseError("the server is away")

    def logs(self, pod: str, *, container: str = "", **_: Any) -> ResponseStream:
        self.logs_asked.append((pod, container))
        text = "\n".join(self.logged.get(pod, [])).encode()
        response = urllib3.HTTPResponse(io.BytesIO(text), preload_content=False)
        return ResponseStream(response, "logs")

    def _reviewed(self, asked: Mapping[str, str]) -> ApiResponse:
        resource = "/".join(part for part in (asked["resource"], asked["subresource"]) if part)
        return ApiResponse({"status": {"allowed": (asked["verb"], resource) not in self.denied}}, self.now)

    def _authorize(self, verb: str, kind: ResourceKind, namespace: str) -> None:
        if (verb, kind.plural) in self.denied:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            resource = f'resource "{kind.plural}" in API group "{kind.group}" {where}'
            _refuse(403, f'{kind.plural} is forbidden: User "ann" cannot {verb} {resource}')

    def _create(self, kind: ResourceKind, namespace: str, thing: Manifest, *, dry_run: bool) -> Manifest:
        meta = thing["metadata"]
        name = meta.setdefault("name", f"{meta.get('generateName', '')}x7")
        for admission in self.admissions:
            if (message := admission(thing)) is not None:
                _refuse(403, f'{kind.plural} "{name}" is forbidden: {message}')
        if (kind.plural, namespace, name) in self.objects:
            _refuse(409, f'{kind.plural} "{name}" already exists')
        if dry_run:
            self.dry_runs.append(thing)
            return thing
        stored = self.put(thing)
        self.created.append((kind.name, name))
        return stored

    def _one(
        self, method: str, kind: ResourceKind, namespace: str, name: str, body: Any, content_type: str
    ) -> Manifest:
        thing = self.objects.get((kind.plural, namespace, name))
        if thing is None:
            _refuse(404, f'{kind.plural} "{name}" not found')
        assert thing is not None
        if method == "PATCH":
            self._patch(thing, body, content_type)
        elif method == "DELETE":
            uid = thing["metadata"]["uid"]
            if body.get("preconditions", {}).get("uid", uid) != uid:
                _refuse(409, "Precondition failed: UID in precondition")
            assert body["propagationPolicy"] == "Background"
            if not body.get("dryRun"):
                self._delete(kind, thing, body.get("gracePeriodSeconds"))
            if kind is not PODS:  # of a pod, which takes its time, Kubernetes shows the object
                return {"kind": "Status", "details": {"name": name, "kind": kind.plural, "uid": uid}}
        return thing

    def _patch(self, thing: Manifest, body: Any, content_type: str) -> None:
        if content_type == "application/json-patch+json":
            if not all(operation["op"] == "test" and _at(thing, operation) == operation["value"] for operation in body):
                _refuse(422, "the test failed")
            return
        known, wanted = thing["metadata"], body.get("metadata", {})
        if wanted.get("uid", known["uid"]) != known["uid"]:
            _refuse(422, "metadata.uid: field is immutable")
        if wanted.get("resourceVersion", known["resourceVersion"]) != known["resourceVersion"]:
            _refuse(409, "the object has been modified")
        if content_type == "application/strategic-merge-patch+json":
            owners = [*known.get("ownerReferences", ()), *wanted["ownerReferences"]]
            wanted["ownerReferences"] = list({owner["uid"]: owner for owner in owners}.values())
        suspended = thing.get("spec", {}).get("suspend")
        _merge(thing, body)
        self._note_change(thing)
        if suspended and not thing["spec"].get("suspend"):
            self._run_job(thing)

    def _note_change(self, thing: Manifest) -> None:
        thing["metadata"] |= {
            "resourceVersion": str(next(self._versions)),
            "managedFields": [{"time": when(int(self.now))}],
        }

    def _run_job(self, job: Manifest) -> None:
        """The Job controller, scheduler and kubelet."""
        meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        if self.master is not None:
            owners = [{"kind": "Job", "uid": meta["uid"], "name": meta["name"], "controller": True}]
            template["metadata"] |= {"name": f"{meta['name']}-abcde", "ownerReferences": owners}
            template["spec"]["nodeName"] = "n1"
            self.put({"apiVersion": "v1", "kind": "Pod", **template, "status": self.master})
        for page in self.objects_of_kind(KIND_BY_NAME["ConfigMap"]):
            if page["metadata"]["name"].endswith("-status"):
                page["data"] = self.published
        if self.conditions:
            job["status"] = {"conditions": self.conditions}

    def _delete(self, kind: ResourceKind, thing: Manifest, grace: int | None) -> None:
        meta = thing["metadata"]
        if kind is PODS and meta["name"] in self.held and grace != 0:
            meta.setdefault("deletionTimestamp", when(self.now + 30))
            return
        del self.objects[kind.plural, meta.get("namespace", ""), meta["name"]]
        for owned in list(self.objects.values()):
            if any(owner["uid"] == meta["uid"] for owner in owned["metadata"].get("ownerReferences") or ()):
                self._delete(KIND_BY_NAME[owned["kind"]], owned, None)

    def _listed(self, kind: ResourceKind, namespace: str, query: Mapping[str, str]) -> list[Manifest]:
        selectors = [part for part in (query.get("labelSelector") or "").split(",") if part]
        uid = (query.get("fieldSelector") or "").partition("involvedObject.uid=")[2].partition(",")[0]
        return [
            thing
            for (plural, place, _), thing in self.objects.items()
            if plural == kind.plural
            and namespace in ("", place)
            and all(_matches(thing, selector) for selector in selectors)
            and (kind is not EVENTS or thing["involvedObject"]["uid"] == uid)
        ]


def _matches(thing: Manifest, selector: str) -> bool:
    """Whether the labels have what one part of a selector asks for: ``a``, ``a=b`` or ``a!=b``."""
    labels = thing["metadata"].get("labels") or {}
    name, equals, value = selector.partition("=")
    if name.endswith("!"):
        return bool(labels.get(name[:-1]) != value)
    return bool(labels.get(name) == value) if equals else name in labels


def _parsed(path: str) -> tuple[ResourceKind, str, str]:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = next(kind for kind in KIND_BY_NAME.values() if kind.plural == rest[0])
    return kind, namespace, rest[1] if len(rest) > 1 else ""


def _at(thing: Manifest, operation: Mapping[str, Any]) -> Any:
    """What the path of a JSON patch operation names; an empty dict where there is nothing."""
    value: Any = thing
    for part in operation["path"].split("/")[1:]:
        value = value.get(part.replace("~1", "/"), {})
    return value


def _merge(into: Manifest, patch: Manifest) -> None:
    for name, value in patch.items():
        if isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        elif value is None:
            into.pop(name, None)
        else:
            into[name] = value


def _refuse(code: int, message: str) -> None:
    raise error_from_response(code, json.dumps({"message": message}).encode(), where="https://cluster.test")
