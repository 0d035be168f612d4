"""Values that arrive never overwrite memory that TensorFlow, or a gradient, still reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.traced_function import TracedFunction, as_array  # noqa: E402
from edl.numerics.array_types import Floats  # noqa: E402
from edl.worker.flat_buffer import DoubleBuffer, FlatLayout  # noqa: E402

SIZE = 640
RECORDS = np.ones((2, 1), np.float32)


def arrive(slabs: DoubleBuffer, value: float) -> Floats:
    """New values, as a step gets them."""
    slabs.next_values().fill(value)
    slabs.publish_next(complete=True)
    return slabs.lend()


def pair(size: int = SIZE) -> DoubleBuffer:
    return DoubleBuffer(FlatLayout([], [slice(0, size)], [], "", np.zeros(size, np.float32), "{}"))


def test_two_slabs_are_enough_when_nobody_keeps_one() -> None:
    slabs, places = pair(), set()
    for step in range(6):
        places.add(arrive(slabs, step).ctypes.data)
    assert len(places) == 2


@pytest.mark.parametrize("views", [1, 2])
def test_what_a_tensor_holds_is_not_overwritten(views: int) -> None:
    slabs = pair()
    traced = TracedFunction(lambda values: tf.reshape(values, [-1, 2]))
    tensors = []
    for step in range(5):
        values = arrive(slabs, step)
        tensors += [traced(slabs.lend()) for _ in range(views)]  # the same values may be asked for again
        assert np.shares_memory(as_array(tensors[-1]), values)
        del values
    for at, tensor in enumerate(tensors):
        np.testing.assert_array_equal(as_array(tensor), at // views)


class WeightKeeper(keras.layers.Layer):
    """Keeps its weights as they were in the last step, in a variable of TensorFlow's."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(SIZE,), name="kernel")
        self.kept = tf.Variable(tf.zeros([SIZE]), trainable=False)

    def call(self, inputs: Any) -> Any:
        kernel = tf.convert_to_tensor(self.kernel)
        self.kept.assign(kernel)
        return inputs * tf.reduce_sum(tf.square(kernel)) / 2


def network() -> tuple[KerasNetwork, WeightKeeper]:
    inputs = keras.Input((1,))
    layer = WeightKeeper()
    model = keras.Model(inputs, layer(inputs))
    module = ModelModule(
        zoo=Path(__file__).parent,
        make_model=lambda: model,
        loss=lambda labels, predictions: tf.reduce_mean(predictions),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        eval_metrics_fn=dict,
        feed=lambda dataset, mode, metadata: dataset,
    )
    return KerasNetwork.build(
        module, seed=0, embedding_threshold=1 << 40, ps_of_variable=lambda _: 0, ps_count=1
    ), layer


def test_gradients_and_what_a_model_keeps_stay_as_they_were() -> None:
    """Of this loss the gradient is the variable: nothing of it may lie in the memory of the values."""
    net, layer = network()
    slabs, steps = pair(), []
    for step in range(5):
        values = arrive(slabs, step)
        if step:
            np.testing.assert_array_equal(layer.kept, step - 1)
        steps.append(net.train(values, {}, RECORDS, RECORDS))
        assert not np.shares_memory(steps[-1].flat_gradients, values)
        del values
    for step, result in enumerate(steps):
        np.testing.assert_array_equal(result.flat_gradients, step)
