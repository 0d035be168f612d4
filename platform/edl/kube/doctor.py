"""Whether a cluster is fit for EDL: what is there, what is missing, and who can mend it.

Each check asks the API server and hands the answers to a function that judges; a check that may not ask says so
instead of failing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from edl.core.errors import EdlError, RetryableError
from edl.kube import names
from edl.kube.api import Api
from edl.kube.copying import Visit, visited
from edl.kube.errors import ApiError, ForbiddenError, NotFoundError
from edl.kube.kinds import CLAIMS, NAMESPACES, PRIORITY_CLASSES, SERVICE_ACCOUNTS, Manifest
from edl.kube.rights import NEEDED, WANTED, Right, may
from edl.spec.placement import RunAs

OLDEST = (1, 29)
"""The first Kubernetes with podReplacementPolicy for Jobs switched on."""
BASE = "`kubectl apply -k kustomize/base` by an admin creates it."
HIGH, LOW = "high", "low"
_ENFORCE = "pod-security.kubernetes.io/enforce"


class Level(StrEnum):
    """How bad a finding is."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Checkup:
    """One thing that was looked at.

    Attributes:
        level: how bad it is.
        about: what was looked at.
        text: what was found.
        remedy: what can be done, and by whom; empty when there is nothing to do.
    """

    level: Level
    about: str
    text: str
    remedy: str = ""


Check = Callable[[Api], Iterable[Checkup]]


def examine(api: Api) -> Iterator[Checkup]:
    """All findings about a cluster and a namespace of it, as they come.

    Raises:
        ApiError: the API server cannot be reached at all.
    """
    yield version(api.ask("GET", "/version").body)
    checks: tuple[tuple[str, Check], ...] = (
        ("namespace", _namespace),
        ("rights", _rights),
        ("accounts", _accounts),
        ("priorities", _priorities),
        ("claims", _claims),
    )
    for about, check in checks:
        try:
            yield from check(api)
        except ForbiddenError as error:
            yield Checkup(Level.WARN, about, f"cannot be looked at: {error.message}", error.hint or "")
        except ApiError as error:
            yield Checkup(Level.FAIL, about, error.message, error.hint or "")


# ------------------------------------------------------------------ asking


def _namespace(api: Api) -> Iterator[Checkup]:
    try:
        yield pod_security(api.get(NAMESPACES, api.namespace))
    except NotFoundError:
        yield Checkup(
            Level.FAIL, "namespace", f"there is no namespace {api.namespace}", "Choose one with -n, or have it created."
        )


def _rights(api: Api) -> Iterator[Checkup]:
    missing = [right for right in NEEDED if not may(api, right)]
    less = [right for right in WANTED if not may(api, right)]
    yield from rights(api.namespace, missing, less)


def _accounts(api: Api) -> Iterator[Checkup]:
    for name in (names.MASTER_ACCOUNT, names.POD_ACCOUNT):
        try:
            api.get(SERVICE_ACCOUNTS, name)
            yield Checkup(Level.OK, "accounts", f"ServiceAccount {name} is there")
        except NotFoundError:
            yield Checkup(
                Level.FAIL, "accounts", f"there is no ServiceAccount {name} in namespace {api.namespace}", BASE
            )


def _priorities(api: Api) -> Iterator[Checkup]:
    found = {}
    for name in (HIGH, LOW):
        try:
            found[name] = int(api.get(PRIORITY_CLASSES, name).get("value", 0))
        except NotFoundError:
            yield Checkup(Level.FAIL, "priorities", f"there is no PriorityClass {name}", BASE)
    if len(found) == 2:
        yield priorities(found[HIGH], found[LOW])


def _claims(api: Api) -> Iterator[Checkup]:
    yield from claims(api.list(CLAIMS).items, api.namespace)


def pull(api: Api, image: str, tell: Callable[[str], None]) -> Checkup:
    """Whether the nodes can have an image: a pod of it is started, and deleted at once."""
    visit = Visit(None, image, RunAs(), seconds=600)
    try:
        with visited(api, visit, tell):
            return Checkup(Level.OK, "images", f"{image} was pulled, and its container started")
    except RetryableError as error:
        return Checkup(Level.WARN, "images", f"{image}: {error.message}", error.hint or "")
    except EdlError as error:
        return Checkup(Level.FAIL, "images", f"{image}: {error.message}", error.hint or "")


# ------------------------------------------------------------------ judging


def version(said: dict[str, Any]) -> Checkup:
    """Whether the server is new enough."""
    text = str(said.get("gitVersion", "of an unknown version"))
    digits = [int(number) for number in re.findall(r"\d+", f"{said.get('major', '')}.{said.get('minor', '')}")]
    if len(digits) < 2:
        return Checkup(Level.WARN, "server", f"Kubernetes {text}: whether it is new enough is not known")
    if tuple(digits[:2]) < OLDEST:
        return Checkup(
            Level.FAIL, "server", f"Kubernetes {text} is too old", f"EDL needs {OLDEST[0]}.{OLDEST[1]} or newer."
        )
    return Checkup(Level.OK, "server", f"Kubernetes {text}")


def pod_security(namespace: Manifest) -> Checkup:
    """Which pods the namespace admits."""
    name, labels = namespace["metadata"]["name"], namespace["metadata"].get("labels") or {}
    level = labels.get(_ENFORCE)
    if namespace.get("status", {}).get("phase") == "Terminating":
        return Checkup(Level.FAIL, "namespace", f"namespace {name} is being deleted", "Choose another one with -n.")
    if level == "restricted":
        return Checkup(Level.OK, "namespace", f"namespace {name} enforces restricted, which EDL's pods pass")
    return Checkup(
        Level.WARN,
        "namespace",
        f"namespace {name} enforces {level or 'no Pod Security level'}",
        f"EDL's pods pass restricted; an admin can have it enforced: kubectl label ns {name} {_ENFORCE}=restricted",
    )


def rights(namespace: str, missing: Sequence[Right], less: Sequence[Right]) -> Iterator[Checkup]:
    """What the user may not do, those rights together that the same is needed for."""
    for needed_for, role, said in _together(missing):
        yield Checkup(
            Level.FAIL,
            "rights",
            f"you may not {said} in namespace {namespace}, needed for {needed_for}",
            f"An admin of the namespace can bind the Role {role} to you.",
        )
    if not missing:
        yield Checkup(Level.OK, "rights", f"you may submit, watch and delete jobs in namespace {namespace}")
    for needed_for, role, said in _together(less):
        yield Checkup(
            Level.WARN, "rights", f"you may not {said}; missing then: {needed_for}", f"An admin can bind {role} to you."
        )


def _together(lacking: Iterable[Right]) -> list[tuple[str, str, str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for right in lacking:
        where = "" if right.namespaced else " in all namespaces"
        found.setdefault((right.needed_for, right.role), []).append(f"{right}{where}")
    return [(needed_for, role, ", ".join(said)) for (needed_for, role), said in found.items()]


def priorities(high: int, low: int) -> Checkup:
    """Whether services can take room from workers."""
    if high > low:
        return Checkup(Level.OK, "priorities", f"PriorityClasses high ({high:,}) and low ({low:,})")
    return Checkup(
        Level.FAIL,
        "priorities",
        f"PriorityClass high ({high:,}) is not above low ({low:,}): nothing would be preempted",
        "An admin must delete one and create it anew: values cannot be changed.",
    )


def claims(found: Iterable[Manifest], namespace: str) -> Iterator[Checkup]:
    """Which volumes jobs could use."""
    there = list(found)
    if not there:
        yield Checkup(
            Level.WARN,
            "claims",
            f"there is no PersistentVolumeClaim in namespace {namespace}: jobs keep no checkpoints, logs or models",
            "Create one with accessModes ReadWriteMany.",
        )
    for claim in there:
        yield _claim(claim)


def _claim(claim: Manifest) -> Checkup:
    name, phase = claim["metadata"]["name"], claim.get("status", {}).get("phase", "Pending")
    modes = claim.get("spec", {}).get("accessModes") or []
    if phase == "Lost":
        return Checkup(Level.FAIL, "claims", f"{name} has lost its volume", "Its data is gone with it; create it anew.")
    if phase != "Bound":
        return Checkup(
            Level.WARN,
            "claims",
            f"{name} has no volume yet ({phase})",
            f"It may get one with its first pod; `kubectl describe pvc {name}` says more.",
        )
    if "ReadWriteMany" not in modes:
        return Checkup(
            Level.WARN,
            "claims",
            f"{name} is {' and '.join(modes)}: pods on other nodes than the first cannot use it",
            "Jobs on more than one node need ReadWriteMany.",
        )
    return Checkup(Level.OK, "claims", f"{name} is bound, ReadWriteMany")
