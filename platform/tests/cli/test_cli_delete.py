from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_harness import Desk, desk_at
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
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    monkeypatch.setattr(job_deletion, "DELETION_POLL_SECONDS", 0.0)
    desk = desk_at(tmp_path, monkeypatch, capsys)
    assert desk.submit("--yes") == 0
    return desk


def worker(index: int) -> Manifest:
    meta = {
        "name": names.pod_name("mnist", Role.WORKER, index),
        "labels": names.object_labels("mnist", Role.WORKER, index),
    }
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n1"}, "status": {}}


def test_a_job_is_removed_with_all_that_has_its_label(desk: Desk) -> None:
    desk.cluster.put(worker(0))
    training = Status("mnist", "run", "/data/run", "Training", 1.0)
    desk.cluster.published.update(PublishedStatus(training).to_configmap_data())
    assert desk.edl("delete", "mnist", "--yes") == 0
    assert not missing_keys(desk.out, "mnist", "Training", "2027-01-15 08:00:00 UTC", "lost", "edl stop")
    assert not missing_keys(desk.out, "2 Pods, 1 Job, 2 ConfigMaps, 1 Service, 1 Secret")
    assert not missing_keys(desk.out.splitlines()[-1], "mnist", "gone", "0 s")
    assert not missing_keys(desk.err, "2 Pods, 1 Job")
    assert desk.cluster.labelled() == []


def test_an_ended_job_loses_nothing(desk: Desk) -> None:
    (job,) = desk.cluster.of(JOBS)
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert desk.edl("delete", "mnist", "--yes") == 0
    assert desk.out.startswith("mnist: Done, submitted")
    assert missing_keys(desk.out, "lost", "edl stop") == ["lost", "edl stop"]


def test_what_is_left_of_a_job_that_is_gone_is_removed(desk: Desk) -> None:
    assert desk.edl("delete", "mnist", "--yes") == 0
    desk.cluster.put(worker(3))
    assert desk.edl("delete", "mnist", "--yes") == 0
    first, left_over, *_ = desk.out.splitlines()
    assert (missing_keys(first, "mnist", "gone"), left_over) == ([], "  1 Pod")
    assert desk.cluster.labelled() == []


def test_a_token_that_is_left_is_removed_by_somebody_who_may_not_look(desk: Desk) -> None:
    """What is left of `edl render | kubectl create` after `kubectl delete job`."""
    (token,) = desk.cluster.of(SECRETS)
    assert desk.edl("delete", "mnist", "--yes") == 0
    desk.cluster.put({**token, "metadata": {"name": token["metadata"]["name"], "labels": names.object_labels("mnist")}})
    desk.cluster.deny("list", SECRETS)
    desk.cluster.deny("get", SECRETS)
    assert desk.edl("delete", "mnist") == 2, "not without being asked"
    assert desk.cluster.labelled() == ["Secret edl-mnist-token"]
    assert desk.edl("delete", "mnist", "--yes") == 0
    first, left_over, *_ = desk.out.splitlines()
    assert (missing_keys(first, "mnist", "gone"), left_over) == ([], "  1 Secret")
    assert desk.cluster.labelled() == []
    assert desk.edl("delete", "mnist", "--yes") == 2


def test_a_job_that_is_not_there_is_bad_input(desk: Desk) -> None:
    assert desk.edl("delete", "minst", "--yes") == 2
    assert not missing_keys(desk.err, "minst", "namespace team", "mnist")
    assert desk.cluster.labelled() != []


def test_nothing_is_deleted_unasked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(desk.cluster.objects)
    assert desk.edl("delete", "mnist") == 2
    monkeypatch.setattr(cluster_options, "is_interactive", lambda: True)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _: "n")
    assert desk.edl("delete", "mnist") == 1
    assert desk.cluster.objects == before


def test_without_waiting_the_cluster_goes_on_alone(desk: Desk) -> None:
    desk.cluster.held = {"edl-mnist-master-abcde"}
    assert desk.edl("delete", "mnist", "--yes", "--no-wait") == 0
    assert desk.out.endswith(": edl list\n")
    assert desk.cluster.of(JOBS) == []


def test_a_dead_node_s_pod_is_named_while_it_is_waited_for(desk: Desk) -> None:
    pod = "edl-mnist-master-abcde"
    desk.cluster.held = {pod}
    desk.cluster.node("n1", ready="Unknown")
    told = desk.cluster.request
    looks = iter([0.0] * 20 + [36.0] + [0.0] * 100)

    def later(*args: object, **options: object) -> object:
        desk.cluster.now += next(looks)
        return told(*args, **options)

    desk.cluster.request = later
    assert desk.edl("delete", "mnist", "--yes") == 0
    assert not missing_keys(desk.err, "1 Pod", pod)
    assert desk.cluster.labelled() == []


def test_a_missing_right_is_named(desk: Desk) -> None:
    desk.cluster.deny("delete", JOBS)
    assert desk.edl("delete", "mnist", "--yes") == 2
    assert not missing_keys(desk.err, "delete", "jobs", "team")


def another(desk: Desk, name: str, ended: str = "") -> None:
    """One more job, that of the desk under another name; ended as Kubernetes says it."""
    (job, *_) = desk.cluster.of(JOBS)
    labels = names.object_labels(name, Role.MASTER)
    status = {"conditions": [{"type": ended, "status": "True"}]} if ended else {}
    desk.cluster.put({**job, "metadata": {"name": names.master_name(name), "labels": labels}, "status": status})


def left(desk: Desk) -> list[str]:
    return sorted(job["metadata"]["labels"][names.JOB_LABEL] for job in desk.cluster.of(JOBS))


def test_several_jobs_are_removed_at_once(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        another(desk, name)
    assert desk.edl("delete", "a", "b", "a", "--yes") == 0
    assert left(desk) == ["c", "mnist"]
    gone = [line for line in desk.out.splitlines() if not missing_keys(line, "gone", "0 s")]
    assert [not missing_keys(line, name) for line, name in zip(gone, "ab", strict=True)] == [True, True]


def test_one_wrong_name_of_several_deletes_nothing(desk: Desk) -> None:
    another(desk, "a")
    assert desk.edl("delete", "a", "nosuch", "--yes") == 2
    assert "nosuch" in desk.err
    assert left(desk) == ["a", "mnist"]


def test_all_jobs_of_a_phase_are_removed(desk: Desk) -> None:
    for name, ended in (("d1", "Complete"), ("d2", "Complete"), ("f", "Failed"), ("a", "")):
        another(desk, name, ended)
    assert desk.edl("delete", "--phase", "done", "--yes") == 0
    assert left(desk) == ["a", "f", "mnist"]
    assert desk.edl("delete", "--phase", "Done", "--phase", "Failed", "--yes") == 0
    assert left(desk) == ["a", "mnist"]
    assert desk.edl("delete", "--phase", "Done", "--yes") == 0
    assert not missing_keys(desk.out, "namespace team", "Done")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "phase"),
        (("mnist", "--phase", "Done"), "phase"),
        (("--phase", "Doen"), "phase Doen"),
    ],
)
def test_what_is_meant_must_be_clear(desk: Desk, options: tuple[str, ...], told: str) -> None:
    assert desk.edl("delete", *options, "--yes") == 2
    assert not missing_keys(desk.err, told)
    assert left(desk) == ["mnist"]
