"""Errors of the API server, translated once. Each says what happened, where, and who can do something about it.

All of them end a command with exit code 2. ``edl submit`` replaces the error if the master had been requested already.

An error is retryable if it can pass without a change of the request: the server is unreachable or busy. A 403 has four
meanings that a user must be able to distinguish: a missing right (RBAC), an exhausted quota, a pod that the namespace's
Pod Security level forbids, and EDL's own policies. Only the text of the message distinguishes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edl.api.errors import BadInputError, EdlError, RefusedError, RetryableError
from edl.cluster.kubernetes import names

# --------------------------------------------------------------------------------------------------
# Installation commands for the hints to admins; the same as in the README and docs/operations.md.


def helm_install_command(namespace: str) -> str:
    """The command that installs EDL with one team. Jobs are accepted only from namespaces in the list of teams."""
    return f'`helm install edl helm/edl -n edl-system --create-namespace --set "teams[0].namespace={namespace}"`'


HELM_ADD_TEAM_COMMAND = "`helm upgrade edl helm/edl -n edl-system --reset-then-reuse-values -f teams.yaml`"
"""The command that adds a team to an installed release, with another entry in the list in that file."""


def kustomize_install_command(namespace: str) -> str:
    """The command that installs a team without Helm."""
    return f"`kubectl apply -k kustomize/base -n {namespace}`"


def install_hint(namespace: str) -> str:
    """How to install what a namespace lacks, in sentences."""
    return (
        f"An admin installs it: {helm_install_command(namespace)}. If that release exists already, for other"
        f" teams, the namespace is added to its list of teams: {HELM_ADD_TEAM_COMMAND}. Without Helm:"
        f" {kustomize_install_command(namespace)}."
    )


_NAMESPACE_ROLE_HINT = (
    "The admin of the namespace grants these rights by binding the ClusterRole edl-data-scientist; "
    "`edl doctor` lists what is missing."
)
_CLUSTER_ROLE_HINT = (
    "This concerns the whole cluster: its admin can bind the ClusterRole edl-cluster-viewer; "
    "`edl doctor` lists what is missing."
)
_NO_ROLE_HINT = (
    "No ClusterRole of EDL allows this in all namespaces: name one namespace with -n, or ask an admin of the cluster."
)
_CLUSTER_VIEWER_RESOURCES = re.compile(
    r'resource "(?:nodes|pods|priorityclasses)" .* at the cluster scope|resource "namespaces"'
)
"""What edl-cluster-viewer allows to read."""
_MASTER_ACCOUNT_DENIED = re.compile(
    rf'User "system:serviceaccount:(?P<namespace>[^":]+):{names.MASTER_ACCOUNT}" cannot '
)
_QUOTA_EXCEEDED = re.compile(
    r"(?:exceeded|failed) quota: "
    r"|(?:maximum|minimum) \S+ usage per \S+ is "
    r"|\S+ max limit to request ratio per \S+ is "
)
"""Messages of the quota and LimitRange admission plugins."""


class ApiError(EdlError):
    """The API server refused a request, or did not respond.

    Attributes:
        code: HTTP status; 0 if there was no response.
        reason: machine-readable reason of the Status object.
    """

    code: int = 0
    reason: str = ""


class ClusterConfigError(ApiError, BadInputError):
    """No cluster is configured, or the configuration cannot be used (exit code 2)."""

    exit_code = 2


class NoKubeconfigError(ClusterConfigError):
    """There is no kubeconfig. The user may have no cluster and mean a run on this machine."""


class NoResponseError(ApiError, RetryableError):
    """The API server did not respond."""

    exit_code = 2


class ServerBusyError(ApiError, RetryableError):
    """The API server asks to retry later (429), or has an internal error (5xx).

    Attributes:
        retry_after: requested delay in seconds; None if the response has none.
    """

    exit_code = 2
    retry_after: float | None = None


class NotFoundError(ApiError, BadInputError):
    """The object does not exist (404)."""

    exit_code = 2


class ConflictError(ApiError, RefusedError):
    """The name is taken, or the object was changed meanwhile (409)."""

    exit_code = 2


class ResourceExpiredError(ApiError, RetryableError):
    """The resourceVersion is too old (410); list again."""

    exit_code = 2


class InvalidObjectError(ApiError, BadInputError):
    """The object is invalid (400, 413, 415, 422)."""

    exit_code = 2


class ForbiddenError(ApiError, BadInputError):
    """The server refuses the request to this user (401, 403)."""

    exit_code = 2


class UnauthorizedError(ForbiddenError):
    """The server does not accept the credentials (401): the token or certificate is invalid or has expired."""


class RbacDeniedError(ForbiddenError):
    """RBAC does not allow the request; the message has verb, resource and namespace."""


class QuotaExceededError(ForbiddenError):
    """The object would exceed a ResourceQuota or LimitRange."""


class PodSecurityError(ForbiddenError):
    """The pod violates the namespace's Pod Security level."""


class AdmissionPolicyError(ForbiddenError):
    """One of EDL's admission policies refused the request; the message ends with what is allowed."""


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
    """The error for a response.

    Args:
        status_code: HTTP status, 400 or above.
        body: a Status object, or the text of a proxy.
        where: the request, for messages.
        retry_after: the header Retry-After, in seconds.
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
        # a date, which HTTP allows in Retry-After too, is ignored
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
    # the reason of the Status object is Forbidden in all cases; only the text differs
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
    """Who can grant a right that RBAC refused, by the subject and the scope in the message."""
    if match := _MASTER_ACCOUNT_DENIED.search(message):
        return (
            f"This is the account of jobs' masters. It is bound to the ClusterRole {names.MASTER_ACCOUNT} if EDL is "
            f"installed for the namespace. {install_hint(match['namespace'])} `edl doctor` checks that."
        )
    if _CLUSTER_VIEWER_RESOURCES.search(message):
        return _CLUSTER_ROLE_HINT
    return _NO_ROLE_HINT if "at the cluster scope" in message else _NAMESPACE_ROLE_HINT


_HINT_BY_ERROR: Mapping[type[ApiError], str] = {
    UnauthorizedError: "The token or certificate is invalid or has expired: log in to the cluster again.",
    QuotaExceededError: (
        "Request less, wait until other jobs in the namespace have ended, or ask its admin to raise the quota."
    ),
    PodSecurityError: (
        "EDL's own pods comply with `restricted`: "
        "check pod.overrides, host_path volumes and security.run_as in the job file."
    ),
    AdmissionPolicyError: (
        "An admin of the cluster can allow more Secrets, volumes, PriorityClasses and accounts: "
        "`admission` in the values of helm/edl."
    ),
    ForbiddenError: "An admission rule of the cluster refused it; ask an admin of the cluster.",
}
