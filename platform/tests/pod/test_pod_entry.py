"""``edl-role`` as its users meet it: as a process, with real roles behind it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from edl.api.errors import BadInputError
from edl.pod.role_preparation import prepare_role

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux's")

SPEC = {
    "apiVersion": "edl.dev/v1",
    "name": "iris",
    "model": {"definition": "iris.model.custom_model"},
    "data": {"training": "/data"},
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "edl.pod", *arguments]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
    return subprocess.run(command(*arguments), env=clean | environment, capture_output=True, text=True, check=False)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(SPEC))
    return str(path)


@pytest.mark.parametrize("arguments", [(), ("master",), ("master", "a", "b"), ("boss", "job.json")])
def test_a_wrong_command_line_is_told_with_the_right_one(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert "edl-role master|ps|worker|submit SPEC" in ended.stderr


def test_help() -> None:
    ended = run("--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "JobSpec" in ended.stdout


@pytest.mark.parametrize("role", ["master", "ps", "worker"])
def test_by_hand_it_says_that_pods_start_it(role: str, spec: str) -> None:
    ended = run(role, spec)
    assert ended.returncode == 2
    assert "has no EDL_" in ended.stdout
    assert "edl submit" in ended.stdout


def test_a_spec_that_is_missing_or_wrong_is_told(tmp_path: Path) -> None:
    wrong = tmp_path / "job.json"
    wrong.write_text('{"name": "A"}')
    for path in (str(wrong), str(tmp_path / "nothing.json")):
        ended = run("master", path, EDL_NAMESPACE="team", EDL_JOB_UID="u", EDL_HOST="::1")
        assert ended.returncode == 2
        assert path in ended.stdout
        assert "submit it again" in ended.stdout
        assert "Traceback" not in ended.stdout


def test_a_submitter_takes_a_job_and_needs_a_cluster(tmp_path: Path) -> None:
    ended = run("submit", str(tmp_path / "nothing.json"))
    assert ended.returncode == 2
    assert "nothing.json" in ended.stderr


def test_a_master_is_told_its_run_directory_and_its_own_address(tmp_path: Path, spec: str) -> None:
    variables = {"EDL_NAMESPACE": "team", "EDL_JOB_UID": "uid-1", "EDL_STORAGE": str(tmp_path / "s"), "EDL_RUN": ""}
    environment = prepare_role("master", spec, variables | {"EDL_HOST": "10.0.0.7"})
    assert environment["EDL_RUN_DIR"] == str(tmp_path / "s" / "team" / "iris" / "uid-1")
    assert (environment["EDL_ROLE"], environment["EDL_INDEX"], environment["EDL_MASTER_ADDRESS"]) == (
        "master",
        "0",
        "10.0.0.7:7070",
    )
    assert environment["MALLOC_ARENA_MAX"] == "1"
    assert prepare_role("master", spec, variables | {"EDL_HOST": "fd00::7"})["EDL_MASTER_ADDRESS"] == "[fd00::7]:7070"
    written = json.loads((Path(environment["EDL_RUN_DIR"]) / "spec.json").read_text())
    assert written["model"]["zoo"] == "/model_zoo"


@pytest.mark.parametrize(
    ("role", "lacks", "said"),
    [
        ("master", {"grpc", "tensorflow"}, r"image.*gRPC:"),
        ("worker", {"grpc", "tensorflow"}, r"image.*gRPC.*TensorFlow"),
        ("worker", {"tensorflow"}, r"image.*\bno TensorFlow"),
    ],
)
def test_the_submitters_image_trains_nothing_and_says_so(
    role: str, lacks: set[str], said: str, tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.pod.role_preparation.find_spec", lambda module: None if module in lacks else object())
    with pytest.raises(BadInputError, match=said) as refused:
        prepare_role(role, spec, {"EDL_RUN_DIR": str(tmp_path / "run")})
    assert "edl zoo build" in (refused.value.hint or "")
    assert not (tmp_path / "run").exists()


def test_a_role_without_a_shared_volume_writes_the_spec_itself(tmp_path: Path, spec: str) -> None:
    prepare_role("worker", spec, {"EDL_RUN_DIR": str(tmp_path / "run")})
    assert (tmp_path / "run" / "spec.json").exists()


def test_a_parameter_server_serves_on_its_pods_ports_and_ends_on_sigterm(tmp_path: Path, spec: str) -> None:
    token = tmp_path / "token"
    token.write_text("a-token")
    host = "127.0.0.77"
    environment = {
        "EDL_INDEX": "0",
        "EDL_UID": "uid-of-ps-0",
        "EDL_RUN_DIR": str(tmp_path / "run"),
        "EDL_TOKEN_FILE": str(token),
        "EDL_RUNTIME_DIR": str(tmp_path),
        "EDL_MASTER_ADDRESS": "127.0.0.78:7070",
        "EDL_HOST": host,
    }
    with subprocess.Popen(command("ps", spec), env={**os.environ, **environment}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if b"serves on 127.0.0.77:7070 and 127.0.0.77:7071" in line:
                break
        else:
            pytest.fail("it does not serve")
        for port in (7070, 7071):
            socket.create_connection((host, port), timeout=10).close()
        assert psutil.Process(process.pid).memory_info().rss < 20e6
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 0
    assert b"serves on" in (tmp_path / "run" / "logs" / "ps-0.log").read_bytes()
