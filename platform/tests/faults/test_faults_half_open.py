"""A thousand half-open calls on the control plane of a job that trains: it goes on, and nobody is taken for dead."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from faults.linear_job import LinearJob
from support.job_process import JobProcess
from transport import half_open

from edl.transport.control_methods import MasterMethods, PsControlMethods
from edl.transport.handshake import PROTOCOL_VERSION, TOKEN_KEY, VERSION_KEY

Make = Callable[..., LinearJob]
CONNECTIONS = 20
SECONDS = 60.0

pytestmark = [pytest.mark.faults, pytest.mark.thorough, pytest.mark.timeout(SECONDS + 240)]


@pytest.mark.parametrize("proven", [False, True], ids=["without the token", "with the token"])
@pytest.mark.parametrize("role", ["ps", "master"])
def test_no_role_is_replaced_and_training_goes_on(linear: Make, role: str, proven: bool) -> None:
    job = linear(epochs=1000)
    with job.start() as run:
        run.wait_step(50)
        before = run.pids("ps"), run.pids("master")
        with flooded(run, role, proven=proven):
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                step = run.status()["step"]
                run.wait_step(step + 1, timeout=10.0)
                time.sleep(0.5)
        assert (run.pids("ps"), run.pids("master")) == before
        assert not run.events("lease_revoked")
        run.interrupt()
        run.wait()


@contextmanager
def flooded(run: JobProcess, role: str, *, proven: bool) -> Iterator[None]:
    """Half-open calls to one role, from a process of their own."""
    variables = dict(
        line.split("=", 1) for line in Path(f"/proc/{run.pids('ps')[0]}/environ").read_text().split("\0") if line
    )
    (control,) = Path(variables["EDL_RUNTIME_DIR"]).glob("ps-0-*.ctl")
    address = f"unix:{control}" if role == "ps" else variables["EDL_MASTER_ADDRESS"]
    method = PsControlMethods.Hold if role == "ps" else MasterMethods.Progress
    token = Path(variables["EDL_TOKEN_FILE"]).read_text()
    proof = [(TOKEN_KEY, token), (VERSION_KEY, str(PROTOCOL_VERSION))] if proven else []
    command = [sys.executable, half_open.__file__, address, method.path, json.dumps(proof), "", str(CONNECTIONS)]
    with ExitStack() as stack:
        flood = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(flood.kill)
        assert flood.stdout is not None
        assert flood.stdout.readline() == "open\n"
        yield
        assert flood.poll() is None, "the calls were not held"
