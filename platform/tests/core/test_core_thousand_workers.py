"""A thousand workers: they are asked for in batches, and no event looks at all of them to count them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core_harness import CoreJob, alive

from edl.api.cluster_port import MOST_WORKERS, PodPhase, PodStatus, Role
from edl.api.run_events import RoleRequested
from edl.core import events as ev
from edl.core.job_pods import JobPod, JobPods
from edl.core.ledger import Lease
from edl.core.scaling import BATCH_DELAY_SECONDS, START_BATCH
from edl.core.state import JobSettings
from edl.simulation.training_world import TrainingWorld

SETTINGS = JobSettings(minibatch=8, task_records=64, ps=0, predict=True, workers=4, elevated_share=0.5)
RECORDS = (("a", 10**9),)


class ThousandWorkerJob(CoreJob):
    """A job with work for everybody, that gets a tick whenever it wants one."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(replace(SETTINGS, **changes))
        self.see(ev.DatasetDescribed(prediction=RECORDS))

    def tick(self) -> list[int]:
        """Indices that are asked for when the job next wants to be called."""
        self.now = self.state.next_deadline(self.now)
        return started(self.see(ev.Tick()))

    def grown(self, workers: int) -> ThousandWorkerJob:
        """So many workers run, and all of them have built their model."""
        self.see(ev.PodsSynced(), ev.ScaleRequested(1, workers))
        for index in range(workers):
            self.see(alive(Role.WORKER, index), ev.ModelDeclared(f"worker-{index}"))
        return self


def started(commands: list[ev.CoreCommand]) -> list[int]:
    return [command.index for command in commands if isinstance(command, ev.StartPod)]


def lost(index: int) -> ev.PodChanged:
    return ev.PodChanged(PodStatus(f"worker-{index}", Role.WORKER, index, PodPhase.FAILED, 143))


# ------------------------------------------------------------------------------------------------ batches


def test_a_thousand_workers_are_asked_for_in_batches_within_seconds() -> None:
    job = ThousandWorkerJob()
    job.see(ev.PodsSynced())
    batches = [started(job.see(ev.ScaleRequested(1, 1004)))]
    while job.state.pods.count_expected_workers() < 1004:
        batches.append(job.tick())
    assert [index for batch in batches for index in batch] == list(range(4, 1004))
    assert max(map(len, batches)) == START_BATCH
    assert job.now <= 1000 / START_BATCH * BATCH_DELAY_SECONDS * 1.01
    assert job.now < 3


def test_once_all_are_asked_for_nobody_is_in_a_hurry() -> None:
    job = ThousandWorkerJob()
    job.see(ev.PodsSynced(), ev.ScaleRequested(1, START_BATCH + 4))
    assert job.state.next_deadline(0.0) > BATCH_DELAY_SECONDS


def test_a_job_that_ended_while_it_grew_is_in_no_hurry() -> None:
    job = ThousandWorkerJob()
    job.see(ev.PodsSynced(), ev.ScaleRequested(1, 1000))
    assert job.state.next_deadline(0.0) == BATCH_DELAY_SECONDS
    job.see(ev.StopRequested("stopped by its user"))
    assert job.state.next_deadline(0.0) > BATCH_DELAY_SECONDS


def test_of_a_thousand_workers_that_are_lost_each_is_asked_for_again() -> None:
    job = ThousandWorkerJob().grown(1000)
    indices = [index for i in range(1000) for index in started(job.see(lost(i)))]
    while job.state.pods.count_expected_workers() < 1000:
        indices += job.tick()
    assert indices == list(range(1000, 2000))
    assert job.now < 3


def test_what_was_asked_for_in_vain_is_asked_for_again_in_batches() -> None:
    job = ThousandWorkerJob()
    job.see(ev.PodsSynced(), ev.ScaleRequested(1, 500))
    while job.state.pods.count_expected_workers() < 500:
        job.tick()
    job.now += 100.0
    batches = [job.tick() for _ in range(500 // START_BATCH)]
    assert {len(batch) for batch in batches} == {START_BATCH}
    assert sorted(index for batch in batches for index in batch) == list(range(500))


def test_nobody_is_heard_who_wants_more_workers_than_there_may_be() -> None:
    job = ThousandWorkerJob()
    job.see(ev.ScaleRequested(10**9, 10**9))
    assert job.state.workers_max == MOST_WORKERS


def test_a_job_with_more_workers_than_a_batch_comes_to_its_end() -> None:
    world = TrainingWorld(JobSettings(minibatch=8, task_records=8, workers=START_BATCH + 20), (("a", 1_600),), seed=1)
    world.run(3600.0)
    world.check_end()
    requests = [tell for tell in world.emitted_events if isinstance(tell, RoleRequested)]
    assert sum(tell.role == "worker" for tell in requests) == START_BATCH + 20


# ------------------------------------------------------------------------------------------------ what one event costs


class LookCounter:
    """How often the core looked at a pod or a lease."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("live", "building", "index", "elevated"):
            self._watch(monkeypatch, JobPod, name)
        for name in ("number", "worker"):
            self._watch(monkeypatch, Lease, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        descriptor = getattr(kind, name)

        def read(one: object) -> Any:
            self.count += 1
            return descriptor.__get__(one)

        def write(one: object, value: Any) -> None:
            descriptor.__set__(one, value)

        monkeypatch.setattr(kind, name, property(read, write))

    def of(self, job: ThousandWorkerJob, *events: ev.CoreEvent) -> int:
        """Looks during the dearest of some events."""
        most_costly = 0
        for event in events:
            before = self.count
            job.see(event)
            most_costly = max(most_costly, self.count - before)
        return most_costly


def costs(monkeypatch: pytest.MonkeyPatch, workers: int) -> dict[str, int]:
    """Looks that the dearest event of each kind costs in a job with so many workers that hold leases, some pending."""
    looks, job = LookCounter(monkeypatch), ThousandWorkerJob().grown(workers)
    job.see(ev.ScaleRequested(1, 2 * workers), *(ev.Tick() for _ in range(2 * workers // START_BATCH)))
    waits = [
        ev.PodChanged(PodStatus(f"worker-{workers + i}", Role.WORKER, workers + i, PodPhase.PENDING)) for i in range(5)
    ]
    who = [f"worker-{index}" for index in range(workers)]
    job.see(*waits)
    granted = [c for w in who for c in job.see(ev.LeaseRequested(w)) if isinstance(c, ev.LeaseReply)]
    steps = [ev.LeaseProgress(grant.lease, 1) for grant in granted]
    assert len(granted) == workers
    return {
        "wants work": looks.of(
            job, *(ev.LeaseRequested(w, frozenset({g.lease})) for w, g in zip(who, granted, strict=True))
        ),
        "progress": looks.of(job, *(ev.ProgressReported(w, (s,)) for w, s in zip(who, steps, strict=True))),
        "has come": looks.of(job, alive(Role.WORKER, workers + 5), ev.LeaseRequested(f"worker-{workers + 5}")),
        "tick": looks.of(job, ev.Tick()),
        "lost": looks.of(job, *(lost(i) for i in range(5))),
    }


def test_what_an_event_costs_does_not_depend_on_how_many_workers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as few, monkeypatch.context() as many:
        assert costs(few, 100) == costs(many, 400)


def test_what_asking_costs_grows_with_what_is_asked_for_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, job = LookCounter(monkeypatch), ThousandWorkerJob()
    job.see(ev.PodsSynced())
    assert looks.of(job, ev.ScaleRequested(1, 1000), *(ev.Tick() for _ in range(1000 // START_BATCH))) == 0


def test_a_worker_that_waits_for_room_does_not_keep_one_that_builds_its_model_from_work_that_only_it_can_do() -> None:
    job = ThousandWorkerJob(describe=True)
    job.see(
        ev.PodsSynced(), alive(Role.WORKER, 0), ev.PodChanged(PodStatus("worker-1", Role.WORKER, 1, PodPhase.PENDING))
    )
    assert any(isinstance(answer, ev.LeaseReply) for answer in job.see(ev.LeaseRequested("worker-0")))


# ------------------------------------------------------------------------------------------------ counters


def recount(job_pods: JobPods) -> dict[str, object]:
    """What is counted as it changes, counted anew."""
    pods = [pod for pod in job_pods.by_uid.values() if pod.role is Role.WORKER]
    requests = [wish for (role, _), wish in job_pods.requests.items() if role is Role.WORKER]
    staying = [pod for pod in pods if pod.staying]
    return {
        "wanted": len(staying) + len(requests),
        "elevated": sum(pod.elevated for pod in staying) + sum(wish.options.elevated for wish in requests),
        "live": sorted(pod.uid for pod in pods if pod.live),
        "staying": sorted(pod.uid for pod in staying),
        "pending": sorted(pod.uid for pod in staying if not pod.has_run),
        "model_built": sorted(pod.uid for pod in pods if pod.live and pod.has_run and not pod.building),
        "told_to_leave": sorted(pod.uid for pod in pods if pod.live and pod.leaving_since is not None),
        "turned away": sorted(
            i for role, i in job_pods.refusals if role is Role.WORKER and (role, i) not in job_pods.requests
        ),
    }


def counted(job_pods: JobPods) -> dict[str, object]:
    workers = job_pods.by_role[Role.WORKER]
    return {
        "wanted": job_pods.count_expected_workers(),
        "elevated": job_pods.count_elevated(),
        **{
            name: sorted(getattr(workers, name))
            for name in ("live", "staying", "pending", "model_built", "told_to_leave")
        },
        "turned away": sorted(job_pods.requests.rejected_indices[Role.WORKER]),
    }


HAPPENED = st.lists(
    st.tuples(
        st.sampled_from(["scale", "pending", "running", "leaving", "gone", "refused", "declared", "late", "listed"]),
        st.integers(0, 12),
    ),
    max_size=60,
)


@given(HAPPENED)
def test_what_is_counted_as_it_changes_is_what_a_recount_gives(happened: list[tuple[str, int]]) -> None:
    job = ThousandWorkerJob()
    job.see(ev.PodsSynced())
    phases = {"pending": PodPhase.PENDING, "gone": PodPhase.GONE}
    for what, number in happened:
        event: ev.CoreEvent
        match what:
            case "scale":
                event = ev.ScaleRequested(max=number)
            case "refused":
                event = ev.StartRefused(Role.WORKER, number, "exceeded quota", retry=True)
            case "declared":
                event = ev.ModelDeclared(f"worker-{number}")
            case "late":
                job.now += 10.0 * number
                event = ev.Tick()
            case "listed":
                event = ev.PodsSynced()
            case _:
                status = PodStatus(f"worker-{number}", Role.WORKER, number, phases.get(what, PodPhase.RUNNING))
                event = ev.PodChanged(replace(status, leaving=what == "leaving", elevated=number % 2 == 0))
        job.see(event)
        assert counted(job.state.pods) == recount(job.state.pods)
