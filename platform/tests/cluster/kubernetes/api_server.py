"""An API server with pods in memory, over real HTTP, that fails by script: what a `KubeCluster` is tested against.

Behaves as Kubernetes 1.34 was seen to: resourceVersions over all objects, watches as chunked JSON lines, deletion in
two steps, uid preconditions. Faults are armed by name; a fake kubelet runs every pod at once and does what a test says.
"""

from __future__ import annotations

import copy
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Pod = dict[str, Any]
SIGKILL, SIGTERM = 137, 143
LONGEST_WAIT = 20.0
"""Seconds; a bound for a loaded machine, never an expectation."""


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.partition("/pods/")[2]

    @property
    def verb(self) -> str:
        """As RBAC has it, for pods."""
        if self.method == "GET":
            return "watch" if self.query.get("watch") else "get" if self.name else "list"
        return {"POST": "create", "DELETE": "delete"}[self.method]


@dataclass
class ScriptedRefusal:
    """Answers requests with a verb (any: ``*``) with an error, ``times`` times; None: until it is taken back."""

    code: int
    verb: str = "*"
    times: int | None = 1
    reason: str = ""
    message: str = "refused by script"
    retry_after: int | None = None
    carried_out: bool = False
    """The request is carried out all the same, and only then answered like that."""

    def matches(self, request: ReceivedRequest) -> bool:
        return self.times != 0 and self.verb in ("*", request.verb)


@dataclass
class PodStore:
    """Pods, and every change since the beginning."""

    pods: dict[str, Pod] = field(default_factory=dict)
    changes: list[tuple[int, str, Pod]] = field(default_factory=list)
    version: int = 1
    oldest: int = 0
    """Watches from before this version are answered 410."""


class ApiServer:
    """Serves ``/api/v1/namespaces/*/pods`` on loopback."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.store = PodStore()
        self.requests: list[ReceivedRequest] = []
        self.refusals: list[ScriptedRefusal] = []
        self.run_pods = True
        self._uids = itertools.count(1)
        self._terms: dict[str, int | None] = {}
        self._mute = False
        self._lost: set[str] = set()
        self._cut = 0
        self.bookmark_every = 0.1
        self._connections: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.open()

    @property
    def host(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # ------------------------------------------------------------------ faults, by name

    def watch_ends(self) -> None:
        """Every watch ends as after its time."""
        with self.changed:
            self._cut += 1
            self.changed.notify_all()

    def watch_silent(self, silent: bool = True) -> None:
        """Watches send nothing any more, not even bookmarks; those that begin later too."""
        with self.changed:
            self._mute = silent
            self.changed.notify_all()

    def gone_410(self) -> None:
        """Everything up to now is compacted: whoever goes on from before is answered 410."""
        with self.changed:
            self.store.version += 1
            self.store.oldest = self.store.version
            self.store.changes.clear()

    def too_many_429(self, retry_after: int, verb: str = "*", times: int | None = 1) -> None:
        self.refuse(ScriptedRefusal(429, verb, times, "TooManyRequests", "too many requests", retry_after))

    def error_500(self, verb: str = "*", times: int | None = 1, *, carried_out: bool = False) -> None:
        self.refuse(
            ScriptedRefusal(500, verb, times, "InternalError", "etcdserver: request timed out", None, carried_out)
        )

    def refuse(self, refusal: ScriptedRefusal) -> None:
        with self.changed:
            self.refusals.append(refusal)

    def accept_all(self) -> None:
        with self.changed:
            self.refusals.clear()

    def connection_refused(self) -> None:
        """Nobody listens, and all connections break off; ``open`` ends it."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        with self.changed:
            for connection in self._connections:
                with suppress(OSError):  # the other end was faster
                    connection.shutdown(socket.SHUT_RDWR)
            self._cut += 1
            self.changed.notify_all()

    def event_lost(self, name: str) -> None:
        """Watches never speak of this pod from now on."""
        with self.changed:
            self._lost.add(name)

    # ------------------------------------------------------------------ what a kubelet does

    def await_running(self, uid: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.pod(uid)["status"]["phase"] == "Running", LONGEST_WAIT)

    def pod(self, uid: str) -> Pod:
        with self.changed:
            return next(pod for pod in self.store.pods.values() if pod["metadata"]["uid"] == uid)

    def behave(self, uid: str, on_sigterm: int | None) -> None:
        """The exit code that answers SIGTERM; None: it is ignored."""
        with self.changed:
            self._terms[uid] = on_sigterm

    def exit(self, uid: str, code: int, reason: str = "") -> None:
        """The container ends by itself, or by a signal that nobody asked the API server for."""
        with self.changed:
            pod = self.pod(uid)
            self._set_status(pod, "Succeeded" if code == 0 else "Failed", _terminated(code, reason))

    def preempt(self, uid: str) -> None:
        """What the scheduler does: the condition, then the deletion."""
        message = "default-scheduler: preempting to accommodate a higher priority pod"
        self.disrupt(uid, "PreemptionByScheduler", message)
        with self.changed:
            self._delete(self.pod(uid), None)

    def disrupt(self, uid: str, reason: str, message: str = "") -> None:
        with self.changed:
            pod = self.pod(uid)
            pod["status"].setdefault("conditions", []).append(
                {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
            )
            self._record("MODIFIED", pod)

    def set_ready(self, uid: str, ready: bool) -> None:
        """What the node controller does to a pod whose node it does not hear of, and the kubelet that is back."""
        with self.changed:
            pod = self.pod(uid)
            since = "2023-11-14T22:13:20Z"
            pod["status"]["conditions"] = [{"type": "Ready", "status": str(ready), "lastTransitionTime": since}]
            self._record("MODIFIED", pod)

    def grace_over(self) -> None:
        """SIGKILL to all that were told to go and are still there."""
        with self.changed:
            for pod in list(self.store.pods.values()):
                if "deletionTimestamp" in pod["metadata"]:
                    self._leave(pod, SIGKILL)

    def vanish(self, uid: str) -> None:
        """The object is removed at once."""
        with self.changed:
            self._remove(self.pod(uid))

    def create_foreign(self, pod: Pod) -> Pod:
        """Somebody else creates a pod."""
        with self.changed:
            return self._create(pod)

    # ------------------------------------------------------------------ serving

    def open(self) -> None:
        """Listen, on the same port as before."""
        server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        server.daemon_threads = True
        server.block_on_close = False
        self._server, self.port = server, server.server_port
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self.connection_refused()

    def connected(self, connection: socket.socket) -> None:
        with self.changed:
            self._connections.add(connection)

    def disconnected(self, connection: socket.socket) -> None:
        with self.changed:
            self._connections.discard(connection)

    def answer(self, request: ReceivedRequest) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Code, body and headers."""
        with self.changed:
            self.requests.append(request)
            refusal = next((each for each in self.refusals if each.matches(request)), None)
            if refusal is None:
                return self._carry_out(request)
            if refusal.times is not None:
                refusal.times -= 1
            if refusal.carried_out:
                self._carry_out(request)
            headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
            return refusal.code, _status(refusal.code, refusal.reason, refusal.message), headers

    def stream(self, request: ReceivedRequest, send: Callable[[dict[str, Any]], None]) -> None:
        """One watch, until its time is over or a fault ends it."""
        at, chosen = int(request.query["resourceVersion"]), _selector(request.query.get("labelSelector", ""))
        ends = time.monotonic() + float(request.query["timeoutSeconds"])
        with self.changed:
            cut = self._cut
        while time.monotonic() < ends:
            with self.changed:
                if cut != self._cut:
                    return
                if at < self.store.oldest:
                    send({"type": "ERROR", "object": _status(410, "Expired", "too old resource version")})
                    return
                fresh = [change for change in self.store.changes if change[0] > at]
                at = self.store.version
                if self._mute:
                    self.changed.wait(LONGEST_WAIT)
                    continue
                if not fresh:
                    send({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(at)}}})
                    self.changed.wait_for(
                        lambda at=at: self.store.version > at or self._cut != cut, self.bookmark_every
                    )
            for _, kind, pod in fresh:
                if chosen(pod) and pod["metadata"]["name"] not in self._lost:
                    send({"type": kind, "object": pod})

    def _carry_out(self, request: ReceivedRequest) -> tuple[int, dict[str, Any], dict[str, str]]:
        if "/pods" not in request.path:
            return 404, _status(404, "NotFound", "there is none"), {}
        pod = self.store.pods.get(request.name)
        if request.verb == "watch":
            return 200, {}, {}
        if request.verb == "list":
            chosen = _selector(request.query.get("labelSelector", ""))
            items = [copy.deepcopy(each) for each in self.store.pods.values() if chosen(each)]
            return 200, {"items": items, "metadata": {"resourceVersion": str(self.store.version)}}, {}
        if request.verb == "create":
            if request.body["metadata"]["name"] in self.store.pods:
                return 409, _status(409, "AlreadyExists", "pods already exists"), {}
            return 201, self._create(request.body), {}
        if pod is None:
            return 404, _status(404, "NotFound", f'pods "{request.name}" not found'), {}
        if request.verb == "get":
            return 200, copy.deepcopy(pod), {}
        wanted = request.body.get("preconditions", {}).get("uid", pod["metadata"]["uid"])
        if wanted != pod["metadata"]["uid"]:
            return 409, _status(409, "Conflict", "Precondition failed: UID in precondition"), {}
        self._delete(pod, request.body.get("gracePeriodSeconds"))
        return 200, copy.deepcopy(pod), {}

    def _create(self, manifest: Pod) -> Pod:
        pod = copy.deepcopy(manifest)
        pod["metadata"] |= {"uid": f"uid-{next(self._uids):06d}", "creationTimestamp": _now()}
        pod["status"] = {"phase": "Pending"}
        self.store.pods[pod["metadata"]["name"]] = pod
        self._record("ADDED", pod)
        created = copy.deepcopy(pod)
        if self.run_pods:
            pod["spec"]["nodeName"] = "node1"
            self._set_status(pod, "Running", {"running": {"startedAt": _now()}})
        return created

    def _delete(self, pod: Pod, grace: int | None) -> None:
        meta = pod["metadata"]
        grace = 30 if grace is None else grace
        ended = pod["status"]["phase"] in ("Succeeded", "Failed")
        if grace == 0 or ended or "nodeName" not in pod["spec"]:
            self._remove(pod)
            return
        if "deletionTimestamp" not in meta:
            meta["deletionTimestamp"] = _now(grace)
            meta["deletionGracePeriodSeconds"] = grace
            self._record("MODIFIED", pod)
            answer = self._terms.get(meta["uid"], SIGTERM)
            if answer is not None:
                self._leave(pod, answer)

    def _leave(self, pod: Pod, code: int) -> None:
        self._set_status(pod, "Succeeded" if code == 0 else "Failed", _terminated(code, ""))
        self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        del self.store.pods[pod["metadata"]["name"]]
        self._record("DELETED", pod)

    def _set_status(self, pod: Pod, phase: str, state: dict[str, Any]) -> None:
        pod["status"] |= {"phase": phase, "containerStatuses": [{"name": "edl", "state": state}]}
        self._record("MODIFIED", pod)

    def _record(self, kind: str, pod: Pod) -> None:
        self.store.version += 1
        pod["metadata"]["resourceVersion"] = str(self.store.version)
        self.store.changes.append((self.store.version, kind, copy.deepcopy(pod)))
        self.changed.notify_all()


def _terminated(code: int, reason: str) -> dict[str, Any]:
    reason = reason or ("Completed" if code == 0 else "Error")
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": _now()}}


def _now(later: int = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def _selector(text: str) -> Callable[[Pod], bool]:
    """Equality and inequality of labels."""
    wanted = [part.split("!=") if "!=" in part else part.split("=") for part in text.split(",") if part]
    unequal = ["!=" in part for part in text.split(",") if part]

    def chosen(pod: Pod) -> bool:
        labels = pod["metadata"].get("labels", {})
        pairs = zip(wanted, unequal, strict=True)
        return all((labels.get(name) == value) != differs for (name, value), differs in pairs)

    return chosen


def _handler(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class ApiHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16
        """Headers and body leave together: two small packets would wait for each other."""

        def setup(self) -> None:
            super().setup()
            api.connected(self.connection)

        def finish(self) -> None:
            api.disconnected(self.connection)
            with suppress(ConnectionError):
                super().finish()

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

        def do_GET(self) -> None:
            self._serve({})

        def do_POST(self) -> None:
            self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_DELETE(self) -> None:
            self.do_POST()

        def _serve(self, body: dict[str, Any]) -> None:
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            request = ReceivedRequest(self.command, address.path, query, body)
            code, value, headers = api.answer(request)
            if request.verb == "watch" and code == 200:
                self._watch(request)
                return
            text = json.dumps(value).encode()
            self.send_response(code)
            for name, content in {**headers, "Content-Type": "application/json", "Content-Length": len(text)}.items():
                self.send_header(name, str(content))
            self.end_headers()
            self.wfile.write(text)
            self.wfile.flush()

        def _watch(self, request: ReceivedRequest) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            api.stream(request, self._send_line)
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

        def _send_line(self, event: dict[str, Any]) -> None:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Tests print what they need."""

    return ApiHandler
