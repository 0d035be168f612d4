"""An admin makes the cluster ready and hands a namespace to a team; what is installed changes while a job trains."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from e2e import evidence, figures, install, namespaces
from e2e.images import JobImages
from e2e.install import InstallMethod
from e2e.inventory import inventory
from e2e.jobs import ClusterJob, digits
from e2e.ledger import finish_and_count
from e2e.namespaces import Namespace
from e2e.programs import ROOT, apply, call, edl, kubectl
from e2e.releases import CHART, HelmRelease
from e2e.site import TargetSite
from e2e.user_account import data_scientist
from e2e.volume import CLAIM, MOUNT, READER

from edl.cluster.kubernetes.resource_kinds import Manifest

pytestmark = [pytest.mark.install, pytest.mark.alone, pytest.mark.usefixtures("cleared_cluster")]

EDL = HelmRelease("edl", install.SYSTEM)
FILE = f"{MOUNT}/precious"


def values(namespace: Namespace, *teams: Manifest, **more: object) -> Manifest:
    """What an admin writes into a values file."""
    repository, _, tag = namespace.images.submitter.rpartition(":")
    image = {"repository": repository, "tag": tag}
    return {"commonLabels": install.LABELS, "tests": {"image": image}, "teams": list(teams), **more}


def team(namespace: Namespace) -> Manifest:
    """An entry of the list of teams: a namespace that is created, with a claim if a storage class can give one."""
    volume = {"storageClass": namespace.site.storage_class or "", "size": "1Gi"}
    return {"namespace": namespace.name, "create": True, "dataCopy": True, "volume": volume}


@pytest.fixture
def namespace(
    target_site: TargetSite, job_images: JobImages, folder: Path, has_failed: Callable[[], bool]
) -> Iterator[Namespace]:
    """A namespace that is to be; with all that tests installed it goes at the end."""
    with namespaces.open_namespace(target_site, job_images, folder, namespaces.fresh_name(folder)) as opened:
        try:
            yield opened
        finally:
            if has_failed():
                evidence.collect_evidence(opened)
            install.clear_releases("edl", "edl-again")


def hand_over(namespace: Namespace, data: Path) -> Namespace:
    """The namespace is installed: with a reader of its volume, as a data scientist has it, with their data."""
    chart_made_it = namespace.site.storage_class and install.install_method() is InstallMethod.HELM
    namespace.volume.create_claim(claim=not chart_made_it)
    handed = replace(namespace, user=data_scientist(namespace.name))
    handed.copy_to_claim(data, "/mnist")
    return handed


@contextmanager
def measure_installation(namespace: Namespace) -> Iterator[None]:
    """Measure how long the block installs, and count the objects that it makes."""
    before, began = inventory(install.SYSTEM, namespace.name), time.monotonic()
    yield
    seconds = time.monotonic() - began
    # Not the admin's: what every namespace has by itself, and Helm's own record.
    created = {
        each
        for each in inventory(install.SYSTEM, namespace.name) - before
        if not each.endswith(("serviceaccount/default", "configmap/kube-root-ca.crt")) and "sh.helm" not in each
    }
    figures.record_duration(f"install_{install.install_method()}", seconds, objects=len(created))


@pytest.mark.timeout(300)
def test_a_data_scientist_trains_on_what_was_installed(namespace: Namespace, data: Path) -> None:
    """One command of an admin, and the account that it made can submit, watch, scale and delete, and nothing else."""
    with measure_installation(namespace):
        _install_everything(namespace)
    namespace = hand_over(namespace, data)
    job = ClusterJob.write(namespace, digits("first", image=namespace.images.zoo, seconds=120, workers=1))
    job.submit()
    job.run_edl("wait", "--for", "started", "--timeout", "120s")
    job.run_edl("scale", "--max", "2")
    job.run_edl("wait", "--for", "workers=2", "--timeout", "60s")
    job.wait_for("it says that it trains", lambda: "'Training'" in job.run_edl("logs") or None, 30)
    for command in refused_commands(namespace):
        done = namespace.user.try_kubectl(*command)
        assert done.returncode, f"kubectl {' '.join(command)} is allowed:\n{done.stdout}"
        assert "forbidden" in done.stderr.lower(), done.stderr
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []


def _install_everything(namespace: Namespace) -> None:
    if install.install_method() is InstallMethod.HELM:
        EDL.install(values(namespace, team(namespace)))
        return
    labels = namespaces.LABELS
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace.name, "labels": labels}})
    kubectl("apply", "-k", str(install.CLUSTER))
    install.install_team(namespace.name)


def refused_commands(namespace: Namespace) -> list[tuple[str, ...]]:
    """What a data scientist tries in vain."""
    return [
        ("get", "secrets"),
        ("get", "secret", "edl-first-token"),
        ("get", "pods", "--namespace", "kube-system"),
        ("create", "configmap", "mine", "--namespace", "default"),
        ("get", "nodes"),
        ("get", "priorityclasses"),
        ("create", "priorityclass", "mine", "--value=2000000"),
        ("delete", "priorityclass", "low"),
        (
            "create",
            "rolebinding",
            "mine",
            "--clusterrole=cluster-admin",
            "--serviceaccount",
            f"{namespace.name}:default",
        ),
    ]


# ---------------------------------------------------------------------- releases


def earlier_chart(folder: Path) -> Path:
    """An earlier version of the chart.

    None was released yet, so it is made of this one: an older number, no network policies, and an object that is gone.
    """
    chart = folder / "edl-0.0.9"
    shutil.copytree(CHART, chart)
    file, templates = chart / "Chart.yaml", chart / "templates"
    file.write_text(file.read_text().replace("\nversion: ", "\nversion: 0.0.9 # ", 1))
    (templates / "network-policies.yaml").unlink()
    gone = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "edl-earlier"}}
    (templates / "earlier.yaml").write_text(f"{gone}\n")
    return chart


@pytest.mark.usefixtures("helm_only")
@pytest.mark.timeout(400)
@pytest.mark.in_turn(1)
def test_a_running_job_is_not_disturbed(namespace: Namespace, data: Path, tmp_path: Path) -> None:
    """Upgrade, rollback, uninstall, reinstall, a team that leaves the list, another release: its pods stay, it ends."""
    replace(EDL, chart=earlier_chart(tmp_path)).install(values(namespace, team(namespace)))
    namespace = hand_over(namespace, data)
    namespace.kubectl("exec", READER, "--", "touch", FILE)
    job = ClusterJob.write(namespace, digits("steady", image=namespace.images.zoo, seconds=120, workers=2))
    job.submit()
    job.wait_training(workers=2)
    pods = uids(job)

    _upgrade_and_back(namespace)
    assert uids(job) == pods
    _uninstall_is_refused_under_another_team()
    EDL.uninstall()
    assert inventory() & {"priorityclass/high", "priorityclass/low", "clusterrole/edl-job-master"} == set()
    check_kept(namespace)
    assert uids(job) == pods
    EDL.install(values(namespace, team(namespace)))
    job.wait_more_steps()
    EDL.upgrade(values(namespace, priorityClasses={"keep": True}))
    check_kept(namespace)
    assert f"{namespace.name}/rolebinding/edl-job-master" not in inventory(namespace.name)
    EDL.uninstall()
    assert {"priorityclass/high", "priorityclass/low"} <= inventory()
    _take_over(namespace)

    assert uids(job) == pods
    summary, _ = finish_and_count(job)
    assert summary["records_repeated"] == 0
    check_kept(namespace)


def _uninstall_is_refused_under_another_team() -> None:
    """A team that somebody else made has the roles: nothing is deleted, and its namespace is named."""
    stranger = ("rolebinding", "edl-job-master-of-others", "-n", install.SYSTEM)
    kubectl("create", *stranger, "--clusterrole=edl-job-master", f"--serviceaccount={install.SYSTEM}:edl-job-master")
    before = inventory()
    refused = EDL.try_uninstall()
    assert refused.returncode, "it was uninstalled under another team"
    output = refused.stdout + refused.stderr
    assert f"namespace {install.SYSTEM}" in output, output
    assert "ClusterRoles" in output, output
    assert inventory() == before
    kubectl("delete", *stranger)


@pytest.mark.usefixtures("helm_only")
@pytest.mark.timeout(200)
@pytest.mark.in_turn(0)
def test_a_whole_cluster_goes_from_kustomize_to_helm(namespace: Namespace) -> None:
    """The commands of docs/operations.md: taken over, told who needs it, uninstalled and kept."""
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace.name, "labels": namespaces.LABELS}})
    kubectl("apply", "-k", str(install.CLUSTER))
    for name in (install.SYSTEM, namespace.name):
        kubectl("apply", "-n", name, "-k", str(install.TEAM))
    try:
        _take_a_cluster_over(namespace)
    finally:
        kubectl("delete", "-n", install.SYSTEM, "-k", str(install.TEAM))


def _take_a_cluster_over(namespace: Namespace) -> None:
    values = {"commonLabels": install.LABELS, "teams": [{"namespace": namespace.name}]}
    refused = EDL.try_upgrade(values, "--install", "--take-ownership")
    assert refused.returncode
    assert "conflict with" in refused.stderr, refused.stderr
    done = EDL.try_upgrade(values, "--install", "--take-ownership", "--force-conflicts")
    assert done.returncode == 0, done.stderr
    checked = edl("doctor", "--before-uninstall", EDL.name, "-n", EDL.namespace)
    assert checked.returncode == 1
    failed = [line for line in checked.stdout.splitlines() if line.startswith("FAIL")]
    named = {word.strip(",.:") for line in failed for word in line.split()}
    assert install.SYSTEM in named
    assert namespace.name not in named, "it is the release's own now"
    shared = {"clusterrole/edl-job-master", "priorityclass/high", "validatingadmissionpolicy/edl-job-master-pods"}
    EDL.uninstall()
    assert inventory() >= shared
    command = (
        "kubectl delete clusterroles,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings "
    )
    chosen = "app.kubernetes.io/part-of=edl,app.kubernetes.io/instance=edl"
    assert f"{command}\\\n  -l {chosen}" in (ROOT / "docs" / "operations.md").read_text()
    kubectl(*command.split()[1:], "-l", chosen)
    assert inventory() & shared == set()


def _upgrade_and_back(namespace: Namespace) -> None:
    """To this version, and back to the earlier one."""
    began = time.monotonic()
    EDL.upgrade(values(namespace, team(namespace)))
    figures.record_duration("upgrade", time.monotonic() - began)
    assert "edl-earlier" not in str(EDL.manifest())
    assert any(each["kind"] == "NetworkPolicy" for each in EDL.manifest())
    EDL.test()
    EDL.rollback()
    assert "edl-earlier" in kubectl("-n", install.SYSTEM, "get", "configmaps", "-o", "name")
    assert "networkpolicy" not in str(inventory(namespace.name))


def _take_over(namespace: Namespace) -> None:
    """What a release left is another's only when its admin says so."""
    again, before = HelmRelease("edl-again", install.SYSTEM), inventory(install.SYSTEM, namespace.name)
    done = again.try_install(values(namespace, team(namespace)))
    assert done.returncode
    assert "edl-again" in done.stderr and "meta.helm.sh/release-name" in done.stderr, done.stderr  # noqa: PT018
    assert inventory(install.SYSTEM, namespace.name) == before
    _fail_half_way(again, namespace)
    check_kept(namespace)
    again.install(values(namespace, team(namespace)), "--take-ownership")


def _fail_half_way(release: HelmRelease, namespace: Namespace) -> None:
    """There is room for no more accounts: the release is rolled back when namespace and claim are its own already."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}}
    apply({**quota, "spec": {"hard": {"count/serviceaccounts": "1"}}}, "-n", namespace.name)
    namespace.kubectl("wait", "--for=jsonpath={.status.used}", "resourcequota/full", "--timeout=30s")
    done = release.try_install(
        values(namespace, team(namespace)), "--take-ownership", "--rollback-on-failure", "--timeout=30s"
    )
    assert done.returncode
    assert "exceeded quota" in done.stderr, done.stderr
    namespace.kubectl("delete", "resourcequota", "full")


def check_kept(namespace: Namespace) -> None:
    """Namespace, claim and the file on the volume are there."""
    assert kubectl("get", "namespace", namespace.name, "-o", "jsonpath={.status.phase}") == "Active"
    assert namespace.kubectl("get", "persistentvolumeclaim", CLAIM, "-o", "jsonpath={.status.phase}") == "Bound"
    assert call("kubectl", "-n", namespace.name, "exec", READER, "--", "test", "-f", FILE).returncode == 0


def uids(job: ClusterJob) -> dict[str, tuple[str, int]]:
    """Uid and restarts of each of its pods."""
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in job.namespace.observer.pods(job=job.name)
    }
