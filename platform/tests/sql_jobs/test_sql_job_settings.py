"""What EDL chooses for a training, and what WITH sets: every job field, the model and the optimizer."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.sql_statements import parse_statements

from edl.api.errors import BadInputError
from edl.cli.sql_output import plan_lines
from edl.jobfile.loader import load_job_file
from edl.sql_jobs.column_overrides import override_columns
from edl.sql_jobs.column_plan import ColumnFacts, ColumnPlan, LabelKind, plan_columns
from edl.sql_jobs.estimators import MODEL_ARGUMENTS, choose_estimator
from edl.sql_jobs.job_document import dump_job, job_document, job_fields, job_name
from edl.sql_jobs.job_settings import _VALUES, OPTIMIZERS, find_metrics
from edl.sql_jobs.prepared_rows import PreparedRows
from edl.sql_jobs.statements import Attribute, TextPosition, TrainStatement
from edl.sql_jobs.training_settings import TOO_MANY_TO_REFIT, TrainingSettings, check_settings, choose_settings


def choose(clauses: str, rows: int = 1000) -> tuple[TrainingSettings, dict[str, Any]]:
    (statement,) = parse_statements(f"SELECT * FROM t {clauses} LABEL y INTO my_model")
    assert isinstance(statement, TrainStatement)
    estimator, reason = choose_estimator(statement)
    plan = make_plan(statement, rows)
    settings = choose_settings(statement, estimator, reason, plan)
    return settings, job_document("my_model", plan, settings, "y", rows)


def make_plan(statement: TrainStatement, rows: int) -> ColumnPlan:
    label = ColumnFacts("y", "text", rows, 0, 3, values=(("no", 1), ("b", rows - 2), ("7", 1)))
    return plan_columns([ColumnFacts("x", "number", rows, 0, rows), label], statement.label)


def test_the_default_job_is_valid_and_has_the_classes_as_texts(tmp_path: Path) -> None:
    _, document = choose("")
    (tmp_path / "job.yaml").write_text(dump_job(document), encoding="utf-8")
    spec = load_job_file(tmp_path / "job.yaml")
    assert spec.name == "my-model"
    assert spec.data.schema is not None
    assert spec.data.schema.classes == ("7", "b", "no")  # not false: YAML would read a plain no as a boolean
    assert spec.train.evaluation_steps == -(-1000 // spec.train.minibatch_size)


def test_with_sets_fields_of_the_job_of_the_model_and_of_the_optimizer() -> None:
    settings, document = choose(
        'TO TRAIN dnn WITH model.hidden=[8, 4], model.dropout=0.5, train.epochs=3, strategy.name="AllReduce", '
        "workers.max=2, train.minibatch_size=100, optimizer.name=sgd, optimizer.momentum=0.9, "
        "optimizer.learning_rate=0.1, validation.share=0.3, pod.env.A_NAME='x'"
    )
    assert document["model"]["params"] == {"hidden": [8, 4], "dropout": 0.5, "l2": 0.0005}
    assert (document["train"]["epochs"], document["train"]["evaluation_steps"]) == (3, 10)
    assert document["strategy"] == {"name": "AllReduce"}
    assert document["pod"] == {"env": {"A_NAME": "x"}}
    assert (settings.optimizer.name, dict(settings.optimizer.arguments)) == (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9},
    )
    assert settings.validation_share == 0.3


def test_statements_of_sqlflow_keep_their_names() -> None:
    settings, document = choose(
        "TO TRAIN DNNClassifier WITH model.n_classes=3, model.hidden_units=[10, 20], train.epoch=4, train.batch_size=9"
    )
    assert settings.estimator == "dnn"
    assert document["model"]["params"]["hidden"] == [10, 20]
    assert (document["train"]["epochs"], document["train"]["minibatch_size"]) == (4, 9)


@pytest.mark.parametrize("rows", [1, 10, 3000, 40_000, 1_000_000, 50_000_000])
def test_defaults_follow_the_number_of_rows(rows: int) -> None:
    _, document = choose("", rows)
    train = document["train"]
    assert 5 <= train["epochs"] <= 120
    assert train["evaluation_steps"] * train["minibatch_size"] >= rows
    assert train["minibatch_size"] <= rows  # a larger one is never full


@pytest.mark.parametrize(
    ("clauses", "rows", "l2", "rate"),
    [
        ("", 500, 0.001, 0.005),
        ("", 5000, 0.0001, 0.002),
        ("", 10_000, None, 0.002),
        ("TO TRAIN dnn WITH model.l2=0", 500, 0, 0.005),
        ("TO TRAIN linear", 500, None, 0.005),
        ("TO TRAIN deepfm", 20_000, None, 0.002),
    ],
)
def test_of_few_rows_small_weights_are_expected(clauses: str, rows: int, l2: float | None, rate: float) -> None:
    settings, document = choose(clauses, rows)
    assert document["model"].get("params", {}).get("l2") == l2
    assert settings.optimizer.arguments["learning_rate"] == rate


def test_a_minibatch_of_more_rows_than_there_are_is_refused_at_its_place() -> None:
    with pytest.raises(BadInputError, match="is 128, and there are 6 rows") as error:
        choose("TO TRAIN dnn WITH train.minibatch_size=128", 6)
    assert "column 35" in str(error.value.where)


@pytest.mark.parametrize(
    ("clauses", "said"),
    [
        ("TO TRAIN dn", "no model dn.*did you mean dnn.*There are dnn, wide_and_deep"),
        ("TO TRAIN xgboost.gbtree", "trains no trees.*use dnn"),
        ("TO TRAIN dnn WITH train.epoch_s=5", "no setting train.epoch_s.*did you mean train.epochs"),
        ("TO TRAIN dnn WITH epochs=5", "no setting epochs.*did you mean train.epochs"),
        ("TO TRAIN dnn WITH model.hiden=5", "dnn has no setting model.hiden.*did you mean model.hidden"),
        ("TO TRAIN linear WITH model.hidden=[5]", "linear has no setting model.hidden"),
        ("TO TRAIN dnn WITH optimizer.momentum=5", "Adam has no setting optimizer.momentum"),
        ("TO TRAIN dnn WITH optimizer.name=Lion", "no optimizer Lion.*Adagrad"),
        ("TO TRAIN dnn WITH train.epochs=0", "train.epochs: .*at least 1"),
        ("TO TRAIN dnn WITH train.epochs='many'", "train.epochs: "),
        ("TO TRAIN dnn WITH strategy.name=Fast", "strategy.name: .*AllReduce"),
        ("TO TRAIN dnn WITH validation.share=2", "between 0 and 1"),
        ("TO TRAIN dnn WITH model.n_classes=2", "the label has 3 classes"),
        ("TO TRAIN dnn WITH data.training='x'", "set by the statement itself"),
        ("TO TRAIN dnn WITH export=NULL", "set by the statement itself"),
        ("TO TRAIN dnn WITH name='x'", "set by the statement itself"),
        (
            "TO TRAIN dnn WITH model.hidden='x'",
            r"model.hidden is a list of whole numbers .* \[64, 32\]",
        ),
        ("TO TRAIN dnn WITH model.hidden=32", "model.hidden is a list"),
        ("TO TRAIN dnn WITH model.hidden_units=[64, -1]", "model.hidden_units is a list"),
        ("TO TRAIN dnn WITH model.dropout=1", "model.dropout is a number from 0 to below 1"),
        ("TO TRAIN dnn WITH model.l2=-1", "model.l2 is a number from 0 on"),
        ("TO TRAIN deepfm WITH model.factors=2.5", "model.factors is a whole number"),
        ("TO TRAIN dnn WITH optimizer.learning_rate='x'", "optimizer.learning_rate is a number above 0"),
        ("TO TRAIN dnn WITH optimizer.learning_rate=0", "optimizer.learning_rate is a number above 0"),
        ("TO TRAIN dnn WITH optimizer.amsgrad=1", "optimizer.amsgrad is true or false"),
        ("TO TRAIN dnn WITH optimizer.clipnorm=-1", "optimizer.clipnorm is a number above 0, or NULL"),
    ],
)
def test_what_with_cannot_set_is_refused_at_its_place(clauses: str, said: str) -> None:
    with pytest.raises(BadInputError) as error:
        choose(clauses)
    assert re.search(said, f"{error.value} {error.value.hint}", re.DOTALL)
    assert "statement, line 1, column" in str(error.value.where)


def test_each_argument_of_a_model_or_an_optimizer_has_its_possible_values() -> None:
    assert set().union(*MODEL_ARGUMENTS.values(), *OPTIMIZERS.values()) == set(_VALUES)
    choose("TO TRAIN dnn WITH model.hidden=[], optimizer.clipnorm=NULL, optimizer.learning_rate=1")


@pytest.mark.parametrize(
    ("model", "job"), [("my_model", "my-model"), ("Größe 1", "gr-e-1"), ("1", "model-1"), ("__", "model")]
)
def test_jobs_have_names_that_kubernetes_takes(model: str, job: str) -> None:
    assert job_name(model) == job


@pytest.mark.parametrize(
    ("clauses", "rows", "refits", "reason"),
    [
        ("", 9_999, True, ""),
        ("", 10_000, False, ""),
        ("TO TRAIN linear", 100, True, ""),
        ("TO TRAIN dnn WITH validation.refit=true", 10_000, True, ""),
        ("TO TRAIN dnn WITH validation.refit=false", 100, False, "validation.refit is false"),
        ("TO TRAIN dnn WITH train.epoch=3", 100, False, "train.epoch is set"),
        ("TO TRAIN dnn WITH train.max_steps=3", 100, False, "train.max_steps is set"),
        ("TO TRAIN dnn WITH train.epochs=3, validation.refit=true", 100, True, ""),
        ("TO TRAIN dnn WITH validation.select='SELECT 1'", 100, False, "validation.select names rows of their own"),
    ],
)
def test_a_small_table_trains_again_on_all_rows(clauses: str, rows: int, *, refits: bool, reason: str) -> None:
    settings, document = choose(clauses, rows)
    assert (settings.refits, settings.refit_reason) == (refits, reason)
    # Only where nobody has named a model.
    assert settings.compares == (refits and not clauses)
    assert document["export"]["path"] == ("measured" if refits else "export")


@pytest.mark.parametrize(
    ("values", "setting", "strategy"),
    [
        (100_000, "", "Local"),
        (300_000, "", "ParameterServer"),
        (300_000, "WITH strategy.name='Local'", "Local"),
        (300_000, "COLUMN EMBEDDING(CATEGORY_HASH(user_id, 1000), 8)", "Local"),
    ],
)
def test_large_vectors_lie_on_parameter_servers(values: int, setting: str, strategy: str) -> None:
    (statement,) = parse_statements(f"SELECT * FROM t TO TRAIN dnn {setting} LABEL y INTO m")
    assert isinstance(statement, TrainStatement)
    label = ColumnFacts("y", "number", 1_000_000, 0, 1_000_000)
    plan = plan_columns([ColumnFacts("user_id", "integer", 1_000_000, 0, values), label], statement.label)
    plan = override_columns(plan, statement.columns, "dnn")
    settings = choose_settings(statement, "dnn", "", plan)
    assert job_document("m", plan, settings, "y", 800_000)["strategy"] == {"name": strategy}
    lines = [line for line in plan_lines(plan, settings, PreparedRows(800_000, 200_000)) if "strategy" in line]
    if strategy == "Local":
        assert not lines
    else:
        assert "the vectors of categories have 50,331,648 numbers" in lines[0]


def test_a_wide_table_is_not_compared_with_a_linear_model() -> None:
    (statement,) = parse_statements("SELECT * FROM t LABEL y INTO m")
    assert isinstance(statement, TrainStatement)
    label = ColumnFacts("y", "text", 5000, 0, 2, values=(("a", 2500), ("b", 2500)))
    for columns, compares in ((200, True), (201, False)):
        facts = [ColumnFacts(f"c{at}", "number", 5000, 0, 5000) for at in range(columns)]
        settings = choose_settings(statement, "dnn", "", plan_columns([*facts, label], statement.label))
        assert (settings.refits, settings.compares) == (True, compares)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("validation.refit=1", "validation.refit is true or false"),
        ("validation.refit=true, validation.select='SELECT 1'", "not possible: validation.select names rows"),
        ("train.class_weigth=none", "no setting train.class_weigth.*did you mean train.class_weight?"),
        ("validation.refitt=true", "no setting validation.refitt.*did you mean validation.refit?"),
    ],
)
def test_a_wrong_wish_to_train_again_is_refused_at_its_place(setting: str, said: str) -> None:
    with pytest.raises(BadInputError) as error:
        choose(f"TO TRAIN dnn WITH {setting}")
    assert "line 1, column 35" in str(error.value.where)
    assert re.search(said, f"{error.value} {error.value.hint}", re.DOTALL)


def test_a_cluster_trains_small_tables_again_and_refuses_the_wish_for_large_ones() -> None:
    (statement,) = parse_statements("SELECT * FROM t TO TRAIN dnn WITH validation.refit=true LABEL y INTO m")
    assert isinstance(statement, TrainStatement)
    check_settings(statement)
    assert choose_settings(statement, "dnn", "", make_plan(statement, 9999), TOO_MANY_TO_REFIT).refits
    with pytest.raises(BadInputError, match=f"not possible: {TOO_MANY_TO_REFIT}") as error:
        choose_settings(statement, "dnn", "", make_plan(statement, 10_000), TOO_MANY_TO_REFIT)
    assert "line 1, column 35" in str(error.value.where)
    plain = replace(statement, attributes={})
    settings = choose_settings(plain, "dnn", "", make_plan(plain, 10_000), TOO_MANY_TO_REFIT)
    assert (settings.refits, settings.refit_reason) == (False, "")


def test_an_optimizer_without_a_field_is_refused_at_its_place() -> None:
    with pytest.raises(BadInputError, match="no setting optimizer") as error:
        choose("TO TRAIN dnn WITH optimizer='Adam'")
    assert "line 1, column 35" in str(error.value.where)
    assert "optimizer.name='Adam'" in str(error.value.hint)


def test_metrics_may_be_a_list() -> None:
    assert find_metrics(Attribute(("accuracy", "AUC"), TextPosition(1, 1)), LabelKind.BINARY) == ("accuracy", "auc")


@pytest.mark.parametrize(
    ("first", "second"),
    [("train.batch_size=8", "train.minibatch_size=16"), ("model.hidden_units=[8]", "model.hidden=[16]")],
)
def test_a_setting_by_two_names_is_refused(first: str, second: str) -> None:
    with pytest.raises(BadInputError, match="are one setting") as error:
        choose(f"TO TRAIN dnn WITH {first}, {second}")
    assert f"line 1, column {37 + len(first)}" in str(error.value.where)


def test_settings_of_sqlflow_without_effect_are_named() -> None:
    (statement,) = parse_statements(
        "SELECT * FROM t TO TRAIN DNNClassifier WITH train.verbose=1, validation.throttle_secs=60 LABEL y INTO m"
    )
    assert isinstance(statement, TrainStatement)
    plan = make_plan(statement, 500)
    settings = choose_settings(statement, "dnn", "", plan)
    lines = [line for line in plan_lines(plan, settings, PreparedRows(400, 100)) if "has no effect" in line]
    assert [line.split()[0] for line in lines] == ["train.verbose", "validation.throttle_secs"]
    assert not settings.fields
    assert job_fields(statement) == {}
    check_settings(statement)


def test_a_wrong_class_weight_is_refused_before_the_rows_are_read() -> None:
    (statement,) = parse_statements("SELECT * FROM t TO TRAIN dnn WITH train.class_weight=rare LABEL y INTO m")
    assert isinstance(statement, TrainStatement)
    with pytest.raises(BadInputError, match="balanced or none"):
        check_settings(statement)
