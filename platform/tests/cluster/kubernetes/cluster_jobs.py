"""Jobs that are fit for a cluster: one to start from, and any of them, for property tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from edl.api.job_spec import DataSpec, ExportSpec, JobSpec, MasterSpec, ModelSpec, ParameterServerSpec, WorkerSpec
from edl.api.pod_spec import (
    PodSpec,
    ResourceSpec,
    RunAsSpec,
    SecuritySpec,
    StorageSpec,
    VolumeSpec,
    WorkerResourceSpec,
)

MNIST = JobSpec(
    name="mnist",
    model=ModelSpec(definition="mnist.model.custom_model"),
    image="registry.example/team/mnist:v3",
    data=DataSpec(training=("/data/train",)),
    volumes=(VolumeSpec(mount="/data", claim="datasets"),),
)

_WORDS = st.from_regex(r"\A[a-z]([-a-z0-9]{0,10}[a-z0-9])?\Z")
_KEYS = st.from_regex(r"\A(example\.org/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,20}[A-Za-z0-9])?\Z")
_LABELS = st.dictionaries(_KEYS, st.from_regex(r"\A([A-Za-z0-9]([-._A-Za-z0-9]{0,20}[A-Za-z0-9])?)?\Z"), max_size=2)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_CLAIMS = st.sampled_from(["datasets", "runs", "models"])
_MOUNTS = st.sampled_from(["/data", "/data/inner", "/zoo", "/mnt/runs", "/home/edl/data"])
_CPU = st.floats(0.001, 256)
_MEMORY = st.integers(1, 2**45)
_IMAGES = st.from_regex(r"\A([a-z0-9]{1,5}\.example/)?[a-z0-9]{1,9}(:[A-Za-z0-9_][A-Za-z0-9_.]{0,8})?\Z")
_ACCOUNTS = st.sampled_from(["edl-job-master", "edl-none", "team.ranking"])


@st.composite
def fit_jobs(draw: st.DrawFn, *, host_paths: bool = True) -> JobSpec:
    """Any JobSpec that can be on a cluster, without ``pod.overrides``."""
    mounts = draw(st.lists(_MOUNTS, max_size=3, unique=True))
    volumes = tuple(_volume(draw, mount, host_paths) for mount in mounts)
    storage = draw(
        st.sampled_from([StorageSpec(), StorageSpec(claim="runs", path="/edl-runs")] if volumes else [StorageSpec()])
    )
    if any(volume.claim == "runs" for volume in volumes):
        storage = replace(storage, path=None)
    data = DataSpec(training=(f"{mounts[0]}/train", "odps://a/b") if mounts else ("odps://a/b",))
    return JobSpec(
        name=draw(st.from_regex(r"\A[a-z]([-a-z0-9]{0,38}[a-z0-9])?\Z")),
        model=ModelSpec(definition="a.b", zoo=draw(st.sampled_from(["model_zoo", "/zoo/x"]))),
        image=draw(_IMAGES),
        data=data,
        export=draw(st.sampled_from([None, ExportSpec(), *(ExportSpec(f"{mount}/model") for mount in mounts)])),
        master=MasterSpec(priority=draw(_WORDS), resources=_resources(draw)),
        ps=ParameterServerSpec(priority=draw(_WORDS), resources=_resources(draw)),
        workers=WorkerSpec(
            priority=draw(st.from_regex(r"\A[a-z]{1,9}(=0\.[0-9]{0,2}[1-9])?\Z")),
            resources=WorkerResourceSpec(draw(_CPU), draw(_MEMORY), draw(st.integers(0, 16))),
        ),
        volumes=volumes,
        storage=storage,
        pod=draw(_pods()),
        security=SecuritySpec(
            RunAsSpec(draw(st.integers(1, 2**31 - 1)), draw(st.integers(0, 2**31 - 1))),
            draw(_ACCOUNTS),
            draw(_ACCOUNTS),
        ),
    )


def _volume(draw: st.DrawFn, mount: str, host_paths: bool) -> VolumeSpec:
    if host_paths and draw(st.booleans()):
        return VolumeSpec(mount=mount, host_path=draw(st.sampled_from(["/mnt/disk", "/var/log"])))
    return VolumeSpec(mount=mount, claim=draw(_CLAIMS))


def _resources(draw: st.DrawFn) -> ResourceSpec:
    return ResourceSpec(draw(_CPU), draw(_MEMORY))


def _pods() -> st.SearchStrategy[PodSpec]:
    toleration: st.SearchStrategy[Any] = st.fixed_dictionaries(
        {"key": st.sampled_from(["gpu", "node.kubernetes.io/not-ready"]), "operator": st.just("Exists")},
        optional={"effect": st.sampled_from(["NoSchedule", "NoExecute"]), "tolerationSeconds": st.integers(0, 600)},
    )
    return st.builds(
        PodSpec,
        env=st.dictionaries(st.from_regex(r"\A[A-DF-GI-Z_][A-Z0-9_]{0,10}\Z"), _TEXT, max_size=2),
        node_selector=_LABELS,
        tolerations=st.lists(toleration, max_size=2).map(tuple),
        affinity=st.just({}),
        labels=_LABELS,
        annotations=st.dictionaries(_KEYS, _TEXT, max_size=2),
        overrides=st.just({}),
        image_pull_secrets=st.lists(_WORDS, max_size=2, unique=True).map(tuple),
    )
