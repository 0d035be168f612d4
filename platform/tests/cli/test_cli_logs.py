"""``edl logs``: of pods, of several pods, of pods that are gone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from cli.pod_files import serve
from support.in_memory_cluster import InMemoryCluster
from support.job_objects import PUBLISHED, SPEC, container, put_job, put_pod
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import error_from_response
from edl.cluster.kubernetes.resource_kinds import PODS, Manifest
from edl.jobfile.published_status import PublishedStatus
from edl.ops.helper_pod import ClaimPath
from edl.ops.pod_logs import LogSelection, find_log_directory, select_log_pods

MASTER = "edl-mnist-master-abcde"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    cli = cli_with_job(monkeypatch, capsys)
    put_pod(cli.cluster, Role.MASTER)
    for index in (1, 2):
        put_pod(cli.cluster, Role.WORKER, index)
    cli.cluster.logged = {MASTER: ["one", "two"], "edl-mnist-worker-1": ["w1"], "edl-mnist-worker-2": ["w2", "w2 too"]}
    return cli


def test_the_master_by_default(cli: CliHarness) -> None:
    assert cli.edl("logs", "mnist") == 0
    assert cli.out == "one\ntwo\n"


def test_several_pods_have_their_names_in_front(cli: CliHarness) -> None:
    assert cli.edl("logs", "mnist", "--role", "worker") == 0
    assert cli.out == "[worker-1] w1\n[worker-2] w2\n[worker-2] w2 too\n"


def test_one_of_them(cli: CliHarness) -> None:
    assert cli.edl("logs", "mnist", "--role", "worker", "--index", "2") == 0
    assert cli.out == "w2\nw2 too\n"


def test_following_several_ends_with_them(cli: CliHarness) -> None:
    assert cli.edl("logs", "mnist", "--role", "worker", "-f") == 0
    assert sorted(cli.out.splitlines()) == ["[worker-1] w1", "[worker-2] w2", "[worker-2] w2 too"]


def test_a_container_that_has_not_started_says_why(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(self: InMemoryCluster, pod: str, **_: object) -> None:
        raise error_from_response(400, b'{"message": "container is waiting to start"}', where="")

    monkeypatch.setattr(InMemoryCluster, "logs", waiting)
    put_pod(cli.cluster, Role.WORKER, 7, container(waiting={"reason": "ImagePullBackOff"}))
    assert cli.edl("logs", "mnist", "--role", "worker", "--index", "7") == 2
    assert not missing_keys(cli.err, "worker-7", "image")


@pytest.fixture
def claim(cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cli.cluster.claim("files")
    cli.cluster.admissions.append(lambda thing: thing.update(status={"phase": "Running"}))
    folder = tmp_path / "edl/team/mnist/0a1b/logs"
    folder.mkdir(parents=True)
    (folder / "worker-0.log").write_text("first\nlast\n")
    (folder / "worker-3.log").write_text("three\n")
    serve(tmp_path, monkeypatch)
    return folder


def test_of_pods_that_are_gone_from_the_volume(cli: CliHarness, claim: Path) -> None:
    assert cli.edl("logs", "mnist", "--role", "worker", "--index", "0", "--tail", "1") == 0
    assert cli.out == "last\n"
    assert cli.edl("logs", "mnist", "--role", "worker", "--stored") == 0
    assert cli.out == "[worker-0] first\n[worker-0] last\n[worker-3] three\n"
    assert len(cli.cluster.objects_of_kind(PODS)) == 3


def test_the_volume_is_read_by_the_jobs_own_image(cli: CliHarness, claim: Path) -> None:
    pod_specs = readers(cli)
    assert cli.edl("logs", "mnist", "--role", "worker", "--stored") == 0
    assert [(spec["containers"][0]["image"], spec["imagePullSecrets"]) for spec in pod_specs] == [
        ("registry.example/mnist:1", [{"name": "puller"}])
    ]


def test_an_image_that_is_gone_gives_way_to_the_submitters(
    cli: CliHarness, claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_SUBMITTER_IMAGE", "registry.example/submitter:1")
    pod_specs = readers(cli, gone="registry.example/mnist:1")
    assert cli.edl("logs", "mnist", "--role", "worker", "--index", "3", "--stored") == 0
    assert cli.out == "three\n"
    assert [spec["containers"][0]["image"] for spec in pod_specs] == [
        "registry.example/mnist:1",
        "registry.example/submitter:1",
    ]
    assert len(cli.cluster.objects_of_kind(PODS)) == 3


def test_an_image_that_is_gone_is_said_where_no_other_is_named(
    cli: CliHarness, claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDL_SUBMITTER_IMAGE", raising=False)
    readers(cli, gone="registry.example/mnist:1")
    assert cli.edl("logs", "mnist", "--role", "worker", "--index", "3", "--stored") == 2
    assert "registry.example/mnist:1" in cli.err
    assert not missing_keys(cli.err, "EDL_SUBMITTER_IMAGE")


def readers(cli: CliHarness, gone: str = "") -> list[dict[str, Any]]:
    """What the pods that are made to read logs are like; one of the image ``gone`` cannot start."""
    spec = {**SPEC, "name": "mnist", "image": "registry.example/mnist:1", "pod": {"image_pull_secrets": ["puller"]}}
    meta = {"name": names.spec_configmap("mnist")}
    data = {names.SPEC_KEY: json.dumps(spec)}
    cli.cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    pod_specs: list[dict[str, Any]] = []

    def admission(thing: Manifest) -> None:
        pod_specs.append(thing["spec"])
        if thing["spec"]["containers"][0]["image"] == gone:
            thing["status"] = container(gone, waiting={"reason": "ImagePullBackOff"})

    cli.cluster.admissions.append(admission)
    return pod_specs


def test_a_worker_that_never_was(cli: CliHarness, claim: Path) -> None:
    assert cli.edl("logs", "mnist", "--role", "worker", "--index", "9") == 2
    assert not missing_keys(cli.err, "worker-9")


def test_without_a_volume_logs_go_with_their_pods(cli: CliHarness) -> None:
    assert PUBLISHED.status is not None
    put_job(cli.cluster, published=replace(PUBLISHED, status=replace(PUBLISHED.status, run_dir="/edl/team/mnist/x")))
    assert cli.edl("logs", "mnist", "--role", "ps", "--index", "0") == 2
    assert not missing_keys(cli.err, "no logs")


def test_before_there_is_anything(cli: CliHarness) -> None:
    put_job(cli.cluster, "new", PublishedStatus(), status={})
    assert cli.edl("logs", "new") == 2
    assert "edl why new" in cli.err


@pytest.mark.parametrize(
    ("spec", "run_dir", "place"),
    [
        (SPEC, "/data/edl/a/b/r", ClaimPath("files", "/edl/a/b/r/logs")),
        (SPEC, "/database/r", None),
        ({**SPEC, "storage": {"claim": "runs", "path": "/runs"}}, "/runs/a/r", ClaimPath("runs", "/a/r/logs")),
        (
            {"volumes": [{"mount": "/d", "claim": "a"}, {"mount": "/d/e", "claim": "b"}]},
            "/d/e/r",
            ClaimPath("b", "/r/logs"),
        ),
        ({"volumes": [{"mount": "/d", "claim": None, "host_path": "/x"}]}, "/d/r", None),
    ],
)
def test_where_a_run_keeps_its_logs(spec: dict[str, object], run_dir: str, place: ClaimPath | None) -> None:
    assert find_log_directory(spec, run_dir) == place


def test_of_several_masters_the_newest_that_stays() -> None:
    cluster = InMemoryCluster()
    old = put_pod(cluster, Role.MASTER)
    old["metadata"] |= {"name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    new = put_pod(cluster, Role.MASTER)
    assert select_log_pods([new, old], LogSelection(Role.MASTER)) == [new]
