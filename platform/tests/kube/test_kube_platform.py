"""What a master in a pod stands on."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from kube.lease_server import LeaseServer

from edl.core.cluster import Role, Wish
from edl.core.errors import BadInputError
from edl.kube import names, platform
from edl.kube.errors import AwayError, InvalidError
from edl.kube.kinds import LEASES
from edl.kube.platform import Place, Platform
from edl.spec.job import JobSpec, Model

SPEC = JobSpec(name="digits", model=Model("m.custom_model"), image="edl:1")
VARIABLES = {
    "EDL_JOB_UID": "job-uid",
    "EDL_NAMESPACE": "team",
    "EDL_POD": "edl-digits-master-x",
    "EDL_UID": "pod-uid",
    "EDL_RUN_DIR": "/data/edl/team/digits/job-uid",
    "EDL_TOKEN_SECRET": "mine",
}


class Server(LeaseServer):
    """Also takes pods and patches of the Job."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[dict[str, Any]] = []
        self.answers: list[Exception | None] = []
        self.patches: list[Any] = []

    def create(self, manifest: dict[str, Any], *, namespace: str | None = None) -> dict[str, Any]:
        self.made.append(manifest)
        return super().create(manifest)

    def patch(self, kind: Any, name: str, body: Any, *, namespace: str | None = None, style: str = "") -> Any:
        if style != "json":
            return super().patch(kind, name, body)
        self.patches.append((name, body))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return {}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def there(server: Server) -> Any:
    found = Platform(SPEC, Place.from_environment("digits", VARIABLES), lambda pace: server)  # type: ignore[arg-type,return-value]
    yield found
    found.close()
    found.cluster.close()


def test_it_has_the_lease_before_anything_is_asked(server: Server, there: Platform) -> None:
    assert server.requests == []
    assert there.acquire(threading.Event())
    assert server.requests[:2] == [("GET", "edl-digits-master"), ("POST", "edl-digits-master")]
    assert server.stored(LEASES, names.master("digits"))["spec"]["holderIdentity"] == "edl-digits-master-x_pod-uid"
    there.close()
    assert "holderIdentity" not in server.stored(LEASES, names.master("digits"))["spec"]


def test_a_master_that_is_told_to_go_does_not_take_it(server: Server, there: Platform) -> None:
    stopping = threading.Event()
    stopping.set()
    assert not there.acquire(stopping)
    assert server.requests == []


def test_pods_are_those_of_this_job_and_run(server: Server, there: Platform) -> None:
    there.cluster.start(Role.WORKER, 3, Wish())
    (pod,) = server.made
    assert pod["metadata"]["name"] == "edl-digits-worker-3"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert variables["EDL_RUN_DIR"] == VARIABLES["EDL_RUN_DIR"]
    assert variables["EDL_MASTER_ADDRESS"] == "edl-digits-master.team:7070"
    assert "mine" in str(pod["spec"]["volumes"])


def test_a_job_that_is_done_needs_no_word(server: Server, there: Platform) -> None:
    there.conclude(failed=False)
    assert server.patches == []


def test_a_job_that_has_failed_gets_no_other_master(
    server: Server, there: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform.time, "sleep", lambda seconds: None)
    server.answers = [AwayError("away"), AwayError("away")]
    there.conclude(failed=True)
    assert len(server.patches) == 3
    name, operations = server.patches[-1]
    assert name == "edl-digits-master"
    assert operations == [
        {"op": "test", "path": "/metadata/uid", "value": "job-uid"},
        {"op": "replace", "path": "/spec/backoffLimit", "value": 0},
    ]


def test_a_later_job_of_the_same_name_is_left_alone(server: Server, there: Platform) -> None:
    server.answers = [InvalidError("the test failed")]
    there.conclude(failed=True)
    assert len(server.patches) == 1


@pytest.mark.parametrize("name", ["EDL_JOB_UID", "EDL_NAMESPACE", "EDL_POD", "EDL_UID", "EDL_RUN_DIR"])
def test_a_pod_that_lacks_a_variable_is_told_which(name: str) -> None:
    with pytest.raises(BadInputError, match=name):
        Place.from_environment("digits", {k: v for k, v in VARIABLES.items() if k != name})


def test_a_master_on_one_machine_never_imports_the_client() -> None:
    code = "import sys, edl.master.process; sys.exit('kubernetes' in sys.modules or 'urllib3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
