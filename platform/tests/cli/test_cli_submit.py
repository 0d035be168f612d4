from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cli.cli_harness import Desk, desk_at
from support.in_memory_cluster import Manifest, when
from support.text_keys import missing_keys

from edl.api.events import RunStarted
from edl.api.status import Status
from edl.cli import options as cluster_options
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import NoResponseError, error_from_response
from edl.cluster.kubernetes.resource_kinds import JOBS, NODES, PODS, SECRETS
from edl.jobfile.published_status import PublishedStatus
from edl.ops import job_deletion

PRIORITIES = {"high": 1000, "low": 100}
NO_PROGRAM = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: exec: "edl-role": executable file not found in $PATH: unknown'
)
START_ERROR = {"exitCode": 128, "reason": "StartError", "message": NO_PROGRAM}
"""As containerd has it; see "program missing" in real_pods.json."""
RUN = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    monkeypatch.setattr(job_deletion, "DELETION_POLL_SECONDS", 0.0)
    desk = desk_at(tmp_path, monkeypatch, capsys)

    def prioritized(thing: Manifest) -> None:
        if thing["kind"] == "Pod":
            thing["spec"]["priority"] = PRIORITIES[thing["spec"]["priorityClassName"]]

    desk.cluster.admissions.append(prioritized)
    return desk


def paragraphs(text: str) -> list[str]:
    """The lines of a plan, each with those that continue it."""
    return [" ".join(each.split()) for each in re.split(r"\n(?! {4})", text)]


def waiting(reason: str, message: str) -> Manifest:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "edl", "state": state}]}


def test_the_plan_says_what_will_be_created_and_what_finds_room(desk: Desk) -> None:
    assert desk.submit("--dry-run=server") == 0
    assert not missing_keys(
        desk.out,
        *("mnist.model.custom_model", "namespace team", "context lab", "registry.example/edl-mnist:1"),
        *("edl-mnist-master", "edl-mnist-token", "edl-mnist-status", "edl-mnist-spec", "/data/edl", "files"),
        *("10.5 CPU, 10.5 GiB", "8 CPU, 32 GiB", "2 nodes", "2 of 4 workers"),
    )
    rows = [line.split() for line in desk.out.splitlines()]
    assert [row for row in rows if row[:1] in (["master"], ["ps"], ["worker"])] == [
        ["master", "1", "high", "0.5", "CPU,", "512", "MiB", "1"],
        ["ps", "2", "high", "1", "CPU,", "1", "GiB", "2"],
        ["worker", "1-4", "low", "2", "CPU,", "2", "GiB", "2"],
    ]
    assert desk.cluster.created == []


def test_a_started_job_ends_with_what_to_do_next(desk: Desk) -> None:
    assert desk.submit("--yes", "-n", "team") == 0
    *_, watch, logs, remove = desk.out.splitlines()
    assert watch.endswith(" edl status mnist -n team")
    assert logs.endswith(" edl logs mnist -n team -f")
    assert remove.endswith(" edl delete mnist -n team")
    assert [name for _, name in desk.cluster.created] == [
        "edl-mnist-master",
        "edl-mnist-spec",
        "edl-mnist-status",
        "edl-mnist-token",
        "edl-mnist-master",
    ]
    token = desk.cluster.of(SECRETS)[0]["stringData"][names.TOKEN_KEY]
    assert len(token) == 64
    assert token not in desk.out


def test_a_job_for_which_no_node_is_meant_is_told_so_once(desk: Desk) -> None:
    assert desk.submit("--dry-run=server", "--set", "pod.node_selector.disk=none") == 0
    (warning,) = [line for line in paragraphs(desk.out) if line.startswith("warning: ")]
    assert not missing_keys(warning, "master", "2 parameter servers", "4 workers", "node selector")


def test_a_job_that_can_never_start_on_todays_nodes_is_warned_of(desk: Desk) -> None:
    assert desk.submit("--dry-run=server", "--set", "workers.resources.cpu=64") == 0
    text = " ".join(desk.out.split())
    assert "warning: " in text
    assert not missing_keys(text, "4 workers", "never", "64 CPU")
    assert "2 of 4 workers" not in text
    assert desk.submit("--dry-run=server", "--set", "workers.resources.gpu=1") == 0
    assert not missing_keys(desk.out, "never", "1 nvidia.com/gpu", "0 nvidia.com/gpu")


def test_a_full_cluster_with_pods_of_lower_priority_is_warned_of(desk: Desk) -> None:
    tenant = {
        "kind": "Pod",
        "metadata": {"name": "idle", "namespace": "others"},
        "spec": {"nodeName": "n1", "priority": 1, "containers": [{"resources": {"requests": {"cpu": "3"}}}]},
    }
    desk.cluster.put(tenant)
    desk.cluster.objects.pop(("nodes", "", "n2"))
    assert desk.submit("--dry-run=server") == 0
    assert not missing_keys(desk.out, "warning", "wait", "capacity", "preempts", "lower priority")
    assert "others/idle" not in desk.out
    assert desk.submit("--dry-run=server", "--json") == 0
    (plan,) = desk.events()
    assert [(pods["role"], pods["at_once"], pods["may_preempt"]) for pods in plan["pods"]] == [
        ("master", 1, False),
        ("ps", 0, True),
        ("worker", 0, True),
    ]


def test_without_the_right_to_see_nodes_the_plan_says_so_and_compares_with_the_quota(desk: Desk) -> None:
    desk.cluster.deny("list", NODES)
    hard = {"requests.cpu": "6", "pods": "20"}
    status = {"hard": hard, "used": {"requests.cpu": "1", "pods": "1"}}
    desk.cluster.put({"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}, "status": status})
    assert desk.submit("--dry-run=server") == 0
    assert not missing_keys(desk.out, "unknown", "nodes", "quota", "5 CPU of 6 CPU", "19 pods of 20 pods")
    assert not missing_keys(desk.out.partition("warning: ")[2], "3 of 4 workers", "quota q", "requests.cpu")
    assert "at once" not in desk.out


def test_a_quota_without_room_for_one_worker_refuses_the_job(desk: Desk) -> None:
    hard = {"requests.cpu": "3"}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": {}}}
    desk.cluster.put({"kind": "ResourceQuota", **quota})
    assert desk.submit("--yes") == 2
    assert not missing_keys(desk.err, "quota q", "requests.cpu", "3 CPU", "4.5 CPU")
    assert desk.cluster.created == []


def test_a_quota_with_room_for_half_a_job_says_what_the_whole_needs(desk: Desk) -> None:
    hard = {"pods": "2"}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": {"pods": "0"}}}
    desk.cluster.put({"kind": "ResourceQuota", **quota})
    assert desk.submit("--yes") == 2
    assert not missing_keys(desk.err, "quota q", "2 pods", "4 pods", "master, 2 ps, 1 worker")
    assert desk.err.count("quota q") == 1


def test_who_cannot_be_asked_must_say_yes_beforehand(desk: Desk) -> None:
    assert desk.submit() == 2
    assert not missing_keys(desk.err, "edl submit", "terminal", "--yes")
    assert desk.submit("--json") == 2
    assert desk.cluster.created == []


@pytest.mark.parametrize(("answer", "code", "jobs"), [("\n", 0, 1), ("y\n", 0, 1), ("n\n", 1, 0)])
def test_enter_means_yes(desk: Desk, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, jobs: int) -> None:
    monkeypatch.setattr(cluster_options, "is_interactive", lambda: True)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _: answer.strip())
    assert desk.submit() == code
    assert len(desk.cluster.of(JOBS)) == jobs


def test_mistakes_of_the_file_are_told_at_once_and_no_cluster_is_asked(desk: Desk) -> None:
    desk.cluster.breaks["GET", PODS.plural] = AssertionError("asked")
    assert desk.submit("--set", "image=null", "--set", "data.training=here") == 2
    assert not missing_keys(desk.err, "image", "data.training", "found 'here'", "absolute")
    assert desk.submit("--set", f"name={'x' * 41}") == 2
    assert not missing_keys(desk.err, "name", "x" * 41, "40")


def test_a_refusal_ends_with_code_2_and_nothing_created(desk: Desk) -> None:
    desk.cluster.admissions.append(
        lambda thing: 'violates PodSecurity "restricted:latest"' if thing["kind"] == "Pod" else None
    )
    assert desk.submit("--yes") == 2
    assert not missing_keys(desk.err, "master", "ps", "worker", "violates PodSecurity")
    assert desk.out == ""
    assert desk.cluster.created == []


def test_a_cluster_that_does_not_answer_is_one_clear_message(desk: Desk) -> None:
    desk.cluster.breaks["GET", PODS.plural] = NoResponseError(
        "The API server does not answer", hint="Is the cluster up?"
    )
    assert desk.submit("--yes") == 2
    assert desk.err == "The API server does not answer\n  Is the cluster up?\n"


def test_no_cluster_is_one_clear_message(desk: Desk) -> None:
    """In a process of its own: the client reads KUBECONFIG when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    environment["KUBECONFIG"] = str(desk.folder / "none")
    code = "from edl.cli.app import main; main(['submit', 'job.yaml', '--yes'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=desk.folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert not missing_keys(done.stderr, "kubeconfig", str(desk.folder / "none"), "KUBECONFIG", "kubectl cluster-info")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "registry.example/edl-mnist:1"'),
            ("ImagePullBackOff", 'Back-off pulling image "registry.example/edl-mnist:1"', "pod.image_pull_secrets"),
        ),
        (
            waiting("CreateContainerError", 'exec: "edl-role": executable file not found in $PATH'),
            ("CreateContainerError", 'exec: "edl-role": executable file not found in $PATH', "edl zoo build"),
        ),
        (
            {"phase": "Running", "containerStatuses": [{"name": "edl", "state": {"terminated": START_ERROR}}]},
            ("StartError", "exit code 128", NO_PROGRAM, "edl zoo build"),
        ),
        (
            {
                **waiting("PodInitializing", ""),
                "initContainerStatuses": [
                    {"name": "fetch", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
                ],
            },
            ("init container fetch", "ImagePullBackOff", "no such image", "pod.overrides"),
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "name": "edl",
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {
                            "terminated": {
                                "exitCode": 2,
                                "reason": "Error",
                                "message": "edl-role: uid 1000 cannot write /data/edl\n  chown it\n",
                            }
                        },
                    }
                ],
            },
            ("exit code 2", "edl-role: uid 1000 cannot write /data/edl chown it"),
        ),
    ],
)
def test_a_master_that_cannot_start_is_quoted_and_everything_removed(
    desk: Desk, status: Manifest, told: tuple[str, ...]
) -> None:
    desk.cluster.master = status
    assert desk.submit("--yes") == 1
    assert not missing_keys(desk.err, "mnist", "master", "removed", *told)
    assert desk.cluster.labelled() == []


def test_a_job_that_can_neither_start_nor_go_says_both(desk: Desk) -> None:
    desk.cluster.master = waiting("ImagePullBackOff", "no such image")
    desk.cluster.deny("delete", JOBS)
    assert desk.submit("--yes") == 1
    assert not missing_keys(desk.err, "ImagePullBackOff", "no such image", "removed")
    assert desk.err.endswith(": edl delete mnist\n")


def test_a_pending_master_ends_with_the_reason_and_edl_why(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: full."}
    desk.cluster.master = {"phase": "Pending", "conditions": [condition]}
    monkeypatch.setattr("edl.ops.job_submission.START_TIMEOUT_SECONDS", 0.0)
    assert desk.submit("--yes") == 0
    assert not missing_keys(
        desk.out, "0 s", "edl-mnist-master-abcde", "Unschedulable: 0/2 nodes: full.", "edl why mnist"
    )
    assert len(desk.cluster.of(JOBS)) == 1


def test_programs_read_one_object_a_line(desk: Desk) -> None:
    assert desk.submit("--yes", "--json") == 0
    plan, submitted, started = desk.events()
    assert [plan["event"], submitted["event"], started["event"]] == ["plan", "submitted", "started"]
    assert [(pods["role"], pods["count"], pods["at_once"]) for pods in plan["pods"]] == [
        ("master", 1, 1),
        ("ps", 2, 2),
        ("worker", 4, 2),
    ]
    assert plan["free"] == {"cpu": 8, "memory": 32 << 30}
    assert submitted["uid"] == desk.cluster.of(JOBS)[0]["metadata"]["uid"]
    assert started["stage"] == "serving"


def test_programs_read_why_it_was_refused_or_failed(desk: Desk) -> None:
    assert desk.submit("--yes", "--json", "--set", "data.training=here") == 2
    (refused,) = desk.events()
    assert (refused["event"], refused["exit_code"]) == ("refused", 2)
    assert "data.training: found 'here'" in refused["message"]
    assert "data.training: found 'here'" in desk.err
    desk.cluster.master = waiting("ImagePullBackOff", "no such image")
    assert desk.submit("--yes", "--json") == 1
    failed = desk.events()[-1]
    assert (failed["event"], failed["where"], failed["exit_code"]) == ("failed", "mnist", 1)
    assert not missing_keys(failed["message"], "ImagePullBackOff", "no such image")
    assert not missing_keys(failed["hint"], "removed")


@pytest.mark.parametrize("args", [("job.yaml", "--resume", "nosuchrun"), ("--resume", "nosuchrun", "job.yaml")])
def test_a_word_after_resume_is_a_run_though_there_can_be_none(desk: Desk, args: tuple[str, ...]) -> None:
    assert desk.edl("submit", *args, "--yes") == 2
    assert not missing_keys(desk.err, "'nosuchrun'", "uid")
    assert desk.cluster.created == []


def test_a_job_file_after_resume_is_no_run(desk: Desk) -> None:
    assert desk.edl("submit", "--resume", "missing.yaml", "--yes") == 2
    assert "missing.yaml: no such file" in desk.err


def test_a_name_that_is_taken_creates_nothing(desk: Desk) -> None:
    assert desk.submit("--yes") == 0
    before = dict(desk.cluster.objects)
    assert desk.submit("--yes") == 2
    since = when(desk.cluster.now).replace("T", " ").replace("Z", " UTC")
    assert not missing_keys(desk.err, "mnist", "taken", since)
    assert desk.cluster.objects == before


@pytest.mark.parametrize(("option", "run"), [(["--resume"], "latest"), (["--resume", RUN], RUN)])
def test_an_ended_job_is_replaced_when_it_goes_on(desk: Desk, option: list[str], run: str) -> None:
    assert desk.submit("--yes") == 0
    (old,) = desk.cluster.of(JOBS)
    old["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert desk.edl("submit", *option, "job.yaml", "--yes") == 0
    (new,) = desk.cluster.of(JOBS)
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert new["metadata"]["annotations"][names.RUN_ANNOTATION] == run
    assert new["spec"]["template"]["metadata"]["annotations"][names.RUN_ANNOTATION] == run
    assert not missing_keys(desk.out, "removes", "2027-01-15 08:00:00 UTC", "removed")


TOLD = Status(
    job="mnist", run=RUN, run_dir=f"/data/edl/team/mnist/{RUN}", phase="Training", updated=1.0,
    records_total=200, records_done=69,
)  # fmt: skip


def ended(desk: Desk, phase: str, given: Sequence[str] = (), **told: int) -> None:
    """Have the run RUN of a job submitted with the options ``given``, which has ended."""
    desk.cluster.published = PublishedStatus(replace(TOLD, phase=phase, **told)).to_configmap_data()  # type: ignore[arg-type]
    assert desk.submit("--yes", *given) == 0
    (old,) = desk.cluster.of(JOBS)
    old["status"] = {"conditions": [{"type": "Complete" if phase == "Done" else "Failed", "status": "True"}]}


@pytest.mark.parametrize("run", [[], [RUN]])
def test_what_the_new_master_would_refuse_is_refused_before_anything_is_removed(desk: Desk, run: list[str]) -> None:
    ended(desk, "Interrupted")
    before = dict(desk.cluster.objects)
    assert desk.submit("--yes", "--set", "train.minibatch_size=7", "--resume", *run) == 2
    assert not missing_keys(desk.err, RUN, "train.minibatch_size", "64", "7")
    assert desk.cluster.objects == before


CHANGES = (("train.epochs", "1", "5"), ("workers.max", "4", "3"))


def test_what_changes_about_a_run_is_in_the_plan_before_the_question(desk: Desk) -> None:
    ended(desk, "Interrupted")
    given = ("--resume", "--set", "train.epochs=5", "--set", "workers.max=3")
    assert desk.submit("--dry-run=server", *given) == 0
    changed = [line for line in desk.out.splitlines() if line.split()[:1] == ["changed"]]
    assert [missing_keys(line, *keys) for line, keys in zip(changed, CHANGES, strict=True)] == [[], []]
    assert desk.submit("--dry-run=server", "--json", *given) == 0
    told = desk.events()[0]["changes"]
    assert [missing_keys(change, *keys) for change, keys in zip(told, CHANGES, strict=True)] == [[], []]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("train.epochs=5", ("train.epochs", "5", "epoch 7")),
        ("train.max_steps=30", ("train.max_steps", "step 30")),
    ],
)
def test_a_change_that_ends_a_run_at_once_is_told_as_such(desk: Desk, setting: str, told: tuple[str, ...]) -> None:
    ended(desk, "Interrupted", epoch=7, epochs=9, step=30, given=["--set", "train.epochs=9"])
    assert desk.submit("--dry-run=server", "--resume", "--set", "train.epochs=9") == 0
    assert "warning: train." not in desk.out
    assert desk.submit("--dry-run=server", "--resume", "--set", "train.epochs=9", "--set", setting) == 0
    assert not missing_keys(
        desk.out.partition("warning: train.")[2], RUN, *(key.removeprefix("train.") for key in told)
    )


def test_a_run_that_is_done_is_not_removed_for_nothing(desk: Desk) -> None:
    ended(desk, "Done")
    before = dict(desk.cluster.objects)
    assert desk.submit("--yes", "--resume") == 2
    assert not missing_keys(desk.err, RUN, "done")
    assert desk.cluster.objects == before


def test_which_run_goes_on_how_far_it_is_and_what_has_changed_is_told(desk: Desk) -> None:
    ended(desk, "Interrupted")
    start = RunStarted(RUN, TOLD.run_dir, resumed=True, changes=("workers.max was 4, is 3",), time=2.0)
    desk.cluster.published = PublishedStatus(TOLD, (RunStarted(RUN, TOLD.run_dir, time=1.0), start)).to_configmap_data()
    assert desk.submit("--yes", "--set", "workers.max=3", "--resume") == 0
    assert not missing_keys(desk.out, f"run {RUN}", "34 %", "workers.max was 4, is 3")
    (old,) = desk.cluster.of(JOBS)
    old["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert desk.submit("--yes", "--json", "--resume") == 0
    (told,) = [event for event in desk.events() if event["event"] == "resumed"]
    assert (told["run"], told["records_done"], told["changes"]) == (RUN, 69, ["workers.max was 4, is 3"])


def test_a_job_that_runs_is_not_resumed(desk: Desk) -> None:
    assert desk.submit("--yes") == 0
    assert desk.submit("--yes", "--resume") == 2
    assert not missing_keys(desk.err, "mnist", "which is active")


def test_a_run_without_a_volume_cannot_go_on(desk: Desk) -> None:
    assert desk.submit("--resume", "--set", "volumes=[]", "--set", "data.training=[s3://bucket/train]") == 2
    assert not missing_keys(desk.err, "--resume", "volume")


def test_a_job_without_a_volume_is_told_what_that_costs(desk: Desk) -> None:
    assert desk.submit("--dry-run=client", "--set", "volumes=[]", "--set", "data.training=[s3://bucket/train]") == 0
    assert not missing_keys(desk.out, "storage", "none", "no checkpoint")
    *plan, command = desk.out.splitlines()
    assert all(len(line) <= 80 for line in plan)
    assert command.endswith("edl render job.yaml --set 'volumes=[]' --set 'data.training=[s3://bucket/train]'")


def test_a_dry_run_of_the_client_asks_nobody_and_imports_no_client(desk: Desk) -> None:
    code = (
        "import atexit, sys\n"
        "loaded = ('kubernetes', 'urllib3', 'tensorflow', 'numpy', 'grpc', 'rich')\n"
        "atexit.register(lambda: print([name for name in loaded if name in sys.modules], file=sys.stderr))\n"
        "from edl.cli.app import main\n"
        "main(['submit', 'job.yaml', '--dry-run=client', '--json'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=desk.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["free"], plan["requested"]) == (None, {"cpu": 10.5, "memory": 21 << 29})
    assert done.stderr.splitlines()[-1] == "[]"
    assert desk.submit("--dry-run=client") == 0
    assert desk.out.endswith(" edl render job.yaml\n")


def test_the_command_that_is_offered_next_has_the_settings_of_this_one(desk: Desk) -> None:
    given = ["--set", "image=a/b:1", "--set", "pod.env.GREETING=good day", "-n", "team", "--context", "lab"]
    assert desk.submit("--dry-run=client", *given) == 0
    asked = "edl render job.yaml --set image=a/b:1 --set 'pod.env.GREETING=good day' -n team"
    assert f" {asked}\n" in desk.out
    assert desk.edl(*shlex.split(asked)[1:]) == 0
    assert "good day" in desk.out
    assert desk.submit("--dry-run=client", "--resume", RUN) == 0
    assert f"edl render job.yaml --resume {RUN}\n" in desk.out


@pytest.mark.parametrize("code", [429, 409, 500, 503])
def test_a_server_in_trouble_before_anything_is_created_ends_with_code_2(desk: Desk, code: int) -> None:
    desk.cluster.breaks["GET", PODS.plural] = error_from_response(code, b'{"message": "in trouble"}', where="GET")
    assert desk.submit("--yes", "--json") == 2
    assert [(event["event"], event["exit_code"]) for event in desk.events()] == [("refused", 2)]
    assert desk.cluster.created == []


def test_a_server_in_trouble_once_the_master_was_asked_for_ends_with_code_1(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise error_from_response(503, b'{"message": "in trouble"}', where="GET")

    monkeypatch.setattr("edl.cli.submission_workflow.report_resumed", refused)
    assert desk.submit("--yes", "--resume") == 1
    assert not missing_keys(desk.err, "in trouble", "continues", "edl status mnist")
    assert len(desk.cluster.of(JOBS)) == 1


def test_ctrl_c_before_the_master_started_leaves_the_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edl.ops.job_submission.MasterStatusReader.read_status", interrupted)
    assert desk.submit("--yes") == 130
    assert not missing_keys(desk.out, "continues", "edl delete mnist")
    assert len(desk.cluster.of(JOBS)) == 1
