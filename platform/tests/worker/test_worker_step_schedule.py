"""In which order steps are prepared, computed and sent, whatever fails on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.worker.trainer import OverlappedSchedule, SerialExecutor, StepSchedule, StepStages, run_sequentially


class ScriptedError(Exception):
    """What a scripted step raises."""


@dataclass
class ScriptedSteps:
    """Steps that remember what happened, with one fault: ``(method, step)``; ``refuse`` makes a send return False."""

    count: int
    fault: tuple[str, int] | None = None
    log: list[tuple[str, int]] = field(default_factory=list)
    in_at: list[int] = field(default_factory=list)  # for each prepared step: the steps that were in
    missing: list[list[int]] = field(default_factory=list)  # for each step: those before it that its values lack
    threads: dict[str, set[int]] = field(default_factory=dict)

    def prepare(self) -> int | None:
        step = len(self.in_at)
        if step == self.count:
            return None
        self.in_at.append(len(self.sent))
        self._happens("prepare", step)
        return step

    def values(self, prepared: int, before: str | None) -> int:
        self._happens("values", prepared)
        foreseen = [] if before is None else [int(before.removeprefix("gradient "))]
        self.missing.append([step for step in range(prepared) if step not in (*self.sent, *foreseen)])
        return prepared

    def compute(self, ready: int) -> str:
        self._happens("compute", ready)
        return f"gradient {ready}"

    def send(self, ready: int, done: str) -> bool:
        assert done == f"gradient {ready}"
        self._happens("send", ready)
        return self.fault != ("refuse", ready)

    def end(self, ready: int, done: str) -> None:
        self._happens("end", ready)

    @property
    def parts(self) -> StepStages[int, int, str]:
        return StepStages(self.prepare, self.values, self.compute, self.send, self.end)

    @property
    def sent(self) -> list[int]:
        return [step for what, step in self.log if what == "send"]

    def _happens(self, what: str, step: int) -> None:
        self.threads.setdefault(what, set()).add(threading.get_ident())
        self.log.append((what, step))
        if self.fault == (what, step):
            raise ScriptedError(what, step)


class WatchedLane(SerialExecutor):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__("test")
        self.given: list[Future[Any]] = []

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        self.given.append(super().submit(job))
        return self.given[-1]


@contextmanager
def overlapped() -> Iterator[OverlappedSchedule]:
    lane = SerialExecutor("test")
    yield OverlappedSchedule(lane)
    lane.close()


def outcome(schedule: StepSchedule, steps: ScriptedSteps) -> bool | tuple[str, int]:
    try:
        return schedule(steps.parts)
    except ScriptedError as error:
        return error.args  # type: ignore[return-value]


FAULTS = st.none() | st.tuples(
    st.sampled_from(["prepare", "values", "compute", "send", "refuse", "end"]), st.integers(0, 8)
)


@settings(deadline=None)
@given(count=st.integers(0, 8), fault=FAULTS)
def test_the_same_steps_are_sent_in_order_as_without_overlap(count: int, fault: tuple[str, int] | None) -> None:
    alone, together = ScriptedSteps(count, fault), ScriptedSteps(count, fault)
    with overlapped() as schedule:
        ended = outcome(schedule, together)

    assert ended == outcome(run_sequentially, alone)
    assert together.sent == alone.sent
    assert together.sent == list(range(len(together.sent)))


@settings(deadline=None)
@given(count=st.integers(0, 8), fault=FAULTS)
def test_a_step_misses_one_step_of_its_own_worker_at_most(count: int, fault: tuple[str, int] | None) -> None:
    steps = ScriptedSteps(count, fault)
    with overlapped() as schedule:
        outcome(schedule, steps)

    assert all(step - known <= 1 for step, known in enumerate(steps.in_at))


@settings(deadline=None)
@given(count=st.integers(0, 8), fault=FAULTS)
def test_values_lack_no_step_but_the_one_that_they_are_told_of(count: int, fault: tuple[str, int] | None) -> None:
    steps = ScriptedSteps(count, fault)
    with overlapped() as schedule:
        outcome(schedule, steps)

    assert steps.missing == [[]] * len(steps.missing)


def test_a_step_gets_its_values_once_the_one_before_it_is_computed() -> None:
    steps = ScriptedSteps(5)
    with overlapped() as schedule:
        assert schedule(steps.parts)
    for step in range(1, 5):
        begin = steps.log.index(("values", step))
        assert steps.log.index(("compute", step - 1)) < begin < steps.log.index(("send", step - 1))


@settings(deadline=None)
@given(count=st.integers(0, 8), fault=FAULTS)
def test_nothing_is_under_way_at_the_end(count: int, fault: tuple[str, int] | None) -> None:
    """What comes next may use the connections, on whatever thread: an evaluation, an export, another range."""
    steps, lane = ScriptedSteps(count, fault), WatchedLane()
    outcome(OverlappedSchedule(lane), steps)
    assert all(future.done() for future in lane.given)
    lane.close()
    if fault is not None and fault[0] in ("send", "refuse"):
        assert ("prepare", fault[1] + 2) not in steps.log, "nobody would use it"


def test_callers_and_lane_share_no_part_of_a_step() -> None:
    steps = ScriptedSteps(5)
    with overlapped() as schedule:
        assert schedule(steps.parts)
    (caller,) = steps.threads["compute"]
    assert steps.threads["end"] == {caller}
    assert steps.threads["send"] == steps.threads["prepare"] == steps.threads["values"]
    assert caller not in steps.threads["send"]


def test_a_step_is_sent_and_the_next_prepared_while_another_is_computed() -> None:
    steps = ScriptedSteps(4)
    computing, passed = threading.Event(), threading.Event()

    class Watched(ScriptedSteps):
        def compute(self, ready: int) -> str:
            if ready == 2:
                computing.set()
                assert passed.wait(10), "step 1 is sent and step 3 prepared meanwhile"
            return super().compute(ready)

        def send(self, ready: int, done: str) -> bool:
            if ready == 1:
                assert computing.wait(10)
            return super().send(ready, done)

        def prepare(self) -> int | None:
            found = super().prepare()
            if found == 3:
                passed.set()
            return found

    steps = Watched(4)
    with overlapped() as schedule:
        assert schedule(steps.parts)
    assert steps.sent == [0, 1, 2, 3]


def test_callbacks_see_one_step_after_the_other() -> None:
    steps = ScriptedSteps(3)
    with overlapped() as schedule:
        schedule(steps.parts)
    seen = [entry for entry in steps.log if entry[0] in ("compute", "end")]
    assert seen == [("compute", 0), ("end", 0), ("compute", 1), ("end", 1), ("compute", 2), ("end", 2)]


@pytest.mark.parametrize("jobs", [0, 1, 3])
def test_a_lane_can_be_drained_at_any_time(jobs: int) -> None:
    lane, done = SerialExecutor("test"), []
    for number in range(jobs):
        lane.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    lane.drain()
    lane.close()
    assert done == list(range(jobs))
