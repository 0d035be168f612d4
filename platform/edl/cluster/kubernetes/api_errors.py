"""What an API server refuses, translated once: each error says what, where, and who can do something about it.

All of them end a command with code 2; ``edl submit`` has another error for a job whose master was asked for.

Retryable are those that pass without anybody changing the request: the server is away or busy. A 403 has four
meanings that a user must be able to tell apart: no right to ask (RBAC), no room by quota, a pod that the namespace's
Pod Security level forbids, and what EDL's own policies refuse. Only its text tells them apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edl.api.errors import BadInputError, EdlError, RefusedError, RetryableError
from edl.cluster.kubernetes import names

# --------------------------------------------------------------------------------------------------
# How EDL is installed: the commands that remedies give admins, those of the README and of docs/operations.md.


def helm_install_command(namespace: str) -> str:
    """The command that installs EDL in a cluster with one team; jobs are only taken from namespaces of its list."""
    return f'`helm install edl helm/edl -n edl-system --create-namespace --set "teams[0].namespace={namespace}"`'


HELM_ADD_TEAM_COMMAND = "`helm upgrade edl helm/edl -n edl-system --reset-then-reuse-values -f teams.yaml`"
"""The command for a team that joins others, with an entry more on the list in that file."""


def kustomize_install_command(namespace: str) -> str:
    """The command that installs the same without Helm."""
    return f"`kubectl apply -k kustomize/base -n {namespace}`"


def install_hint(namespace: str) -> str:
    """How what a namespace lacks is installed, in sentences."""
    return (
        f"An admin installs it: {helm_install_command(namespace)}. Where that release is there already, for other"
        f" teams, the namespace goes on its list of teams: {HELM_ADD_TEAM_COMMAND}. Without Helm:"
        f" {kustomize_install_command(namespace)}."
    )


_NAMESPACE_ROLE_HINT = (
    "Rights in a namespace are granted by its admin, who binds the ClusterRole edl-data-scientist; "
    "`edl doctor` lists what is missing."
)
_CLUSTER_ROLE_HINT = (
    "That belongs to the whole cluster: its admin can bind the ClusterRole edl-cluster-viewer; "
    "`edl doctor` lists what is missing."
)
_NO_ROLE_HINT = (
    "No ClusterRole of EDL's allows that in all namespaces: ask about one namespace, with -n, "
    "or an admin of the cluster."
)
_CLUSTER_VIEWER_RESOURCES = re.compile(
    r'resource "(?:nodes|pods|priorityclasses)" .* at the cluster scope|resource "namespaces"'
)
"""What edl-cluster-viewer allows."""
_MASTER_ACCOUNT_DENIED = re.compile(
    rf'User "system:serviceaccount:(?P<namespace>[^":]+):{names.MASTER_ACCOUNT}" cannot '
)
_QUOTA_EXCEEDED = re.compile(
    r"(?:exceeded|failed) quota: "
    r"|(?:maximum|minimum) \S+ usage per \S+ is "
    r"|\S+ max limit to request ratio per \S+ is "
)
"""What the quota and the LimitRange plugins say."""


class ApiError(EdlError):
    """The API server refuses a request.

    Attributes:
        code: HTTP status; 0 when there was no answer.
        reason: machine-readable reason of the Status object.
    """

    code: int = 0
    reason: str = ""


class ClusterConfigError(ApiError, BadInputError):
    """No cluster is configured, or what is configured cannot be used (exit code 2)."""

    exit_code = 2


class NoKubeconfigError(ClusterConfigError):
    """There is no kubeconfig at all: whoever asks may have no cluster, and mean a run on this machine."""


class NoResponseError(ApiError, RetryableError):
    """The API server did not answer."""

    exit_code = 2


class ServerBusyError(ApiError, RetryableError):
    """The API server asks to come back later (429) or has an error of its own (5xx).

    Attributes:
        retry_after: seconds that it asks for; None if it does not say.
    """

    exit_code = 2
    retry_after: float | None = None


class NotFoundError(ApiError, BadInputError):
    """There is no such object (404)."""

    exit_code = 2


class ConflictError(ApiError, RefusedError):
    """The name is taken, or the object has changed meanwhile (409)."""

    exit_code = 2


class ResourceExpiredError(ApiError, RetryableError):
    """The resourceVersion is too old (410): list again."""

    exit_code = 2


class InvalidObjectError(ApiError, BadInputError):
    """The object is not valid (400, 415, 422)."""

    exit_code = 2


class ForbiddenError(ApiError, BadInputError):
    """The server will not do this for us (401, 403)."""

    exit_code = 2


class UnauthorizedError(ForbiddenError):
    """The server does not know us (401): the token or certificate is not valid, or not any more."""


class RbacDeniedError(ForbiddenError):
    """RBAC does not allow it; the message names verb, resource and namespace."""


class QuotaExceededError(ForbiddenError):
    """A ResourceQuota or LimitRange has no room for it."""


class PodSecurityError(ForbiddenError):
    """The pod violates the namespace's Pod Security level."""


class AdmissionPolicyError(ForbiddenError):
    """One of EDL's own admission policies refuses it; the message ends with what is allowed."""


_ERROR_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: InvalidObjectError,
    404: NotFoundError,
    409: ConflictError,
    410: ResourceExpiredError,
    413: InvalidObjectError,
    415: InvalidObjectError,
    422: InvalidObjectError,
}


def error_from_response(status_code: int, body: bytes, *, where: str, retry_after: str | None = None) -> ApiError:
    """The error of an answer.

    Args:
        status_code: HTTP status, 400 or above.
        body: a Status object, or the text of a proxy.
        where: the request, for people.
        retry_after: the header of that name, in seconds.
    """
    status = _parse_status(body)
    message = str(status.get("message") or body[:500].decode(errors="replace").strip() or f"HTTP {status_code}")
    kind = _error_class(status_code, message)
    error = kind(
        message, where=where, hint=permission_hint(message) if kind is RbacDeniedError else _HINT_BY_ERROR.get(kind)
    )
    error.code, error.reason = status_code, str(status.get("reason", ""))
    if isinstance(error, ServerBusyError):
        details = status.get("details") or {}
        seconds = retry_after if retry_after is not None else details.get("retryAfterSeconds")
        error.retry_after = float(seconds) if seconds is not None and str(seconds).isdigit() else None
    return error


def _parse_status(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _error_class(code: int, message: str) -> type[ApiError]:
    if code == 429 or code >= 500:
        return ServerBusyError
    if code == 401:
        return UnauthorizedError
    if code == 403:
        return _forbidden_class(message)
    return _ERROR_BY_STATUS.get(code, InvalidObjectError)


def _forbidden_class(message: str) -> type[ForbiddenError]:
    if "violates PodSecurity" in message:
        return PodSecurityError
    if "ValidatingAdmissionPolicy 'edl-" in message:
        return AdmissionPolicyError
    if _QUOTA_EXCEEDED.search(message):
        return QuotaExceededError
    if " cannot " in message:
        return RbacDeniedError
    return ForbiddenError


def permission_hint(message: str) -> str:
    """Who can grant what RBAC refuses, by the subject and the scope that the message names."""
    if asked := _MASTER_ACCOUNT_DENIED.search(message):
        return (
            f"This is the account of jobs' masters, bound to the ClusterRole {names.MASTER_ACCOUNT} where EDL is "
            f"installed for the namespace. {install_hint(asked['namespace'])} `edl doctor` looks at that."
        )
    if _CLUSTER_VIEWER_RESOURCES.search(message):
        return _CLUSTER_ROLE_HINT
    return _NO_ROLE_HINT if "at the cluster scope" in message else _NAMESPACE_ROLE_HINT


_HINT_BY_ERROR: Mapping[type[ApiError], str] = {
    UnauthorizedError: "The token or certificate in use is not valid (any more): log in to the cluster again.",
    QuotaExceededError: (
        "Ask for less, wait until other jobs of the namespace have ended, or have its admin raise the quota."
    ),
    PodSecurityError: (
        "EDL's own pods pass `restricted`: "
        "look at pod.overrides, host_path volumes and security.run_as in the job file."
    ),
    AdmissionPolicyError: (
        "An admin of the cluster can allow further Secrets, volumes, PriorityClasses and accounts: "
        "`admission` in the values of helm/edl."
    ),
    ForbiddenError: "An admission rule of the cluster refuses it; its admin knows which.",
}
