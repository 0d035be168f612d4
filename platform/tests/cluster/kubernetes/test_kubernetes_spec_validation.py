"""What cannot be on a cluster is said by field, all of it at once, before a cluster is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster.kubernetes.cluster_jobs import MNIST
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.job_spec import DataSpec, ExportSpec, JobSpec
from edl.api.pod_spec import (
    IdentityLabels,
    LimitSpec,
    PodSpec,
    ResourceSpec,
    RunAsSpec,
    SecretKeyRef,
    SecuritySpec,
    StorageSpec,
    VolumeSpec,
    WorkerResourceSpec,
)
from edl.api.strategy import Strategy
from edl.cluster.kubernetes.job_manifests import render_job, render_pod
from edl.cluster.kubernetes.spec_validation import (
    find_spec_problems,
    find_spec_warnings,
    find_submission_problems,
)
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import load_job_file

CLAIM = VolumeSpec(mount="/data", claim="datasets")


def problems_of(spec: JobSpec) -> list[tuple[str, str]]:
    return [(each.field_path, each.message) for each in find_spec_problems(spec)]


EVALUATION = replace(MNIST, task="evaluate", data=DataSpec(validation=("/data/test",)), volumes=(CLAIM,))


def test_a_job_that_evaluates_needs_no_strategy_of_a_cluster() -> None:
    assert problems_of(replace(EVALUATION, strategy=Strategy(name="Local"))) == []


@pytest.mark.parametrize(
    ("changed", "path", "keys"),
    [
        ({"volumes": (), "storage": StorageSpec()}, "task", ("'evaluate'", "no volume", "weights")),
        ({"model": replace(MNIST.model, weights="runs/model.keras")}, "model.weights", ("absolute",)),
        ({"model": replace(MNIST.model, weights="../r1")}, "model.weights", ("absolute",)),
    ],
)
def test_weights_that_pods_cannot_read_are_refused(changed: dict[str, Any], path: str, keys: tuple[str, ...]) -> None:
    ((problem_path, message),) = problems_of(replace(EVALUATION, **changed))
    assert problem_path == path
    assert not missing_keys(message, *keys)


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ({"volumes": (), "storage": StorageSpec()}, ("'first'", "no volume", "weights")),
        ({"model": replace(MNIST.model, init_from="./model.keras")}, ("absolute",)),
    ],
)
def test_weights_to_begin_with_that_pods_cannot_read_are_refused(
    changed: dict[str, Any], keys: tuple[str, ...]
) -> None:
    spec = replace(MNIST, model=replace(MNIST.model, init_from="first"), volumes=(CLAIM,))
    ((problem_path, message),) = problems_of(replace(spec, **changed))
    assert problem_path == "model.init_from"
    assert not missing_keys(message, *keys)


@pytest.mark.parametrize("weights", [None, "mnist", "mnist/r1", "/data/edl/team/mnist/r1", "/data/model.keras"])
def test_names_of_runs_and_absolute_paths_are_weights(weights: str | None) -> None:
    assert problems_of(replace(EVALUATION, model=replace(MNIST.model, weights=weights))) == []


def test_a_job_that_only_predicts_says_so_to_be_submitted() -> None:
    spec = replace(EVALUATION, data=DataSpec(prediction=("/data/asked",)))
    (problem,) = find_submission_problems(replace(spec, task="train"))
    assert (problem.field_path, problem.message) == ("data.training", "is missing")
    assert find_submission_problems(replace(spec, task="predict")) == []


@pytest.mark.parametrize(
    ("changed", "path", "keys"),
    [
        ({"image": None}, "image", ("missing",)),
        ({"strategy": Strategy(name="Local")}, "strategy.name", ("'Local'",)),
        (
            {"data": DataSpec(training=("train",))},
            "data.training",
            ("'train'", "absolute"),
        ),
        (
            {"export": ExportSpec("models")},
            "export.path",
            ("'models'", "absolute"),
        ),
        (
            {"export": ExportSpec("/models")},
            "export.path",
            ("'/models'", "volume"),
        ),
        ({"volumes": (CLAIM, VolumeSpec("/x", local="x"))}, "volumes[1].claim", ("missing",)),
        (
            {"pod": PodSpec(env={"T": SecretKeyRef("edl-mnist-token", "token")})},
            "pod.env.T.secret",
            ("'edl-mnist-token'", "token"),
        ),
        (
            {"workers": replace(MNIST.workers, resources=WorkerResourceSpec(cpu=2, limits=LimitSpec(cpu=1)))},
            "workers.resources.limits.cpu",
            ("found 1", "request of 2"),
        ),
        (
            {"ps": replace(MNIST.ps, resources=ResourceSpec(limits=LimitSpec(memory=2**20)))},
            "ps.resources.limits.memory",
            ("found 1Mi", "request of 2Gi"),
        ),
        (
            {"pod": PodSpec(identity_labels=IdentityLabels(job="edl.dev/job"))},
            "pod.identity_labels.job",
            ("'edl.dev/job'", "EDL sets"),
        ),
        (
            {"pod": PodSpec(identity_labels=IdentityLabels(job="j", index="j"))},
            "pod.identity_labels.index",
            ("'j'", "pod.identity_labels.job"),
        ),
        (
            {"ps": replace(MNIST.ps, overrides={"spec": {"restartPolicy": "Always"}})},
            "ps.overrides.spec.restartPolicy",
            ("EDL",),
        ),
        (
            {"master": replace(MNIST.master, service_overrides={"spec": {"selector": {}}})},
            "master.service_overrides.spec.selector",
            ("EDL",),
        ),
        ({"ttl_after_finished": 5.0}, "ttl_after_finished", ("5 seconds", "at least 60")),
        (
            {"volumes": (replace(CLAIM, host_path="/x"),)},
            "volumes[0].host_path",
            ("'/x'", "claim"),
        ),
        (
            {"volumes": (CLAIM, VolumeSpec("/a:b", claim="c"))},
            "volumes[1].mount",
            ("'/a:b'", "':'"),
        ),
        (
            {"volumes": (CLAIM, VolumeSpec("/home", claim="c"))},
            "volumes[1].mount",
            ("'/home'", "/home/edl"),
        ),
        ({"storage": StorageSpec(path="runs")}, "storage.path", ("'runs'", "absolute")),
        ({"storage": StorageSpec(path="/runs")}, "storage.path", ("'/runs'", "volume")),
        (
            {"storage": StorageSpec(claim="datasets", path="/runs")},
            "storage.path",
            ("'/runs'", "claim 'datasets'"),
        ),
        (
            {"storage": StorageSpec(claim="runs", path="/data/")},
            "storage.path",
            ("'/data/'", "claim 'runs'"),
        ),
        (
            {"storage": StorageSpec(claim="runs", path="/")},
            "storage.path",
            ("'/'", "claim 'runs'"),
        ),
        (
            {"volumes": (), "data": DataSpec(training=("odps://a/b",)), "storage": StorageSpec(path="/runs")},
            "storage.path",
            ("'/runs'", "no volume"),
        ),
        (
            {"security": SecuritySpec(RunAsSpec(user=0))},
            "security.run_as.user",
            ("found 0", "root"),
        ),
        (
            {"security": SecuritySpec(RunAsSpec(group=2**31))},
            "security.run_as.group",
            ("found 2147483648", "at most 2147483647"),
        ),
    ],
)
def test_problems(changed: dict[str, Any], path: str, keys: tuple[str, ...]) -> None:
    ((where, message),) = problems_of(replace(MNIST, **changed))
    assert (where, missing_keys(message, *keys)) == (path, [])


@pytest.mark.parametrize("path", ["/model_zoo/data/train", "/database/x", "/data/../etc"])
def test_data_that_the_image_may_hold_is_no_mistake_and_is_worth_a_word(path: str) -> None:
    spec = replace(MNIST, data=DataSpec(training=("/data/x",), validation=(path,)))
    assert problems_of(spec) == []
    (note,) = find_spec_warnings(spec)
    assert not missing_keys(note, "data.validation", path, "volume", "image", "pod.overrides")


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        (PodSpec(env={"EDL_ROLE": "ps"}), "pod.env.EDL_ROLE"),
        (PodSpec(env={"HOME": "/root"}), "pod.env.HOME"),
        (PodSpec(env={"KERAS_BACKEND": "jax"}), "pod.env.KERAS_BACKEND"),
        (PodSpec(env={"A=B": "c"}), "pod.env"),
        (PodSpec(labels={"edl.dev/job": "x"}), "pod.labels.edl.dev/job"),
        (PodSpec(labels={"app.kubernetes.io/name": "x"}), "pod.labels.app.kubernetes.io/name"),
        (PodSpec(labels={"batch.kubernetes.io/controller-uid": "x"}), "pod.labels.batch.kubernetes.io/controller-uid"),
        (PodSpec(labels={"a/b/c": "x"}), "pod.labels"),
        (PodSpec(labels={"team": "a b"}), "pod.labels.team"),
        (PodSpec(labels={"team": "a" * 64}), "pod.labels.team"),
        (PodSpec(annotations={"edl.dev/run": "x"}), "pod.annotations.edl.dev/run"),
        (PodSpec(annotations={"-": "x"}), "pod.annotations"),
        (PodSpec(node_selector={"pool": "-"}), "pod.node_selector.pool"),
        (PodSpec(overrides={"kind": "Job"}), "pod.overrides.kind"),
        (PodSpec(overrides={"spec": None}), "pod.overrides.spec"),
        (PodSpec(overrides={"metadata": {"name": "x"}}), "pod.overrides.metadata.name"),
        (PodSpec(overrides={"metadata": {"ownerReferences": []}}), "pod.overrides.metadata.ownerReferences"),
        (
            PodSpec(overrides={"metadata": {"labels": {"edl.dev/job": "x"}}}),
            "pod.overrides.metadata.labels.edl.dev/job",
        ),
        (PodSpec(overrides={"metadata": {"labels": {"a": 1}}}), "pod.overrides.metadata.labels.a"),
        (PodSpec(overrides={"spec": {"restartPolicy": "Always"}}), "pod.overrides.spec.restartPolicy"),
        (PodSpec(overrides={"spec": {"containers": {}}}), "pod.overrides.spec.containers"),
        (PodSpec(overrides={"spec": {"containers": [{"image": "x"}]}}), "pod.overrides.spec.containers"),
        (PodSpec(overrides={"spec": {"volumes": None}}), "pod.overrides.spec.volumes"),
        (PodSpec(overrides={"spec": {"volumes": [{"name": "a"}, {"name": "a"}]}}), "pod.overrides.spec.volumes"),
        (
            PodSpec(overrides={"spec": {"containers": [{"name": "edl", "env": [{"name": "EDL_UID", "value": "x"}]}]}}),
            "pod.overrides.spec.containers.env.EDL_UID",
        ),
        (
            PodSpec(overrides={"spec": {"containers": [{"name": "edl", "env": [3]}]}}),
            "pod.overrides.spec.containers[0].env",
        ),
    ],
)
def test_additions(pod: PodSpec, path: str) -> None:
    assert [each for each, _ in problems_of(replace(MNIST, pod=pod))] == [path]


def test_what_a_user_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """\
name: mnist
model: {definition: mnist.model.custom_model}
data:
  training: ./train
volumes:
- {mount: /data, local: ./data}
pod:
  labels:
    edl.dev/job: other
"""
    Path("job.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_job_file("job.yaml", extra_rules=find_spec_problems)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines[::2]] == ["job.yaml:1", "job.yaml:4", "job.yaml:6", "job.yaml:8"]
    image, data, claim, label = zip(lines[::2], lines[1::2], strict=True)
    assert not missing_keys(image[0] + image[1], "image", "missing", "edl zoo build")
    assert not missing_keys(
        data[0] + data[1], "data.training", "'./train'", "absolute", "volumes: [{claim: NAME, mount: /data}]"
    )
    assert not missing_keys(claim[0] + claim[1], "volumes[0].claim", "missing", "PersistentVolumeClaim", "edl data cp")
    assert not missing_keys(label[0], "pod.labels.edl.dev/job", "'edl.dev/job'")


def test_notes_say_what_it_costs() -> None:
    assert find_spec_warnings(MNIST) == []
    (disk_warning,) = find_spec_warnings(replace(MNIST, volumes=(VolumeSpec("/data", host_path="/mnt/disk"),)))
    assert "volumes[0].host_path" in disk_warning
    assert "uid 1000" in disk_warning
    (lost,) = find_spec_warnings(replace(MNIST, export=ExportSpec("/tmp/model")))
    assert not missing_keys(lost, "/tmp/model", "volume")


_FIELDS = st.sampled_from(
    ["metadata", "spec", "labels", "annotations", "containers", "volumes", "env", "name", "edl", "volumeMounts", "tty"]
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | _FIELDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_FIELDS, inner, max_size=3),
    max_leaves=8,
)
_OVERRIDES = st.fixed_dictionaries(
    {}, optional={name: st.dictionaries(_FIELDS, _ANYTHING, max_size=3) for name in ("metadata", "spec")}
)


@settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(overrides=_OVERRIDES | st.dictionaries(_FIELDS, _ANYTHING, max_size=2))
def test_overrides_are_refused_or_leave_the_pod_its_identity(overrides: dict[str, Any]) -> None:
    spec = replace(MNIST, pod=PodSpec(overrides=overrides))
    if find_spec_problems(spec):
        return
    render_job(spec, namespace="team-a", token="t")
    plain, pod = (
        render_pod(each, Role.PS, 0, namespace="team-a", job_uid="uid", run_dir="/data/r") for each in (MNIST, spec)
    )
    assert pod["metadata"]["labels"].items() >= plain["metadata"]["labels"].items()
    for field in ("name", "namespace", "ownerReferences"):
        assert pod["metadata"][field] == plain["metadata"][field]
    ours = next(each for each in pod["spec"]["containers"] if each["name"] == "edl")
    assert [each for each in plain["spec"]["containers"][0]["env"] if each not in ours["env"]] == []


@pytest.mark.parametrize("section", ["pod", "workers"])
def test_a_reserved_variable_of_a_container_is_refused_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"""\
apiVersion: edl.dev/v1
name: mnist
image: registry.example/mnist:1
model: {{definition: mnist.model.custom_model}}
data: {{training: /data/train}}
volumes: [{{mount: /data, claim: files}}]
{section}:
  overrides:
    spec:
      containers:
      - name: edl
        env: [{{name: EDL_UID, value: x}}]
"""
    Path("job.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_job_file("job.yaml", extra_rules=find_spec_problems)
    assert not missing_keys(str(caught.value), "job.yaml:10", f"{section}.overrides.spec.containers.env.EDL_UID")
