"""What an admin gets wrong: one clear error, and nothing is half-installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e import install, namespaces
from e2e.inventory import inventory
from e2e.programs import Done, apply, call, kubectl
from e2e.releases import HelmRelease

from edl.cluster.kubernetes.resource_kinds import Manifest

pytestmark = [
    pytest.mark.install,
    pytest.mark.in_turn(2),
    pytest.mark.alone,
    pytest.mark.usefixtures("cleared_cluster", "helm_only"),
]

KEPT = {"clusterrole", "priorityclass", "validatingadmissionpolicy", "validatingadmissionpolicybinding"}


@dataclass(frozen=True)
class InstallAttempts:
    """Installs in two namespaces of their own: that of the release, and that of a team, which is there already."""

    release: HelmRelease
    team: str

    def try_install(self, values: Manifest, *options: str) -> Done:
        """``helm install``."""
        return self.release.try_install({"commonLabels": install.LABELS, **values}, *options)

    def team_of(self, **more: object) -> Manifest:
        """Values with one team."""
        return {"teams": [{"namespace": self.team, **more}]}

    def check_refused(self, values: Manifest, *told: str, options: tuple[str, ...] = ()) -> None:
        """It fails, says all of this, and everything is as before."""
        before = inventory(self.release.namespace, self.team)
        done = self.try_install(values, *options)
        assert done.returncode, f"it was installed:\n{done.stdout}"
        assert [text for text in told if text not in done.stderr] == [], done.stderr
        assert inventory(self.release.namespace, self.team) == before


@pytest.fixture(scope="module")
def install_attempts(cleared_cluster: None) -> Iterator[InstallAttempts]:
    """The same for all, since nothing of an attempt stays; both namespaces go at the end, with what is in them."""
    release, team = (namespaces.fresh_name(Path(f"refused-{whose}")) for whose in ("release", "team"))
    for name in (release, team):
        apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": namespaces.LABELS}})
        kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", "configmap/kube-root-ca.crt")
    yield InstallAttempts(HelmRelease("edl", release), team)
    for name in ("edl", "edl-second"):
        HelmRelease(name, release).uninstall("--ignore-not-found")
    kubectl("delete", install.CLUSTER_KINDS, "-l", install.OWN, "--ignore-not-found")
    call("kubectl", "delete", "namespace", release, team, "--wait=false")


def test_values_that_are_wrong(install_attempts: InstallAttempts) -> None:
    """A typo, a wrong type: where it is, at render."""
    install_attempts.check_refused(install_attempts.team_of(clusterViwer=True), "clusterViwer")
    install_attempts.check_refused({"priorityClasses": {"high": {"value": "much"}}}, "/priorityClasses/high/value")


def test_a_storage_class_that_does_not_exist(install_attempts: InstallAttempts) -> None:
    install_attempts.check_refused(
        install_attempts.team_of(volume={"storageClass": "no-such-class"}), "no-such-class", install_attempts.team
    )


def test_a_namespace_that_does_not_exist(install_attempts: InstallAttempts) -> None:
    install_attempts.check_refused({"teams": [{"namespace": "no-such-team"}]}, "no-such-team", "create to true")


def test_a_namespace_of_another_owner(install_attempts: InstallAttempts) -> None:
    """It is there and somebody else made it: `create` would make it this release's."""
    install_attempts.check_refused(install_attempts.team_of(create=True), install_attempts.team)


def test_two_releases_that_claim_the_same_objects(install_attempts: InstallAttempts) -> None:
    """The first one's PriorityClasses are not the second one's."""
    assert install_attempts.try_install({}).returncode == 0
    try:
        second = InstallAttempts(HelmRelease("edl-second", install_attempts.release.namespace), install_attempts.team)
        second.check_refused(install_attempts.team_of(), "PriorityClass", "edl-second")
    finally:
        install_attempts.release.uninstall()


def test_an_install_that_fails_half_way_is_rolled_back(install_attempts: InstallAttempts) -> None:
    """The API server refuses an account, when others are made already: they go again, what was there stays."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}}
    apply({**quota, "spec": {"hard": {"count/serviceaccounts": "1"}}}, "-n", install_attempts.team)
    kubectl("-n", install_attempts.team, "wait", "--for=jsonpath={.status.used}", "resourcequota/full", "--timeout=30s")
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    meta = {"name": "fileserver-claim"}
    apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim},
        "-n",
        install_attempts.team,
    )
    existing = install_attempts.team_of(volume={"existing": True})
    before = inventory(install_attempts.release.namespace, install_attempts.team)
    done = install_attempts.try_install(existing, "--rollback-on-failure", "--timeout=20s")
    assert done.returncode
    assert "exceeded quota" in done.stderr, done.stderr
    # what other teams may need is kept, as with an uninstall
    left = inventory(install_attempts.release.namespace, install_attempts.team) - before
    kinds = {each.rpartition("/")[0].rpartition("/")[2] for each in left}
    assert kinds <= KEPT, left
    kubectl("-n", install_attempts.team, "get", "persistentvolumeclaim", "fileserver-claim")
    kubectl("-n", install_attempts.team, "delete", "resourcequota/full", "persistentvolumeclaim/fileserver-claim")
