"""Tables without a bound take every int64 as an id; the others say which ids they have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table_contract import PATIENT, array, declared

from edl.api.errors import BadInputError
from edl.numerics.model_declaration import MAX_TABLE_ROWS, ModelDeclaration
from edl.numerics.numpy_table import NumpyTable
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import make_rule
from edl.ps import bulk_handler
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import PeerRefusedError

EXTREMES = [-(2**63), -1, 0, 7, 2**63 - 1]
any_id = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(EXTREMES))
SGD = OptimizerSpec("sgd")


def model(rows: int) -> ModelDeclaration:
    return ModelDeclaration((), (declared({"name": "zeros"}, rows=rows),), SGD, "f")


@PATIENT
@given(st.lists(st.lists(any_id, max_size=20), max_size=6))
def test_every_int64_is_an_id_of_its_own(pushes: list[list[int]]) -> None:
    table = NumpyTable(model(0).tables[0], {}, make_rule(SGD, 0.0))
    expected: dict[int, int] = {}
    for step, ids in enumerate(pushes, start=1):
        table.apply_gradients(array(ids), np.ones((len(ids), 3), np.float32), 1.0, step)
        for row in ids:
            expected[row] = expected.get(row, 0) - 1
    snapshot = table.take_snapshot()
    assert dict(zip(snapshot.ids.tolist(), snapshot.values[:, 0].tolist(), strict=True)) == expected
    extreme_ids = array(EXTREMES)
    np.testing.assert_array_equal(table.read(extreme_ids)[:, 0], [expected.get(row, 0) for row in EXTREMES])


def test_requests_for_any_id_are_taken_where_there_is_no_bound() -> None:
    ids = array(EXTREMES)
    table_rows = [pb.TableRows(name="emb", count=len(ids))]
    np.testing.assert_array_equal(bulk_handler.parse_row_ids(model(0), table_rows, ids.data.cast("B"))["emb"], ids)
    with pytest.raises(PeerRefusedError, match=r"'emb'.* 0 to 7"):
        bulk_handler.parse_row_ids(model(8), table_rows, ids.data.cast("B"))


@pytest.mark.parametrize("rows", [-1, MAX_TABLE_ROWS + 1])
def test_no_other_number_of_rows_means_no_bound(rows: int) -> None:
    with pytest.raises(BadInputError, match=rf"'emb' is {rows} x"):
        model(rows)
