"""In which order steps are prepared, computed and sent, whatever fails on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.worker.trainer import SerialExecutor, Trainer

RANGE: Any = None
"""The scripted steps know their range."""


class ScriptedError(Exception):
    """What a scripted step raises."""


class ScriptedSteps(Trainer):
    """Steps that remember what happened, with one fault: ``(method, step)``; ``refuse`` refuses a step's lease.

    The loops are the trainer's, the parts of a step are scripted.

    Attributes:
        applied_at: for each prepared step, how many steps were pushed by then.
        missing: for each step, those before it that its values lack.
    """

    def __init__(self, count: int, fault: tuple[str, int] | None = None) -> None:
        self.count = count
        self.fault = fault
        self.log: list[tuple[str, int]] = []
        self.applied_at: list[int] = []
        self.missing: list[list[int]] = []
        self.threads: dict[str, set[int]] = {}

    def prepare_step(self, leased_range: Any) -> Any:
        step = len(self.applied_at)
        if step == self.count:
            return None
        self.applied_at.append(len(self.sent))
        self._happens("prepare", step)
        return SimpleNamespace(number=step, is_computed=False)

    def pull_values(self, leased_range: Any, step: Any, unsent_step: Any) -> None:
        self._happens("values", step.number)
        unsent = [] if unsent_step is None else [unsent_step.number]
        self.missing.append([before for before in range(step.number) if before not in (*self.sent, *unsent)])

    def compute_step(self, leased_range: Any, step: Any) -> None:
        self._happens("compute", step.number)
        step.is_computed = True

    def push_step(self, leased_range: Any, step: Any) -> bool:
        assert step.is_computed
        self._happens("send", step.number)
        return self.fault != ("refuse", step.number)

    def end_step(self, step: Any) -> None:
        self._happens("end", step.number)

    @property
    def sent(self) -> list[int]:
        return [step for what, step in self.log if what == "send"]

    def _happens(self, what: str, step: int) -> None:
        self.threads.setdefault(what, set()).add(threading.get_ident())
        self.log.append((what, step))
        if self.fault == (what, step):
            raise ScriptedError(what, step)


class WatchedExecutor(SerialExecutor):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__("test")
        self.given: list[Future[Any]] = []

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(super().submit(job, *args, **kwargs))
        return self.given[-1]


def run_overlapped(steps: ScriptedSteps) -> None:
    executor = SerialExecutor("test")
    try:
        steps.run_overlapped(RANGE, executor)
    finally:
        executor.close()


def error_of(run: Callable[[], None]) -> tuple[str, int] | None:
    try:
        run()
    except ScriptedError as error:
        return error.args  # type: ignore[return-value]
    return None


FAULTS = st.none() | st.tuples(
    st.sampled_from(["prepare", "values", "compute", "send", "refuse", "end"]), st.integers(0, 8)
)


@settings(deadline=None)
@given(count=st.integers(0, 8), fault=FAULTS)
def test_the_same_steps_are_sent_in_order_as_without_overlap(count: int, fault: tuple[str, int] | None) -> None:
    alone, together = ScriptedSteps(count, fault), ScriptedSteps(count, fault)
    error = error_of(lambda: run_overlapped(together))

    assert error == error_of(lambda: alone.run_sequentially(RANGE))
    assert together.sent == alone.sent
    assert together.sent == list(range(len(together.sent)))


@settings(deadline=None)
@given(count=st.integers(0, 8), fault=FAULTS)
def test_a_step_misses_one_step_of_its_own_worker_at_most(count: int, fault: tuple[str, int] | None) -> None:
    steps = ScriptedSteps(count, fault)
    error_of(lambda: run_overlapped(steps))

    assert all(step - known <= 1 for step, known in enumerate(steps.applied_at))


@settings(deadline=None)
@given(count=st.integers(0, 8), fault=FAULTS)
def test_values_lack_no_step_but_the_one_that_they_are_told_of(count: int, fault: tuple[str, int] | None) -> None:
    steps = ScriptedSteps(count, fault)
    error_of(lambda: run_overlapped(steps))

    assert steps.missing == [[]] * len(steps.missing)


def test_a_step_gets_its_values_once_the_one_before_it_is_computed() -> None:
    steps = ScriptedSteps(5)
    run_overlapped(steps)
    for step in range(1, 5):
        begin = steps.log.index(("values", step))
        assert steps.log.index(("compute", step - 1)) < begin < steps.log.index(("send", step - 1))


@settings(deadline=None)
@given(count=st.integers(0, 8), fault=FAULTS)
def test_nothing_is_under_way_at_the_end(count: int, fault: tuple[str, int] | None) -> None:
    """What comes next may use the connections, on whatever thread: an evaluation, an export, another range."""
    steps, executor = ScriptedSteps(count, fault), WatchedExecutor()
    error_of(lambda: steps.run_overlapped(RANGE, executor))
    assert all(future.done() for future in executor.given)
    executor.close()
    if fault is not None and fault[0] in ("send", "refuse"):
        assert ("prepare", fault[1] + 2) not in steps.log, "nobody would use it"


def test_caller_and_executor_share_no_part_of_a_step() -> None:
    steps = ScriptedSteps(5)
    run_overlapped(steps)
    (caller,) = steps.threads["compute"]
    assert steps.threads["end"] == {caller}
    assert steps.threads["send"] == steps.threads["prepare"] == steps.threads["values"]
    assert caller not in steps.threads["send"]


def test_a_step_is_sent_and_the_next_prepared_while_another_is_computed() -> None:
    computing, passed = threading.Event(), threading.Event()

    class WatchedSteps(ScriptedSteps):
        def compute_step(self, leased_range: Any, step: Any) -> None:
            if step.number == 2:
                computing.set()
                assert passed.wait(10), "step 1 is sent and step 3 prepared meanwhile"
            super().compute_step(leased_range, step)

        def push_step(self, leased_range: Any, step: Any) -> bool:
            if step.number == 1:
                assert computing.wait(10)
            return super().push_step(leased_range, step)

        def prepare_step(self, leased_range: Any) -> Any:
            step = super().prepare_step(leased_range)
            if step is not None and step.number == 3:
                passed.set()
            return step

    steps = WatchedSteps(4)
    run_overlapped(steps)
    assert steps.sent == [0, 1, 2, 3]


def test_callbacks_see_one_step_after_the_other() -> None:
    steps = ScriptedSteps(3)
    run_overlapped(steps)
    calls = [entry for entry in steps.log if entry[0] in ("compute", "end")]
    assert calls == [("compute", 0), ("end", 0), ("compute", 1), ("end", 1), ("compute", 2), ("end", 2)]


@pytest.mark.parametrize("jobs", [0, 1, 3])
def test_an_executor_can_be_drained_at_any_time(jobs: int) -> None:
    executor, done = SerialExecutor("test"), list[int]()
    for number in range(jobs):
        executor.submit(done.append, number)
    executor.drain()
    executor.close()
    assert done == list(range(jobs))
