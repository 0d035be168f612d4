"""Waits for data are measured, and named where they limit training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.worker.data_wait import WARNING_TOPIC, describe_wait, measure_wait


class Worker:
    """Trains on a virtual clock: a minibatch takes ``load`` seconds to come, and ``train`` to be trained."""

    def __init__(self, load: float, train: float, first: float = 0.0) -> None:
        self.load, self.train, self.first = load, train, first
        self.now = 0.0
        self.warnings: list[tuple[str, str]] = []
        self.is_closed = False

    def minibatches(self, count: int) -> Iterator[int]:
        try:
            for number in range(count):
                self.now += self.load if number else self.first
                yield number
        finally:
            self.is_closed = True

    def run(self, count: int) -> list[int]:
        minibatches = []
        measured = measure_wait(
            self.minibatches(count), lambda topic, text: self.warnings.append((topic, text)), lambda: self.now
        )
        for minibatch in measured:
            minibatches.append(minibatch)
            self.now += self.train
        return minibatches


def test_a_worker_that_waits_for_data_says_so_once() -> None:
    worker = Worker(load=0.3, train=0.2)
    assert worker.run(1000) == list(range(1000))
    assert worker.warnings == [(WARNING_TOPIC, describe_wait(0.6, 30.0))]
    assert "waited 60% of 30 s" in worker.warnings[0][1]


@pytest.mark.parametrize(
    ("load", "train", "first", "steps"),
    [(0.1, 0.4, 0.0, 1000), (0.0, 0.1, 200.0, 1000), (0.5, 0.1, 0.0, 40), (20.0, 1.0, 0.0, 9)],
    ids=["a_fifth", "the_first_one", "a_short_time", "few_steps"],
)
def test_other_waits_are_not_worth_a_warning(load: float, train: float, first: float, steps: int) -> None:
    worker = Worker(load, train, first)
    worker.run(steps)
    assert worker.warnings == []


def test_data_that_become_slow_later_are_noticed() -> None:
    worker = Worker(load=0.0, train=0.1)

    def warn(topic: str, text: str) -> None:
        worker.warnings.append((topic, text))

    for number in measure_wait(worker.minibatches(2000), warn, lambda: worker.now):
        worker.now += 0.1
        if number == 1000:
            worker.load = 0.2
    assert len(worker.warnings) == 1


def test_the_minibatches_end_with_their_consumer() -> None:
    worker = Worker(load=0.1, train=0.1)
    measured = measure_wait(worker.minibatches(5), lambda *_: None, lambda: worker.now)
    next(measured)
    measured.close()  # type: ignore[attr-defined]
    assert worker.is_closed
