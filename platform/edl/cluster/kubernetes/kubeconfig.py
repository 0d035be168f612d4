"""Finds the cluster, the credentials and the namespace as kubectl does, or those of a pod's service account.

This is the only module that imports the Kubernetes client, whose configuration supports all ways to log in
(certificates, tokens, exec plugins, OIDC).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import MaxRetryError
from urllib3.exceptions import TimeoutError as SilenceError
from yaml import YAMLError  # raised by the client for a malformed kubeconfig

from edl.cluster.kubernetes.api_client import KEEPALIVE_OPTIONS, KubeClient, KubeConnection, RequestHook
from edl.cluster.kubernetes.api_errors import ClusterConfigError, NoKubeconfigError, NoResponseError

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_KUBECONFIG_ERRORS = (ConfigException, OSError, YAMLError, AttributeError, KeyError, TypeError)
"""Errors of the client for a kubeconfig that is missing, unreadable or malformed."""
MAX_TIMEOUTS = 2
"""Timeouts after which a command gives up: it has then waited 20 s for a first response."""


class CommandRetry(urllib3.Retry):
    """Retries a server that is busy or closes connections as configured, but gives up after MAX_TIMEOUTS timeouts."""

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: urllib3.BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: Any = None,
        _stacktrace: Any = None,
    ) -> Self:
        """Override the method of urllib3."""
        before = sum(isinstance(each.error, SilenceError) for each in self.history)
        # each timeout takes 10 s, so the usual number of retries would block a command for most of a minute
        if isinstance(error, SilenceError) and before + 1 >= MAX_TIMEOUTS:
            raise MaxRetryError(_pool, url or "", error) from error
        return super().increment(method, url, response, error, _pool, _stacktrace)


COMMAND_RETRIES = CommandRetry(
    total=4,
    backoff_factor=0.2,
    backoff_jitter=0.2,
    backoff_max=5,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=None,
    # the last response is returned, so that its message reaches the user
    raise_on_status=False,
    respect_retry_after_header=True,
    retry_after_max=10,
)
"""Retries of commands: a busy server is asked a few times within seconds."""


def load_connection(context: str | None = None, namespace: str | None = None, *, pool_size: int = 8) -> KubeConnection:
    """The connection that kubectl would use: ``KUBECONFIG`` or ``~/.kube/config``; in a pod, its service account.

    Args:
        context: context of the kubeconfig; by default the current one.
        namespace: by default that of the context, or ``default``.
        pool_size: number of connections that are kept open.

    Raises:
        NoKubeconfigError: there is no kubeconfig, and this is not a pod.
        ClusterConfigError: the configuration cannot be used.
    """
    settings = Configuration()
    # a kubeconfig takes precedence over the service account, as in kubectl
    as_pod = context is None and runs_in_pod() and not _has_kubeconfig()
    if not as_pod:
        _require_kubeconfig()
    try:
        if as_pod:
            config.load_incluster_config(client_configuration=settings)
            default_namespace, context_name = _POD_NAMESPACE.read_text().strip(), None
        else:
            # persist_config=False: a renewed token must not be written back into the user's file
            config.load_kube_config(context=context, client_configuration=settings, persist_config=False)
            kubeconfig = _merged_kubeconfig()
            context_name = context or str(kubeconfig["current-context"])
            default_namespace = _contexts_by_name(kubeconfig)[context_name].get("namespace") or "default"
    except _KUBECONFIG_ERRORS as error:
        raise ClusterConfigError(
            f"No cluster can be used: {error}",
            where=os.environ.get("KUBECONFIG", "~/.kube/config"),
            hint="Set KUBECONFIG, or select a context with --context; `kubectl cluster-info` must work first.",
        ) from error
    settings.connection_pool_maxsize = pool_size
    settings.socket_options = list(KEEPALIVE_OPTIONS)
    client = ApiClient(settings)

    def headers() -> Mapping[str, str]:
        try:
            proof = settings.auth_settings().get("BearerToken")
        except (ConfigException, OSError) as error:  # the token is read again from its file or plugin each time
            raise NoResponseError(f"The token cannot be renewed: {error}", where=settings.host) from error
        return {"authorization": str(proof["value"])} if proof and proof.get("value") else {}

    return KubeConnection(
        settings.host, client.rest_client.pool_manager, headers, namespace or default_namespace, context_name
    )


def make_client(
    context: str | None = None, namespace: str | None = None, *, request_hook: RequestHook | None = None
) -> KubeClient:
    """An API client for commands, which retries a busy server. For ``request_hook`` see ``KubeClient``."""
    connection = load_connection(context, namespace)
    return (
        KubeClient(connection, retries=COMMAND_RETRIES, request_hook=request_hook)
        if request_hook
        else KubeClient(connection, retries=COMMAND_RETRIES)
    )


def list_contexts() -> list[str]:
    """Names of the kubeconfig's contexts, for completion; empty if there is none."""
    try:
        return list(_contexts_by_name(_merged_kubeconfig()))
    except _KUBECONFIG_ERRORS:
        return []


def _require_kubeconfig() -> None:
    location = kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    files = [name for name in location.split(kube_config.ENV_KUBECONFIG_PATH_SEPARATOR) if name]
    if not any(os.path.exists(os.path.expanduser(name)) for name in files):
        because = ", as KUBECONFIG says" if os.environ.get("KUBECONFIG") else "; KUBECONFIG is not set"
        raise NoKubeconfigError(
            f"No cluster can be used: no kubeconfig was found; looked for {', '.join(files)}{because}",
            hint="Set KUBECONFIG to one; `kubectl cluster-info` must work first.",
        )


def _merged_kubeconfig() -> Mapping[str, Any]:
    """All files of the kubeconfig, merged. Unlike the client's list of contexts, this works without a current one."""
    merged = kube_config.KubeConfigMerger(kube_config.KUBE_CONFIG_DEFAULT_LOCATION).config
    if merged is None:
        raise ConfigException("there is no kubeconfig")
    value: Mapping[str, Any] = merged.value
    return value


def _contexts_by_name(kubeconfig: Mapping[str, Any]) -> dict[str, Any]:
    return {str(entry.value["name"]): entry.value["context"] for entry in kubeconfig["contexts"]}


def runs_in_pod() -> bool:
    """Whether this process runs in a pod with a service account."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and _POD_NAMESPACE.exists()


def _has_kubeconfig() -> bool:
    return bool(os.environ.get("KUBECONFIG")) or os.path.exists(os.path.expanduser("~/.kube/config"))
