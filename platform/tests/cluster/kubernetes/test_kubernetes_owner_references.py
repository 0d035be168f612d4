"""What is applied by hand becomes the Job's own when its master starts; the token goes with the master."""

from __future__ import annotations

import logging

import pytest
from support.in_memory_cluster import InMemoryCluster
from support.text_keys import missing_keys

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import ApiError, NoResponseError, RbacDeniedError
from edl.cluster.kubernetes.job_manifests import owner_reference
from edl.cluster.kubernetes.master_backend import adopt_objects, delete_unowned_token, dependent_objects
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, SECRETS, SERVICES, ResourceKind

JOB, UID = "digits", "job-uid"
TOKEN = names.token_secret(JOB)


def put_object(server: InMemoryCluster, kind: ResourceKind, name: str, **meta: object) -> None:
    labels = {"labels": names.object_labels(JOB)}
    server.put({"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name, **labels, **meta}})


def applied(found: InMemoryCluster) -> InMemoryCluster:
    """After ``edl render | kubectl apply``."""
    put_object(found, JOBS, names.master_name(JOB), uid=UID)
    for kind, name in (*dependent_objects(JOB), (SECRETS, TOKEN)):
        put_object(found, kind, name)
    return found


@pytest.fixture
def server() -> InMemoryCluster:
    return applied(InMemoryCluster())


def test_all_that_is_made_beside_the_job_becomes_its_own_once(server: InMemoryCluster) -> None:
    adopt_objects(server, JOB, UID)
    for kind, name in dependent_objects(JOB):
        assert server.stored(kind, name)["metadata"]["ownerReferences"] == [owner_reference(JOB, UID)]
    adopt_objects(server, JOB, UID)
    for kind, name in dependent_objects(JOB):
        assert server.stored(kind, name)["metadata"]["ownerReferences"] == [owner_reference(JOB, UID)]
    looked_at = {name for method, name in server.requests if method != "PATCH"}
    assert looked_at == {names.master_name(JOB)}  # a master has no right to get Secrets


def test_what_edl_submit_made_is_left_alone(server: InMemoryCluster) -> None:
    put_object(server, JOBS, names.master_name(JOB), uid=UID, annotations={names.SUBMISSION_ANNOTATION: "0123"})
    adopt_objects(server, JOB, UID)
    assert server.requests == [("GET", names.master_name(JOB))]


def test_other_owners_stay(server: InMemoryCluster) -> None:
    another = {"apiVersion": "v1", "kind": "Release", "name": "r", "uid": "x"}
    put_object(server, SERVICES, names.master_name(JOB), ownerReferences=[another])
    adopt_objects(server, JOB, UID)
    owners = server.stored(SERVICES, names.master_name(JOB))["metadata"]["ownerReferences"]
    assert owners == [another, owner_reference(JOB, UID)]


def test_what_is_labelled_for_another_job_is_not_taken(server: InMemoryCluster) -> None:
    put_object(server, SERVICES, names.master_name(JOB), labels={})
    adopt_objects(server, JOB, UID)
    assert "ownerReferences" not in server.stored(SERVICES, names.master_name(JOB))["metadata"]


def test_what_is_missing_or_forbidden_keeps_nobody_from_the_rest(
    server: InMemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    server.remove(CONFIGMAPS, names.spec_configmap(JOB))
    methods: list[str] = []

    def refuse(method: str) -> None:
        methods.append(method)
        if method == "PATCH" and methods.count("PATCH") == 1:
            raise RbacDeniedError("configmaps is forbidden: it cannot patch")

    server.before = refuse
    with caplog.at_level(logging.INFO):
        adopt_objects(server, JOB, UID)
    assert "edl-digits-spec" in caplog.text
    assert server.stored(SERVICES, names.master_name(JOB))["metadata"]["ownerReferences"]


# ---------------------------------------------------------------------- the token


def leave(server: InMemoryCluster, *, over: bool = False, secret: str = TOKEN) -> bool:
    return delete_unowned_token(server, JOB, UID, secret, job_ended=over)


def test_the_token_of_a_job_that_goes_on_stays(server: InMemoryCluster) -> None:
    assert leave(server)
    assert server.has(SECRETS, TOKEN)


def test_the_token_goes_when_the_job_is_over(server: InMemoryCluster) -> None:
    assert leave(server, over=True)
    assert not server.has(SECRETS, TOKEN)
    assert leave(server, over=True)  # by a master that is started once more


def test_the_token_goes_when_the_job_is_deleted(server: InMemoryCluster) -> None:
    server.remove(JOBS, names.master_name(JOB))
    assert leave(server)
    assert not server.has(SECRETS, TOKEN)


def test_the_token_goes_when_the_job_waits_for_its_pods_to_go(server: InMemoryCluster) -> None:
    put_object(server, JOBS, names.master_name(JOB), uid=UID, deletionTimestamp="2026-01-01T00:00:00Z")
    assert leave(server)
    assert not server.has(SECRETS, TOKEN)


@pytest.mark.parametrize("over", [False, True])
def test_the_token_of_a_later_job_of_that_name_stays(server: InMemoryCluster, over: bool) -> None:
    put_object(server, JOBS, names.master_name(JOB), uid="another")
    assert leave(server, over=over)
    assert server.has(SECRETS, TOKEN)


def test_the_token_of_a_job_that_is_made_meanwhile_stays(server: InMemoryCluster) -> None:
    """The Job was gone; before the token is deleted, somebody has applied the same manifests again."""
    server.remove(JOBS, names.master_name(JOB))

    def again(method: str) -> None:
        """Between the question for the token's uid and its deletion."""
        if method == "GET" and ("DELETE", TOKEN) in server.requests:
            put_object(server, SECRETS, TOKEN, uid="another")

    server.before = again
    assert leave(server)
    assert server.stored(SECRETS, TOKEN)["metadata"]["uid"] == "another"


def test_what_edl_submit_made_goes_with_its_job(server: InMemoryCluster) -> None:
    put_object(server, JOBS, names.master_name(JOB), uid=UID, annotations={names.SUBMISSION_ANNOTATION: "0123"})
    assert leave(server, over=True)
    assert server.has(SECRETS, TOKEN)


@pytest.mark.parametrize("over", [False, True])
def test_of_a_token_that_goes_with_its_job_nothing_is_said_without_the_right_to_delete_it(
    server: InMemoryCluster, caplog: pytest.LogCaptureFixture, over: bool
) -> None:
    put_object(server, JOBS, names.master_name(JOB), uid=UID, annotations={names.SUBMISSION_ANNOTATION: "0123"})

    def refuse(method: str) -> None:
        if method == "DELETE":
            raise RbacDeniedError("cannot delete")

    server.before = refuse
    assert leave(server, over=over)
    assert caplog.messages == []


def test_a_secret_that_the_user_named_for_the_token_is_the_users(server: InMemoryCluster) -> None:
    put_object(server, SECRETS, "mine")
    server.remove(JOBS, names.master_name(JOB))
    assert leave(server, over=True, secret="mine")
    assert server.has(SECRETS, "mine")
    assert server.has(SECRETS, TOKEN)


@pytest.mark.parametrize(
    ("error", "why", "settled"),
    [
        (RbacDeniedError("cannot delete"), "may not", True),
        (NoResponseError("the server is away"), "the server is away", False),
    ],
)
def test_one_line_says_that_it_stays_and_what_removes_it(
    server: InMemoryCluster, caplog: pytest.LogCaptureFixture, error: ApiError, why: str, settled: bool
) -> None:
    def refuse(method: str) -> None:
        if method == "DELETE":
            raise error

    server.before = refuse
    assert leave(server, over=True) is settled
    (message,) = caplog.messages
    assert not missing_keys(message, "edl-digits-token", why)
    assert not missing_keys(message, "`edl delete digits`", "`kubectl delete secret edl-digits-token`")
