"""Lines to the supervisor's socket that hold what they may not: none ends the supervisor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.local.test_local_server import ServerHarness

LINES = [
    rb'{"edl": 1, "token": "\ud800"}',
    rb'{"\ud800": 1}',
    b'{"edl": ' + b"9" * 400 + b"}",
    b'{"edl": NaN, "token": "secret"}',
    b'{"edl": 1e999}',
    b"[" * 30_000,
    b'{"edl": "\xed\xa0\x80"}',
]
REQUESTS = [
    rb'{"op": "\ud800"}',
    rb'{"op": "delete", "uid": "\ud800", "grace": 1}',
    b'{"op": "delete", "uid": "u", "grace": NaN}',
    b'{"op": "delete", "uid": "u", "grace": 1e999}',
    b'{"op": "delete", "uid": "u", "grace": 1e300}',
    b'{"op": "delete", "uid": "u", "grace": ' + b"9" * 400 + b"}",
    b'{"op": "start", "role": "worker", "index": ' + b"9" * 400 + b"}",
    b'{"op": "start", "role": "worker", "index": 9223372036854775807}',
    b'{"op": "start", "role": "worker", "index": -1}',
    rb'{"op": "start", "role": "\udfff", "index": 1}',
]
HELLO = b'{"edl": 1, "token": "secret"}'


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ServerHarness]:
    harness = ServerHarness(tmp_path)
    yield harness
    harness.close()


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:40]))
def test_a_line_from_a_stranger_is_refused(harness: ServerHarness, line: bytes) -> None:
    client = harness.connect()
    client.sendall(line + b"\n")
    assert b'"error": "refused"' in harness.drain(client).replace(b'":"', b'": "')
    assert _is_welcome(harness)


@pytest.mark.parametrize("line", REQUESTS, ids=lambda line: repr(line[:60]))
def test_a_request_that_cannot_be_is_refused(harness: ServerHarness, line: bytes) -> None:
    client = harness.connect()
    client.sendall(HELLO + b"\n")
    assert json.loads(harness.read(client)) == {"edl": 1}
    client.sendall(line + b"\n")
    assert json.loads(harness.read(client))["error"] in ("bad_input", "refused")
    assert _is_welcome(harness)


def _is_welcome(harness: ServerHarness) -> bool:
    client = harness.connect()
    client.sendall(HELLO + b"\n")
    return json.loads(harness.read(client)) == {"edl": 1}
