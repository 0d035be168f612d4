"""The zoo reads data in their published formats, and each of its models learns what is planted in its own data.

Training is in this process, with strategy Local.

`jobs/test_jobs_zoo_models` runs the same jobs as processes, under every strategy.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.job_folder import MODEL_ZOO
from support.zoo_models import MODELS, TESTED_ELSEWHERE, make_data

from edl.data import open_reader
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.jobfile.path_resolution import resolve_local_paths
from edl.jobfile.zoo_lookup import find_model_function
from edl.storage.run_directory import create_run

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]


@pytest.fixture(autouse=True)
def zoo_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODEL_ZOO.parent))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo-data")


LARGE = ("cifar10_mobilenet_v2", "resnet50")
"""Tracing a step of these takes longer than all others together take."""
IN_EVERY_RUN = ("census_wide_and_deep",)
"""Tests of whole jobs have one on clicks, and those on images and ratings; the others are repetitions."""


def _mark(name: str) -> pytest.MarkDecorator | tuple[()]:
    return () if name in IN_EVERY_RUN else pytest.mark.repetition


@pytest.mark.parametrize("name", [pytest.param(name, marks=_mark(name)) for name in MODELS])
def test_a_model_of_the_zoo_learns(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import keras

    from edl.worker import worker_process
    from edl.worker.local_strategy.local_main import main

    monkeypatch.setattr(worker_process, "set_thread_counts", lambda workers: None)  # once a process only
    keras.utils.clear_session()
    model = MODELS[name]
    if not (data / model.data).exists():
        make_data(model.data, data)
    run = create_run(tmp_path / "job")
    spec = resolve_local_paths(load_job_file(model.job_file, model.job_settings(data, "Local")), model.job_file.parent)
    run.spec.write_text(json.dumps(dump_job_spec(spec)))
    code = main({"EDL_RUN_DIR": str(run.path), "EDL_JSON": "1"})
    out = capsys.readouterr()
    assert code == 0, out.err
    summary = json.loads(out.out.splitlines()[-1])
    assert summary["records_lost"] == 0
    assert summary["metrics"][model.metric] > model.least, summary["metrics"]


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in MODEL_ZOO.glob("*/job.yaml")))
def test_a_job_file_names_a_model_that_the_readme_has(folder: str) -> None:
    definition = load_job_file(MODEL_ZOO / folder / "job.yaml").model.definition
    assert find_model_function(MODEL_ZOO, definition).may_define("feed")
    assert f"`{definition}`" in (MODEL_ZOO / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_all_models_that_are_tested() -> None:
    readme = (MODEL_ZOO / "README.md").read_text(encoding="utf-8")
    models = [*MODELS.values(), *TESTED_ELSEWHERE.values()]
    assert [model.definition for model in models if f"| `{model.definition}` |" not in readme] == []


@pytest.mark.parametrize("name", ["census", "heart", "text"])
def test_its_data_are_made_by_the_command_of_its_job_file(name: str, tmp_path: Path) -> None:
    command = f"python -m model_zoo.{name}.make_data demo-data/{name}"
    assert command in (MODEL_ZOO / name / "job.yaml").read_text(encoding="utf-8")
    words = [sys.executable, *command.split()[1:3], str(tmp_path), "--records", "20"]
    subprocess.run(words, cwd=MODEL_ZOO.parent, check=True, timeout=60)
    assert [source.records for source in open_reader(tmp_path / "train").sources()] == [20]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("census.make_data", ["out", "--source", "nosuch"], "nosuch/adult.data: No such file or directory"),
        ("heart.make_data", ["out", "--source", "heart.csv"], "heart.csv: no column ca, chol"),
        ("heart.make_data", ["out", "--records", "0"], "argument --records: found 0, must be at least 1"),
        ("text.make_data", [".", "--records", "9"], "is not empty: name another folder, or remove it first"),
        ("clicks.criteo", ["out", "nosuch.gz"], "nosuch.gz: No such file or directory"),
    ],
)
def test_bad_input_of_such_a_command_is_one_line(module: str, arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "heart.csv").write_text("age,sex\n63,1\n")
    command = [sys.executable, "-m", f"model_zoo.{module}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(MODEL_ZOO.parent)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("Traceback")) == (2, 0), ended.stderr
    assert said in ended.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("out/*/*")), "the next attempt may use the folder"


def feed_all(module: str, path: Path, mode: str = "training") -> list[Any]:
    """What the ``feed`` of a module of the zoo makes of all records of a data set."""
    import tensorflow as tf

    reader = open_reader(path)
    records = [record for source in reader.sources() for record in reader.read(source.name, 0, source.records)]
    feed = import_module(f"model_zoo.{module}").feed
    return list(feed(tf.data.Dataset.from_tensor_slices(records), mode, reader.metadata).as_numpy_iterator())


@pytest.mark.repetition
@pytest.mark.parametrize("name", LARGE)
def test_a_large_model_takes_what_its_feed_returns(name: str, data: Path) -> None:
    import keras
    import numpy as np

    model = MODELS[name]
    if not (data / model.data).exists():
        make_data(model.data, data)
    *parts, _ = model.definition.split(".")
    module = import_module(".".join(["model_zoo", *parts]))
    examples = feed_all(".".join(parts), data / model.data / "test")[:4]
    images, labels = np.stack([image for image, _ in examples]), np.array([label for _, label in examples])
    network = module.custom_model(**model.params)
    outputs = network(images, training=True)
    assert outputs.shape == (4, 10)
    assert np.isfinite(module.loss(labels, outputs)).all()
    normalizations = [layer for layer in network.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert {layer.momentum for layer in normalizations} == {0.9}


def test_criteos_log(tmp_path: Path) -> None:
    ids = ["68fd1e64", *[""] * 24, "68fd1e64"]
    lines = ["\t".join([str(number % 2), "1", "-2", "", *["7"] * 10, *ids]) for number in range(20)]
    log = tmp_path / "train.txt.gz"
    log.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    import_module("model_zoo.clicks.criteo").main(tmp_path / "clicks", log, vocabulary=260)
    assert [source.records for source in open_reader(tmp_path / "clicks" / "train").sources()] == [18]
    features, label = feed_all("dcn.dcn", tmp_path / "clicks" / "test")[1]
    assert label == 1
    assert features["numbers"].tolist() == pytest.approx([0.6931, 0, 0, *[2.0794] * 10], abs=1e-4)
    assert [int(number) // 10 for number in features["ids"]] == list(range(26)), "each feature has its own rows"
    assert features["ids"][0] % 10 == features["ids"][25] % 10


def test_a_broken_line_of_criteos_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1\t2\n" * 10)
    with pytest.raises(ValueError, match="2 cells of 40: '1"):
        import_module("model_zoo.clicks.criteo").main(tmp_path / "clicks", tmp_path / "log")


ADULT = "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Not-in-family, White, Male, 2174, 0, 40, Cuba, {}\n"


def test_the_census(tmp_path: Path) -> None:
    (tmp_path / "adult.data").write_text(ADULT.format(">50K") * 3 + "\n")
    (tmp_path / "adult.test").write_text(
        "|1x3 Cross validator\n" + ADULT.format("<=50K.") + ADULT.format(">50K.") + "\n"
    )
    import_module("model_zoo.census.make_data").main(tmp_path / "out", source=tmp_path)
    assert [source.records for source in open_reader(tmp_path / "out" / "train").sources()] == [3]
    (features, low), (_, high) = feed_all("census.dnn", tmp_path / "out" / "test")
    assert (low, high) == (0, 1)
    assert (features["workclass"], features["occupation"], features["capital_gain"]) == ([b"State-gov"], [b"?"], [2174])
    assert feed_all("census.dnn", tmp_path / "out" / "test", "prediction")[0].keys() == features.keys()


def test_a_broken_row_of_the_census_is_named(tmp_path: Path) -> None:
    (tmp_path / "adult.data").write_text("39, State-gov\n")
    with pytest.raises(ValueError, match="2 cells of 15"):
        import_module("model_zoo.census.make_data").main(tmp_path / "out", source=tmp_path)


def test_heart_diseases(tmp_path: Path) -> None:
    row = "63,1,1,145,233,1,2,150,0,2.3,3,0,{},{}\n"
    header = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target\n"
    (tmp_path / "heart.csv").write_text(header + row.format("fixed", 0) * 5 + row.format("1", 1) * 5)
    import_module("model_zoo.heart.make_data").main(tmp_path / "out", source=tmp_path / "heart.csv")
    assert [source.records for source in open_reader(tmp_path / "out" / "test").sources()] == [2]
    labels = {
        str(features["thal"][0]): label for features, label in feed_all("heart.heart", tmp_path / "out" / "train")
    }
    assert labels == {"b'fixed'": 0, "b'1'": 1}


def test_a_missing_column_of_heart_diseases_is_named(tmp_path: Path) -> None:
    (tmp_path / "heart.csv").write_text("age,sex\n63,1\n")
    with pytest.raises(ValueError, match="no column ca, chol"):
        import_module("model_zoo.heart.make_data").main(tmp_path / "out", source=tmp_path / "heart.csv")


def test_cifar10_in_its_binary_version(tmp_path: Path) -> None:
    planes = bytes([250] * 1024 + [130] * 1024 + [10] * 1024)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (tmp_path / f"{name}.bin").write_bytes(b"\x03" + planes + b"\x07" + planes)
    import_module("model_zoo.cifar10.make_data").main(tmp_path / "out", source=tmp_path)
    assert [source.records for source in open_reader(tmp_path / "out" / "train").sources()] == [2] * 5
    evaluated = feed_all("cifar10.resnet20", tmp_path / "out" / "test", "evaluation")
    assert [label for _, label in evaluated] == [3, 7]
    assert evaluated[0][0].shape == (32, 32, 3)
    assert evaluated[0][0][5, 9].tolist() == pytest.approx([250 / 127.5 - 1, 130 / 127.5 - 1, 10 / 127.5 - 1], abs=1e-5)
    trained = feed_all("cifar10.resnet20", tmp_path / "out" / "train")
    assert (trained[0][0].shape, len(trained)) == ((32, 32, 3), 10)


def test_a_file_of_another_version_of_cifar10_is_named(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(b"\x80\x02}q\x01")
    with pytest.raises(ValueError, match=r"data_batch_1\.bin: 5 bytes are no whole number of images"):
        import_module("model_zoo.cifar10.make_data").main(tmp_path / "out", source=tmp_path)


def write_image(path: Path, height: int, width: int) -> None:
    import numpy as np
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, width // 4 : -(width // 4)] = 255  # what is in the middle stays
    encode = tf.io.encode_png if path.suffix == ".png" else tf.io.encode_jpeg
    path.write_bytes(encode(pixels).numpy())


def test_a_folder_of_images(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("val", 1)):
        for kind in ("cat", "dog"):
            for number in range(count):
                write_image(tmp_path / part / kind / f"{number}.{'png' if number else 'JPEG'}", 24, 48)
            (tmp_path / part / kind / "notes.txt").write_text("no image")
    import_module("model_zoo.resnet50.make_data").main(tmp_path / "out", source=tmp_path, size=12)
    assert (tmp_path / "out" / "classes.txt").read_text().split() == ["cat", "dog"]
    trained = feed_all("resnet50.resnet50", tmp_path / "out" / "train")
    assert sorted(label for _, label in trained) == [0, 0, 0, 1, 1, 1]
    evaluated = feed_all("resnet50.resnet50", tmp_path / "out" / "test", "evaluation")
    assert {image.shape for image, _ in [*trained, *evaluated]} == {(12, 12, 3)}
    assert evaluated[0][0].min() > 0.95, "the middle of the image, in white"


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    with pytest.raises(ValueError, match=r"broken\.jpg is no image"):
        import_module("model_zoo.resnet50.make_data").main(tmp_path / "out", source=tmp_path)


def test_news_in_rows(tmp_path: Path) -> None:
    rows = '"3","Wall St. Bears","Short-sellers\\\\are ""seeing"" green, again."\n"1","Ulm","No news"\n'
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text(rows)
    import_module("model_zoo.text.make_data").main(tmp_path / "out", source=tmp_path)
    fed = feed_all("text.transformer", tmp_path / "out" / "train")
    assert fed == [(b'Wall St. Bears Short-sellers are "seeing" green, again.', 2), (b"Ulm No news", 0)]
    assert (tmp_path / "out" / "classes.txt").read_text().splitlines() == ["class 1", "class 2", "class 3"]


def test_reviews_in_files(tmp_path: Path) -> None:
    for name in ("train/neg/0.txt", "train/pos/0.txt", "train/unsup/0.txt", "test/neg/0.txt", "test/pos/0.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"One\n{name}")
    import_module("model_zoo.text.make_data").main(tmp_path / "out", source=tmp_path)
    fed = feed_all("text.transformer", tmp_path / "out" / "train")
    assert fed == [(b"One train/neg/0.txt", 0), (b"One train/pos/0.txt", 1)]
    assert (tmp_path / "out" / "classes.txt").read_text().split() == ["neg", "pos"]


def test_words_become_the_same_numbers_in_any_text() -> None:
    import numpy as np
    import tensorflow as tf

    transformer = import_module("model_zoo.text.transformer")
    ids = np.asarray(transformer.HashedWords(1000, 4)(tf.constant(["Käse, bread", "BREAD: käse?", "", "a b c d e"])))
    assert ids.shape == (4, 4)
    assert ids[0].tolist() == [*ids[1][[1, 0]], 0, 0]
    assert not ids[2].any()
    assert ids[3].all()
    model = transformer.custom_model(vocabulary=1000, length=4, dim=8, heads=2, blocks=1)
    assert np.isfinite(model.predict_on_batch(np.array(["", "word"]))).all(), "a text without words has no mean"


def test_data_of_two_origins_are_never_mixed(tmp_path: Path) -> None:
    import_module("model_zoo.heart.make_data").main(tmp_path / "out", records=20)
    with pytest.raises(ValueError, match="out is not empty: name another folder"):
        import_module("model_zoo.heart.make_data").main(tmp_path / "out", records=20)
