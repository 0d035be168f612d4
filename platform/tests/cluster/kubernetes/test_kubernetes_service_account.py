"""How a master reaches the API server from its pod."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3
from cluster.kubernetes.keepalive_options import assert_keeps_alive

from edl.api.errors import BadInputError
from edl.cluster.kubernetes.api_errors import NoResponseError
from edl.cluster.kubernetes.service_account import TOKEN_CACHE_SECONDS, connect_service_account

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "ca.crt").write_text("a certificate")
    (tmp_path / "token").write_text("first\n")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")]
)
def test_the_server_is_the_one_that_the_kubelet_names(account: Path, host: str, url: str) -> None:
    connected = connect_service_account(
        IN_POD | {"KUBERNETES_SERVICE_HOST": host}, "team", pool_size=2, account_dir=account
    )
    assert (connected.host, connected.namespace, connected.context) == (url, "team", None)
    assert connected.http_pool.connection_pool_kw["ca_certs"] == str(account / "ca.crt")
    assert connected.auth_headers() == {"authorization": "Bearer first"}


def test_a_connection_that_is_given_up_delivers_nothing_any_more(account: Path) -> None:
    """A master's node is cut off while it asks for a deletion: that must not arrive when the node is mended."""
    options = connect_service_account(IN_POD, "team", pool_size=2, account_dir=account).http_pool.connection_pool_kw[
        "socket_options"
    ]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = urllib3.util.connection.create_connection(listener.getsockname(), socket_options=options)
        theirs, _ = listener.accept()
        ours.close()
        with theirs, pytest.raises(ConnectionResetError):
            theirs.recv(1)


def test_a_server_that_vanished_is_noticed_by_a_master_too(account: Path) -> None:
    assert_keeps_alive(
        connect_service_account(IN_POD, "team", pool_size=2, account_dir=account).http_pool.connection_pool_kw[
            "socket_options"
        ]
    )


def test_a_token_that_was_replaced_is_read_again(account: Path) -> None:
    now = [100.0]
    connected = connect_service_account(IN_POD, "team", pool_size=2, account_dir=account, clock=lambda: now[0])
    connected.auth_headers()
    (account / "token").write_text("second")
    now[0] += TOKEN_CACHE_SECONDS - 1
    assert connected.auth_headers() == {"authorization": "Bearer first"}
    now[0] += 1
    assert connected.auth_headers() == {"authorization": "Bearer second"}


def test_a_token_that_cannot_be_read_now_is_asked_for_again(account: Path) -> None:
    connected = connect_service_account(IN_POD, "team", pool_size=2, account_dir=account)
    (account / "token").rename(account / "elsewhere")
    with pytest.raises(NoResponseError, match="token"):
        connected.auth_headers()
    (account / "elsewhere").rename(account / "token")
    assert connected.auth_headers() == {"authorization": "Bearer first"}


def test_a_pod_without_an_account_is_told_which_it_needs(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no service account") as caught:
        connect_service_account(IN_POD, "team", pool_size=2, account_dir=tmp_path)
    assert "edl-job-master" in str(caught.value.hint)


def test_a_master_in_a_pod_never_imports_the_client() -> None:
    kube = "edl.cluster.kubernetes"
    imports = f"import sys, edl.master.master_process, {kube}.master_backend, {kube}.service_account"
    code = f"{imports}; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
