"""A ``train_step`` with several updates under AllReduce: several ranks do what Keras does with the union."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
from support.gan_model import (  # noqa: E402
    ADVERSARIAL,
    PERSISTENT,
    TWO_CRITIC_STEPS,
    Records,
    make_records,
    pick,
    train_plainly,
    write_gan,
)

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.jobfile.loader import load_job_text  # noqa: E402
from edl.keras.all_reduce_callbacks import declare_training_callbacks  # noqa: E402
from edl.keras.model_contract import ModelModule, load_model_module  # noqa: E402
from edl.keras.optimizer_state import describe_keras_state  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.replica_choice import build_replica  # noqa: E402
from edl.keras.several_updates_train_step import SeveralUpdatesReplica  # noqa: E402
from edl.keras.user_callbacks import make_callbacks  # noqa: E402

RECORDS = 24


def load_gan(folder: Path, *, needs_metrics: bool = False) -> ModelModule:
    choice = ModelSpec(zoo=str(folder), definition="gan.custom_model", params={})
    return load_model_module(choice, needs_metrics=needs_metrics, may_have_train_step=True)


Build = Callable[..., Any]


def make_rank(folder: Path, rank: int, build: Build = SeveralUpdatesReplica) -> Any:
    x, y = make_records(1)
    return build(load_gan(folder), seed=4, rank_seed=rank, sample=x, first=(x, y, None))


def make_ranks(
    folder: Path,
    step: str,
    count: int = 1,
    changes: Mapping[str, str] | None = None,
    build: Build = SeveralUpdatesReplica,
) -> list[Any]:
    """Ranks of several updates; ``build_replica`` also finds that there are several, which takes as long again."""
    write_gan(folder, step, changes)
    return [make_rank(folder, rank, build) for rank in range(count)]


ShareRanks = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def share_ranks(tmp_path_factory: pytest.TempPathFactory) -> ShareRanks:
    """Gives ranks as ``make_ranks`` does, in their first state; what an earlier test has traced is not traced again."""
    folders: dict[str, Path] = {}
    ranks: dict[str, list[tuple[Any, Any]]] = {}

    def take(step: str, count: int = 1) -> list[Any]:
        if step not in folders:
            folders[step] = tmp_path_factory.mktemp("gan")
            write_gan(folders[step], step)
        known = ranks.setdefault(step, [])
        for number in range(len(known), count):
            rank = make_rank(folders[step], number)
            known.append((rank, rank.pack_state()))
        for rank, first_state in known[:count]:
            rank.restore_statistics()
            rank.unpack_state(first_state)
        return [rank for rank, _ in known[:count]]

    return take


def sum_over(ranks: list[Any], number: int) -> None:
    for buffers in zip(*(rank.updates[number].buffers for rank in ranks), strict=True):
        total = np.sum(buffers, axis=0)
        for buffer in buffers:
            buffer[:] = total


def train_together(ranks: list[Any], data: Records, idle: tuple[int, ...] = ()) -> float:
    """One step: each rank has its part of the records, and idle ones have none; returns the loss."""
    busy = [rank for at, rank in enumerate(ranks) if at not in idle]
    parts = np.array_split(np.arange(len(data[1])), len(busy))
    results = [rank.compute(*pick(data, part)) for rank, part in zip(busy, parts, strict=True)]
    weight = sum(result.weight for result in results)
    for number in range(len(ranks[0].updates)):
        for rank in ranks:
            if rank not in busy:
                rank.updates[number].clear()
        assert all(result.is_finite for result in results)
        sum_over(ranks, number)
        for rank in ranks:
            rank.apply_next(weight)
        if number + 1 < len(ranks[0].updates):
            results = [rank.compute_update(number + 1, 0) for rank in busy]
    return sum(result.weight * result.loss for result in results) / weight


@pytest.mark.parametrize(
    ("step", "count", "updates"),
    [
        repetition(ADVERSARIAL, 1, ["d_optimizer", "g_optimizer"]),
        (ADVERSARIAL, 3, ["d_optimizer", "g_optimizer"]),
        # Both gradients before both updates, from one tape: the second graph uses what the first one has computed.
        (PERSISTENT, 2, ["d_optimizer", "g_optimizer"]),
        (TWO_CRITIC_STEPS, 2, ["d_optimizer", "d_optimizer", "g_optimizer"]),
    ],
    ids=["one rank", "three ranks", "one tape", "three updates"],
)
@pytest.mark.first_cases(1)
def test_ranks_train_as_keras_does_with_the_union(
    tmp_path: Path, share_ranks: ShareRanks, step: str, count: int, updates: list[str]
) -> None:
    write_gan(tmp_path, step)
    ranks = share_ranks(step, count)
    assert [update.name for update in ranks[0]._step_updates] == updates
    data = make_records(RECORDS)
    weights = ranks[0].model.get_weights()
    losses = [train_together(ranks, data) for _ in range(8)]
    plain, expected = train_plainly(tmp_path, weights, [data] * 8)
    for rank in ranks:
        for mine, theirs in zip(rank.model.get_weights(), plain.get_weights(), strict=True):
            assert mine.dtype == np.float64
            assert np.linalg.norm(mine - theirs) <= 1e-9 * np.linalg.norm(theirs)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert len({rank.digest() for rank in ranks}) == 1
    assert int(ranks[0].model.g_optimizer.iterations) == 8


def test_idle_ranks_and_followers_make_the_same_updates(share_ranks: ShareRanks) -> None:
    worker, idle, follower = share_ranks(ADVERSARIAL, 3)
    data = make_records(RECORDS)
    for _ in range(3):
        train_together([worker, idle], data, idle=(1,))
        for mine, theirs in zip(follower.buffers, worker.buffers, strict=True):
            mine[:] = theirs
        follower.apply(float(RECORDS))
        assert len({rank.digest() for rank in (worker, idle, follower)}) == 1


WIDE = ', keras.layers.Dense(512, dtype="float64")' * 2
"""Layers with more elements than an update needs to be compiled by XLA."""


@pytest.mark.parametrize("wide", ["", WIDE], ids=["op by op", "by XLA"])
@pytest.mark.first_cases(1)
def test_a_step_that_is_abandoned_between_two_updates_leaves_no_trace(tmp_path: Path, wide: str) -> None:
    """XLA writes to the memory of the variables: what is kept must not be in it."""
    changes = {'"discriminator", 3, 1)': f'"discriminator", 3, 1{wide})'}
    (rank,) = make_ranks(tmp_path, ADVERSARIAL, changes=changes)
    data = make_records(RECORDS)
    train_together([rank], data)
    assert [each.is_compiled for each in rank.updates[0]._apply_by_case.values()] == [bool(wide)]
    before = rank.digest()
    result = rank.compute(*data)
    assert rank.digest() == before
    rank.apply_next(result.weight)
    rank.compute_update(1, 0)
    assert rank.digest() != before
    rank.restore_statistics()
    assert rank.digest() == before
    train_together([rank], data)
    (other,) = make_ranks(tmp_path, ADVERSARIAL, changes=changes)
    for _ in range(2):
        train_together([other], data)
    assert other.digest() == rank.digest()


@pytest.mark.parametrize("source", ["another rank", repetition("a checkpoint")])
def test_a_second_abandoned_step_puts_back_the_state_that_came_after_the_first_one(
    share_ranks: ShareRanks, source: str
) -> None:
    rank, other = share_ranks(ADVERSARIAL, 2)
    data = make_records(RECORDS)
    for _ in range(3):
        train_together([other], data)

    def abandon() -> None:
        rank.apply_next(rank.compute(*data).weight)
        rank.restore_statistics()

    train_together([rank], data)
    abandon()
    if source == "another rank":
        rank.unpack_state(other.pack_state())
    else:
        rank.load_state(other.state_arrays())
    abandon()
    assert rank.digest() == other.digest()


def test_the_learning_rate_of_an_abandoned_step_is_put_back(tmp_path: Path) -> None:
    """It is set before the first update. A rank whose round broke before that has the old one."""
    step = ADVERSARIAL.replace("self.g_optimizer", "self.optimizer")
    (rank,) = make_ranks(tmp_path, step, changes={"super().compile()": "super().compile(g_optimizer)"})
    assert rank.uses_own_optimizer
    data = make_records(RECORDS)
    before = rank.digest()
    result = rank.compute(*data)
    rank.set_learning_rate(0.125)
    rank.apply_next(result.weight)
    rank.restore_statistics()
    assert rank.digest() == before
    rank.compute(*data)
    rank.set_learning_rate(0.125)
    rank.apply_next(result.weight)
    rank.compute_update(1, 0)
    rank.apply_next(result.weight)
    rank.restore_statistics()
    assert float(rank.optimizer.learning_rate) == 0.125


def test_several_minibatches_of_a_step_are_added_in_each_update(share_ranks: ShareRanks) -> None:
    undivided, parts = share_ranks(ADVERSARIAL, 2)
    data = make_records(RECORDS)
    for _ in range(3):
        train_together([undivided], data)
        weight = sum(parts.compute(*pick(data, slice(at, at + 8)), adds=at > 0).weight for at in range(0, 24, 8))
        parts.apply_next(weight)
        assert all(parts.compute_update(1, number).is_finite for number in range(3))
        parts.apply_next(weight)
    for mine, theirs in zip(parts.model.get_weights(), undivided.model.get_weights(), strict=True):
        assert np.linalg.norm(mine - theirs) <= 1e-9 * np.linalg.norm(theirs)


def test_a_gradient_of_the_second_update_that_is_not_finite_is_named(share_ranks: ShareRanks) -> None:
    (rank,) = share_ranks(ADVERSARIAL)
    before = rank.digest()
    x, y = make_records(RECORDS)
    # Labels count in the generator's loss only.
    y[3] = np.nan
    first = rank.compute(x, y)
    assert first.is_finite
    rank.apply_next(first.weight)
    second = rank.compute_update(1, 0)
    assert not second.is_finite
    assert "generator" in second.nonfinite_name or "to_real" in second.nonfinite_name
    rank.restore_statistics()
    assert not rank.take_step(x, y).is_finite
    assert rank.digest() == before


def test_the_state_has_the_slots_of_both_optimizers(share_ranks: ShareRanks) -> None:
    first, second = share_ranks(ADVERSARIAL, 2)
    for _ in range(2):
        train_together([first], make_records(RECORDS))
    arrays = first.state_arrays()
    names = {name.rpartition("/")[0] for name in arrays if name.startswith("slot/")}
    assert names == {"slot/d_optimizer", "slot/g_optimizer"}
    second.load_state(arrays)
    assert second.digest() == first.digest()
    for rank in (first, second):
        train_together([rank], make_records(RECORDS))
    assert second.digest() == first.digest()
    # Parameter servers have one optimizer.
    assert describe_keras_state(first).optimizer is None
    assert "several updates" in describe_keras_state(first).problem


def test_ranks_with_other_updates_have_another_fingerprint(share_ranks: ShareRanks) -> None:
    (two,) = share_ranks(ADVERSARIAL)
    (three,) = share_ranks(TWO_CRITIC_STEPS)
    assert two.state_sizes() == three.state_sizes()
    assert two.fingerprint() != three.fingerprint()


@pytest.mark.repetition
def test_statistics_of_layers_are_those_of_the_union(tmp_path: Path) -> None:
    layer = 'keras.layers.BatchNormalization(momentum=0.5, dtype="float64")'
    changes = {'"discriminator", 3, 1)': f'"discriminator", 3, 1, {layer})'}
    alone, *ranks = make_ranks(tmp_path, ADVERSARIAL, 3, changes)
    data = make_records(RECORDS)
    # With two calls of the layer in a step, their variances are far below the one that it begins with.
    data[0]["real"] *= 0.1
    weights = alone.model.get_weights()
    train_together([alone], data)
    plain, _ = train_plainly(tmp_path, weights, [data])
    for mine, theirs in zip(alone.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    for _ in range(3):
        train_together(ranks, data)
    assert ranks[0].digest() == ranks[1].digest()


APPLY_D = "self.d_optimizer.apply_gradients(zip(gradients, self.discriminator.trainable_weights))"


@pytest.mark.parametrize(
    ("replaced", "by", "named"),
    [
        (APPLY_D, f"tf.cond(d_loss > 0, lambda: [{APPLY_D}, 0][1], lambda: 0)", "inside of a condition"),
        (APPLY_D, f"{APPLY_D}; self.steps.assign_add(1.0)", "writes the variable '.*steps'"),
        repetition(
            APPLY_D, f"{APPLY_D}; self.generator.layers[0].kernel.assign_add([[1.0] * 4] * 2)", "writes the variable"
        ),
        repetition(APPLY_D, "self.d_optimizer.apply_gradients([(gradients[0], self.outside)])", "no trained variable"),
        repetition("return ", "self.norm(fake, training=True); return ", "after its last update"),
    ],
)
@pytest.mark.first_cases(1)
def test_what_several_ranks_cannot_combine_is_refused_by_name(
    tmp_path: Path, replaced: str, by: str, named: str
) -> None:
    with pytest.raises(BadInputError, match=named) as refused:
        make_ranks(tmp_path, ADVERSARIAL.replace(replaced, by), build=build_replica)
    assert "train_step() of the model (GAN)" in str(refused.value)
    assert refused.value.where.endswith("gan.py")


def test_a_step_that_needs_the_loss_of_compile_is_refused_without_compile(tmp_path: Path) -> None:
    step = ADVERSARIAL.replace("return ", "self.compute_loss(x, y, fake); return ")
    with pytest.raises(BadInputError, match=r"compute_loss\(\), but the model is not compiled"):
        make_ranks(
            tmp_path,
            step,
            changes={
                "super().compile()\n": "pass\n",
                "def feed": 'loss = "mse"\noptimizer = "sgd"\neval_metrics_fn = dict\n\ndef feed',
            },
            build=build_replica,
        )


@pytest.mark.repetition
def test_other_updates_for_minibatches_of_another_type_are_refused(tmp_path: Path) -> None:
    step = ADVERSARIAL.replace(APPLY_D, f"{APPLY_D} if x['noise'].dtype == tf.float64 else None")
    (rank,) = make_ranks(tmp_path, step)
    x, y = make_records(RECORDS)
    with pytest.raises(BadInputError, match="updates for some minibatches"):
        rank.compute({**x, "noise": x["noise"].astype(np.float32)}, y)
    assert rank.compute(x, y).is_finite


def test_one_update_with_the_optimizer_of_compile_is_trained_as_before(tmp_path: Path) -> None:
    step = "x, y = data\nwith tf.GradientTape() as tape:\n    loss = tf.reduce_mean(self(x) ** 2)\n"
    step += "weights = self.discriminator.trainable_weights\n"
    step += "self.OPTIMIZER.apply(tape.gradient(loss, weights), weights)\nreturn {'loss': loss}"
    (single_update,) = make_ranks(tmp_path / "a", step.replace("OPTIMIZER", "optimizer"), build=build_replica)
    assert isinstance(single_update, ModelReplica)
    (other,) = make_ranks(tmp_path / "b", step.replace("OPTIMIZER", "d_optimizer"), build=build_replica)
    assert isinstance(other, SeveralUpdatesReplica)
    assert other.take_step(*make_records(RECORDS)).loss > 0


def test_other_strategies_refuse_it_by_name(tmp_path: Path) -> None:
    write_gan(tmp_path, ADVERSARIAL)
    choice = ModelSpec(zoo=str(tmp_path), definition="gan.custom_model", params={})
    with pytest.raises(BadInputError, match=r"train_step\(\)") as refused:
        load_model_module(choice)
    assert "AllReduce" in (refused.value.hint or "")


def test_without_a_loss_in_compile_it_is_trained_but_not_evaluated(tmp_path: Path) -> None:
    write_gan(tmp_path, ADVERSARIAL)
    assert load_gan(tmp_path).make_model() is not None
    with pytest.raises(BadInputError, match="compiled without a loss") as refused:
        load_gan(tmp_path, needs_metrics=True)
    assert "evaluations only" in (refused.value.hint or "")


def test_a_callback_that_sets_the_rate_of_an_unused_optimizer_is_refused(share_ranks: ShareRanks) -> None:
    (rank,) = share_ranks(ADVERSARIAL)
    spec = load_job_text("name: gan\nmodel: {definition: gan.custom_model}\ndata: {training: train}\n", "job.yaml")
    module = replace(rank.module, callbacks=lambda: [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])
    with pytest.raises(BadInputError, match=r"LearningRateScheduler .*makes no update with it"):
        declare_training_callbacks(module, rank, spec)
    with pytest.raises(BadInputError, match=r"LearningRateScheduler .*makes no update with it"):
        make_callbacks(
            module.callbacks,
            rank.model,
            rank.optimizer,
            module.zoo,
            trains_locally=True,
            uses_optimizer=rank.uses_own_optimizer,
            check_monitors=lambda found: None,
        )
