"""What is applied by hand becomes the Job's own when its master starts, as far as the master may."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kube.lease_server import LeaseServer

from edl.kube import names
from edl.kube.api import MERGE
from edl.kube.errors import NoRightError
from edl.kube.kinds import CONFIGMAPS, JOBS, SECRETS, SERVICES, Kind
from edl.kube.manifests.render import owner
from edl.kube.platform.ownership import adopt, dependants

JOB, UID = "digits", "job-uid"
TOKEN = names.token(JOB)


def place(server: LeaseServer, kind: Kind, name: str, **meta: object) -> None:
    labels = {"labels": names.labels(JOB)}
    server.put(kind, {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name, **labels, **meta}})


def applied(found: LeaseServer) -> LeaseServer:
    """After ``edl render | kubectl apply``."""
    place(found, JOBS, names.master(JOB), uid=UID)
    for kind, name in dependants(JOB, TOKEN):
        place(found, kind, name)
    return found


@pytest.fixture
def server() -> LeaseServer:
    return applied(LeaseServer())


def test_all_that_is_made_beside_the_job_becomes_its_own_once(server: LeaseServer) -> None:
    adopt(server, JOB, UID, TOKEN)  # type: ignore[arg-type]
    for kind, name in dependants(JOB, TOKEN):
        assert server.stored(kind, name)["metadata"]["ownerReferences"] == [owner(JOB, UID)]
    adopt(server, JOB, UID, TOKEN)  # type: ignore[arg-type]
    for kind, name in dependants(JOB, TOKEN):
        assert server.stored(kind, name)["metadata"]["ownerReferences"] == [owner(JOB, UID)]
    looked_at = {name for method, name in server.requests if method != "PATCH"}
    assert looked_at == {names.master(JOB)}  # a master has no right to get Secrets


def test_what_edl_submit_made_is_left_alone(server: LeaseServer) -> None:
    place(server, JOBS, names.master(JOB), uid=UID, annotations={names.SUBMISSION: "0123"})
    adopt(server, JOB, UID, TOKEN)  # type: ignore[arg-type]
    assert server.requests == [("GET", names.master(JOB))]


def test_other_owners_stay(server: LeaseServer) -> None:
    another = {"apiVersion": "v1", "kind": "Release", "name": "r", "uid": "x"}
    place(server, SERVICES, names.master(JOB), ownerReferences=[another])
    adopt(server, JOB, UID, TOKEN)  # type: ignore[arg-type]
    found = server.stored(SERVICES, names.master(JOB))["metadata"]["ownerReferences"]
    assert found == [another, owner(JOB, UID)]


def test_a_secret_of_the_users_own_is_not_taken(server: LeaseServer) -> None:
    place(server, SECRETS, names.token(JOB), labels={})
    adopt(server, JOB, UID, TOKEN)  # type: ignore[arg-type]
    assert "ownerReferences" not in server.stored(SECRETS, names.token(JOB))["metadata"]


def test_a_secret_that_the_user_named_for_the_token_is_not_asked_for(server: LeaseServer) -> None:
    adopt(server, JOB, UID, "mine")  # type: ignore[arg-type]
    assert ("PATCH", "mine") not in server.requests
    assert ("PATCH", TOKEN) not in server.requests


class WithoutSecrets(LeaseServer):
    """As the roles are installed: masters have no right to patch Secrets."""

    def patch(self, kind: Kind, name: str, body: Any, *, namespace: str | None = None, style: str = MERGE) -> Any:
        if kind is SECRETS:
            raise NoRightError(f'secrets "{name}" is forbidden: User "{names.MASTER_ACCOUNT}" cannot patch')
        return super().patch(kind, name, body, namespace=namespace, style=style)


def test_without_the_right_one_line_says_what_stays_and_what_removes_it(caplog: pytest.LogCaptureFixture) -> None:
    server = applied(WithoutSecrets())
    with caplog.at_level(logging.INFO):
        adopt(server, JOB, UID, TOKEN)  # type: ignore[arg-type]
    assert caplog.messages == [
        "Secret edl-digits-token stays behind when the Job is deleted with kubectl: masters may not patch Secrets in "
        "this namespace. `edl delete digits` removes it, before or after, and so does "
        "`kubectl delete secret edl-digits-token`"
    ]
    owned = [
        name for kind, name in dependants(JOB, TOKEN) if "ownerReferences" in server.stored(kind, name)["metadata"]
    ]
    assert owned == [names.spec(JOB), names.status(JOB), names.master(JOB)]


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
        adopt(server, JOB, UID, TOKEN)  # type: ignore[arg-type]
    assert "stays behind" in caplog.text
    assert server.stored(SECRETS, names.token(JOB))["metadata"]["ownerReferences"]
