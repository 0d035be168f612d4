"""The submitter of a release, from the start of its pod to its exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import JOB
from cli.submitter_harness import (
    COMPLETE,
    RELEASE,
    SUMMARY,
    PodKilled,
    SubmitterHarness,
    T,
    ended_status,
    make_submitter_harness,
)
from support.in_memory_cluster import Manifest
from support.repetition import repetition
from support.text_keys import missing_keys

from edl.api.run_events import JobEnded, RunStarted
from edl.api.status import Status
from edl.cli.submitter import MASTER_END_SECONDS
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import NoResponseError, QuotaExceededError, ServerBusyError, error_from_response
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, PODS, SECRETS, SERVICES, VOLUME_CLAIMS
from edl.jobfile.published_status import PublishedStatus
from edl.ops import job_following

INSTANCE = "app.kubernetes.io/instance"
REQUESTS = 60
"""More than a submitter sends until it follows; a number beyond them is never reached."""


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SubmitterHarness:
    return make_submitter_harness(tmp_path, monkeypatch, capsys)


def raises(error: BaseException) -> Any:
    def do() -> None:
        raise error

    return do


def by_hand(harness: SubmitterHarness, job: str = "mnist", **spec: Any) -> Manifest:
    """A job that ``edl submit`` made; its name may be that of a release."""
    labels = names.object_labels(job, None) | {names.ROLE_LABEL: "master", INSTANCE: RELEASE}
    meta = {"name": names.master_name(job), "labels": labels}
    return harness.cluster.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})


# ---------------------------------------------------------------------- a release


def test_a_release_ends_as_its_job(harness: SubmitterHarness) -> None:
    harness.install()
    assert harness.pod() == 0
    (job,) = harness.masters()
    assert job["metadata"]["labels"][INSTANCE] == RELEASE
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "Job",
        "submitter-a",
        False,
        False,
    )
    assert not job["spec"]["suspend"]
    assert not missing_keys(
        harness.out, "release train", "Job mnist", "namespace team", "Done after 8 s", "100 of 100 records"
    )
    assert harness.out.endswith(": helm uninstall train -n team\n")


def test_a_release_ends_after_its_master_has(harness: SubmitterHarness) -> None:
    """A CronJob that keeps no history removes the master with the submitter, in the middle of what it puts away."""
    harness.cluster.conditions = []
    harness.time.at(7, lambda: harness.cluster.put(harness.masters()[0] | {"status": {"conditions": [COMPLETE]}}))
    harness.install()
    assert harness.pod() == 0
    assert 7 <= harness.time.now < 9


def test_a_master_that_never_ends_does_not_hold_its_release(harness: SubmitterHarness) -> None:
    harness.cluster.conditions = []
    harness.install()
    assert harness.pod() == 0
    assert harness.time.now < MASTER_END_SECONDS + 2


@pytest.mark.parametrize(
    ("pages", "code"),
    [
        (ended_status("Failed", "every worker crashed"), 1),
        (ended_status("Failed", "no such column", kind="input"), 2),
        (ended_status("Interrupted", "edl stop"), 1),
    ],
)
def test_a_failing_job_fails_the_release_and_a_new_pod_does_too(
    harness: SubmitterHarness, pages: dict[str, str], code: int
) -> None:
    harness.install()
    harness.cluster.published = pages
    assert harness.pod() == code
    assert harness.pod() == code
    assert harness.made() == ["edl-mnist-master"]


def test_uninstalling_leaves_nothing_of_the_job(harness: SubmitterHarness) -> None:
    harness.install()
    harness.pod()
    harness.uninstall()
    assert harness.cluster.labelled() == []


def test_a_scientists_rights_are_enough(harness: SubmitterHarness) -> None:
    for verb in ("get", "list", "patch"):
        harness.cluster.deny(verb, SECRETS)
    harness.install()
    with harness.at_request(2, raises(PodKilled()), carried_out=True), pytest.raises(PodKilled):
        harness.pod()
    assert harness.pod() == 0


def test_a_schedule_has_a_job_for_each_date(harness: SubmitterHarness) -> None:
    cron = [{"kind": "CronJob", "uid": "c", "name": "train-submit", "controller": True}]
    for minutes in ("29371680", "29371740"):
        harness.install(minutes, ownerReferences=cron)
        assert harness.pod(minutes, EDL_SCHEDULED="true") == 0
    assert harness.made() == ["edl-mnist-29371680-master", "edl-mnist-29371740-master"]
    harness.uninstall("29371680")  # as the CronJob's history does
    (left,) = harness.masters()
    assert left["metadata"]["name"] == "edl-mnist-29371740-master"


def test_a_release_can_go_on_with_a_run(harness: SubmitterHarness) -> None:
    harness.install()
    assert harness.pod(EDL_RESUME="latest") == 0
    assert harness.masters()[0]["metadata"]["annotations"][names.RUN_ANNOTATION] == "latest"


def test_a_run_that_goes_on_is_followed_past_its_earlier_end(
    harness: SubmitterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master publishes what happened before it, too: the end that the run had then is not the end."""
    earlier = JobEnded("Interrupted", "edl stop", SUMMARY, time=T + 1)
    again = RunStarted("run", "/data/run", resumed=True, time=T + 2)
    trains = Status("mnist", "run", "/data/run", "Training", T + 3, records_total=100, records_done=50)
    events = (RunStarted("run", "/data/run", time=T), earlier, again)
    harness.cluster.published, harness.cluster.conditions = PublishedStatus(trains, events).to_configmap_data(), []

    def end() -> None:
        done = JobEnded("Done", "all records are done", SUMMARY, time=T + 9)
        pages = PublishedStatus(
            replace(trains, phase="Done", updated=T + 9), (*events, done), summary=SUMMARY
        ).to_configmap_data()
        next(page for page in harness.cluster.objects_of_kind(CONFIGMAPS) if "status.json" in page["data"])["data"] = (
            pages
        )

    harness.time.at(5, end)
    monkeypatch.setattr(
        job_following,
        "poll_repeatedly",
        partial(job_following.poll_repeatedly, clock=harness.time.clock, sleep=harness.time.sleep),
    )
    harness.install()
    assert harness.pod(EDL_RESUME="latest") == 0
    assert harness.time.now >= 5, "it did not wait for the end"
    assert not missing_keys(harness.out, "Done after 8 s", "100 of 100 records")


# ---------------------------------------------------------------------- killed and doubled


@pytest.mark.parametrize("carried_out", [False, True])
def test_killed_at_any_request_it_submits_once_and_to_the_end(harness: SubmitterHarness, carried_out: bool) -> None:
    number = 0
    while True:
        number += 1
        harness.cluster.created.clear()
        harness.install()
        with harness.at_request(number, raises(PodKilled()), carried_out=carried_out) as requests:
            try:
                assert harness.pod() == 0
            except PodKilled:
                assert harness.pod() == 0, f"killed at {requests[number - 1]}"
        assert harness.made() == ["edl-mnist-master"], f"killed at {requests[number - 1]}"
        assert not harness.masters()[0]["spec"]["suspend"]
        owned = [
            thing["metadata"]["name"]
            for kind in (CONFIGMAPS, SECRETS, SERVICES)
            for thing in harness.cluster.objects_of_kind(kind)
        ]
        assert len(owned) == 4
        harness.uninstall()
        if len(requests) < number:
            break
    assert 15 < number < REQUESTS


@pytest.mark.parametrize("carried_out", [repetition(False), True])
def test_two_pods_of_one_submitter_submit_once(harness: SubmitterHarness, carried_out: bool) -> None:
    """The second runs from its start to its end while the first waits for an answer."""
    for number in range(1, REQUESTS):
        harness.cluster.created.clear()
        harness.install()
        codes: list[int] = []
        with harness.at_request(number, lambda: codes.append(harness.pod()), carried_out=carried_out) as requests:  # noqa: B023
            codes.append(harness.pod())
        assert set(codes) == {0}
        assert harness.made() == ["edl-mnist-master"]
        assert len(harness.cluster.objects_of_kind(PODS)) == 1
        harness.uninstall()
        if len(requests) < number:
            break


def test_what_somebody_deleted_is_not_submitted_again(harness: SubmitterHarness) -> None:
    harness.install()
    harness.pod()
    harness.cluster.delete(JOBS, "edl-mnist-master")
    assert harness.pod() == 1
    assert not missing_keys(harness.err, "release train", "deleted")
    assert harness.made() == ["edl-mnist-master"]


def test_a_job_deleted_while_it_is_followed_fails_the_release(harness: SubmitterHarness) -> None:
    harness.install()
    harness.cluster.published = {}
    harness.hooks.append(_at_first_look(harness, lambda: harness.cluster.delete(JOBS, "edl-mnist-master")))
    assert harness.pod() == 1
    assert not missing_keys(harness.err, "deleted")


def _at_first_look(harness: SubmitterHarness, do: Any) -> Any:
    def hook(method: str, path: str) -> None:
        if method == "GET" and path.endswith("/jobs/edl-mnist-master"):
            harness.hooks.remove(hook)
            do()

    return hook


def test_a_job_that_somebody_suspended_stays_so(harness: SubmitterHarness) -> None:
    harness.install()
    harness.pod()
    harness.cluster.patch(JOBS, "edl-mnist-master", {"spec": {"suspend": True}})
    harness.pod()
    assert harness.masters()[0]["spec"]["suspend"]


# ---------------------------------------------------------------------- upgraded and replaced


def test_an_upgrade_removes_the_old_job_and_waits_for_its_pods(harness: SubmitterHarness) -> None:
    harness.install("a")
    harness.pod("a")
    (old,) = harness.masters()
    harness.cluster.held.add("edl-mnist-master-abcde")
    harness.install("b", 2, after=60)
    waited: list[bool] = []

    def go() -> None:
        waited.append(harness.made() == ["edl-mnist-master"])
        harness.cluster.delete(PODS, "edl-mnist-master-abcde", grace=0)

    harness.time.at(5, go)
    assert harness.pod("b") == 0
    assert waited == [True]
    assert not missing_keys(harness.out, "being removed", "1 Pod", "edl-mnist-master-abcde")
    (new,) = harness.masters()
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert new["metadata"]["ownerReferences"][0]["uid"] == "submitter-b"


def test_an_upgrade_may_change_the_name_of_the_job(harness: SubmitterHarness) -> None:
    harness.install("a")
    harness.pod("a")
    harness.source.write_text(harness.source.read_text().replace("name: mnist", "name: digits"))
    harness.install("b", 2, after=60)
    assert harness.pod("b") == 0
    assert [job["metadata"]["name"] for job in harness.masters()] == ["edl-digits-master"]


def test_helm_may_delete_the_old_submitter_first(harness: SubmitterHarness) -> None:
    harness.install("a")
    harness.pod("a")
    harness.cluster.held.add("edl-mnist-master-abcde")
    harness.uninstall("a")
    harness.install("b", 2, after=60)
    harness.time.at(3, lambda: harness.cluster.delete(PODS, "edl-mnist-master-abcde", grace=0))
    assert harness.pod("b") == 0
    assert not missing_keys(harness.out, "being removed", "edl-mnist-master-abcde")


def test_a_pod_that_does_not_go_is_a_matter_for_a_new_pod(harness: SubmitterHarness) -> None:
    harness.install("a")
    harness.pod("a")
    harness.cluster.held.add("edl-mnist-master-abcde")
    harness.install("b", 2, after=60)
    assert harness.pod("b") == 75
    assert "Pod edl-mnist-master-abcde" in harness.err
    assert harness.made() == ["edl-mnist-master"]


@pytest.mark.parametrize("carried_out", [False, repetition(True)])
def test_replaced_at_any_request_the_new_job_stays_untouched(harness: SubmitterHarness, carried_out: bool) -> None:
    """A newer submitter appears while the old one waits for an answer, and runs to its end meanwhile."""
    for number in range(1, REQUESTS):
        harness.cluster.objects = {key: each for key, each in harness.cluster.objects.items() if key[0] != "jobs"}
        harness.install("a")
        codes: list[int] = []
        after: list[Any] = []

        def replace_it(codes: list[int] = codes, after: list[Any] = after) -> None:
            harness.install("b", 2, after=60)
            codes.append(harness.pod("b"))
            after.append(harness.cluster.labelled())

        with harness.at_request(number, replace_it, carried_out=carried_out) as requests:
            code = harness.pod("a")
        where = f"replaced at {requests[min(number, len(requests)) - 1]}"
        if codes:
            assert codes == [0], where
            assert code == 0, where
            assert [job["metadata"]["ownerReferences"][0]["uid"] for job in harness.masters()] == ["submitter-b"], where
            assert harness.cluster.labelled() == after[0], where
            harness.uninstall("b")
        harness.uninstall("a")
        assert harness.cluster.labelled() == [], where
        if not codes:
            break


def test_uninstalled_while_it_follows_it_ends_quietly(harness: SubmitterHarness) -> None:
    harness.install()
    harness.cluster.published = {}
    harness.hooks.append(_at_first_look(harness, harness.uninstall))
    assert harness.pod() == 0
    assert not missing_keys(harness.out, "Job is gone")


# ---------------------------------------------------------------------- refused


def test_a_refusal_creates_nothing_and_is_final(harness: SubmitterHarness) -> None:
    harness.install()
    harness.cluster.delete(VOLUME_CLAIMS, "files")
    assert harness.pod() == 2
    assert not missing_keys(harness.err, "PersistentVolumeClaim files")
    assert harness.cluster.created == []


def test_a_refusal_that_passes_is_waited_out(harness: SubmitterHarness) -> None:
    """After an upgrade what goes counts in quotas a little longer."""
    full = QuotaExceededError("exceeded quota: team")
    harness.cluster.admissions.append(lambda thing: full.message if harness.time.now < 4 else None)
    harness.install()
    assert harness.pod() == 0
    assert harness.out.count("retrying") == 1


def test_a_name_that_is_taken_by_a_job_of_somebody_else(harness: SubmitterHarness) -> None:
    harness.install()
    other_job = by_hand(harness)
    assert harness.pod() == 2
    assert not missing_keys(harness.err, "mnist", "taken")
    assert harness.masters() == [other_job]


def test_what_cannot_be_completed_is_withdrawn(harness: SubmitterHarness) -> None:
    harness.install()
    real = harness.cluster.create

    def create(manifest: Manifest, **how: Any) -> Manifest:
        if manifest["kind"] == "Service" and not how.get("dry_run"):
            raise QuotaExceededError("exceeded quota: services", where="POST")
        return real(manifest, **how)

    harness.cluster.create = create  # type: ignore[method-assign]
    assert harness.pod() == 2
    assert "exceeded quota: services" in harness.err
    assert harness.cluster.labelled() == []


@pytest.mark.parametrize("error", [NoResponseError("no answer"), repetition(ServerBusyError("etcd leader changed"))])
@pytest.mark.parametrize("key", [("GET", "jobs"), ("POST", "jobs"), ("POST", "secrets"), ("PATCH", "jobs")])
def test_an_absence_is_waited_out_and_a_long_one_is_no_failure(
    harness: SubmitterHarness, key: tuple[str, str], error: NoResponseError | ServerBusyError
) -> None:
    harness.install()
    harness.cluster.breaks[key] = error
    assert harness.pod() == 75
    assert harness.time.now >= 120
    harness.time.at(harness.time.now + 30, harness.cluster.breaks.clear)
    assert harness.pod() == 0
    assert harness.made() == ["edl-mnist-master"]


def test_a_spec_with_a_mistake(harness: SubmitterHarness) -> None:
    harness.source.write_text("name: mnist\nmodle: {}\n")
    harness.install()
    assert harness.pod() == 2
    assert "modle" in harness.err


def test_without_a_cluster_or_a_job_it_says_so(harness: SubmitterHarness) -> None:
    harness.source.unlink()
    assert harness.pod() == 2
    assert str(harness.source) in harness.err


# ---------------------------------------------------------------------- a master that does not start


def failing(reason: str, code: int | None = None, message: str = "it says why") -> Manifest:
    if code is None:
        state: Manifest = {"waiting": {"reason": reason, "message": message}}
    else:
        state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "edl", "state": state}]}


@pytest.fixture
def starting_release(harness: SubmitterHarness, monkeypatch: pytest.MonkeyPatch) -> SubmitterHarness:
    """A release whose master has not published anything yet, in virtual time."""
    patient = partial(job_following.poll_repeatedly, clock=harness.time.clock, sleep=harness.time.sleep)
    monkeypatch.setattr(job_following, "poll_repeatedly", patient)
    harness.install()
    harness.cluster.published, harness.cluster.conditions = {}, []
    return harness


@pytest.mark.parametrize("state", [failing("ImagePullBackOff"), failing("Error", 2, "no module")])
def test_a_master_that_keeps_failing_to_start_fails_the_release(
    starting_release: SubmitterHarness, state: Manifest
) -> None:
    starting_release.cluster.master = state
    assert starting_release.pod() == 1
    assert not missing_keys(starting_release.err, "master", "start")
    assert starting_release.cluster.labelled() == []
    assert starting_release.time.now == 30


@pytest.mark.parametrize(
    "state", [failing("ImagePullBackOff"), failing("Error", 137), {"phase": "Failed", "reason": "Evicted"}]
)
def test_a_bad_moment_at_the_start_is_waited_out(starting_release: SubmitterHarness, state: Manifest) -> None:
    starting_release.cluster.master = state

    def recover() -> None:
        for page in starting_release.cluster.objects_of_kind(CONFIGMAPS):
            if page["metadata"]["name"] == "edl-mnist-status":
                page["data"] = ended_status()

    starting_release.time.at(20, recover)
    assert starting_release.pod() == 0


def test_an_eviction_never_fails_the_release(starting_release: SubmitterHarness) -> None:
    starting_release.cluster.master = {"phase": "Failed", "reason": "Evicted"}
    starting_release.time.at(1000, starting_release.uninstall)
    assert starting_release.pod() == 0
    assert starting_release.out.count("master failed") == 1


def test_a_right_that_is_lost_for_a_moment_is_missed_only_when_it_stays_away(
    starting_release: SubmitterHarness,
) -> None:
    """An API server that has just begun may refuse what it allows a moment later."""
    forbidden = error_from_response(
        403, b'{"message": "configmaps is forbidden: User \\"u\\" cannot get"}', where="GET"
    )
    starting_release.time.at(3, lambda: starting_release.cluster.breaks.update({("GET", "configmaps"): forbidden}))
    starting_release.time.at(9, starting_release.cluster.breaks.clear)
    starting_release.time.at(100, starting_release.uninstall)
    assert starting_release.pod() == 0
    starting_release.install()
    starting_release.time.at(
        starting_release.time.now + 3,
        lambda: starting_release.cluster.breaks.update({("GET", "configmaps"): forbidden}),
    )
    assert starting_release.pod() == 2
    assert [job["spec"]["suspend"] for job in starting_release.masters()] == [False]


# ---------------------------------------------------------------------- as a process


def process(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "edl.pod", "submit", *arguments]
    return subprocess.Popen(command, env=clean | variables, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def test_told_to_end_it_ends_at_once_also_while_the_server_is_silent(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{silent.getsockname()[1]}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        environment = {"EDL_RELEASE": RELEASE, "EDL_SUBMITTER_JOB": "j", "EDL_SUBMITTER_UID": "u"}
        with process(str(tmp_path / "job.yaml"), **environment, KUBECONFIG=str(tmp_path / "config")) as pod:
            connection, _ = silent.accept()
            pod.send_signal(signal.SIGTERM)
            _, output = pod.communicate()
            connection.close()
    assert (pod.returncode, output.count("\n"), missing_keys(output, "SIGTERM")) == (143, 1, [])


def test_without_a_release_it_is_edl_submit(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    with process(str(tmp_path / "job.yaml"), KUBECONFIG="/nowhere") as pod:
        _, output = pod.communicate()
    assert pod.returncode == 2
    assert not missing_keys(output, "kubeconfig", "/nowhere")


def test_the_submitter_is_light() -> None:
    code = (
        "import sys, edl.cli.submitter, edl.cli.submitter, edl.cluster.kubernetes.kubeconfig\n"
        "print([name for name in ('grpc', 'numpy', 'tensorflow', 'keras') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
