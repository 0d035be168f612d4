"""Which rank writes which arrays of a checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.checkpoint_shares import MOST_WRITERS, SHARD_BYTES, choose_writer_count, divide_arrays

SIZES = st.dictionaries(st.text(max_size=3), st.integers(0, 10_000), max_size=40)


@given(SIZES, st.integers(1, MOST_WRITERS))
def test_each_array_has_one_writer_and_the_shares_are_about_equal(sizes: dict[str, int], writers: int) -> None:
    shares = divide_arrays(sizes, writers)
    assert len(shares) == writers
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


@given(SIZES, st.integers(1, MOST_WRITERS))
def test_the_first_writer_has_the_arrays_of_which_others_may_have_another_value(
    sizes: dict[str, int], writers: int
) -> None:
    of_first = sorted(sizes)[:2]
    shares = divide_arrays(sizes, writers, of_first)
    assert set(of_first) <= set(shares[0])
    assert sorted(name for share in shares for name in share) == sorted(sizes)


@given(SIZES, st.integers(1, MOST_WRITERS), st.randoms())
def test_all_ranks_divide_alike(sizes: dict[str, int], writers: int, random: object) -> None:
    names = list(sizes)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert divide_arrays({name: sizes[name] for name in names}, writers) == divide_arrays(sizes, writers)


@pytest.mark.parametrize(
    ("state_bytes", "ranks", "writers"),
    [
        (0, 4, 1),
        (2 * SHARD_BYTES - 1, 4, 1),
        (2 * SHARD_BYTES, 4, 2),
        (9 * SHARD_BYTES, 4, 4),
        (9 * SHARD_BYTES, 1, 1),
        (900 * SHARD_BYTES, 100, MOST_WRITERS),
    ],
)
def test_a_small_state_has_one_writer_and_a_large_one_several(state_bytes: int, ranks: int, writers: int) -> None:
    assert choose_writer_count(state_bytes, ranks) == writers
