"""Requests and streams at servers that refuse, break off, fall silent or are none."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3
from cluster.kubernetes.byte_server import STAY, ByteServer, chunked, reply
from cluster.kubernetes.keepalive_options import assert_keeps_alive
from support.text_keys import missing_keys

from edl.api.errors import BadInputError, RefusedError, RetryableError
from edl.cluster.kubernetes import kubeconfig as connection
from edl.cluster.kubernetes.api_client import KubeClient, KubeConnection
from edl.cluster.kubernetes.api_errors import (
    AdmissionPolicyError,
    ApiError,
    ClusterConfigError,
    ConflictError,
    ForbiddenError,
    InvalidObjectError,
    NoKubeconfigError,
    NoResponseError,
    NotFoundError,
    PodSecurityError,
    QuotaExceededError,
    RbacDeniedError,
    ResourceExpiredError,
    ServerBusyError,
    UnauthorizedError,
    error_from_response,
)
from edl.cluster.kubernetes.resource_kinds import PODS

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w"}}
QUICK = connection.COMMAND_RETRIES.new(backoff_factor=0, backoff_jitter=0)
Serve = Callable[..., KubeClient]


class ReplyServers:
    """The servers and pools of one test."""

    def __init__(self) -> None:
        self.servers: list[ByteServer] = []
        self.pools: list[urllib3.PoolManager] = []

    def serve(self, *replies: bytes, retries: urllib3.Retry | None = None) -> KubeClient:
        self.servers.append(ByteServer(replies))
        self.pools.append(urllib3.PoolManager())
        return KubeClient(KubeConnection(self.servers[-1].host, self.pools[-1], dict, "team"), retries=retries)

    @property
    def asked(self) -> int:
        return len(self.servers[-1].requests)


@pytest.fixture
def servers() -> Iterator[ReplyServers]:
    servers = ReplyServers()
    yield servers
    for pool in servers.pools:
        pool.clear()
    for server in servers.servers:
        server.close()


def refusal(code: int, message: str = "words", reason: str = "", *headers: str) -> bytes:
    body = {"kind": "Status", "code": code, "message": message, "reason": reason}
    return reply(json.dumps(body).encode(), f"{code} Refused", *headers)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("code", "message", "kind", "exit_code"),
    [
        (400, "the request is bad", InvalidObjectError, 2),
        (401, "Unauthorized", UnauthorizedError, 2),
        (403, 'pods is forbidden: User "u" cannot list resource "pods" in API group ""', RbacDeniedError, 2),
        (
            403,
            'pods "w" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=3, limited: cpu=4',
            QuotaExceededError,
            2,
        ),
        (403, 'pods "w" is forbidden: failed quota: q: must specify cpu for: edl', QuotaExceededError, 2),
        (403, 'pods "w" is forbidden: maximum cpu usage per Container is 1, but limit is 2', QuotaExceededError, 2),
        (
            403,
            'pods "w" is forbidden: minimum memory usage per Pod is 1Gi. No request is specified',
            QuotaExceededError,
            2,
        ),
        (
            403,
            'pods "w" is forbidden: cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000',
            QuotaExceededError,
            2,
        ),
        (
            403,
            'configurations is forbidden: User "u" cannot list resource "migrations" in API group',
            RbacDeniedError,
            2,
        ),
        (403, 'User "system:serviceaccount:integration:x" cannot get resource "pods"', RbacDeniedError, 2),
        (403, 'admission webhook "configuration" denied the request: the ratio is wrong', ForbiddenError, 2),
        (403, 'pods "w" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', PodSecurityError, 2),
        (403, 'admission webhook "policy" denied the request: no', ForbiddenError, 2),
        (
            403,
            "pods is forbidden: ValidatingAdmissionPolicy 'edl-job-master-pods' with binding 'b' denied request: no",
            AdmissionPolicyError,
            2,
        ),
        (403, "ValidatingAdmissionPolicy 'others' with binding 'b' denied request: no", ForbiddenError, 2),
        (404, 'pods "w" not found', NotFoundError, 2),
        (409, 'pods "w" already exists', ConflictError, 2),
        (410, "too old resource version", ResourceExpiredError, 2),
        (413, "too large", InvalidObjectError, 2),
        (422, "spec.containers: Required value", InvalidObjectError, 2),
        (429, "too many requests", ServerBusyError, 2),
        (500, "etcdserver: request timed out", ServerBusyError, 2),
        (503, "the server is currently unable to handle the request", ServerBusyError, 2),
        (504, "timeout", ServerBusyError, 2),
    ],
)
def test_refusals_are_told_apart(
    servers: ReplyServers, code: int, message: str, kind: type[ApiError], exit_code: int
) -> None:
    with pytest.raises(ApiError) as refused:
        servers.serve(refusal(code, message, "Why")).get(PODS, "w")
    assert type(refused.value) is kind
    assert (refused.value.code, refused.value.reason, refused.value.message) == (code, "Why", message)
    assert refused.value.exit_code == exit_code
    assert "GET http" in (refused.value.where or "")


@pytest.mark.parametrize(
    ("user", "what", "role"),
    [
        ("ann", 'resource "pods" in API group "" in the namespace "team"', "the ClusterRole edl-data-scientist"),
        ("ann", 'resource "nodes" in API group "" at the cluster scope', "the ClusterRole edl-cluster-viewer"),
        ("ann", 'resource "namespaces" in API group "" in the namespace "team"', "the ClusterRole edl-cluster-viewer"),
        ("ann", 'resource "pods" in API group "" at the cluster scope', "the ClusterRole edl-cluster-viewer"),
        (
            "ann",
            'resource "priorityclasses" in API group "scheduling.k8s.io" at the cluster scope',
            "the ClusterRole edl-cluster-viewer",
        ),
        ("ann", 'resource "configmaps" in API group "" at the cluster scope', "name one namespace with -n"),
        ("ann", 'resource "jobs" in API group "batch" at the cluster scope', "No ClusterRole of EDL"),
        (
            "system:serviceaccount:team:edl-job-master",
            'resource "pods" in API group "" in the namespace "team"',
            "the ClusterRole edl-job-master",
        ),
    ],
)
def test_a_right_is_granted_by_the_role_of_who_lacks_it_if_any(user: str, what: str, role: str) -> None:
    refused = json.dumps({"message": f'it is forbidden: User "{user}" cannot list {what}'})
    assert role in (error_from_response(403, refused.encode(), where="here").hint or "")


def test_retryable_and_final_refusals_are_told_apart() -> None:
    assert issubclass(ServerBusyError, RetryableError)
    assert issubclass(NoResponseError, RetryableError)
    assert issubclass(ResourceExpiredError, RetryableError)
    assert issubclass(ForbiddenError, BadInputError)
    assert issubclass(ConflictError, RefusedError)


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        (["Retry-After: 7"], {}, 7),
        ([], {"details": {"retryAfterSeconds": 3}}, 3),
        ([], {}, None),
        (["Retry-After: Fri, 31 Dec 2027 23:59:59 GMT"], {}, None),
    ],
)
def test_seconds_that_a_busy_server_asks_for(
    servers: ReplyServers, headers: list[str], body: dict[str, object], seconds: float | None
) -> None:
    with pytest.raises(ServerBusyError) as busy:
        servers.serve(reply(json.dumps(body).encode(), "429 Too Many Requests", *headers)).get(PODS, "w")
    assert busy.value.retry_after == seconds


def test_busy_server_holds_the_pace_of_all_requests(servers: ReplyServers) -> None:
    pauses: list[float] = []

    class RecordingRateLimiter:
        def __call__(self) -> None:
            return

        def pause_requests(self, seconds: float) -> None:
            pauses.append(seconds)

    plain = servers.serve(refusal(429, "", "", "Retry-After: 4"))
    with pytest.raises(ServerBusyError):
        KubeClient(plain.connection, rate_limiter=RecordingRateLimiter()).get(PODS, "w")
    assert pauses == [4.0]


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"", b"[1]", b'{"message": null}'])
def test_refusal_that_is_no_status_object(servers: ReplyServers, body: bytes) -> None:
    with pytest.raises(ServerBusyError):
        servers.serve(reply(body, "502 Bad Gateway")).get(PODS, "w")


@pytest.mark.parametrize("length", [10, 10_000])
def test_refusal_that_breaks_off_is_no_end(servers: ReplyServers, length: int) -> None:
    answer = reply(b'{"me', "500 Oh", length=length)
    with pytest.raises(RetryableError):
        servers.serve(answer).get(PODS, "w")
    with pytest.raises(ServerBusyError):
        servers.serve(answer).watch(PODS, resource_version="1")


def test_redirection_is_no_answer(servers: ReplyServers) -> None:
    with pytest.raises(ApiError):
        servers.serve(reply(b"", "302 Found", "Location: http://127.0.0.1:1/login")).get(PODS, "w")


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\n", reply(b'{"a": 1', length=50), b"SSH-2.0-OpenSSH\r\n\r\n", reply(b"<html>hello")],
)
def test_answer_that_is_none_is_a_server_that_is_away(servers: ReplyServers, answer: bytes) -> None:
    with pytest.raises(NoResponseError):
        servers.serve(answer).get(PODS, "w")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    host = f"http://127.0.0.1:{port}"
    with pytest.raises(NoResponseError, match="Failed to establish") as away:
        KubeClient(KubeConnection(host, urllib3.PoolManager(), dict, "team", "lab")).get(PODS, "w")
    assert not missing_keys(away.value.hint or "", host, "context lab", "--context")


# ---------------------------------------------------------------------- retries


@pytest.mark.parametrize("trouble", [b"", refusal(500), refusal(503), refusal(429, "", "", "Retry-After: 0")])
def test_command_line_asks_again(servers: ReplyServers, trouble: bytes) -> None:
    api = servers.serve(trouble, trouble, reply(json.dumps(POD).encode()), retries=QUICK)
    assert api.get(PODS, "w") == POD
    assert servers.asked == 3


def test_silent_server_is_asked_twice(servers: ReplyServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl.cluster.kubernetes.api_client.REQUEST_TIMEOUT_SECONDS", 0.1)
    with pytest.raises(NoResponseError, match="does not answer"):
        servers.serve(*[STAY] * 9, retries=QUICK).get(PODS, "w")
    assert servers.asked == 2


def test_who_waits_hears_of_each_request_and_of_its_answer(servers: ReplyServers) -> None:
    heard: list[str] = []

    @contextmanager
    def meanwhile(host: str) -> Iterator[None]:
        heard.append(host)
        yield
        heard.append("answered")

    way = servers.serve(reply(b"{}"), b"").connection
    KubeClient(way, request_hook=meanwhile).get(PODS, "w")
    with pytest.raises(NoResponseError):
        KubeClient(way, request_hook=meanwhile).with_fence(lambda: True).get(PODS, "w")
    assert heard == [way.host, "answered", way.host]


def test_answer_that_breaks_off_is_asked_for_again(servers: ReplyServers) -> None:
    api = servers.serve(reply(b'{"a', length=99), reply(json.dumps(POD).encode()), retries=QUICK)
    assert api.get(PODS, "w") == POD


def test_last_refusal_is_told_when_asking_again_does_not_help(servers: ReplyServers) -> None:
    with pytest.raises(ServerBusyError, match="no leader"):
        servers.serve(*[refusal(500, "etcdserver: no leader")] * 9, retries=QUICK).get(PODS, "w")
    assert servers.asked == 1 + 4


def test_creation_is_repeated_only_if_it_was_surely_not_carried_out(servers: ReplyServers) -> None:
    api = servers.serve(refusal(429), refusal(503), reply(json.dumps(POD).encode(), "201 Created"), retries=QUICK)
    assert api.create(POD) == POD
    for unsure, kind in ((b"", NoResponseError), (refusal(500), ServerBusyError)):
        with pytest.raises(kind):
            servers.serve(unsure, refusal(409, "w already exists", "AlreadyExists"), retries=QUICK).create(POD)
        assert servers.asked == 1


def test_master_asks_once(servers: ReplyServers) -> None:
    with pytest.raises(ServerBusyError):
        servers.serve(refusal(500), reply(b"{}")).get(PODS, "w")
    assert servers.asked == 1


# ---------------------------------------------------------------------- answers


def test_answer_has_the_servers_clock(servers: ReplyServers) -> None:
    api = servers.serve(reply(b"{}", "200 OK", "Date: Thu, 01 Jan 2026 00:00:00 GMT"))
    assert api.request("GET", "/version").server_time == 1767225600
    assert servers.serve(reply(b"{}", "200 OK", "Date: soon")).request("GET", "/version").server_time is None


def test_proof_of_identity_is_asked_for_each_time(servers: ReplyServers) -> None:
    tokens = iter(["Bearer old", "Bearer new"])
    plain = servers.serve(reply(b"{}"), reply(b"{}")).connection
    api = KubeClient(KubeConnection(plain.host, plain.http_pool, lambda: {"authorization": next(tokens)}, "team"))
    api.get(PODS, "w")
    api.get(PODS, "w")
    assert [b"Bearer old" in servers.servers[0].requests[0], b"Bearer new" in servers.servers[0].requests[1]] == [
        True
    ] * 2


def test_list_completes_its_items(servers: ReplyServers) -> None:
    body = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "w"}}]}
    listing = servers.serve(reply(json.dumps(body).encode())).list(PODS)
    assert (listing.items, listing.resource_version) == ((POD,), "7")
    assert servers.serve(reply(b'{"items": null}')).list(PODS).items == ()


# ---------------------------------------------------------------------- streams


def line(kind: str, value: object) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"


def follow(api: KubeClient, silence: float = 20) -> list[tuple[str, object]]:
    with api.watch(PODS, resource_version="1", idle_timeout=silence) as stream:
        return list(stream.events())


def test_lines_are_whole_wherever_they_were_cut(servers: ReplyServers) -> None:
    text = line("ADDED", POD) + b"\n" + line("BOOKMARK", {})
    for at in (1, 10, len(text) - 1):
        assert follow(servers.serve(chunked(text[:at], text[at:]))) == [("ADDED", POD), ("BOOKMARK", {})]


def test_stream_that_breaks_off_is_a_server_that_is_away(servers: ReplyServers) -> None:
    kinds: list[str] = []
    api = servers.serve(chunked(line("ADDED", POD), end=False))
    with api.watch(PODS, resource_version="1") as stream, pytest.raises(NoResponseError):
        kinds.extend(kind for kind, _ in stream.events())
    assert kinds == ["ADDED"], "what arrived before is not lost"


@pytest.mark.parametrize("text", [b'{"type": "ADD', b"[]\n", b'{"object": {}}\n', b'{"type": "ADDED"}\n'])
def test_line_that_is_no_event(servers: ReplyServers, text: bytes) -> None:
    with pytest.raises(NoResponseError, match="not a watch event"):
        follow(servers.serve(chunked(text)))


@pytest.mark.parametrize(
    ("code", "kind"), [(410, ResourceExpiredError), (500, ServerBusyError), (None, ServerBusyError)]
)
def test_error_within_a_watch(servers: ReplyServers, code: int | None, kind: type[ApiError]) -> None:
    with pytest.raises(kind):
        follow(servers.serve(chunked(line("ERROR", {"code": code, "message": "too old"}))))


def test_silent_stream_is_given_up(servers: ReplyServers) -> None:
    with pytest.raises(NoResponseError):
        follow(servers.serve(chunked(line("ADDED", POD), end=False) + STAY), silence=0.05)


def close_while_waiting(api: KubeClient) -> None:
    first, over = threading.Event(), threading.Event()
    stream = api.watch(PODS, resource_version="1")

    def read() -> None:
        for _ in stream.events():
            first.set()
        over.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(20)
    stream.close()
    stream.close()
    assert over.wait(20), "the reader still waits"
    reader.join()


def test_close_from_another_thread_ends_the_iteration(servers: ReplyServers) -> None:
    close_while_waiting(servers.serve(chunked(line("ADDED", POD), end=False) + STAY))


def test_stream_that_nobody_reads_can_be_closed(servers: ReplyServers) -> None:
    with servers.serve(chunked(line("ADDED", POD), end=False) + STAY).watch(PODS, resource_version="1"):
        pass


def test_close_from_another_thread_ends_an_encrypted_stream(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    try:
        subprocess.run([*command, *subject], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as connected:
                connected.recv(1 << 16)
                connected.sendall(chunked(line("ADDED", POD), end=False))
                done.wait(20)

        server = threading.Thread(target=serve)
        server.start()
        pool = urllib3.PoolManager(ca_certs=str(certificate))
        close_while_waiting(
            KubeClient(KubeConnection(f"https://localhost:{listener.getsockname()[1]}", pool, dict, "team"))
        )
        done.set()
        server.join()
        pool.clear()


# ---------------------------------------------------------------------- which cluster


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: secret-token}}]
contexts:
- {name: one, context: {cluster: c, user: u, namespace: team}}
- {name: two, context: {cluster: c, user: u}}
"""


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kubeconfig of the environment; read by the client when it is imported."""
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return path


def test_kubeconfig_says_where_as_whom_and_in_which_namespace(kubeconfig: Path) -> None:
    loaded = connection.load_connection()
    assert (loaded.host, loaded.namespace, loaded.context) == ("http://127.0.0.1:1", "team", "one")
    assert loaded.auth_headers() == {"authorization": "Bearer secret-token"}
    assert connection.load_connection("two").namespace == "default"
    assert connection.load_connection("two", "mine").namespace == "mine"
    assert connection.list_contexts() == ["one", "two"]


def test_a_context_is_enough_where_none_is_current(kubeconfig: Path) -> None:
    kubeconfig.write_text(KUBECONFIG.replace("current-context: one\n", ""))
    assert connection.load_connection("one").namespace == "team"
    assert connection.list_contexts() == ["one", "two"]
    with pytest.raises(ClusterConfigError, match="current-context"):
        connection.load_connection()


def test_a_context_of_another_file_of_the_kubeconfig(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = kubeconfig.with_name("other")
    other.write_text(
        'clusters: [{name: d, cluster: {server: "http://127.0.0.1:2"}}]\n'
        "contexts: [{name: three, context: {cluster: d, user: u, namespace: lab}}]\n"
    )
    location = f"{kubeconfig}:{other}"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", location)
    loaded = connection.load_connection("three")
    assert (loaded.host, loaded.namespace) == ("http://127.0.0.1:2", "lab")
    assert connection.list_contexts() == ["one", "two", "three"]


def test_command_line_is_patient_with_a_busy_server(servers: ReplyServers, kubeconfig: Path) -> None:
    host = servers.serve(refusal(503), reply(json.dumps(POD).encode())).host
    kubeconfig.write_text(KUBECONFIG.replace("http://127.0.0.1:1", host))
    api = connection.make_client()
    servers.pools.append(api.connection.http_pool)
    assert api.get(PODS, "w") == POD


def test_server_that_vanished_is_noticed_after_25_seconds(kubeconfig: Path) -> None:
    options = connection.load_connection().http_pool.connection_pool_kw["socket_options"]
    assert_keeps_alive(options)


@pytest.mark.parametrize("text", ["", "no yaml: [", "apiVersion: v1\nkind: Config\n", "[1, 2]"])
def test_kubeconfig_that_cannot_be_used_is_said_in_one_sentence(kubeconfig: Path, text: str) -> None:
    kubeconfig.write_text(text)
    with pytest.raises(ClusterConfigError) as caught:
        connection.load_connection()
    assert "Traceback" not in caught.value.message
    assert not isinstance(caught.value, NoKubeconfigError)


def test_context_that_does_not_exist(kubeconfig: Path) -> None:
    with pytest.raises(ClusterConfigError, match="three"):
        connection.load_connection("three")


def test_a_kubeconfig_that_is_not_there_is_told_from_one_that_is_wrong(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig.unlink()
    with pytest.raises(NoKubeconfigError, match=rf"{re.escape(str(kubeconfig))}.*KUBECONFIG"):
        connection.load_connection()
    with pytest.raises(NoKubeconfigError):
        connection.load_connection("one")
    assert connection.list_contexts() == []
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(kubeconfig.parent))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "~/.kube/config")
    with pytest.raises(NoKubeconfigError, match=r"~/\.kube/config.*KUBECONFIG"):
        connection.load_connection()
    kubeconfig.write_text("")
    location = f"/nowhere/config:{kubeconfig}"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", location)
    with pytest.raises(ClusterConfigError) as caught:
        connection.load_connection()
    assert not isinstance(caught.value, NoKubeconfigError)


# ---------------------------------------------------------------------- the right to decide


def test_without_the_right_nothing_is_changed_and_all_may_be_read(servers: ReplyServers) -> None:
    right = [True]
    api = servers.serve(reply(b"{}"), reply(b"{}")).with_fence(lambda: right[0])
    api.delete(PODS, "w", uid="1", grace=0)
    right[0] = False
    for change in (lambda: api.delete(PODS, "w"), lambda: api.create(POD), lambda: api.patch(PODS, "w", {})):
        with pytest.raises(NoResponseError, match="Not sent"):
            change()
    assert servers.asked == 1
    api.get(PODS, "w")
    assert servers.asked == 2
