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
from cluster.local.supervisor_harness import PATIENCE, FakeRole, SupervisorHarness

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, RefusedError
from edl.api.events import RoleEnded
from edl.cluster.local.local_cluster import LocalCluster
from edl.jobfile import event_json

GONE_SECONDS = 2.0
"""What architecture.md promises after a SIGKILL of the supervisor or of `edl run`."""


def with_worker_and_ps(stage: SupervisorHarness) -> list[FakeRole]:
    master = stage.open()
    cluster = stage.connect(master)
    uids = [cluster.start(Role.WORKER, 0), cluster.start(Role.PS, 0)]
    return [master, *(stage.actor(uid) for uid in uids)]


def test_roles_know_who_they_are_and_the_token_is_in_no_variable(stage: SupervisorHarness) -> None:
    master, worker, _ = with_worker_and_ps(stage)
    assert (worker.identity.role, worker.identity.index) == (Role.WORKER, 0)
    assert worker.identity.run_dir == stage.run_dir.resolve()
    assert worker.token_file.stat().st_mode & 0o777 == 0o600
    assert worker.identity.runtime_dir.stat().st_mode & 0o777 == 0o700
    assert worker.cluster_socket.stat().st_mode & 0o777 == 0o600
    token = worker.identity.token
    assert len(token) == 64
    assert token not in json.dumps(dict(worker.variables))
    assert worker.session == worker.pid  # a terminal's Ctrl-C does not reach it
    assert master.parent == worker.parent
    assert len(os.fsencode(f"{worker.identity.runtime_dir}/worker-99999.sock")) < 104


def test_killed_master_is_restarted_and_the_others_are_left_alone(stage: SupervisorHarness) -> None:
    master, worker, ps = with_worker_and_ps(stage)
    master.signal(signal.SIGKILL)
    again = stage.next_actor()
    assert again.identity.role == Role.MASTER
    assert again.uid != master.uid
    worker.obey("say still here")
    ps.obey("say still here")


def test_end_of_a_master_is_an_event_and_its_log_goes_on(stage: SupervisorHarness) -> None:
    master = stage.open()
    master.obey("say first life")
    master.exit(3)
    again = stage.next_actor()
    again.obey("say second life")
    again.exit(0)
    assert stage.wait_closed() == 0
    events = [event_json.parse_event_line(line) for line in (stage.run_dir / "events.jsonl").read_text().splitlines()]
    assert all(isinstance(each, RoleEnded) and (each.role, each.index) == ("master", 0) for each in events)
    assert [(each.pid, each.reason, each.exit_code) for each in events] == [
        (master.pid, "Error", 3),
        (again.pid, "Completed", 0),
    ]
    log = (stage.run_dir / "logs" / "master-0.log").read_text().splitlines()
    assert log[1::2] == ["first life", "second life"]
    assert log[0].startswith(f"--- {master.uid} started ")
    assert log[2].startswith(f"--- {again.uid} started ")


def test_master_that_exits_0_ends_everything(stage: SupervisorHarness) -> None:
    master, worker, ps = with_worker_and_ps(stage)
    worker.obey("stubborn")
    ps.obey("polite 0")
    master.exit(0)
    assert stage.wait_closed() == 0
    worker.wait_gone()
    ps.wait_gone()
    assert not master.identity.runtime_dir.exists()


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_supervisor_leaves_nobody(stage: SupervisorHarness, signum: int, exit_code: int) -> None:
    actors = with_worker_and_ps(stage)
    actors[1].obey("stubborn")
    assert stage.supervisor is not None
    stage.supervisor.send_signal(signum)
    assert stage.wait_closed() == exit_code
    for actor in actors:
        actor.wait_gone()
    assert not actors[0].identity.runtime_dir.exists()


@pytest.fixture(params=["kernel", "guard"])
def ties(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kills the children of the dead: the kernel, where it can, or a guard process."""
    if request.param == "guard":
        monkeypatch.setenv("EDL_TEST_NO_TIES", "1")


@pytest.mark.usefixtures("ties")
def test_killed_supervisor_takes_all_roles_along_also_stopped_ones(stage: SupervisorHarness) -> None:
    actors = with_worker_and_ps(stage)
    actors[1].signal(signal.SIGSTOP)
    assert stage.supervisor is not None
    stage.supervisor.kill()
    for actor in actors:
        actor.wait_gone(GONE_SECONDS)


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
    stage: SupervisorHarness, supervisor_stopped: bool
) -> None:
    program = Path(__file__).with_name("fake_supervisor.py")
    command = [sys.executable, "-c", LAUNCHER, str(stage.run_dir), str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        supervisor_pid = int(parent.stdout.readline())
        master = stage.next_actor()
        master.signal(signal.SIGSTOP)
        if supervisor_stopped:
            os.kill(supervisor_pid, signal.SIGSTOP)
        supervisor = os.pidfd_open(supervisor_pid)
        parent.kill()
        master.wait_gone(GONE_SECONDS)
        gone, _, _ = select.select([supervisor], [], [], GONE_SECONDS)
        os.close(supervisor)
        assert gone


def test_what_a_role_started_dies_with_it(stage: SupervisorHarness) -> None:
    _, worker, _ = with_worker_and_ps(stage)
    worker.obey("child")
    worker.signal(signal.SIGKILL)
    worker.wait_gone()  # the child holds the connection too


def test_wrong_token_is_refused(stage: SupervisorHarness) -> None:
    master = stage.open()
    stranger = LocalCluster(master.cluster_socket, "0" * 64)
    with pytest.raises(RefusedError, match="token"):
        stranger.start(Role.WORKER, 0)
    with pytest.raises(RefusedError, match="token"):
        next(stranger.watch())
    stranger.close()


def test_master_is_not_startable_by_a_master(stage: SupervisorHarness) -> None:
    cluster = stage.connect(stage.open())
    with pytest.raises(BadInputError, match="not 'master'"):
        cluster.start(Role.MASTER, 1)
    with pytest.raises(BadInputError, match="from 0"):
        cluster.start(Role.WORKER, -1)


def test_folder_of_a_killed_supervisor_is_swept_by_the_next(stage: SupervisorHarness) -> None:
    master = stage.open()
    assert stage.supervisor is not None
    stage.supervisor.kill()
    stage.supervisor.wait(PATIENCE)
    stage.close_supervisor()
    assert master.identity.runtime_dir.exists()
    stage.open()
    assert not master.identity.runtime_dir.exists()


def test_parent_that_dies_is_noticed_without_the_kernel(
    stage: SupervisorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_TEST_NO_TIES", "1")
    master = stage.open()
    assert stage.supervisor is not None
    assert stage.supervisor.stdin is not None
    stage.supervisor.stdin.close()  # as the kernel does for a parent that is gone
    master.wait_gone(GONE_SECONDS)
    assert stage.wait_closed() == 137


def test_supervisor_wants_a_run_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edl.cluster.local", str(tmp_path / "r9")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode == 2
    assert "r9: there is no such run directory" in ended.stderr


def test_supervisor_starts_without_heavy_imports() -> None:
    code = "import sys, edl.cluster.local.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"grpc", "numpy", "rich", "typer", "google.protobuf", "logging", "asyncio", "edl.jobfile"} & set(loaded)


def test_a_stop_lets_the_master_end_the_job_and_leaves_the_others_until_then(stage: SupervisorHarness) -> None:
    master, worker, ps = with_worker_and_ps(stage)
    master.obey("winds up")
    assert stage.supervisor is not None
    stage.supervisor.send_signal(signal.SIGINT)
    master.wait_told()
    worker.obey("say still here")  # the final checkpoint needs them
    ps.obey("say still here")
    master.exit(0)
    assert stage.wait_closed() == 130
    for actor in (worker, ps):
        actor.wait_gone()


def test_a_second_stop_kills_at_once_while_the_master_winds_up(stage: SupervisorHarness) -> None:
    master, worker, _ = with_worker_and_ps(stage)
    master.obey("winds up")
    worker.obey("stubborn")
    assert stage.supervisor is not None
    stage.supervisor.send_signal(signal.SIGTERM)
    master.wait_told()
    stage.supervisor.send_signal(signal.SIGINT)
    assert stage.wait_closed(GONE_SECONDS) == 130
    worker.wait_gone()


def test_a_master_that_dies_while_it_winds_up_is_not_restarted(stage: SupervisorHarness) -> None:
    master, worker, _ = with_worker_and_ps(stage)
    master.obey("winds up")
    assert stage.supervisor is not None
    stage.supervisor.send_signal(signal.SIGTERM)
    master.wait_told()
    master.signal(signal.SIGKILL)
    assert stage.wait_closed() == 143
    worker.wait_gone()
