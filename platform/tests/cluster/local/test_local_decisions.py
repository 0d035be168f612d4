"""The local cluster's decisions, without processes: endings, restarts, sightings, messages, the pod table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.errors import BadInputError, RefusedError
from edl.cluster.local import orphan_reaper, supervisor, supervisor_protocol
from edl.cluster.local.local_cluster import LocalCluster
from edl.cluster.local.role_process import ExitStatus, RoleEnvironment
from edl.cluster.local.supervisor import MAX_ENDED_PODS, PodTable, RestartPolicy
from edl.cluster.watch_deduplicator import WatchDeduplicator
from edl.transport.process_identity import ProcessIdentity


@pytest.mark.parametrize(
    ("returncode", "exit_code", "reason", "phase"),
    [
        (0, 0, "Completed", PodPhase.SUCCEEDED),
        (1, 1, "Error", PodPhase.FAILED),
        (-9, 137, "Killed (SIGKILL)", PodPhase.FAILED),
        (-11, 139, "Killed (SIGSEGV)", PodPhase.FAILED),
        (-15, 143, "Terminated (SIGTERM)", PodPhase.FAILED),
        (143, 143, "Terminated (SIGTERM)", PodPhase.FAILED),
        (128, 128, "Error", PodPhase.FAILED),
        (255, 255, "Error", PodPhase.FAILED),
    ],
)
def test_ending(returncode: int, exit_code: int, reason: str, phase: PodPhase) -> None:
    ending = ExitStatus.from_returncode(returncode)
    assert (ending.exit_code, ending.reason, ending.phase) == (exit_code, reason, phase)


def test_restarts_are_free_then_slower_then_pointless() -> None:
    policy, delays = RestartPolicy(), []
    while not policy.is_exhausted:
        policy = policy.after_death(age=0.1)
        delays.append(policy.delay_seconds)
    assert delays[:9] == [0, 0, 0, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert set(delays[9:]) == {supervisor.MAX_DELAY_SECONDS}


def test_long_life_forgives_early_deaths() -> None:
    policy = RestartPolicy(young_deaths=9).after_death(age=supervisor.YOUNG_SECONDS)
    assert policy.delay_seconds == 0


def test_role_reads_from_its_environment_what_the_supervisor_wrote(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("5ec2e7")
    written = RoleEnvironment(
        Role.PS, 2, "ps-2-a", tmp_path, tmp_path / "rt", token_file, tmp_path / "c.sock", "unix:/m.sock"
    )
    read = ProcessIdentity.from_environment(written.to_variables())
    assert read == ProcessIdentity(tmp_path, Role.PS, 2, "ps-2-a", "5ec2e7", tmp_path / "rt", "unix:/m.sock")
    with pytest.raises(BadInputError, match="EDL_CLUSTER_SOCKET"):
        LocalCluster.from_environment(read.token, {})


@given(st.lists(st.tuples(st.sampled_from("+-"), st.integers(2, 9))), st.integers(2, 9))
def test_guard_knows_who_is_left(lines: list[tuple[str, int]], torn: int) -> None:
    last = {pid: sign for sign, pid in lines}
    expected = {pid for pid, sign in last.items() if sign == "+"}
    assert orphan_reaper.remaining_groups([*(f"{sign}{pid}\n" for sign, pid in lines), f"+{torn}"]) == expected


PODS = st.builds(
    PodStatus,
    uid=st.text(min_size=1, max_size=20),
    role=st.sampled_from(Role),
    index=st.integers(0, 10**6),
    phase=st.sampled_from(PodPhase),
    exit_code=st.none() | st.integers(0, 255),
    reason=st.text(max_size=50),
    pid=st.none() | st.integers(1, 10**6),
)


@given(st.lists(PODS), st.integers(1, 100))
def test_pods_survive_the_wire_in_pieces_of_any_size(pods: list[PodStatus], size: int) -> None:
    data = b"".join(supervisor_protocol.encode_message(supervisor_protocol.pod_message(pod)) for pod in pods)
    lines = supervisor_protocol.MessageDecoder()
    messages = [message for at in range(0, len(data), size) for message in lines.feed(data[at : at + size])]
    assert [supervisor_protocol.pod_from_message(message) for message in messages] == pods


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        for message in supervisor_protocol.MessageDecoder().feed(data + b"\n"):
            supervisor_protocol.pod_from_message(message)
    except RefusedError:
        pass


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_long_line_is_refused(end: bytes) -> None:
    with pytest.raises(RefusedError, match="longer"):
        supervisor_protocol.MessageDecoder().feed(b"x" * (supervisor_protocol.MAX_LINE_BYTES + 1) + end)


def test_nested_json_is_refused() -> None:
    with pytest.raises(RefusedError):
        supervisor_protocol.MessageDecoder().feed(b"[" * 60000 + b"\n")


def pod(uid: int, ended: bool = False) -> PodStatus:
    phase = PodPhase.FAILED if ended else PodPhase.RUNNING
    return PodStatus(f"worker-{uid}", Role.WORKER, uid, phase, exit_code=1 if ended else None)


@given(
    st.lists(st.sets(st.integers(0, 5)), max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=20),
    st.booleans(),
)
def test_every_pod_seen_alive_is_seen_ended_once(
    lists: list[set[int]], ends: list[tuple[int, int]], remembered: bool
) -> None:
    """Pods appear in lists; some ends are told, some are listed, some only follow from a list without the pod."""
    sightings = WatchDeduplicator()
    ended: set[int] = set()
    yielded: list[PodStatus] = []
    for number, alive in enumerate(lists):
        listed = [pod(uid) for uid in alive - ended] + [pod(uid, ended=True) for uid in ended if remembered]
        ended |= {status.index for status in yielded if status.index not in alive}
        yielded += sightings.apply_list(listed)
        for when, uid in ends:
            if when == number and uid in alive - ended:
                ended.add(uid)
                yielded += sightings.apply_change(pod(uid, ended=True))
    yielded += sightings.apply_list([])
    for uid in range(6):
        states = [status.has_ended for status in yielded if status.index == uid]
        assert states.count(True) == (1 if states else 0)
        assert states == sorted(states)


def test_table_remembers_ended_pods_until_deleted_and_not_too_many() -> None:
    table = PodTable()
    for number in range(MAX_ENDED_PODS + 1):
        table.add_started(f"u{number}", Role.WORKER, number, 100 + number)
        table.record_end(f"u{number}", ExitStatus.from_returncode(1))
    assert next(iter(table)).uid == "u1"
    assert not table.mark_deleted("u1")
    assert next(iter(table)).uid == "u2"


def test_table_calls_a_deleted_pod_gone() -> None:
    table = PodTable()
    table.add_started("u", Role.WORKER, 0, 100)
    assert table.live_pod(Role.WORKER, 0) is not None
    assert table.mark_deleted("u")
    last = table.record_end("u", ExitStatus.from_returncode(-9))
    assert (last.phase, last.exit_code, last.reason) == (PodPhase.GONE, 137, "Deleted")
    assert table.live_pod(Role.WORKER, 0) is None
    assert list(table) == []
