"""``python -m edl.ps`` as a process of its own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from edl.ps.model_state import StoreFactory
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import PsControlMethods
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import MasterServicer, add_MasterServicer_to_server

TOKEN = "a-token"
SPEC = json.dumps(
    {
        "apiVersion": "edl.dev/v1",
        "name": "iris",
        "model": {"zoo": "zoo", "definition": "iris.model.custom_model"},
        "data": {"training": "data"},
    }
)


class RegistrationRecorder(MasterServicer):
    """A master that only listens."""

    def __init__(self) -> None:
        self.seen: queue.Queue[pb.RegisterRequest] = queue.Queue()

    def Register(self, request, context):
        self.seen.put(request)
        return pb.RegisterReply(incarnation=1)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="edl-ps") as name:
        (Path(name) / "token").write_text(TOKEN)
        (Path(name) / "spec.json").write_text(SPEC)
        yield Path(name)


@pytest.fixture
def process(folder):
    environment = {
        **os.environ,
        "EDL_RUN_DIR": str(folder),
        "EDL_ROLE": "ps",
        "EDL_INDEX": "3",
        "EDL_UID": "run-1-0123456789abcdef",
        "EDL_TOKEN_FILE": str(folder / "token"),
        "EDL_RUNTIME_DIR": str(folder),
        "EDL_MASTER_ADDRESS": f"unix:{folder}/m.ctl",
    }
    started = subprocess.Popen([sys.executable, "-m", "edl.ps"], env=environment, stderr=subprocess.PIPE, text=True)
    with started:
        yield started
        started.kill()


def master(folder: Path, servicer: RegistrationRecorder):
    return start_control_server(partial(add_MasterServicer_to_server, servicer), f"unix:{folder}/m.ctl", TOKEN, 2)


def test_it_registers_again_with_a_new_master_and_ends_with_0_on_sigterm(folder, process):
    for _ in range(2):
        servicer = RegistrationRecorder()
        server = master(folder, servicer)
        request = servicer.seen.get(timeout=60)
        server.stop()
    assert (request.member.role, request.member.index, request.pid) == ("ps", 3, process.pid)
    with ControlChannel(request.control_address, TOKEN) as channel:
        reply = channel.call(PsControlMethods.Attach, pb.AttachRequest(incarnation=1), timeout=10)
    assert (reply.uid, reply.initialized) == ("run-1-0123456789abcdef", False)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert sorted(path.name for path in folder.iterdir() if path.suffix in (".ctl", ".blk")) == []


def test_its_first_line_says_which_store_it_has_and_why(folder, process):
    assert process.stderr is not None
    line = process.stderr.readline()
    wanted = StoreFactory().choose_store_kind()
    assert f"tables are {wanted.value} ({wanted.reason})" in line


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_it_needs_no_tensorflow_and_little_memory(folder, process):
    servicer = RegistrationRecorder()
    server = master(folder, servicer)
    servicer.seen.get(timeout=60)
    resident = psutil.Process(process.pid).memory_info().rss
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    server.stop()
    assert "tensorflow" not in maps
    assert "safetensors" not in maps
    assert resident < 100e6


def test_its_last_word_are_its_figures(folder, process):
    servicer = RegistrationRecorder()
    server = master(folder, servicer)
    assert not servicer.seen.get(timeout=60).leaving
    process.send_signal(signal.SIGTERM)
    last = next(request for request in iter(partial(servicer.seen.get, timeout=30), None) if request.leaving)
    server.stop()
    assert last.HasField("figures")
    assert process.wait(timeout=30) == 0
