"""What every table must do with a bound, and with rows that no push names: the same, to the step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table_contract import OPTIMIZERS, PATIENT, ROWS, Make, array, declared, dyadic, initial
from support.text_keys import missing_keys

from edl.numerics.embedding_table import RowRetention, TableFullError
from edl.numerics.optimizer_spec import OptimizerSpec

SGD = OPTIMIZERS[0]
ADAGRAD = OptimizerSpec("adagrad")
SHAPE = declared()
EVERY = np.arange(ROWS)
few = st.lists(st.integers(0, 25), max_size=12, unique=True)
pushes = st.lists(st.tuples(st.integers(1, 4), few), max_size=25)


@dataclass
class RetentionModel:
    """Values and last step of the rows that are stored, under SGD at a rate of one half."""

    span: int
    rows: dict[int, np.ndarray] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    def push(self, step: int, ids: list[int], gradients: np.ndarray) -> None:
        for row in [row for row, last_step in self.seen.items() if last_step + self.span < step]:
            del self.rows[row], self.seen[row]
        for row, gradient in zip(ids, gradients, strict=True):
            before = self.rows.get(row, initial(SHAPE, array([row]))[0])
            self.rows[row], self.seen[row] = before - gradient * np.float32(0.5), step

    def every(self) -> np.ndarray:
        values = initial(SHAPE, EVERY)
        for row, value in self.rows.items():
            values[row] = value
        return values

    def copy(self) -> RetentionModel:
        return RetentionModel(self.span, dict(self.rows), dict(self.seen))

    def check(self, rows) -> None:
        assert dict(zip(rows.ids.tolist(), rows.last_steps.tolist(), strict=True)) == self.seen
        for row, value in zip(rows.ids.tolist(), rows.values, strict=True):
            np.testing.assert_array_equal(value, self.rows[row])


def gradients_of(step: int, ids: list[int]) -> np.ndarray:
    return dyadic(np.random.default_rng(step), len(ids), 3)


class RetentionContract:
    """A subclass gives the fixture ``make``."""

    @PATIENT
    @given(st.integers(1, 9), pushes, st.data())
    def test_rows_that_no_push_named_are_dropped_on_time_and_stay_in_snapshots(self, make: Make, span, pushes, data):
        table, model = make(SHAPE, SGD, retention=RowRetention(evict_after_steps=span)), RetentionModel(span)
        snapshots, step = [], 0
        for ahead, ids in [*pushes, (1, [])]:
            if data.draw(st.integers(0, 2)) == 0:
                snapshots.append((table.take_snapshot(), model.copy()))
            step += ahead
            gradients = gradients_of(step, ids)
            table.apply_gradients(array(ids), gradients, 0.5, step)
            model.push(step, ids, gradients)
            np.testing.assert_array_equal(table.read(EVERY), model.every())
            assert sorted(table.scan(0, table.position_limit).ids.tolist()) == sorted(model.rows)
            if snapshots and data.draw(st.booleans()):
                snapshot, then = snapshots.pop(data.draw(st.integers(0, len(snapshots) - 1)))
                assert len(snapshot) == len(then.rows)
                np.testing.assert_array_equal(snapshot.read(EVERY, SHAPE), then.every())
                windows = [snapshot.scan(start, 3).ids for start in range(0, snapshot.position_limit, 3)]
                assert sorted(np.concatenate([array([]), *windows]).tolist()) == sorted(then.rows)
                then.check(snapshot.read_all())
                assert sum(len(piece) for piece in snapshot.iter_chunks()) == len(then.rows)
                snapshot.release()
        model.check(table.take_snapshot().read_all())

    @PATIENT
    @given(st.integers(1, 9), pushes, pushes)
    def test_what_is_restored_drops_the_same_rows(self, make: Make, span, before, after):
        policy = RowRetention(evict_after_steps=span)
        table, model, step = make(SHAPE, SGD, retention=policy), RetentionModel(span), 0
        for ahead, ids in before:
            step += ahead
            table.apply_gradients(array(ids), gradients_of(step, ids), 0.5, step)
            model.push(step, ids, gradients_of(step, ids))
        other = make(SHAPE, SGD, retention=policy)
        copy = table.take_snapshot().read_all()
        for part in (copy.select_rows(np.arange(len(copy)) % 2 == odd) for odd in (0, 1)):
            other.load(part, step)
        for ahead, ids in after:
            step += ahead
            gradients = gradients_of(step, ids)
            model.push(step, ids, gradients)
            other.apply_gradients(array(ids), gradients, 0.5, step)
            model.check(other.take_snapshot().read_all())

    def test_rows_that_do_not_say_when_they_were_named_count_as_named_when_they_were_saved(self, make: Make):
        before = make(SHAPE, SGD)
        before.apply_gradients(array([1, 2]), gradients_of(1, [1, 2]), 0.5, 1)
        table = make(SHAPE, SGD, retention=RowRetention(evict_after_steps=10))
        table.load(before.take_snapshot().read_all(), 1000)
        for step, left in ((1001, [1, 2, 5]), (1010, [1, 2, 5]), (1011, [5])):
            table.apply_gradients(array([5]), gradients_of(step, [5]), 0.5, step)
            assert sorted(table.take_snapshot().read_all().ids.tolist()) == left

    def test_a_dropped_row_comes_back_as_it_was_at_first(self, make: Make):
        table = make(SHAPE, ADAGRAD, retention=RowRetention(evict_after_steps=2))
        fresh = make(SHAPE, ADAGRAD)
        for step in (1, 2):
            table.apply_gradients(array([7, 8]), gradients_of(step, [7, 8]), 0.5, step)
        for each in (table, fresh):
            each.apply_gradients(array([7]), gradients_of(9, [7]), 0.5, 9)
        ours, theirs = table.take_snapshot().read_all(), fresh.take_snapshot().read_all()
        assert ours.ids.tolist() == theirs.ids.tolist() == [7]
        np.testing.assert_array_equal(ours.values, theirs.values)
        np.testing.assert_array_equal(ours.slots["accumulator"], theirs.slots["accumulator"])

    def test_positions_of_dropped_rows_serve_others_and_nobody_moves(self, make: Make):
        table = make(SHAPE, SGD, retention=RowRetention(evict_after_steps=5))
        kept_ids = [3, 2000]
        for step in range(1, 300):
            ids = [*kept_ids, *(np.arange(10) + 10 * step).tolist()]
            table.apply_gradients(array(ids), gradients_of(step, ids), 0.5, step)
            assert table.scan(0, 2).ids.tolist() == kept_ids
        assert len(table) == len(table.take_snapshot()) == 2 + 10 * 6
        named = {*kept_ids, *range(10, 3000)}
        assert table.evicted_count == len(named) - len(table)
        assert table.position_limit <= 2 + 10 * 7

    def test_a_push_beyond_the_bound_is_refused_before_it_begins(self, make: Make):
        table = make(SHAPE, SGD, retention=RowRetention(max_rows=3))
        table.prepare_update(array([1, 2, 2, 1]), 1)
        table.apply_gradients(array([1, 2]), gradients_of(1, [1, 2]), 0.5, 1)
        before = table.read(EVERY)
        assert (len(table), table.row_limit, table.evicted_count) == (2, 3, 0)
        table.prepare_update(array([9, 1, 2, 9]), 2)
        with pytest.raises(TableFullError, match="2 new") as refused:
            table.prepare_update(array([1, 8, 9]), 2)
        shape = f"'emb' ({SHAPE.rows} x {SHAPE.dim})"
        assert not missing_keys(refused.value.message, shape, "2 rows", "2 new", "3", "ps.max_rows")
        hint = refused.value.hint or ""
        assert not missing_keys(hint, "ps.max_rows", "ps.count", "ps.evict_after_steps", "--resume")
        np.testing.assert_array_equal(table.read(EVERY), before)

    def test_dropped_rows_make_room(self, make: Make):
        table = make(SHAPE, SGD, retention=RowRetention(max_rows=2, evict_after_steps=3))
        table.apply_gradients(array([1, 2]), gradients_of(1, [1, 2]), 0.5, 1)
        with pytest.raises(TableFullError, match="1 new") as refused:
            table.prepare_update(array([3]), 4)
        assert "lower ps.evict_after_steps (3)" in (refused.value.hint or "")
        assert table.evicted_count == 0
        table.prepare_update(array([3, 4]), 5)
        assert (len(table), table.evicted_count) == (0, 2)
        table.apply_gradients(array([3, 4]), gradients_of(5, [3, 4]), 0.5, 5)
        assert sorted(table.take_snapshot().read_all().ids.tolist()) == [3, 4]
