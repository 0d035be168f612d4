"""What docs/design/0005-on-kubernetes.md builds on, asked of this cluster: facts that are not in any API reference.

None of this is EDL's code. When a new Kubernetes answers otherwise, the design has to follow, and this says where.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from e2e import namespaces, site
from e2e.capacity import restrict_new_pods, usable_node_names
from e2e.conftest import ARTIFACTS, MakeNamespace
from e2e.faults import cut_off, lose_node
from e2e.images import JobImages
from e2e.jobs import delete_pod, evict_pod, in_container
from e2e.namespaces import Namespace
from e2e.network_programs import ADDRESSES, CLIENT, PORT, SERVER
from e2e.observer import condition, container, phase
from e2e.pods import pod, template
from e2e.programs import ProgramError, apply, call, kubectl
from e2e.site import TargetSite
from e2e.volume import CLAIM, MOUNT, READER
from e2e.waiting import wait_until

from edl.cluster.kubernetes.api_errors import ResourceExpiredError
from edl.cluster.kubernetes.resource_kinds import PODS, SECRETS, Manifest

pytestmark = [pytest.mark.xdist_group("facts"), pytest.mark.in_turn(1)]

UNTIL_TOLD = "trap 'exit {code}' TERM; echo listening; sleep 1000 & wait"
"""Runs until SIGTERM and ends with a code. Before it listens SIGTERM would pass unnoticed: it is process 1."""


@pytest.fixture(scope="module")
def bare_namespace(target_site: TargetSite, job_images: JobImages) -> Iterator[Namespace]:
    """A namespace that enforces ``restricted``, without anything of EDL's."""
    with namespaces.new_namespace(target_site, job_images, ARTIFACTS / "facts", volume=False, base=False) as namespace:
        yield namespace


@pytest.fixture(scope="module")
def shared_namespace(target_site: TargetSite, job_images: JobImages) -> Iterator[Namespace]:
    """A namespace with the shared claim."""
    with namespaces.new_namespace(target_site, job_images, ARTIFACTS / "facts-volume") as namespace:
        yield namespace


def start_script_pod(namespace: Namespace, name: str, script: str, **spec: Any) -> Manifest:
    """Start a pod that runs a shell script; it runs, or has ended, afterwards."""
    apply(pod(name, namespace.images.submitter, "sh", "-c", script, **spec), "-n", namespace.name)
    started = ("Running", "Succeeded", "Failed")
    return namespace.observer.wait_for(
        f"{name} starts", lambda: script_pod if phase(script_pod := namespace.observer.pod(name)) in started else None
    )


def start_job(namespace: Namespace, name: str, script: str, **job: Any) -> None:
    """Start a Job as EDL's master has it."""
    spec = {
        "backoffLimit": 1000000,
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": template(namespace.images.submitter, "sh", "-c", script, restartPolicy="OnFailure"),
        **job,
    }
    apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}, "-n", namespace.name)


def pod_of(namespace: Namespace, job: str, *, other_than: str = "", seconds: float = 60.0) -> Manifest:
    """The running pod of a Job, of another uid than the one given."""

    def find_running() -> Manifest | None:
        for candidate in namespace.observer.pods():
            meta = candidate["metadata"]
            own = (meta.get("labels") or {}).get("batch.kubernetes.io/job-name") == job
            if own and meta["uid"] != other_than and phase(candidate) == "Running":
                return candidate
        return None

    return namespace.observer.wait_for(f"a pod of the Job {job}", find_running, seconds)


def wait_listening(namespace: Namespace, found: Manifest) -> str:
    """Wait until a pod with UNTIL_TOLD would notice SIGTERM; its name."""
    name = str(found["metadata"]["name"])
    read_log = lambda: call("kubectl", "-n", namespace.name, "logs", name).stdout  # noqa: E731
    namespace.observer.wait_for(f"{name} listens", lambda: "listening" in read_log() or None)
    return name


def container_end(namespace: Namespace, name: str) -> Manifest:
    """The state that a pod's container ended with."""

    def terminated_state() -> Manifest | None:
        return (container(namespace.observer.pod(name) or {"status": {}}).get("state") or {}).get("terminated")

    return namespace.observer.wait_for(f"{name} ends", terminated_state)


# ---------------------------------------------------------------------- Jobs


def test_a_pod_that_exits_0_when_told_to_go_completes_its_job(bare_namespace: Namespace) -> None:
    """With `TerminatingOrFailed` it is a race that the pod wins if it ends within the controller's next look at it."""
    start_job(bare_namespace, "obedient", UNTIL_TOLD.format(code=0), podReplacementPolicy="Failed")
    delete_pod(bare_namespace, wait_listening(bare_namespace, pod_of(bare_namespace, "obedient")), "--grace-period=20")
    bare_namespace.observer.wait_for(
        "the Job completes", lambda: condition(bare_namespace.observer.job("obedient") or {}, "Complete")
    )


def test_a_pod_that_exits_143_is_replaced(bare_namespace: Namespace) -> None:
    start_job(bare_namespace, "persistent", UNTIL_TOLD.format(code=143))
    first = pod_of(bare_namespace, "persistent")
    delete_pod(bare_namespace, wait_listening(bare_namespace, first), "--grace-period=20")
    pod_of(bare_namespace, "persistent", other_than=first["metadata"]["uid"])
    assert condition(bare_namespace.observer.job("persistent") or {}, "Complete") is None


def test_a_crashed_container_restarts_in_its_pod(bare_namespace: Namespace) -> None:
    """With an emptyDir as memory: the first life crashes, the second stays."""
    memory = {"volumes": [{"name": "m", "emptyDir": {}}], "mounts": [{"name": "m", "mountPath": "/memory"}]}
    script = "test -e /memory/x && sleep 1000; touch /memory/x; exit 1"
    spec = template(bare_namespace.images.submitter, "sh", "-c", script, restartPolicy="OnFailure", **memory)
    start_job(bare_namespace, "crashing", "", template=spec)
    first = pod_of(bare_namespace, "crashing")["metadata"]["uid"]
    again = bare_namespace.observer.wait_for(
        "the container restarts",
        lambda: next((p for p in bare_namespace.observer.pods() if container(p).get("restartCount", 0) == 1), None),
        20,
    )
    assert again["metadata"]["uid"] == first


def test_a_suspended_job_has_no_pod_until_it_is_let_go(bare_namespace: Namespace) -> None:
    start_job(bare_namespace, "suspended", "sleep 1000", suspend=True)
    bare_namespace.observer.wait_for(
        "it is suspended", lambda: condition(bare_namespace.observer.job("suspended") or {}, "Suspended")
    )
    named = [p for p in bare_namespace.observer.pods() if p["metadata"]["name"].startswith("suspended")]
    assert named == []
    bare_namespace.kubectl("patch", "job", "suspended", "-p", '{"spec":{"suspend":false}}')
    pod_of(bare_namespace, "suspended")


def test_setting_the_back_off_limit_to_0_makes_the_next_failure_the_last(bare_namespace: Namespace) -> None:
    start_job(bare_namespace, "failing", "sleep 4; exit 1")
    pod_of(bare_namespace, "failing")
    bare_namespace.kubectl("patch", "job", "failing", "-p", '{"spec":{"backoffLimit":0}}')
    bare_namespace.observer.wait_for(
        "the Job fails", lambda: condition(bare_namespace.observer.job("failing") or {}, "Failed")
    )


@pytest.mark.matrix
def test_a_job_replaces_deleted_pods_after_10_seconds_and_then_after_20(bare_namespace: Namespace) -> None:
    """The Job controller's back-off: a pod that is deleted counts as a failure."""
    start_job(bare_namespace, "deleted", UNTIL_TOLD.format(code=143))
    waits = []
    for _ in range(2):
        job_pod = pod_of(bare_namespace, "deleted")
        uid, name = job_pod["metadata"]["uid"], wait_listening(bare_namespace, job_pod)
        delete_pod(bare_namespace, name)
        after = pod_of(bare_namespace, "deleted", other_than=uid)["metadata"]["uid"]
        gone = bare_namespace.observer.wait_change(
            "it goes", lambda change, uid=uid: change.uid == uid and change.being_deleted
        )
        replacement = bare_namespace.observer.wait_change("it is replaced", lambda change, uid=after: change.uid == uid)
        waits.append(replacement.happened_at - gone.happened_at)
    assert 8 < waits[0] < 16, waits
    assert 18 < waits[1] < 30, waits


# ---------------------------------------------------------------------- owners


def start_owned_pod(namespace: Namespace, name: str, job: str, *, controller: bool) -> None:
    """A pod that is owned by a Job."""
    uid = (namespace.observer.wait_for("the Job", lambda: namespace.observer.job(job)))["metadata"]["uid"]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job,
        "uid": uid,
        "controller": controller,
        "blockOwnerDeletion": False,
    }
    manifest = pod(name, namespace.images.submitter, "sleep", "1000")
    manifest["metadata"]["ownerReferences"] = [owner]
    apply(manifest, "-n", namespace.name)
    namespace.observer.wait_for(f"{name} runs", lambda: phase(namespace.observer.pod(name)) == "Running" or None)


def owner_names(namespace: Namespace, name: str) -> list[str]:
    manifest = namespace.observer.pod(name) or {"metadata": {}}
    return [owner["name"] for owner in manifest["metadata"].get("ownerReferences") or ()]


def test_an_owner_that_is_no_controller_is_kept_and_takes_its_pods_along(bare_namespace: Namespace) -> None:
    start_job(bare_namespace, "owner", "sleep 1000")
    start_owned_pod(bare_namespace, "mine", "owner", controller=False)
    start_owned_pod(bare_namespace, "claimed", "owner", controller=True)
    bare_namespace.observer.wait_for(
        "the Job controller lets go of a pod that its selector does not choose",
        lambda: owner_names(bare_namespace, "claimed") == [] or None,
    )
    assert owner_names(bare_namespace, "mine") == ["owner"]
    bare_namespace.kubectl("delete", "job", "owner", "--cascade=background")
    bare_namespace.observer.wait_for("its pods go with it", lambda: bare_namespace.observer.pod("mine") is None or None)
    assert phase(bare_namespace.observer.pod("claimed")) == "Running"


def owning_config_map(namespace: Namespace, job: str) -> Manifest:
    """A ConfigMap that a Job owns, as a controller's reference to it."""
    uid = (namespace.observer.wait_for("the Job", lambda: namespace.observer.job(job)))["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": False}
    config_map = namespace.api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": job, "ownerReferences": [owner]}}
    )
    meta = config_map["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"], "controller": True}


def drain_output(found: Manifest) -> str:
    """What ``kubectl drain`` says to one pod; it changes nothing."""
    selector = f"--pod-selector=fact={found['metadata']['labels']['fact']}"
    done = call("kubectl", "drain", found["spec"]["nodeName"], "--dry-run=server", selector)
    return done.stdout + done.stderr


@pytest.mark.parametrize("way", ["background", "foreground"])
def test_drain_asks_for_any_controller_and_one_that_the_job_owns_goes_with_it(
    bare_namespace: Namespace, way: str
) -> None:
    start_job(bare_namespace, way, "sleep 1000")
    job = bare_namespace.observer.wait_for("the Job", lambda: bare_namespace.observer.job(way))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": way, "uid": job["metadata"]["uid"], "controller": False}
    for name, owners_ in (("lonely", [owner]), ("kept", [owner, owning_config_map(bare_namespace, way)])):
        manifest = pod(
            f"{name}-{way}", bare_namespace.images.submitter, "sleep", "1000", labels={"fact": f"{name}-{way}"}
        )
        manifest["metadata"]["ownerReferences"] = owners_
        bare_namespace.api.create(manifest)
        running = lambda name=name: (phase(bare_namespace.observer.pod(f"{name}-{way}")) == "Running") or None  # noqa: E731
        bare_namespace.observer.wait_for(f"{name} runs", running)
    assert "declare no controller" in drain_output(bare_namespace.observer.pod(f"lonely-{way}") or {})
    assert f"/kept-{way} (server dry run)" in drain_output(bare_namespace.observer.pod(f"kept-{way}") or {})
    bare_namespace.kubectl("delete", "job", way, f"--cascade={way}")
    for name in ("lonely", "kept"):
        bare_namespace.observer.wait_for(
            f"{name} goes with the Job", lambda name=name: bare_namespace.observer.pod(f"{name}-{way}") is None or None
        )
    bare_namespace.observer.wait_for(
        "so does the ConfigMap", lambda: way not in bare_namespace.kubectl("get", "configmaps", "-o", "name") or None
    )


def test_a_deletion_without_a_policy_orphans(bare_namespace: Namespace) -> None:
    start_job(bare_namespace, "careless", "sleep 1000")
    name = pod_of(bare_namespace, "careless")["metadata"]["name"]
    kubectl("delete", "--raw", f"/apis/batch/v1/namespaces/{bare_namespace.name}/jobs/careless")
    bare_namespace.observer.wait_for("the Job goes", lambda: bare_namespace.observer.job("careless") is None or None)
    bare_namespace.observer.wait_for("its pod has no owner", lambda: owner_names(bare_namespace, name) == [] or None)
    assert phase(bare_namespace.observer.pod(name)) == "Running"


# ---------------------------------------------------------------------- what is refused, and where


def test_pod_security_refuses_pods_and_accepts_their_jobs(bare_namespace: Namespace) -> None:
    spec = template(bare_namespace.images.submitter, "sleep", "1000", restartPolicy="OnFailure", hostNetwork=True)
    start_job(bare_namespace, "forbidden", "", template=spec)
    with pytest.raises(ProgramError, match="violates PodSecurity"):
        apply(
            pod("forbidden", bare_namespace.images.submitter, "sleep", "1", hostNetwork=True),
            "-n",
            bare_namespace.name,
            "--dry-run=server",
        )
    bare_namespace.observer.wait_for(
        "the Job's event", lambda: "violates PodSecurity" in bare_namespace.kubectl("get", "events") or None
    )


def test_restricted_refuses_host_paths(bare_namespace: Namespace) -> None:
    volumes = [{"name": "host", "hostPath": {"path": "/tmp"}}]
    with pytest.raises(ProgramError, match="hostPath"):
        apply(
            pod("reaching", bare_namespace.images.submitter, "sleep", "1", volumes=volumes), "-n", bare_namespace.name
        )


def test_an_immutable_secret_stays_as_it_is(bare_namespace: Namespace) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fixed"}, "immutable": True}
    apply({**secret, "stringData": {"token": "one"}}, "-n", bare_namespace.name)
    with pytest.raises(ProgramError, match="immutable"):
        apply({**secret, "stringData": {"token": "two"}}, "-n", bare_namespace.name)
    assert bare_namespace.api.get(SECRETS, "fixed")["immutable"] is True


# ---------------------------------------------------------------------- how pods end


def test_exit_code_137_has_more_than_one_meaning(bare_namespace: Namespace) -> None:
    start_script_pod(bare_namespace, "killed", "exit 137", restartPolicy="Never")
    hungry = pod("hungry", bare_namespace.images.submitter, "tail", "/dev/zero", restartPolicy="Never")
    hungry["spec"]["containers"][0]["resources"]["limits"] = {"memory": "32Mi"}
    apply(hungry, "-n", bare_namespace.name)
    ends = {name: container_end(bare_namespace, name) for name in ("killed", "hungry")}
    assert [(state["exitCode"], state["reason"]) for state in ends.values()] == [(137, "Error"), (137, "OOMKilled")]


def test_an_eviction_says_so(bare_namespace: Namespace) -> None:
    script = UNTIL_TOLD.format(code=143)
    script_pod = start_script_pod(
        bare_namespace, "evicted", script, restartPolicy="Never", terminationGracePeriodSeconds=20
    )
    evict_pod(bare_namespace, wait_listening(bare_namespace, script_pod))
    disrupted = bare_namespace.observer.wait_change(
        "the condition DisruptionTarget",
        lambda change: change.name == "evicted" and condition(change.object, "DisruptionTarget") is not None,
    )
    assert (condition(disrupted.object, "DisruptionTarget") or {})["reason"] == "EvictionByEvictionAPI"


def test_a_deleted_pod_keeps_its_name_until_it_is_gone(bare_namespace: Namespace) -> None:
    start_script_pod(
        bare_namespace, "slow", "trap '' TERM; sleep 1000 & wait; sleep 1000", terminationGracePeriodSeconds=600
    )
    uid = (bare_namespace.observer.pod("slow") or {})["metadata"]["uid"]
    delete_pod(bare_namespace, "slow")
    bare_namespace.observer.wait_for(
        "it is leaving", lambda: phase(bare_namespace.observer.pod("slow")) == "Leaving" or None
    )
    with pytest.raises(ProgramError, match="AlreadyExists"):
        kubectl(
            "-n",
            bare_namespace.name,
            "create",
            "-f",
            "-",
            stdin=json.dumps(pod("slow", bare_namespace.images.submitter, "sleep", "1")),
        )
    bare_namespace.api.delete(PODS, "slow", uid=uid, grace=0)
    bare_namespace.observer.wait_for("it is gone", lambda: bare_namespace.observer.pod("slow") is None or None, 10)
    start_script_pod(bare_namespace, "slow", "sleep 1000")


# ---------------------------------------------------------------------- addresses


def start_service(namespace: Namespace, name: str, **spec: Any) -> str:
    """A Service with one pod of the same name behind it, both running; the pod's address."""
    server = pod(name, namespace.images.submitter, "python3", "-c", SERVER, labels={"app": name}, **spec.pop("pod", {}))
    ports = [{"port": PORT}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}
    apply({**service, "spec": {"selector": {"app": name}, "ports": ports, **spec}}, "-n", namespace.name)
    apply(server, "-n", namespace.name)
    ready = lambda: condition(namespace.observer.pod(name) or {}, "Ready") and namespace.observer.pod(name)  # noqa: E731
    return str(namespace.observer.wait_for(f"{name} is ready", ready)["status"]["podIP"])


def wait_for_log(namespace: Namespace, name: str, what: str, seconds: float = 60.0) -> str:
    """All that a pod has said, once ``what`` is in it."""
    read_log = lambda: call("kubectl", "-n", namespace.name, "logs", name).stdout  # noqa: E731
    return str(
        namespace.observer.wait_for(
            f"{name} says {what}", lambda: text if what in (text := read_log()) else None, seconds
        )
    )


def start_connected_pod(namespace: Namespace, service: str) -> str:
    """A pod with a connection through the Service; its name."""
    name = f"to-{service}"
    apply(pod(name, namespace.images.submitter, "python3", "-c", CLIENT, service), "-n", namespace.name)
    wait_for_log(namespace, name, "connected")
    return name


def test_dns_answers_of_a_headless_service_may_be_old(bare_namespace: Namespace) -> None:
    """Whoever asked may keep the address of a pod for as long as the answer says: up to 30 seconds."""
    address = start_service(bare_namespace, "headless", clusterIP="None")
    start_script_pod(bare_namespace, "asking", "sleep 1000")
    ask = lambda: json.loads(in_container(bare_namespace, "asking", "python3", "-c", ADDRESSES, "headless") or "{}")  # noqa: E731
    time_to_live = bare_namespace.observer.wait_for("the pod's address", lambda: ask().get(address))
    assert 0 < time_to_live <= 30


def test_a_connection_to_a_pod_whose_processes_end_is_told_and_a_new_one_refused(bare_namespace: Namespace) -> None:
    """A pod deleted by force on a node that is up: its kernel says so. Then no pod is behind the Service's address."""
    start_service(bare_namespace, "forced")
    client = start_connected_pod(bare_namespace, "forced")
    delete_pod(bare_namespace, "forced", "--grace-period=0", "--force")
    assert "reached" not in wait_for_log(bare_namespace, client, "refused")
    assert "told" in wait_for_log(bare_namespace, client, "refused")


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.long  # test_nodes_lost_and_cut_off builds on it, too
def test_a_connection_to_a_vanished_pod_hangs(bare_namespace: Namespace) -> None:
    """Nobody is left who could reset a connection through a ClusterIP: hence keepalive, and deadlines on calls."""
    node = usable_node_names(bare_namespace.api)[0]
    with restrict_new_pods([node]):
        start_service(bare_namespace, "vanishing")
    with restrict_new_pods([other for other in site.nodes() if other != node]):
        client = start_connected_pod(bare_namespace, "vanishing")
    with cut_off(bare_namespace.site.faults, node):
        delete_pod(bare_namespace, "vanishing", "--grace-period=0", "--force")
        bare_namespace.observer.wait_for(
            "it is gone", lambda: bare_namespace.observer.pod("vanishing") is None or None, 20
        )
        before = wait_for_log(bare_namespace, client, "connected").count("silent\n")
        log = wait_for_log(bare_namespace, client, "silent\n" * (before + 10))
        assert "told" not in log


# ---------------------------------------------------------------------- volumes


def test_fs_group_does_not_change_who_owns_a_shared_volume(shared_namespace: Namespace) -> None:
    """It does on an emptyDir: the pod that may write to one may still be unable to write to the other."""
    volumes = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}},
        {"name": "own", "emptyDir": {}},
    ]
    mounts = [{"name": "shared", "mountPath": MOUNT}, {"name": "own", "mountPath": "/own"}]
    before = in_container(shared_namespace, READER, "stat", "-c", "%g", MOUNT).split()
    grouped = pod("grouped", shared_namespace.images.submitter, "sleep", "1000", volumes=volumes, mounts=mounts)
    grouped["spec"]["securityContext"]["fsGroup"] = 2345
    apply(grouped, "-n", shared_namespace.name)
    shared_namespace.observer.wait_for(
        "it runs", lambda: phase(shared_namespace.observer.pod("grouped")) == "Running" or None
    )
    assert before != ["2345"]
    assert in_container(shared_namespace, "grouped", "stat", "-c", "%g", MOUNT, "/own").split() == [*before, "2345"]


# ---------------------------------------------------------------------- admission


def test_a_quota_refuses_pods_and_not_the_job_that_makes_them(make_namespace: MakeNamespace) -> None:
    """So a Job is no sign that its pod can be: `edl submit` tries a pod of each role first."""
    namespace = make_namespace(volume=False)
    spec = {"hard": {"pods": str(len(namespace.observer.pods()))}}
    apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": spec}, "-n", namespace.name
    )
    namespace.observer.wait_for(
        "the quota counts", lambda: namespace.kubectl("get", "quota/full", "-o", "jsonpath={.status.hard}")
    )
    start_job(namespace, "unstaffed", "true")
    read_description = lambda: namespace.kubectl("describe", "job/unstaffed")  # noqa: E731
    namespace.observer.wait_for("its pod is refused", lambda: "exceeded quota: full" in read_description() or None)


def test_a_pod_tolerates_a_dead_node_as_long_as_the_cluster_says(bare_namespace: Namespace) -> None:
    """Five minutes, unless the API server was told otherwise: hence EDL's pods bring tolerations of their own."""
    tolerations = start_script_pod(bare_namespace, "tolerant", "sleep 1000")["spec"]["tolerations"]
    seconds = {entry["key"]: entry["tolerationSeconds"] for entry in tolerations if entry.get("effect") == "NoExecute"}
    assert seconds.keys() == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert all(value > 0 for value in seconds.values())


# ---------------------------------------------------------------------- watches


def test_a_watch_from_long_ago_answers_410(bare_namespace: Namespace) -> None:
    """The API server forgets the versions that etcd no longer has: those of a new cluster after five minutes."""

    def is_refused() -> bool:
        try:
            with bare_namespace.api.watch(PODS, resource_version="1", timeout_seconds=2) as stream:
                for _ in stream.events():
                    pass
        except ResourceExpiredError:
            return True
        return False

    wait_until("a watch from the first version is refused", is_refused, 400)


# ---------------------------------------------------------------------- dead nodes


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.matrix  # test_nodes_lost_and_cut_off builds on it, too
def test_a_pod_of_a_dead_node_stays_until_it_is_forced(bare_namespace: Namespace) -> None:
    node = usable_node_names(bare_namespace.api)[0]
    dying = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for taint in ("not-ready", "unreachable")
    ]
    with restrict_new_pods([node]):
        uid = start_script_pod(bare_namespace, "doomed", "sleep 1000", tolerations=dying)["metadata"]["uid"]
    with lose_node(bare_namespace.site.faults, node):
        leaving = bare_namespace.observer.wait_change(
            "the pod is told to go", lambda change: change.name == "doomed" and change.being_deleted, 120
        )
        assert (condition(leaving.object, "DisruptionTarget") or {})["reason"] == "DeletionByTaintManager"
        assert phase(bare_namespace.observer.pod("doomed")) == "Leaving"
        bare_namespace.api.delete(PODS, "doomed", uid=uid, grace=0)
        bare_namespace.observer.wait_for(
            "its name is free", lambda: bare_namespace.observer.pod("doomed") is None or None, 10
        )
