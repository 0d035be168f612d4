"""Addresses: what is written is read, what cannot be listened on is refused early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.transport.listener import UNIX_PATH_MAX, TcpAddress, UnixAddress, parse_address

hosts = st.sampled_from(["localhost", "127.0.0.1", "edl-job-ps-0.default.svc", "::1", "fe80::2"])


@given(st.builds(TcpAddress, hosts, st.integers(0, 65535)))
def test_tcp_addresses_are_read_as_written(address: TcpAddress) -> None:
    assert parse_address(str(address)) == address


def test_unix_addresses_are_read_as_written() -> None:
    assert parse_address("unix:/tmp/edl/ps-0") == UnixAddress("/tmp/edl/ps-0")
    assert str(UnixAddress("/tmp/edl/ps-0")) == "unix:/tmp/edl/ps-0"


@pytest.mark.parametrize("text", ["", "unix:", "host", ":80", "host:", "host:x", "host:65536", "host:-1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        parse_address(text)


def test_a_path_longer_than_the_kernel_takes() -> None:
    path = "/" + "x" * UNIX_PATH_MAX
    with pytest.raises(BadInputError, match=f"{UNIX_PATH_MAX + 1} bytes"):
        parse_address(f"unix:{path}")
    assert parse_address(f"unix:{path[:-1]}") == UnixAddress(path[:-1])
