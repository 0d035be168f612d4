"""The models that a statement can name: EDL's own, SQLFlow's names of them, and modules of the user."""

from __future__ import annotations

from difflib import get_close_matches

from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import TrainStatement
from edl.sql_jobs.user_module import find_user_module

ESTIMATORS = ("dnn", "wide_and_deep", "deepfm", "linear")
_ESTIMATOR_NAMES = dict(zip(ESTIMATORS, ESTIMATORS, strict=True)) | {
    # SQLFlow's, which are TensorFlow's.
    "dnnclassifier": "dnn",
    "dnnregressor": "dnn",
    "linearclassifier": "linear",
    "linearregressor": "linear",
    "dnnlinearcombinedclassifier": "wide_and_deep",
    "dnnlinearcombinedregressor": "wide_and_deep",
    "deepfmclassifier": "deepfm",
}
_SIZES = ("hidden", "dropout")
MODEL_ARGUMENTS = {"dnn": (*_SIZES, "l2"), "wide_and_deep": _SIZES, "deepfm": ("factors", *_SIZES), "linear": ()}
_TREES = ("xgboost", "boostedtrees", "randomforest")
_USE_INSTEAD = "use dnn for any table, or wide_and_deep for many categories"


def choose_estimator(statement: TrainStatement) -> tuple[str, str]:
    """The model, and why.

    Raises:
        BadInputError: there is no such model; the hint says which there are.
    """
    if statement.estimator is None:
        return "dnn", "the default for a table"
    wanted = statement.estimator.lower().removeprefix("tf.estimator.").removeprefix("sqlflow_models.")
    if wanted in _ESTIMATOR_NAMES:
        return _ESTIMATOR_NAMES[wanted], "TO TRAIN names it"
    place = statement.estimator_place or statement.into.place
    if wanted.startswith(_TREES):
        raise StatementError(f"{statement.estimator} is no Keras model, and EDL trains no trees", place, _USE_INSTEAD)
    module = find_user_module(statement, _ESTIMATOR_NAMES)
    if module is not None:
        return module.definition, "TO TRAIN names this module"
    near = get_close_matches(wanted, _ESTIMATOR_NAMES, 1)
    hint = f"did you mean {_ESTIMATOR_NAMES[near[0]]}? " if near else ""
    raise StatementError(
        f"there is no model {statement.estimator}",
        place,
        f"{hint}There are {', '.join(ESTIMATORS)}; a module of yours is named as my_module.py",
    )
