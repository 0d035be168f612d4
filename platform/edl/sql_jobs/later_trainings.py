"""The trainings of a small table after the first one: a linear model beside the network, and one of them on all rows.

The first training holds validation rows back, finds how many epochs are best, and is what the metrics tell of. A linear
model is trained and measured on the same rows, and kept unless the network is clearly better. The model that is kept
then trains again from its initial weights, on the validation rows as well, with a learning rate that falls to zero.

Each training is a job of its own, so a folder trains the same by ``edl run``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from edl.sql_jobs.column_plan import LabelKind
from edl.sql_jobs.prepared_rows import PreparedRows

LINEAR_JOB_FILE, REFIT_JOB_FILE = "linear.yaml", "refit.yaml"
ANNEALED_MODULE = "annealed"
CLEAR_GAIN = 5.0
"""By how much the log-likelihood of the validation rows must be higher with one network: the "very strong" evidence of
Kass & Raftery, JASA 1995."""
LINEAR_RATE = 0.1
"""Learning rate at which the linear model begins. Its loss has one minimum, which 300 steps of all rows find. With
minibatches, their noise stays in the weights of columns that say nearly the same."""
_LINEAR_EPOCHS, _LINEAR_EVALUATION_STEPS = 300, 15
_LEAST_EPOCHS = 5
_CONTRACT = ("custom_model", "loss", "class_weight", "optimizer", "eval_metrics_fn", "serving_model")
_LONGEST_NAME = 40

History = Sequence[tuple[int, Mapping[str, float | None]]]
"""Step and metrics of each evaluation; a metric that is not finite is None."""


def linear_document(document: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """The job that trains the model without hidden layers on the rows of a job.

    Args:
        document: job file of the network.
        rows: to train on.
    """
    linear = deepcopy(dict(document))
    linear["name"] = _with_ending(str(document["name"]), "linear")
    linear["model"] |= {"definition": f"{ANNEALED_MODULE}.custom_model"}
    linear["model"]["params"] = {**linear["model"]["params"], "hidden": []}
    linear["train"] |= {"epochs": _LINEAR_EPOCHS, "minibatch_size": rows, "evaluation_steps": _LINEAR_EVALUATION_STEPS}
    # Of the steps of the network, which are smaller ones.
    linear["train"].pop("max_steps", None)
    return linear


def refit_document(document: Mapping[str, Any], epochs: int, rows: PreparedRows) -> dict[str, Any]:
    """The job that trains the model of a job again, on its validation rows, too.

    Args:
        document: job file of the training that was measured.
        epochs: of the new training.
        rows: of the old one. If each of its steps had all of them, each of the new one has.
    """
    refit = deepcopy(dict(document))
    data = refit["data"]
    data["training"] = [data["training"], data.pop("validation")]
    refit["name"] = _with_ending(str(document["name"]), "refit")
    refit["model"] |= {"definition": f"{ANNEALED_MODULE}.custom_model"}
    refit["train"] |= {"epochs": epochs}
    if refit["train"]["minibatch_size"] == rows.training:
        refit["train"]["minibatch_size"] += rows.validation
    for name in ("evaluation_steps", "max_steps"):  # the number of epochs has what they decided
        refit["train"].pop(name, None)
    refit["export"] = {"path": "export"}
    return refit


def _with_ending(name: str, ending: str) -> str:
    return f"{name[: _LONGEST_NAME - len(ending) - 1].rstrip('-')}-{ending}"


def count_epochs(history: History, records_done: int, rows: int, most: int) -> int:
    """Epochs of the training on all rows: those that were best, and a few at least.

    Args:
        history: step and metrics of each evaluation of a training that early stopping ended.
        records_done: in it, over all of its epochs.
        rows: it trained on.
        most: epochs that it could have had.
    """
    if not history or not rows:
        return most
    best = min(history, key=lambda each: _finite(each[1], "loss"))[0]
    # A step has more records than a minibatch if several workers train together.
    epochs = math.ceil(best / max(step for step, _ in history) * records_done / rows - 1e-6)
    return max(min(_LEAST_EPOCHS, most), epochs)


def _finite(metrics: Mapping[str, float | None], name: str) -> float:
    """A metric of which less is better; infinity if it is not finite."""
    value = metrics.get(name)
    return math.inf if value is None or math.isnan(value) else value


def find_gain(
    kind: LabelKind, rows: int, linear: Mapping[str, float | None], network: Mapping[str, float | None]
) -> float:
    """By how much the log-likelihood of the validation rows is higher with the network than with the linear model.

    Args:
        kind: of the label. A number is expected from a normal distribution, whose deviation the errors tell.
        rows: for validation.
        linear: its metrics.
        network: its metrics.
    """
    if kind is LabelKind.NUMBER:
        name = "root_mean_squared_error"
        return rows * (math.log(max(_finite(linear, name), 1e-30)) - math.log(max(_finite(network, name), 1e-30)))
    return rows * (_finite(linear, "log_loss") - _finite(network, "log_loss"))


def find_least_gain(evaluations: int) -> float:
    """The gain from which a network is clearly better than a linear model.

    Args:
        evaluations: of the network, the best of which is compared. Each is a chance to be better by luck.
    """
    return CLEAR_GAIN + math.log(max(1, evaluations))


def describe_choice(gain: float, least: float) -> str:
    """Which model is kept, and why.

    Args:
        gain: see ``find_gain``.
        least: see ``find_least_gain``.
    """
    change = f"the log-likelihood of the validation rows is {abs(gain):.1f} {'higher' if gain > 0 else 'lower'} with it"
    if gain > least:
        return f"the network beside the linear model: {change}"
    return f"the linear model without a network: {change}, and {least:.1f} higher would be clear"


def write_annealed(module: str, rate: float, epochs: int) -> str:
    """The module with a learning rate that falls to zero.

    Args:
        module: text of ``model.py``.
        rate: at the beginning.
        epochs: after which it would be zero.
    """
    defined = set(re.findall(r"^(?:def )?(\w+)(?:\(| = )", module, re.MULTILINE))
    names = ", ".join(name for name in sorted(_CONTRACT) if name in defined)
    return f'''"""The model of model.py, trained with a learning rate that falls to zero, as half of a cosine."""

import math

import keras
from model import {names}

RATE, EPOCHS = {rate:.7g}, {epochs}


def learning_rate(epoch, rate):
    return RATE * (1 + math.cos(math.pi * epoch / EPOCHS)) / 2


def callbacks():
    return [keras.callbacks.LearningRateScheduler(learning_rate)]
'''
