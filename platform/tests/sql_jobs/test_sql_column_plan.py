"""The plan of columns: each decision by the statistics, its reason, and what COLUMN overrides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.sql_statements import parse_statements

from edl.api.errors import BadInputError
from edl.sql_jobs.column_overrides import override_columns
from edl.sql_jobs.column_plan import (
    ColumnFacts,
    ColumnPlan,
    ColumnUse,
    FeaturePlan,
    IdSource,
    LabelKind,
    check_features,
    plan_columns,
)
from edl.sql_jobs.statements import Attribute, ColumnName, TextPosition, TrainStatement

PLACE = TextPosition(1, 30)
LABEL = ColumnName("y", PLACE)


def facts(name: str, kind: str = "number", distinct: int = 900, **more: object) -> ColumnFacts:
    values = tuple((str(number), 1000 // distinct) for number in range(distinct)) if distinct <= 1000 else ()
    return replace(ColumnFacts(name, kind, 1000, 0, distinct, type_name=kind, values=values), **more)  # type: ignore[arg-type]


BINARY = facts("y", "text", 2, values=(("no", 500), ("yes", 500)))


def plan_one(column: ColumnFacts, label: ColumnFacts = BINARY) -> FeaturePlan:
    return plan_columns([column, label], LABEL).features[0]


@pytest.mark.parametrize(
    ("column", "use", "said"),
    [
        (facts("age"), ColumnUse.NUMBER, "number"),
        (facts("pay", minimum=0, median=10, high=1000), ColumnUse.LOG_NUMBER, "skewed: the 99th percentile is 1000"),
        (facts("pay", minimum=-1, median=10, high=1000), ColumnUse.NUMBER, "number"),
        (
            facts("mass", minimum=0, maximum=1e30, deviation=1e29),
            ColumnUse.LOG_NUMBER,
            "to 1e+30, are too large",
        ),
        (
            facts("charge", minimum=-1e30, maximum=1, deviation=1e29),
            ColumnUse.DROPPED,
            "to 1, are too large",
        ),
        (facts("ok", "boolean", 2), ColumnUse.BOOLEAN, "true or false"),
        (facts("day", "date"), ColumnUse.DATE, "time"),
        (facts("town", "text", 20), ColumnUse.ONE_HOT, "20 different texts"),
        (facts("note", "text", 1, missing=7), ColumnUse.ONE_HOT, "it has 1 different text;"),
        (facts("town", "text", 200), ColumnUse.EMBEDDING, "200 different texts"),
        (facts("shop_id", "integer", 40), ColumnUse.EMBEDDING, "name is that of a code"),
        (facts("words", "text", words=9.0), ColumnUse.TEXT, "9.0 words a row"),
        (facts("row_id", "integer", 1000), ColumnUse.DROPPED, "almost every row"),
        (facts("same", distinct=1), ColumnUse.DROPPED, "all rows have the same value"),
        (facts("gone", count=0, missing=1000, distinct=0), ColumnUse.DROPPED, "only NULL"),
        (facts("copy", copies_label=True), ColumnUse.DROPPED, "copy of the label"),
        (facts("blob", "other", type_name="binary"), ColumnUse.DROPPED, "it is binary"),
        (facts("key", "text", 5000, count=5000), ColumnUse.DROPPED, "almost every row has another text"),
        (facts("name", "text", 295, count=300), ColumnUse.DROPPED, "almost every row has another text"),
        (facts("name", "text", 260, count=300), ColumnUse.EMBEDDING, "260 different texts"),
        (facts("name", "text", 30, count=30), ColumnUse.ONE_HOT, "30 different texts"),
    ],
)
def test_the_statistics_of_a_column_decide(column: ColumnFacts, use: ColumnUse, said: str) -> None:
    planned = plan_one(column)
    assert planned.use is use
    assert said in planned.reason


def test_many_categories_are_hashed_into_twice_as_many_bins() -> None:
    planned = plan_one(facts("town", "text", 3000, count=100_000))
    assert (planned.ids, planned.bins, planned.vocabulary) == (IdSource.HASH, 8192, ())
    assert "hashed to 8,192" in planned.reason


def test_nulls_have_an_input_of_their_own() -> None:
    number, text = plan_one(facts("age", missing=7)), plan_one(facts("town", "text", 3, missing=7))
    assert number.has_indicator
    assert "7 NULLs" in number.reason
    assert text.vocabulary == ("", "0", "1", "2")


def test_a_constant_with_nulls_says_whether_there_is_a_value() -> None:
    assert plan_one(facts("left_on", distinct=1, missing=500)).use is ColumnUse.NUMBER


@pytest.mark.parametrize(
    ("label", "kind", "classes"),
    [
        (facts("y", "boolean", 2, values=(("true", 500), ("false", 500))), LabelKind.BINARY, ("false", "true")),
        (facts("y", "text", 3), LabelKind.CLASSES, ("0", "1", "2")),
        (facts("y", "integer", 10, minimum=1), LabelKind.CLASSES, tuple("0123456789")),
        (facts("y", "integer", 11, minimum=0), LabelKind.NUMBER, ()),
        (facts("y", "integer", 4, minimum=20), LabelKind.NUMBER, ()),
        (facts("y", "number"), LabelKind.NUMBER, ()),
    ],
)
def test_the_label_decides_the_kind_of_the_model(label: ColumnFacts, kind: LabelKind, classes: object) -> None:
    plan = plan_columns([facts("x"), label], LABEL)
    assert (plan.label.kind, plan.label.classes) == (kind, classes)


def test_numbers_of_classes_are_in_their_own_order() -> None:
    label = facts("y", "integer", 2, values=(("10", 500), ("9", 500)))
    assert plan_columns([facts("x"), label], LABEL).label.classes == ("9", "10")


def test_rare_classes_weigh_more() -> None:
    label = facts("y", "text", 2, values=(("no", 900), ("yes", 100)))
    planned = plan_columns([facts("x"), label], LABEL).label
    assert planned.class_weights == pytest.approx({0: 0.5556, 1: 5.0}, abs=1e-3)
    assert "'yes' has 10.0% of the rows" in planned.reason
    assert plan_columns([facts("x"), BINARY], LABEL).label.class_weights == {}


@pytest.mark.parametrize(
    ("counts", "setting", "weights", "said"),
    [
        ((900, 100), "none", {}, "all rows weigh the same"),
        ((600, 400), "balanced", {0: 0.8333, 1: 1.25}, "all classes weigh the same"),
        ((600, 400), None, {}, ""),
    ],
)
def test_a_setting_says_whether_classes_are_weighted(
    counts: tuple[int, int], setting: str | None, weights: dict[int, float], said: str
) -> None:
    label = facts("y", "text", 2, values=(("no", counts[0]), ("yes", counts[1])))
    wanted = None if setting is None else Attribute(setting, LABEL.place)
    planned = plan_columns([facts("x"), label], LABEL, wanted).label
    assert planned.class_weights == pytest.approx(weights, abs=1e-3)
    assert said in planned.reason
    assert "rare classes" not in planned.reason


@pytest.mark.parametrize(("kind", "setting"), [("text", "rare"), ("text", True), ("number", "balanced")])
def test_classes_cannot_be_weighted_in_another_way(kind: str, setting: str | bool) -> None:
    label = facts("y", kind, 2, values=(("no", 600), ("yes", 400))) if kind == "text" else facts("y", "number")
    with pytest.raises(BadInputError):
        plan_columns([facts("x"), label], LABEL, Attribute(setting, LABEL.place))


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (facts("y", count=0, missing=1000, distinct=0), "only NULL"),
        (facts("y", missing=3), "3 NULLs.*WHERE y IS NOT NULL"),
        (facts("y", distinct=1, values=(("7", 1000),)), "one value, '7'"),
        (facts("y", "text", 101), "101 different texts"),
        (facts("y", "text", 2, values=(("a", 500), ("b" * 256, 500))), "more than 255 bytes"),
        (facts("y", "date", type_name="date32[day]"), "date32"),
        (facts("y", maximum=1e30, deviation=1e29), "from 0 to 1e.30, which are too large for float32"),
        (facts("y", count=0, distinct=0), "no rows"),
        (facts("Yy"), "no column y.*did you mean Yy"),
        (facts("y-"), 'no column y.*did you mean "y-"\\?'),
    ],
)
def test_a_label_that_cannot_be_learnt_is_refused_at_its_place(label: ColumnFacts, said: str) -> None:
    with pytest.raises(BadInputError) as error:
        plan_columns([facts("x"), label], LABEL)
    assert error.value.where == "statement, line 1, column 30"
    assert re.search(said, f"{error.value} {error.value.hint}", re.DOTALL)


def test_a_plan_without_any_column_is_refused_with_the_reasons() -> None:
    plan = plan_columns([facts("same", distinct=1), BINARY], LABEL)
    with pytest.raises(BadInputError, match="same: all rows have the same value"):
        check_features(plan, LABEL)


def test_thousands_of_columns_are_planned_and_messages_stay_short() -> None:
    columns = [facts(f"c{number}") for number in range(5000)]
    assert len(plan_columns([*columns, BINARY], LABEL).used) == 5000
    with pytest.raises(BadInputError) as error:
        plan_columns(columns, LABEL)
    assert len(str(error.value.hint)) < 500


# --------------------------------------------------------------------------------------------------
# COLUMN.

TABLE = [
    facts("age", missing=2),
    facts("town", "text", 20),
    facts("street", "text", 3000, count=100_000),
    facts("words", "text", words=9.0, vocabulary=("a", "b")),
    facts("code", "integer", 40, maximum=39),
    facts("change", "integer", 40, minimum=-3, maximum=36),
    facts("charge", minimum=-1e30, deviation=1e29),
    facts("pay", distinct=3000, maximum=10.0),
    facts("half", distinct=2, maximum=10.0, values=(("0.5", 500), ("10", 500))),
    facts("whole", distinct=2, maximum=10.0, values=(("0", 500), ("10", 500))),
    facts("same", distinct=1),
    BINARY,
]


def override(columns: str, estimator: str = "dnn") -> ColumnPlan:
    (statement,) = parse_statements(f"SELECT * FROM t TO TRAIN {estimator} {columns} LABEL y INTO m")
    assert isinstance(statement, TrainStatement)
    return override_columns(plan_columns(TABLE, statement.label), statement.columns, estimator)


def find(plan: ColumnPlan, name: str) -> FeaturePlan:
    (feature,) = (each for each in plan.features if each.name == name)
    return feature


@pytest.mark.parametrize(
    ("expression", "name", "use", "ids", "bins", "dimension"),
    [
        ("NUMERIC(code)", "code", ColumnUse.NUMBER, None, 0, 0),
        ("code", "code", ColumnUse.EMBEDDING, IdSource.VOCABULARY, 0, 6),
        ("same", "same", ColumnUse.NUMBER, None, 0, 0),
        ("INDICATOR(code)", "code", ColumnUse.ONE_HOT, IdSource.VOCABULARY, 0, 0),
        ("EMBEDDING(street, 8)", "street", ColumnUse.EMBEDDING, IdSource.HASH, 8192, 8),
        ("NUMERIC(code, [1])", "code", ColumnUse.NUMBER, None, 0, 0),
        ("EMBEDDING(town, 8, sum)", "town", ColumnUse.EMBEDDING, IdSource.VOCABULARY, 0, 8),
        ("EMBEDDING(CATEGORY_HASH(town, 100), 8, 'mean')", "town", ColumnUse.EMBEDDING, IdSource.HASH, 100, 8),
        ("CATEGORY_HASH(town, 50)", "town", ColumnUse.ONE_HOT, IdSource.HASH, 50, 0),
        ("CATEGORY_HASH(town, 5000)", "town", ColumnUse.EMBEDDING, IdSource.HASH, 5000, 18),
        ("INDICATOR(CATEGORY_HASH(town, 5000))", "town", ColumnUse.ONE_HOT, IdSource.HASH, 5000, 0),
        ("CATEGORY_ID(code, 40)", "code", ColumnUse.ONE_HOT, IdSource.IDENTITY, 40, 0),
        ("EMBEDDING(words, 4)", "words", ColumnUse.TEXT, None, 0, 4),
        ("CROSS([town, code], 10000)", "town x code", ColumnUse.EMBEDDING, IdSource.CROSS, 10000, 20),
        ("CROSS(['town', 'code'], 64)", "town x code", ColumnUse.ONE_HOT, IdSource.CROSS, 64, 0),
    ],
)
def test_column_says_what_a_column_becomes(
    expression: str, name: str, use: ColumnUse, ids: IdSource | None, bins: int, dimension: int
) -> None:
    plan = override(f"COLUMN {expression}")
    feature = find(plan, name)
    assert (feature.use, feature.ids, feature.bins, feature.dimension) == (use, ids, bins, dimension)
    # what is not named stays as planned
    assert find(plan, "age").use is ColumnUse.NUMBER


def test_ids_may_be_whole_numbers_of_another_type() -> None:
    """Such as DECIMAL, or a column of integers with NULLs."""
    assert find(override("COLUMN CATEGORY_ID(whole, 11)"), "whole").bins == 11


def test_buckets_and_vocabularies_are_as_written() -> None:
    assert find(override("COLUMN BUCKET(age, [18, 30.5])"), "age").boundaries == ((18.0, 30.5),)
    assert find(override("COLUMN BUCKET(NUMERIC(age, 1), [18])"), "age").boundaries == ((18.0,),)
    assert find(override("COLUMN VOCABULARIZE(town, ['b', 'a'])"), "town").vocabulary == ("b", "a")
    crossed = find(override("COLUMN CROSS([BUCKET(age, [30, 60]), town], 100)"), "age x town")
    assert crossed.boundaries == ((30.0, 60.0), ())


def test_parts_of_wide_and_deep_get_what_stands_before_for() -> None:
    plan = override("COLUMN age, town FOR deep COLUMN CROSS([town, code], 100) FOR wide", "wide_and_deep")
    assert [(each.name, each.part) for each in plan.features] == [
        ("age", "deep"),
        ("town", "deep"),
        ("town x code", "wide"),
    ]


def test_a_part_without_a_column_is_refused() -> None:
    with pytest.raises(BadInputError) as error:
        override("COLUMN age, town FOR deep", "wide_and_deep")
    assert "column 47" in str(error.value.where)
    assert "the part wide gets no column" in error.value.message
    assert override("COLUMN age FOR deep COLUMN town", "wide_and_deep").used


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("COLUMN ag", "no column ag.*did you mean age"),
        ("COLUMN NUMERIC(town)", "NUMERIC takes a number, and the column town"),
        ("COLUMN NUMERIC(charge)", r"charge has numbers from -1e\+30 to 0, too large for float32"),
        ("COLUMN charge", r"charge has numbers from -1e\+30 to 0, too large for float32"),
        ("COLUMN y", "y is the label"),
        ("COLUMN BUCKET(age, [3, 1])", "must ascend"),
        ("COLUMN BUCKET(age)", r"write BUCKET\(column"),
        ("COLUMN CATEGORY_HASH(town)", r"write CATEGORY_HASH\(column, 1000\)"),
        ("COLUMN EMBEDDING(NUMERIC(age), 4)", "NUMERIC makes none"),
        (
            "COLUMN CATEGORY_ID(code, 39)",
            r"from 0 to 38, and the column code has 0 to 39.*write CATEGORY_ID\(code, 40\)",
        ),
        ("COLUMN EMBEDDING(CATEGORY_ID(change, 40), 2)", r"change has -3 to 36.*write CATEGORY_HASH\(change, 40\)"),
        ("COLUMN CATEGORY_ID(pay, 20)", "CATEGORY_ID takes whole numbers, and the column pay has others"),
        ("COLUMN CATEGORY_ID(half, 20)", "CATEGORY_ID takes whole numbers, and the column half has others"),
        ("COLUMN CROSS([town], 10)", "CROSS has wrong arguments"),
        ("COLUMN age FOR wide", "dnn has no part wide"),
        ("COLUMN NUMERIC(age, code)", r"write NUMERIC\(column\)"),
        ("COLUMN NUMERIC(age, 64)", r"write NUMERIC\(column\)"),
        ("COLUMN BUCKET(age, [3], [5])", r"write BUCKET\(column"),
        ("COLUMN EMBEDDING(town, 8, code)", r"write EMBEDDING\(column"),
        ("COLUMN INDICATOR(town, code)", r"write INDICATOR\(column"),
        ("COLUMN CATEGORY_HASH(town, 10, 20)", r"write CATEGORY_HASH\(column"),
        ("COLUMN VOCABULARIZE(town, ['a'], ['b'])", r"write VOCABULARIZE\(column"),
    ],
)
def test_what_column_cannot_mean_is_refused_at_its_place(columns: str, said: str) -> None:
    with pytest.raises(BadInputError) as error:
        override(columns)
    assert re.search(said, f"{error.value} {error.value.hint}", re.DOTALL)
    assert "statement, line 1, column" in str(error.value.where)
