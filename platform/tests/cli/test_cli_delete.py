from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_harness import CliHarness, cli_in_job_folder
from support.in_memory_cluster import Manifest
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.status import Status
from edl.cli import options as cluster_options
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import JOBS, SECRETS
from edl.jobfile.published_status import PublishedStatus
from edl.ops import job_deletion


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    monkeypatch.setattr(job_deletion, "DELETION_POLL_SECONDS", 0.0)
    cli = cli_in_job_folder(tmp_path, monkeypatch, capsys)
    assert cli.submit("--yes") == 0
    return cli


def worker(index: int) -> Manifest:
    meta = {
        "name": names.pod_name("mnist", Role.WORKER, index),
        "labels": names.object_labels("mnist", Role.WORKER, index),
    }
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n1"}, "status": {}}


def test_a_job_is_removed_with_all_that_has_its_label(cli: CliHarness) -> None:
    cli.cluster.put(worker(0))
    training = Status("mnist", "run", "/data/run", "Training", 1.0)
    cli.cluster.published.update(PublishedStatus(training).to_configmap_data())
    assert cli.edl("delete", "mnist", "--yes") == 0
    assert not missing_keys(cli.out, "mnist", "Training", "2027-01-15 08:00:00 UTC", "lost", "edl stop")
    assert not missing_keys(cli.out, "2 Pods, 1 Job, 2 ConfigMaps, 1 Service, 1 Secret")
    assert not missing_keys(cli.out.splitlines()[-1], "mnist", "deleted", "0 s")
    assert not missing_keys(cli.err, "2 Pods, 1 Job")
    assert cli.cluster.labelled() == []


def test_an_ended_job_loses_nothing(cli: CliHarness) -> None:
    (job,) = cli.cluster.objects_of_kind(JOBS)
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert cli.edl("delete", "mnist", "--yes") == 0
    assert cli.out.startswith("mnist: Done, submitted")
    assert missing_keys(cli.out, "lost", "edl stop") == ["lost", "edl stop"]


def test_what_is_left_of_a_job_that_is_gone_is_removed(cli: CliHarness) -> None:
    assert cli.edl("delete", "mnist", "--yes") == 0
    cli.cluster.put(worker(3))
    assert cli.edl("delete", "mnist", "--yes") == 0
    first, left_over, *_ = cli.out.splitlines()
    assert (missing_keys(first, "mnist", "deleted"), left_over) == ([], "  1 Pod")
    assert cli.cluster.labelled() == []


def test_a_token_that_is_left_is_removed_by_somebody_who_may_not_look(cli: CliHarness) -> None:
    """What is left of `edl render | kubectl create` after `kubectl delete job`."""
    (token,) = cli.cluster.objects_of_kind(SECRETS)
    assert cli.edl("delete", "mnist", "--yes") == 0
    cli.cluster.put({**token, "metadata": {"name": token["metadata"]["name"], "labels": names.object_labels("mnist")}})
    cli.cluster.deny("list", SECRETS)
    cli.cluster.deny("get", SECRETS)
    assert cli.edl("delete", "mnist") == 2, "not without being asked"
    assert cli.cluster.labelled() == ["Secret edl-mnist-token"]
    assert cli.edl("delete", "mnist", "--yes") == 0
    first, left_over, *_ = cli.out.splitlines()
    assert (missing_keys(first, "mnist", "deleted"), left_over) == ([], "  1 Secret")
    assert cli.cluster.labelled() == []
    assert cli.edl("delete", "mnist", "--yes") == 2


def test_a_job_that_is_not_there_is_bad_input(cli: CliHarness) -> None:
    assert cli.edl("delete", "minst", "--yes") == 2
    assert not missing_keys(cli.err, "minst", "namespace team", "mnist")
    assert cli.cluster.labelled() != []


def test_nothing_is_deleted_unasked(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(cli.cluster.objects)
    assert cli.edl("delete", "mnist") == 2
    monkeypatch.setattr(cluster_options, "is_interactive", lambda: True)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _: "n")
    assert cli.edl("delete", "mnist") == 1
    assert cli.cluster.objects == before


def test_without_waiting_the_cluster_goes_on_alone(cli: CliHarness) -> None:
    cli.cluster.held = {"edl-mnist-master-abcde"}
    assert cli.edl("delete", "mnist", "--yes", "--no-wait") == 0
    assert cli.out.endswith(": edl list\n")
    assert cli.cluster.objects_of_kind(JOBS) == []


def test_a_dead_node_s_pod_is_named_while_it_is_waited_for(cli: CliHarness) -> None:
    pod = "edl-mnist-master-abcde"
    cli.cluster.held = {pod}
    cli.cluster.node("n1", ready="Unknown")
    real_request = cli.cluster.request
    looks = iter([0.0] * 20 + [36.0] + [0.0] * 100)

    def later(*args: object, **options: object) -> object:
        cli.cluster.now += next(looks)
        return real_request(*args, **options)

    cli.cluster.request = later
    assert cli.edl("delete", "mnist", "--yes") == 0
    assert not missing_keys(cli.err, "1 Pod", pod)
    assert cli.cluster.labelled() == []


def test_a_missing_right_is_named(cli: CliHarness) -> None:
    cli.cluster.deny("delete", JOBS)
    assert cli.edl("delete", "mnist", "--yes") == 2
    assert not missing_keys(cli.err, "delete", "jobs", "team")


def another(cli: CliHarness, name: str, ended: str = "") -> None:
    """One more job, like `mnist` under another name; ended as Kubernetes says it."""
    (job, *_) = cli.cluster.objects_of_kind(JOBS)
    labels = names.object_labels(name, Role.MASTER)
    status = {"conditions": [{"type": ended, "status": "True"}]} if ended else {}
    cli.cluster.put({**job, "metadata": {"name": names.master_name(name), "labels": labels}, "status": status})


def jobs_left(cli: CliHarness) -> list[str]:
    return sorted(job["metadata"]["labels"][names.JOB_LABEL] for job in cli.cluster.objects_of_kind(JOBS))


def test_several_jobs_are_removed_at_once(cli: CliHarness) -> None:
    for name in ("a", "b", "c"):
        another(cli, name)
    assert cli.edl("delete", "a", "b", "a", "--yes") == 0
    assert jobs_left(cli) == ["c", "mnist"]
    deleted = [line for line in cli.out.splitlines() if not missing_keys(line, "deleted", "0 s")]
    assert [not missing_keys(line, name) for line, name in zip(deleted, "ab", strict=True)] == [True, True]


def test_one_wrong_name_of_several_deletes_nothing(cli: CliHarness) -> None:
    another(cli, "a")
    assert cli.edl("delete", "a", "nosuch", "--yes") == 2
    assert "nosuch" in cli.err
    assert jobs_left(cli) == ["a", "mnist"]


def test_all_jobs_of_a_phase_are_removed(cli: CliHarness) -> None:
    for name, ended in (("d1", "Complete"), ("d2", "Complete"), ("f", "Failed"), ("a", "")):
        another(cli, name, ended)
    assert cli.edl("delete", "--phase", "done", "--yes") == 0
    assert jobs_left(cli) == ["a", "f", "mnist"]
    assert cli.edl("delete", "--phase", "Done", "--phase", "Failed", "--yes") == 0
    assert jobs_left(cli) == ["a", "mnist"]
    assert cli.edl("delete", "--phase", "Done", "--yes") == 0
    assert not missing_keys(cli.out, "namespace team", "Done")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "phase"),
        (("mnist", "--phase", "Done"), "phase"),
        (("--phase", "Doen"), "phase Doen"),
    ],
)
def test_what_is_meant_must_be_clear(cli: CliHarness, options: tuple[str, ...], told: str) -> None:
    assert cli.edl("delete", *options, "--yes") == 2
    assert not missing_keys(cli.err, told)
    assert jobs_left(cli) == ["mnist"]
