"""What `edl data` writes: sane digits, exact counts, reproducible bytes, complete directories."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from edl.api.errors import BadInputError, EdlError, StorageError
from edl.cli.data import app
from edl.data import dataset_writer, sample_datasets
from edl.data.reader_factory import open_reader
from edl.data.sample_datasets import (
    DigitImages,
    DigitTable,
    IrisTable,
    MnistUnavailableError,
    enlarge_digits,
    load_digits,
    resize_images,
    split_digits,
)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def records(directory: Path) -> list[object]:
    reader = open_reader(directory)
    return [record for source in reader.sources() for record in reader.read(source.name, 0, source.records)]


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_the_offline_digits_are_digits() -> None:
    digits = load_digits()
    assert digits.images.shape == (1797, 28, 28)
    assert digits.images.dtype == np.uint8
    assert (digits.images.min(), digits.images.max()) == (0, 255)
    assert np.bincount(digits.labels).min() > 150
    # A digit is nearer to the mean of its class than to others': the labels belong to the images.
    means = np.stack([digits.images[digits.labels == kind].mean(axis=0) for kind in range(10)])
    distances = ((digits.images[:, None].astype(np.float32) - means) ** 2).sum(axis=(2, 3))
    assert (distances.argmin(axis=1) == digits.labels).mean() > 0.85


def test_resizing_keeps_constants_and_means_and_does_not_overshoot() -> None:
    rng = np.random.default_rng(1)
    images = rng.uniform(0, 255, (5, 8, 8))
    resized = resize_images(images, 28)
    assert np.allclose(resize_images(np.full((1, 8, 8), 7.0), 28), 7.0)
    assert resized.min() >= images.min()
    assert resized.max() <= images.max()
    assert np.allclose(resize_images(images, 8), images)


def test_a_split_holds_back_a_share_and_loses_nothing() -> None:
    digits = load_digits()
    training, validation = split_digits(digits, 0.2, np.random.default_rng(0))
    assert (len(training), len(validation)) == (1438, 359)
    both = np.concatenate([training.images, validation.images]).reshape(1797, -1)
    assert np.array_equal(np.sort(both.sum(axis=1)), np.sort(digits.images.reshape(1797, -1).sum(axis=1)))


@pytest.mark.parametrize("count", [1, 10, 25])
def test_enlarging_gives_exactly_so_many_and_copies_evenly(count: int) -> None:
    digits = load_digits().select_images(np.arange(10))  # the digits 0 to 9
    larger = enlarge_digits(digits, count, np.random.default_rng(0))
    assert len(larger) == count
    copies = np.bincount(larger.labels, minlength=10)
    assert copies.max() - copies.min() <= 1
    for image, label in zip(larger.images, larger.labels, strict=True):
        padded = np.pad(digits.images[label].astype(int), 2)
        moved = [padded[down : down + 28, right : right + 28] for down in range(5) for right in range(5)]
        nearest = min(float(np.abs(image.astype(int) - other).mean()) for other in moved)
        assert nearest < 8, "a copy is its original, moved by at most two pixels, with little noise"


def test_offline_mnist_says_so_and_can_be_parsed(tmp_path: Path) -> None:
    output = run("mnist", tmp_path, "--source", "digits", "--records-per-file", 1000)
    assert "scikit-learn's 8x8 digits" in output
    assert "1,438" in output
    assert [path.name for path in sorted((tmp_path / "train").iterdir())] == [
        "data-00000.recordio",
        "data-00001.recordio",
    ]
    assert len(records(tmp_path / "train")) == 1438
    assert len(records(tmp_path / "test")) == 359


@pytest.mark.tensorflow
def test_records_are_what_the_mnist_zoo_expects(tmp_path: Path) -> None:
    import tensorflow as tf

    run("mnist", tmp_path, "--source", "digits", "--records", 50)
    data = sample_datasets.make_mnist_dataset("digits", validation_share=0.2, records=50, seed=0).training
    assert isinstance(data, DigitTable)
    shape = {"image": tf.io.FixedLenFeature([28, 28], tf.float32), "label": tf.io.FixedLenFeature([1], tf.int64)}
    parsed = tf.io.parse_example(records(tmp_path / "train"), shape)
    assert np.array_equal(parsed["image"].numpy(), data.digits.images)
    assert np.array_equal(parsed["label"].numpy()[:, 0], data.digits.labels)


def test_csv_has_the_label_and_the_pixels(tmp_path: Path) -> None:
    run("mnist", tmp_path, "--source", "digits", "--format", "csv", "--records", 20)
    reader = open_reader(tmp_path / "train")
    assert reader.metadata.column_names == ("label", *(f"pixel{number}" for number in range(784)))
    assert all(0 <= int(cell) <= 255 for row in records(tmp_path / "train") for cell in row)  # type: ignore[attr-defined]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip"])
@pytest.mark.first_cases(1)
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, compression: str) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(
            "mnist",
            tmp_path / name,
            "--source",
            "digits",
            "--records",
            40,
            "--seed",
            seed,
            "--compression",
            compression,
        )
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert (
        contents(tmp_path / "a")["train/data-00000.recordio"] != contents(tmp_path / "c")["train/data-00000.recordio"]
    )


def test_iris(tmp_path: Path) -> None:
    output = run("iris", tmp_path)
    assert "iris" in output
    reader = open_reader(tmp_path / "train")
    assert reader.metadata.column_names == ("sepal_length", "sepal_width", "petal_length", "petal_width", "class")
    assert len(records(tmp_path / "train")) == 120
    assert len(records(tmp_path / "test")) == 30
    run("iris", tmp_path, "--force", "--format", "recordio")
    assert sorted(contents(tmp_path)) == ["test/data-00000.recordio", "train/data-00000.recordio"]


def test_a_directory_in_use_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    monkeypatch.setattr(sample_datasets, "make_mnist_dataset", None)
    with pytest.raises(BadInputError, match="not an empty directory"):
        run("mnist", tmp_path)
    with pytest.raises(BadInputError, match="not an empty directory"):
        run("mnist", tmp_path / "mine.txt")
    assert contents(tmp_path) == {"mine.txt": b"precious"}


def test_force_replaces_train_and_test_only(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "old.csv").write_text("a\n1\n")
    run("iris", tmp_path, "--force")
    assert sorted(contents(tmp_path)) == ["mine.txt", "test/data-00000.csv", "train/data-00000.csv"]


def test_a_failure_leaves_no_half_directory(tmp_path: Path) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    data = sample_datasets.make_iris_dataset(validation_share=0.2, seed=0)
    with pytest.raises(StorageError, match="No space left"):
        dataset_writer.write_dataset(data, tmp_path / "out", dataset_writer.DatasetLayout(), full)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [("--validation", "0"), ("--validation", "1.5"), ("--format", "csv", "--compression", "gzip")],
)
def test_impossible_wishes_are_bad_input(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError):
        run("mnist", tmp_path / "out", "--source", "digits", *arguments)
    assert not (tmp_path / "out").exists()


def test_mnist_is_taken_where_it_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    some = DigitImages(np.zeros((6, 28, 28), np.uint8), np.arange(6))
    monkeypatch.setattr(sample_datasets, "load_mnist", lambda: (some, some.select_images(np.arange(2))))
    data = sample_datasets.make_mnist_dataset("auto", validation_share=0.2, records=None, seed=0)
    assert data.origin == "MNIST, through keras.datasets"
    assert (len(data.training), len(data.validation)) == (6, 2)


def test_without_a_network_auto_falls_back_and_keras_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(sample_datasets, "_MNIST_URL", "http://127.0.0.1:1/sample_datasets.npz")
    data = sample_datasets.make_mnist_dataset("auto", validation_share=0.2, records=None, seed=0)
    assert "MNIST is not available: the network failed" in data.origin
    assert isinstance(data.training, DigitTable)
    with pytest.raises(MnistUnavailableError, match="--source digits"):
        sample_datasets.make_mnist_dataset("keras", validation_share=0.2, records=None, seed=0)


def test_a_keras_that_fails_is_reported_with_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sample_datasets, "_is_cached", lambda: True)
    monkeypatch.setattr(sample_datasets, "_LOAD_SCRIPT", "raise ValueError('no such data')")
    with pytest.raises(EdlError, match=r"keras\.datasets failed \(ValueError: no such data\)"):
        sample_datasets.load_mnist()


def test_a_network_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(sample_datasets, "_PROBE_SCRIPT", "import time; time.sleep(60)")
    monkeypatch.setattr(sample_datasets, "_PROBE_SECONDS", 0.1)
    with pytest.raises(MnistUnavailableError, match="the network did not answer"):
        sample_datasets.load_mnist()


def test_what_keras_delivers_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import sys, numpy
x, y = numpy.full((5, 28, 28), 9, "uint8"), numpy.arange(5, dtype="uint8")
numpy.savez(sys.argv[1], x=x, y=y, vx=x[:2], vy=y[:2])
"""
    monkeypatch.setattr(sample_datasets, "_is_cached", lambda: True)
    monkeypatch.setattr(sample_datasets, "_LOAD_SCRIPT", script)
    training, test = sample_datasets.load_mnist()
    assert training.images.shape == (5, 28, 28)
    assert training.images.max() == 9
    assert training.labels.tolist() == [0, 1, 2, 3, 4]
    assert test.labels.tolist() == [0, 1]


def test_iris_classes_fit_their_flowers() -> None:
    training = sample_datasets.make_iris_dataset(validation_share=0.2, seed=3).training
    assert isinstance(training, IrisTable)
    petals = {
        kind: [row[2] for row, k in zip(training.lengths, training.classes, strict=True) if k == kind]
        for kind in range(3)
    }
    assert max(petals[0]) < min(petals[1]), "setosa's petals are the shortest"


def test_the_command_module_is_light() -> None:
    script = (
        "import sys, edl.cli.data\n"
        "print([m for m in ('numpy', 'tensorflow', 'keras', 'google.protobuf', 'grpc', 'sklearn') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout == "[]\n"
