"""``edl inject`` and the command that it runs end together."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import psutil
import pytest

from edl.ops import fault_injection
from edl.ops.fault_injection import RolePids, ScheduledSignal, run_with_faults


@pytest.fixture
def restored_signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("restored_signals")
def test_the_command_ends_when_its_job_cannot_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_injection, "job_dir_of", lambda command, cwd: tmp_path)
    pid_file = tmp_path / "pid"

    def fail(self: object) -> None:
        if pid_file.exists():
            raise ModuleNotFoundError

    monkeypatch.setattr(fault_injection.SignalInjector, "send_due_signals", fail)
    code = f"import os, pathlib, time; pathlib.Path({json.dumps(str(pid_file))}).write_text(str(os.getpid()))"
    command = [sys.executable, "-c", f"{code}; time.sleep(60)"]
    with pytest.raises(ModuleNotFoundError):
        run_with_faults([ScheduledSignal.parse("worker:KILL@1")], command, warn=print)
    while not (pid := pid_file.read_text()):
        pass
    assert not psutil.pid_exists(int(pid))


@pytest.mark.parametrize(("age", "alive"), [(0.0, True), (60.0, False)])
def test_a_process_that_has_the_pid_of_a_role_that_ended_receives_nothing(age: float, alive: bool) -> None:
    """Pids come round after some minutes on a busy machine."""
    process = psutil.Process()
    start = process.create_time() - age
    roles = RolePids(since=start - 1.0)
    roles.record_event({"event": "role_started", "role": "worker", "index": 0, "pid": process.pid, "time": start})
    assert roles.is_alive(process.pid) is alive
