"""Every built-in format keeps the promises of a reader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.format_files import (
    PNG,
    read_damaged,
    save_arrow,
    save_hugging_face,
    tiny_png,
    write_coco,
    write_tar,
)
from support.reader_contract import FEW_RECORDS, RECORDS, ReaderCase, ReaderContract, WriteOnce
from support.tfrecords import write_tfrecord

from edl.data.block_file import FramingError
from edl.data.reader import CorruptRange
from edl.data.reader_factory import open_reader
from edl.data.recordio.writer import Writer
from edl.data.tfrecord_format import TFRecordFormat, frame_record, masked_crc32c

FIRST, SECOND = range(RECORDS), range(RECORDS, RECORDS + FEW_RECORDS)
OTHER = range(RECORDS + 1)


def text_of_png(image: bytes) -> bytes:
    return image[16 : 16 + int.from_bytes(image[8:12], "big")]


class TestRecordIO(ReaderContract):
    @pytest.fixture
    def local_case(self, tmp_path: Path) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            with Writer(tmp_path / name, chunk_limit=512) as writer:
                for number in numbers:
                    writer.write(b"%d" % number)
            return tmp_path / name

        paths = [write("a.recordio", FIRST), write("b.recordio", SECOND)]

        def replace() -> None:
            with Writer(paths[0], chunk_limit=512) as writer:
                for number in range(RECORDS):
                    writer.write(b"%d" % (number + 1))

        return ReaderCase(paths, {}, int, replace)


class TestCsv(ReaderContract):
    @pytest.fixture
    def local_case(self, tmp_path: Path) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            (tmp_path / name).write_text("n,text\n" + "".join(f'{number},"a\nb"\n' for number in numbers))
            return tmp_path / name

        paths = [write("a.csv", FIRST), write("b.csv", SECOND)]
        return ReaderCase(paths, {}, lambda row: int(row[0]), lambda: write("a.csv", OTHER) and None)


class TestTFRecord(ReaderContract):
    @pytest.fixture(params=["memory", "file"])
    def local_case(self, tmp_path: Path, request: pytest.FixtureRequest) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            return write_tfrecord(tmp_path / name, (b"%d|" % number + bytes(1000) for number in numbers))

        paths = [write("a.tfrecord", FIRST), write("b.tfrecord", SECOND)]
        rewrite = lambda: write("a.tfrecord", OTHER) and None  # noqa: E731
        return ReaderCase(paths, {"index": request.param}, lambda record: int(record.split(b"|")[0]), rewrite)


def test_damaged_tfrecords_of_several_blocks_are_reported_each_in_its_place(tmp_path: Path) -> None:
    file = write_tfrecord(tmp_path / "a.tfrecord", (b"%d|" % number + bytes(1000) for number in range(1000)))
    content = bytearray(file.read_bytes())
    places = [50, 420, 770]
    at, begins = 0, []
    while at < len(content):
        begins.append(at)
        at += 16 + int.from_bytes(content[at : at + 8], "little")
    for number in places:
        content[begins[number] + 500] ^= 1
    file.write_bytes(content)
    reader, corrupt = open_reader(file), list[CorruptRange]()
    records = reader.read(str(file), 0, 1000, corrupt.append)
    assert [int(record.split(b"|")[0]) for record in records] == [n for n in range(1000) if n not in places]
    assert [(each.start, each.end, each.reason) for each in corrupt] == [(n, n + 1, "wrong checksum") for n in places]
    # The block in which a record is: the one that a range of this record alone reports.
    alone = list[CorruptRange]()
    for number in places:
        assert reader.read(str(file), number, number + 1, alone.append) == []
    assert alone == corrupt
    assert len({each.offset for each in corrupt}) == 3


@given(st.lists(st.binary(max_size=40), max_size=12), st.data())
def test_a_changed_byte_of_tfrecord_is_noticed_wherever_it_is(records: list[bytes], data: st.DataObject) -> None:
    content = b"".join(map(frame_record, records))
    framed = TFRecordFormat().find_records(content, check=True)
    assert (framed.packed[:], framed.end, framed.damaged) == (records, len(content), {})
    if not content:
        return
    at = data.draw(st.integers(0, len(content) - 1))
    begins = list(framed.packed.bounds)
    number = max(n for n, begin in enumerate(begins) if begin <= at)
    changed = content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
    if at - begins[number] < 12:
        with pytest.raises(FramingError) as caught:
            TFRecordFormat().find_records(changed, check=True)
        assert caught.value.offset == begins[number]
    else:
        assert list(TFRecordFormat().find_records(changed, check=True).damaged) == [number]


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(0, 60))
def test_complete_tfrecords_are_found_where_the_bytes_end_within_one(records: list[bytes], less: int) -> None:
    content = b"".join(map(frame_record, records))
    content = content[: max(0, len(content) - less)]
    framed = TFRecordFormat().find_records(content, check=True)
    assert framed.packed[:] == records[: len(framed.packed)]
    assert len(content) - framed.end < (
        16 + len(records[len(framed.packed)]) if len(framed.packed) < len(records) else 1
    )


def test_a_tfrecord_that_is_longer_than_allowed_is_no_record() -> None:
    length = (1 << 40).to_bytes(8, "little")
    with pytest.raises(FramingError, match="at most"):
        TFRecordFormat().find_records(length + masked_crc32c(length).to_bytes(4, "little"), check=False)


class TestText(ReaderContract):
    @pytest.fixture(params=["\n", "\r\n"])
    def local_case(self, tmp_path: Path, request: pytest.FixtureRequest) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            lines = [f"{number} {'ä' * 300}" for number in numbers]
            # The last line has no end.
            (tmp_path / name).write_bytes(request.param.join(lines).encode())
            return tmp_path / name

        paths = [write("a.txt", FIRST), write("b.txt", SECOND)]

        def key(record: bytes) -> int:
            number, text = record.decode().split(" ")
            assert text == "ä" * 300
            return int(number)

        return ReaderCase(paths, {}, key, lambda: write("a.txt", OTHER) and None)


class TestJsonLines(ReaderContract):
    @pytest.fixture
    def local_case(self, tmp_path: Path) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            lines = [json.dumps({"n": number, "text": "b" * 500}) for number in numbers]
            # Blank lines are no records, also at the end.
            (tmp_path / name).write_text("\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]) + "\n\n \n")
            return tmp_path / name

        paths = [write("a.jsonl", FIRST), write("b.jsonl", SECOND)]
        rewrite = lambda: write("a.jsonl", OTHER) and None  # noqa: E731
        return ReaderCase(paths, {}, lambda record: int(json.loads(record)["n"]), rewrite)


class TestNpy(ReaderContract):
    @pytest.fixture
    def local_case(self, tmp_path: Path) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            np.save(tmp_path / name, np.repeat(np.array(numbers, ">i8")[:, None], 400, 1))
            return tmp_path / name

        paths = [write("a.npy", FIRST), write("b.npy", SECOND)]
        return ReaderCase(paths, {}, lambda row: int(row[399]), lambda: write("a.npy", OTHER) and None)


class TestNpz(ReaderContract):
    @pytest.fixture(params=[np.savez, np.savez_compressed])
    def local_case(self, tmp_path: Path, request: pytest.FixtureRequest) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            n = np.array(numbers)
            text = np.array([f"ä{number}" for number in numbers])
            request.param(tmp_path / name, n=n, image=np.zeros((len(n), 20, 20, 1), np.float32), text=text)
            return tmp_path / name

        def key(record: Any) -> int:
            assert record["image"].shape == (20, 20, 1)
            assert record["text"].decode() == f"ä{record['n']}"
            return int(record["n"])

        paths = [write("a.npz", FIRST), write("b.npz", SECOND)]
        return ReaderCase(paths, {}, key, lambda: write("a.npz", OTHER) and None)


class TestParquet(ReaderContract):
    @pytest.fixture
    def local_case(self, tmp_path: Path) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            table = pa.table(
                {
                    "n": pa.array(numbers, pa.int32()),
                    "tags": [["ä", "b"][: number % 3] for number in numbers],
                    "pair": pa.array([[number, 0.5] for number in numbers], pa.list_(pa.float32(), 2)),
                    "kind": pa.array([str(number % 5) for number in numbers]).dictionary_encode(),
                    "day": pa.array(numbers, pa.int32()).cast(pa.date32()),
                }
            )
            pq.write_table(table, tmp_path / name, row_group_size=150, write_page_checksum=True)
            return tmp_path / name

        def key(record: Any) -> int:
            n = int(record["n"])
            assert [each.decode() for each in record["tags"]] == ["ä", "b"][: n % 3]
            assert record["pair"].tolist() == [n, 0.5]
            assert (record["kind"], record["day"]) == (b"%d" % (n % 5), n)
            return n

        paths = [write("a.parquet", FIRST), write("b.parquet", SECOND)]
        return ReaderCase(paths, {}, key, lambda: write("a.parquet", OTHER) and None)


class TestImages(ReaderContract):
    @pytest.fixture
    def local_case(self, write_once: WriteOnce) -> ReaderCase:
        return write_once("images", self.write_images)

    def write_images(self, place: Path) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            for number in numbers:
                folder = place / name / ("cat" if number < 400 else "dog")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{number:04}.png").write_bytes(tiny_png(b"%d" % number))
            return place / name

        paths = [write("a", FIRST), write("b", SECOND)]

        def key(record: Any) -> int:
            number = int(text_of_png(record["image"]))
            assert (record["label"], Path(record["path"].decode()).stem) == (number >= 400, f"{number:04}")
            return number

        return ReaderCase(paths, {}, key, (paths[0] / "cat" / "0000.png").unlink)


class TestCoco(ReaderContract):
    @pytest.fixture(params=["beside", "inside", "beside, with an index"])
    def local_case(self, write_once: WriteOnce, request: pytest.FixtureRequest) -> ReaderCase:
        return write_once(request.param, lambda place: self.write_annotated(place, request.param))

    def write_annotated(self, place: Path, where: str) -> ReaderCase:
        options: dict[str, object] = {}
        if where != "inside":
            options = {"annotations": "annotations/instances_{name}.json"}

        def write(name: str, numbers: range) -> Path:
            inside = place / name / "_annotations.coco.json"
            return write_coco(
                place / name, numbers, place / f"annotations/instances_{name}.json" if options else inside
            )

        paths = [write("a", FIRST), write("b", SECOND)]

        def key(record: Any) -> int:
            number = int(text_of_png(record["image"]))
            assert (record["image_id"], record["path"]) == (number + 5, b"deep/%d.png" % number)
            assert record["boxes"].tolist() == [[number, box, 1.5, 2] for box in range(number % 3)]
            assert record["labels"].tolist() == record["crowd"].tolist() == list(range(number % 3))
            return number

        if "index" in where:
            options["index"] = "file"
        return ReaderCase(paths, options, key, lambda: write("a", OTHER) and None)


def test_annotations_of_coco_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_coco(tmp_path / "a", range(5), tmp_path / "a.json")
    options: dict[str, object] = {"annotations": "a.json", "index": "file"}
    expected = open_reader(folder, options).read(str(folder), 0, 5)
    monkeypatch.setattr("edl.data.coco_reader.read_annotations", None)
    records = open_reader(folder, options).read(str(folder), 0, 5)
    assert [record["boxes"].tolist() for record in records] == [record["boxes"].tolist() for record in expected]
    assert [record["path"] for record in records] == [record["path"] for record in expected]


@pytest.mark.parametrize(
    "changed",
    [
        {"bounds": np.array([0, 9])},
        {"boxes": np.zeros((2, 3), np.float32)},
        {"category_ids": np.full(3, 5)},
        {"head": np.frombuffer(b"{}", np.uint8)},
        {"image_ids": np.array([None])},
    ],
)
def test_a_saved_index_of_coco_that_cannot_be_true_is_made_anew(tmp_path: Path, changed: dict[str, Any]) -> None:
    folder = write_coco(tmp_path / "a", range(4), tmp_path / "a.json")
    options: dict[str, object] = {"annotations": "a.json", "index": "file"}
    expected = open_reader(folder, options).read(str(folder), 0, 4)
    saved = tmp_path / "a.json.idx"
    with np.load(saved) as arrays:
        np.savez(tmp_path / "new.npz", **{**arrays, **changed})
    (tmp_path / "new.npz").replace(saved)
    records = open_reader(folder, options).read(str(folder), 0, 4)
    assert [record["boxes"].tolist() for record in records] == [record["boxes"].tolist() for record in expected]


class TestWebDataset(ReaderContract):
    @pytest.fixture(params=["memory", "file"])
    def local_case(self, write_once: WriteOnce, request: pytest.FixtureRequest) -> ReaderCase:
        return write_once(request.param, lambda place: self.write_samples(place, request.param))

    def write_samples(self, place: Path, index: str) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            members = [
                (f"{'long/' * 40}{number}.{extension}", content)
                for number in numbers
                for extension, content in (("PNG", b"%d" % number * 200), ("seg.txt", b""), ("cls", b"%d" % number))
            ]
            # Members that belong to no sample.
            return write_tar(place / name, [("README", b"x"), *members, ("./.hidden.cls", b"x")])

        paths = [write("a.tar", FIRST), write("b.tar", SECOND)]

        def key(record: Any) -> int:
            number = int(record["cls"])
            assert record == {
                "__key__": b"long/" * 40 + b"%d" % number,
                "cls": b"%d" % number,
                "png": b"%d" % number * 200,
                "seg.txt": b"",
            }
            return number

        return ReaderCase(paths, {"index": index}, key, lambda: write("a.tar", range(RECORDS + 30)) and None)


class TestArrow(ReaderContract):
    @pytest.fixture(params=["hugging_face", "stream", "file"])
    def local_case(self, tmp_path: Path, request: pytest.FixtureRequest) -> ReaderCase:
        def table(numbers: range) -> pa.Table:
            return pa.table(
                {
                    "n": pa.array(numbers, pa.int32()),
                    "tags": [["ä", "b"][: number % 3] for number in numbers],
                    "image": [{"bytes": PNG + b"%d" % number, "path": None} for number in numbers],
                }
            )

        def key(record: Any) -> int:
            n = int(record["n"])
            assert [each.decode() for each in record["tags"]] == ["ä", "b"][: n % 3]
            assert record["image"] == PNG + b"%d" % n
            return n

        if request.param == "hugging_face":
            folder = save_hugging_face(tmp_path / "set", [table(FIRST), table(SECOND)], {})
            first = folder / "data-00000-of-00002.arrow"
            return ReaderCase([folder], {}, key, lambda: save_arrow(first, table(OTHER)) and None)
        paths = [tmp_path / "a.arrow", tmp_path / "b.arrow"]
        for path, numbers in zip(paths, (FIRST, SECOND), strict=True):
            save_arrow(path, table(numbers), has_footer=request.param == "file")
        return ReaderCase(paths, {}, key, lambda: save_arrow(paths[0], table(OTHER)) and None)


class TestCompressed(ReaderContract):
    @pytest.fixture(params=["a.txt", "a.jsonl", "a.csv", "a.tfrecord"])
    def local_case(self, tmp_path: Path, request: pytest.FixtureRequest) -> ReaderCase:
        name = request.param

        def write(folder: str, numbers: range) -> Path:
            (tmp_path / folder).mkdir(exist_ok=True)
            plain, path = tmp_path / folder / name, tmp_path / folder / f"{name}.gz"
            if name == "a.tfrecord":
                write_tfrecord(plain, (b"%d|" % number + bytes(1000) for number in numbers))
            else:
                header = "n\n" if name == "a.csv" else ""
                line = '{{"n": {}, "text": "' + "b" * 500 + '"}}\n' if name == "a.jsonl" else "{}\n"
                fill = "" if name in ("a.jsonl", "a.csv") else "|" + "x" * 500
                plain.write_text(header + "".join(line.format(f"{number}{fill}") for number in numbers))
            path.write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
            return path

        def key(record: Any) -> int:
            if name == "a.csv":
                return int(record[0])
            return int(json.loads(record)["n"] if name == "a.jsonl" else record.split(b"|")[0])

        def rewrite() -> None:
            write("one", OTHER)
            case.open()  # another job

        case = ReaderCase([write("one", FIRST), write("two", SECOND)], {"cache": str(tmp_path / "cache")}, key, rewrite)
        return case


@pytest.mark.tensorflow
def test_tfrecord_files_of_tensorflow_are_read(tmp_path: Path) -> None:

    import tensorflow as tf

    written = [bytes([number]) * number for number in range(200)]
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord-00000-of-00001")) as writer:
        for record in written:
            writer.write(record)
    assert read_damaged(tmp_path / "a.tfrecord-00000-of-00001") == (written, [])
