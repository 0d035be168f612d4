from __future__ import annotations

from edl.core.cluster import Phase, PodSeen, Role
from edl.core.fleet import Fleet


def test_new_workers_get_consecutive_indices_though_each_wish_is_entered_as_it_is_read() -> None:
    fleet = Fleet(ps=1)
    asked = []
    for role, index in fleet.missing(3, now=0.0):
        fleet.ask(role, index)
        asked.append((role, index))
    assert asked == [(Role.PS, 0), (Role.WORKER, 0), (Role.WORKER, 1), (Role.WORKER, 2)]
    assert fleet.missing(3, now=0.0) == []


def test_a_lost_worker_is_replaced_under_a_new_index_and_a_lost_ps_under_its_own() -> None:
    fleet = Fleet(ps=1)
    for role, index in fleet.missing(4, now=0.0):
        fleet.ask(role, index)
        fleet.see(PodSeen(f"{role}-{index}", role, index, Phase.RUNNING))
    for uid, role in (("worker-0", Role.WORKER), ("ps-0", Role.PS)):
        pod, _ = fleet.see(PodSeen(uid, role, 0, Phase.FAILED, exit_code=137))
        assert fleet.ended(pod, now=1.0)[0]
    assert fleet.missing(4, now=1.0) == [(Role.PS, 0), (Role.WORKER, 4)]
