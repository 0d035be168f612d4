"""Between SIGTERM and the master's end: the job is left as it is, to the next master or to whoever deletes it."""

from __future__ import annotations

import threading
from typing import Any

from master.in_process_job import RECORDS, in_process_job
from master.master_stubs import LONG
from support.fake_cluster import FakeCluster

from edl.api.cluster_port import Role
from edl.core.events import DeletePod, StartPod
from edl.master.pod_controller import PodController
from edl.simulation.clock import VirtualClock


def test_a_master_that_is_told_to_go_asks_for_nothing_more() -> None:
    """Its job may be going too: a pod that it asks for now is one more that somebody has to remove."""
    with in_process_job(workers={"max": 1}) as job:

        def go(worker: Any) -> None:
            job.stopping.set()
            job.cluster.kill(worker.uid)

        job.at_step[6] = go
        assert job.run_master() == 143
        assert {pod.index for pod in job.cluster.pods() if pod.role is Role.WORKER} == {0}
        assert [event["index"] for event in job.events("role_asked") if event["role"] == "worker"] == [0]
        assert job.run_master() == 0
        assert {pod["index"] for pod in job.events("role_asked") if pod["role"] == "worker"} == {0, 1}
        assert (job.summary()["records_done"], job.summary()["records_lost"]) == (RECORDS, 0)


def test_what_was_decided_in_the_last_moment_is_not_started_any_more() -> None:
    cluster = FakeCluster(VirtualClock())
    uid = cluster.start(Role.PS, 0)
    served = threading.Event()
    cluster.subscribe(lambda pod: served.set())
    pods = PodController(cluster.connect())
    pods.execute(StartPod(Role.WORKER, 0))
    pods.execute(DeletePod(uid, 0.0))
    failures: list[Exception] = []
    pods.start(lambda event: None, failures.append, is_leaving=lambda: True)
    assert served.wait(LONG)
    pods.close()
    assert (cluster.pods(), failures) == ([], [])
