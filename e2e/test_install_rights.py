"""What each account may do is what docs/reference/rights.md says: every right asked for, every request really tried."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from e2e import install, master_requests, namespaces, rights_objects, user_requests
from e2e.api_requests import (
    ALLOWED,
    NO_RIGHT,
    POLICY,
    ApiRequest,
    acting_as,
    by_hand,
    delete_shown,
    merge,
    operations,
    send_request,
)
from e2e.conftest import ARTIFACTS
from e2e.images import JobImages
from e2e.jobs import ClusterJob, digits
from e2e.namespaces import Namespace
from e2e.programs import apply, kubectl, run_program
from e2e.releases import HelmRelease
from e2e.rights_objects import FOREIGN, MASTER_POD, OWN, RightsObjects
from e2e.site import TargetSite
from e2e.user_account import ACCOUNT
from support import rights_page

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, QuotaExceededError
from edl.cluster.kubernetes.resource_kinds import JOBS, PODS, SECRETS, Manifest, manifest_kind

pytestmark = [pytest.mark.install, pytest.mark.xdist_group("rights"), pytest.mark.in_turn(0)]

SECRET = "czNjcmV0"
"""What a Secret of the stage holds, as Kubernetes writes it."""
_RIGHT = re.compile(r"^(?P<resource>\S+) +\[\] +\[\] +\[(?P<verbs>[a-z ]+)\]$")


@pytest.fixture(scope="module")
def namespace(target_site: TargetSite, job_images: JobImages) -> Iterator[Namespace]:
    """A namespace of a team. It enforces no Pod Security level: what is refused is refused by rights and policies."""
    with namespaces.new_namespace(target_site, job_images, ARTIFACTS / "rights", volume=False) as opened:
        kubectl("label", "namespace", opened.name, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
        yield opened


@pytest.fixture(scope="module")
def objects(namespace: Namespace) -> RightsObjects:
    """Two jobs that never run."""
    return rights_objects.create_objects(namespace.api, namespace.images.submitter)


def token(namespace: Namespace, account: str, *options: str) -> str:
    """A token of an account."""
    return namespace.kubectl("create", "token", account, *options).strip()


@pytest.fixture(scope="module")
def data_scientist(namespace: Namespace) -> KubeClient:
    """A data scientist."""
    return by_hand(namespace.api, token(namespace, ACCOUNT))


@pytest.fixture(scope="module")
def master(namespace: Namespace, objects: RightsObjects) -> KubeClient:
    """The master of the job ``mine``."""
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", MASTER_POD)
    return by_hand(namespace.api, token(namespace, names.MASTER_ACCOUNT, *bound))


@pytest.fixture
def patch_right(namespace: Namespace, objects: RightsObjects, master: KubeClient) -> Iterator[None]:
    """Somebody has given masters the right to patch Secrets."""
    patch = merge(SECRETS.path(namespace.name, FOREIGN), {})
    answered = lambda wanted: lambda: send_request(master, patch)[0] == wanted or None  # noqa: E731 (bindings count soon, not at once)
    account = f"--serviceaccount={namespace.name}:{names.MASTER_ACCOUNT}"
    namespace.kubectl("create", "role", "patching", "--verb=patch", "--resource=secrets")
    namespace.kubectl("create", "rolebinding", "patching", "--role=patching", account)
    namespace.observer.wait_for("only a policy refuses it", answered(POLICY), 20)
    yield
    namespace.kubectl("delete", "role,rolebinding", "patching")
    namespace.observer.wait_for("masters may not patch Secrets", answered(NO_RIGHT), 20)


# ---------------------------------------------------------------------- every right


def listed_rights(namespace: Namespace, account: str, *, other_namespace: str | None = None) -> dict[str, set[str]]:
    """What ``kubectl auth can-i --list`` says to an account, by resource."""
    server = json.loads(kubectl("config", "view", "--minify", "--flatten", "--raw", "-o", "json"))
    server["users"][0]["user"] = {"token": token(namespace, account)}
    file = namespace.folder / f"{account}.json"
    file.write_text(json.dumps(server))
    output = run_program(
        "kubectl", "auth", "can-i", "--list", "-n", other_namespace or namespace.name, env={"KUBECONFIG": str(file)}
    )
    file.unlink()
    rows = [_RIGHT.match(line) for line in output.splitlines()[1:] if not line.startswith(" ")]
    assert None not in rows, output
    rights: dict[str, set[str]] = {}
    for row in rows:
        assert row is not None
        rights.setdefault(row["resource"], set()).update(row["verbs"].split())
    return rights


def documented_rights(*roles: str) -> dict[str, set[str]]:
    """What the page grants to whoever has these roles."""
    rights: dict[str, set[str]] = {}
    for role in (*roles, rights_page.EVERYBODY):
        for resource, verbs in rights_page.rights()[role].items():
            rights.setdefault(resource, set()).update(verbs)
    return rights


@pytest.mark.parametrize(
    ("account", "roles"),
    [
        (ACCOUNT, (ACCOUNT, "edl-data-copy")),
        (names.MASTER_ACCOUNT, (names.MASTER_ACCOUNT,)),
        (names.POD_ACCOUNT, ()),
    ],
)
def test_the_rights_are_those_of_the_table_and_no_others(
    namespace: Namespace, account: str, roles: tuple[str, ...]
) -> None:
    assert listed_rights(namespace, account) == documented_rights(*roles)
    assert listed_rights(namespace, account, other_namespace="kube-system") == documented_rights()


# ---------------------------------------------------------------------- every request


def compare_rights(
    objects: RightsObjects, admin: KubeClient, api: KubeClient, tried: dict[str, ApiRequest], wanted: dict[str, str]
) -> None:
    """Try all requests; what was created goes at once."""
    assert sorted(tried) == sorted(wanted), "the page and the tests have different rows"
    wrong = []
    for row, request in tried.items():
        answer, returned, words = send_request(api, request)
        if answer != wanted[row]:
            wrong.append(f"{row}: {answer}, the page says {wanted[row]}. {words}")
        if answer == POLICY:
            assert re.fullmatch(r".* denied request: [A-Z][^.]*(\.\w[^.]*)*\.", words), f"{row}: {words}"
        if answer == ALLOWED and request.method == "POST" and not request.query:
            _take_back(admin, returned)
    assert wrong == []


def _take_back(admin: KubeClient, found: Manifest) -> None:
    kind, meta = manifest_kind(found), found["metadata"]
    if kind.plural not in ("leases", "events"):
        admin.delete(kind, meta["name"], uid=meta["uid"], grace=0)


def test_a_data_scientist_can_do_what_the_table_says(
    namespace: Namespace, objects: RightsObjects, data_scientist: KubeClient
) -> None:
    compare_rights(
        objects,
        namespace.api,
        data_scientist,
        user_requests.user_requests(objects),
        rights_page.answers("a data scientist"),
    )


def test_a_token_that_is_bound_to_no_pod_of_a_master_changes_nothing(
    namespace: Namespace, objects: RightsObjects
) -> None:
    strangers = ("--bound-object-kind", "Pod", "--bound-object-name", "imposter")
    namespace.api.create(
        rights_objects.pod("imposter", names.object_labels(OWN), serviceAccountName=names.MASTER_ACCOUNT)
    )
    for options in ((), strangers):
        by = by_hand(namespace.api, token(namespace, names.MASTER_ACCOUNT, *options))
        changes = {
            row: tried for row, tried in master_requests.master_requests(objects).items() if _would_be_allowed(row)
        }
        answers = {row: send_request(by, tried)[0] for row, tried in changes.items()}
        assert answers == dict.fromkeys(changes, POLICY)


def _would_be_allowed(row: str) -> bool:
    """Events say nothing that anybody relies on; no policy is about them."""
    return rights_page.answers("a master")[row] == ALLOWED and row != "write an event"


def test_a_master_can_do_what_the_table_says(namespace: Namespace, objects: RightsObjects, master: KubeClient) -> None:
    namespace.kubectl("delete", "lease", names.master_name(OWN))
    compare_rights(
        objects, namespace.api, master, master_requests.master_requests(objects), rights_page.answers("a master")
    )


# ---------------------------------------------------------------------- what the page warns of


@pytest.mark.usefixtures("patch_right")
def test_who_may_patch_a_secret_can_read_it_whatever_policies_say(
    namespace: Namespace, objects: RightsObjects, master: KubeClient
) -> None:
    """Kubernetes applies a JSON patch before it asks any policy, and says what is wrong with the result."""
    path = SECRETS.path(namespace.name, FOREIGN)
    with pytest.raises(ApiError) as refused:
        send_request(master, operations(path, ("copy", "/apiVersion", "/data/token")))
    assert SECRET in refused.value.message


def test_who_may_delete_a_secret_is_shown_it_unless_a_policy_refuses(namespace: Namespace) -> None:
    """Hence no right to delete Secrets where the policies are not installed; for those they hold, see the tables."""
    namespace.api.create(rights_objects.secret("shown", None))
    answer, returned, _ = send_request(namespace.api, delete_shown(SECRETS.path(namespace.name, "shown")))
    assert answer == ALLOWED
    assert returned["data"] == {"token": SECRET}


# ---------------------------------------------------------------------- who is held, and who is not


def test_whoever_is_bound_to_the_role_is_held_until_secrets_are_theirs_to_read(
    namespace: Namespace, objects: RightsObjects
) -> None:
    """Policies go by rights: no list of names has to be kept."""
    ada, foreign = (
        acting_as(namespace.api, "ada"),
        user_requests.user_requests(objects)["a pod with a foreign Secret: volume"],
    )
    answered = lambda wanted: lambda: send_request(ada, foreign)[0] == wanted or None  # noqa: E731 (bindings count soon, not at once)
    namespace.kubectl("create", "rolebinding", "ada", f"--clusterrole={ACCOUNT}", "--user=ada")
    namespace.observer.wait_for("ada is held", answered(POLICY), 20)
    namespace.kubectl("create", "rolebinding", "ada-edits", "--clusterrole=edit", "--user=ada")
    namespace.observer.wait_for("ada is held no more", answered(ALLOWED), 20)
    namespace.api.delete(PODS, "tried", grace=0)


def test_an_admin_is_held_to_nothing(namespace: Namespace, objects: RightsObjects) -> None:
    foreign = rights_objects.pod(
        "of-an-admin", serviceAccountName=rights_objects.STRANGER, **user_requests.secret_uses(FOREIGN)["volume"]
    )
    namespace.api.create(foreign)
    namespace.api.delete(PODS, "of-an-admin", grace=0)
    done = send_request(
        namespace.api, merge(SECRETS.path(namespace.name, FOREIGN), {"metadata": {"labels": {"a": "b"}}})
    )
    assert done[0] == ALLOWED


@pytest.mark.usefixtures("helm_only")
def test_a_quota_counts_pods_without_a_class_and_so_those_whom_no_policy_holds(namespace: Namespace) -> None:
    """The chart's quotas, and an admin's pods: of a class, and of none."""
    values = {"cluster": {"create": False}, "teams": [{"namespace": namespace.name, "quota": {"low": {"pods": 1}}}]}
    quotas = [each for each in HelmRelease("edl", namespace.name).template(values) if each["kind"] == "ResourceQuota"]
    for quota in quotas:
        name = quota["metadata"]["name"]
        apply(quota)
        namespace.kubectl("wait", "--for=jsonpath={.status.used}", f"resourcequota/{name}", "--timeout=30s")
    try:
        for name, refusal in (
            ("low", "exceeded quota: edl-low"),
            ("without-class", "exceeded quota: edl-without-class"),
        ):
            fields = {} if name == "low" else {"priorityClassName": ""}
            with pytest.raises(QuotaExceededError, match=refusal):
                [namespace.api.create(rights_objects.pod(f"{name}-{index}", **fields)) for index in range(2)]
    finally:
        namespace.kubectl("delete", "resourcequotas", "--all")
        namespace.kubectl("delete", "pods", "low-0", "--ignore-not-found", "--grace-period=0", "--force")


@pytest.mark.usefixtures("helm_only")
def test_a_team_that_kustomize_made_becomes_a_releases_by_one_command(
    target_site: TargetSite, job_images: JobImages
) -> None:
    """kubectl owns the fields that it has applied, so Helm has to be told to take these, too: docs/operations.md."""
    with namespaces.new_namespace(
        target_site, job_images, ARTIFACTS / "from-kustomize", volume=False, base=False
    ) as namespace:
        from_kustomize(namespace.name)


def from_kustomize(other_namespace: str) -> None:
    """Hand a team over, once without the flag that takes the fields."""
    kubectl("apply", "-n", other_namespace, "-k", str(install.TEAM))
    release = HelmRelease("edl-team", other_namespace)
    team = {"namespace": other_namespace, "dataCopy": True}
    values = {"cluster": {"create": False}, "checks": {"enabled": False}, "teams": [team]}
    refused = release.try_upgrade(values, "--install", "--take-ownership")
    assert refused.returncode
    assert "conflict with" in refused.stderr, refused.stderr
    forced = release.try_upgrade(values, "--install", "--take-ownership", "--force-conflicts")
    assert forced.returncode == 0, forced.stderr
    owners = json.loads(kubectl("-n", other_namespace, "get", "rolebindings,networkpolicies", "-o", "json"))["items"]
    assert {each["metadata"]["annotations"]["meta.helm.sh/release-name"] for each in owners} == {"edl-team"}
    release.upgrade(values)


def test_the_job_controller_is_held_to_nothing(namespace: Namespace, objects: RightsObjects) -> None:
    """A Job of an admin's, with an account and a Secret that no data scientist could give it, gets its pod."""
    spec = user_requests.secret_uses(FOREIGN)["volume"]
    job = rights_objects.job("of-an-admin", serviceAccountName=rights_objects.STRANGER, **spec)
    namespace.api.create(job | {"spec": job["spec"] | {"suspend": False}})
    label = "batch.kubernetes.io/job-name=of-an-admin"
    namespace.observer.wait_for("the pod of the Job", lambda: namespace.api.list(PODS, labels=label).items or None)
    namespace.api.delete(JOBS, "of-an-admin")


def test_what_edl_submit_asks_beforehand_passes(namespace: Namespace) -> None:
    """The dry run of all objects and pods; what it does not pass is refused with the policy's own sentence."""
    spec = digits("asked", image=namespace.images.zoo, seconds=10, workers=1) | {"volumes": [], "storage": {}}
    job = ClusterJob.write(namespace, spec)
    done = job.edl("submit", "--dry-run", "server")
    assert done.returncode == 0, done.stdout + done.stderr
    env = [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": FOREIGN, "key": "token"}}}]
    overrides = {"spec": {"containers": [{"name": names.ROLE_CONTAINER, "env": env}]}}
    foreign = ClusterJob.write(namespace, spec | {"name": "foreign", "pod": {"overrides": overrides}})
    refused = foreign.edl("submit", "--yes")
    assert refused.returncode == 2
    assert "The environment of a container may come from" in refused.stderr
    assert "admission.allowedSecrets" in refused.stderr
    assert foreign.leftovers() == []


def test_the_doctor_finds_the_policies_and_pulls_with_the_priority_of_workers(namespace: Namespace) -> None:
    """What `helm test` runs."""
    done = namespace.user.edl("doctor", "--image", namespace.images.submitter, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["level"] for each in findings if each["about"] in ("namespace", "admission")] == ["WARN", "OK", "OK"]
    assert [each["text"] for each in findings if each["about"] == "images"] == [
        f"{namespace.images.submitter} was pulled, and its container started"
    ]
    low = lambda change: change.object["spec"].get("priorityClassName") == "low"  # noqa: E731
    assert (
        namespace.observer.first_change(lambda change: change.name.startswith("edl-data-") and low(change)) is not None
    )
