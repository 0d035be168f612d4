"""Files that EDL does not read: the hint holds a program, and what it writes can be trained on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.api.errors import BadInputError
from edl.data import Reader, open_reader, serialize_example
from edl.data.data_files import detect_format


def conversion_error(path: Path) -> BadInputError:
    with pytest.raises(BadInputError) as error:
        open_reader(str(path)).sources()
    return error.value


def converted(path: Path) -> Reader:
    """Run the program of the hint, as it is printed, and open what it wrote."""
    hint = conversion_error(path).hint or ""
    program = "\n".join(line[4:] for line in hint.splitlines() if line.startswith("    "))
    (target,) = re.findall(r"Writer\('(.*)'\)", program)
    exec(compile(program, "hint", "exec"), {})
    return open_reader(target)


def records(reader: Reader) -> list[Any]:
    return [record for source in reader.sources() for record in reader.read(source.name, 0, source.records)]


def test_npz(tmp_path: Path) -> None:
    images, labels = np.arange(12, dtype=np.float32).reshape(3, 2, 2), np.array([5, 6, 7])
    np.savez(tmp_path / "data.npz", image=images, label=labels)
    expected = [
        serialize_example({"image": image.ravel().tolist(), "label": [int(label)]})
        for image, label in zip(images, labels, strict=True)
    ]
    assert records(converted(tmp_path / "data.npz")) == expected


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.arange(6.0).reshape(3, 2))
    assert records(converted(tmp_path / "data.npy")) == [
        serialize_example({"value": [2.0 * at, 2.0 * at + 1]}) for at in range(3)
    ]


@pytest.mark.parametrize("named", ["folder of classes", "folder", "file"])
def test_images(tmp_path: Path, named: str) -> None:
    for kind in ("cat", "dog"):
        for number in range(2):
            file = tmp_path / "pets" / kind / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"\x89PNG" + kind.encode() + bytes([number]))
    pets = tmp_path / "pets"
    path = {"folder of classes": pets, "folder": pets / "dog", "file": pets / "dog" / "0.png"}[named]
    found = records(converted(path))
    kinds = ("cat", "dog") if path == pets else ("dog",)
    assert found == [
        serialize_example({"image": b"\x89PNG" + kind.encode() + bytes([number]), "label": label})
        for label, kind in enumerate(kinds)
        for number in range(2)
    ]


@pytest.mark.tensorflow
@pytest.mark.parametrize(("name", "compression"), [("data.tfrecord", ""), ("data.tfrecord.gz", "GZIP")])
def test_tfrecord(tmp_path: Path, name: str, compression: str) -> None:
    import tensorflow as tf

    written = [serialize_example({"x": number}) for number in range(5)]
    with tf.io.TFRecordWriter(str(tmp_path / name), options=compression) as writer:
        for record in written:
            writer.write(record)
    assert records(converted(tmp_path / name)) == written


@pytest.mark.parametrize("text", ["name,age\nJos\xe9,30\n", "pr\xe9nom,age\nJos,30\n"], ids=["cell", "header"])
def test_latin_1(tmp_path: Path, text: str) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInputError) as error:
        records(open_reader(str(file)))
    (command,) = re.findall(r"iconv .*", error.value.hint or "")
    subprocess.run(["sh", "-c", command], check=True)
    rows = records(open_reader(str(tmp_path / "people.utf8.csv")))
    assert rows == [line.split(",") for line in text.splitlines()[1:]]


def test_what_nothing_is_known_of_leads_to_a_reader_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1....")
    hint = conversion_error(tmp_path / "data.parquet").hint or ""
    assert "custom_data_reader" in hint
    assert "docs/bring-your-own-data.md" in hint
    with pytest.raises(BadInputError):
        detect_format([tmp_path / "data.parquet"])
