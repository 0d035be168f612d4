"""The Keras module that is written: it is readable, takes raw columns with NULLs, and trains."""

from __future__ import annotations

import ast
import importlib.util
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sql_statements import parse_statements

from edl.cli.sql_output import plan_lines
from edl.data import table_scan
from edl.data.parquet_reader import ParquetReader
from edl.sql_jobs.column_overrides import override_columns
from edl.sql_jobs.column_plan import ColumnFacts, ColumnPlan, plan_columns
from edl.sql_jobs.estimators import ESTIMATORS, choose_estimator
from edl.sql_jobs.job_document import dump_job, job_document
from edl.sql_jobs.model_inputs import WIDE_INPUTS, InputColumn, ModelInputs, choose_inputs, plain_name
from edl.sql_jobs.model_module import Optimizer, write_module
from edl.sql_jobs.prepared_rows import PreparedRows, RowForm, prepare_prediction, prepare_training, stack_columns
from edl.sql_jobs.row_statistics import collect_facts
from edl.sql_jobs.statements import TrainStatement
from edl.sql_jobs.training_settings import choose_settings

ROWS = 400


def make_columns() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    age = rng.integers(18, 80, ROWS)
    town = rng.choice(["Köln", "it's", 'say "hi"', "a\\b"], ROWS)
    return {
        "age of person": [None if at % 7 == 0 else int(value) for at, value in enumerate(age)],
        "größe": rng.normal(170, 10, ROWS),
        "pay": rng.lognormal(3, 3, ROWS),
        "town": [None if at % 9 == 0 else str(value) for at, value in enumerate(town)],
        "shop_id": rng.integers(0, 60, ROWS),
        "street": [f"s{value}" for value in rng.integers(0, 200, ROWS)],
        "happy": [None if at % 5 == 0 else bool(at % 2) for at in range(ROWS)],
        "hired": pa.array(rng.integers(0, 1_700_000_000, ROWS), pa.int64()).cast(pa.timestamp("s")),
        "notes": [f"a good, quick {town[at]} brown dog {value}" for at, value in enumerate(age)],
        "binary": np.where(age > 50, "old", "young").tolist(),
        "several": rng.choice(["x", "y", "z"], ROWS).tolist(),
        "number": age * 2.5 + rng.normal(size=ROWS),
    }


@dataclass(frozen=True)
class Written:
    folder: Path
    plan: ColumnPlan
    inputs: ModelInputs
    files: Mapping[str, str]


def write(folder: Path, clauses: str, query: str = "SELECT * FROM t") -> Written:
    (statement,) = parse_statements(f"{query} {clauses} INTO m")
    assert isinstance(statement, TrainStatement)
    rows = folder / "rows.parquet"
    if not rows.exists():
        pq.write_table(pa.table(make_columns()), rows)
    estimator, reason = choose_estimator(statement)
    plan = plan_columns(collect_facts([rows], statement.label.name), statement.label)
    plan = override_columns(plan, statement.columns, estimator)
    inputs = choose_inputs(plan)
    settings = choose_settings(statement, estimator, reason, plan)
    files = write_module(plan, inputs, estimator, settings.optimizer, settings.patience, query)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    count = prepare_training([rows], RowForm(inputs, plan.label.name, plan.label.kind), folder / "data", 0.2)
    document = job_document("m", plan, settings, inputs.label, count.training)
    (folder / "job.yaml").write_text(dump_job(document), encoding="utf-8")
    assert count.training + count.validation == ROWS
    assert count.validation
    return Written(folder, plan, inputs, files)


def load(written: Written) -> ModuleType:
    spec = importlib.util.spec_from_file_location("written_model", written.folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_inputs(written: Written, folder: str = "data/training") -> dict[str, Any]:
    table = pq.read_table(written.folder / folder)
    return {each.name: np.array(table[each.name].to_pylist()).reshape(-1, 1) for each in written.inputs.inputs}


EVERYTHING = (
    "COLUMN BUCKET(pay, [1, 10, 100]), EMBEDDING(BUCKET(größe, [160, 180]), 4), CATEGORY_ID(shop_id, 60), "
    "CROSS([town, BUCKET(größe, [160, 170])], 50), CROSS([street, shop_id], 1000), "
    "EMBEDDING(CATEGORY_ID(shop_id, 60), 3), "
    "CATEGORY_HASH(street, 40), INDICATOR(happy)"
)

TWICE = (
    "COLUMN EMBEDDING(street, 8), EMBEDDING(notes, 5), BUCKET(pay, [1, 10, 100]), EMBEDDING(CATEGORY_HASH(town, 50), 3)"
    " FOR deep COLUMN street, INDICATOR(notes), BUCKET(pay, [50]), CATEGORY_HASH(town, 2000) FOR wide"
)
"""Each column is there twice, and differs in the two parts."""


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of h5py, in Keras' own save
@pytest.mark.parametrize(
    ("clauses", "outputs"),
    [
        ("LABEL binary", 1),
        ("LABEL several", 3),
        ("LABEL number", 1),
        (f"TO TRAIN dnn {EVERYTHING} LABEL binary", 1),
        ("TO TRAIN linear LABEL several", 3),
        ("TO TRAIN wide_and_deep LABEL number", 1),
        (
            "TO TRAIN wide_and_deep COLUMN größe, town, notes FOR deep "
            "COLUMN CROSS([town, street], 1000), pay, street FOR wide LABEL several",
            3,
        ),
        (f"TO TRAIN wide_and_deep {TWICE} LABEL binary", 1),
        ("TO TRAIN deepfm LABEL binary", 1),
        ("TO TRAIN deepfm COLUMN happy, CROSS([town, street], 1000) FOR deep LABEL number", 1),
    ],
)
@pytest.mark.first_cases(3)
def test_written_models_take_raw_columns_and_have_finite_gradients(tmp_path: Path, clauses: str, outputs: int) -> None:
    import keras
    import tensorflow as tf

    written = write(tmp_path, clauses)
    module = load(written)
    model = module.custom_model()
    assert {each.name for each in model.inputs} == {each.name for each in written.inputs.inputs}
    features = {name: tf.constant(values) for name, values in read_inputs(written).items()}
    rows = len(next(iter(features.values())))
    assert rows == ROWS * 4 // 5
    labels = tf.zeros([rows] if outputs > 1 else [rows, 1])
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = tf.reduce_mean(keras.losses.get(module.loss)(labels, predictions))
    assert predictions.shape == (rows, outputs)
    gradients = tape.gradient(loss, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert gradient is not None, variable.path
        assert np.isfinite(tf.convert_to_tensor(gradient).numpy()).all(), variable.path
    # a saved model needs nothing of the module
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(again(features).numpy(), model(features).numpy(), rtol=1e-5)


@pytest.mark.tensorflow
def test_the_default_model_begins_with_the_mean_of_the_label(tmp_path: Path) -> None:
    """So a training of few rows that ends early has learnt something of them, and not its random weights."""
    import tensorflow as tf

    written = write(tmp_path, "LABEL number")
    module = load(written)
    features = {name: tf.constant(values) for name, values in read_inputs(written).items()}
    np.testing.assert_allclose(module.custom_model()(features), module.MEAN, rtol=1e-6)


@pytest.mark.tensorflow
def test_the_default_model_has_the_loss_of_its_weights_that_is_asked_for(tmp_path: Path) -> None:
    import keras

    module = load(write(tmp_path, "LABEL number"))
    assert not module.custom_model().losses
    model = module.custom_model(hidden=(3,), l2=0.01)
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    kernels = [layer.kernel for layer in dense if layer.use_bias]  # without that of the words of a text
    assert len(kernels) == 3
    for kernel in kernels:
        kernel.assign(np.full(kernel.shape, 2.0))
    np.testing.assert_allclose(
        sum(model.losses), 0.01 * 4 * sum(np.prod(kernel.shape) for kernel in kernels), rtol=1e-5
    )


@pytest.mark.tensorflow
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.first_cases(1)
def test_columns_may_be_called_like_layers_of_keras(tmp_path: Path, estimator: str) -> None:
    rng = np.random.default_rng(0)
    names = ["dense", "Embedding", "where", "concatenate_1", "normalization", "add", "get_item", "input_layer"]
    columns: dict[str, Any] = {name: rng.normal(size=ROWS) for name in names}
    texts = ["dropout", "string_lookup", "flatten", "hashing", "multiply_2"]
    columns |= {name: [f"v{value}" for value in rng.integers(0, 40, ROWS)] for name in texts}
    columns |= {"isnan": [None if at % 3 else 1.5 * at for at in range(ROWS)], "y": ["a", "b"] * (ROWS // 2)}
    columns["cos"] = pa.array(rng.integers(0, 1_700_000_000, ROWS), pa.int64()).cast(pa.timestamp("s"))
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    module = load(write(tmp_path, f"TO TRAIN {estimator} LABEL y"))
    model = module.custom_model()
    layers = [layer.name for layer in model.layers]
    assert len(set(layers)) == len(layers)


def make_wide_columns() -> dict[str, Any]:
    """The columns of the other tests, and numbers, times and texts of which a model would have too many inputs."""
    rng = np.random.default_rng(1)
    numbers: dict[str, Any] = {f"n {at}": rng.normal(at, 1 + at, ROWS) for at in range(WIDE_INPUTS)}
    numbers["n 7"] = [None if at % 3 == 0 else float(at) for at in range(ROWS)]
    again = {f"{name} 2": values for name, values in make_columns().items() if name in ("hired", "town", "happy")}
    return numbers | again | make_columns()


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of h5py, in Keras' own save
@pytest.mark.parametrize(
    ("clauses", "outputs"),
    [
        ("LABEL binary", 1),
        (f"TO TRAIN dnn {EVERYTHING} LABEL several", 3),
        ("TO TRAIN wide_and_deep COLUMN größe, town FOR deep COLUMN CROSS([town, street], 9) FOR wide LABEL number", 1),
        ("TO TRAIN linear LABEL binary", 1),
        ("TO TRAIN deepfm LABEL number", 1),
    ],
)
@pytest.mark.first_cases(2)
def test_a_wide_table_trains_on_matrices_and_its_export_takes_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clauses: str, outputs: int
) -> None:
    """The exported model computes what a model with an input for each column computes."""
    import keras
    import tensorflow as tf

    pq.write_table(pa.table(make_wide_columns()), tmp_path / "rows.parquet")
    # What FOR leaves out is no input.
    monkeypatch.setattr("edl.sql_jobs.model_inputs.WIDE_INPUTS", 3 if "FOR" in clauses else WIDE_INPUTS)
    written = write(tmp_path, clauses)
    ast.parse(written.files["model.py"])
    module = load(written)
    keras.utils.set_random_seed(0)
    model = module.custom_model()
    table = pq.read_table(tmp_path / "data" / "training")
    matrices = {name: tf.constant(table[name].to_pylist()) for name in table.column_names[:-1]}
    assert [each.name for each in model.inputs] == sorted(matrices) == ["numbers", "texts"]
    served = module.serving_model(model)
    assert {each.name for each in served.inputs} == {each.name for each in written.inputs.inputs}
    columns = {
        name: matrices[matrix][:, at : at + 1]
        for matrix, names in written.inputs.matrices().items()
        for at, name in enumerate(names)
    }
    expected = model(matrices).numpy()
    assert expected.shape == (table.num_rows, outputs)
    np.testing.assert_allclose(served(columns).numpy(), expected, rtol=1e-5, atol=1e-6)
    served.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(again(columns).numpy(), expected, rtol=1e-5, atol=1e-6)
    # The same plan with an input for each column has the same weights, and computes the same.
    estimator = "dnn" if "TO TRAIN" not in clauses else clauses.split()[2]
    files = write_module(written.plan, written.inputs.one_by_one(), estimator, Optimizer("Adam", {}), 1, "")
    (tmp_path / "model.py").write_text(files["model.py"], encoding="utf-8")
    narrow = load(written).custom_model()
    narrow.set_weights(model.get_weights())
    np.testing.assert_allclose(narrow(columns).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_module_is_python_without_what_it_does_not_need(tmp_path: Path) -> None:
    written = write(tmp_path, "TO TRAIN linear COLUMN town FOR deep LABEL binary")
    text = written.files["model.py"]
    ast.parse(text)
    assert list(written.files) == ["model.py"]
    for absent in ("import json", "NUMBERS", "def known", "from keras import layers, ops"):
        assert absent not in text
    assert "def custom_model():" in text


def test_a_column_may_be_there_twice_in_one_form(tmp_path: Path) -> None:
    """Each part of the model has what stands before its name, and not what stands before the other one."""
    written = write(tmp_path, f"TO TRAIN wide_and_deep {TWICE} LABEL binary")
    tree = ast.parse(written.files["model.py"])
    tables = {
        ast.unparse(each.targets[0]): ast.unparse(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Dict)
    }
    assert tables["VECTORS"] == "{'street': 8}"
    assert tables["RANGES"] == "{'pay': (1, 10, 100)}"
    assert tables["RANGES_2"] == "{'pay': (50,)}"
    assert (tables["HASHED"], tables["HASHED_2"]) == ("{'town': (50, 3)}", "{'town': (2000, 14)}")
    deep, wide = (
        ast.unparse(each) for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("encode")
    )
    assert "RANGES[name]" in deep
    assert "RANGES_2[name]" in wide
    vocabularies = json.loads(written.files["vocabularies.json"])
    assert "dog" in vocabularies["notes"]
    assert "dog" not in vocabularies["notes 2"]
    both = write(tmp_path, "TO TRAIN dnn COLUMN BUCKET(pay, [1]), BUCKET(pay, [2, 3]) LABEL binary").files["model.py"]
    assert "for name in RANGES]" in both
    assert "for name in RANGES_2]" in both


def test_texts_of_the_data_and_of_the_query_stay_data(tmp_path: Path) -> None:
    query = 'SELECT *, \'"""\\\' AS a FROM t'
    written = write(tmp_path, "LABEL binary", query)
    tree = ast.parse(written.files["model.py"])
    assert query in (ast.get_docstring(tree) or "")
    assert "Köln" in written.files["model.py"]
    (words,) = (
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "WORDS"
    )
    assert set(words["town"]) == {"", "Köln", "it's", 'say "hi"', "a\\b"}
    assert "s7" in json.loads(written.files["vocabularies.json"])["street"]


@pytest.mark.tensorflow
def test_without_hidden_layers_the_network_is_a_linear_model(tmp_path: Path) -> None:
    module = load(write(tmp_path, "LABEL binary"))
    sizes = {
        # The vectors of words have no bias.
        len(hidden): [
            each.units for each in module.custom_model(hidden=hidden).layers if getattr(each, "bias", None) is not None
        ]
        for hidden in ((), (8, 4))
    }
    assert sizes[0] == [1]
    assert sorted(sizes[2]) == [1, 1, 4, 8]


def test_rare_classes_weigh_more_in_the_module(tmp_path: Path) -> None:
    columns = make_columns()
    columns["binary"] = ["yes" if at < 40 else "no" for at in range(ROWS)]
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert "class_weight = {0: 0.555556, 1: 5}" in write(tmp_path, "LABEL binary").files["model.py"]


def test_thousands_of_columns_are_planned_written_and_printed_in_seconds() -> None:
    label = ColumnFacts("y", "text", 100, 0, 2, values=(("a", 50), ("b", 50)))
    columns = [ColumnFacts(f"c {at}", "number", 100, at % 2, 100) for at in range(5000)]
    (statement,) = parse_statements("SELECT * FROM t LABEL y INTO m")
    assert isinstance(statement, TrainStatement)
    began = time.process_time()
    plan = plan_columns([*columns, label], statement.label)
    inputs = choose_inputs(plan)
    settings = choose_settings(statement, "dnn", "", plan)
    text = write_module(plan, inputs, "dnn", settings.optimizer, 4, "SELECT 1")["model.py"]
    lines = plan_lines(plan, settings, PreparedRows(80, 20))
    # A step that compares all columns with all takes minutes.
    assert time.process_time() - began < 5
    assert text.count("layers.Normalization") == 1
    assert len(lines) < 60
    assert not [line for line in lines if "warning" in line]
    # Each column has a vector of its own here.
    assert "warning: 5,000 columns" in plan_lines(plan, replace(settings, estimator="deepfm"), PreparedRows(8, 2))[-2]


# --------------------------------------------------------------------------------------------------
# Rows and names.


def test_no_step_compares_all_columns_with_all(tmp_path: Path) -> None:
    names = [f"c{at}" for at in range(20_000)]
    table = pa.table({name: pa.array([at, at + 0.5], pa.float32()) for at, name in enumerate(names)})
    inputs = ModelInputs(tuple(InputColumn(name, name, "float32", "number", "numbers") for name in names), "label")
    pq.write_table(table, tmp_path / "rows.parquet")
    began = time.process_time()
    stacked = stack_columns(table, inputs)
    chosen = table_scan._check_columns(table.schema, names, tmp_path)
    read = ParquetReader([tmp_path / "rows.parquet"]).metadata.column_names
    assert time.process_time() - began < 10  # a minute each, otherwise
    assert (stacked.column_names, chosen, list(read)) == (["numbers"], names, names)
    assert stacked["numbers"][1].as_py() == [at + 0.5 for at in range(20_000)]


def test_prepared_rows_have_names_and_types_that_models_take(tmp_path: Path) -> None:
    written = write(tmp_path, "LABEL binary")
    assert [each.name for each in written.inputs.inputs][:2] == ["age_of_person", "groesse"]
    table = pq.read_table(tmp_path / "data")
    assert set(table.schema.types) == {pa.float32(), pa.string()}
    assert sum(column.null_count for column in table.columns) == 0
    assert table["town"].to_pylist().count("") == 45
    assert np.isnan(table["age_of_person"].to_numpy()).sum() == 58


def test_equal_rows_are_on_one_side_whatever_their_order(tmp_path: Path) -> None:
    table = pa.table(make_columns())
    twice = pa.concat_tables([table, table.take(np.arange(ROWS)[::-1])])
    pq.write_table(twice, tmp_path / "rows.parquet")
    (statement,) = parse_statements("SELECT * FROM t LABEL binary INTO m")
    assert isinstance(statement, TrainStatement)
    plan = plan_columns(collect_facts([tmp_path / "rows.parquet"], "binary"), statement.label)
    inputs = choose_inputs(plan)
    prepare_training([tmp_path / "rows.parquet"], RowForm(inputs, "binary", plan.label.kind), tmp_path / "data", 0.2)
    sides = [
        {repr(row) for row in pq.read_table(tmp_path / "data" / side).to_pylist()}
        for side in ("training", "validation")
    ]
    assert not sides[0] & sides[1]
    assert len(sides[0]) + len(sides[1]) == ROWS


def divide(tmp_path: Path, table: pa.Table) -> list[list[str]]:
    """The rows for training and those for validation, for a label ``y``."""
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=7001)
    (statement,) = parse_statements("SELECT * FROM t LABEL y INTO m")
    assert isinstance(statement, TrainStatement)
    plan = plan_columns(collect_facts([tmp_path / "rows.parquet"], "y"), statement.label)
    inputs, folder = choose_inputs(plan), tmp_path / f"data{len(list(tmp_path.iterdir()))}"
    prepare_training([tmp_path / "rows.parquet"], RowForm(inputs, "y", plan.label.kind), folder, 0.2)
    sides = (folder / "training", folder / "validation")
    return [sorted(map(repr, pq.read_table(side).to_pylist())) for side in sides]


@pytest.mark.parametrize("rows", [300, 20_000])
def test_few_different_rows_are_on_both_sides_whatever_their_order(tmp_path: Path, rows: int) -> None:
    """A table of two categories: by whole groups of equal rows, a side would lack a class, or have no row."""
    table = pa.table(
        {"x": ["pqr"[at % 3] for at in range(rows)], "y": ["no" if at * 7 % 5 else "yes" for at in range(rows)]}
    )
    sides = divide(tmp_path, table)
    assert len(set(sides[0])) == len(set(sides[1])) == 6
    assert sum(map(len, sides)) == rows
    assert len(sides[1]) == pytest.approx(0.2 * rows, rel=0.05)
    assert divide(tmp_path, table.take(np.random.default_rng(1).permutation(rows))) == sides


@pytest.mark.parametrize("copies", [1, 6])
def test_no_side_is_empty(tmp_path: Path, copies: int) -> None:
    assert all(divide(tmp_path, pa.table({"x": ["p", "q"] * copies, "y": ["no", "yes"] * copies})))


def test_rows_to_predict_keep_their_order(tmp_path: Path) -> None:
    written = write(tmp_path, "LABEL binary")
    assert prepare_prediction([tmp_path / "rows.parquet"], RowForm(written.inputs), tmp_path / "p") == ROWS
    values = pq.read_table(tmp_path / "p")["groesse"].to_numpy()
    np.testing.assert_allclose(values, make_columns()["größe"].astype(np.float32))


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("größe", "groesse"),
        ("a b", "a_b"),
        ("1st", "column_1st"),
        ("年", "column"),
        ("_x", "x"),
        ('"; DROP', "DROP"),
        ("class", "class_column"),
        ("self", "self_column"),
        ("Class", "Class"),
    ],
)
def test_names_become_those_that_tensorflow_takes(column: str, name: str) -> None:
    assert plain_name(column) == name


@pytest.mark.parametrize("names", [("Age", "age"), ("age", "Age")])
def test_columns_that_differ_in_upper_case_alone_become_two_inputs(names: tuple[str, str], tmp_path: Path) -> None:
    numbers = [1.0, 2.0, 3.0, 4.0] * 10
    columns = pa.table({names[0]: numbers, names[1]: numbers[::-1], "y": ["no", "yes"] * 20})
    pq.write_table(columns, tmp_path / "rows.parquet")
    (statement,) = parse_statements("SELECT * FROM t LABEL y INTO m")
    assert isinstance(statement, TrainStatement)
    inputs = choose_inputs(plan_columns(collect_facts([tmp_path / "rows.parquet"], "y"), statement.label))
    assert [each.name for each in inputs.inputs] == [names[0], f"{names[1]}_2"]
