"""Workers that run out of memory: successors get more, three times, or the job says which field is too small."""

from __future__ import annotations

from edl.core.oom_policy import UNRAISED, Memory, after, ps_ends


def test_each_generation_that_runs_out_gets_more_than_the_one_before() -> None:
    memory, factors = UNRAISED, []
    for index in range(3):
        decided = after(memory, index, index + 1, 1.5, "2Gi").value
        assert decided is not None
        memory = decided
        factors.append(memory.factor(1.5))
    assert factors == [1.5, 2.25, 3.375]
    end = after(memory, 3, 4, 1.5, "2Gi")
    assert end.value is None
    assert end.reason.startswith("worker-3 ran out of memory with 3.38 times workers.resources.memory of 2Gi")


def test_workers_that_run_out_together_raise_it_once() -> None:
    first = after(UNRAISED, 0, 4, 2.0, "").value
    assert first == Memory(1, 4)
    assert [after(first, index, 9, 2.0, "").value for index in (1, 2, 3)] == [first] * 3
    assert after(first, 4, 9, 2.0, "").value == Memory(2, 9)


def test_a_job_that_may_not_have_more_ends_and_names_the_fields() -> None:
    end = after(UNRAISED, 2, 4, 1.0, "2Gi")
    assert end.value is None
    assert "workers.resources.memory of 2Gi" in end.reason
    assert "workers.oom_memory_factor" in end.reason
    assert "ps.resources.memory of 4Gi" in ps_ends(1, "4Gi")
