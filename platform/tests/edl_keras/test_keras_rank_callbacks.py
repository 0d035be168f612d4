"""Callbacks of the user's own under AllReduce: what one rank lets them see and change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError, EdlError  # noqa: E402
from edl.core.callback_decisions import BestCheckpoint, callbacks_from_json, callbacks_to_json  # noqa: E402
from edl.core.model_files import ModelFile  # noqa: E402
from edl.core.rank_state import NOT_BEGUN, CallbackEpoch  # noqa: E402
from edl.jobfile.loader import load_job_text  # noqa: E402
from edl.keras import model_export  # noqa: E402
from edl.keras.all_reduce_callbacks import SharedCallbacks, declare_training_callbacks  # noqa: E402
from edl.keras.model_checkpoint_callback import model_file_path  # noqa: E402
from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.worker.allreduce.replica_evaluator import ReplicaEvaluator  # noqa: E402

ROUND = (1, 2)
"""In which training begins again."""


def squared_error(labels: Any, predictions: Any) -> Any:
    return tf.square(labels - predictions)


def linear() -> Any:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])


def make_replica(
    callbacks: Callable[[], Any],
    optimizer: Callable[[], Any] | None = None,
    model: Callable[[], Any] = linear,
) -> ModelReplica:
    module = ModelModule(
        zoo=Path(__file__).parent,
        make_model=model,
        loss=squared_error,
        optimizer=optimizer or (lambda: keras.optimizers.SGD(0.25)),
        eval_metrics_fn=dict,
        feed=squared_error,
        callbacks=callbacks,
    )
    return ModelReplica(module, seed=1, rank_seed=0, sample=None)


def declare(replica: ModelReplica) -> SharedCallbacks:
    spec = load_job_text(
        "name: job\nmodel: {zoo: ., definition: m.f}\ndata: {training: t.csv, validation: v.csv}\n"
        "strategy: {name: AllReduce}\ntrain: {evaluation_steps: 5}\n",
        "job.yaml",
    )
    return declare_training_callbacks(replica.module, replica, spec, worker_index=2, make_params=lambda: {"epochs": 3})


def rate_of(replica: ModelReplica) -> float:
    return float(replica.optimizer.learning_rate)


def test_callbacks_see_the_trained_model_its_rate_and_each_step_once() -> None:
    calls: list[Any] = []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            calls.append(("train", self.params["epochs"]))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            calls.append(("epoch", epoch))

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            calls.append(("begin", batch, float(self.model.optimizer.iterations)))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            calls.append(("end", batch, logs["loss"], float(self.model.get_weights()[0][0, 0])))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            calls.append(("epoch end", epoch, logs["loss"]))

        def on_train_end(self, logs: Any = None) -> None:
            calls.append("over")

    replica = make_replica(lambda: [Watch()])
    own = declare(replica).own
    own.begin_step(0, 0)
    own.begin_step(0, 0)  # the step is computed again after a change of the world
    replica.compute(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))
    replica.apply(2.0)
    own.end_step(0, 0, 1.0, None)
    own.begin_step(1, 1)
    own.end_step(1, 1, 3.0, None)
    own.end_training()
    assert calls == [
        ("train", 3),
        ("epoch", 0),
        ("begin", 0, 0.0),
        ("end", 0, 1.0, 0.5),
        ("epoch end", 0, 1.0),
        ("epoch", 1),
        ("begin", 1, 1.0),
        ("end", 1, 3.0, 0.5),
        ("epoch end", 1, 3.0),
        "over",
    ]


def test_an_epoch_begins_before_the_same_step_on_ranks_with_records_of_two_epochs() -> None:
    """Else a callback that changes a variable then makes the states differ for a step, and digests end the job."""

    class Anneal(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            (bias,) = [v for v in self.model.trainable_variables if v.path.endswith("bias")]
            bias.assign([float(epoch)])

    digests = set()
    for own_epoch in (0, 1):
        replica = make_replica(lambda: [Anneal()])
        own = declare(replica).own
        own.begin_step(0, own_epoch)
        replica.compute(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))
        # All know the epochs of the step's records now.
        own.begin_step(0, 1)
        replica.buffers[0][: replica.gradient_counts[0]] = 1
        replica.apply(2.0)
        own.end_step(0, 1, 1.0, None)
        digests.add(replica.digest())
        assert own.begun_step == (0, 1)
    assert len(digests) == 1


def test_an_epoch_that_has_ended_does_not_begin_again_with_a_worker_that_enters_with_its_records() -> None:
    calls: list[tuple[str, int]] = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            calls.append(("begin", epoch))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            calls.append(("end", epoch))

    own = declare(make_replica(lambda: [Watch()])).own
    for step, epoch in enumerate((0, 1, 0, 1, 2)):
        own.begin_step(step, epoch)
        own.end_step(step, epoch, 1.0, None)
    assert calls == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1), ("begin", 2)]


def test_a_rate_is_kept_for_the_next_step_and_the_state_stays_as_it_is() -> None:
    class Halve(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) / 2

    replica = make_replica(lambda: [Halve()])
    own = declare(replica).own
    assert own.learning_rate is None
    own.begin_step(0, 0)
    own.end_step(0, 0, 1.0, None)
    assert (own.learning_rate, rate_of(replica)) == (0.125, 0.25)
    # It has no records yet, and its callbacks see the rate that they have set.
    own.begin_step(1, 0)
    own.end_step(1, 0, 1.0, None)
    assert (own.learning_rate, rate_of(replica)) == (0.0625, 0.25)
    # All ranks have agreed on another one.
    replica.set_learning_rate(0.5)
    own.begin_step(2, 0)
    own.end_step(2, 0, 1.0, 0.5)
    assert (own.learning_rate, rate_of(replica)) == (0.25, 0.5)


def test_a_checkpoint_has_the_rate_that_callbacks_have_set_for_the_next_step() -> None:
    """New processes that go on from it do not call the callbacks for the step before again."""

    class Lower(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.125

    replica, resumed = (make_replica(lambda: [Lower()]) for _ in range(2))
    own = declare(replica).own
    with own.showing_checkpoint():
        assert rate_of(replica) == 0.25
    own.begin_step(0, 0)
    own.end_step(0, 0, 1.0, None)
    before = replica.digest()
    with own.showing_checkpoint():
        resumed.load_state(replica.state_arrays())
    assert (rate_of(resumed), replica.digest()) == (0.125, before)


def test_a_checkpoint_has_no_change_of_what_is_called_before_an_abandoned_step() -> None:
    """Processes that go on from it call that, and do not call the end of the epoch before."""

    class Change(keras.callbacks.Callback):
        def change(self, logs: Any = None, *, by: float = 16.0) -> None:
            kernel = self.model.trainable_variables[0]
            kernel.assign_add([[by]])
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) + by

        on_train_begin = change

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.change()

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.change()
            # TensorFlow may write into the memory that the variable has now.
            self.model.trainable_variables[0].value.assign_add([[16.0]])

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.change(by=0.125)

    def kernel_and_rate(source: ModelReplica) -> tuple[float, float]:
        return float(source.model.trainable_variables[0][0, 0]), rate_of(source)

    replica, resumed = (make_replica(lambda: [Change()]) for _ in range(2))
    own = declare(replica).own
    own.begin_again(0, ROUND, 0)
    for step, epoch, expected in ((0, 0, (1.0, 0.25)), (1, 0, (65.0, 48.25)), (2, 1, (97.125, 64.375))):
        own.begin_step(step, epoch)
        before = kernel_and_rate(replica)
        with own.showing_checkpoint():
            resumed.load_state(replica.state_arrays())
        assert kernel_and_rate(resumed) == expected
        assert kernel_and_rate(replica) == before
        own.end_step(step, epoch, 1.0, None)
        # It is in the next checkpoint.
        with own.showing_checkpoint():
            assert kernel_and_rate(replica) == (before[0], own.learning_rate)


def test_a_rank_that_begins_a_step_before_it_gets_the_state_of_others_puts_no_values_of_its_own_into_a_checkpoint() -> (
    None
):
    """It has lost the end of a reduction, and the others have begun the step that follows."""
    first, second, _ = make_counting_ranks()
    others, own = declare(first).own, declare(second).own
    for rank in (others, own):
        rank.begin_step(0, 0)
    others.end_step(0, 0, 1.0, None)
    others.begin_step(1, 0)
    own.make_up_step(others.ended_step)
    own.adopt_state(others.callback_epoch, 1)
    own.begin_step(1, 0)
    own.forget_old_values()
    second.unpack_state(first.pack_state())
    assert own.lacks_old_values
    assert not others.lacks_old_values
    with own.showing_checkpoint():
        assert second.digest() == first.digest()
    own.end_step(1, 0, 1.0, None)
    assert not own.lacks_old_values


def test_nothing_is_read_before_a_step_if_callbacks_change_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    replica = make_replica(lambda: [Watch(), keras.callbacks.History()])
    own = declare(replica).own
    monkeypatch.setattr(replica, "read_values", pytest.fail)
    own.begin_step(0, 0)


def test_a_stop_is_kept_until_training_goes_back() -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = self.model.stop_training or batch == 1

    own = declare(make_replica(lambda: [Stop()])).own
    for step in range(2):
        assert not own.has_stopped
        own.begin_step(step, 0)
        own.end_step(step, 0, 1.0, None)
    assert own.has_stopped
    own.forget_stop()
    assert not own.has_stopped


def test_a_rate_of_steps_that_the_state_of_others_replaces_is_forgotten() -> None:
    class Halve(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.125

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.0625

    replica = make_replica(lambda: [Halve()])
    own = declare(replica).own
    own.try_first_step()
    # A new run begins with what on_train_begin() sets.
    own.begin_again(0, ROUND, 0)
    assert own.learning_rate == 0.125
    own.begin_step(0, 0)
    own.end_step(0, 0, 1.0, 0.125)
    assert own.learning_rate == 0.0625
    own.begin_again(0, ROUND, 0)
    assert own.learning_rate is None


def test_a_rank_that_gets_the_state_of_others_has_begun_training_and_the_epoch_before() -> None:
    """What these change is replaced. At the first step of the next epoch all ranks change the same."""
    calls: list[str] = []

    class Assign(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            calls.append("train")
            self.model.set_weights([np.full_like(w, 7) for w in self.model.get_weights()])

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            calls.append(f"epoch {epoch}")
            self.model.set_weights([np.full_like(w, epoch) for w in self.model.get_weights()])
            self.model.optimizer.learning_rate = 0.125

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            calls.append(f"loss {logs.get('loss')}")

    first, second = (make_replica(lambda: [Assign()]) for _ in range(2))
    source, joined = declare(first).own, declare(second).own
    assert source.callback_epoch == joined.callback_epoch == NOT_BEGUN
    for step, epoch in enumerate((0, 1, 1)):
        source.begin_step(step, epoch)
        source.end_step(step, epoch, 1.0 + step, 0.125)
    first.set_learning_rate(0.125)
    assert source.callback_epoch == CallbackEpoch(2, 5.0, 2, learning_rate=0.125)
    calls.clear()
    joined.adopt_state(source.callback_epoch, 3)
    assert calls == ["train", "epoch 1"]
    assert joined.callback_epoch == source.callback_epoch
    second.unpack_state(first.pack_state())
    for own in (source, joined):
        own.begin_step(3, 1)
        own.end_step(3, 1, 4.0, 0.125)
    assert first.digest() == second.digest()
    calls.clear()
    for own in (source, joined):
        own.begin_step(4, 2)
    assert first.digest() == second.digest()
    # The loss of the epoch is that of all its steps.
    assert calls == ["loss 3.0", "epoch 2"] * 2
    # It was outside for a while, and all others have gone back to a checkpoint.
    calls.clear()
    joined.adopt_state(CallbackEpoch(1, 0.5, 1), 1)
    assert calls == ["epoch 0"]
    assert joined.callback_epoch == CallbackEpoch(1, 0.5, 1)


def test_a_rank_that_gets_the_state_of_others_has_the_rate_that_they_have_set_for_the_next_step() -> None:
    """Its callbacks read it before their first step, and a shard of a checkpoint that it writes has it."""
    rates: list[float] = []

    class Lower(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                self.model.optimizer.learning_rate = 0.125

    first, second = (make_replica(lambda: [Lower()]) for _ in range(2))
    source, joined = declare(first).own, declare(second).own
    for step in range(3):
        source.begin_step(step, 0)
        source.end_step(step, 0, 1.0, None)
    source.begin_step(3, 0)
    joined.adopt_state(source.callback_epoch, 3)
    second.unpack_state(first.pack_state())
    rates.clear()
    joined.begin_step(3, 0)
    assert (rates, joined.learning_rate) == ([0.125], 0.125)
    with joined.showing_checkpoint():
        assert rate_of(second) == 0.125
    assert first.rate_names == {"slot/1"}


class CallRecorder(keras.callbacks.Callback):
    """Says what is called, and adds to the variables at each place."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def note(self, text: str) -> None:
        self.seen.append(text)
        self.model.set_weights([w + 1 for w in self.model.get_weights()])

    def on_train_begin(self, logs: Any = None) -> None:
        self.note("train")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.note(f"epoch {epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.note(f"epoch {epoch} ends with {logs['loss']}")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.note(f"batch {batch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.note(f"batch {batch} ends with {logs['loss']}")


def make_counting_ranks() -> tuple[ModelReplica, ModelReplica, list[str]]:
    calls: list[str] = []
    return make_replica(lambda: [CallRecorder([])]), make_replica(lambda: [CallRecorder(calls)]), calls


def test_an_epoch_of_which_a_rank_lacks_steps_has_no_end_there() -> None:
    """It was stopped in the step of an epoch, or for many steps. It does not know the loss of this epoch."""
    first, second, calls = make_counting_ranks()
    others, own = declare(first).own, declare(second).own
    own.begin_step(0, 0)
    for step in range(8):
        others.begin_step(step, step // 2)
        others.end_step(step, step // 2, 1.0 + step, None)
    calls.clear()
    own.adopt_state(others.callback_epoch, 8)
    assert calls == ["epoch 3"]
    second.unpack_state(first.pack_state())
    for rank in (others, own):
        rank.begin_step(8, 4)
    assert calls[1:] == ["epoch 3 ends with 7.5", "epoch 4", "batch 8"]
    assert first.digest() == second.digest()


@pytest.mark.parametrize("begun", [True, False])
def test_a_rank_that_lacks_the_newest_step_alone_calls_its_callbacks_for_it(begun: bool) -> None:
    """The others may have begun the next epoch already.

    Args:
        begun: whether the rank had begun the step: it had records for it.
    """
    first, second, calls = make_counting_ranks()
    others, own = declare(first).own, declare(second).own
    for rank in (others, own):
        rank.begin_step(0, 0)
        rank.end_step(0, 0, 1.0, None)
    others.begin_step(1, 0)
    others.end_step(1, 0, 4.0, None)
    others.begin_step(2, 1)
    if begun:
        own.begin_step(1, 0)
    calls.clear()
    own.make_up_step(others.ended_step)
    own.adopt_state(others.callback_epoch, 2)
    own.begin_step(2, 1)
    expected = ["batch 1", "batch 1 ends with 4.0", "epoch 0 ends with 2.5", "epoch 1", "batch 2"]
    assert calls == expected[begun:]
    assert own.callback_epoch == others.callback_epoch
    # One that lacks more of them does not know what it lacks.
    others.end_step(2, 1, 1.0, None)
    others.begin_step(3, 1)
    others.end_step(3, 1, 1.0, None)
    calls.clear()
    own.make_up_step(others.ended_step)
    assert not calls


def test_callbacks_before_a_step_are_called_for_the_state_of_others_although_the_rank_had_begun_the_step() -> None:
    first, second, _ = make_counting_ranks()
    others, own = declare(first).own, declare(second).own
    for rank in (others, own):
        rank.begin_step(0, 0)
        rank.end_step(0, 0, 1.0, None)
    own.begin_step(1, 0)
    own.adopt_state(others.callback_epoch, 1)
    second.unpack_state(first.pack_state())
    for rank in (others, own):
        rank.begin_step(1, 0)
    assert first.digest() == second.digest()


@pytest.mark.parametrize("enters_with_them", [True, False])
def test_a_rank_that_has_trained_begins_again_from_a_checkpoint_as_new_processes_do(enters_with_them: bool) -> None:
    """Otherwise it gets the state of new processes that have it and have not begun training."""
    first, second, calls = make_counting_ranks()
    new, own = declare(first).own, declare(second).own
    state = first.pack_state()
    for step in range(3):
        own.begin_step(step, step)
        own.end_step(step, step, 1.0, None)
    own.begin_step(0, 5)
    calls.clear()
    new.begin_again(0, ROUND, 0)
    if enters_with_them:
        own.begin_again(0, ROUND, 0)
    else:
        own.adopt_state(new.callback_epoch, 0)
    second.unpack_state(state)
    for rank in (new, own):
        rank.begin_step(0, 0)
    assert calls == ["train", "epoch 0", "batch 0"]
    assert first.digest() == second.digest()


def test_a_rank_that_comes_back_after_the_others_have_begun_again_begins_again_as_well() -> None:
    """They went back to a checkpoint and have made steps since. What the rank has called was for other steps."""
    first, second, calls = make_counting_ranks()
    others, own = declare(first).own, declare(second).own
    for rank in (others, own):
        rank.begin_again(0, (1, 1), 0)
        for step in range(4):
            rank.begin_step(step, 0)
            rank.end_step(step, 0, 1.0, None)
    for round_of_start in (ROUND, (2, 1)):
        others.begin_again(1, round_of_start, 0)
        others.begin_step(1, 0)
        others.end_step(1, 0, 1.0, None)
        calls.clear()
        own.adopt_state(others.callback_epoch, 2)
        assert calls == ["train", "epoch 0"]
        second.unpack_state(first.pack_state())
        for rank in (others, own):
            rank.begin_step(2, 0)
        assert first.digest() == second.digest()
    # Later it gets their state once more, and they have not begun again.
    calls.clear()
    own.adopt_state(others.callback_epoch, 2)
    assert not calls


@pytest.mark.parametrize("joins", [False, True])
def test_training_begins_again_in_the_same_epoch_on_ranks_with_records_of_two_epochs(*, joins: bool) -> None:
    """The step after the checkpoint has the last records of one epoch and the first ones of the next.

    Args:
        joins: whether the second rank gets the state of the first one, which has begun the step.
    """
    first, second, calls = make_counting_ranks()
    early, late = declare(first).own, declare(second).own
    early.begin_again(5, ROUND, 1)
    if joins:
        late.adopt_state(early.callback_epoch, 5)
    else:
        late.begin_again(5, ROUND, 1)
    early.begin_step(5, 1)
    late.begin_step(5, 2)
    # All know the epochs of the step's records now.
    early.begin_step(5, 2)
    # The first epoch has no step of its own since, and so no loss and no end.
    assert calls == ["train", "epoch 1", "epoch 2", "batch 5"]
    assert [w.tolist() for w in first.model.get_weights()] == [w.tolist() for w in second.model.get_weights()]
    assert early.callback_epoch == late.callback_epoch


def test_an_epoch_that_is_a_part_of_one_step_begins_on_all_ranks() -> None:
    """The step has records of three epochs, because they are short. A rank knows its own ones only before."""
    first, second, calls = make_counting_ranks()
    early, late = declare(first).own, declare(second).own
    for own, own_epoch in ((early, 1), (late, 2)):
        own.begin_step(0, 0)
        own.end_step(0, 0, 1.0, None)
        own.begin_step(1, own_epoch)
        own.begin_step(1, 2)
    assert calls[-4:] == ["epoch 0 ends with 1.0", "epoch 1", "epoch 2", "batch 1"]
    assert [w.tolist() for w in first.model.get_weights()] == [w.tolist() for w in second.model.get_weights()]


def test_an_epoch_without_a_step_that_was_applied_has_no_end() -> None:
    """It has no loss: ``logs["loss"]`` would raise, and end the job."""
    _, replica, calls = make_counting_ranks()
    own = declare(replica).own
    own.skip_step(0, 0)
    own.begin_step(1, 1)
    own.skip_step(1, 1)
    own.end_training()
    assert calls == ["train", "epoch 0", "batch 0", "epoch 1", "batch 1"]


def test_a_rank_that_got_the_state_of_others_calls_its_callbacks_for_the_step_that_it_loses_next() -> None:
    """It joined with the state of this step, or training began there, from a checkpoint."""
    first, second, calls = make_counting_ranks()
    others, own = declare(first).own, declare(second).own
    for step in range(4):
        others.begin_step(step, 0)
        others.end_step(step, 0, 1.0 + step, None)
    own.adopt_state(others.callback_epoch, 4)
    own.begin_step(4, 0)
    others.begin_step(4, 0)
    others.end_step(4, 0, 5.0, None)
    others.begin_step(5, 1)
    calls.clear()
    own.make_up_step(others.ended_step)
    own.adopt_state(others.callback_epoch, 5)
    assert calls == ["batch 4 ends with 5.0", "epoch 0 ends with 3.0", "epoch 1"]
    others.begin_again(3, ROUND, 0)
    own.begin_again(3, ROUND, 0)
    calls.clear()
    others.begin_step(3, 0)
    others.end_step(3, 0, 7.0, None)
    own.make_up_step(others.ended_step)
    assert calls == ["train", "epoch 0", "batch 3", "batch 3 ends with 7.0"]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_step_that_is_not_applied_is_one_that_a_rank_may_lack_or_have_made(lost: int) -> None:
    """Its gradient is not finite, and ``train.on_nan`` is ``skip``: it begins and has no end.

    Args:
        lost: the step whose reduction the rank does not finish; the one that is not applied, or the next one.
    """
    first, second, calls = make_counting_ranks()
    others, own = declare(first).own, declare(second).own
    for rank in (others, own):
        rank.begin_step(0, 0)
        rank.end_step(0, 0, 1.0, None)
    others.skip_step(1, 0)
    if lost == 2:
        own.skip_step(1, 0)
        others.begin_step(2, 0)
        others.end_step(2, 0, 2.0, None)
    # The others may have begun the next epoch already.
    others.begin_step(lost + 1, 1)
    calls.clear()
    own.make_up_step(others.ended_step)
    own.adopt_state(others.callback_epoch, lost + 1)
    made_up = ["batch 1"] if lost == 1 else ["batch 2", "batch 2 ends with 2.0"]
    assert calls == [*made_up, f"epoch 0 ends with {(1.0 if lost == 1 else 1.5)}", "epoch 1"]
    assert own.callback_epoch == others.callback_epoch


def test_the_log_of_a_worker_that_begins_again_from_a_checkpoint_keeps_its_epochs(tmp_path: Path) -> None:
    own = declare(make_replica(lambda: [keras.callbacks.CSVLogger(tmp_path / "log.csv")])).own
    for step in range(3):
        own.begin_step(step, step)
        own.end_step(step, step, 1.5, None)
    own.begin_again(1, ROUND, 0)
    own.begin_step(1, 1)
    own.end_step(1, 1, 2.5, None)
    own.end_training()
    lines = (tmp_path / "log-worker-2.csv").read_text().splitlines()
    assert lines == ["epoch,loss,val_loss", "0,1.5,NA", "1,1.5,NA", "1,2.5,NA"]


class SetsRate(keras.callbacks.Callback):
    """A subclass of no callback of Keras that sets a rate."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (lambda: keras.callbacks.ReduceLROnPlateau(), "ReduceLROnPlateau"),
        (lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.5), "LearningRateScheduler"),
    ],
)
def test_two_callbacks_that_set_the_rate_are_refused_by_name(other: Callable[[], Any], named: str) -> None:
    own = declare(make_replica(lambda: [SetsRate(), other()])).own
    with pytest.raises(BadInputError, match=named):
        own.begin_step(0, 0)


def test_a_rate_that_is_not_finite_and_one_beside_a_schedule_are_refused() -> None:
    class Diverges(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = float("nan")

    own = declare(make_replica(lambda: [Diverges()])).own
    with pytest.raises(BadInputError, match="nan"):
        own.begin_step(0, 0)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    scheduled = declare(make_replica(lambda: [SetsRate()], lambda: keras.optimizers.SGD(schedule))).own
    with pytest.raises(EdlError, match="on_epoch_begin"):
        scheduled.begin_step(0, 0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: keras.callbacks.ModelCheckpoint("{batch}.keras"), "batch"),
        (lambda: keras.callbacks.ModelCheckpoint("{accuracy}.keras"), "accuracy"),
        (lambda: keras.callbacks.ModelCheckpoint("{epoch:.f}.keras"), "filepath"),
        (lambda: keras.callbacks.ModelCheckpoint("{val_loss}-{loss}.keras"), "{loss}"),
        (lambda: keras.callbacks.ModelCheckpoint("{val_missing}.keras"), "val_missing"),
        (lambda: keras.callbacks.ModelCheckpoint("{val_loss}.keras", save_freq=3), "save_freq=3"),
        (lambda: keras.callbacks.ModelCheckpoint("a.keras", save_freq=0), "save_freq=0"),
        (lambda: keras.callbacks.ModelCheckpoint("a.h5"), "HDF5"),
        (lambda: keras.callbacks.ModelCheckpoint("a.h5", save_best_only=True), "HDF5"),
        (lambda: keras.callbacks.ModelCheckpoint("{accuracy}.keras", save_best_only=True), "accuracy"),
        (lambda: keras.callbacks.SwapEMAWeights(), "SwapEMAWeights"),
        (lambda: keras.callbacks.BackupAndRestore("a"), "BackupAndRestore"),
        (lambda: keras.callbacks.TerminateOnNaN(), "TerminateOnNaN"),
        (lambda: type("Mine", (keras.callbacks.ModelCheckpoint,), {})("a.keras"), "Mine"),
        (lambda: type("Mine", (keras.callbacks.EarlyStopping,), {})(restore_best_weights=True), "Mine"),
    ],
)
def test_what_several_ranks_cannot_run_is_refused_by_name(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(BadInputError, match=named):
        declare(make_replica(lambda: [make()]))


def test_model_checkpoint_is_declared_and_no_rank_runs_it() -> None:
    checkpoints = [
        keras.callbacks.ModelCheckpoint("{epoch:02d}-{loss:.2f}.keras"),
        keras.callbacks.ModelCheckpoint("{batch}.weights.h5", save_weights_only=True, save_freq=5),
        keras.callbacks.ModelCheckpoint("{epoch}-{val_loss:.2f}.keras", initial_value_threshold=0.5),
    ]
    callbacks = declare(make_replica(lambda: checkpoints))
    assert callbacks.files == (
        ModelFile("{epoch:02d}-{loss:.2f}.keras"),
        ModelFile("{batch}.weights.h5", weights_only=True, every_steps=5),
    )
    assert callbacks.declared == (
        BestCheckpoint("loss", "min", filepath="{epoch}-{val_loss:.2f}.keras", saves_every=True),
    )
    declared = (*callbacks.declared, *callbacks.files)
    assert callbacks_from_json(json.loads(json.dumps(callbacks_to_json(declared)))) == declared


def test_the_name_of_a_file_has_the_mean_loss_of_the_epoch_as_in_keras() -> None:
    callbacks = declare(make_replica(lambda: [keras.callbacks.ModelCheckpoint("{epoch}-{batch}.keras", save_freq=2)]))
    due = {"epoch": 2, "step": 40, "loss": None}
    path = "{epoch:02d}-{batch}-{loss:.3f}.keras"
    assert model_file_path(path, due, callbacks.epoch_loss.mean) == Path("02-40-nan.keras")
    # A worker that has just joined knows what the master knows.
    assert model_file_path(path, due | {"loss": 0.5}, callbacks.epoch_loss.mean) == Path("02-40-0.500.keras")
    for step, epoch, loss in ((0, 0, 9.0), (1, 1, 1.0), (2, 1, 2.0)):
        callbacks.own.begin_step(step, epoch)
        callbacks.own.end_step(step, epoch, loss, None)
    assert model_file_path(path, due, callbacks.epoch_loss.mean) == Path("02-40-1.500.keras")


def test_every_worker_writes_a_file_of_its_own(tmp_path: Path) -> None:
    own = declare(make_replica(lambda: [keras.callbacks.CSVLogger(tmp_path / "log.csv")])).own
    own.begin_step(0, 0)
    own.end_step(0, 0, 1.5, None)
    own.end_training()
    assert (tmp_path / "log-worker-2.csv").read_text().splitlines() == ["epoch,loss,val_loss", "0,1.5,NA"]


def test_one_rank_sends_the_values_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(
        keras.callbacks.RemoteMonitor, "on_epoch_end", lambda monitor, epoch, logs=None: sent.append(epoch)
    )
    own = declare(make_replica(lambda: [keras.callbacks.RemoteMonitor()])).own
    for epoch, rank in enumerate((1, 0, 1)):
        own.begin_step(epoch, epoch)
        own.start_round(rank)
        own.end_step(epoch, epoch, 1.0, None)
    own.end_training()
    assert sent == [1]


@pytest.mark.parametrize("use_ema", [False, True])
def test_the_end_of_training_leaves_the_weights_of_fit(use_ema: bool) -> None:
    """The last ``on_epoch_end``, then the averages of ``use_ema``, then ``on_train_end``; each callback once."""
    calls: list[str] = []

    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            calls.append("epoch")
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel / 2)

        def on_train_end(self, logs: Any = None) -> None:
            calls.append("train")
            bias = self.model.layers[0].bias
            bias.assign(bias + 1)

    def optimizer() -> Any:
        return keras.optimizers.SGD(0.25, use_ema=use_ema, ema_momentum=0.5)

    inputs, labels = np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)
    replica = make_replica(lambda: [Halve()], optimizer)
    own = declare(replica).own
    own.begin_step(0, 0)
    replica.compute(inputs, labels)
    replica.apply(2.0)
    own.end_step(0, 0, 1.0, None)
    state = replica.pack_state()
    own.end_training()
    weights = [each.tolist() for each in replica.model.get_weights()]
    model = linear()
    model.compile(optimizer(), "mse")
    calls_of_rank = list(calls)
    model.fit(inputs, labels, batch_size=2, callbacks=[Halve()], verbose=0)
    assert weights == [each.tolist() for each in model.get_weights()]
    assert calls_of_rank == ["epoch", "train"]
    # The state that other ranks have comes back after the export. A second export has the same weights.
    replica.unpack_state(state)
    own.end_training()
    assert weights == [each.tolist() for each in replica.model.get_weights()]
    assert calls == ["epoch", "train"] * 2


@pytest.mark.parametrize("has_callbacks", [False, True])
def test_an_export_has_the_end_of_training_and_the_rank_has_its_state_afterwards(
    has_callbacks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fill(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            self.model.set_weights([weight * 0 + 7 for weight in self.model.get_weights()])

    exported: list[float] = []

    def export_model(model: Any, values: Any, *where: Any) -> dict[str, Any]:
        exported.append(float(values.max()))
        return {"loading": None}

    monkeypatch.setattr(model_export, "export_model", export_model)
    replica = make_replica(
        lambda: [Fill()] if has_callbacks else [],
        lambda: keras.optimizers.SGD(0.125, use_ema=True, ema_momentum=0.5),
    )
    callbacks = declare(replica)
    for step in range(2):
        callbacks.own.begin_step(step, 0)
        replica.compute(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))
        replica.apply(2.0)
        callbacks.own.end_step(step, 0, 1.0, None)
    before = replica.digest()
    runtime: Any = SimpleNamespace(
        spec=SimpleNamespace(export=None),
        identity=SimpleNamespace(run_dir=tmp_path),
        progress=SimpleNamespace(finish_task=lambda *_: None),
    )
    evaluator = ReplicaEvaluator(runtime, replica, callbacks, lambda cut: {})
    evaluator.export(cast(Any, SimpleNamespace(payload=b"", lease_id=1)))
    # The kernel is 0.75 after the first step and 0.625 after the second one; the bias is below zero.
    assert exported == [7.0 if has_callbacks else 0.6875]
    assert replica.digest() == before


def test_training_that_goes_on_from_a_checkpoint_ends_once_more() -> None:
    _, replica, calls = make_counting_ranks()
    own = declare(replica).own
    own.begin_step(0, 0)
    own.end_step(0, 0, 1.0, None)
    own.end_training()
    own.begin_again(0, ROUND, 0)
    calls.clear()
    own.begin_step(0, 0)
    own.end_step(0, 0, 2.0, None)
    own.end_training()
    assert calls[-1] == "epoch 0 ends with 2.0"


def two_optimizers() -> Any:
    rates = {"kernel": keras.optimizers.SGD(0.25), "bias": keras.optimizers.SGD(0.5)}
    return keras.optimizers.MultiOptimizer(lambda variable: rates[variable.name])


def test_several_optimizers_have_no_rate_that_a_callback_could_set() -> None:
    batches: list[int] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            batches.append(batch)

    own = declare(make_replica(lambda: [Watch()], two_optimizers)).own
    own.begin_step(0, 0)
    own.end_step(0, 0, 1.0, None)
    assert (batches, own.learning_rate) == ([0], None)
    with pytest.raises(BadInputError, match="MultiOptimizer"):
        declare(make_replica(lambda: [keras.callbacks.ReduceLROnPlateau()], two_optimizers))


def set_slope(self: Any, *_: Any, **__: Any) -> None:
    self.model.get_layer("slope").negative_slope = 0.5


def make_sloped() -> Any:
    layers = [keras.Input((1,)), keras.layers.Dense(1), keras.layers.LeakyReLU(negative_slope=0.25, name="slope")]
    return keras.Sequential(layers)


@pytest.mark.parametrize("method", ["on_train_begin", "on_epoch_begin", "on_train_batch_begin"])
def test_an_attribute_of_a_layer_is_refused_before_the_first_step(method: str) -> None:
    """``fit`` traces its step later, with the new value; here the step is traced already."""
    callback = type("Sloping", (keras.callbacks.Callback,), {method: set_slope})()
    replica = make_replica(lambda: [callback], model=make_sloped)
    own = declare(replica).own
    with pytest.raises(
        BadInputError, match=rf"Sloping\.{method}\(\) sets 'negative_slope' of the layer 'slope' from 0.25"
    ):
        own.begin_step(0, 0)


def test_later_an_attribute_has_no_effect_as_in_fit() -> None:
    class Sloping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            set_slope(self)

    own = declare(make_replica(lambda: [Sloping()], model=make_sloped)).own
    own.begin_step(0, 0)
    own.end_step(0, 0, 1.0, None)


def test_a_worker_that_joins_in_a_later_epoch_may_keep_it_in_the_model() -> None:
    class Counting(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.get_layer("slope").negative_slope = 0.25 + epoch

    declare(make_replica(lambda: [Counting()], model=make_sloped)).own.begin_step(25, 5)


def test_set_model_may_set_an_attribute_of_a_layer() -> None:
    """It is called before the step is traced."""

    class Sloping(keras.callbacks.Callback):
        def set_model(self, model: Any) -> None:
            super().set_model(model)
            set_slope(self)

    replica = make_replica(lambda: [Sloping()], model=make_sloped)
    declare(replica).own.begin_step(0, 0)
    assert replica.model.get_layer("slope").negative_slope == 0.5
