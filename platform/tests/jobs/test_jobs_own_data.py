"""The page *Bring your own data* and those of formats: every program of them runs, and their modules train."""

from __future__ import annotations

import gzip
import io
import json
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML
from support.job_folder import JobFolder, write_module
from support.job_process import edl
from support.range_server import serve_folder
from support.repetition import repetition
from support.tfrecords import write_tfrecord

from edl.data import serialize_example
from edl.data.split_reader import is_validation

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "bring-your-own-data.md"
PAGES = "".join(page.read_text(encoding="utf-8") for page in (PAGE, *sorted((DOCS / "data").glob("*.md"))))
PROGRAMS = dict(re.findall(r"<!-- test: ([^\n]+?) -->\n```python\n(.*?)```", PAGES, re.S))
TRAIN = {"epochs": 1, "minibatch_size": 10}


def test_every_program_of_the_pages_is_tried() -> None:
    assert PAGES.count("```python") == len(PROGRAMS) == 17


def test_every_page_of_a_format_has_a_module_that_trains() -> None:
    for page in (DOCS / "data").glob("*.md"):
        assert "<!-- test: a module that trains on " in page.read_text(encoding="utf-8"), page


def run(folder: Path, program: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAMS[program]], cwd=folder, check=True, timeout=100)


@pytest.mark.repetition
def test_layers_are_adapted_from_the_statistics_of_a_table(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = np.arange(40)
    table = {"km": numbers / 8, "people": numbers % 3, "minute": numbers * 30, "quarter": ["harbour", "old town"] * 20}
    pq.write_table(pa.table(table), tmp_path / "trips.parquet")
    stats = [str(Path(sys.executable).with_name("edl")), "data", "stats", "trips.parquet", "--json"]
    with (tmp_path / "trips.json").open("w") as result:
        subprocess.run(stats, cwd=tmp_path, stdout=result, check=True, timeout=100)
    run(tmp_path, "layers adapted from trips.json")


def test_the_mask_of_a_crowd_is_drawn_down_its_columns() -> None:
    names: dict[str, Any] = {}
    exec(PROGRAMS["the mask of a crowd"], names)
    drawn = names["draw_runs"](np.array([2, 3, 1, 0, 4, 2]), np.array([3, 4]))
    wanted = [[0, 1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 1]]
    np.testing.assert_array_equal(drawn, np.array(wanted, bool))


def job_of(folder: Path, section: str, data: Path) -> JobFolder:
    """The job that the section of a format shows: its module, and its reader, on these data."""
    zoo = write_module(folder, "own", PROGRAMS[section])
    fields = {"training": str(data), **DATA_FIELDS.get(section, {})}
    return JobFolder.make(folder, "own", "own.custom_model", zoo=zoo, data=fields, train=TRAIN)


DATA_FIELDS = {
    "a module that trains on trips.parquet": {
        "schema": {"label": "tip", "features": {"km": "float32", "people": "int64"}}
    },
    "a module that trains on sales.csv": {"reader": {"sep": ";", "columns": ["price", "size", "sold"]}},
    "a module that trains on houses.tfrecord": {
        "schema": {"label": "area", "features": {"rooms": "int64", "quarter": "string"}}
    },
    "a module that trains on reviews.jsonl": {
        "schema": {"label": "stars", "features": {"words": "int64", "text": "string"}}
    },
    "a module that trains on sentences.parquet": {"schema": {"label": "label", "features": {"tokens": "int64"}}},
    "a module that trains on pets/": {"schema": {"image_size": [32, 32], "label_mode": "int"}},
    "a module that trains on shop.db": {
        "reader": {"table": "orders", "key": "id"},
        "schema": {"label": "total", "features": {"items": "int64", "town": "string"}},
    },
    "a module that trains on shapes/": {"reader": {"annotations": "{name}.json"}},
}


def write_trips(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"km": np.linspace(0, 1, 40), "people": np.arange(40) % 3, "tip": np.linspace(0, 2, 40)})
    pq.write_table(table, folder / "trips.parquet", row_group_size=16)
    return folder / "trips.parquet"


def write_pets(folder: Path) -> Path:
    import tensorflow as tf

    for number in range(40):
        file = folder / "pets" / ("cat" if number % 2 else "dog") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tf.io.encode_png(np.full((9, 7, 3), number, np.uint8)).numpy())
    return folder / "pets"


def write_shapes(folder: Path) -> Path:
    import tensorflow as tf

    (folder / "shapes").mkdir()
    for number in range(40):
        encoded = tf.io.encode_png(np.full((9, 7, 3), number, np.uint8)).numpy()
        (folder / "shapes" / f"{number}.png").write_bytes(encoded)
    document = {
        "images": [{"id": number, "file_name": f"{number}.png"} for number in range(40)],
        "categories": [{"id": 1, "name": "circle"}, {"id": 3, "name": "square"}],
        "annotations": [
            {"image_id": number, "category_id": category, "bbox": [0, 0, 5, 5]}
            for number in range(40)
            for category in ((), (1,), (1, 3))[number % 3]
        ],
    }
    (folder / "shapes.json").write_text(json.dumps(document))
    return folder / "shapes"


def write_digits(folder: Path) -> Path:
    import tensorflow as tf

    with tarfile.open(folder / "digits.tar", "w") as tar:
        for number in range(40):
            image = tf.io.encode_png(np.full((9, 7, 3), number, np.uint8)).numpy()
            for extension, content in (("png", image), ("cls", b"%d" % (number % 2))):
                member = tarfile.TarInfo(f"{number}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return folder / "digit*.tar"


def write_saved_reviews(folder: Path) -> Path:
    import pyarrow as pa

    table = pa.table({"text": [f"good {number}" for number in range(40)], "label": np.arange(40) % 2})
    (folder / "reviews").mkdir()
    with pa.ipc.new_stream(str(folder / "reviews" / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=16)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "reviews" / "state.json").write_text(json.dumps(state))
    (folder / "reviews" / "dataset_info.json").write_text("{}")
    return folder / "reviews"


def write_reviews(folder: Path) -> Path:
    lines = [json.dumps({"text": f"good {number}", "words": 2, "stars": number % 5}) for number in range(40)]
    (folder / "reviews.jsonl").write_text("\n".join(lines))
    return folder / "reviews.jsonl"


def write_sales(folder: Path) -> Path:
    rows = [f"{number};{number / 40};{number / 20};x" for number in range(40)]
    (folder / "sales.csv").write_text("\n".join(["sold;price;size;note", *rows]))
    return folder / "sales.csv"


def write_sentences(folder: Path) -> Path:
    (folder / "sentences.txt").write_text("\n".join(f"{number % 2} {'so ' * number}good" for number in range(40)))
    return folder / "sentences.txt"


def write_arrays(folder: Path) -> Path:
    np.savez(folder / "arrays.npz", image=np.zeros((40, 4, 4), np.uint8), label=np.arange(40) % 2)
    return folder / "arrays.npz"


def write_examples(folder: Path) -> Path:
    rows = [serialize_example({"area": 1.0 * number, "rooms": 2, "quarter": "harbour"}) for number in range(40)]
    return write_tfrecord(folder / "houses.tfrecord", rows)


@pytest.mark.parametrize(
    ("section", "write"),
    [
        pytest.param("a module that trains on trips.parquet", write_trips, marks=pytest.mark.repetition),
        pytest.param("a module that trains on pets/", write_pets, marks=pytest.mark.repetition),
        pytest.param("a module that trains on shapes/", write_shapes, marks=pytest.mark.repetition),
        pytest.param("a module that trains on digits.tar", write_digits, marks=pytest.mark.repetition),
        pytest.param("a module that trains on reviews/", write_saved_reviews, marks=pytest.mark.repetition),
        pytest.param("a module that trains on reviews.jsonl", write_reviews, marks=pytest.mark.repetition),
        pytest.param("a module that trains on sales.csv", write_sales, marks=pytest.mark.repetition),
        pytest.param("a module that trains on sentences.txt", write_sentences, marks=pytest.mark.repetition),
        pytest.param("a module that trains on houses.tfrecord", write_examples, marks=pytest.mark.repetition),
        pytest.param("a module that trains on arrays.npz", write_arrays, marks=pytest.mark.repetition),
        pytest.param("a module that trains on houses.recordio", write_examples, marks=pytest.mark.repetition),
    ],
)
def test_the_job_of_each_format_trains_every_record_once(
    tmp_path: Path, section: str, write: Callable[[Path], Path]
) -> None:
    with job_of(tmp_path, section, write(tmp_path)).run() as job:
        summary = job.summary()
    assert (summary["records_done"], summary["records_lost"]) == (40, 0)


@pytest.mark.parametrize("strategy", [repetition("Local"), "ParameterServer", repetition("AllReduce")])
@pytest.mark.repetition
def test_a_module_without_feed_trains_evaluates_and_predicts_by_the_schema(tmp_path: Path, strategy: str) -> None:
    rows = [f"{number % 7},{('Ulm', 'Bonn')[number % 2]},{('no', 'yes')[number % 2]}\n" for number in range(40)]
    (tmp_path / "customers.csv").write_text("age,town,stays\n" + "".join(rows))
    (tmp_path / "new.csv").write_text("town,age\n" + "Ulm,3\n" * 10)
    zoo = write_module(tmp_path, "own", WITHOUT_FEED)
    schema = {"label": "stays", "classes": ["no", "yes"], "features": {"age": "int64", "town": "string"}}
    data = {"training": str(tmp_path / "customers.csv"), "validation": str(tmp_path / "customers.csv")}
    data = {**data, "prediction": str(tmp_path / "new.csv"), "schema": schema}
    job_folder = JobFolder.make(
        tmp_path, "own", "own.custom_model", zoo=zoo, data=data, train=TRAIN, strategy={"name": strategy}
    )
    with job_folder.run() as job:
        summary = job.summary()
    assert (summary["records_done"], summary["records_lost"]) == (40, 0)
    assert "accuracy" in summary["metrics"]
    if strategy == "ParameterServer":
        with job_folder.predict(tmp_path / "out") as job:
            assert job.summary()["records_done"] == 10


@pytest.mark.parametrize("name", ["customers.csv", repetition("customers.jsonl")])
@pytest.mark.repetition
def test_rows_without_a_value_of_the_schema_are_skipped_and_counted(tmp_path: Path, name: str) -> None:
    rows = [{"age": number % 7, "town": "Ulm", "stays": ("no", "yes")[number % 2]} for number in range(40)]
    rows[21]["age"] = ""
    as_csv = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    lines = as_csv if name.endswith(".csv") else [json.dumps(row) for row in rows]
    (tmp_path / name).write_text("\n".join(lines))
    schema = {"label": "stays", "classes": ["no", "yes"], "features": {"age": "int64", "town": "string"}}
    data = {"training": str(tmp_path / name), "schema": schema, "max_corrupt_records": 1}
    fields = {"zoo": write_module(tmp_path, "own", WITHOUT_FEED), "train": TRAIN, "strategy": {"name": "Local"}}
    with JobFolder.make(tmp_path, "own", "own.custom_model", data=data, **fields).run() as job:
        summary = job.summary()
    assert (summary["records_done"], summary["records_skipped"], summary["records_lost"]) == (40, 1, 0)


@pytest.mark.parametrize("strategy", ["Local", repetition("ParameterServer"), repetition("AllReduce")])
@pytest.mark.repetition
def test_lists_of_different_lengths_are_padded_and_what_is_no_minibatch_is_counted(
    tmp_path: Path, strategy: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {"tokens": [[1] * (1 + number * 7 % 20) for number in range(47)], "label": np.arange(47) / 47}
    pq.write_table(pa.table(table), tmp_path / "sentences.parquet", row_group_size=16)
    section = "a module that trains on sentences.parquet"
    train = {"epochs": 2, "minibatch_size": 10, "minibatches_per_task": 2}
    train |= {"batches": {"bucket_by": "tokens", "pad": True, "drop_remainder": True}}
    paths = dict.fromkeys(("training", "validation"), str(tmp_path / "sentences.parquet"))
    fields = {"data": {**paths, **DATA_FIELDS[section]}, "train": train, "strategy": {"name": strategy}}
    zoo = write_module(tmp_path, "own", PROGRAMS[section])
    with JobFolder.make(tmp_path, "own", "own.custom_model", zoo=zoo, workers={"max": 2}, **fields).run() as job:
        summary = job.summary()
    assert (summary["records_done"], summary["records_lost"], summary["records_not_trained"]) == (94, 0, 14)
    assert "mae" in summary["metrics"]


@pytest.mark.parametrize("strategy", ["Local", pytest.param("ParameterServer", marks=pytest.mark.repetition)])
def test_a_job_mixes_repeats_and_splits_its_sources(tmp_path: Path, strategy: str) -> None:
    for name, start in (("clean", 0), ("noisy", 60)):
        rows = [f"{n % 7},{('Ulm', 'Bonn')[n % 2]},{('no', 'yes')[n % 2]},{n}\n" for n in range(start, start + 60)]
        (tmp_path / f"{name}.csv").write_text("age,town,stays,customer\n" + "".join(rows))
    paths = [str(tmp_path / "clean.csv"), str(tmp_path / "noi*.csv")]
    schema = {"label": "stays", "classes": ["no", "yes"], "features": {"age": "int64", "town": "string"}}
    data = {"training": paths, "validation": paths, "schema": schema, "weights": [1, 3], "repeat": [2, 1]}
    data["split"] = {"key": "customer", "validation": 0.25}
    parts = [sum(is_validation(b"%d" % n, 0.25) for n in range(start, start + 60)) for start in (0, 60)]
    zoo = write_module(tmp_path, "own", WITHOUT_FEED)
    fields = {"zoo": zoo, "data": data, "train": TRAIN, "strategy": {"name": strategy}, "workers": {"max": 2}}
    with JobFolder.make(tmp_path, "own", "own.custom_model", **fields).run() as job:
        summary = job.summary()
    assert (summary["records_done"], summary["records_lost"]) == (2 * (60 - parts[0]) + 60 - parts[1], 0)
    assert "accuracy" in summary["metrics"]


MARKS_RECORDS = """
import keras
import tensorflow as tf


def custom_model():
    number = keras.Input((1,), name="number", dtype="int64")
    one_hot = keras.layers.CategoryEncoding(ROWS, output_mode="one_hot")(number)
    mark = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="mark")
    return keras.Model([number], mark(one_hot))


def loss(labels, predictions):
    return -tf.reduce_mean(predictions)


optimizer = keras.optimizers.SGD(1.0)
"""


@pytest.mark.repetition
def test_two_workers_take_steps_together_on_weighted_sources_and_train_each_record(tmp_path: Path) -> None:
    sizes = {"few": 100, "many": 500}
    for name, start in (("few", 0), ("many", sizes["few"])):
        rows = [f"{number},0\n" for number in range(start, start + sizes[name])]
        (tmp_path / f"{name}.csv").write_text("number,label\n" + "".join(rows))
    total = sum(sizes.values())
    schema = {"label": "label", "features": {"number": "int64"}}
    paths = [str(tmp_path / f"{name}.csv") for name in sizes]
    data = {"training": paths, "schema": schema, "weights": [1, 3]}
    train = {"epochs": 4, "minibatch_size": 8, "minibatches_per_task": 4}
    zoo = write_module(tmp_path, "own", MARKS_RECORDS.replace("ROWS", str(total)))
    fields = {"zoo": zoo, "data": data, "train": train, "strategy": {"name": "AllReduce"}}
    fields |= {"workers": {"min": 2, "max": 2}, "export": {}}
    with JobFolder.make(tmp_path, "own", "own.custom_model", **fields).run() as job:
        summary = job.summary()
        assert max(event["workers"] for event in job.events("world_changed")) == 2
        exported = job.run_dir / "export" / "model.keras"
    assert (summary["records_done"], summary["records_lost"]) == (4 * total, 0)
    import keras

    marks = np.asarray(keras.models.load_model(exported, compile=False).get_layer("mark").kernel)
    assert marks.shape == (total, 1)
    # A record's mark is the sum of its shares of the steps: one for each epoch, of at most 16 records.
    assert (marks > 4 / 16 - 1e-4).all()


def test_a_converted_table_trains_by_the_schema_that_the_command_prints(tmp_path: Path) -> None:
    rows = [f"{number % 7},{('Ulm', 'Bonn')[number % 2]},{('no', 'yes')[number % 2]}\n" for number in range(40)]
    (tmp_path / "customers.csv").write_text("age,town,stays\n" + "".join(rows))
    convert = ["data", "convert", "customers.csv", "--to", "parquet", "--out", "parquet", "--records-per-file", "25"]
    converted = edl(*convert, "--processes", "2", cwd=tmp_path, timeout=200.0)
    assert converted.returncode == 0, converted.stderr
    printed = edl("data", "schema", str(tmp_path / "parquet"), "--label", "stays", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    data = YAML(typ="safe").load(printed.stdout)["data"]
    fields = {"train": TRAIN, "strategy": {"name": "Local"}}
    zoo = write_module(tmp_path, "own", WITHOUT_FEED)
    with JobFolder.make(tmp_path, "own", "own.custom_model", zoo=zoo, data=data, **fields).run() as job:
        summary = job.summary()
    assert (summary["records_done"], summary["records_lost"]) == (40, 0)


WITHOUT_FEED = """
import keras


def custom_model():
    age = keras.Input((1,), name="age")
    town = keras.Input((1,), name="town", dtype="string")
    number = keras.layers.StringLookup(vocabulary=["Ulm", "Bonn"], output_mode="multi_hot")(town)
    return keras.Model([age, town], keras.layers.Dense(2)(keras.layers.concatenate([age, number])))


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = "sgd"


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
"""


@pytest.mark.repetition
def test_a_job_on_compressed_lines_unpacks_them_once(tmp_path: Path) -> None:
    lines = write_reviews(tmp_path)
    packed = lines.with_name("packed.jsonl.gz")
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    section = "a module that trains on reviews.jsonl"
    zoo = write_module(tmp_path, "own", PROGRAMS[section])
    data = {"training": str(packed), "reader": {"cache": str(tmp_path / "cache")}, **DATA_FIELDS[section]}
    with JobFolder.make(tmp_path, "own", "own.custom_model", zoo=zoo, data=data, train=TRAIN).run() as job:
        summary = job.summary()
    assert (summary["records_done"], summary["records_lost"]) == (40, 0)
    assert [path.read_bytes() for path in (tmp_path / "cache").glob("*/*.jsonl")] == [lines.read_bytes()]


@pytest.mark.repetition
def test_a_job_on_a_table_over_http_trains_every_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = re.search(r"<!-- test: trains on an address -->\n```yaml\n(.*?)```", PAGE.read_text(), re.S)
    assert section is not None
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "www").mkdir()
    write_trips(tmp_path / "www")
    with serve_folder(tmp_path / "www") as (address, server):
        text = section[1].replace("https://data.example", address).replace("/tmp/edl-cache", str(tmp_path / "cache"))
        reader = YAML(typ="safe").load(text)["data"]["reader"]
        zoo = write_module(tmp_path, "own", PROGRAMS["a module that trains on trips.parquet"])
        data = {"training": f"{address}/trips.parquet", "reader": reader}
        with JobFolder.make(tmp_path, "own", "own.custom_model", zoo=zoo, data=data, train=TRAIN).run() as job:
            summary = job.summary()
    assert (summary["records_done"], summary["records_lost"]) == (40, 0)
    assert any(method == "GET" for method, _, _ in server.requests)
    assert list((tmp_path / "cache").glob("*/*.block"))


def write_shop(folder: Path, rows: int = 40) -> str:
    connection = sqlite3.connect(folder / "shop.db")
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, items INTEGER, town TEXT, total REAL)")
    values = [(5 * n, n % 7, ("Ulm", "Bonn")[n % 2], n % 7 / 2) for n in range(rows)]
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", values)
    connection.commit()
    connection.close()
    return f"sqlite:///{folder}/shop.db"


def test_a_job_on_a_table_of_a_database_trains_every_row_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    section = "a module that trains on shop.db"
    page = (DOCS / "data" / "sql.md").read_text(encoding="utf-8")
    shown = YAML(typ="safe").load(page.partition("```yaml\n")[2].partition("```")[0])["data"]
    write_shop(tmp_path, 4000)
    assert shown == {"training": "sqlite:///shop.db", **DATA_FIELDS[section]}
    zoo = write_module(tmp_path, "own", PROGRAMS[section])
    train = {"epochs": 2, "minibatch_size": 10, "minibatches_per_task": 5}
    fields = {"zoo": zoo, "data": shown, "train": train, "workers": {"max": 2}}
    with JobFolder.make(tmp_path, "own", "own.custom_model", **fields).run() as job:
        job.wait_step(20)
        job.send("worker", min(job.pids("worker")), signal.SIGKILL)
        summary = job.summary(200)
    assert (summary["records_done"], summary["records_lost"]) == (8000, 0)


def test_a_table_that_a_job_cannot_find_ends_it_at_once(tmp_path: Path) -> None:
    address = write_shop(tmp_path)
    zoo = write_module(tmp_path, "own", PROGRAMS["a module that trains on shop.db"])
    data = {"training": f"{address}#ordres", "reader": {"key": "id"}, "schema": {"label": "total"}}
    with JobFolder.make(tmp_path, "own", "own.custom_model", zoo=zoo, data=data, train=TRAIN).run() as job:
        assert job.wait() == 2
        assert "there is no table ordres" in job.errors
        assert "the database has orders" in job.errors


@pytest.mark.repetition
def test_what_the_writer_wrote_is_trained_on(tmp_path: Path) -> None:
    run(tmp_path, "writes houses.recordio")
    zoo = write_module(tmp_path, "houses", PROGRAMS["a module that trains on houses.recordio"])
    data = {"training": str(tmp_path / "houses.recordio")}
    job_folder = JobFolder.make(tmp_path, "houses", "houses.custom_model", zoo=zoo, data=data, train=TRAIN)
    with job_folder.run() as job:
        assert job.summary()["records_done"] == 120


def readings(folder: Path, change: tuple[str, str] = ("", "")) -> JobFolder:
    np.savez(folder / "readings.npz", rows=np.linspace(0, 1, 80, dtype=np.float32).reshape(40, 2))
    zoo = write_module(folder, "own", PROGRAMS["a module that reads readings.npz"].replace(*change))
    data = dict.fromkeys(("training", "validation", "prediction"), str(folder / "readings.npz"))
    return JobFolder.make(folder, "own", "own.custom_model", zoo=zoo, data=data, train=TRAIN)


def test_a_reader_of_ones_own(tmp_path: Path) -> None:
    with readings(tmp_path).run() as job:
        assert job.summary()["records_done"] == 40


@pytest.mark.repetition
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('[Source("readings", len(self.rows))]', '[("readings", 40)]'), "is ('readings', 40) of type tuple"),
        (
            ("return self.rows[start:end]", "return self.rows[start + 1 : end]"),
            "of the custom reader returned 9 records",
        ),
    ],
)
def test_a_wrong_return_ends_the_job_at_once(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with readings(tmp_path, change).run() as job:
        assert job.wait() == 2
        (ended,) = job.events("job_ended")
        workers = [event for event in job.events("role_started") if event["role"] == "worker"]
    assert said in ended["reason"]
    assert str(tmp_path / "zoo" / "own.py") in ended["reason"]
    assert len(workers) == 1


@pytest.mark.repetition
def test_a_processor_that_raises_ends_the_job_at_once(tmp_path: Path) -> None:
    job_folder = readings(tmp_path)
    with job_folder.run("--set", "data.validation=null") as job:
        job.summary()
    with (tmp_path / "zoo" / "own.py").open("a") as module:
        module.write(
            "\n\nclass PredictionOutputsProcessor:\n    def process(self, predictions, worker_id):\n"
            "        raise KeyError('table')\n"
        )
    with job_folder.predict(tmp_path / "out") as job:
        assert job.wait() == 2
        (ended,) = job.events("job_ended")
        workers = [event for event in job.events("role_started") if event["role"] == "worker"]
        assert "raise KeyError('table')" in json.loads(json.dumps(job.errors))
    assert "PredictionOutputsProcessor.process() raised KeyError: 'table'" in ended["reason"]
    assert len(workers) == 1
