"""The supervisor with real processes: who is restarted, who dies with whom, what is written down."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.local.supervisor_harness import WAIT_SECONDS, FakeRole, SupervisorHarness

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, RefusedError
from edl.api.run_events import RoleEnded
from edl.cluster.local.local_cluster import LocalCluster
from edl.jobfile import event_json

GONE_SECONDS = 2.0
"""What architecture.md promises after a SIGKILL of the supervisor or of `edl run`."""


def with_worker_and_ps(harness: SupervisorHarness) -> list[FakeRole]:
    master = harness.open()
    cluster = harness.connect(master)
    uids = [cluster.start(Role.WORKER, 0), cluster.start(Role.PS, 0)]
    return [master, *(harness.role(uid) for uid in uids)]


def test_roles_know_who_they_are_and_the_token_is_in_no_variable(harness: SupervisorHarness) -> None:
    master, worker, _ = with_worker_and_ps(harness)
    assert (worker.identity.role, worker.identity.index) == (Role.WORKER, 0)
    assert worker.identity.run_dir == harness.run_dir.resolve()
    assert worker.token_file.stat().st_mode & 0o777 == 0o600
    assert worker.identity.runtime_dir.stat().st_mode & 0o777 == 0o700
    assert worker.cluster_socket.stat().st_mode & 0o777 == 0o600
    token = worker.identity.token
    assert len(token) == 64
    assert token not in json.dumps(dict(worker.variables))
    assert worker.session == worker.pid  # a terminal's Ctrl-C does not reach it
    assert master.parent == worker.parent
    assert len(os.fsencode(f"{worker.identity.runtime_dir}/worker-99999.sock")) < 104


def test_killed_master_is_restarted_and_the_others_are_left_alone(harness: SupervisorHarness) -> None:
    master, worker, ps = with_worker_and_ps(harness)
    master.signal(signal.SIGKILL)
    again = harness.next_role()
    assert again.identity.role == Role.MASTER
    assert again.uid != master.uid
    worker.obey("say still here")
    ps.obey("say still here")


def test_end_of_a_master_is_an_event_and_its_log_goes_on(harness: SupervisorHarness) -> None:
    master = harness.open()
    master.obey("say first life")
    master.exit(3)
    again = harness.next_role()
    again.obey("say second life")
    again.exit(0)
    assert harness.wait_closed() == 0
    events = [event_json.parse_event_line(line) for line in (harness.run_dir / "events.jsonl").read_text().splitlines()]
    assert all(isinstance(each, RoleEnded) and (each.role, each.index) == ("master", 0) for each in events)
    assert [(each.pid, each.reason, each.exit_code) for each in events] == [
        (master.pid, "Error", 3),
        (again.pid, "Completed", 0),
    ]
    log = (harness.run_dir / "logs" / "master-0.log").read_text().splitlines()
    assert log[1::2] == ["first life", "second life"]
    assert log[0].startswith(f"--- {master.uid} started ")
    assert log[2].startswith(f"--- {again.uid} started ")


def test_master_that_exits_0_ends_everything(harness: SupervisorHarness) -> None:
    master, worker, ps = with_worker_and_ps(harness)
    worker.obey("ignore-sigterm")
    ps.obey("on-sigterm 0")
    master.exit(0)
    assert harness.wait_closed() == 0
    worker.wait_gone()
    ps.wait_gone()
    assert not master.identity.runtime_dir.exists()


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_supervisor_leaves_nobody(harness: SupervisorHarness, signum: int, exit_code: int) -> None:
    roles = with_worker_and_ps(harness)
    roles[1].obey("ignore-sigterm")
    assert harness.supervisor is not None
    harness.supervisor.send_signal(signum)
    assert harness.wait_closed() == exit_code
    for role in roles:
        role.wait_gone()
    assert not roles[0].identity.runtime_dir.exists()


@pytest.fixture(params=["kernel", "guard"])
def parent_death_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kills the children of the dead: the kernel, where it can, or a guard process."""
    if request.param == "guard":
        monkeypatch.setenv("EDL_TEST_NO_PARENT_DEATH_SIGNAL", "1")


@pytest.mark.usefixtures("parent_death_mode")
def test_killed_supervisor_takes_all_roles_along_also_stopped_ones(harness: SupervisorHarness) -> None:
    roles = with_worker_and_ps(harness)
    roles[1].signal(signal.SIGSTOP)
    assert harness.supervisor is not None
    harness.supervisor.kill()
    for role in roles:
        role.wait_gone(GONE_SECONDS)


LAUNCHER = """
import signal, sys
from pathlib import Path
from edl.cluster.local.supervisor_launch import start_supervisor
supervisor = start_supervisor(Path(sys.argv[1]), (sys.argv[2],))
print(supervisor.pid, flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="waits with a pidfd")
@pytest.mark.parametrize("supervisor_stopped", [False, True])
def test_killed_parent_takes_the_supervisor_and_all_roles_along(
    harness: SupervisorHarness, supervisor_stopped: bool
) -> None:
    program = Path(__file__).with_name("fake_supervisor.py")
    command = [sys.executable, "-c", LAUNCHER, str(harness.run_dir), str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        supervisor_pid = int(parent.stdout.readline())
        master = harness.next_role()
        master.signal(signal.SIGSTOP)
        if supervisor_stopped:
            os.kill(supervisor_pid, signal.SIGSTOP)
        supervisor = os.pidfd_open(supervisor_pid)
        parent.kill()
        master.wait_gone(GONE_SECONDS)
        gone, _, _ = select.select([supervisor], [], [], GONE_SECONDS)
        os.close(supervisor)
        assert gone


def test_what_a_role_started_dies_with_it(harness: SupervisorHarness) -> None:
    _, worker, _ = with_worker_and_ps(harness)
    worker.obey("child")
    worker.signal(signal.SIGKILL)
    worker.wait_gone()  # the child holds the connection too


def test_wrong_token_is_refused(harness: SupervisorHarness) -> None:
    master = harness.open()
    stranger = LocalCluster(master.cluster_socket, "0" * 64)
    with pytest.raises(RefusedError, match="token"):
        stranger.start(Role.WORKER, 0)
    with pytest.raises(RefusedError, match="token"):
        next(stranger.watch())
    stranger.close()


def test_master_is_not_startable_by_a_master(harness: SupervisorHarness) -> None:
    cluster = harness.connect(harness.open())
    with pytest.raises(BadInputError, match="not 'master'"):
        cluster.start(Role.MASTER, 1)
    with pytest.raises(BadInputError, match="from 0"):
        cluster.start(Role.WORKER, -1)


def test_folder_of_a_killed_supervisor_is_swept_by_the_next(harness: SupervisorHarness) -> None:
    master = harness.open()
    assert harness.supervisor is not None
    harness.supervisor.kill()
    harness.supervisor.wait(WAIT_SECONDS)
    harness.close_supervisor()
    assert master.identity.runtime_dir.exists()
    harness.open()
    assert not master.identity.runtime_dir.exists()


def test_parent_that_dies_is_noticed_without_the_kernel(
    harness: SupervisorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_TEST_NO_PARENT_DEATH_SIGNAL", "1")
    master = harness.open()
    assert harness.supervisor is not None
    assert harness.supervisor.stdin is not None
    harness.supervisor.stdin.close()  # as the kernel does for a parent that is gone
    master.wait_gone(GONE_SECONDS)
    assert harness.wait_closed() == 137


def test_supervisor_wants_a_run_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edl.cluster.local", str(tmp_path / "r9")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)
    assert ended.returncode == 2
    assert "r9: there is no such run directory" in ended.stderr


def test_supervisor_starts_without_heavy_imports() -> None:
    code = "import sys, edl.cluster.local.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"grpc", "numpy", "rich", "typer", "google.protobuf", "logging", "asyncio", "edl.jobfile"} & set(loaded)


def test_a_stop_lets_the_master_end_the_job_and_leaves_the_others_until_then(harness: SupervisorHarness) -> None:
    master, worker, ps = with_worker_and_ps(harness)
    master.obey("on-sigusr1")
    assert harness.supervisor is not None
    harness.supervisor.send_signal(signal.SIGINT)
    master.wait_for_sigusr1()
    worker.obey("say still here")  # the final checkpoint needs them
    ps.obey("say still here")
    master.exit(0)
    assert harness.wait_closed() == 130
    for role in (worker, ps):
        role.wait_gone()


def test_a_second_stop_kills_at_once_while_the_master_winds_up(harness: SupervisorHarness) -> None:
    master, worker, _ = with_worker_and_ps(harness)
    master.obey("on-sigusr1")
    worker.obey("ignore-sigterm")
    assert harness.supervisor is not None
    harness.supervisor.send_signal(signal.SIGTERM)
    master.wait_for_sigusr1()
    harness.supervisor.send_signal(signal.SIGINT)
    assert harness.wait_closed(GONE_SECONDS) == 130
    worker.wait_gone()


def test_a_master_that_dies_while_it_winds_up_is_not_restarted(harness: SupervisorHarness) -> None:
    master, worker, _ = with_worker_and_ps(harness)
    master.obey("on-sigusr1")
    assert harness.supervisor is not None
    harness.supervisor.send_signal(signal.SIGTERM)
    master.wait_for_sigusr1()
    master.signal(signal.SIGKILL)
    assert harness.wait_closed() == 143
    worker.wait_gone()
