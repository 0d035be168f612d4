"""Every built-in format keeps the promises of a reader."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.reader_contract import FEW_RECORDS, RECORDS, ReaderCase, ReaderContract, WriteOnce
from support.text_keys import missing_keys
from support.tfrecords import write_tfrecord

from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec
from edl.data.block_file import FramingError
from edl.data.coco_masks import unpack_runs
from edl.data.data_files import decode_index, encode_index, find_data
from edl.data.image_content import find_image_fault
from edl.data.image_folder import list_images
from edl.data.parquet_reader import ParquetReader
from edl.data.reader import CorruptRange
from edl.data.reader_factory import check_reader_options, open_reader, shuffled_order
from edl.data.recordio.writer import Writer
from edl.data.shuffled_reader import ShuffledReader
from edl.data.tfrecord_format import TFRecordFormat, frame_record, masked_crc32c
from edl.worker.data_readers import open_data_set

FIRST, SECOND = range(RECORDS), range(RECORDS, RECORDS + FEW_RECORDS)
OTHER = range(RECORDS + 1)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def tiny_png(text: bytes = b"") -> bytes:
    """A file that has the parts of an image, and a text in place of pixels."""
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"tEXt", text) + png_chunk(b"IEND", b"")


def text_of_png(image: bytes) -> bytes:
    return image[16 : 16 + int.from_bytes(image[8:12], "big")]


PNG = tiny_png()


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
    kept = reader.read(str(file), 0, 1000, corrupt.append)
    assert [int(record.split(b"|")[0]) for record in kept] == [n for n in range(1000) if n not in places]
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
    found = TFRecordFormat().find_records(content, check=True)
    assert (found.packed[:], found.end, found.damaged) == (records, len(content), {})
    if not content:
        return
    at = data.draw(st.integers(0, len(content) - 1))
    begins = list(found.packed.bounds)
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
    found = TFRecordFormat().find_records(content, check=True)
    assert found.packed[:] == records[: len(found.packed)]
    assert len(content) - found.end < (16 + len(records[len(found.packed)]) if len(found.packed) < len(records) else 1)


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


def write_coco(folder: Path, numbers: range, file: Path, **changed: Any) -> Path:
    """Images with as many boxes as their number modulo 3, listed backwards."""
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (folder / "deep" / f"{number}.png").write_bytes(tiny_png(b"%d" % number))
    document = {
        "images": [{"id": number + 5, "file_name": f"deep/{number}.png"} for number in reversed(numbers)],
        "categories": [{"id": 90, "name": "dog"}, {"id": 7, "name": "cat"}],
        "annotations": [
            {"image_id": number + 5, "category_id": 90 if box else 7, "bbox": [number, box, 1.5, 2], "iscrowd": box}
            for box in range(2)
            for number in numbers
            if box < number % 3
        ],
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**document, **changed}))
    return folder


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
    found = open_reader(folder, options).read(str(folder), 0, 5)
    assert [record["boxes"].tolist() for record in found] == [record["boxes"].tolist() for record in expected]
    assert [record["path"] for record in found] == [record["path"] for record in expected]


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
    found = open_reader(folder, options).read(str(folder), 0, 4)
    assert [record["boxes"].tolist() for record in found] == [record["boxes"].tolist() for record in expected]


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


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


def save_arrow(path: Path, table: pa.Table, batch_rows: int = 150, *, has_footer: bool = False) -> Path:
    with (pa.ipc.new_file if has_footer else pa.ipc.new_stream)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return path


def save_hugging_face(folder: Path, tables: list[pa.Table], features: dict[str, object]) -> Path:
    """What ``Dataset.save_to_disk`` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        save_arrow(folder / name, table)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features, "splits": None}))
    return folder


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


# --------------------------------------------------------------------------------------------------
# What is damaged, and what cannot be read.


def read_damaged(path: Path, **options: Any) -> tuple[list[Any], list[CorruptRange]]:
    """All records that can be read, and what was reported."""
    reader, corrupt = open_reader(path, options), []
    (source,) = reader.sources()
    return list(reader.read(source.name, 0, source.records, corrupt.append)), corrupt


def write_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refuse(path: Path, **options: Any) -> BadInputError:
    """The error of a file that cannot be read."""
    reader = open_reader(path, options)

    def read_all() -> None:
        for source in reader.sources():
            reader.read(source.name, 0, source.records)

    with pytest.raises(BadInputError) as refused:
        read_all()
    return refused.value


def test_a_tfrecord_with_another_checksum_is_reported_alone(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"%04d" % number for number in range(9)])
    content = bytearray(path.read_bytes())
    content[20 * 4 + 13] ^= 1
    path.write_bytes(content)
    found, corrupt = read_damaged(path)
    assert [int(record) for record in found] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert [(each.start, each.end, each.reason) for each in corrupt] == [(4, 5, "wrong checksum")]
    assert "record 4 cannot be read" in str(refuse(path))


@pytest.mark.parametrize("cut", [1, 5, 19])
def test_a_truncated_tfrecord_file_names_the_byte(tmp_path: Path, cut: int) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"%04d" % number for number in range(9)])
    path.write_bytes(path.read_bytes()[:-cut])
    error = refuse(path)
    assert "no record at byte 160: the file ends within a record" in str(error)
    assert error.where == str(path)


def test_a_tfrecord_length_that_was_overwritten_allocates_nothing(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"%04d" % number for number in range(3)])
    content = bytearray(path.read_bytes())
    content[20:28] = b"\xff" * 8
    path.write_bytes(content)
    assert "no record at byte 20: its length has a wrong checksum" in str(refuse(path))


def test_large_tfrecords_span_what_is_read_at_once(tmp_path: Path) -> None:
    sizes = [3, 5_000_000, 7, 9_000_000, 0, 11]
    path = write_tfrecord(tmp_path / "a.tfrecord", [bytes([number]) * size for number, size in enumerate(sizes)])
    found, _ = read_damaged(path)
    assert [(len(record), record[:1]) for record in found] == [
        (s, bytes([n])[: min(s, 1)]) for n, s in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    "changed",
    [{"offsets": [0, 99]}, {"first_records": [0, 5, 2]}, {"offsets": "x"}, {"first_records": [-1]}, {"offsets": None}],
)
def test_a_saved_index_that_cannot_be_true_is_made_anew(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"%04d" % number for number in range(9)])
    expected, _ = read_damaged(path, index="file")
    saved = tmp_path / "a.tfrecord.idx"
    saved.write_bytes(encode_index({**decode_index(saved.read_bytes()), **changed}))
    assert read_damaged(path, index="file") == (expected, [])


@pytest.mark.parametrize("suffix", [".txt", ".tfrecord", ".recordio", ".tar"])
def test_a_saved_index_with_another_digit_is_made_anew(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".tar":
        write_tar(path, [(f"{number}.cls", b"%d" % number) for number in range(300)])
    elif suffix == ".recordio":
        with Writer(path, chunk_limit=100) as writer:
            for number in range(300):
                writer.write(b"%d" % number)
    else:
        lines = [b"%d" % number for number in range(300)]
        path.write_bytes(b"".join(map(frame_record, lines)) if suffix == ".tfrecord" else b"\n".join(lines))
    whole = read_damaged(path, index="file")
    saved = tmp_path / f"a{suffix}.idx"
    content = saved.read_bytes()
    for digit in [at for at in range(len(content)) if content[at : at + 1].isdigit()][-90::7]:
        changed = b"8" if content[digit : digit + 1] == b"1" else b"1"
        saved.write_bytes(content[:digit] + changed + content[digit + 1 :])
        assert read_damaged(path, index="file") == whole
        assert saved.read_bytes() == content


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\nb\n")
    assert read_damaged(tmp_path / "a.txt") == ([b"a", b"b"], [])


@given(st.lists(st.text(st.characters(blacklist_characters="\r\n\ufeff", blacklist_categories=["Cs"]))), st.booleans())
def test_text_is_what_was_written(lines: list[str], has_end: bool) -> None:
    written = "\n".join(lines) + ("\n" if has_end and lines else "")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_bytes(written.encode())
        found, corrupt = read_damaged(path)
    expected = written.split("\n")
    assert [record.decode() for record in found] == (expected if expected[-1] else expected[:-1])
    assert corrupt == []


def test_lines_that_are_not_utf8_or_no_json_are_reported_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\n\xff\nb\n")
    found, corrupt = read_damaged(tmp_path / "a.txt")
    assert (found, [each.start for each in corrupt]) == ([b"a", b"b"], [1])
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": \n[1]\n\n{"b": {}}\n')
    found, corrupt = read_damaged(tmp_path / "a.jsonl")
    assert [json.loads(record) for record in found] == [{"a": 1}, {"b": {}}]
    assert [(each.start, each.reason) for each in corrupt] == [(1, "not a JSON object"), (2, "not a JSON object")]


def test_rows_of_parquet_without_a_value_are_reported_alone(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, None, 3.0, 4.0], "tags": [["a"], ["b"], [None, "c"], None]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    found, corrupt = read_damaged(tmp_path / "a.parquet")
    assert [record["x"] for record in found] == [1.0]
    assert [(each.start, each.reason) for each in corrupt] == [
        (1, "no value in column x"),
        (2, "no value in column tags"),
        (3, "no value in column tags"),
    ]
    found, corrupt = read_damaged(tmp_path / "a.parquet", columns=["tags"])
    assert [record["tags"].tolist() for record in found] == [[b"a"], [b"b"]]


NESTED = [[[1, 2], [3]], [], [[]], None, [[4, None]], [[5], [6, 7, 8]], [[9]], [[10, 11]]]


def nested_values(records: Any) -> list[Any]:
    return [[inner.tolist() for inner in record["deep"]] for record in records]


def test_lists_of_lists_are_read_in_any_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"deep": NESTED}), tmp_path / "a.parquet", row_group_size=3)
    usable = [value for value in NESTED if value is not None and value != [[4, None]]]
    found, corrupt = read_damaged(tmp_path / "a.parquet")
    assert (nested_values(found), [each.start for each in corrupt]) == (usable, [3, 4])
    reader = open_reader(tmp_path / "a.parquet")
    assert reader.metadata.column_dtypes == {"deep": "int64"}
    shuffled, corrupt = ShuffledReader(reader, shuffled_order(reader, 8, seed=1)), []
    rows = [row for start in (0, 4) for row in shuffled.read(0, start, start + 4, corrupt.append)]
    assert (sorted(nested_values(rows)), len(corrupt)) == (sorted(usable), 2)


def test_lists_of_vectors_and_of_matrices_keep_their_shape(tmp_path: Path) -> None:
    vector = pa.list_(pa.float32(), 2)
    table = pa.table(
        {
            "boxes": pa.array([[[1, 2], [3, 4]], [], [[5, 6]]], pa.list_(vector)),
            "matrix": pa.array([[[1, 2]] * 3, [[3, 4]] * 3, [[5, 6]] * 3], pa.list_(vector, 3)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    found, _ = read_damaged(tmp_path / "a.parquet")
    assert [record["boxes"].shape for record in found] == [(2, 2), (0, 2), (1, 2)]
    assert [record["matrix"].tolist() for record in found] == table["matrix"].to_pylist()


def test_a_missing_vector_leaves_the_others_of_all_row_groups_as_they_are(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int64(), 2))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    found, corrupt = read_damaged(tmp_path / "a.parquet")
    assert [record["v"].tolist() for record in found] == [[1, 2], [3, 4], [5, 6]]
    assert [each.start for each in corrupt] == [2]


def test_shuffled_rows_beside_damaged_ones_come_once(tmp_path: Path) -> None:
    values = [None if number % 7 == 3 else number for number in range(60)]
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=8)
    reader = open_reader(tmp_path / "a.parquet")
    shuffled, corrupt = ShuffledReader(reader, shuffled_order(reader, 20, seed=1)), []
    found = [
        row["x"] for start in range(0, 60, 9) for row in shuffled.read(0, start, min(60, start + 9), corrupt.append)
    ]
    assert sorted(found) == [value for value in values if value is not None]
    assert sorted(each.start for each in corrupt) == [number for number in range(60) if number % 7 == 3]


def test_a_damaged_row_group_is_reported_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": np.random.default_rng(1).random(900)}), path, row_group_size=300, write_page_checksum=True
    )
    offset = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[offset + 400] ^= 1
    path.write_bytes(content)
    found, corrupt = read_damaged(path)
    assert len(found) == 600
    ((start, end, chunk),) = [(each.start, each.end, each.chunk) for each in corrupt]
    assert (start, end, chunk) == (300, 600, 1)


@pytest.mark.parametrize("changed", [b"\xda\x04", b"\xd7\x04"])
def test_numbers_of_rows_that_contradict_each_other_lose_no_record_silently(tmp_path: Path, changed: bytes) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(900)}), path, row_group_size=300, use_dictionary=False)
    content = path.read_bytes()
    # 300 and 900 as Thrift writes them.
    places = [at for at in range(content.rfind(b"\xd8\x04")) if content[at : at + 2] in (b"\xd8\x04", b"\x88\x0e")]
    refused = 0
    for at in places[-6:]:
        damaged = open_reader(write_bytes(tmp_path / "b.parquet", content[:at] + changed + content[at + 2 :]))
        corrupt: list[CorruptRange] = []
        try:
            (source,) = damaged.sources()
            found = damaged.read(source.name, 0, source.records, corrupt.append)
        except BadInputError:
            refused += 1
        else:
            assert len(found) + sum(each.records for each in corrupt) == source.records == 900
    assert refused > 0


def test_a_row_group_with_fewer_rows_than_the_footer_says_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(900)}), path, row_group_size=300, use_dictionary=False)
    reader = open_reader(path)
    assert isinstance(reader, ParquetReader)
    footer = reader._footer(str(path))
    reader._footers[str(path)] = replace(footer, group_records=(300, 310, 300))
    corrupt: list[CorruptRange] = []
    found = reader.read(str(path), 0, 910, corrupt.append)
    assert [(each.start, each.end) for each in corrupt] == [(300, 610)]
    assert "it has 300 rows, not 310" in corrupt[0].reason
    assert len(found) == 600


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([{"a": 1}]), "features are numbers"),
        (pa.array([[{"a": 1}]]), "lists contain numbers, text, or lists of these"),
    ],
)
def test_columns_that_are_no_features_are_refused_by_name(tmp_path: Path, column: Any, said: str) -> None:
    pq.write_table(pa.table({"x": [1], "odd": column}), tmp_path / "a.parquet")
    error = refuse(tmp_path / "a.parquet")
    assert "column odd" in str(error)
    assert said in str(error)
    assert read_damaged(tmp_path / "a.parquet", columns=["x"])[0] == [{"x": 1}]


def test_files_of_a_data_set_need_the_same_columns(tmp_path: Path) -> None:
    for name, table in (("a", {"x": [1.0]}), ("b", {"x": [1]})):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    assert "column x is int64" in str(refuse(tmp_path))
    np.savez(tmp_path / "c.npz", x=np.zeros((2, 3)))
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 4)))
    with pytest.raises(BadInputError, match=r"x: float64 \(4,\)"):
        open_reader([tmp_path / "c.npz", tmp_path / "d.npz"]).sources()


def test_arrays_of_objects_and_files_cut_short_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    assert "Python objects" in str(refuse(tmp_path / "a.npy"))
    np.savez_compressed(tmp_path / "b.npz", x=np.array([{}], object))
    assert "allow_pickle" in str(refuse(tmp_path / "b.npz"))
    np.save(tmp_path / "c.npy", np.zeros((100, 10)))
    (tmp_path / "c.npy").write_bytes((tmp_path / "c.npy").read_bytes()[:-8])
    assert "truncated" in str(refuse(tmp_path / "c.npy"))
    for name in ("d.npz", "e.parquet"):
        (tmp_path / name).write_bytes(b"PK\x03\x04" if name == "d.npz" else b"PAR1 half")
        assert "cannot be read" in str(refuse(tmp_path / name))
    np.savez(tmp_path / "f.npz", x=np.zeros((3, 2)), scale=np.float32(1))
    assert "scale: no axis" in str(refuse(tmp_path / "f.npz"))
    assert len(read_damaged(tmp_path / "f.npz", columns=["x"])[0]) == 3


def test_a_column_that_only_some_files_of_parquet_have_is_refused_unless_columns_are_chosen(tmp_path: Path) -> None:
    for name, table in (("a", {"x": [1]}), ("b", {"y": [2], "x": [3]})):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    refused = refuse(tmp_path)
    assert ("column y" in str(refused), refused.where) == (True, str(tmp_path / "b.parquet"))
    assert [source.records for source in open_reader(tmp_path, {"columns": ["x"]}).sources()] == [1, 1]


def test_csv_that_is_empty_or_in_utf16_is_told_apart(tmp_path: Path) -> None:
    for content, said in ((b"", "remove the file"), ("x,y\n1,2\n".encode("utf-16"), "iconv -f utf-16")):
        assert said in (refuse(write_bytes(tmp_path / "a.csv", content)).hint or "")


def test_times_of_numpy_are_whole_numbers_in_the_unit_of_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", day=np.array(["1970-01-03"], "M8[D]"))
    assert open_reader(tmp_path / "a.npz").metadata.column_dtypes == {"day": "int64"}
    (record,) = read_damaged(tmp_path / "a.npz")[0]
    assert (record["day"], record["day"].dtype) == (2, np.int64)


def test_damaged_npz_files_are_errors_of_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(3))
    whole = (tmp_path / "a.npz").read_bytes()
    place = whole.index(b"'descr'")
    for changed in (
        whole[: place - 1] + b"((((((((" + whole[place + 7 :],
        whole[:place] + bytes(9) + whole[place + 9 :],
    ):
        assert "cannot be read" in str(refuse(write_bytes(tmp_path / "b.npz", changed)))
    assert "truncated" in str(refuse(write_bytes(tmp_path / "c.npz", whole[:-60])))
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(999))
    packed = bytearray((tmp_path / "a.npz").read_bytes())
    packed[200:230] = bytes(30)
    assert "cannot be read" in str(refuse(write_bytes(tmp_path / "d.npz", bytes(packed))))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_that_lost_bytes_is_damaged_and_not_read_again(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "a.npz", x=np.arange(9999), y=np.arange(9999))
    whole = (tmp_path / "a.npz").read_bytes()
    # zipfile looks for the directory before the beginning of the file.
    lost = write_bytes(tmp_path / "b.npz", whole[:200] + whole[-400:])
    assert "write it again" in str(refuse(lost))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), "several fields"),
        (np.zeros(3, "V2"), "raw bytes"),
        (np.zeros(3, np.longdouble), "float64"),
    ],
)
def test_arrays_of_types_that_a_model_cannot_take_are_refused_by_name(
    tmp_path: Path, values: npt.NDArray[Any], said: str
) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(len(values)), odd=values)
    assert "odd" in (error := str(refuse(tmp_path / "a.npz")))
    assert said in error
    assert len(read_damaged(tmp_path / "a.npz", columns=["x"])[0]) == len(values)
    np.save(tmp_path / "b.npy", values)
    assert said in str(refuse(tmp_path / "b.npy"))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_names_of_columns_that_are_twice_or_no_text_are_refused(tmp_path: Path, suffix: str) -> None:
    def write(name: str, table: pa.Table) -> Path:
        path = tmp_path / f"{name}{suffix}"
        if suffix == ".parquet":
            pq.write_table(table, path)
            return path
        return save_arrow(path, table)

    twice = write("twice", pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"]))
    assert "two columns x" in str(refuse(twice))
    assert read_damaged(twice, columns=["y"])[0] == [{"y": 3}]
    content = write("name", pa.table({"distance": [1, 2]})).read_bytes()
    damaged = write_bytes(tmp_path / f"damaged{suffix}", content.replace(b"distance", b"dist\xff\xfece"))
    assert "cannot be read" in str(refuse(damaged))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_table_without_columns_is_refused(tmp_path: Path, suffix: str) -> None:
    path, table = tmp_path / f"a{suffix}", pa.table({})
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        save_arrow(path, table)
    assert "no columns" in str(refuse(path))


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".tfrecord"])
def test_a_corrupt_record_is_named_with_its_place_in_the_file(tmp_path: Path, suffix: str) -> None:
    lines = [b'{"n": %d}' % number for number in range(90)]
    path, bad = tmp_path / f"a{suffix}", b"\xff\xff"
    if suffix == ".tfrecord":
        write_tfrecord(path, [*lines[:70], bad, *lines[70:]])
        path.write_bytes(path.read_bytes().replace(bad, b"xx"))
        place = path.read_bytes().index(b"xx") - 12
    else:
        path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([*lines[:70], bad, *lines[70:]]))
        place = path.read_bytes().index(bad)
    found, corrupt = read_damaged(path)
    assert (len(found), [(each.start, each.offset) for each in corrupt]) == (90, [(70, place)])
    if suffix == ".jsonl":
        typed = open_reader(path, text_types={"n": "int64"})
        typed.read(str(path), 60, 80, corrupt.append)
        assert corrupt[1].offset == place


def test_a_file_that_is_no_image_is_reported_alone(tmp_path: Path) -> None:
    for name in ("cat/a.png", "cat/b.png", "dog/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"<html>" if "b" in name else PNG)
    found, corrupt = read_damaged(tmp_path)
    assert [(record["path"], record["label"]) for record in found] == [(b"cat/a.png", 0), (b"dog/c.jpg", 1)]
    assert [(each.start, each.reason.split(":")[0]) for each in corrupt] == [(1, "cat/b.png")]


def encode_image(suffix: str) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 255, (30, 40, 3), np.uint8)
    return bytes(
        {
            ".jpg": lambda: tf.io.encode_jpeg(pixels).numpy(),
            ".png": lambda: tf.io.encode_png(pixels).numpy(),
            ".bmp": lambda: b"BM" + struct.pack("<I", 58) + bytes(52),
            ".gif": lambda: b"GIF89a" + bytes(20) + b";",
            ".webp": lambda: b"RIFF" + struct.pack("<I", 20) + bytes(20),
        }[suffix]()
    )


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".gif", ".webp"])
def test_a_truncated_image_is_corrupt_and_named(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "cat").mkdir()
    whole = encode_image(suffix)
    for name, content in (("a", whole), ("b", whole[:-8]), ("c", whole[: len(whole) // 2])):
        (tmp_path / "cat" / f"{name}{suffix}").write_bytes(content)
    found, corrupt = read_damaged(tmp_path)
    assert [record["path"] for record in found] == [f"cat/a{suffix}".encode()]
    assert [each.reason for each in corrupt] == [f"cat/{name}{suffix}: the image is truncated" for name in "bc"]


def test_a_jpeg_that_is_cut_off_after_its_thumbnail_is_truncated() -> None:
    jpeg = encode_image(".jpg")
    thumbnail = b"\xff\xe1" + struct.pack(">H", len(jpeg) + 2) + jpeg
    whole = jpeg[:2] + thumbnail + jpeg[2:] + b"bytes behind the end"
    assert find_image_fault(whole) is None
    assert [find_image_fault(whole[:size]) for size in (3, 50, len(thumbnail) + 10, len(whole) - 30)] == [
        "the image is truncated"
    ] * 4


def test_an_image_with_a_wrong_checksum_is_corrupt() -> None:
    png = bytearray(encode_image(".png"))
    png[len(png) // 2] ^= 1
    assert find_image_fault(bytes(png)) == "the image has a wrong checksum"


def test_files_of_a_class_that_are_no_images_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("cat/a.png", "cat/b.tiff", "cat/c.txt", "cat/.hidden", "dog/d.png", "list.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PNG)
    assert list_images(tmp_path) == ("cat/a.png", "dog/d.png")
    assert not missing_keys(caplog.text, "2 files are left out, such as cat/b.tiff", ".png, .webp")
    caplog.clear()
    (tmp_path / "cat/b.tiff").unlink()
    list_images(tmp_path)
    assert "1 file is left out, such as cat/c.txt" in caplog.text


def test_a_text_beside_folders_of_images_is_not_taken_for_the_data(tmp_path: Path) -> None:
    for name in ("cat/a.png", "dog/b.png", "README.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PNG)
    with pytest.raises(BadInputError) as error:
        find_data(str(tmp_path))
    assert not missing_keys(f"{error.value} {error.value.hint}", "README.txt", "cat, dog", "data.reader.format")
    assert find_data(str(tmp_path), "images") == (tmp_path,)
    assert find_data(str(tmp_path), "text") == (tmp_path / "README.txt",)
    assert find_data(str(tmp_path / "README.txt")) == (tmp_path / "README.txt",)


def test_a_set_without_a_class_keeps_the_labels_of_training(tmp_path: Path) -> None:
    for name in ("train/cat/a.png", "train/dog/b.png", "test/dog/c.png", "odd/cow/d.png", "new/e.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PNG)
    data = DataSpec((str(tmp_path / "train"),), (str(tmp_path / "test"),), (str(tmp_path / "new"),))
    reader = open_data_set(data, "validation", None, tmp_path)
    assert [record["label"] for record in reader.read(reader.sources()[0].name, 0, 1)] == [1]
    reader = open_data_set(data, "prediction", None, tmp_path)
    assert [record["label"] for record in reader.read(reader.sources()[0].name, 0, 1)] == [-1]
    with pytest.raises(BadInputError, match="folders cow have images and are no classes"):
        open_data_set(replace(data, validation=(str(tmp_path / "odd"),)), "validation", None, tmp_path).sources()


def test_images_that_coco_lists_and_that_cannot_be_used_are_reported_alone(tmp_path: Path) -> None:
    annotations = [
        {"image_id": 7, "category_id": 7, "bbox": [1, 2, "x", 4]},
        {"image_id": 8, "category_id": 3, "bbox": [1, 2, 3, 4]},
    ]
    write_coco(tmp_path / "a", range(5), tmp_path / "a" / "_annotations.coco.json", annotations=annotations)
    (tmp_path / "a/deep/0.png").unlink()
    (tmp_path / "a/deep/1.png").write_bytes(b"<html>")
    found, corrupt = read_damaged(tmp_path / "a")
    assert [record["path"] for record in found] == [b"deep/4.png"]
    assert [each.start for each in corrupt] == [0, 1, 2, 3]
    reasons = [each.reason.split(": ", 1)[1] for each in corrupt]
    assert reasons[0] == "No such file or directory"
    assert "does not begin like" in reasons[1]
    assert reasons[2] == "the bbox of annotation 0 of _annotations.coco.json is not four numbers"
    assert reasons[3] == "annotation 1 of _annotations.coco.json has category 3, which the file does not name"


def write_masks(folder: Path, segmentations: list[Any]) -> Path:
    """Five images with objects of these masks, two objects in the first one, listed backwards."""
    annotations = [
        {"image_id": 5 + max(0, at - 1), "category_id": 7, "bbox": [at, 0, 1, 1], "segmentation": segmentation}
        for at, segmentation in reversed([*enumerate(segmentations)])
    ]
    return write_coco(folder, range(5), folder.with_suffix(".json"), annotations=annotations)


RUNS = {"size": [3, 4], "counts": [2, 3, 1, 0, 4, 2]}
PACKED_RUNS = {"size": [3, 4], "counts": "23100O"}


@pytest.mark.parametrize("index", ["memory", "file"])
def test_masks_of_coco_are_polygons_and_run_lengths(tmp_path: Path, index: str) -> None:
    square, triangle = [0, 0, 2.5, 0, 2.5, 2, 0, 2], [1, 1, 4, 1, 4, 3]
    folder = write_masks(tmp_path / "a", [[square, triangle], RUNS, [triangle], [], None, PACKED_RUNS])
    options: dict[str, object] = {"annotations": "a.json", "masks": True, "index": index}
    for _ in range(2):  # made, and from the index
        records = open_reader(folder, options).read(str(folder), 0, 5)
        first, second, *others = records
        assert first["boxes"][:, 0].tolist() == [1, 0], "in the order of the file"
        assert [[polygon.tolist() for polygon in each] for each in first["polygons"]] == [[], [square, triangle]]
        assert [each.tolist() for each in first["runs"]] == [RUNS["counts"], []]
        assert first["run_size"].tolist() == [[3, 4], [0, 0]]
        assert [[polygon.tolist() for polygon in each] for each in second["polygons"]] == [[triangle]]
        assert [[len(each) for each in record["polygons"]] for record in others] == [[0], [0], [0]]
        assert others[2]["runs"][0].tolist() == [2, 3, 1, 3, 1, 2]
    names = open_reader(folder, options).metadata.column_names
    assert names[-3:] == ("polygons", "runs", "run_size")
    without = open_reader(folder, {**options, "masks": False})
    assert "polygons" not in without.read(str(folder), 0, 1)[0], "an index with masks is not used without them"
    assert len(open_reader(folder, options).read(str(folder), 0, 1)[0]["polygons"]) == 2


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([6, 1, 40, 4, 5, 4, 5, 4, 21], "61X13mN000`0"),
        ([2, 3, 1, 3, 1, 2], "23100O"),
        ([0, 700, 3, 1000, 1, 20, 276], "0le03\\9N\\QOc8"),
        ([], ""),
    ],
)
def test_packed_run_lengths_are_those_of_pycocotools(runs: list[int], text: str) -> None:
    """The texts are what ``pycocotools.mask.encode`` makes of the masks."""
    assert unpack_runs(text) == runs


@pytest.mark.parametrize(
    ("segmentation", "said"),
    [
        ([[0, 0, 1, 1]], "has a polygon that is not three or more pairs of numbers"),
        ([[0, 0, 1, 1, 2, 2, 3]], "has a polygon that is not three or more pairs of numbers"),
        ([[0, 0, 1, 1, 2, None]], "has a polygon that is not three or more pairs of numbers"),
        ({"size": [3, 4], "counts": [2, 3]}, "its runs have 5 pixels, and its size 3 x 4"),
        ({"size": [3, 4], "counts": [-1, 13]}, "its numbers are no lengths"),
        ({"size": [3, 4], "counts": "\u00e4"}, "is no run-length encoding"),
        ({"size": [3, 4], "counts": "P"}, "ends within a number"),
        ({"counts": [12]}, "is no run-length encoding: 'size'"),
        ("no mask", "is neither polygons nor a run-length encoding"),
    ],
)
def test_a_mask_that_is_none_makes_its_image_corrupt(tmp_path: Path, segmentation: object, said: str) -> None:
    folder = write_masks(tmp_path / "a", [None, None, segmentation])
    found, corrupt = read_damaged(folder, annotations="a.json", masks=True)
    assert ([each.start for each in corrupt], len(found)) == ([1], 4)
    assert "the segmentation of annotation 0 of a.json " in corrupt[0].reason
    assert said in corrupt[0].reason
    assert len(read_damaged(folder, annotations="a.json")[0]) == 5, "who asks for no masks needs none"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"annotations": [{"image_id": 99}]}, "annotation 0 belongs to no image"),
        ({"annotations": [{"image_id": [99]}]}, "annotation 0 belongs to no image"),
        ({"images": [{"id": 1}]}, "no 'file_name'"),
        ({"images": [{"id": 1, "file_name": "../../secret.png"}], "annotations": []}, "outside of the folder"),
        ({"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}, "several images have one id"),
        ({"categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "cat"}]}, "several categories have one name"),
        ({"images": 3}, "cannot be read as annotations of COCO"),
    ],
)
def test_annotations_that_contradict_themselves_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    write_coco(tmp_path / "a", range(5), tmp_path / "a" / "_annotations.coco.json", **changed)
    assert said in str(refuse(tmp_path / "a"))


def test_annotations_that_are_no_json_or_not_there_name_the_file(tmp_path: Path) -> None:
    folder = write_coco(tmp_path / "a", range(5), tmp_path / "all.json")
    assert refuse(folder, annotations="other.json").where == str(tmp_path / "other.json")
    (tmp_path / "all.json").write_text((tmp_path / "all.json").read_text()[:50])
    assert "no JSON at character" in str(refuse(folder, annotations="all.json"))
    with pytest.raises(BadInputError, match="one annotations file for 2 folders"):
        open_reader([folder, tmp_path / "b"], {"annotations": "all.json"})


def test_validation_images_of_coco_have_the_labels_of_training(tmp_path: Path) -> None:
    write_coco(tmp_path / "train", range(5), tmp_path / "train.json")
    only = {
        "categories": [{"id": 1, "name": "dog"}],
        "annotations": [{"image_id": 5, "category_id": 1, "bbox": [0] * 4}],
    }
    write_coco(tmp_path / "test", range(1), tmp_path / "test.json", **only)
    options: dict[str, Any] = {"annotations": "{name}.json"}
    data = DataSpec((str(tmp_path / "train"),), (str(tmp_path / "test"),), (), options)
    reader = open_data_set(data, "validation", None, tmp_path)
    assert reader.metadata.class_names == ("cat", "dog")
    (record,) = reader.read(reader.sources()[0].name, 0, 1)
    assert record["labels"].tolist() == [1]


def test_samples_without_a_member_are_reported_alone(tmp_path: Path) -> None:
    names = ["a.jpg", "a.cls", "b.cls", "c.jpg", "c.cls", "c.cls", "d.cls", "d.jpg"]
    path = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names])
    found, corrupt = read_damaged(path)
    assert [record["jpg"] for record in found] == [b"a.jpg", b"d.jpg"]
    assert [(each.start, each.offset, each.reason) for each in corrupt] == [
        (1, 5 * 512, "sample b has no member .jpg"),
        (2, 7 * 512, "sample c has several members of one extension"),
    ]
    found, corrupt = read_damaged(path, columns=["cls"])
    assert ([record["cls"] for record in found], len(corrupt)) == ([b"a.cls", b"b.cls", b"d.cls"], 1)
    assert "extension png" in str(refuse(path, columns=["png"]))


def test_a_tar_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    found, _ = read_damaged(write_tar(tmp_path / "shard-000", [("a.cls", b"1")]))
    assert found == [{"__key__": b"a", "cls": b"1"}]


@pytest.mark.parametrize("cut", [100, 700, 1024, 1300, 2048])
def test_a_truncated_tar_file_names_a_byte(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1" * 600), ("b.cls", b"2")])
    path.write_bytes(path.read_bytes()[:cut])
    error = refuse(path)
    assert "cannot be read as tar at byte" in str(error)
    assert error.where == str(path)


def test_a_damaged_header_is_not_taken_for_the_end_of_a_tar_file(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2"), ("c.cls", b"3")])
    content = bytearray(path.read_bytes())
    content[1024 + 3] ^= 1
    path.write_bytes(content)
    assert "at byte 1024: no header of a member begins here" in str(refuse(path))


def test_tar_files_that_were_put_one_after_another_lose_no_records_silently(tmp_path: Path) -> None:
    parts = [write_tar(tmp_path / name, [("a.cls", b"1")]).read_bytes() for name in ("a.tar", "b.tar")]
    (tmp_path / "a.tar").write_bytes(b"".join(parts))
    assert "no header of a member begins here" in str(refuse(tmp_path / "a.tar"))


@pytest.mark.parametrize(
    "changed",
    [{"offsets": [1 << 40]}, {"first_members": [0, 0]}, {"keys": [3]}, {"sizes": None}, {"extensions": []}],
)
def test_a_saved_index_of_a_tar_file_that_cannot_be_true_is_made_anew(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1")])
    expected, _ = read_damaged(path, index="file")
    saved = tmp_path / "a.tar.idx"
    saved.write_bytes(encode_index({**decode_index(saved.read_bytes()), **changed}))
    assert read_damaged(path, index="file") == (expected, [])


@given(st.lists(st.tuples(st.sampled_from(["a", "b/a", "ä", "x" * 150]), st.binary(max_size=1500))))
def test_tar_members_are_what_was_written(samples: list[tuple[str, bytes]]) -> None:
    with TemporaryDirectory() as folder:
        written = [(f"{key}{number}", content) for number, (key, content) in enumerate(samples)]
        path = write_tar(Path(folder) / "a.tar", [(f"{key}.bin", content) for key, content in written])
        found, corrupt = read_damaged(path)
    assert [(record["__key__"].decode(), record["bin"]) for record in found] == written
    assert corrupt == []


@pytest.mark.parametrize("cut", [4, 8, 100, 5000])
def test_a_truncated_arrow_file_names_the_byte(tmp_path: Path, cut: int) -> None:
    path = save_arrow(tmp_path / "a.arrow", pa.table({"x": np.arange(900)}))
    path.write_bytes(path.read_bytes()[:-cut])
    error = refuse(path)
    assert "cannot be read as Arrow at byte" in str(error)
    assert error.where == str(path)


@pytest.mark.parametrize("content", [b"", b"x", b"ARROW1\0\0", b"x" * 1000])
def test_a_file_that_is_no_arrow_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.arrow").write_bytes(content)
    assert "cannot be read as Arrow" in str(refuse(tmp_path / "a.arrow"))


def test_a_record_batch_with_impossible_values_is_reported_as_a_whole(tmp_path: Path) -> None:
    path = save_arrow(tmp_path / "a.arrow", pa.table({"x": ["ä"] * 900}), batch_rows=300)
    content = bytearray(path.read_bytes())
    at = content.index("ä".encode() * 300, content.index("ä".encode() * 300) + 600)
    content[at] = 0xFF
    path.write_bytes(content)
    found, corrupt = read_damaged(path)
    assert len(found) == 600
    ((start, end, chunk),) = [(each.start, each.end, each.chunk) for each in corrupt]
    assert (start, end, chunk) == (300, 600, 1)
    assert 0 < corrupt[0].offset < at


def test_rows_of_arrow_without_an_image_are_reported_alone(tmp_path: Path) -> None:
    images = [{"bytes": b"1", "path": "a"}, None, {"bytes": None, "path": "b"}]
    found, corrupt = read_damaged(save_arrow(tmp_path / "a.arrow", pa.table({"image": images})))
    assert ([record["image"] for record in found], [each.start for each in corrupt]) == ([b"1"], [1, 2])


def test_columns_of_arrow_in_the_form_of_a_dictionary_are_refused(tmp_path: Path) -> None:
    table = pa.table({"kind": pa.array(["a", "b"]).dictionary_encode()})
    assert "column kind is dictionary" in str(refuse(save_arrow(tmp_path / "a.arrow", table)))


def test_folders_of_hugging_face_have_class_names_and_their_own_order(tmp_path: Path) -> None:
    features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}, "text": {"dtype": "string"}}
    tables = [pa.table({"label": [0, 1], "text": ["a", "b"]}), pa.table({"label": [1], "text": ["c"]})]
    folder = save_hugging_face(tmp_path / "sets" / "train", tables, features)
    reader = open_reader(folder)
    assert reader.metadata.class_names == ("neg", "pos")
    state = folder / "state.json"
    state.write_text(json.dumps({"_data_files": json.loads(state.read_text())["_data_files"][::-1]}))
    assert [source.records for source in open_reader(folder).sources()] == [1, 2]
    (tmp_path / "sets" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(BadInputError, match="several data sets") as refused:
        open_reader(tmp_path / "sets")
    assert refused.value.hint == "name one of its directories: train"
    for files, said in (([{"filename": "../x"}], "outside of the folder"), ([{"filename": "x"}], "file x is missing")):
        state.write_text(json.dumps({"_data_files": files}))
        with pytest.raises(BadInputError, match=said):
            open_reader(folder)


def test_a_folder_of_hugging_face_with_an_index_of_its_records_is_refused(tmp_path: Path) -> None:
    folder = save_hugging_face(tmp_path / "train", [pa.table({"label": [0, 1, 2]})], {})
    state = folder / "state.json"
    saved = json.loads(state.read_text())
    state.write_text(json.dumps({**saved, "_indices_data_files": None}))
    assert open_reader(folder).sources()[0].records == 3
    state.write_text(json.dumps({**saved, "_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(BadInputError, match="a part of the records") as refused:
        open_reader(folder)
    assert "flatten_indices" in str(refused.value.hint)


# --------------------------------------------------------------------------------------------------
# Compressed files.


def test_a_compressed_file_is_unpacked_once_until_it_changes(tmp_path: Path) -> None:
    path, cache = tmp_path / "a.txt.gz", str(tmp_path / "cache")
    path.write_bytes(gzip.compress(b"a\nb\n"))
    reader = open_reader(path, {"cache": cache})
    unpacked = Path(reader.sources()[0].name)
    inode = unpacked.stat().st_ino
    assert open_reader(path, {"cache": cache}).sources() == reader.sources()
    assert unpacked.stat().st_ino == inode
    path.write_bytes(gzip.compress(b"c\n"))
    assert read_damaged(path, cache=cache) == ([b"c"], [])


def test_a_cache_that_would_become_too_large_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(b"x" * 3000))
    options = {"cache": str(cache), "cache_gib": 5000 / (1 << 30)}
    open_reader(tmp_path / "a.txt.gz", options)
    before = sorted(path for path in cache.glob("*/*"))
    with pytest.raises(BadInputError, match="would become larger than"):
        open_reader(tmp_path / "b.txt.gz", options)
    assert sorted(path for path in cache.glob("*/*")) == before


COMPRESSIONS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_all_compressions_are_unpacked_and_damage_is_named(tmp_path: Path, suffix: str) -> None:
    path, options = tmp_path / f"a.txt{suffix}", {"cache": str(tmp_path / "cache")}
    with pytest.raises(BadInputError) as refused:
        open_reader(write_bytes(path, COMPRESSIONS[suffix](b"a\nb")))
    assert "data.reader.cache" in (refused.value.hint or "")
    assert read_damaged(path, **options) == ([b"a", b"b"], [])
    whole = COMPRESSIONS[suffix](bytes(range(256)) * 40)
    for content in (whole[:-9], b"plain", whole[: len(whole) // 2] + bytes(9)):
        path.write_bytes(content)
        with pytest.raises(BadInputError, match="cannot be unpacked after") as refused:
            open_reader(path, options)
        assert refused.value.where == str(path)


@pytest.mark.parametrize(("compress", "said"), [(gzip.compress, "data.reader.cache"), (zlib.compress, "ZLIB")])
def test_a_compressed_tfrecord_whose_name_does_not_tell_is_recognized(
    tmp_path: Path, compress: Callable[[bytes], bytes], said: str
) -> None:
    write_tfrecord(tmp_path / "plain", [b"a"])
    path = write_bytes(tmp_path / "a.tfrecord", compress((tmp_path / "plain").read_bytes()))
    assert said in (refuse(path).hint or "")


def test_a_full_disk_is_no_reason_to_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a\n" * 9000))

    opened = Path.open

    def open_full(self: Path, mode: str = "r", *others: Any, **named: Any) -> Any:
        stream = opened(self, mode, *others, **named)
        return FullStream(stream) if mode == "wb" else stream

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(BadInputError, match="is full after") as refused:
        open_reader(path, {"cache": str(tmp_path / "cache")})
    assert refused.value.where == str(path)
    assert "data.reader.cache" in str(refused.value.hint)
    assert not list((tmp_path / "cache").glob("*/*"))


class FullStream:
    """A file on a disk without space."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> FullStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("options", [{"cache": "relative"}, {"cache": 3}, {"cache": "/x", "cache_gib": 0}])
def test_options_of_the_cache_are_checked(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(BadInputError, match="is not allowed"):
        check_reader_options([str(tmp_path / "a.csv.gz")], options)
    with pytest.raises(BadInputError, match="unknown option 'cache'"):
        check_reader_options(["a.parquet"], {"cache": "/x"})


# --------------------------------------------------------------------------------------------------
# Patterns in paths.


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a\n")


def names_of(path: Path | list[Path]) -> list[str]:
    return [Path(source.name).name for source in open_reader(path).sources()]


def test_a_pattern_stands_for_its_files_in_sorted_order(tmp_path: Path) -> None:
    touch(*(tmp_path / name for name in ("t-2.txt", "t-10.txt", "t-1.txt", "v-1.txt", ".t-0.txt", "t-1.txt.idx")))
    assert names_of(tmp_path / "t-*") == ["t-1.txt", "t-10.txt", "t-2.txt"]
    assert names_of(tmp_path / "[tv]-1.txt") == ["t-1.txt", "v-1.txt"]
    assert names_of([tmp_path / "v-?.txt", tmp_path / "t-?.txt"]) == ["v-1.txt", "t-1.txt", "t-2.txt"]


def test_a_pattern_of_folders_has_the_files_below(tmp_path: Path) -> None:
    touch(*(tmp_path / name for name in ("day=1/a.txt", "day=2/b.txt", "day=2/deep/c.txt", "other/d.txt")))
    assert names_of(tmp_path / "day=*") == ["a.txt", "b.txt"]
    assert names_of(tmp_path / "**" / "*.txt") == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert names_of(tmp_path / "day=2" / "**") == ["b.txt", "c.txt"]


def test_a_pattern_of_image_folders_has_each_as_a_source(tmp_path: Path) -> None:
    for name in ("p1/cat/a.png", "p2/dog/b.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(PNG)
    assert names_of(tmp_path / "p*") == ["p1", "p2"]


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path / "in" / "a.txt")
    with pytest.raises(BadInputError, match="no file matches the pattern") as refused:
        open_reader(tmp_path / "in" / "b-*" / "c.txt")
    assert refused.value.where == str(tmp_path / "in" / "b-*" / "c.txt")
    assert refused.value.hint == f"the nearest directory that exists is {tmp_path / 'in'}"


def test_a_file_whose_name_looks_like_a_pattern_is_itself(tmp_path: Path) -> None:
    touch(tmp_path / "a[1].txt", tmp_path / "a1.txt")
    assert names_of(tmp_path / "a[1].txt") == ["a[1].txt"]


def test_a_file_that_two_patterns_match_is_refused(tmp_path: Path) -> None:
    touch(tmp_path / "a.txt")
    with pytest.raises(BadInputError, match="listed twice"):
        open_reader([tmp_path / "*.txt", tmp_path / "a*"])


@pytest.mark.tensorflow
def test_tfrecord_files_of_tensorflow_are_read(tmp_path: Path) -> None:
    import tensorflow as tf

    written = [bytes([number]) * number for number in range(200)]
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord-00000-of-00001")) as writer:
        for record in written:
            writer.write(record)
    assert read_damaged(tmp_path / "a.tfrecord-00000-of-00001") == (written, [])
