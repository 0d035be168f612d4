"""Functions that are traced once, on whatever thread they are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import tensorflow as tf  # noqa: E402

from edl.worker import traced as traced_module  # noqa: E402
from edl.worker.traced import Traced  # noqa: E402


@pytest.mark.parametrize("argument", [np.zeros((2, 3), np.float32), tf.ragged.constant([[1.0], [2.0, 3.0]])])
def test_a_function_is_traced_while_no_other_of_its_model_is(argument: Any) -> None:
    """Layers remember what they are traced for: rows that are lent to one graph must not appear in another."""
    held: list[bool] = []

    def function(value: Any) -> Any:
        held.append(traced_module._TRACING.locked())
        return value

    traced = Traced(function)
    traced(argument)
    traced(argument)

    assert held == [True]
    assert not traced_module._TRACING.locked()
