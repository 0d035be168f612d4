"""Connects a pod to its API server, with the service account's token and the cluster's certificate authority.

Masters use it. The Kubernetes client (module ``kubeconfig``) supports all other ways to log in, and costs a third of a
second and 20 MiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import urllib3

from edl.api.errors import BadInputError
from edl.cluster.kubernetes.api_client import NO_LINGER_OPTIONS, KubeConnection
from edl.cluster.kubernetes.api_errors import NoResponseError, install_hint
from edl.cluster.kubernetes.names import MASTER_ACCOUNT

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_CACHE_SECONDS = 60.0
"""Time for which a token is cached. The kubelet replaces the file long before the token expires."""


def connect_service_account(
    environment: Mapping[str, str],
    namespace: str,
    *,
    pool_size: int,
    account_dir: Path = SERVICE_ACCOUNT_DIR,
    clock: Callable[[], float] = time.monotonic,
) -> KubeConnection:
    """The connection with this pod's service account.

    Args:
        environment: environment variables of this process.
        namespace: default namespace of the connection.
        pool_size: number of connections that are kept open.
        account_dir: folder in which the kubelet mounts the account.
        clock: monotonic seconds.

    Raises:
        BadInputError: this pod has no service account, or this is not a pod.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    authority = account_dir / "ca.crt"
    if not host or not authority.exists():
        raise BadInputError(
            "This pod has no service account",
            where=str(account_dir),
            hint=f"The pod of a master mounts that of {MASTER_ACCOUNT}. {install_hint(namespace)}",
        )
    pool = urllib3.PoolManager(maxsize=pool_size, ca_certs=str(authority), socket_options=NO_LINGER_OPTIONS)
    # an IPv6 address needs brackets in a URL
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return KubeConnection(server, pool, _BearerToken(account_dir / "token", clock), namespace)


class _BearerToken:
    """The authorization header. Threads may read the token file at the same time, which does no harm."""

    def __init__(self, token: Path, clock: Callable[[], float]) -> None:
        self._token, self._clock = token, clock
        self._cached_header: tuple[float, Mapping[str, str]] | None = None

    def __call__(self) -> Mapping[str, str]:
        cached, now = self._cached_header, self._clock()
        if cached is None or now - cached[0] >= TOKEN_CACHE_SECONDS:
            cached = now, self._read_header()
            self._cached_header = cached
        return cached[1]

    def _read_header(self) -> Mapping[str, str]:
        try:
            return {"authorization": f"Bearer {self._token.read_text().strip()}"}
        except OSError as error:
            raise NoResponseError(f"The token cannot be read: {error.strerror}", where=str(self._token)) from error
