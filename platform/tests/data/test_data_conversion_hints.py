"""Files that EDL does not read: the hint holds a program, and what it writes can be trained on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

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


def test_a_single_image_leads_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(b"\x89PNG")
    assert f"name {tmp_path / 'cat'}" in (conversion_error(tmp_path / "cat" / "0.png").hint or "")


@pytest.mark.tensorflow
def test_compressed_tfrecord(tmp_path: Path) -> None:
    import tensorflow as tf

    written = [serialize_example({"x": number}) for number in range(5)]
    with tf.io.TFRecordWriter(str(tmp_path / "data.tfrecord.gz"), options="GZIP") as writer:
        for record in written:
            writer.write(record)
    assert records(converted(tmp_path / "data.tfrecord.gz")) == written


def test_a_compressed_shard_of_tfrecord_is_not_taken_for_a_plain_one(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord-00000-of-00001.gz").write_bytes(b"\x1f\x8b\x08\x00")
    assert "compressed TFRecord" in (conversion_error(tmp_path / "a.tfrecord-00000-of-00001.gz").hint or "")


def test_other_compressed_files_are_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(b"\x1f\x8b\x08\x00")
    assert "unpack it" in (conversion_error(tmp_path / "a.csv.gz").hint or "")


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
    (tmp_path / "data.avro").write_bytes(b"Obj\x01....")
    hint = conversion_error(tmp_path / "data.avro").hint or ""
    assert "custom_data_reader" in hint
    assert "docs/bring-your-own-data.md" in hint
    with pytest.raises(BadInputError):
        detect_format([tmp_path / "data.avro"])
