"""What holds for every job on Kubernetes, and what each part of a spec becomes there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster.kubernetes.cluster_jobs import MNIST, fit_jobs
from cluster.kubernetes.restricted_standard import violations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.cluster_port import PodOptions, Role
from edl.api.job_spec import DataSpec, JobSpec, WorkerSpec
from edl.api.pod_spec import (
    IdentityLabels,
    LimitSpec,
    PodSpec,
    SecretKeyRef,
    StorageSpec,
    VolumeSpec,
    WorkerResourceSpec,
)
from edl.api.strategy import Strategy
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.job_manifests import render_job, render_log_pod, render_master_pod, render_pod
from edl.cluster.kubernetes.resource_kinds import Manifest, manifest_kind
from edl.cluster.kubernetes.spec_validation import find_spec_problems, find_spec_warnings
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import load_job_file
from edl.jobfile.path_resolution import pod_storage_path
from edl.transport.listener import BULK_PORT

_PATIENT = settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])

TOKEN = "0123456789abcdef"

_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[0-9]+(m|[KMGT]i)?")


def job_of(spec: JobSpec, **options: Any) -> list[Manifest]:
    return render_job(spec, namespace="team-a", token=TOKEN, **options)


def pod_of(spec: JobSpec = MNIST, role: Role = Role.WORKER, index: int = 3, **options: Any) -> Manifest:
    return render_pod(spec, role, index, **{"namespace": "team-a", "job_uid": "uid", "run_dir": "/data/r", **options})


def by_kind(manifests: list[Manifest]) -> dict[str, Manifest]:
    return {f"{manifest['kind']} {manifest['metadata']['name']}": manifest for manifest in manifests}


def pods_of(spec: JobSpec) -> list[Manifest]:
    """One pod of each role, the master's as its Job makes it."""
    return [render_master_pod(job_of(spec)[-1]), pod_of(spec, Role.PS, 0), pod_of(spec, Role.WORKER, 10**9)]


def container(pod: Manifest) -> dict[str, Any]:
    (edl_container,) = (each for each in pod["spec"]["containers"] if each["name"] == "edl")
    return edl_container  # type: ignore[no-any-return]


def variables(pod: Manifest) -> dict[str, str]:
    """The environment; of a variable that Kubernetes fills in, the path of the field."""
    env = container(pod)["env"]
    assert len({each["name"] for each in env}) == len(env)
    return {
        each["name"]: each["value"] if "value" in each else each["valueFrom"]["fieldRef"]["fieldPath"] for each in env
    }


@_PATIENT
@given(spec=fit_jobs())
def test_any_fit_job_is_rendered(spec: JobSpec) -> None:
    assert find_spec_problems(spec) == []
    for manifest in [*job_of(spec), *pods_of(spec)]:
        kind = manifest_kind(manifest)
        assert (manifest["apiVersion"], manifest["metadata"]["namespace"]) == (kind.api_version, "team-a")
        assert len(manifest["metadata"]["name"]) <= 63
        assert _DNS.fullmatch(manifest["metadata"]["name"])
        assert manifest["metadata"]["labels"].items() >= names.object_labels(spec.name).items()
        for label in manifest["metadata"]["labels"].values():
            assert len(label) <= 63
            assert _LABEL.fullmatch(label)


@_PATIENT
@given(spec=fit_jobs(host_paths=False))
def test_every_pod_passes_the_restricted_standard(spec: JobSpec) -> None:
    for pod in pods_of(spec):
        assert violations(pod["spec"]) == []


@_PATIENT
@given(spec=fit_jobs(), factor=st.floats(1, 8), elevated=st.booleans())
def test_every_pod_says_what_it_needs(spec: JobSpec, factor: float, elevated: bool) -> None:
    for pod in [*pods_of(spec), pod_of(spec, options=PodOptions(factor, elevated))]:
        resources = container(pod)["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"])
        assert all(_QUANTITY.fullmatch(quantity) for quantity in resources["requests"].values())
        assert "cpu" not in resources["limits"]
        disk = {
            "requests": resources["requests"].pop("ephemeral-storage"),
            "limits": resources["limits"].pop("ephemeral-storage"),
        }
        assert disk == {"requests": "256Mi", "limits": "10Gi"}, "bounded, and little of it promised"
        assert resources["limits"].items() <= resources["requests"].items()


@_PATIENT
@given(spec=fit_jobs())
def test_mounts_are_volumes_of_the_pod(spec: JobSpec) -> None:
    for pod in pods_of(spec):
        volumes = [volume["name"] for volume in pod["spec"]["volumes"]]
        mounts = container(pod)["volumeMounts"]
        assert len(set(volumes)) == len(volumes)
        assert {mount["name"] for mount in mounts} == set(volumes)
        assert len({mount["mountPath"] for mount in mounts}) == len(mounts)
        claims = [
            str(volume["persistentVolumeClaim"])
            for volume in pod["spec"]["volumes"]
            if len(volume) > 1 and "persistentVolumeClaim" in volume
        ]
        assert len(set(claims)) == len(claims), "a claim that is mounted twice is one volume"
        assert any(Path(pod_storage_path(spec)).is_relative_to(mount["mountPath"]) for mount in mounts)


def test_the_job_says_that_it_does_not_train() -> None:
    def annotations(spec: JobSpec) -> Any:
        return job_of(spec)[-1]["metadata"].get("annotations")

    claim = (VolumeSpec(mount="/data", claim="datasets"),)
    evaluation = replace(MNIST, task="evaluate", data=DataSpec(validation=("/data/test",)), volumes=claim)
    assert annotations(evaluation) == {names.TASK_ANNOTATION: "evaluate"}
    assert names.TASK_ANNOTATION not in (annotations(MNIST) or {})


@_PATIENT
@given(spec=fit_jobs())
def test_the_spec_travels_whole(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("job") / "job.json"
    config = by_kind(job_of(spec))[f"ConfigMap edl-{spec.name}-spec"]
    file.write_text(config["data"]["job.json"], encoding="utf-8")
    assert load_job_file(file) == spec


@_PATIENT
@given(spec=fit_jobs())
def test_paths_that_were_resolved_change_no_pod(spec: JobSpec) -> None:
    resolved = replace(spec, storage=replace(spec.storage, path=pod_storage_path(spec)))
    assert pods_of(resolved) == pods_of(spec)


def test_order() -> None:
    assert list(by_kind(job_of(MNIST))) == [
        "ConfigMap edl-mnist-spec",
        "ConfigMap edl-mnist-status",
        "Secret edl-mnist-token",
        "Service edl-mnist-master",
        "Job edl-mnist-master",
    ]


def test_the_status_is_empty_and_the_token_never_changes() -> None:
    manifests = by_kind(job_of(MNIST))
    assert manifests["ConfigMap edl-mnist-status"]["data"] == {}
    secret = manifests["Secret edl-mnist-token"]
    assert (secret["immutable"], secret["stringData"]) == (True, {"token": TOKEN})
    others = [manifest for manifest in manifests.values() if manifest is not secret]
    assert TOKEN not in str(others)


def test_the_job_restarts_its_master_for_ever() -> None:
    job = job_of(MNIST)[-1]["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert job["backoffLimit"] == 2**31 - 1
    assert job["podReplacementPolicy"] == "TerminatingOrFailed"
    assert "podFailurePolicy" not in job
    assert (job["completions"], job["parallelism"], job["suspend"]) == (1, 1, False)


def test_a_job_may_wait() -> None:
    assert job_of(MNIST, suspend=True)[-1]["spec"]["suspend"] is True


def test_the_service_finds_the_master_only() -> None:
    service = by_kind(job_of(MNIST))["Service edl-mnist-master"]["spec"]
    master, ps, worker = (pod["metadata"]["labels"] for pod in pods_of(MNIST))
    assert service["type"] == "ClusterIP"
    assert service["selector"].items() <= master.items()
    assert not service["selector"].items() <= ps.items()
    assert not service["selector"].items() <= worker.items()
    assert [port["port"] for port in service["ports"]] == [7070]


def test_a_token_that_exists_is_referred_to() -> None:
    manifests = render_job(MNIST, namespace=None, token=None, token_secret="shared")
    assert "Secret" not in {manifest["kind"] for manifest in manifests}
    master, worker = render_master_pod(manifests[-1]), pod_of(token_secret="shared")
    for pod in (master, worker):
        (token,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == "token")
        assert token["secret"]["secretName"] == "shared"
    assert variables(master)["EDL_TOKEN_SECRET"] == "shared", "so that the master can mount it into its pods"


def test_without_a_namespace_it_is_left_to_kubectl() -> None:
    assert not any("namespace" in manifest["metadata"] for manifest in render_job(MNIST, namespace=None, token="t"))


def test_a_resumed_run_is_named_on_the_job_and_on_its_pods() -> None:
    job = job_of(MNIST, run="latest")[-1]
    assert job["metadata"]["annotations"]["edl.dev/run"] == "latest"
    assert render_master_pod(job)["metadata"]["annotations"]["edl.dev/run"] == "latest"
    assert "edl.dev/run" not in str(job_of(MNIST)[-1]["metadata"])


def test_pods_go_with_the_job_and_do_not_belong_to_its_controller() -> None:
    pod = pod_of(job_uid="5a0c")
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "edl-mnist-master",
        "uid": "5a0c",
        "controller": False,
        "blockOwnerDeletion": False,
    }
    controller_labels = ("controller-uid", "job-name", "batch.kubernetes.io/")
    assert not any(label.startswith(controller_labels) for label in pod["metadata"]["labels"])
    assert pod["spec"]["restartPolicy"] == "Never"


def test_before_the_job_exists_nobody_owns_its_pods() -> None:
    assert "ownerReferences" not in pod_of(job_uid="")["metadata"]


def test_only_the_master_talks_to_the_cluster() -> None:
    accounts = [(pod["spec"]["serviceAccountName"], pod["spec"]["automountServiceAccountToken"])
                for pod in pods_of(MNIST)]  # fmt: skip
    assert accounts == [("edl-job-master", True), ("edl-none", False), ("edl-none", False)]


def test_who_a_pod_is() -> None:
    master, ps, worker = (variables(pod) for pod in pods_of(MNIST))
    for environment, role in ((master, "master"), (ps, "ps"), (worker, "worker")):
        assert (
            environment.items()
            >= {
                "EDL_ROLE": role,
                "EDL_UID": "metadata.uid",
                "EDL_POD": "metadata.name",
                "EDL_NAMESPACE": "metadata.namespace",
                "EDL_NODE": "spec.nodeName",
                "EDL_HOST": "status.podIP",
                "EDL_TOKEN_FILE": "/etc/edl/token/token",
                "EDL_RUNTIME_DIR": "/run/edl",
                "HOME": "/home/edl",
                "PYTHONUNBUFFERED": "1",
            }.items()
        )
    assert (master["EDL_INDEX"], ps["EDL_INDEX"], worker["EDL_INDEX"]) == ("0", "0", "1000000000")
    assert master["EDL_JOB_UID"] == "metadata.labels['batch.kubernetes.io/controller-uid']"
    assert master["EDL_RUN"] == "metadata.annotations['edl.dev/run']"
    assert master["EDL_STORAGE"] == "/data/edl"
    for environment in (ps, worker):
        assert environment["EDL_MASTER_ADDRESS"] == "edl-mnist-master.team-a:7070"
        assert environment["EDL_RUN_DIR"] == "/data/r"
        assert "EDL_JOB_UID" not in environment


def test_what_a_container_runs() -> None:
    assert [(container(pod)["command"], container(pod)["args"][0]) for pod in pods_of(MNIST)] == [
        (["edl-role"], "master"),
        (["edl-role"], "ps"),
        (["edl-role"], "worker"),
    ]
    ports = [[port["containerPort"] for port in container(pod)["ports"]] for pod in pods_of(MNIST)]
    assert ports == [[7070], [7070, 7071], []]


def test_workers_of_all_reduce_offer_the_port_at_which_their_neighbours_connect() -> None:
    *_, worker = pods_of(replace(MNIST, strategy=Strategy(name="AllReduce")))
    assert [port["containerPort"] for port in container(worker)["ports"]] == [BULK_PORT]


def test_a_job_of_all_reduce_has_no_object_more_than_another() -> None:
    names_of = lambda job: [(one["kind"], one["metadata"]["name"]) for one in job_of(job)]  # noqa: E731
    assert names_of(replace(MNIST, strategy=Strategy(name="AllReduce"))) == names_of(MNIST)


def test_nodes_that_are_lost_are_left_soon() -> None:
    """A PS by its master only, which knows whether it answers."""
    for pod, seconds in zip(pods_of(MNIST), (30, 120, 10), strict=True):
        assert {each["key"]: each.get("tolerationSeconds") for each in pod["spec"]["tolerations"]} == {
            "node.kubernetes.io/not-ready": seconds,
            "node.kubernetes.io/unreachable": seconds,
        }


@pytest.mark.parametrize("effect", [{}, {"effect": ""}, {"effect": "NoExecute"}])
def test_a_toleration_of_the_spec_replaces_ours(effect: dict[str, str]) -> None:
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", **effect}
    no_schedule = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoSchedule"}
    tolerations = pod_of(replace(MNIST, pod=PodSpec(tolerations=(own, no_schedule))))["spec"]["tolerations"]
    assert tolerations[:2] == [own, no_schedule]
    assert [each["key"] for each in tolerations[2:]] == ["node.kubernetes.io/unreachable"]


def test_autoscalers_may_move_workers_only() -> None:
    evictable = [pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"]
                 for pod in pods_of(MNIST)]  # fmt: skip
    assert evictable == ["false", "false", "true"]


@pytest.mark.parametrize(
    ("priority", "elevated", "expected"),
    [
        ("low", False, "low"),
        ("batch", False, "batch"),
        ("batch", True, "batch"),
        ("high=0.5", False, "low"),
        ("high=0.5", True, "high"),
    ],
)
def test_priority(priority: str, elevated: bool, expected: str) -> None:
    pod = pod_of(replace(MNIST, workers=WorkerSpec(priority=priority)), options=PodOptions(elevated=elevated))
    assert pod["spec"]["priorityClassName"] == expected
    assert pod["metadata"]["labels"].get("edl.dev/elevated") == ("true" if elevated else None)


def test_resources() -> None:
    workers = WorkerSpec(resources=WorkerResourceSpec(cpu=0.25, memory=3 << 29, gpu=2, ephemeral_storage=1 << 20))
    spec = replace(MNIST, workers=workers)
    limits = {"memory": "1536Mi", "ephemeral-storage": "1Mi", "nvidia.com/gpu": "2"}
    assert container(pod_of(spec))["resources"] == {"requests": {"cpu": "250m", **limits}, "limits": limits}
    more = container(pod_of(spec, options=PodOptions(memory_factor=1.5)))["resources"]
    assert (more["requests"]["memory"], more["limits"]["memory"]) == ("2304Mi", "2304Mi")
    assert (more["requests"]["cpu"], more["limits"]["nvidia.com/gpu"]) == ("250m", "2")


def test_limits_above_the_requests() -> None:
    resources = WorkerResourceSpec(cpu=1, memory=2**30, limits=LimitSpec(cpu=2.5, memory=2**31))
    spec = replace(MNIST, workers=replace(MNIST.workers, resources=resources))
    container_resources = container(pod_of(spec))["resources"]
    assert (container_resources["requests"]["cpu"], container_resources["limits"]["cpu"]) == ("1", "2500m")
    assert (container_resources["requests"]["memory"], container_resources["limits"]["memory"]) == ("1Gi", "2Gi")
    grown = container(pod_of(spec, options=PodOptions(memory_factor=1.5)))["resources"]
    assert (grown["requests"]["memory"], grown["limits"]["memory"]) == ("1536Mi", "3Gi"), "both grow after a lack"


def test_names_and_further_labels_of_pods() -> None:
    labels = IdentityLabels(job="elasticdl-job-name", role="elasticdl-replica-type", index="elasticdl-replica-index")
    spec = replace(MNIST, pod=PodSpec(name_prefix="elasticdl", identity_labels=labels, labels={"app": "elasticdl"}))
    pod = pod_of(spec, Role.PS, 1)
    assert pod["metadata"]["name"] == "elasticdl-mnist-ps-1"
    assert {f"elasticdl-{name}" for name in ("job-name", "replica-type", "replica-index")} <= pod["metadata"][
        "labels"
    ].keys()
    assert pod["metadata"]["labels"].items() >= {"edl.dev/job": "mnist", "elasticdl-replica-type": "ps"}.items()
    assert pod["metadata"]["ownerReferences"][0]["name"] == "edl-mnist-master", "other objects keep their names"
    master = render_master_pod(job_of(spec)[-1])
    assert master["metadata"]["labels"].items() >= {"elasticdl-replica-index": "0", "app": "elasticdl"}.items()


def test_overrides_of_one_role_and_of_the_service() -> None:
    spread = {"spec": {"schedulerName": "ours", "containers": [{"name": "edl", "workingDir": "/data"}]}}
    service = {"metadata": {"annotations": {"example.com/lb": "internal"}}, "spec": {"type": "NodePort"}}
    spec = replace(
        MNIST,
        pod=replace(MNIST.pod, overrides={"spec": {"schedulerName": "all", "hostname": "h"}}),
        ps=replace(MNIST.ps, overrides=spread),
        master=replace(MNIST.master, service_overrides=service),
    )
    assert not find_spec_problems(spec)
    server, worker = pod_of(spec, Role.PS, 0), pod_of(spec)
    assert (server["spec"]["schedulerName"], worker["spec"]["schedulerName"]) == ("ours", "all")
    assert (server["spec"]["hostname"], container(server)["workingDir"]) == ("h", "/data")
    assert container(server)["image"] == spec.image
    (service_manifest,) = (each for each in job_of(spec) if each["kind"] == "Service")
    assert (service_manifest["spec"]["type"], service_manifest["metadata"]["annotations"]) == (
        "NodePort",
        {"example.com/lb": "internal"},
    )
    assert service_manifest["spec"]["selector"] == {"edl.dev/job": "mnist", "edl.dev/role": "master"}


def test_the_log_pod_reads_the_volume_and_has_no_right() -> None:
    spec = replace(MNIST, master=replace(MNIST.master, log_pod=True), pod=PodSpec(name_prefix="elasticdl"))
    pod = render_log_pod(spec, namespace="team-a", job_uid="uid", run_dir="/data/r", since=9.0, spec_uid="config-uid")
    assert list(violations(pod)) == []
    assert pod["metadata"]["name"] == "elasticdl-mnist-master"
    (only,) = pod["spec"]["containers"]
    assert only["command"][-3:] == ["/data/r/logs/master-0.log", "/data/r/status.json", "9"]
    assert {mount["mountPath"] for mount in only["volumeMounts"] if mount["readOnly"]} == {
        volume.mount for volume in spec.volumes
    }
    assert "token" not in json.dumps(pod["spec"]["volumes"])
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert [(each["kind"], each["controller"]) for each in pod["metadata"]["ownerReferences"]] == [
        ("Job", False),
        ("ConfigMap", True),
    ]
    without = replace(spec, volumes=(), data=DataSpec(), export=None, storage=StorageSpec())
    assert "master.log_pod" in [each.field_path for each in find_spec_problems(without)]


def test_a_folder_of_a_claim_and_the_pull_policy() -> None:
    volumes = (VolumeSpec("/data", claim="c", sub_path="a/b"), VolumeSpec("/out", claim="c"))
    spec = replace(MNIST, volumes=volumes, pod=PodSpec(image_pull_policy="Never"))
    pod = pod_of(spec)
    assert container(pod)["imagePullPolicy"] == "Never"
    assert "imagePullPolicy" not in container(pod_of())
    claims = [each for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each]
    assert len(claims) == 1, "a claim that is mounted twice is one volume"
    mounts = {each["mountPath"]: each for each in container(pod)["volumeMounts"]}
    assert mounts["/data"] == {"name": "volume-0", "mountPath": "/data", "subPath": "a/b"}
    assert mounts["/out"] == {"name": "volume-0", "mountPath": "/out"}


def mounted(spec: JobSpec) -> dict[str, dict[str, Any]]:
    """What the spec's volumes become: the source by mount."""
    pod = pod_of(spec)
    sources = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = container(pod)["volumeMounts"]
    ours = ("/etc/edl", "/home/edl", "/run/edl", "/tmp")
    mounted_sources = {each["mountPath"]: dict(sources[each["name"]]) for each in mounts}
    return {path: source for path, source in mounted_sources.items() if not path.startswith(ours)}


def test_volumes() -> None:
    volumes = (VolumeSpec("/data", claim="a"), VolumeSpec("/zoo", claim="a"), VolumeSpec("/logs", host_path="/var/log"))
    spec = replace(MNIST, volumes=volumes, storage=StorageSpec(claim="b", path="/runs"))
    claim = {"persistentVolumeClaim": {"claimName": "a"}}
    assert mounted(spec) == {
        "/data": {"name": "volume-0", **claim},
        "/zoo": {"name": "volume-0", **claim},
        "/logs": {"name": "volume-2", "hostPath": {"path": "/var/log", "type": "Directory"}},
        "/runs": {"name": "volume-3", "persistentVolumeClaim": {"claimName": "b"}},
    }


def test_storage_without_a_volume() -> None:
    spec = replace(MNIST, volumes=(), data=replace(MNIST.data, training=("odps://a/b",)))
    assert mounted(spec) == {"/edl": {"name": "storage", "emptyDir": {}}}
    assert variables(render_master_pod(job_of(spec)[-1]))["EDL_STORAGE"] == "/edl"
    assert any("volume" in note for note in find_spec_warnings(spec))
    assert find_spec_warnings(MNIST) == []


def test_an_unfit_job_is_not_rendered() -> None:
    with pytest.raises(SpecError, match=r"job mnist: image: .*missing"):
        job_of(replace(MNIST, image=None))


def test_overrides_come_last_and_leave_what_is_ours() -> None:
    overrides = {
        "metadata": {"labels": {"team": "b", "gone": None}, "annotations": {"note": "x"}},
        "spec": {
            "hostname": "h",
            "terminationGracePeriodSeconds": None,
            "securityContext": {"supplementalGroups": [4]},
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "tmp", "emptyDir": {"x": 1}}],
            "tolerations": [],
            "containers": [
                {"name": "edl", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}], "tty": True},
                {"name": "sidecar", "image": "x"},
            ],
        },
    }
    spec = replace(MNIST, pod=PodSpec(labels={"team": "a", "gone": "y"}, overrides=overrides))
    plain, pod = pod_of(MNIST), pod_of(spec)
    assert find_spec_problems(spec) == []
    assert pod["metadata"]["labels"] == plain["metadata"]["labels"] | {"team": "b"}
    assert pod["metadata"]["annotations"]["note"] == "x"
    assert {key: pod["metadata"][key] for key in ("name", "namespace", "ownerReferences")} == {
        key: plain["metadata"][key] for key in ("name", "namespace", "ownerReferences")
    }
    assert (pod["spec"]["hostname"], pod["spec"]["tolerations"]) == ("h", [])
    assert "terminationGracePeriodSeconds" not in pod["spec"]
    assert pod["spec"]["securityContext"] == plain["spec"]["securityContext"] | {"supplementalGroups": [4]}
    assert [each["name"] for each in pod["spec"]["containers"]] == ["edl", "sidecar"]
    added = {"name": "shm", "mountPath": "/dev/shm"}
    assert container(pod) == container(plain) | {
        "tty": True,
        "volumeMounts": [*container(plain)["volumeMounts"], added],
    }
    assert {"name": "tmp", "emptyDir": {"x": 1}} in pod["spec"]["volumes"]


def test_rendering_does_not_need_the_kubernetes_client() -> None:
    code = "import sys, edl.cluster.kubernetes.job_manifests, edl.cli.render; print('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def broken_pods() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "hostNetwork", {"hostNetwork": True}
    yield "volumes.logs", {"volumes": [{"name": "logs", "hostPath": {"path": "/"}}]}
    yield "runAsUser", {"securityContext": {"runAsUser": 0}}
    yield "runAsNonRoot", {"securityContext": {"runAsNonRoot": None}}
    yield "seccompProfile", {"securityContext": {"seccompProfile": None}}
    yield "sysctls.kernel.msgmax", {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}
    contexts: dict[str, dict[str, Any]] = {
        "privileged": {"privileged": True},
        "allowPrivilegeEscalation": {"allowPrivilegeEscalation": None},
        "capabilities.drop": {"capabilities": {"drop": []}},
        "capabilities.add": {"capabilities": {"add": ["SYS_ADMIN"]}},
        "procMount": {"procMount": "Unmasked"},
    }
    for name, context in contexts.items():
        yield name, {"containers": [{"name": "edl", "securityContext": context}]}
    yield "allowPrivilegeEscalation", {"initContainers": [{"name": "init", "image": "x"}]}


@pytest.mark.parametrize(("name", "overrides"), [pytest.param(*each, id=each[0]) for each in broken_pods()])
def test_the_checker_of_the_standard_sees(name: str, overrides: dict[str, Any]) -> None:
    spec = replace(MNIST, pod=PodSpec(overrides={"spec": overrides}))
    assert name in violations(pod_of(spec)["spec"])


def test_a_variable_may_come_from_a_secret_and_then_its_value_is_nowhere_else() -> None:
    spec = replace(MNIST, pod=PodSpec(env={"KEY": SecretKeyRef("bucket", "access-key"), "MODE": "fast"}))
    assert find_spec_problems(spec) == []
    for pod in pods_of(spec):
        env = {each["name"]: each for each in container(pod)["env"]}
        assert env["KEY"] == {
            "name": "KEY",
            "valueFrom": {"secretKeyRef": {"name": "bucket", "key": "access-key"}},
        }
        assert env["MODE"] == {"name": "MODE", "value": "fast"}
    (config,) = (each for each in job_of(spec) if each["metadata"]["name"] == "edl-mnist-spec")
    written = json.loads(config["data"]["job.json"])
    assert written["pod"]["env"] == {"KEY": {"secret": "bucket", "key": "access-key"}, "MODE": "fast"}


@pytest.mark.parametrize(("ttl", "field"), [(None, None), (3600.0, 3600), (90.5, 91)])
def test_the_objects_of_an_ended_job_stay_as_long_as_the_spec_says(ttl: float | None, field: int | None) -> None:
    job = job_of(replace(MNIST, ttl_after_finished=ttl))[-1]
    assert job["spec"].get("ttlSecondsAfterFinished") == field


def test_nodes_that_do_not_count_their_disk_are_asked_for_none_of_it() -> None:
    spec = replace(MNIST, workers=WorkerSpec(resources=WorkerResourceSpec(ephemeral_storage=None)))
    assert "ephemeral-storage" not in str(container(pod_of(spec))["resources"])
