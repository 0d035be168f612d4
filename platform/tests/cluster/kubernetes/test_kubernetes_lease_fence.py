"""The fence between two masters, on a server and a clock that the test moves."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from support.in_memory_cluster import InMemoryCluster

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import NoResponseError, RbacDeniedError
from edl.cluster.kubernetes.lease_fence import LeaseCandidate, LeaseFence, has_pod_ended
from edl.cluster.kubernetes.resource_kinds import JOBS, LEASES
from edl.core.leader_election import LEASE_SECONDS, RENEW_DEADLINE_SECONDS

JOB = "digits"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "edl-digits-master", "uid": "job-uid"}


@pytest.fixture
def server() -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.put(job())
    return cluster


def job(**meta: Any) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": OWNER["name"], "uid": OWNER["uid"], **meta}}


def fence(server: InMemoryCluster, pod: str, uid: str = "") -> LeaseFence:
    return LeaseFence(server, LeaseCandidate(JOB, pod, uid or f"uid-{pod}", (OWNER,)), clock=server.clock)


def acquired_fence(server: InMemoryCluster, pod: str, uid: str = "") -> LeaseFence:
    lease_fence = fence(server, pod, uid)
    assert lease_fence.try_acquire().value
    return lease_fence


def lease(server: InMemoryCluster) -> dict[str, Any]:
    return server.stored(LEASES, names.master_name(JOB))


def pod(name: str, uid: str, phase: str, *states: str) -> dict[str, Any]:
    statuses = [{"name": "edl", "state": {state: {}}} for state in states]
    status = {"phase": phase, "containerStatuses": statuses}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": uid}, "status": status}


def test_a_fresh_lease_is_taken_owned_by_the_job_and_found_by_its_label(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")
    assert (first.incarnation, first.holds(), first.lost()) == (1, True, False)
    assert lease(server)["metadata"]["ownerReferences"] == [OWNER]
    assert lease(server)["metadata"]["labels"][names.JOB_LABEL] == JOB
    assert lease(server)["spec"]["leaseDurationSeconds"] == LEASE_SECONDS
    assert lease(server)["spec"]["holderIdentity"] == "a_uid-a"


def test_a_lease_that_was_given_back_is_taken_at_once(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")
    first.release()
    assert not first.holds()
    assert acquired_fence(server, "b").incarnation == 2


def test_the_same_pod_goes_on_after_its_container_restarted(server: InMemoryCluster) -> None:
    acquired_fence(server, "a")
    again = acquired_fence(server, "a")
    assert again.incarnation == 2


def test_a_pod_of_the_same_name_is_another(server: InMemoryCluster) -> None:
    acquired_fence(server, "a", "uid-1")
    assert not fence(server, "a", "uid-2").try_acquire().value


@pytest.mark.parametrize(
    ("holder", "free"),
    [
        (pod("a", "uid-a", "Failed", "terminated"), True),
        (pod("a", "uid-a", "Succeeded", "terminated", "terminated"), True),
        (pod("a", "uid-a", "Failed", "running"), False),
        (pod("a", "uid-a", "Failed"), False),  # a controller says so, who cannot see its node
        (pod("a", "uid-a", "Running", "running"), False),
        (pod("a", "uid-other", "Failed", "terminated"), False),
        (None, False),  # deleted by force: it may run on a node that is cut off
    ],
)
def test_a_holder_that_a_kubelet_saw_end_holds_no_more(
    server: InMemoryCluster, holder: dict[str, Any] | None, *, free: bool
) -> None:
    acquired_fence(server, "a")
    if holder is not None:
        server.put(holder)
    assert fence(server, "b").try_acquire().value is free


def test_a_lease_that_expired_by_the_servers_clock_is_taken(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")
    second = fence(server, "b")
    server.now += LEASE_SECONDS
    assert not second.try_acquire().value
    assert not first.holds()
    server.now += 2
    assert second.try_acquire().value
    assert second.incarnation == 2
    first.renew_lease()
    assert (first.lost(), first.holds()) == (True, False)
    first.release()  # it is not its own to give back
    assert lease(server)["spec"]["holderIdentity"] == "b_uid-b"


def test_a_server_that_tells_no_times_is_watched(server: InMemoryCluster) -> None:
    acquired_fence(server, "a")
    server.stored(LEASES, names.master_name(JOB))["metadata"]["managedFields"] = []
    second = fence(server, "b")
    assert not second.try_acquire().value
    server.now += LEASE_SECONDS
    assert not second.try_acquire().value
    server.now += 1
    assert second.try_acquire().value


def test_a_holder_that_renews_keeps_it(server: InMemoryCluster) -> None:
    first, second = acquired_fence(server, "a"), fence(server, "b")
    for _ in range(100):
        server.now += 2
        first.renew_lease()
        assert not second.try_acquire().value
        assert first.holds()


def test_while_the_server_is_away_it_freezes_and_goes_on_when_it_is_back(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")
    server.away = True
    server.now += RENEW_DEADLINE_SECONDS - 1
    first.renew_lease()
    assert first.holds()
    server.now += 1
    first.renew_lease()
    assert (first.holds(), first.lost()) == (False, False)
    server.away = False
    first.renew_lease()
    assert first.holds()


def test_a_renewal_counts_from_when_it_was_begun(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")

    def slow(method: str) -> None:
        server.now += RENEW_DEADLINE_SECONDS

    server.before = slow
    first.renew_lease()
    assert not first.holds()


def test_two_that_try_at_once_get_one_lease(server: InMemoryCluster) -> None:
    acquired_fence(server, "a").release()
    second, third = fence(server, "b"), fence(server, "c")
    faster: list[bool] = []

    def overtake(method: str) -> None:
        if method == "PATCH":
            server.before = lambda method: None
            faster.append(third.try_acquire().value)

    server.before = overtake
    assert not second.try_acquire().value
    assert faster == [True]
    assert (second.holds(), third.holds()) == (False, True)


def test_somebody_elses_change_of_the_object_costs_nothing(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")
    server.patch(LEASES, names.master_name(JOB), {"metadata": {"annotations": {"seen": "by a person"}}})
    server.now += 2
    first.renew_lease()
    server.now += RENEW_DEADLINE_SECONDS - 1
    assert first.holds()


def test_a_lease_that_somebody_deleted_is_made_again(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")
    acquired_fence(server, "a")
    server.remove(LEASES, names.master_name(JOB))
    first.renew_lease()
    assert first.holds()
    assert lease(server)["metadata"]["annotations"][names.INCARNATION_ANNOTATION] == "1"


@pytest.mark.parametrize("there", [None, job(uid="of-a-later-job"), job(deletionTimestamp="2026-01-01T00:00:00Z")])
def test_a_lease_that_went_with_its_job_is_not_made_again(
    server: InMemoryCluster, there: dict[str, Any] | None
) -> None:
    first = acquired_fence(server, "a")
    server.remove(JOBS, OWNER["name"])
    if there is not None:
        server.put(there)
    server.remove(LEASES, OWNER["name"])
    server.now += 2
    first.renew_lease()
    assert ("POST", OWNER["name"]) not in server.requests[2:]
    assert (first.holds(), first.lost()) == (True, False)
    server.now += RENEW_DEADLINE_SECONDS
    assert not first.holds()


def test_a_lease_that_is_missing_when_it_is_given_back_is_no_news(
    server: InMemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    first = acquired_fence(server, "a")
    server.remove(LEASES, OWNER["name"])
    first.release()
    assert ("POST", OWNER["name"]) not in server.requests[2:]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_renewal_on_its_way_while_it_is_given_back_makes_no_new_lease(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")
    server.remove(LEASES, OWNER["name"])
    releasing: list[threading.Thread] = []

    def release(method: str) -> None:
        server.before = lambda method: None
        releasing.append(threading.Thread(target=first.release))
        releasing[0].start()
        assert first._stopping.wait(30)

    server.before = release
    first.renew_lease()
    releasing[0].join()
    assert ("POST", OWNER["name"]) not in server.requests[2:]


def test_an_answer_that_got_lost_on_its_way_is_not_a_lost_lease(server: InMemoryCluster) -> None:
    first = acquired_fence(server, "a")
    real = server.patch

    def unheard(*arguments: Any, **options: Any) -> Any:
        real(*arguments, **options)
        server.away = True
        raise NoResponseError("the answer is lost")

    server.patch = unheard  # type: ignore[method-assign]
    first.renew_lease()
    server.patch, server.away = real, False  # type: ignore[method-assign]
    first.renew_lease()
    assert first.holds()


def test_taking_waits_and_can_be_stopped(server: InMemoryCluster) -> None:
    acquired_fence(server, "a")
    waits: list[float] = []
    assert not fence(server, "b").acquire(lambda: len(waits) == 3, waits.append)

    def wait(seconds: float) -> None:
        server.now += seconds

    second = fence(server, "b")
    assert second.acquire(lambda: False, wait)
    second.release()
    assert "holderIdentity" not in lease(server)["spec"]


def test_a_right_that_is_missing_ends_the_wait(server: InMemoryCluster) -> None:
    def refuse(method: str) -> None:
        raise RbacDeniedError("leases is forbidden: User cannot get")

    server.before = refuse
    with pytest.raises(RbacDeniedError):
        fence(server, "a").try_acquire()


def test_a_pod_without_containers_has_not_ended() -> None:
    assert not has_pod_ended({"status": {"phase": "Failed"}})
    assert not has_pod_ended({})
