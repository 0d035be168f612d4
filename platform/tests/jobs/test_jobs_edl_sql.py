"""edl sql with real training: the line that EDL was announced with, and what becomes of its model."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import job_process
from support.databases import (
    PASSWORD,
    USER,
    find_mariadb,
    find_postgres,
    require,
    start_mariadb,
    start_postgres,
)

from edl.sql_jobs.model_inputs import WIDE_INPUTS

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(900)]

ANNOUNCED = "SELECT * FROM employee LABEL income INTO my_elasticdl_model"


def edl(folder: Path, *arguments: str, code: int = 0, text: str = "", more: Mapping[str, str] | None = None) -> str:
    own = {"EDL_MODELS": str(folder / "models"), "EDL_DATABASE": "sqlite:///edl-demo.db"}
    done = job_process.edl(*arguments, cwd=folder, timeout=600.0, text=text, more={**own, **(more or {})})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def read_weights(model: Path) -> list[float]:
    """All weights of a ``.keras`` file, in the order of their names."""
    import h5py

    weights = dict[str, list[float]]()
    with zipfile.ZipFile(model) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(
            lambda name, item: weights.update(
                {name: item[()].ravel().tolist()} if isinstance(item, h5py.Dataset) else {}
            )
        )
    return [value for name in sorted(weights) for value in weights[name]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the announced statement was run, and what it printed in the file ``said``."""
    folder = tmp_path_factory.mktemp("sql")
    (folder / "said").write_text(edl(folder, "sql", "--demo", ANNOUNCED), encoding="utf-8")
    return folder


def test_the_announced_line_trains_a_good_model(demo: Path) -> None:
    output = (demo / "said").read_text(encoding="utf-8")
    for part in ("employee", "one of two classes", "it numbers the rows", "validation loss", "my_elasticdl_model@1"):
        assert part in output
    stored = json.loads((demo / "models" / "my_elasticdl_model" / "1" / "model.json").read_text(encoding="utf-8"))
    # The estimator linear has an accuracy of 0.836.
    assert stored["metrics"]["accuracy"] > 0.86
    assert stored["statement"] == ANNOUNCED


def test_its_model_evaluates_predicts_and_explains(demo: Path) -> None:
    (demo / "use.sql").write_text(
        "SELECT * FROM employee TO EVALUATE my_elasticdl_model;\n"
        "SELECT * FROM employee TO PREDICT predicted.guess USING my_elasticdl_model;\n"
        "SELECT avg(guess = income) AS agreed FROM predicted;\n"
        "SELECT * FROM employee TO EXPLAIN my_elasticdl_model;",
        encoding="utf-8",
    )
    output = edl(demo, "sql", "use.sql")
    evaluated = re.search(r"accuracy +([\d.]+)", output)
    agreed = re.search(r"agreed\n([\d.]+)", output)
    assert evaluated is not None
    assert agreed is not None
    # The table with predictions says what the evaluation says.
    assert float(agreed[1]) == pytest.approx(float(evaluated[1]), abs=2e-4)
    lost = dict(re.findall(r"^(\w+) +(-?\d\.\d+) ", output, re.MULTILINE))
    assert float(lost["education"]) > 0.05 > float(lost["remote"])


@pytest.mark.repetition
def test_an_exported_folder_trains_the_same_by_edl_run(demo: Path, tmp_path: Path) -> None:
    settings = "WITH train.epochs=2, validation.refit=true"
    statement = ANNOUNCED.replace("LABEL", f"TO TRAIN wide_and_deep {settings} LABEL") + "_2"
    # Of a second try, the model is not there yet.
    models, exported = tmp_path / "models", tmp_path / "exported"
    edl(demo, "sql", "-", "--export", str(exported), text=statement, more={"EDL_MODELS": str(models)})
    stored = json.loads((models / "my_elasticdl_model_2" / "1" / "model.json").read_text(encoding="utf-8"))
    again = edl(exported, "run", "job.yaml", "--json", "--set", "export.path=again")
    # Behind the summary there may be lines of TensorFlow's log, from standard error.
    summary = json.loads([line for line in again.splitlines() if line.startswith("{")][-1])
    assert summary["phase"] == "Done"
    assert summary["metrics"] == pytest.approx(stored["metrics"], abs=1e-6)
    edl(exported, "run", "refit.yaml", "--json", "--set", "export.path=all")
    stored_weights = read_weights(models / "my_elasticdl_model_2" / "1" / "model.keras")
    measured, on_all_rows = (read_weights(exported / name / "model.keras") for name in ("again", "all"))
    assert stored_weights == pytest.approx(on_all_rows, abs=1e-5)
    assert stored_weights != pytest.approx(measured, abs=1e-3), "it is the model that has seen the validation rows"


@pytest.mark.repetition
def test_a_number_with_nulls_and_odd_names_is_predicted(demo: Path) -> None:
    query = 'SELECT id, age AS "älter als", hired, hours_per_week AS "hours; per week" FROM employee WHERE id < 1000'
    output = edl(
        demo, "sql", f'{query} TO TRAIN linear WITH train.epochs=2 LABEL "älter als" INTO "Alter";'
        f"{query} TO PREDICT ages.age USING \"Alter\"; SELECT count(age) AS n FROM ages",
    )  # fmt: skip
    assert "r2" in output
    assert output.rstrip().endswith("n\n999")


@pytest.mark.repetition
def test_a_wide_table_trains_on_matrices_and_is_evaluated_predicted_and_explained(tmp_path: Path) -> None:
    numbers = ", ".join(f"(n * {at + 7}) % 101 + 0.5 AS c{at}" for at in range(WIDE_INPUTS))
    query = (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 400) "
        f"SELECT {numbers}, CASE n % 5 WHEN 0 THEN 'x' ELSE 'y' END AS kind, (n * 7) % 101 > 50 AS y FROM r"
    )
    sqlite3.connect(tmp_path / "edl-demo.db").close()
    statements = (
        f"{query} TO TRAIN linear WITH train.epochs=30 LABEL y INTO m; {query} TO EVALUATE m INTO scores; "
        f"{query} TO PREDICT guessed.guess USING m; SELECT avg(guess = y) AS agreed FROM guessed; "
        f"{query} TO EXPLAIN m INTO matters; SELECT accuracy FROM scores; "
        'SELECT "column" FROM matters ORDER BY importance DESC LIMIT 1'
    )
    output = edl(tmp_path, "sql", "-", text=statements)
    model = tmp_path / "models" / "m" / "1"
    assert {each["matrix"] for each in json.loads((model / "model.json").read_text())["inputs"]} == {"numbers", "texts"}
    agreed, accuracy = (float(value) for value in re.findall(r"^(?:agreed|accuracy)\n([\d.]+)", output, re.MULTILINE))
    assert agreed == pytest.approx(accuracy, abs=2e-4)
    assert agreed > 0.75
    # The label is (n * 7) % 101 > 50, and (n * 94) % 101 is 101 less that.
    assert output.rstrip().splitlines()[-1] in ("c0", "c87")


@pytest.mark.repetition
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_server_is_read_and_predictions_are_written_into_it(tmp_path: Path, kind: str) -> None:
    if kind == "postgresql":
        starting, town = start_postgres(require(find_postgres(), "postgresql")), '"home town"'
        rows = "generate_series(1, 600) AS n"
    else:
        starting, town = start_mariadb(require(find_mariadb(), "mariadb-server")), "`home town`"
        rows = "(SELECT seq AS n FROM seq_1_to_600) AS rows_of_numbers"
    with starting as server:
        server.connect(
            f"CREATE TABLE people AS SELECT n AS id, 20 + n % 50 AS age, concat('town ', n % 3) AS {town}, "
            "CAST(n % 7 AS DECIMAL(10, 2)) AS pay, CAST('2000-01-02' AS DATE) AS born, n % 50 > 25 AS rich FROM " + rows
        )
        statements = (
            f"SELECT age, {town}, pay, rich FROM people TO TRAIN linear WITH train.epochs=1 LABEL rich INTO m; "
            "SELECT * FROM people TO PREDICT guessed.rich USING m; SELECT * FROM people TO EVALUATE m INTO scores"
        )
        credentials = {"EDL_DATABASE_USER": USER, "EDL_DATABASE_PASSWORD": PASSWORD}
        output = edl(tmp_path, "sql", "--database", server.address, statements, more=credentials)
        assert "600 rows with predictions of m@1 in guessed" in output
        assert server.connect("SELECT count(*) FROM guessed WHERE rich IS NOT NULL") == [(600,)]
        assert len(server.connect("SELECT accuracy FROM scores")) == 1
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert PASSWORD not in output
    assert not [content for content in files if PASSWORD.encode() in content]
