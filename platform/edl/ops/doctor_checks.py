"""Whether a cluster is fit for EDL: what is there, what is missing, and who can mend it.

Each check asks the API server and hands the answers to a function that judges; a check that may not ask says so
instead of failing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from edl.api.errors import EdlError, RetryableError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import ALL_NAMESPACES, KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ForbiddenError, NotFoundError, RbacDeniedError
from edl.cluster.kubernetes.install_hints import install_hint
from edl.cluster.kubernetes.resource_kinds import (
    NAMESPACES,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    VOLUME_CLAIMS,
    Manifest,
)
from edl.jobfile.pod_spec import RunAsSpec
from edl.ops.access_reviews import (
    MASTER_RIGHTS,
    OPTIONAL_RIGHTS,
    READ_SECRETS_RIGHT,
    REQUIRED_RIGHTS,
    has_right,
    master_has_right,
)
from edl.ops.doctor_findings import (
    DoctorFinding,
    FindingLevel,
    PriorityClassNames,
    judge_claims,
    judge_master_bindings,
    judge_master_rights,
    judge_pod_security,
    judge_pod_security_dry_run,
    judge_priorities,
    judge_priority_admission,
    judge_secret_admission,
    judge_uninstall,
    judge_user_rights,
    judge_version,
    unknown_master_rights,
)
from edl.ops.helper_pod import HelperPodSpec, new_pod_name, render_helper_pod, run_helper_pod

UNPULLABLE_IMAGE = "registry.invalid/none"
"""Of a pod that is only asked about."""

DoctorCheck = Callable[[KubeClient], Iterable[DoctorFinding]]


def examine_cluster(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
    """All findings about a cluster and a namespace of it, as they come.

    Args:
        api: the cluster and namespace.
        classes: the PriorityClasses that jobs use.

    Raises:
        ApiError: the API server cannot be reached at all.
    """
    yield judge_version(api.ask("GET", "/version").body)
    checks: tuple[tuple[str, DoctorCheck], ...] = (
        ("namespace", partial(_check_namespace, classes=classes)),
        ("rights", _check_user_rights),
        ("accounts", _check_accounts),
        ("rights", _check_master_rights),
        ("admission", partial(_check_admission, classes=classes)),
        ("priorities", partial(_check_priorities, classes=classes)),
        ("claims", _check_claims),
    )
    for about, check in checks:
        try:
            yield from check(api)
        except ForbiddenError as error:
            yield DoctorFinding(FindingLevel.WARN, about, f"cannot be looked at: {error.message}", error.hint or "")
        except ApiError as error:
            yield DoctorFinding(FindingLevel.FAIL, about, error.message, error.hint or "")


def check_uninstall(api: KubeClient, release: str) -> Iterator[DoctorFinding]:
    """Whether a Helm release with the cluster's part can go without taking it from under other teams.

    Args:
        api: the cluster, and the release's namespace.
        release: its name.

    Raises:
        ApiError: RoleBindings of all namespaces cannot be listed.
    """
    yield from judge_uninstall(release, api.namespace, api.list(ROLE_BINDINGS, namespace=ALL_NAMESPACES).items)


def _check_namespace(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
    try:
        yield judge_pod_security(api.get(NAMESPACES, api.namespace))
    except RbacDeniedError:  # as for most people: then a pod is tried
        asked = _render_probe_pod(classes)
        del asked["spec"]["securityContext"], asked["spec"]["containers"][0]["securityContext"]
        yield judge_pod_security_dry_run(api.namespace, _dry_run_refusal(api, asked))
    except NotFoundError:
        yield DoctorFinding(
            FindingLevel.FAIL,
            "namespace",
            f"there is no namespace {api.namespace}",
            "Choose one with -n, or have it created.",
        )


def _check_user_rights(api: KubeClient) -> Iterator[DoctorFinding]:
    missing = [right for right in REQUIRED_RIGHTS if not has_right(api, right)]
    less = [right for right in OPTIONAL_RIGHTS if not has_right(api, right)]
    yield from judge_user_rights(api.namespace, missing, less)


def _check_accounts(api: KubeClient) -> Iterator[DoctorFinding]:
    for name in (names.MASTER_ACCOUNT, names.POD_ACCOUNT):
        try:
            api.get(SERVICE_ACCOUNTS, name)
            yield DoctorFinding(FindingLevel.OK, "accounts", f"ServiceAccount {name} is there")
        except NotFoundError:
            text = f"there is no ServiceAccount {name} in namespace {api.namespace}"
            yield DoctorFinding(FindingLevel.FAIL, "accounts", text, install_hint(api.namespace))


def _check_master_rights(api: KubeClient) -> Iterator[DoctorFinding]:
    """Whether masters may do their work: asked for each right, or read off the bindings, or not known."""
    try:
        yield judge_master_rights(api.namespace, [right for right in MASTER_RIGHTS if not master_has_right(api, right)])
    except ForbiddenError:
        try:
            yield judge_master_bindings(api.namespace, api.list(ROLE_BINDINGS).items)
        except ForbiddenError:
            yield unknown_master_rights()


def _render_probe_pod(classes: PriorityClassNames) -> Manifest:
    """A pod that is only asked about."""
    return render_helper_pod(HelperPodSpec(None, UNPULLABLE_IMAGE, RunAsSpec(), priority=classes.low), new_pod_name())


def _dry_run_refusal(api: KubeClient, asked: Manifest) -> ForbiddenError | None:
    """What the server says to a pod, which is not created; None: it would take it."""
    try:
        api.create(asked, dry_run=True)
    except ForbiddenError as error:
        return error
    return None


def _check_admission(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
    """Asked by a dry run: what is not installed cannot be looked up by people without rights of the whole cluster."""
    if has_right(api, READ_SECRETS_RIGHT):
        yield DoctorFinding(
            FindingLevel.OK, "admission", f"you may read the Secrets of namespace {api.namespace} anyway"
        )
        return
    asked = _render_probe_pod(classes)
    asked["spec"]["volumes"] = [{"name": "foreign", "secret": {"secretName": "foreign"}}]
    yield judge_secret_admission(api.namespace, _dry_run_refusal(api, asked))
    asked = _render_probe_pod(classes)
    del asked["spec"]["priorityClassName"]
    yield judge_priority_admission(api.namespace, _dry_run_refusal(api, asked))


def _check_priorities(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
    found = {}
    for name in (classes.high, classes.low):
        try:
            found[name] = int(api.get(PRIORITY_CLASSES, name).get("value", 0))
        except NotFoundError:
            yield DoctorFinding(
                FindingLevel.FAIL, "priorities", f"there is no PriorityClass {name}", install_hint(api.namespace)
            )
    if len(found) == 2:
        yield judge_priorities(classes, found[classes.high], found[classes.low])


def _check_claims(api: KubeClient) -> Iterator[DoctorFinding]:
    yield from judge_claims(api.list(VOLUME_CLAIMS).items, api.namespace)


def check_image_pull(
    api: KubeClient, image: str, classes: PriorityClassNames, tell: Callable[[str], None]
) -> DoctorFinding:
    """Whether the nodes can have an image: a pod of it, with a worker's priority, is started and deleted at once."""
    visit = HelperPodSpec(None, image, RunAsSpec(), seconds=600, task="tries the image", priority=classes.low)
    try:
        with run_helper_pod(api, visit, tell):
            return DoctorFinding(FindingLevel.OK, "images", f"{image} was pulled, and its container started")
    except RetryableError as error:
        return DoctorFinding(FindingLevel.WARN, "images", f"{image}: {error.message}", error.hint or "")
    except EdlError as error:
        return DoctorFinding(FindingLevel.FAIL, "images", f"{image}: {error.message}", error.hint or "")
