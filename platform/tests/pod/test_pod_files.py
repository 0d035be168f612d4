"""Files travel through a pipe: listed, sent and received, resumed after a cut, proven by checksum."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edl.api.errors import StorageError
from edl.pod.files import FileServer
from edl.storage.copy_protocol import (
    DATA_FRAME,
    ERROR_FRAME,
    REPLY_FRAME,
    REQUEST_FRAME,
    CopyFrame,
    encode_frame,
    encode_json_frame,
    partial_upload_path,
    read_frame,
)
from edl.storage.durable_files import translate_os_errors

CONTENT = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class FilesProcess:
    """The process that a pod would run, and its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout, self.process = process.stdin, process.stdout, process

    def send(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def request(self, op: str, path: str, **more: Any) -> CopyFrame:
        self.send(encode_json_frame(REQUEST_FRAME, {"op": op, "path": path, **more}))
        return self.receive()

    def receive(self) -> CopyFrame:
        frame = read_frame(self.stdout.read)
        assert frame is not None
        return frame


@contextmanager
def server(root: Path) -> Iterator[FilesProcess]:
    command = [sys.executable, "-m", "edl.pod.files", str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield FilesProcess(process)
        finally:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
            process.wait(30)


def test_a_file_arrives_whole_and_under_its_name(tmp_path: Path) -> None:
    with server(tmp_path) as pod:
        assert pod.request("receive", "/a/b.rec", size=len(CONTENT), sha256=SHA256).json_payload() == {"arrived": 0}
        pod.send(encode_frame(DATA_FRAME, CONTENT))
        assert pod.receive() == CopyFrame(REPLY_FRAME, b"{}")
    assert (tmp_path / "a" / "b.rec").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.rec"]


def test_what_arrived_before_the_cut_is_not_sent_again(tmp_path: Path) -> None:
    with server(tmp_path) as pod:
        pod.request("receive", "b.rec", size=len(CONTENT), sha256=SHA256)
        pod.send(encode_frame(DATA_FRAME, CONTENT[:1000]))
    assert not (tmp_path / "b.rec").exists()
    with server(tmp_path) as pod:
        assert pod.request("receive", "b.rec", size=len(CONTENT), sha256=SHA256).json_payload() == {"arrived": 1000}
        pod.send(encode_frame(DATA_FRAME, CONTENT[1000:]))
        assert pod.receive().kind == REPLY_FRAME
    assert (tmp_path / "b.rec").read_bytes() == CONTENT


def test_a_part_of_another_content_is_not_gone_on_with(tmp_path: Path) -> None:
    partial_upload_path(tmp_path / "b.rec", "0" * 64).write_bytes(b"older")
    with server(tmp_path) as pod:
        assert pod.request("receive", "b.rec", size=len(CONTENT), sha256=SHA256).json_payload() == {"arrived": 0}


def test_a_wrong_checksum_keeps_the_old_file_and_throws_the_new_one_away(tmp_path: Path) -> None:
    (tmp_path / "b.rec").write_bytes(b"old")
    with server(tmp_path) as pod:
        pod.request("receive", "b.rec", size=3, sha256=SHA256)
        pod.send(encode_frame(DATA_FRAME, b"new"))
        answer = pod.receive()
    assert answer.kind == ERROR_FRAME
    assert "checksum" in answer.json_payload()["message"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b.rec": b"old"}


def test_more_than_was_announced_is_refused(tmp_path: Path) -> None:
    with server(tmp_path) as pod:
        pod.request("receive", "b.rec", size=2, sha256=SHA256)
        pod.send(encode_frame(DATA_FRAME, b"new"))
        assert "more bytes arrived" in pod.receive().json_payload()["message"]


def test_a_file_is_sent_from_where_the_other_end_has_it(tmp_path: Path) -> None:
    (tmp_path / "b.rec").write_bytes(CONTENT)
    with server(tmp_path) as pod:
        answer = pod.request("stat", "b.rec", digest=True).json_payload()
        assert answer == {"kind": "file", "size": len(CONTENT), "sha256": SHA256}
        pod.send(
            encode_json_frame(REQUEST_FRAME, {"op": "send", "path": "b.rec", "offset": 300_000, "size": len(CONTENT)})
        )
        received = b""
        while len(received) < len(CONTENT) - 300_000:
            received += pod.receive().payload
    assert received == CONTENT[300_000:]


def test_a_list_names_kinds_and_sizes_and_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").write_bytes(b"123")
    (tmp_path / "link").symlink_to("/etc")
    with server(tmp_path) as pod:
        answer = pod.request("list", "/", recursive=True).json_payload()
    listed = [(entry["path"], entry["kind"]) for entry in answer["entries"]]
    assert listed == [("link", "other"), ("train", "directory"), ("train/a", "file")]
    assert answer["more"] is False


def test_a_long_list_comes_in_parts(tmp_path: Path) -> None:
    for number in range(1001):
        (tmp_path / f"{number:04}").touch()
    with server(tmp_path) as pod:
        first, second = pod.request("list", "").json_payload(), pod.receive().json_payload()
    assert (len(first["entries"]), first["more"], len(second["entries"]), second["more"]) == (1000, True, 1, False)


@pytest.mark.parametrize("path", ["../secret", "/a/../../secret", "link/passwd"])
def test_nothing_outside_the_volume_is_touched(tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with server(tmp_path) as pod:
        answer = pod.request("stat", path)
    assert answer.kind == ERROR_FRAME
    assert "out of the volume" in answer.json_payload()["message"]


def test_what_is_missing_is_said_and_the_next_request_is_answered(tmp_path: Path) -> None:
    with server(tmp_path) as pod:
        assert pod.request("stat", "x").json_payload()["kind"] == "missing"
        assert pod.request("list", "x").kind == ERROR_FRAME
        assert pod.request("make", "x/y").kind == REPLY_FRAME
    assert (tmp_path / "x" / "y").is_dir()


def test_a_denial_names_the_user_and_the_path_as_people_know_it(tmp_path: Path) -> None:
    files = FileServer(tmp_path, io.BytesIO(), io.BytesIO())
    with pytest.raises(StorageError) as denied, translate_os_errors(tmp_path / "a", "write"):
        raise PermissionError(13, "Permission denied")
    payload = files._error_payload(denied.value)
    assert (payload["where"], payload["input"]) == ("/a", True)
    assert f"user {os.getuid()}" in payload["hint"]
