"""A master among others: with a fence that comes and goes, a board that people read, and a Job that ends."""

from __future__ import annotations

import json
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from master.in_process_job import RECORDS, InProcessJob, ScriptedWorker, in_process_job
from master.master_stubs import LONG, ShellHarness

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.errors import BadInputError, RetryableError
from edl.api.run_events import WarningRaised
from edl.cluster.local.desired_state_file import DesiredStateFile
from edl.cluster.local.local_cluster import LocalCluster
from edl.cluster.status_port import DesiredState
from edl.core.events import LeaseRequested, PodChanged, Tick
from edl.jobfile.published_status import PublishedStatus
from edl.master import status_publication, status_reporter
from edl.master.backend import LocalMasterBackend, choose_backend
from edl.master.master_process import BEGINS_ANEW_MESSAGE, serve_job
from edl.master.shell import FencedClock, MasterEndsError, MasterFrozenError
from edl.storage.durable_files import read_json
from edl.transport import edl_pb2 as pb
from edl.transport.control_methods import MasterMethods as Methods
from edl.worker.data_wait import WARNING_TOPIC, describe_wait

EPOCHS = 20
LONGER = {"minibatch_size": 2, "minibatches_per_task": 4, "epochs": EPOCHS}
"""Long enough that a master which is told to go has gone before the end."""


class ScriptedFence:
    def __init__(self, incarnation: int = 1) -> None:
        self.incarnation = incarnation
        self.held, self.gone = True, False
        self.asked = threading.Semaphore(0)

    def holds(self) -> bool:
        self.asked.release()
        return self.held

    def lost(self) -> bool:
        return self.gone

    def release(self) -> None:
        self.held = False


class ScriptedPublisher:
    def __init__(self) -> None:
        self.pages: list[Mapping[str, str]] = []
        self.more = threading.Semaphore(0)
        self.wishes: queue.Queue[DesiredState | None] = queue.Queue()

    def publish(self, pages: Mapping[str, str]) -> None:
        self.pages.append(pages)
        self.more.release()

    def watch_desired_state(self) -> Iterator[DesiredState]:
        while (wish := self.wishes.get()) is not None:
            yield wish

    def close(self) -> None:
        self.wishes.put(None)

    def read(self) -> PublishedStatus:
        return PublishedStatus.from_configmap_data(self.pages[-1])


class PodBackend:
    """Surroundings as on Kubernetes, without one."""

    gone_seconds = 1.5

    def __init__(self, job: InProcessJob, incarnation: int = 1, *, durable: bool = True) -> None:
        self.durable = durable
        self.cluster = job.cluster.connect()
        self.fence, self.status_publisher = ScriptedFence(incarnation), ScriptedPublisher()
        self.desired_states = self.status_publisher
        self.calls: list[str] = []
        self.admitted = True

    def acquire(self, stopping: threading.Event) -> bool:
        return self.admitted

    def conclude(self, *, failed: bool) -> int:
        assert self.fence.held
        self.calls.append("failed" if failed else "done")
        return 1 if failed else 0

    def close(self) -> None:
        self.status_publisher.close()
        self.fence.release()
        self.calls.append("released")


def test_a_job_that_is_done_says_so_on_the_board_and_by_its_exit_code() -> None:
    with in_process_job() as job:
        pod = PodBackend(job)
        assert job.run_master(pod) == 0
        assert pod.calls == ["done", "released"]
        published = pod.status_publisher.read()
        assert published.status is not None
        assert published.status.phase == "Done"
        assert published.summary is not None
        assert published.summary.records_done == RECORDS
        assert published.events[-1].kind == "job_ended"
        assert published.timeline[-1].records_done == RECORDS
        assert [pod for pod in job.cluster.pods() if not pod.has_ended] == []
        assert not (job.run.journal / "LOCK").exists()


def test_what_a_worker_warns_of_is_published_for_commands_and_in_the_summary() -> None:
    text = describe_wait(0.6, 30.0)

    def warn(worker: ScriptedWorker) -> None:
        member = pb.Member(role="worker", index=0, uid=worker.uid)
        warning = pb.WorkerWarning(topic=WARNING_TOPIC, text=text)
        with closing(job.connect()) as channel:
            channel.call(Methods.Progress, pb.ProgressRequest(member=member, warnings=[warning]), timeout=LONG)

    with in_process_job() as job:
        job.at_step |= {3: warn, 5: warn}
        pod = PodBackend(job)
        assert job.run_master(pod) == 0
        assert job.summary()["warnings"] == [text]
    published = pod.status_publisher.read()
    assert [event.message for event in published.events if isinstance(event, WarningRaised)] == [text]
    assert published.summary is not None
    assert published.summary.warnings == (text,)


def test_who_reads_that_a_job_has_ended_reads_all_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_publication, "PERIOD_SECONDS", 0.001)
    with in_process_job() as job:
        pod = PodBackend(job)
        assert job.run_master(pod) == 0
    pages = [PublishedStatus.from_configmap_data(page) for page in pod.status_publisher.pages]
    done_pages = [page for page in pages if page.status is not None and page.status.phase == "Done"]
    assert len(pages) > len(done_pages) > 0
    for page in done_pages:
        assert page.summary is not None
        assert page.summary.logs == str(job.run.logs)
        assert page.events[-1].kind == "job_ended"


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.repetition), 2])
def test_a_master_without_its_journal_does_not_train_on_what_the_one_before_it_left(count: int) -> None:
    def versions() -> list[int]:
        servers = [played.server for played in job.servers.values()]
        return [server.pull(server.require_declaration(), np.zeros(3, np.float32)) for server in servers]

    at_end: list[int] = []
    results = {"export": lambda task: at_end.extend(versions()) or ["x"]}
    with in_process_job(results, export={}, ps={"count": count}, train=LONGER) as job:
        job.at_step[7] = lambda worker: job.stopping.set()
        assert job.run_master(PodBackend(job, durable=False)) == 143
        assert all(versions())
        shutil.rmtree(job.run.path)  # it was in the pod of that master
        job.run.journal.mkdir(parents=True)
        after = PodBackend(job, 2, durable=False)
        assert job.run_master(after) == 0
        assert (job.summary()["records_done"], job.summary()["records_lost"]) == (EPOCHS * RECORDS, 0)
        assert set(at_end) == {EPOCHS * RECORDS // 2}, "every step once, none of them on top of earlier ones"
        assert job.events("warning")[0]["message"] == BEGINS_ANEW_MESSAGE
        assert BEGINS_ANEW_MESSAGE in [
            event.message for event in after.status_publisher.read().events if isinstance(event, WarningRaised)
        ]


def test_a_first_master_and_one_that_finds_its_journal_do_not_begin_anew() -> None:
    with in_process_job(train=LONGER) as job:
        job.at_step[7] = lambda worker: job.stopping.set()
        assert job.run_master(PodBackend(job, durable=False)) == 143
        assert job.run_master(PodBackend(job, 2, durable=False)) == 0
        assert not [event for event in job.events("warning") if event["message"] == BEGINS_ANEW_MESSAGE]
        assert [event["index"] for event in job.events("role_asked") if event["role"] == "ps"] == [0], "once"


def test_the_end_is_told_once_though_a_container_restarts_after_it() -> None:
    with in_process_job(train={"minibatch_size": 2, "minibatches_per_task": 4, "epochs": 500}) as job:
        pod = PodBackend(job)
        job.at_step[4] = lambda worker: pod.status_publisher.wishes.put(DesiredState(stop=True))
        assert job.run_master(pod) == 1
        for incarnation in (2, 3):
            again = PodBackend(job, incarnation)
            assert job.run_master(again) == 1
            assert again.status_publisher.read().events[-1].kind == "job_ended"
        assert [event["phase"] for event in job.events("job_ended")] == ["Interrupted"]


def test_a_job_that_fails_tells_why_before_nobody_restarts_its_master() -> None:
    with in_process_job(data={"training": "empty.csv"}) as job:
        pod = PodBackend(job)
        assert job.run_master(pod) == 1
        assert pod.calls == ["failed", "released"]
        published = pod.status_publisher.read()
        assert published.failure is not None
        assert "no records" in published.failure.reason


def test_a_master_that_is_told_to_go_leaves_pods_gives_the_lease_back_and_is_replaced() -> None:
    with in_process_job() as job:
        job.at_step[6] = lambda worker: job.stopping.set()
        pod = PodBackend(job)
        assert job.run_master(pod) == 143
        assert pod.calls == ["released"]
        assert all(not each.has_ended for each in job.cluster.pods())
        following = PodBackend(job, incarnation=7)
        assert job.run_master(following) == 0
        assert following.status_publisher.read().status.incarnation == 7  # type: ignore[union-attr]
        assert job.summary()["records_lost"] == 0


def test_one_that_never_had_its_turn_touches_nothing() -> None:
    with in_process_job() as job:
        pod = PodBackend(job)
        pod.admitted = False
        assert job.run_master(pod) == 143
        assert pod.calls == ["released"]
        assert list(job.run.journal.iterdir()) == []


def test_a_stop_that_is_pinned_to_the_job_ends_it_as_interrupted() -> None:
    with in_process_job(train={"minibatch_size": 2, "minibatches_per_task": 4, "epochs": 500}) as job:
        pod = PodBackend(job)
        pod.status_publisher.wishes.put(DesiredState())
        job.at_step[4] = lambda worker: pod.status_publisher.wishes.put(DesiredState(stop=True))
        assert job.run_master(pod) == 1
        assert pod.calls == ["failed", "released"]
        assert read_json(job.run.status)["phase"] == "Interrupted"
        assert [each for each in job.cluster.pods() if not each.has_ended] == []


def test_a_scale_that_is_pinned_to_the_job_is_in_the_journal_once() -> None:
    with in_process_job() as job:
        pod = PodBackend(job)
        for _ in range(2):
            pod.status_publisher.wishes.put(DesiredState(max=3))
        assert job.run_master(pod) == 0
        assert [(entry["min"], entry["max"]) for entry in job.entries("scaled")] == [(None, 3)]


def test_a_master_that_lost_its_lease_ends_and_says_nothing_more() -> None:
    with in_process_job(train={"minibatch_size": 2, "minibatches_per_task": 4, "epochs": 500}) as job:
        pod = PodBackend(job)

        def lose(worker: Any) -> None:
            pod.fence.held, pod.fence.gone = False, True

        job.at_step[6] = lose
        before = job.run_master
        assert before(pod) == 1
        assert pod.calls == ["released"]
        assert not (job.run.path / "summary.json").exists()
        assert all(not each.has_ended for each in job.cluster.pods())


def test_a_master_that_freezes_for_a_while_loses_nothing() -> None:
    with in_process_job() as job:
        pod = PodBackend(job)

        def freeze(worker: Any) -> None:
            pod.fence.held = False
            while not pod.fence.asked.acquire(blocking=False):
                pass
            threading.Timer(0.3, thaw).start()

        def thaw() -> None:
            pod.fence.held = True

        job.at_step[6] = freeze
        assert job.run_master(pod) == 0
        summary = job.summary()
        assert (summary["records_done"], summary["records_repeated"], summary["workers_lost"]) == (RECORDS, 0, 0)


@pytest.mark.parametrize("stalled", ["status.json", "timeline.json", "events.jsonl"])
def test_a_volume_that_hangs_does_not_keep_people_from_seeing_how_it_is_going(
    stalled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_publication, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(status_publication, "KEEP_SECONDS", 0.01)
    mended, hangs = threading.Event(), threading.Event()

    def patient(write: Callable[..., None]) -> Callable[..., None]:
        def written(path: Path, *given: Any, **named: Any) -> None:
            if path.name == stalled:
                hangs.set()
                assert mended.wait(LONG)
            write(path, *given, **named)

        return written

    for module, name in (
        (status_reporter, "write_json"),
        (status_publication, "write_json"),
        (status_reporter, "append_json_line"),
    ):
        monkeypatch.setattr(module, name, patient(getattr(module, name)))
    with in_process_job() as job:
        pod = PodBackend(job)

        def see_more(worker: Any) -> None:
            assert hangs.wait(LONG)
            before = len(pod.status_publisher.pages)
            while len(pod.status_publisher.pages) < before + 2:
                pod.status_publisher.more.acquire(timeout=LONG)
            mended.set()

        job.at_step[6] = see_more
        assert job.run_master(pod) == 0
        assert mended.is_set()
        assert pod.status_publisher.read().events[-1].kind == "job_ended"


# ---------------------------------------------------------------------------------------------- the shell


@pytest.fixture
def fence() -> ScriptedFence:
    return ScriptedFence()


def parts(fence: ScriptedFence, clock: Callable[[], float] = lambda: 0.0) -> ShellHarness:
    harness = ShellHarness(clock=clock)
    harness.populate()
    harness.shell.core_clock = FencedClock(clock, fence)
    return harness


def test_while_it_is_frozen_requests_are_for_later_and_facts_wait(fence: ScriptedFence) -> None:
    shell = parts(fence).shell
    fence.held = False
    with pytest.raises(MasterFrozenError) as caught:
        shell.handle(LeaseRequested("worker-0"))
    assert isinstance(caught.value, RetryableError)
    entered = threading.Thread(
        target=shell.handle, args=(PodChanged(PodStatus("worker-9", Role.WORKER, 9, PodPhase.RUNNING)),)
    )
    entered.start()
    while not fence.asked.acquire(timeout=30):
        pass
    assert "worker-9" not in shell.state.pods.by_uid
    fence.held = True
    entered.join()
    assert "worker-9" in shell.state.pods.by_uid


def test_facts_of_a_master_that_was_replaced_end_with_it(fence: ScriptedFence) -> None:
    shell = parts(fence).shell
    fence.held, fence.gone = False, True
    with pytest.raises(MasterEndsError):
        shell.handle(Tick())
    assert "another master" in str(shell.failure)
    shell.run(lambda: False)


def test_the_cores_time_stands_still_while_it_is_frozen(fence: ScriptedFence) -> None:
    clock = [10.0]
    time = FencedClock(lambda: clock[0], fence)
    assert (time.may_decide(), time.now()) == (True, 10.0)
    fence.held = False
    assert not time.may_decide()
    clock[0] = 100.0
    assert (time.may_decide(), time.now()) == (False, 10.0)
    fence.held = True
    assert (time.may_decide(), time.now()) == (True, 10.0)
    clock[0] = 101.0
    assert time.now() == 11.0


# ---------------------------------------------------------------------------------------------- which they are


def test_the_environment_says_where_a_master_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_process_job() as job:
        monkeypatch.setattr(LocalCluster, "from_environment", lambda token: job.cluster)
        backend = choose_backend(job.spec, job.identity, {})
        assert isinstance(backend, LocalMasterBackend)
        DesiredStateFile(job.run.desired_state).update(DesiredState(max=3), (1, 2))
        assert backend.desired_states is not None
        assert next(backend.desired_states.watch_desired_state()) == DesiredState(max=3)
        with pytest.raises(BadInputError, match="EDL_POD"):
            choose_backend(job.spec, job.identity, {"EDL_JOB_UID": "u", "EDL_NAMESPACE": "team"})


def test_a_timeline_goes_on_after_a_restart() -> None:
    with in_process_job() as job:
        job.at_step[6] = lambda worker: job.stopping.set()
        assert job.run_master(PodBackend(job)) == 143
        timeline = json.loads((job.run.path / "timeline.json").read_text())
        following = PodBackend(job)
        assert serve_job(job.identity, job.spec, following, threading.Event()) == 0
        assert following.status_publisher.read().timeline[0].time == timeline[0]["time"]
