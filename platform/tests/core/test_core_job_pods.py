from __future__ import annotations

from edl.api.cluster_port import PodOptions, PodPhase, PodStatus, Role, TerminationCause
from edl.core.job_pods import REQUEST_TIMEOUT, JobPods
from edl.core.pod_lifecycle import MAX_CRASHES, STEPS_PER_CRASH


def test_new_workers_get_consecutive_indices_though_each_wish_is_entered_as_it_is_read() -> None:
    job_pods = JobPods(ps_count=1)
    requested_pods = []
    for role, index in job_pods.missing_pods(3, now=0.0):
        job_pods.request_pod(role, index, 0.0)
        requested_pods.append((role, index))
    assert requested_pods == [(Role.PS, 0), (Role.WORKER, 0), (Role.WORKER, 1), (Role.WORKER, 2)]
    assert job_pods.missing_pods(3, now=0.0) == []


def test_a_lost_worker_is_replaced_under_a_new_index_and_a_lost_ps_under_its_own() -> None:
    job_pods = JobPods(ps_count=1)
    for role, index in job_pods.missing_pods(4, now=0.0):
        job_pods.request_pod(role, index, 0.0)
        job_pods.update_pod(PodStatus(f"{role}-{index}", role, index, PodPhase.RUNNING))
    for uid, role in (("worker-0", Role.WORKER), ("ps-0", Role.PS)):
        pod, _ = job_pods.update_pod(PodStatus(uid, role, 0, PodPhase.FAILED, exit_code=137))
        assert job_pods.plan_relaunch(pod, now=1.0)[0]
    assert job_pods.missing_pods(4, now=1.0) == [(Role.PS, 0), (Role.WORKER, 4)]


def running(job_pods: JobPods, role: Role, count: int) -> None:
    for index in range(count):
        job_pods.update_pod(PodStatus(f"{role}-{index}", role, index, PodPhase.RUNNING))


def leaving(job_pods: JobPods, role: Role, index: int) -> None:
    job_pods.update_pod(
        PodStatus(f"{role}-{index}", role, index, PodPhase.RUNNING, leaving=True, cause=TerminationCause.DELETED)
    )


def test_a_worker_that_was_told_to_go_is_replaced_before_it_has_gone_and_a_ps_after() -> None:
    job_pods = JobPods(ps_count=1)
    running(job_pods, Role.PS, 1)
    running(job_pods, Role.WORKER, 4)
    for role in (Role.PS, Role.WORKER):
        leaving(job_pods, role, 0)
    assert job_pods.missing_pods(4, now=0.0) == [(Role.WORKER, 4)]
    assert [pod.index for pod in job_pods.live_pods(Role.WORKER)] == [0, 1, 2, 3]
    assert [pod.index for pod in job_pods.staying_pods(Role.WORKER)] == [1, 2, 3]
    job_pods.update_pod(PodStatus("ps-0", Role.PS, 0, PodPhase.GONE))
    assert (Role.PS, 0) in job_pods.missing_pods(4, now=0.0)


def test_why_a_pod_was_told_to_go_is_remembered_when_its_end_does_not_say() -> None:
    job_pods = JobPods(ps_count=0)
    running(job_pods, Role.WORKER, 1)
    leaving(job_pods, Role.WORKER, 0)
    pod, _ = job_pods.update_pod(PodStatus("worker-0", Role.WORKER, 0, PodPhase.GONE, 1))
    assert pod.state == "deleted"
    assert pod.describe_end() == "deleted"


def refuse(job_pods: JobPods, workers: int, now: float) -> list[int]:
    """Everything that is asked for is refused; the indices that were asked for."""
    missing_pods = job_pods.missing_pods(workers, now)
    for role, index in missing_pods:
        job_pods.request_pod(role, index, now)
    for role, index in missing_pods:
        job_pods.record_start_refusal(role, index, "exceeded quota", now)
    return [index for _, index in missing_pods]


def test_what_was_refused_is_asked_for_under_the_same_index_and_one_at_a_time() -> None:
    job_pods = JobPods(ps_count=0)
    assert refuse(job_pods, 3, 0.0) == [0, 1, 2]
    assert job_pods.refusals == {(Role.WORKER, index): "exceeded quota" for index in range(3)}
    assert refuse(job_pods, 3, 0.5) == []
    assert refuse(job_pods, 3, 1.0) == [0]
    assert job_pods.missing_pods(3, 3.0) == [(Role.WORKER, 0)]
    job_pods.request_pod(Role.WORKER, 0, 3.0)
    assert job_pods.missing_pods(3, 3.0) == [], "one is tried with"
    running(job_pods, Role.WORKER, 1)
    assert job_pods.missing_pods(3, 3.0) == [(Role.WORKER, 1), (Role.WORKER, 2)], "the cluster takes them again"
    assert (Role.WORKER, 0) not in job_pods.refusals


def test_after_each_round_of_refusals_the_wait_is_twice_as_long_up_to_a_minute() -> None:
    job_pods, now, waits = JobPods(ps_count=0), 0.0, []
    for _ in range(8):
        assert refuse(job_pods, 1, now) == [0]
        waits.append(job_pods.start_backoff[Role.WORKER].retry_at - now)
        now = job_pods.start_backoff[Role.WORKER].retry_at
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_refusals_of_one_role_do_not_hold_up_another() -> None:
    job_pods = JobPods(ps_count=2)
    for index in range(2):
        job_pods.request_pod(Role.PS, index, 0.0)
        job_pods.update_pod(PodStatus(f"ps-{index}", Role.PS, index, PodPhase.RUNNING))
    refuse(job_pods, 1, 0.0)
    job_pods.update_pod(PodStatus("ps-1", Role.PS, 1, PodPhase.FAILED, 137))
    assert job_pods.missing_pods(1, 0.0) == [(Role.PS, 1)]


def test_a_refusal_is_forgotten_when_the_worker_is_not_wanted_any_more() -> None:
    job_pods = JobPods(ps_count=0)
    refuse(job_pods, 3, 0.0)
    job_pods.missing_pods(1, 0.0)
    assert list(job_pods.refusals) == [(Role.WORKER, 0)]


def test_what_was_asked_for_and_never_shown_is_asked_for_again() -> None:
    job_pods = JobPods(ps_count=0)
    job_pods.request_pod(Role.WORKER, 0, 0.0, PodOptions(elevated=True))
    assert job_pods.count_elevated() == 1
    assert list(job_pods.requests.overdue_requests(REQUEST_TIMEOUT - 1)) == []
    assert list(job_pods.requests.overdue_requests(REQUEST_TIMEOUT)) == [(Role.WORKER, 0)]


def crashes(job_pods: JobPods, steps_between: int, most: int = 100) -> int:
    """After how many crashed workers, each of which does so many steps, the job is given up."""
    for index in range(most):
        job_pods.update_pod(PodStatus(f"worker-{index}", Role.WORKER, index, PodPhase.RUNNING))
        job_pods.credit_steps(Role.WORKER, steps_between)
        pod, _ = job_pods.update_pod(PodStatus(f"worker-{index}", Role.WORKER, index, PodPhase.FAILED, exit_code=1))
        if not job_pods.plan_relaunch(pod, now=float(index))[0]:
            return index + 1
    return most


def test_a_few_steps_between_crashes_do_not_keep_a_broken_job_going() -> None:
    assert crashes(JobPods(ps_count=0), steps_between=0) == MAX_CRASHES
    assert crashes(JobPods(ps_count=0), steps_between=4) == MAX_CRASHES + 1
    assert crashes(JobPods(ps_count=0), steps_between=STEPS_PER_CRASH) == 100


def test_steps_before_a_crash_are_not_saved_for_it() -> None:
    job_pods = JobPods(ps_count=0)
    job_pods.credit_steps(Role.WORKER, 1_000_000)
    assert crashes(job_pods, steps_between=0) == MAX_CRASHES


def test_a_range_that_is_put_aside_takes_its_crashes_along() -> None:
    job_pods = JobPods(ps_count=0)
    assert crashes(job_pods, 0, most=MAX_CRASHES - 1) == MAX_CRASHES - 1
    job_pods.forgive_crashes(Role.WORKER, 3)
    assert crashes(job_pods, 0) == 4
