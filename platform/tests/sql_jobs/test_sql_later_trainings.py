"""Which model of a small table trains again on all rows, for how long, and with which learning rate."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from edl.sql_jobs.column_plan import LabelKind
from edl.sql_jobs.later_trainings import (
    count_epochs,
    describe_choice,
    find_gain,
    find_least_gain,
    linear_document,
    refit_document,
    write_annealed,
)
from edl.sql_jobs.prepared_rows import PreparedRows


@pytest.mark.parametrize(
    ("losses", "records", "most", "epochs"),
    [
        # Evaluations of 10 steps each, one in an epoch of 300 rows.
        ([5, 4, 3, 2, 1.5, 1, 1.5], 2100, 120, 6),
        ([1, 2, 3, 4], 1200, 120, 5),
        ([1, 2, 3, 4], 1200, 3, 3),
        # Two workers take two minibatches in a step: each evaluation is after two epochs.
        ([3, 2, 1, 1.5], 2400, 120, 6),
        ([], 0, 7, 7),
    ],
)
def test_the_second_training_has_the_best_epochs(losses: Sequence[float], records: int, most: int, epochs: int) -> None:
    history = [(10 * at, {"loss": float(loss)}) for at, loss in enumerate(losses, 1)]
    assert count_epochs(history, records, 300, most) == epochs


def test_an_evaluation_whose_loss_is_not_finite_is_not_the_best() -> None:
    history = [(10, {"loss": None}), (20, {"loss": 0.5}), (30, {"loss": math.nan})]
    assert count_epochs(history, 9000, 300, 120) == 20


def test_the_gain_is_one_of_log_likelihood() -> None:
    assert find_gain(LabelKind.BINARY, 50, {"log_loss": 0.5}, {"log_loss": 0.4}) == pytest.approx(5.0)
    # Of a normal distribution with the deviation of the errors, a row has the log-likelihood -log(deviation) - ...
    errors = [{"root_mean_squared_error": value} for value in (2.0, 1.0)]
    assert find_gain(LabelKind.NUMBER, 10, errors[0], errors[1]) == pytest.approx(10 * math.log(2))
    # What is not finite is None in a summary, and worse than any number.
    for kind, name in ((LabelKind.CLASSES, "log_loss"), (LabelKind.NUMBER, "root_mean_squared_error")):
        assert find_gain(kind, 10, {name: None}, {name: 0.5}) == math.inf
        assert find_gain(kind, 10, {name: math.nan}, {name: 0.5}) == math.inf
        assert find_gain(kind, 10, {name: 0.5}, {name: None}) == -math.inf
        assert not find_gain(kind, 10, {name: None}, {name: None}) > 5
    # Of many evaluations one is high by chance.
    assert [find_least_gain(count) for count in (0, 1, 100)] == pytest.approx([5, 5, 5 + math.log(100)])
    assert describe_choice(12.0, 11.9).startswith("the network beside")
    assert describe_choice(12.0, 12.0).startswith("the linear model without")
    assert "0.5 lower" in describe_choice(-0.5, 5.0)


def test_each_step_of_the_linear_model_has_all_rows() -> None:
    document = {
        "name": "a" * 40, "model": {"definition": "model.custom_model", "params": {"hidden": [8], "l2": 0.1}},
        "data": {"training": "t", "validation": "v"},
        "train": {"minibatch_size": 32, "epochs": 120, "evaluation_steps": 4},
    }  # fmt: skip
    linear = linear_document(document, 120)
    assert linear["train"] == {"minibatch_size": 120, "epochs": 300, "evaluation_steps": 15}
    assert linear["model"]["params"] == {"hidden": [], "l2": 0.1}
    assert linear["name"] == "a" * 33 + "-linear"
    refit = refit_document(linear, 300, PreparedRows(120, 30))
    assert refit["train"] == {"minibatch_size": 150, "epochs": 300}
    assert refit["data"] == {"training": ["t", "v"]}
    assert refit_document(document, 9, PreparedRows(120, 30))["train"] == {"minibatch_size": 32, "epochs": 9}
    assert document["train"] == {"minibatch_size": 32, "epochs": 120, "evaluation_steps": 4}


def test_the_steps_of_the_first_training_do_not_cut_the_others_off() -> None:
    train = {"minibatch_size": 32, "epochs": 120, "evaluation_steps": None, "max_steps": 100}
    data = {"training": "t", "validation": "v"}
    document = {"name": "m", "model": {"params": {}}, "data": data, "train": train}
    linear = linear_document(document, 120)
    assert linear["train"] == {"minibatch_size": 120, "epochs": 300, "evaluation_steps": 15}
    assert refit_document(document, 9, PreparedRows(120, 30))["train"] == {"minibatch_size": 32, "epochs": 9}


def test_the_rate_falls_to_zero_and_the_rest_is_that_of_the_first_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras = pytest.importorskip("keras")
    module = ModuleType("model")
    text = "loss = 'mse'\n\n\ndef custom_model(hidden=()):\n    pass\n\n\ndef callbacks():\n    return []\n"
    exec(text, module.__dict__)
    monkeypatch.setitem(sys.modules, "model", module)
    namespace = dict[str, object]()
    exec(write_annealed(text, 0.01, 4), namespace)
    assert namespace["custom_model"] is module.custom_model
    assert namespace["loss"] == "mse"
    assert "optimizer" not in namespace
    (callback,) = namespace["callbacks"]()  # type: ignore[operator]
    assert isinstance(callback, keras.callbacks.LearningRateScheduler)
    rates = [callback.schedule(epoch, 1.0) for epoch in range(5)]
    assert rates == pytest.approx([0.01, 0.01 * (2 + 2**0.5) / 4, 0.005, 0.01 * (2 - 2**0.5) / 4, 0])
