"""The zoo reads data in their published formats, and each of its models learns what is planted in its own data.

Training is in this process, with strategy Local.

`jobs/test_jobs_zoo_models` runs the same jobs as processes, under every strategy.
"""

from __future__ import annotations

import gzip
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.job_folder import MODEL_ZOO
from support.zoo_models import MODELS, make_data

from edl.data import open_reader
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.jobfile.path_resolution import resolve_local_paths
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


@pytest.mark.parametrize("name", MODELS)
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


def feed_all(module: str, path: Path, mode: str = "training") -> list[Any]:
    """What the ``feed`` of a module of the zoo makes of all records of a data set."""
    import tensorflow as tf

    reader = open_reader(path)
    records = [record for source in reader.sources() for record in reader.read(source.name, 0, source.records)]
    feed = import_module(f"model_zoo.{module}").feed
    return list(feed(tf.data.Dataset.from_tensor_slices(records), mode, reader.metadata).as_numpy_iterator())


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
