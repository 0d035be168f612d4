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
from cli.cli_harness import CliHarness, cli_in_job_folder
from support.in_memory_cluster import Manifest, when
from support.text_keys import missing_keys

from edl.api.run_events import RunStarted
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
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    monkeypatch.setattr(job_deletion, "DELETION_POLL_SECONDS", 0.0)
    cli = cli_in_job_folder(tmp_path, monkeypatch, capsys)

    def prioritized(thing: Manifest) -> None:
        if thing["kind"] == "Pod":
            thing["spec"]["priority"] = PRIORITIES[thing["spec"]["priorityClassName"]]

    cli.cluster.admissions.append(prioritized)
    return cli


def paragraphs(text: str) -> list[str]:
    """The lines of a plan, each with those that continue it."""
    return [" ".join(each.split()) for each in re.split(r"\n(?! {4})", text)]


def waiting(reason: str, message: str) -> Manifest:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "edl", "state": state}]}


def test_the_plan_says_what_will_be_created_and_what_finds_room(cli: CliHarness) -> None:
    assert cli.submit("--dry-run=server") == 0
    assert not missing_keys(
        cli.out,
        # The zoo is where pods have it, and not relative to the job file.
        *("mnist.model.custom_model from /model_zoo", "namespace team", "context lab", "registry.example/edl-mnist:1"),
        *("edl-mnist-master", "edl-mnist-token", "edl-mnist-status", "edl-mnist-spec", "/data/edl", "files"),
        *("10.5 CPU, 10.5 GiB", "8 CPU, 32 GiB", "2 nodes", "2 of 4 workers"),
    )
    rows = [line.split() for line in cli.out.splitlines()]
    assert [row for row in rows if row[:1] in (["master"], ["ps"], ["worker"])] == [
        ["master", "1", "high", "0.5", "CPU,", "512", "MiB", "1"],
        ["ps", "2", "high", "1", "CPU,", "1", "GiB", "2"],
        ["worker", "1-4", "low", "2", "CPU,", "2", "GiB", "2"],
    ]
    assert cli.cluster.created == []


def test_a_started_job_ends_with_what_to_do_next(cli: CliHarness) -> None:
    assert cli.submit("--yes", "-n", "team") == 0
    *_, watch, logs, remove = cli.out.splitlines()
    assert watch.endswith(" edl status mnist -n team")
    assert logs.endswith(" edl logs mnist -n team -f")
    assert remove.endswith(" edl delete mnist -n team")
    assert [name for _, name in cli.cluster.created] == [
        "edl-mnist-master",
        "edl-mnist-spec",
        "edl-mnist-status",
        "edl-mnist-token",
        "edl-mnist-master",
    ]
    token = cli.cluster.objects_of_kind(SECRETS)[0]["stringData"][names.TOKEN_KEY]
    assert len(token) == 64
    assert token not in cli.out


def test_a_job_for_which_no_node_is_meant_is_told_so_once(cli: CliHarness) -> None:
    assert cli.submit("--dry-run=server", "--set", "pod.node_selector.disk=none") == 0
    (warning,) = [line for line in paragraphs(cli.out) if line.startswith("warning: ")]
    assert not missing_keys(warning, "master", "2 parameter servers", "4 workers", "node selector")


def test_a_job_that_can_never_start_on_todays_nodes_is_warned_of(cli: CliHarness) -> None:
    assert cli.submit("--dry-run=server", "--set", "workers.resources.cpu=64") == 0
    text = " ".join(cli.out.split())
    assert "warning: " in text
    assert not missing_keys(text, "4 workers", "never", "64 CPU")
    assert "2 of 4 workers" not in text
    assert cli.submit("--dry-run=server", "--set", "workers.resources.gpu=1") == 0
    assert not missing_keys(cli.out, "never", "1 nvidia.com/gpu", "0 nvidia.com/gpu")


def test_a_full_cluster_with_pods_of_lower_priority_is_warned_of(cli: CliHarness) -> None:
    tenant = {
        "kind": "Pod",
        "metadata": {"name": "idle", "namespace": "others"},
        "spec": {"nodeName": "n1", "priority": 1, "containers": [{"resources": {"requests": {"cpu": "3"}}}]},
    }
    cli.cluster.put(tenant)
    cli.cluster.objects.pop(("nodes", "", "n2"))
    assert cli.submit("--dry-run=server") == 0
    assert not missing_keys(cli.out, "warning", "wait", "capacity", "preempts", "lower priority")
    assert "others/idle" not in cli.out
    assert cli.submit("--dry-run=server", "--json") == 0
    (plan,) = cli.events()
    assert [(pods["role"], pods["at_once"], pods["may_preempt"]) for pods in plan["pods"]] == [
        ("master", 1, False),
        ("ps", 0, True),
        ("worker", 0, True),
    ]


def test_without_the_right_to_see_nodes_the_plan_says_so_and_compares_with_the_quota(cli: CliHarness) -> None:
    cli.cluster.deny("list", NODES)
    hard = {"requests.cpu": "6", "pods": "20"}
    status = {"hard": hard, "used": {"requests.cpu": "1", "pods": "1"}}
    cli.cluster.put({"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}, "status": status})
    assert cli.submit("--dry-run=server") == 0
    assert not missing_keys(cli.out, "unknown", "nodes", "quota", "5 CPU of 6 CPU", "19 pods of 20 pods")
    assert not missing_keys(cli.out.partition("warning: ")[2], "3 of 4 workers", "quota q", "requests.cpu")
    assert "at once" not in cli.out


def test_a_quota_without_room_for_one_worker_refuses_the_job(cli: CliHarness) -> None:
    hard = {"requests.cpu": "3"}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": {}}}
    cli.cluster.put({"kind": "ResourceQuota", **quota})
    assert cli.submit("--yes") == 2
    assert not missing_keys(cli.err, "quota q", "requests.cpu", "3 CPU", "4.5 CPU")
    assert cli.cluster.created == []


def test_a_quota_with_room_for_half_a_job_says_what_the_whole_needs(cli: CliHarness) -> None:
    hard = {"pods": "2"}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": {"pods": "0"}}}
    cli.cluster.put({"kind": "ResourceQuota", **quota})
    assert cli.submit("--yes") == 2
    assert not missing_keys(cli.err, "quota q", "2 pods", "4 pods", "master, 2 ps, 1 worker")
    assert cli.err.count("quota q") == 1


def test_who_cannot_be_asked_must_say_yes_beforehand(cli: CliHarness) -> None:
    assert cli.submit() == 2
    assert not missing_keys(cli.err, "edl submit", "terminal", "--yes")
    assert cli.submit("--json") == 2
    assert cli.cluster.created == []


@pytest.mark.parametrize(("answer", "code", "jobs"), [("\n", 0, 1), ("y\n", 0, 1), ("n\n", 1, 0)])
def test_enter_means_yes(cli: CliHarness, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, jobs: int) -> None:
    monkeypatch.setattr(cluster_options, "is_interactive", lambda: True)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _: answer.strip())
    assert cli.submit() == code
    assert len(cli.cluster.objects_of_kind(JOBS)) == jobs


def test_mistakes_of_the_file_are_told_at_once_and_no_cluster_is_asked(cli: CliHarness) -> None:
    cli.cluster.breaks["GET", PODS.plural] = AssertionError("asked")
    assert cli.submit("--set", "image=null", "--set", "data.training=here") == 2
    assert not missing_keys(cli.err, "image", "data.training", "found 'here'", "absolute")
    assert cli.submit("--set", f"name={'x' * 41}") == 2
    assert not missing_keys(cli.err, "name", "x" * 41, "40")


ALL_REDUCE = ("--set", "strategy.name=AllReduce")


def test_a_job_of_all_reduce_plans_no_parameter_servers(cli: CliHarness) -> None:
    """``ps.count`` is 2 in the job file: two pods of 1 CPU and 1 GiB less."""
    assert cli.submit("--dry-run=server", *ALL_REDUCE, "--set", "ps.priority=low") == 0
    assert not missing_keys(cli.out, "strategy", "AllReduce", "8.5 CPU, 8.5 GiB", "unused", "ps.count", "ps.priority")
    assert "training starts with 1 of 4 (workers.min)" in cli.out
    rows = [line.split()[:2] for line in cli.out.splitlines()]
    assert [row for row in rows if row[:1] in (["master"], ["ps"], ["worker"])] == [["master", "1"], ["worker", "1-4"]]
    assert cli.submit("--dry-run=server", "--json", *ALL_REDUCE) == 0
    plan = json.loads(cli.out.splitlines()[0])
    assert {pod["role"] for pod in plan["pods"]} == {"master", "worker"}
    assert "ps.count" in plan["unused"]


def test_a_quota_without_room_for_parameter_servers_admits_a_job_of_all_reduce(cli: CliHarness) -> None:
    """The quota has room for the master and one worker, which is too little with two parameter servers."""
    hard = {"requests.cpu": "3"}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": {}}}
    cli.cluster.put({"kind": "ResourceQuota", **quota})
    assert cli.submit("--yes") == 2
    assert cli.submit("--yes", *ALL_REDUCE) == 0
    assert cli.cluster.objects_of_kind(JOBS)


def test_a_refusal_ends_with_code_2_and_nothing_created(cli: CliHarness) -> None:
    cli.cluster.admissions.append(
        lambda thing: 'violates PodSecurity "restricted:latest"' if thing["kind"] == "Pod" else None
    )
    assert cli.submit("--yes") == 2
    assert not missing_keys(cli.err, "master", "ps", "worker", "violates PodSecurity")
    assert cli.out == ""
    assert cli.cluster.created == []


def test_a_cluster_that_does_not_answer_is_one_clear_message(cli: CliHarness) -> None:
    cli.cluster.breaks["GET", PODS.plural] = NoResponseError(
        "The API server does not answer", hint="Is the cluster up?"
    )
    assert cli.submit("--yes") == 2
    assert cli.err == "The API server does not answer\n  Is the cluster up?\n"


def test_no_cluster_is_one_clear_message(cli: CliHarness) -> None:
    """In a process of its own: the client reads KUBECONFIG when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    environment["KUBECONFIG"] = str(cli.folder / "none")
    code = "from edl.cli.app import main; main(['submit', 'job.yaml', '--yes'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cli.folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert not missing_keys(done.stderr, "kubeconfig", str(cli.folder / "none"), "KUBECONFIG", "kubectl cluster-info")


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
    cli: CliHarness, status: Manifest, told: tuple[str, ...]
) -> None:
    cli.cluster.master = status
    assert cli.submit("--yes") == 1
    assert not missing_keys(cli.err, "mnist", "master", "removed", *told)
    assert cli.cluster.labelled() == []


def test_a_job_that_can_neither_start_nor_go_says_both(cli: CliHarness) -> None:
    cli.cluster.master = waiting("ImagePullBackOff", "no such image")
    cli.cluster.deny("delete", JOBS)
    assert cli.submit("--yes") == 1
    assert not missing_keys(cli.err, "ImagePullBackOff", "no such image", "removed")
    assert cli.err.endswith(": edl delete mnist\n")


def test_a_pending_master_ends_with_the_reason_and_edl_why(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: full."}
    cli.cluster.master = {"phase": "Pending", "conditions": [condition]}
    monkeypatch.setattr("edl.ops.job_submission.START_TIMEOUT_SECONDS", 0.0)
    assert cli.submit("--yes") == 0
    assert not missing_keys(
        cli.out, "0 s", "edl-mnist-master-abcde", "Unschedulable: 0/2 nodes: full.", "edl why mnist"
    )
    assert len(cli.cluster.objects_of_kind(JOBS)) == 1


def test_programs_read_one_object_a_line(cli: CliHarness) -> None:
    assert cli.submit("--yes", "--json") == 0
    plan, submitted, started = cli.events()
    assert [plan["event"], submitted["event"], started["event"]] == ["plan", "submitted", "started"]
    assert [(pods["role"], pods["count"], pods["at_once"]) for pods in plan["pods"]] == [
        ("master", 1, 1),
        ("ps", 2, 2),
        ("worker", 4, 2),
    ]
    assert plan["free"] == {"cpu": 8, "memory": 32 << 30}
    assert submitted["uid"] == cli.cluster.objects_of_kind(JOBS)[0]["metadata"]["uid"]
    assert started["stage"] == "serving"


def test_programs_read_why_it_was_refused_or_failed(cli: CliHarness) -> None:
    assert cli.submit("--yes", "--json", "--set", "data.training=here") == 2
    (refused,) = cli.events()
    assert (refused["event"], refused["exit_code"]) == ("refused", 2)
    assert "data.training: found 'here'" in refused["message"]
    assert "data.training: found 'here'" in cli.err
    cli.cluster.master = waiting("ImagePullBackOff", "no such image")
    assert cli.submit("--yes", "--json") == 1
    failed = cli.events()[-1]
    assert (failed["event"], failed["where"], failed["exit_code"]) == ("failed", "mnist", 1)
    assert not missing_keys(failed["message"], "ImagePullBackOff", "no such image")
    assert not missing_keys(failed["hint"], "removed")


@pytest.mark.parametrize("args", [("job.yaml", "--resume", "nosuchrun"), ("--resume", "nosuchrun", "job.yaml")])
def test_a_word_after_resume_is_a_run_though_there_can_be_none(cli: CliHarness, args: tuple[str, ...]) -> None:
    assert cli.edl("submit", *args, "--yes") == 2
    assert not missing_keys(cli.err, "'nosuchrun'", "uid")
    assert cli.cluster.created == []


def test_a_job_file_after_resume_is_no_run(cli: CliHarness) -> None:
    assert cli.edl("submit", "--resume", "missing.yaml", "--yes") == 2
    assert "missing.yaml: no such file" in cli.err


def test_a_name_that_is_taken_creates_nothing(cli: CliHarness) -> None:
    assert cli.submit("--yes") == 0
    before = dict(cli.cluster.objects)
    assert cli.submit("--yes") == 2
    since = when(cli.cluster.now).replace("T", " ").replace("Z", " UTC")
    assert not missing_keys(cli.err, "mnist", "taken", since)
    assert cli.cluster.objects == before


@pytest.mark.parametrize(("option", "run"), [(["--resume"], "latest"), (["--resume", RUN], RUN)])
def test_an_ended_job_is_replaced_when_it_goes_on(cli: CliHarness, option: list[str], run: str) -> None:
    assert cli.submit("--yes") == 0
    (old,) = cli.cluster.objects_of_kind(JOBS)
    old["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert cli.edl("submit", *option, "job.yaml", "--yes") == 0
    (new,) = cli.cluster.objects_of_kind(JOBS)
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert new["metadata"]["annotations"][names.RUN_ANNOTATION] == run
    assert new["spec"]["template"]["metadata"]["annotations"][names.RUN_ANNOTATION] == run
    assert not missing_keys(cli.out, "removes", "2027-01-15 08:00:00 UTC", "removed")


TOLD = Status(
    job="mnist", run=RUN, run_dir=f"/data/edl/team/mnist/{RUN}", phase="Training", updated=1.0,
    records_total=200, records_done=69,
)  # fmt: skip


def publish_end(cli: CliHarness, phase: str, given: Sequence[str] = (), **told: int) -> None:
    """Have the run RUN of a job submitted with the options ``given``, which has ended."""
    cli.cluster.published = PublishedStatus(replace(TOLD, phase=phase, **told)).to_configmap_data()  # type: ignore[arg-type]
    assert cli.submit("--yes", *given) == 0
    (old,) = cli.cluster.objects_of_kind(JOBS)
    old["status"] = {"conditions": [{"type": "Complete" if phase == "Done" else "Failed", "status": "True"}]}


@pytest.mark.parametrize("run", [[], [RUN]])
def test_what_the_new_master_would_refuse_is_refused_before_anything_is_removed(
    cli: CliHarness, run: list[str]
) -> None:
    publish_end(cli, "Interrupted")
    before = dict(cli.cluster.objects)
    assert cli.submit("--yes", "--set", "train.minibatch_size=7", "--resume", *run) == 2
    assert not missing_keys(cli.err, RUN, "train.minibatch_size", "64", "7")
    assert cli.cluster.objects == before


CHANGES = (("train.epochs", "1", "5"), ("workers.max", "4", "3"))


def test_what_changes_about_a_run_is_in_the_plan_before_the_question(cli: CliHarness) -> None:
    publish_end(cli, "Interrupted")
    options = ("--resume", "--set", "train.epochs=5", "--set", "workers.max=3")
    assert cli.submit("--dry-run=server", *options) == 0
    changed = [line for line in cli.out.splitlines() if line.split()[:1] == ["changed"]]
    assert [missing_keys(line, *keys) for line, keys in zip(changed, CHANGES, strict=True)] == [[], []]
    assert cli.submit("--dry-run=server", "--json", *options) == 0
    changes = cli.events()[0]["changes"]
    assert [missing_keys(change, *keys) for change, keys in zip(changes, CHANGES, strict=True)] == [[], []]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("train.epochs=5", ("train.epochs", "5", "epoch 7")),
        ("train.max_steps=30", ("train.max_steps", "step 30")),
    ],
)
def test_a_change_that_ends_a_run_at_once_is_told_as_such(cli: CliHarness, setting: str, told: tuple[str, ...]) -> None:
    publish_end(cli, "Interrupted", epoch=7, epochs=9, step=30, given=["--set", "train.epochs=9"])
    assert cli.submit("--dry-run=server", "--resume", "--set", "train.epochs=9") == 0
    assert "warning: train." not in cli.out
    assert cli.submit("--dry-run=server", "--resume", "--set", "train.epochs=9", "--set", setting) == 0
    assert not missing_keys(cli.out.partition("warning: train.")[2], RUN, *(key.removeprefix("train.") for key in told))


def test_a_run_that_is_done_is_not_removed_for_nothing(cli: CliHarness) -> None:
    publish_end(cli, "Done")
    before = dict(cli.cluster.objects)
    assert cli.submit("--yes", "--resume") == 2
    assert not missing_keys(cli.err, RUN, "done")
    assert cli.cluster.objects == before


def test_training_goes_on_after_an_evaluation_of_the_same_name(cli: CliHarness) -> None:
    """What the cluster still has is the evaluation; the newest run that trains is on the volume."""
    task = ["--set", "task=evaluate", "--set", "data={validation: /data/mnist/test}"]
    publish_end(cli, "Done", given=task)
    assert cli.submit("--dry-run=server", "--resume") == 0
    assert not missing_keys(cli.out, "the newest run")
    assert cli.submit("--dry-run=server", "--resume", RUN) == 2


def test_which_run_goes_on_how_far_it_is_and_what_has_changed_is_told(cli: CliHarness) -> None:
    publish_end(cli, "Interrupted")
    start = RunStarted(RUN, TOLD.run_dir, resumed=True, changes=("workers.max was 4, is 3",), time=2.0)
    cli.cluster.published = PublishedStatus(TOLD, (RunStarted(RUN, TOLD.run_dir, time=1.0), start)).to_configmap_data()
    assert cli.submit("--yes", "--set", "workers.max=3", "--resume") == 0
    assert not missing_keys(cli.out, f"run {RUN}", "34 %", "workers.max was 4, is 3")
    (old,) = cli.cluster.objects_of_kind(JOBS)
    old["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert cli.submit("--yes", "--json", "--resume") == 0
    (resumed,) = [event for event in cli.events() if event["event"] == "resumed"]
    assert (resumed["run"], resumed["records_done"], resumed["changes"]) == (RUN, 69, ["workers.max was 4, is 3"])


def test_a_job_that_runs_is_not_resumed(cli: CliHarness) -> None:
    assert cli.submit("--yes") == 0
    assert cli.submit("--yes", "--resume") == 2
    assert not missing_keys(cli.err, "mnist", "which is active")


def test_a_run_without_a_volume_cannot_go_on(cli: CliHarness) -> None:
    assert cli.submit("--resume", "--set", "volumes=[]", "--set", "data.training=[s3://bucket/train]") == 2
    assert not missing_keys(cli.err, "--resume", "volume")


def test_a_job_that_evaluates_is_planned_without_parameter_servers(cli: CliHarness) -> None:
    task = ("--set", "task=evaluate", "--set", "model.weights=mnist", "--set", "data={validation: /data/mnist/test}")
    assert cli.submit("--dry-run=client", *task) == 0
    assert not missing_keys(cli.out, "evaluates with mnist")
    assert not re.search(r"parameter server +[0-9]", cli.out)
    assert cli.submit("--dry-run=client", *task, "--resume") == 2
    assert not missing_keys(cli.err, "--resume", "evaluate")
    assert cli.submit("--dry-run=client", *task, "--set", "volumes=[]") == 2
    assert not missing_keys(cli.err, "task", "no volume")


@pytest.mark.parametrize(("command", "data"), [("evaluate", "validation"), ("predict", "prediction")])
def test_evaluations_and_predictions_are_submitted_to_a_named_namespace(
    cli: CliHarness, command: str, data: str
) -> None:
    options = ("-n", "team", "--yes", "--set", f"data={{{data}: /data/mnist/test}}", "--workers", "3")
    cli.edl(command, "job.yaml", "--from", "mnist/r1", *options)
    created = cli.cluster.objects["configmaps", "team", "edl-mnist-spec"]
    spec = json.loads(created["data"]["job.json"])
    assert (spec["task"], spec["model"]["weights"], spec["workers"]["max"]) == (command, "mnist/r1", 3)
    assert spec["workers"]["resources"]["cpu"] == 2, "the rest of the section stays"


def test_predictions_of_a_cluster_have_their_place(cli: CliHarness) -> None:
    assert cli.edl("predict", "job.yaml", "-n", "team", "--output", "out") == 2
    assert not missing_keys(cli.err, "--output", "predictions/")
    assert cli.edl("predict", "job.yaml") == 2
    assert not missing_keys(cli.err, "--output", "missing")


def test_a_job_without_a_volume_is_told_what_that_costs(cli: CliHarness) -> None:
    assert cli.submit("--dry-run=client", "--set", "volumes=[]", "--set", "data.training=[s3://bucket/train]") == 0
    assert not missing_keys(cli.out, "storage", "none", "no checkpoint")
    *plan, command = cli.out.splitlines()
    assert all(len(line) <= 80 for line in plan)
    assert command.endswith("edl render job.yaml --set 'volumes=[]' --set 'data.training=[s3://bucket/train]'")


def test_a_dry_run_of_the_client_asks_nobody_and_imports_no_client(cli: CliHarness) -> None:
    code = (
        "import atexit, sys\n"
        "loaded = ('kubernetes', 'urllib3', 'tensorflow', 'numpy', 'grpc', 'rich')\n"
        "atexit.register(lambda: print([name for name in loaded if name in sys.modules], file=sys.stderr))\n"
        "from edl.cli.app import main\n"
        "main(['submit', 'job.yaml', '--dry-run=client', '--json'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=cli.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["free"], plan["requested"]) == (None, {"cpu": 10.5, "memory": 21 << 29})
    assert done.stderr.splitlines()[-1] == "[]"
    assert cli.submit("--dry-run=client") == 0
    assert cli.out.endswith(" edl render job.yaml\n")


def test_the_command_that_is_offered_next_has_the_settings_of_this_one(cli: CliHarness) -> None:
    options = ["--set", "image=a/b:1", "--set", "pod.env.GREETING=good day", "-n", "team", "--context", "lab"]
    assert cli.submit("--dry-run=client", *options) == 0
    offered = "edl render job.yaml --set image=a/b:1 --set 'pod.env.GREETING=good day' -n team"
    assert f" {offered}\n" in cli.out
    assert cli.edl(*shlex.split(offered)[1:]) == 0
    assert "good day" in cli.out
    assert cli.submit("--dry-run=client", "--resume", RUN) == 0
    assert f"edl render job.yaml --resume {RUN}\n" in cli.out


@pytest.mark.parametrize("code", [429, 409, 500, 503])
def test_a_server_in_trouble_before_anything_is_created_ends_with_code_2(cli: CliHarness, code: int) -> None:
    cli.cluster.breaks["GET", PODS.plural] = error_from_response(code, b'{"message": "in trouble"}', where="GET")
    assert cli.submit("--yes", "--json") == 2
    assert [(event["event"], event["exit_code"]) for event in cli.events()] == [("refused", 2)]
    assert cli.cluster.created == []


def test_a_server_in_trouble_once_the_master_was_asked_for_ends_with_code_1(
    cli: CliHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise error_from_response(503, b'{"message": "in trouble"}', where="GET")

    monkeypatch.setattr("edl.cli.submission_workflow.report_resumed", refused)
    assert cli.submit("--yes", "--resume") == 1
    assert not missing_keys(cli.err, "in trouble", "continues", "edl status mnist")
    assert len(cli.cluster.objects_of_kind(JOBS)) == 1


def test_ctrl_c_before_the_master_started_leaves_the_job(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edl.ops.job_submission.MasterStatusReader.read_status", interrupted)
    assert cli.submit("--yes") == 130
    assert not missing_keys(cli.out, "continues", "edl delete mnist")
    assert len(cli.cluster.objects_of_kind(JOBS)) == 1
