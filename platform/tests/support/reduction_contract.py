"""What must hold of whatever reduces buffers among ranks: one suite, which each implementation runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.rank_threads import RankThreads, Variant

from edl.api.errors import BadInputError
from edl.collective.communicator import Communicator
from edl.collective.reduction_plan import Algorithm
from edl.collective.round_errors import RoundBrokenError
from edl.collective.round_frames import CHUNK_BYTES, MAX_CONTROL_BYTES

SIZES = (1, 2, 3, 4, 7)
FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
SHARED = settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    ],
)
Array = npt.NDArray[Any]


def make_buffers(dtype: Any, count: int, size: int, seed: int = 0) -> list[Array]:
    """One buffer a rank: small whole numbers, whose sums are exact in every type and order."""
    random = np.random.default_rng(seed)
    return [random.integers(0, 4, count).astype(dtype) for _ in range(size)]


def reduce_all(ranks: RankThreads, round_: list[Communicator], buffers: list[Array], **options: Any) -> list[Any]:
    controls = [b"rank %d" % rank for rank in range(len(round_))]
    return ranks.each(
        lambda rank: round_[rank].all_reduce(buffers[rank], controls[rank], **options), range(len(round_))
    )


class ReductionContract:
    """Subclasses name the ``variant`` fixture's parameters."""

    @pytest.fixture
    def ranks(self, variant: Variant, tmp_path: Path) -> Iterator[RankThreads]:
        with RankThreads(variant, tmp_path) as ranks:
            yield ranks

    @pytest.mark.parametrize("algorithm", Algorithm)
    @pytest.mark.parametrize("size", SIZES)
    def test_sums_and_messages_are_those_of_all_ranks(
        self, ranks: RankThreads, size: int, algorithm: Algorithm
    ) -> None:
        with ranks.round(size) as round_:
            for dtype in FLOATS + INTEGERS:
                for count in (0, 1, size - 1, size + 1, 1001):
                    buffers = make_buffers(dtype, count, size, seed=count)
                    expected = np.sum([buffer.astype(np.int64) for buffer in buffers], axis=0).astype(dtype)
                    controls = reduce_all(ranks, round_, buffers, algorithm=algorithm)
                    for rank in range(size):
                        np.testing.assert_array_equal(buffers[rank], expected, str(dtype))
                        assert controls[rank] == [b"rank %d" % each for each in range(size)]

    @pytest.mark.parametrize("size", [2, 3])
    def test_buffers_of_several_chunks(self, ranks: RankThreads, size: int) -> None:
        with ranks.round(size) as round_:
            for dtype in (np.float32, np.float16):
                count = 3 * size * CHUNK_BYTES // np.dtype(dtype).itemsize + 13
                buffers = make_buffers(dtype, count, size)
                expected = sum(buffer.astype(np.float64) for buffer in buffers)
                reduce_all(ranks, round_, buffers)
                for buffer in buffers:
                    np.testing.assert_array_equal(buffer, expected)

    @pytest.mark.parametrize("size", [2, 3, 4])
    @SHARED
    @given(data=st.data())
    def test_results_have_the_same_bits_on_all_ranks(self, ranks: RankThreads, size: int, data: st.DataObject) -> None:
        dtype = data.draw(st.sampled_from(FLOATS))
        count = data.draw(st.integers(0, 300))
        seed = data.draw(st.integers(0, 2**32 - 1))
        algorithm = data.draw(st.sampled_from(Algorithm))
        random = np.random.default_rng(seed)
        originals = [
            (random.standard_normal(count) * 10.0 ** random.integers(-4, 4)).astype(dtype) for _ in range(size)
        ]
        buffers = [original.copy() for original in originals]
        with ranks.round(size) as round_:
            reduce_all(ranks, round_, buffers, algorithm=algorithm)
        assert len({buffer.tobytes() for buffer in buffers}) == 1
        dense = np.sum([original.astype(np.float64) for original in originals], axis=0)
        size_of_terms = np.sum([np.abs(original.astype(np.float64)) for original in originals], axis=0)
        error = np.abs(buffers[0].astype(np.float64) - dense)
        smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        assert np.all(error <= size * float(ml_dtypes.finfo(dtype).eps) * size_of_terms + smallest)

    def test_messages_of_every_length(self, ranks: RankThreads) -> None:
        with ranks.round(3) as round_:
            for length in (0, 1, 63, 64, 65, MAX_CONTROL_BYTES):
                sent = [bytes([65 + rank]) * max(0, length - rank) for rank in range(3)]
                buffers = make_buffers(np.float32, 10, 3)
                received = ranks.each(
                    lambda rank, sent=sent, buffers=buffers: round_[rank].all_reduce(buffers[rank], sent[rank]),
                    range(3),
                )
                assert received == [sent] * 3

    def test_many_reductions_in_a_row(self, ranks: RankThreads) -> None:
        def run(communicator: Communicator) -> None:
            for number in range(200):
                buffer = np.full(number * 7 % 500, number + communicator.rank, np.float32)
                messages = communicator.all_reduce(buffer, b"%d" % number)
                assert messages == [b"%d" % number] * 3
                np.testing.assert_array_equal(buffer, 3 * number + 3)

        with ranks.round(3) as round_:
            ranks.each(run, round_)

    def test_buckets_of_a_step_are_reduced_in_order(self, ranks: RankThreads) -> None:
        def run(communicator: Communicator) -> tuple[list[Array], list[bytes]]:
            buckets = make_buffers(np.float32, 70_000, 4, seed=communicator.rank)
            step = communicator.begin_step()
            for bucket in buckets[:-1]:
                step.reduce_bucket(bucket)
            return buckets, step.finish(b"%d" % communicator.rank, buckets[-1])

        with ranks.round(2) as round_:
            for _ in range(3):
                (ours, messages), (theirs, same) = ranks.each(run, round_)
                assert messages == same == [b"0", b"1"]
                parts = [make_buffers(np.float32, 70_000, 4, seed=rank) for rank in range(2)]
                for index in range(4):
                    np.testing.assert_array_equal(ours[index], parts[0][index] + parts[1][index])
                    np.testing.assert_array_equal(theirs[index], ours[index])
            assert ranks.each(lambda each: each.begin_step().finish(b"x"), round_) == [[b"x", b"x"]] * 2

    def test_a_step_of_one_bucket_is_reduced_on_the_callers_thread(self, ranks: RankThreads) -> None:
        with ranks.round(2) as round_:
            for communicator in round_:
                communicator._start_thread = None  # type: ignore[method-assign, assignment]  # to start one fails
            results = ranks.each(lambda each: (buffer := np.ones(8), each.begin_step().finish(b"x", buffer)), round_)
        for buffer, messages in results:
            np.testing.assert_array_equal(buffer, 2.0)
            assert messages == [b"x", b"x"]

    @pytest.mark.parametrize(
        "buffer",
        [
            np.zeros(4, bool),
            np.zeros(4, "S4"),
            np.zeros(4, ">f4"),
            np.zeros((4, 4), np.float32).T[:, :2],
            np.zeros(9, np.uint8)[1:].view(np.float32),
        ],
    )
    def test_what_cannot_be_reduced_is_refused_and_breaks_nothing(self, ranks: RankThreads, buffer: Array) -> None:
        with ranks.round(2) as round_:
            with pytest.raises(BadInputError):
                round_[0].all_reduce(buffer)
            with pytest.raises(BadInputError):
                round_[0].all_reduce(np.zeros(4, np.float32), b"x" * (MAX_CONTROL_BYTES + 1))
            reduce_all(ranks, round_, make_buffers(np.float32, 4, 2))

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (np.zeros(4, np.float32), np.zeros(5, np.float32)),
            (np.zeros(4, np.float32), np.zeros(4, np.int32)),
            (np.zeros(500_000, np.float32), np.zeros(4, np.float32)),
        ],
    )
    def test_ranks_that_reduce_different_things_are_told(self, ranks: RankThreads, ours: Array, theirs: Array) -> None:
        with ranks.round(2) as round_:
            errors = ranks.outcomes(lambda rank: round_[rank].all_reduce((ours, theirs)[rank].copy()), range(2))
            assert all(isinstance(error, RoundBrokenError) for error in errors), errors
            assert any("something else" in str(error) for error in errors)
