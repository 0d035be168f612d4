"""What a program adds to a step and gets of it, without a network: this test is the loop of the rank."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.sharding.program_handoff import ProgramHandoff, StepsClosedError
from edl.sharding.program_replica import ProgramReplica, Reduction, StepNumbers
from edl.sharding.record_prefetch import WindowRecords
from edl.sharding.shared_steps import ProgramWorld, SharedStep, SharedSteps
from edl.worker.record_stream import RecordWindow

LIKE = {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float64), "u": np.zeros((2, 2), np.float32)}


class ProgramSteps:
    """A program on the test's thread, and the loop of its rank on another one."""

    def __init__(self, like: Mapping[str, Any] = LIKE, reduction: Reduction = "mean") -> None:
        self.state: dict[str, Any] = {"w": np.arange(3.0), "steps": 0}
        self.handoff = ProgramHandoff()
        self.numbers = StepNumbers(lambda rank: None)
        self.replica = ProgramReplica(
            self.handoff, self.numbers, like, reduction, lambda: self.state, self.state.update
        )
        self.views = self.replica.views
        self.result: Any = None
        self._thread: threading.Thread | None = None

    def loop(self, work: Callable[[], Any]) -> None:
        """Run ``work`` in the place of the loop of the rank; ``result`` is what it returns."""

        def run() -> None:
            error: BaseException | None = None
            try:
                self.result = work()
            except StepsClosedError:
                pass
            except BaseException as failure:
                error = failure
            self.handoff.end(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def compute(self, records: list[bytes]) -> Any:
        return self.replica.compute(WindowRecords(RecordWindow(records)), None, None)

    def __iter__(self) -> Iterator[SharedStep]:
        while (offered := self.handoff.next_step()) is not None:
            yield SharedStep(cast("SharedSteps", self), offered, None)

    # What a SharedStep calls.
    def add(self, contribution: Any) -> None:
        self.handoff.add(contribution)

    def applied(self) -> None:
        self.handoff.applied()

    def results(self) -> dict[str, Any]:
        return dict(self.views)


def arrays(value: float) -> dict[str, Any]:
    return {name: np.full_like(like, value) for name, like in LIKE.items()}


def test_a_rank_gets_the_mean_by_the_numbers_of_records() -> None:
    steps = ProgramSteps()

    def loop() -> Any:
        result = steps.compute([b"a"] * 3)
        for buffer in steps.replica.buffers:
            buffer += 5 * buffer.dtype.type(8.0)  # another rank, with 5 records and values of 8
        steps.replica.apply(8.0)
        return result

    steps.loop(loop)
    for step in steps:
        with step:
            assert len(step.batch or ()) == 3
            means = step.allreduce(arrays(4.0), loss=0.25)
            assert {name: (mean.shape, mean.dtype) for name, mean in means.items()} == {
                name: (like.shape, like.dtype) for name, like in LIKE.items()
            }
            for mean in means.values():
                np.testing.assert_allclose(mean, (3 * 4 + 5 * 8) / 8)
    assert (steps.result.loss, steps.result.weight, steps.result.is_finite) == (0.25, 3.0, True)


def test_a_rank_without_records_applies_what_the_others_add() -> None:
    steps = ProgramSteps(reduction="sum")

    def loop() -> None:
        steps.replica.clear()
        steps.replica.buffers[0][:] = 7
        steps.numbers.begin_step(12, 1)
        steps.replica.apply(2.0)

    steps.loop(loop)
    (step,) = steps_taken = list(take_all(steps, None))
    assert (step.number, step.epoch, step.batch) == (12, 1, None)
    assert len(steps_taken) == 1
    np.testing.assert_array_equal(steps.views["w"], [7, 7, 7])


def take_all(steps: ProgramSteps, added: Any, **named: Any) -> Iterator[SharedStep]:
    for step in steps:
        with step:
            step.allreduce(added, **named)
        yield step


def test_a_step_that_does_not_happen_ends_the_block_and_its_records_come_again() -> None:
    steps = ProgramSteps()
    applied = []

    def loop() -> None:
        steps.compute([b"a"])
        steps.replica.restore_statistics()
        steps.compute([b"a"])
        steps.replica.apply(1.0)

    steps.loop(loop)
    for step in steps:
        with step:
            step.allreduce(arrays(1.0))
            applied.append(step)
    assert len(applied) == 1


def test_a_rank_without_records_takes_part_after_a_step_that_did_not_happen() -> None:
    steps = ProgramSteps(reduction="sum")

    def loop() -> None:
        steps.compute([b"a"])
        steps.replica.restore_statistics()
        steps.replica.clear()
        steps.replica.buffers[0][:] = 7
        steps.replica.apply(1.0)

    steps.loop(loop)
    offered = []
    for step in steps:
        with step:
            offered.append(step.batch is not None)
            step.allreduce(None)
    assert offered == [True, False]
    np.testing.assert_array_equal(steps.views["w"], [7, 7, 7])


def test_a_packed_state_has_arrays_of_any_size() -> None:
    steps = ProgramSteps()
    steps.state = {"a": np.arange(3, dtype=np.int8), "b": np.array([True]), "c": np.arange(5.0), "d": 7}
    replica = ProgramReplica(
        steps.handoff, steps.numbers, LIKE, "sum", lambda: steps.state, lambda state: steps.state.update(state)
    )
    packed = replica.pack_state()
    assert packed.nbytes % 8 == 0
    steps.state = {"a": np.zeros(3, np.int8), "b": np.array([False]), "c": np.zeros(5), "d": 0}
    replica.unpack_state(packed)
    np.testing.assert_array_equal(steps.state["a"], [0, 1, 2])
    np.testing.assert_array_equal(steps.state["c"], np.arange(5.0))
    assert (steps.state["b"].tolist(), steps.state["d"]) == ([True], 7)


def test_an_array_that_is_not_finite_is_named() -> None:
    steps = ProgramSteps()

    def loop() -> Any:
        result = steps.compute([b"a"])
        steps.replica.restore_statistics()
        return result

    steps.loop(loop)
    assert list(take_all(steps, arrays(1.0) | {"u": np.full((2, 2), np.inf, np.float32)}))
    assert (steps.result.is_finite, steps.result.nonfinite_name) == (False, "u")


def test_a_loss_that_is_not_finite_is_noticed() -> None:
    steps = ProgramSteps()

    def loop() -> Any:
        result = steps.compute([b"a"])
        steps.replica.restore_statistics()
        return result

    steps.loop(loop)
    assert list(take_all(steps, arrays(1.0), loss=float("nan")))
    assert not steps.result.is_finite


def test_functions_of_the_program_run_on_its_thread_between_two_steps() -> None:
    steps = ProgramSteps()
    threads = []
    read = steps.replica._state_dict
    steps.replica._state_dict = lambda: (threads.append(threading.current_thread()), read())[1]

    def loop() -> Any:
        packed = steps.replica.pack_state()
        steps.state["w"] = np.zeros(3)
        digest = steps.replica.digest()
        steps.replica.unpack_state(packed)
        return digest, steps.replica.digest()

    steps.loop(loop)
    assert list(steps) == []
    assert set(threads) == {threading.current_thread()}
    np.testing.assert_array_equal(steps.state["w"], np.arange(3.0))
    assert steps.result[0] != steps.result[1]


def test_an_error_of_the_loop_is_raised_where_the_next_step_is_asked_for() -> None:
    steps = ProgramSteps()

    def loop() -> None:
        raise BadInputError("the workers differ")

    steps.loop(loop)
    with pytest.raises(BadInputError, match="the workers differ"):
        list(steps)


def test_a_program_that_fails_in_a_step_ends_the_loop() -> None:
    steps = ProgramSteps()
    steps.loop(lambda: steps.compute([b"a"]))
    step = next(iter(steps))
    with pytest.raises(ZeroDivisionError), step:
        raise ZeroDivisionError
    steps.handoff.close()
    steps.handoff.close()
    assert steps.result is None


def test_a_step_without_allreduce_is_an_error() -> None:
    steps = ProgramSteps()
    steps.loop(lambda: steps.compute([b"a"]))
    step = next(iter(steps))
    with pytest.raises(ValueError, match="without allreduce"), step:
        pass
    steps.handoff.close()


@pytest.mark.parametrize(
    ("added", "named", "keys"),
    [
        ([1.0], {}, ["1 arrays", "had 3"]),
        ({"w": np.zeros(3, np.float32)}, {}, ["'b'", "'u'", "different arrays"]),
        (arrays(1.0) | {"w": np.zeros(4, np.float32)}, {}, ["'w'", "(4,)", "(3,)"]),
        (arrays(1.0) | {"w": np.zeros(3)}, {}, ["'w'", "float64", "float32"]),
        (arrays(1.0) | {"w": object()}, {}, ["'w'", "object"]),
        (arrays(1.0), {"weight": 0.0}, ["above 0"]),
        (arrays(1.0), {"weight": float("nan")}, ["above 0"]),
    ],
)
def test_arrays_that_differ_are_refused_by_name(added: Any, named: dict[str, Any], keys: list[str]) -> None:
    steps = ProgramSteps()
    steps.loop(lambda: steps.compute([b"a"]))
    with pytest.raises((BadInputError, ValueError)) as error:
        list(take_all(steps, added, **named))
    assert not missing_keys(str(error.value), *keys)
    steps.handoff.close()


def test_a_step_outside_of_its_block_or_twice_is_refused() -> None:
    steps = ProgramSteps()

    def loop() -> None:
        steps.compute([b"a"])
        steps.replica.apply(1.0)

    steps.loop(loop)
    step = next(iter(steps))
    with pytest.raises(ValueError, match="in the `with` block"):
        step.allreduce(arrays(1.0))
    with step:
        step.allreduce(arrays(1.0))
        with pytest.raises(ValueError, match="once"):
            step.allreduce(arrays(1.0))


@pytest.mark.parametrize(
    ("like", "reduction", "keys"),
    [
        ({}, "sum", ["no array to sum"]),
        ({"n": np.zeros(2, np.int64)}, "mean", ["'n'", "int64", "reduction='sum'"]),
        ({"n": np.zeros(2, np.bool_)}, "sum", ["bool", "cannot be reduced"]),
    ],
)
def test_what_cannot_be_summed_is_refused_before_training(like: Any, reduction: Reduction, keys: list[str]) -> None:
    with pytest.raises(BadInputError) as error:
        ProgramSteps(like, reduction)
    assert not missing_keys(str(error.value), *keys)


def test_programs_with_other_arrays_or_another_reduction_have_other_fingerprints() -> None:
    prints = [
        ProgramSteps().replica.fingerprint(),
        ProgramSteps(reduction="sum").replica.fingerprint(),
        ProgramSteps(dict(reversed(LIKE.items()))).replica.fingerprint(),
        ProgramSteps({**LIKE, "w": np.zeros(4, np.float32)}).replica.fingerprint(),
    ]
    assert len(set(prints)) == 4
    assert ProgramSteps().replica.fingerprint() == prints[0]


@pytest.mark.parametrize(
    ("addresses", "rank", "expected"),
    [
        (("10.0.0.7:7000", "10.0.0.9:7000"), 1, ("1", "2", "0", "1", "10.0.0.7")),
        (("unix:/run/a", "unix:/run/b", "unix:/run/c"), 2, ("2", "3", "2", "3", "127.0.0.1")),
    ],
)
def test_a_world_in_the_words_of_torchrun(addresses: tuple[str, ...], rank: int, expected: tuple[str, ...]) -> None:
    members = tuple(f"worker-{index}-x" for index in range(len(addresses)))
    world = ProgramWorld(7, rank, len(addresses), members, addresses, "")
    environment = world.environment
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    assert tuple(environment[name] for name in names) == expected
    assert (environment["ROLE_RANK"], environment["ROLE_WORLD_SIZE"]) == (
        environment["RANK"],
        environment["WORLD_SIZE"],
    )
    assert environment["GROUP_RANK"] == str(len(set(addresses[: rank + 1])) - 1 if "unix" not in addresses[0] else 0)
    assert 1024 < int(environment["MASTER_PORT"]) < 65536
    later = ProgramWorld(8, rank, len(addresses), members, addresses, "")
    assert later.environment["MASTER_PORT"] != environment["MASTER_PORT"], (
        "a socket of the round before may still be open"
    )


def test_the_environment_of_a_program_has_the_ranks_of_its_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that ``torchrun`` would start read them there."""
    monkeypatch.setattr("os.environ", {"RANK": "7", "HOME": "/home"})
    for round_number, rank, addresses in ((1, 0, ("10.0.0.7:1",)), (2, 1, ("10.0.0.9:1", "10.0.0.7:1"))):
        ProgramWorld(round_number, rank, len(addresses), addresses, addresses, "").set_environment()
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(len(addresses)))
    assert os.environ["HOME"] == "/home"
