"""An API server for tests of Leases: objects with resourceVersions, a clock that the test moves, and bad days."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from edl.cluster.kubernetes.api_client import JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, ApiResponse
from edl.cluster.kubernetes.api_errors import ConflictError, InvalidObjectError, NoResponseError, NotFoundError
from edl.cluster.kubernetes.resource_kinds import ResourceKind, manifest_kind


class LeaseServer:
    """What of ``edl.cluster.kubernetes.api_client.KubeClient`` a fence.

    A board and the ownership of a job's objects use.

    Attributes:
        now: the server's clock and that of every process, in seconds.
        away: every request ends in NoResponseError.
        before: called before each request is looked at, with its method.
    """

    namespace = "team"

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.away = False
        self.before: Callable[[str], None] = lambda method: None
        self.requests: list[tuple[str, str]] = []
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._version = 0

    def clock(self) -> float:
        return self.now

    def request(self, method: str, path: str) -> ApiResponse:
        assert method == "GET"
        plural, name = path.split("/")[-2:]
        return ApiResponse(self._found(method, plural, name), float(int(self.now)))

    def get(self, kind: ResourceKind, name: str, namespace: str | None = None) -> dict[str, Any]:
        return self._found("GET", kind.plural, name)

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        kind, name = manifest_kind(manifest), manifest["metadata"]["name"]
        self._enter("POST", name)
        if (kind.plural, name) in self._objects:
            raise ConflictError("it exists already")
        return self._store(kind.plural, name, copy.deepcopy(manifest))

    def patch(
        self, kind: ResourceKind, name: str, body: Any, *, namespace: str | None = None, style: str = MERGE_PATCH
    ) -> dict[str, Any]:
        self._enter("PATCH", name)
        known = self._objects.get((kind.plural, name))
        if known is None:
            raise NotFoundError("there is none")
        if style == JSON_PATCH:
            return self._tested(known, body)
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != known["metadata"]["resourceVersion"]:
            raise ConflictError("it has changed")
        merged = _merged(known, body)
        if style == STRATEGIC_MERGE_PATCH:
            owners = [*known["metadata"].get("ownerReferences", ()), *merged["metadata"]["ownerReferences"]]
            merged["metadata"]["ownerReferences"] = list({one["uid"]: one for one in owners}.values())
        return self._store(kind.plural, name, merged)

    def _tested(self, known: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
        for operation in operations:
            found: Any = known
            for part in operation["path"].split("/")[1:]:
                found = found.get(part.replace("~1", "/"), {})
            if operation["op"] != "test" or found != operation["value"]:
                raise InvalidObjectError("the test failed")
        return copy.deepcopy(known)

    def put(self, kind: ResourceKind, manifest: dict[str, Any]) -> None:
        """Place an object, as somebody else would."""
        self._store(kind.plural, manifest["metadata"]["name"], copy.deepcopy(manifest))

    def delete(self, kind: ResourceKind, name: str, *, uid: str | None = None, dry_run: bool = False) -> dict[str, Any]:
        there = self._found("DELETE", kind.plural, name)["metadata"]["uid"]
        if uid not in (None, there):
            raise ConflictError("the uid in the precondition is another")
        if not dry_run:
            self.remove(kind, name)
        return {"kind": "Status", "details": {"name": name, "kind": kind.plural, "uid": there}}

    def remove(self, kind: ResourceKind, name: str) -> None:
        """Take an object away, as somebody else would."""
        del self._objects[kind.plural, name]

    def has(self, kind: ResourceKind, name: str) -> bool:
        """Whether there is such an object."""
        return (kind.plural, name) in self._objects

    def stored(self, kind: ResourceKind, name: str) -> dict[str, Any]:
        return self._objects[kind.plural, name]

    def _found(self, method: str, plural: str, name: str) -> dict[str, Any]:
        self._enter(method, name)
        if (plural, name) not in self._objects:
            raise NotFoundError("there is none")
        return copy.deepcopy(self._objects[plural, name])

    def _enter(self, method: str, name: str) -> None:
        self.requests.append((method, name))
        self.before(method)
        if self.away:
            raise NoResponseError("the server is away")

    def _store(self, plural: str, name: str, manifest: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        time = datetime.fromtimestamp(int(self.now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest["metadata"] |= {"resourceVersion": str(self._version), "managedFields": [{"time": time}]}
        manifest["metadata"].setdefault("uid", f"uid-{self._version}")
        self._objects[plural, name] = manifest
        return copy.deepcopy(manifest)


def _merged(known: Any, change: Any) -> Any:
    if not isinstance(known, dict) or not isinstance(change, dict):
        return copy.deepcopy(change)
    merged = {name: value for name, value in known.items() if name not in change or change[name] is not None}
    return merged | {name: _merged(known.get(name, {}), v) for name, v in change.items() if v is not None}
