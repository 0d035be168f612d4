"""Rounds of real processes: one is killed, one is stopped and goes on later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.rank_threads import TOKEN

from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener
from edl.collective.communicator import Communicator
from edl.collective.round_errors import RoundBrokenError

PROGRAM = """
import sys
import numpy as np
from edl.collective.collective_listener import CollectiveListener
from edl.collective.communicator import Communicator
from edl.collective.round_errors import RoundBrokenError
from edl.api.round_id import RoundId

address, token, native = sys.argv[1:]
native = native == "native"
with CollectiveListener(address, token, shared_memory=native) as listener:
    print(listener.address, flush=True)
    members = [sys.stdin.readline().strip(), listener.address]
    with Communicator.connect(listener, RoundId(1, 1), 1, members, native=native, heartbeat_timeout=0.5) as round_:
        try:
            while True:
                round_.all_reduce(np.ones(100_000, np.float32))
        except RoundBrokenError:
            sys.exit(3)
"""


@contextmanager
def other_process(address: str, native: bool) -> Iterator[tuple[subprocess.Popen[str], Communicator]]:
    """A process that is rank 1 and reduces until the round breaks; this one is rank 0."""
    theirs = address if address.startswith("unix:") else "127.0.0.1:0"
    ours = f"{address}-0" if address.startswith("unix:") else "127.0.0.1:0"
    with CollectiveListener(ours, TOKEN, shared_memory=native) as listener:
        command = [sys.executable, "-c", PROGRAM, theirs, TOKEN, "native" if native else "numpy"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            members = [listener.address, process.stdout.readline().strip()]
            process.stdin.write(listener.address + "\n")
            process.stdin.flush()
            with Communicator.connect(
                listener, RoundId(1, 1), 0, members, native=native, timeout=30.0, heartbeat_timeout=0.5
            ) as communicator:
                yield process, communicator
        finally:
            process.kill()
            process.communicate()


def reduce_until_broken(communicator: Communicator, count: int = 10**9) -> RoundBrokenError | None:
    for _ in range(count):
        try:
            communicator.all_reduce(np.ones(100_000, np.float32))
        except RoundBrokenError as error:
            return error
    return None


IMPLEMENTATIONS = [
    pytest.param("unix", False, id="numpy-unix"),
    pytest.param("tcp", False, id="numpy-tcp"),
    pytest.param("unix", True, id="shared-memory", marks=pytest.mark.native),
    pytest.param("tcp", True, id="native-tcp", marks=pytest.mark.native),
]


@pytest.mark.parametrize(("kind", "native"), IMPLEMENTATIONS)
def test_a_killed_process_breaks_the_round_at_once(tmp_path: Path, kind: str, native: bool) -> None:
    with other_process(f"unix:{tmp_path}/s" if kind == "unix" else "tcp", native) as (process, communicator):
        assert reduce_until_broken(communicator, 10) is None
        process.kill()
        error = reduce_until_broken(communicator)
        assert error is not None
        assert error.rank == 1
        assert "silent" not in error.reason


@pytest.mark.parametrize(("kind", "native"), IMPLEMENTATIONS)
def test_a_stopped_process_is_lost_and_learns_it(tmp_path: Path, kind: str, native: bool) -> None:
    with other_process(f"unix:{tmp_path}/s" if kind == "unix" else "tcp", native) as (process, communicator):
        assert reduce_until_broken(communicator, 10) is None
        os.kill(process.pid, signal.SIGSTOP)
        begun = time.monotonic()
        error = reduce_until_broken(communicator)
        assert error is not None
        assert error.rank == 1
        assert "silent" in error.reason
        assert time.monotonic() - begun >= 0.4
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(20) == 3
