"""Gradients that are not finite are found wherever they are, and named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.text_keys import missing_keys

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.worker.lease_client import LeasedTask
from edl.worker.not_finite import NotFiniteError, find_nonfinite_gradient, is_finite, report_not_finite

NETWORK: Any = SimpleNamespace(
    variables=[
        VariableSpec("head/kernel", (2, 3)),
        VariableSpec("head/bias", ()),
        VariableSpec("norm/mean", (2,), statistic=True),
    ],
    tables=[TableSpec("emb", 50, 2, {"name": "zeros"}, 0), TableSpec("words", 0, 2, {"name": "zeros"}, 0)],
)
TASK = LeasedTask(1, "training", "part-0.recordio", 64, 100, minibatch_size=32)


def step(slab_at: int | None = None, table: str = "", value: float = np.nan, loss: float = 1.0) -> Any:
    result = SimpleNamespace(
        loss=loss,
        flat_gradients=np.ones(9, np.float32),
        row_gradients={"emb": np.ones((3, 2), np.float32), "words": np.ones((1, 2), np.float32)},
    )
    if slab_at is not None:
        result.flat_gradients[slab_at] = value
    if table:
        result.row_gradients[table][-1, -1] = value
    return result


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("where", "named"),
    [
        ({"slab_at": 5}, ("gradient", "'head/kernel' [2, 3]")),
        ({"slab_at": 6}, ("gradient", "'head/bias' []")),
        ({"slab_at": 8}, ("statistic", "'norm/mean' [2]")),
        ({"table": "emb"}, ("rows", "'emb' (50 x 2)")),
        ({"table": "words"}, ("rows", "'words' (any id x 2)")),
    ],
)
def test_a_gradient_is_named_with_its_shape(where: dict[str, Any], named: tuple[str, ...], value: float) -> None:
    bad = step(**where, value=value)
    assert not is_finite(bad)
    assert not missing_keys(find_nonfinite_gradient(NETWORK, bad), *named)


def test_gradients_whose_sum_alone_overflows_are_finite() -> None:
    large = step()
    large.flat_gradients[:] = 3e38
    assert is_finite(large)


def test_the_message_says_what_where_and_what_to_do() -> None:
    with pytest.raises(NotFiniteError) as caught:
        report_not_finite(TASK, 1, 0.5, 1, skip=False, gradient="the gradient of 'head/bias' []")
    assert not missing_keys(
        str(caught.value), "part-0.recordio", "gradient of 'head/bias' []", "loss 0.5", "records 96 to 99"
    )
    assert "\n  " in str(caught.value), "there is a hint"
    with pytest.raises(NotFiniteError, match=r"loss nan\b.*records 64 to 95"):
        report_not_finite(TASK, 0, float("nan"), 1, skip=False)
    with pytest.raises(NotFiniteError, match=r"loss nan, of rank 2 from records 64 to 95"):
        report_not_finite(TASK, 0, float("nan"), 1, skip=False, rank=2)


def test_a_step_that_is_left_out_is_told_with_its_records(caplog: pytest.LogCaptureFixture) -> None:
    report_not_finite(TASK, 1, 0.5, 1, skip=True, gradient="the gradient of 'head/bias' []")
    report_not_finite(TASK, 0, float("nan"), 2, skip=True)
    first, second = caplog.messages
    assert not missing_keys(first, "part-0.recordio", "records 96 to 99", "gradient of 'head/bias' []", "loss 0.5", "1")
    assert not missing_keys(second, "part-0.recordio", "records 64 to 95", "loss nan", "2")
