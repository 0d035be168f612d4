"""Whether a cluster is fit for EDL: what is there, what is missing, and who can mend it.

Each check asks the API server and hands the answers to a function that judges; a check that may not ask says so
instead of failing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from edl.api.errors import EdlError, RetryableError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import EVERYWHERE, Api
from edl.cluster.kubernetes.api_errors import ApiError, ForbiddenError, NoRightError, NotFoundError
from edl.cluster.kubernetes.install_hints import installed
from edl.cluster.kubernetes.resource_kinds import (
    CLAIMS,
    NAMESPACES,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    Manifest,
)
from edl.jobfile.pod_spec import RunAs
from edl.ops.access_reviews import MASTERS, NEEDED, READ_SECRETS, WANTED, master_may, may
from edl.ops.doctor_findings import (
    Checkup,
    Classes,
    Level,
    admission,
    claims,
    masters_bindings,
    masters_rights,
    masters_unknown,
    others_teams,
    pod_security,
    pod_security_tried,
    priorities,
    rights,
    uncounted,
    version,
)
from edl.ops.helper_pod import Visit, pod, pod_name, visited

NO_IMAGE = "registry.invalid/none"
"""Of a pod that is only asked about."""

Check = Callable[[Api], Iterable[Checkup]]


def examine(api: Api, classes: Classes) -> Iterator[Checkup]:
    """All findings about a cluster and a namespace of it, as they come.

    Args:
        api: the cluster and namespace.
        classes: the PriorityClasses that jobs use.

    Raises:
        ApiError: the API server cannot be reached at all.
    """
    yield version(api.ask("GET", "/version").body)
    checks: tuple[tuple[str, Check], ...] = (
        ("namespace", partial(_namespace, classes=classes)),
        ("rights", _rights),
        ("accounts", _accounts),
        ("rights", _masters),
        ("admission", partial(_admission, classes=classes)),
        ("priorities", partial(_priorities, classes=classes)),
        ("claims", _claims),
    )
    for about, check in checks:
        try:
            yield from check(api)
        except ForbiddenError as error:
            yield Checkup(Level.WARN, about, f"cannot be looked at: {error.message}", error.hint or "")
        except ApiError as error:
            yield Checkup(Level.FAIL, about, error.message, error.hint or "")


def before_uninstall(api: Api, release: str) -> Iterator[Checkup]:
    """Whether a Helm release with the cluster's part can go without taking it from under other teams.

    Args:
        api: the cluster, and the release's namespace.
        release: its name.

    Raises:
        ApiError: RoleBindings of all namespaces cannot be listed.
    """
    yield from others_teams(release, api.namespace, api.list(ROLE_BINDINGS, namespace=EVERYWHERE).items)


def _namespace(api: Api, classes: Classes) -> Iterator[Checkup]:
    try:
        yield pod_security(api.get(NAMESPACES, api.namespace))
    except NoRightError:  # as for most people: then a pod is tried
        asked = _asked(classes)
        del asked["spec"]["securityContext"], asked["spec"]["containers"][0]["securityContext"]
        yield pod_security_tried(api.namespace, _refusal(api, asked))
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
            text = f"there is no ServiceAccount {name} in namespace {api.namespace}"
            yield Checkup(Level.FAIL, "accounts", text, installed(api.namespace))


def _masters(api: Api) -> Iterator[Checkup]:
    """Whether masters may do their work: asked for each right, or read off the bindings, or not known."""
    try:
        yield masters_rights(api.namespace, [right for right in MASTERS if not master_may(api, right)])
    except ForbiddenError:
        try:
            yield masters_bindings(api.namespace, api.list(ROLE_BINDINGS).items)
        except ForbiddenError:
            yield masters_unknown()


def _asked(classes: Classes) -> Manifest:
    """A pod that is only asked about."""
    return pod(Visit(None, NO_IMAGE, RunAs(), priority=classes.low), pod_name())


def _refusal(api: Api, asked: Manifest) -> ForbiddenError | None:
    """What the server says to a pod, which is not created; None: it would take it."""
    try:
        api.create(asked, dry_run=True)
    except ForbiddenError as error:
        return error
    return None


def _admission(api: Api, classes: Classes) -> Iterator[Checkup]:
    """Asked by a dry run: what is not installed cannot be looked up by people without rights of the whole cluster."""
    if may(api, READ_SECRETS):
        yield Checkup(Level.OK, "admission", f"you may read the Secrets of namespace {api.namespace} anyway")
        return
    asked = _asked(classes)
    asked["spec"]["volumes"] = [{"name": "foreign", "secret": {"secretName": "foreign"}}]
    yield admission(api.namespace, _refusal(api, asked))
    asked = _asked(classes)
    del asked["spec"]["priorityClassName"]
    yield uncounted(api.namespace, _refusal(api, asked))


def _priorities(api: Api, classes: Classes) -> Iterator[Checkup]:
    found = {}
    for name in (classes.high, classes.low):
        try:
            found[name] = int(api.get(PRIORITY_CLASSES, name).get("value", 0))
        except NotFoundError:
            yield Checkup(Level.FAIL, "priorities", f"there is no PriorityClass {name}", installed(api.namespace))
    if len(found) == 2:
        yield priorities(classes, found[classes.high], found[classes.low])


def _claims(api: Api) -> Iterator[Checkup]:
    yield from claims(api.list(CLAIMS).items, api.namespace)


def pull(api: Api, image: str, classes: Classes, tell: Callable[[str], None]) -> Checkup:
    """Whether the nodes can have an image: a pod of it, with a worker's priority, is started and deleted at once."""
    visit = Visit(None, image, RunAs(), seconds=600, task="tries the image", priority=classes.low)
    try:
        with visited(api, visit, tell):
            return Checkup(Level.OK, "images", f"{image} was pulled, and its container started")
    except RetryableError as error:
        return Checkup(Level.WARN, "images", f"{image}: {error.message}", error.hint or "")
    except EdlError as error:
        return Checkup(Level.FAIL, "images", f"{image}: {error.message}", error.hint or "")
