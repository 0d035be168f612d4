"""The master's pod or process goes: the next one adopts what runs, and the job ends as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e import figures
from e2e.baseline import UndisturbedBaseline
from e2e.jobs import ClusterJob, delete_pod, digits, evict_pod, in_container
from e2e.ledger import FetchedRun, finish_and_count
from e2e.namespaces import Namespace
from e2e.observer import DELETED, container, phase
from e2e.timestamps import containers, longest_pause

KILL_CHILD = """
import os, signal, time
print(time.time(), flush=True)
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) > 1 and b"edl.master" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(int(pid), signal.SIGKILL)
"""


def start_training(namespace: Namespace, name: str, seconds: float = 45) -> ClusterJob:
    """A job of two workers in the middle of its work."""
    job = ClusterJob.write(namespace, digits(name, image=namespace.images.zoo, seconds=seconds, workers=2))
    job.submit()
    job.wait_training(workers=2)
    job.wait_step(60)
    return job


def check_adopted(
    job: ClusterJob, before: int, undisturbed: Callable[[int], UndisturbedBaseline], disturb: Callable[[], object]
) -> FetchedRun:
    """Disturb the master: the same pods go on under the next one, and the ledger is whole."""
    workers, servers = job.worker_uids(), job.ps_uids()
    disturb()
    job.wait_incarnation(before)
    job.wait_more_steps()
    assert job.end_condition() is None
    assert (job.worker_uids(), job.ps_uids()) == (workers, servers), "adopted, not started anew"
    summary, run = finish_and_count(job)
    undisturbed(2).check_summary(summary)
    assert (summary["workers_lost"], summary["records_repeated"], summary["updates_rolled_back"]) == (0, 0, 0)
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []
    return run


DELETIONS = {
    "grace": lambda namespace, pod: delete_pod(namespace, pod),
    "force": lambda namespace, pod: delete_pod(namespace, pod, "--grace-period=0", "--force"),
    "eviction": evict_pod,
}


@pytest.mark.parametrize(
    "how",
    [
        "force",
        pytest.param("grace", marks=pytest.mark.in_turn(0)),
        pytest.param("eviction", marks=pytest.mark.in_turn(1)),
    ],
)
def test_master_pod_goes(namespace: Namespace, undisturbed: Callable[[int], UndisturbedBaseline], how: str) -> None:
    job = start_training(namespace, how)
    name, before = job.master()["metadata"]["name"], job.status()["incarnation"]
    run = check_adopted(job, before, undisturbed, lambda: DELETIONS[how](namespace, name))
    deletion = namespace.observer.first_change(
        lambda change: change.name == name and (change.being_deleted or change.type == DELETED)
    )
    assert deletion is not None
    successor, started = containers(run.folder, "master-0")[-1]
    assert successor != name
    idle = longest_pause(run.folder, after=started)
    figures.record_duration("master_deleted", idle.ended_at - started, how=how)
    figures.record_duration("master_back_off", started - deletion.happened_at, how=how)
    figures.record_duration("workers_idle", idle.seconds, how=how)


def test_master_process_killed(namespace: Namespace, undisturbed: Callable[[int], UndisturbedBaseline]) -> None:
    job = start_training(namespace, "killed")
    pod, before = job.master()["metadata"], job.status()["incarnation"]
    killed: list[float] = []
    kill = lambda: killed.append(float(in_container(namespace, pod["name"], "python3", "-c", KILL_CHILD)))  # noqa: E731
    run = check_adopted(job, before, undisturbed, kill)
    again = namespace.observer.first_change(
        lambda c: c.uid == pod["uid"] and container(c.object).get("restartCount") == 1
    )
    assert again is not None
    assert container(again.object)["lastState"]["terminated"]["exitCode"] == 137
    figures.record_duration("master_killed", longest_pause(run.folder, after=killed[0]).ended_at - killed[0])


@pytest.mark.matrix
@pytest.mark.parametrize("step", [1, 200, 600])
@pytest.mark.parametrize("how", [*DELETIONS, "kill"])
def test_master_faults_at_every_step(
    namespace: Namespace, undisturbed: Callable[[int], UndisturbedBaseline], how: str, step: int
) -> None:
    job = ClusterJob.write(namespace, digits(f"{how}-{step}", image=namespace.images.zoo, seconds=60, workers=2))
    job.submit()
    job.wait_step(step)
    name, before = job.master()["metadata"]["name"], job.status()["incarnation"]
    if how == "kill":
        in_container(namespace, name, "python3", "-c", KILL_CHILD)
    else:
        DELETIONS[how](namespace, name)
    job.wait_incarnation(before)
    summary, _ = finish_and_count(job)
    undisturbed(2).check_summary(summary)
    assert summary["records_repeated"] == 0
    assert all(phase(pod) == "Succeeded" for pod in job.masters() if pod["metadata"]["name"] != name)
