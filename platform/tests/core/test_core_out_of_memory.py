"""Workers that run out of memory: successors get more, three times, or the job says which field is too small."""

from __future__ import annotations

from support.text_keys import missing_keys

from edl.core.pod_lifecycle import NO_MEMORY_RAISE, MemoryRaise, decide_after_oom, ps_oom_reason


def test_each_generation_that_runs_out_gets_more_than_the_one_before() -> None:
    memory, factors = NO_MEMORY_RAISE, []
    for index in range(3):
        decided = decide_after_oom(memory, index, index + 1, 1.5, "2Gi").value
        assert decided is not None
        memory = decided
        factors.append(memory.memory_factor(1.5))
    assert factors == [1.5, 2.25, 3.375]
    end = decide_after_oom(memory, 3, 4, 1.5, "2Gi")
    assert end.value is None
    assert not missing_keys(end.reason, "worker-3", "3.38 times", "workers.resources.memory", "2Gi")


def test_workers_that_run_out_together_raise_it_once() -> None:
    first = decide_after_oom(NO_MEMORY_RAISE, 0, 4, 2.0, "").value
    assert first == MemoryRaise(1, 4)
    assert [decide_after_oom(first, index, 9, 2.0, "").value for index in (1, 2, 3)] == [first] * 3
    assert decide_after_oom(first, 4, 9, 2.0, "").value == MemoryRaise(2, 9)


def test_a_job_that_may_not_have_more_ends_and_names_the_fields() -> None:
    end = decide_after_oom(NO_MEMORY_RAISE, 2, 4, 1.0, "2Gi")
    assert end.value is None
    assert "workers.resources.memory of 2Gi" in end.reason
    assert "workers.oom_memory_factor" in end.reason
    assert "ps.resources.memory of 4Gi" in ps_oom_reason(1, "4Gi")
