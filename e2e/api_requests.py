"""Requests tried with somebody's token, and how the API server answers: the words of docs/reference/rights.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import urllib3

from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ForbiddenError, InvalidObjectError, RbacDeniedError
from edl.cluster.kubernetes.resource_kinds import Manifest, manifest_kind

ALLOWED, NO_RIGHT, POLICY = "allowed", "no right", "policy"
_CERTIFICATES = ("cert_file", "key_file", "key_password")


@dataclass(frozen=True)
class ApiRequest:
    """One request, as a hand with a token would send it."""

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    query: Mapping[str, str] | None = None


def get(path: str) -> ApiRequest:
    """Read an object, or list a collection."""
    return ApiRequest("GET", path)


def delete(path: str) -> ApiRequest:
    """Delete an object."""
    return ApiRequest("DELETE", path, {"gracePeriodSeconds": 0})


def delete_shown(path: str) -> ApiRequest:
    """Delete an object only after what it owns: Kubernetes answers with the object, as it is until then."""
    return ApiRequest("DELETE", path, {"propagationPolicy": "Foreground"})


def create(namespace: str, manifest: Manifest, *, dry_run: bool = False) -> ApiRequest:
    """Create an object of a kind that EDL knows."""
    return ApiRequest(
        "POST", manifest_kind(manifest).path(namespace), manifest, query={"dryRun": "All"} if dry_run else None
    )


def post(path: str, api_version: str, kind: str, **content: Any) -> ApiRequest:
    """Create an object of any kind, named ``tried``."""
    head = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "tried"}}
    return ApiRequest("POST", path, head | content)


def merge(path: str, change: Manifest) -> ApiRequest:
    """A merge patch."""
    return ApiRequest("PATCH", path, change, "application/merge-patch+json")


def operations(path: str, *each: tuple[str, str, Any]) -> ApiRequest:
    """A JSON patch: what is done, where, and with what value (of ``copy``: from where)."""
    named = [{"op": do, "path": pointer, "from" if do == "copy" else "value": what} for do, pointer, what in each]
    return ApiRequest("PATCH", path, named, "application/json-patch+json")


def by_hand(admin: KubeClient, token: str) -> KubeClient:
    """The API server, asked with a token and nothing else."""
    ours = admin.connection
    pool_options = {key: value for key, value in ours.http_pool.connection_pool_kw.items() if key not in _CERTIFICATES}
    proof = {"Authorization": f"Bearer {token}"}
    return KubeClient(replace(ours, http_pool=urllib3.PoolManager(**pool_options), auth_headers=lambda: proof))


def acting_as(admin: KubeClient, user: str) -> KubeClient:
    """The API server, asked by an admin in the name of a user without any group."""
    ours = admin.connection
    who = {"Impersonate-User": user, "Impersonate-Group": "system:authenticated"}
    return KubeClient(replace(ours, auth_headers=lambda: {**ours.auth_headers(), **who}))


def send_request(api: KubeClient, asked: ApiRequest) -> tuple[str, Manifest, str]:
    """What the server says to a request.

    Returns:
        one of the three answers, the object if it was allowed, and the server's words if not.

    Raises:
        ApiError: the server refuses it for another reason.
    """
    try:
        response_body = api.request(
            asked.method, asked.path, query=asked.query, body=asked.body, content_type=asked.content_type
        ).body
    except ApiError as error:
        return _refusal_kind(error), {}, error.message
    return ALLOWED, response_body, ""


def _refusal_kind(error: ApiError) -> str:
    if isinstance(error, ForbiddenError) and "ValidatingAdmissionPolicy 'edl-" in error.message:
        return POLICY
    if isinstance(error, RbacDeniedError):
        return NO_RIGHT
    if isinstance(error, InvalidObjectError) and "Upgrade request required" in error.message:
        return ALLOWED  # exec, attach: past all that decides, and then it is no stream
    raise error
