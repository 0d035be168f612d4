"""Whole jobs with tables on the parameter servers: combined tags of any number, users without a bound, a subclass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs.plain_keras import QUIET, checkpoint_arrays, without_edl
from support.job_folder import JobFolder, covers, newest_cut, predictions, write_examples, write_module

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow, pytest.mark.filterwarnings(QUIET)]

TAGS, TRAINED, ASKED = 5000, 300, 40

CLICKS = """
import keras
import tensorflow as tf
from edl.layers import Embedding

FEATURES = {
    "user": tf.io.FixedLenFeature([], tf.int64),
    "tags": tf.io.VarLenFeature(tf.int64),
    "clicked": tf.io.FixedLenFeature([], tf.float32),
}


def functional():
    user = keras.Input([], dtype="int64", name="user")
    tags = keras.Input([None], dtype="int64", name="tags", sparse=True)
    who = Embedding(4, name="user_rows")(user)
    what = Embedding(8, 5000, combiner="mean", name="tag_rows")(tags)
    out = keras.layers.Dense(1, name="out")(keras.layers.Concatenate()([who, what]))
    return keras.Model({"user": user, "tags": tags}, out)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.users = Embedding(4, name="user_rows")
        self.tags = Embedding(8, 5000, combiner="sqrtn", name="tag_rows")
        self.wide = keras.layers.Embedding(5000, 4, name="wide")
        self.out = keras.layers.Dense(1, name="out")

    def call(self, inputs):
        first = tf.sparse.to_dense(inputs["tags"])[:, 0]
        return self.out(tf.concat([self.users(inputs["user"]), self.tags(inputs["tags"]), self.wide(first)], -1))


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels[:, None], predictions, from_logits=True)


def optimizer():
    return keras.optimizers.Adagrad(0.1)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(from_logits=True)}


def feed(dataset, mode, metadata):
    def parse(record):
        example = tf.io.parse_single_example(record, FEATURES)
        features = {"user": example["user"], "tags": example["tags"]}
        return features if mode == "prediction" else (features, example["clicked"])

    return dataset.map(parse)
"""


def clicks(count: int, seed: int) -> list[dict[str, Any]]:
    """Users are any int64; one to four tags."""
    random = np.random.default_rng(seed)
    users = np.array([-5, 0, 2**40, -(2**63), 2**63 - 1, 77])
    return [
        {
            "user": int(random.choice(users)),
            "tags": random.integers(0, 200, random.integers(1, 5)).tolist(),
            "clicked": float(random.integers(0, 2)),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("model", [pytest.param("functional", marks=pytest.mark.repetition), "Subclassed"])
def test_tags_and_users_are_trained_exported_and_predicted(tmp_path: Path, model: str) -> None:
    prediction_records = clicks(ASKED, 2)
    write_examples(tmp_path / "train.recordio", clicks(TRAINED, 1))
    write_examples(tmp_path / "asked.recordio", prediction_records)
    job_folder = JobFolder.make(
        tmp_path,
        "clicks",
        f"clicks.{model}",
        zoo=write_module(tmp_path, "clicks", CLICKS),
        data={"training": str(tmp_path / "train.recordio"), "prediction": str(tmp_path / "asked.recordio")},
        train={"epochs": 3, "minibatch_size": 16, "minibatches_per_task": 8},
        export={},
        ps={"count": 2, "embedding_threshold": "64Ki"},
    )
    with job_folder.run() as run:
        summary, run_dir = run.summary(), run.run_dir
    arrays = checkpoint_arrays(newest_cut(run_dir))
    users = next(arrays[name] for name in arrays if name.endswith("user_rows/embeddings/ids"))
    assert set(users) == {-5, 0, 2**40, -(2**63), 2**63 - 1, 77}
    assert not any("tag_rows" in name or "wide" in name for name in arrays if name.startswith("dense/"))
    with job_folder.predict(tmp_path / "out") as run:
        assert run.summary()["records_done"] == ASKED
    outputs, ranges = predictions(tmp_path / "out")
    assert covers(ranges, ASKED)
    width = max(len(record["tags"]) for record in prediction_records)
    tags = [record["tags"] + [-1] * (width - len(record["tags"])) for record in prediction_records]
    np.savez(tmp_path / "asked.npz", user=[record["user"] for record in prediction_records], tags=tags, outputs=outputs)
    code = """
        import numpy as np, tensorflow as tf
        asked = np.load(sys.argv[1])
        tags = asked["tags"]
        sparse = tf.SparseTensor(np.argwhere(tags >= 0), tags[tags >= 0], tags.shape)
        served = tf.saved_model.load(sys.argv[2])
        found = served.serve({"user": tf.constant(asked["user"]), "tags": sparse})
        np.testing.assert_allclose(found, asked["outputs"], rtol=1e-4, atol=1e-5)
    """
    without_edl(code, tmp_path / "asked.npz", f"{summary['export']}/saved_model", cwd=tmp_path)
