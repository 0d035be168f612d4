"""What is applied by hand becomes the Job's own when its master starts."""

from __future__ import annotations

import logging

import pytest
from kube.lease_server import LeaseServer

from edl.kube import names
from edl.kube.errors import NoRightError
from edl.kube.kinds import CONFIGMAPS, SECRETS, SERVICES, Kind
from edl.kube.manifests.render import owner
from edl.kube.platform.ownership import adopt, dependants

JOB, UID = "digits", "job-uid"


def place(server: LeaseServer, kind: Kind, name: str, **meta: object) -> None:
    labels = {"labels": names.labels(JOB)}
    server.put(kind, {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name, **labels, **meta}})


@pytest.fixture
def server() -> LeaseServer:
    found = LeaseServer()
    for kind, name in dependants(JOB):
        place(found, kind, name)
    return found


def test_all_that_is_made_beside_the_job_becomes_its_own_once(server: LeaseServer) -> None:
    adopt(server, JOB, UID)  # type: ignore[arg-type]
    for kind, name in dependants(JOB):
        assert server.stored(kind, name)["metadata"]["ownerReferences"] == [owner(JOB, UID)]
    adopt(server, JOB, UID)  # type: ignore[arg-type]
    for kind, name in dependants(JOB):
        assert server.stored(kind, name)["metadata"]["ownerReferences"] == [owner(JOB, UID)]
    assert {method for method, _ in server.requests} == {"PATCH"}  # a master has no right to get Secrets


def test_other_owners_stay(server: LeaseServer) -> None:
    another = {"apiVersion": "v1", "kind": "Release", "name": "r", "uid": "x"}
    place(server, SERVICES, names.master(JOB), ownerReferences=[another])
    adopt(server, JOB, UID)  # type: ignore[arg-type]
    found = server.stored(SERVICES, names.master(JOB))["metadata"]["ownerReferences"]
    assert found == [another, owner(JOB, UID)]


def test_a_secret_of_the_users_own_is_not_taken(server: LeaseServer) -> None:
    place(server, SECRETS, names.token(JOB), labels={})
    adopt(server, JOB, UID)  # type: ignore[arg-type]
    assert "ownerReferences" not in server.stored(SECRETS, names.token(JOB))["metadata"]


def test_what_is_missing_or_forbidden_keeps_nobody_from_the_rest(
    server: LeaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.remove(CONFIGMAPS, names.spec(JOB))
    seen: list[str] = []

    def refuse(method: str) -> None:
        seen.append(method)
        if method == "PATCH" and seen.count("PATCH") == 1:
            raise NoRightError("configmaps is forbidden: it cannot patch")

    server.before = refuse
    with caplog.at_level(logging.INFO):
        adopt(server, JOB, UID)  # type: ignore[arg-type]
    assert "stays behind" in caplog.text
    assert server.stored(SECRETS, names.token(JOB))["metadata"]["ownerReferences"]
