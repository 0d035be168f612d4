"""Every optimizer that the PS apply, with settings that reach every branch of its rule."""

from __future__ import annotations

from collections.abc import Mapping

from edl.numerics.optimizer_spec import OptimizerSpec

CASES: Mapping[str, OptimizerSpec] = {
    "sgd": OptimizerSpec("sgd"),
    "sgd, weight decay": OptimizerSpec("sgd", {"weight_decay": 0.02}),
    "momentum": OptimizerSpec("momentum", {"momentum": 0.8}),
    "nesterov": OptimizerSpec("momentum", {"momentum": 0.9, "nesterov": True}),
    "adagrad": OptimizerSpec("adagrad", {"initial_accumulator_value": 0.2}),
    "adam": OptimizerSpec("adam", {"beta_1": 0.85, "beta_2": 0.995, "epsilon": 1e-6}),
    "amsgrad": OptimizerSpec("adam", {"amsgrad": True}),
    "adamw": OptimizerSpec("adam", {"weight_decay": 0.004}),
    "rmsprop": OptimizerSpec("rmsprop", {"rho": 0.85}),
    "rmsprop, centered": OptimizerSpec("rmsprop", {"centered": True, "epsilon": 1e-4}),
    "rmsprop, momentum": OptimizerSpec("rmsprop", {"momentum": 0.7, "weight_decay": 0.01}),
    "rmsprop, centered, momentum": OptimizerSpec("rmsprop", {"centered": True, "momentum": 0.5, "epsilon": 1e-4}),
    "adadelta": OptimizerSpec("adadelta", {"rho": 0.9, "epsilon": 1e-5}),
    "adadelta, weight decay": OptimizerSpec("adadelta", {"weight_decay": 0.05}),
    "adamax": OptimizerSpec("adamax", {"beta_1": 0.8, "beta_2": 0.99}),
    "adamax, weight decay": OptimizerSpec("adamax", {"weight_decay": 0.01}),
    "nadam": OptimizerSpec("nadam"),
    "nadam, weight decay": OptimizerSpec("nadam", {"beta_1": 0.95, "beta_2": 0.99, "weight_decay": 0.01}),
    "lion": OptimizerSpec("lion"),
    "lion, weight decay": OptimizerSpec("lion", {"beta_1": 0.8, "weight_decay": 0.01}),
    "ftrl": OptimizerSpec("ftrl"),
    "ftrl, l1, l2": OptimizerSpec(
        "ftrl", {"l1_regularization_strength": 0.5, "l2_regularization_strength": 0.3, "initial_accumulator_value": 1.0}
    ),
    "ftrl, shrinkage, beta": OptimizerSpec("ftrl", {"l2_shrinkage_regularization_strength": 0.02, "beta": 0.7}),
    "ftrl, group lasso": OptimizerSpec(
        "ftrl", {"group_lasso_regularization_strength": 4.0, "l1_regularization_strength": 0.2}
    ),
    "ftrl, power": OptimizerSpec("ftrl", {"learning_rate_power": -0.3, "weight_decay": 0.01}),
    "lamb": OptimizerSpec("lamb"),
    "lamb, weight decay": OptimizerSpec("lamb", {"beta_1": 0.8, "weight_decay": 0.02}),
}
KERAS: Mapping[str, str] = {
    "sgd": "SGD",
    "momentum": "SGD",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "rmsprop": "RMSprop",
    "adadelta": "Adadelta",
    "adamax": "Adamax",
    "nadam": "Nadam",
    "lion": "Lion",
    "ftrl": "Ftrl",
    "lamb": "Lamb",
}
"""The class of keras.optimizers that each name means."""
