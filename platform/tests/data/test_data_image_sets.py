"""Image folders, COCO, WebDataset and Arrow: what is damaged is named, and labels keep their numbers."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.format_files import (
    PNG,
    read_damaged,
    refuse,
    save_arrow,
    save_hugging_face,
    write_coco,
    write_tar,
)
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec
from edl.data.coco_masks import unpack_runs
from edl.data.data_files import decode_index, encode_index, find_data
from edl.data.image_content import find_image_fault
from edl.data.image_folder import list_images
from edl.data.reader_factory import open_reader
from edl.worker.data_readers import open_data_set


def test_a_file_that_is_no_image_is_reported_alone(tmp_path: Path) -> None:
    for name in ("cat/a.png", "cat/b.png", "dog/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"<html>" if "b" in name else PNG)
    records, corrupt = read_damaged(tmp_path)
    assert [(record["path"], record["label"]) for record in records] == [(b"cat/a.png", 0), (b"dog/c.jpg", 1)]
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
    image = encode_image(suffix)
    for name, content in (("a", image), ("b", image[:-8]), ("c", image[: len(image) // 2])):
        (tmp_path / "cat" / f"{name}{suffix}").write_bytes(content)
    records, corrupt = read_damaged(tmp_path)
    assert [record["path"] for record in records] == [f"cat/a{suffix}".encode()]
    assert [each.reason for each in corrupt] == [f"cat/{name}{suffix}: the image is truncated" for name in "bc"]


def test_a_jpeg_that_is_cut_off_after_its_thumbnail_is_truncated() -> None:
    jpeg = encode_image(".jpg")
    thumbnail = b"\xff\xe1" + struct.pack(">H", len(jpeg) + 2) + jpeg
    image = jpeg[:2] + thumbnail + jpeg[2:] + b"bytes behind the end"
    assert find_image_fault(image) is None
    assert [find_image_fault(image[:size]) for size in (3, 50, len(thumbnail) + 10, len(image) - 30)] == [
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
    records, corrupt = read_damaged(tmp_path / "a")
    assert [record["path"] for record in records] == [b"deep/4.png"]
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
    records, corrupt = read_damaged(folder, annotations="a.json", masks=True)
    assert ([each.start for each in corrupt], len(records)) == ([1], 4)
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
    records, corrupt = read_damaged(path)
    assert [record["jpg"] for record in records] == [b"a.jpg", b"d.jpg"]
    assert [(each.start, each.offset, each.reason) for each in corrupt] == [
        (1, 5 * 512, "sample b has no member .jpg"),
        (2, 7 * 512, "sample c has several members of one extension"),
    ]
    records, corrupt = read_damaged(path, columns=["cls"])
    assert ([record["cls"] for record in records], len(corrupt)) == ([b"a.cls", b"b.cls", b"d.cls"], 1)
    assert "extension png" in str(refuse(path, columns=["png"]))


def test_a_tar_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    records, _ = read_damaged(write_tar(tmp_path / "shard-000", [("a.cls", b"1")]))
    assert records == [{"__key__": b"a", "cls": b"1"}]


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
        records, corrupt = read_damaged(path)
    assert [(record["__key__"].decode(), record["bin"]) for record in records] == written
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
    records, corrupt = read_damaged(path)
    assert len(records) == 600
    ((start, end, chunk),) = [(each.start, each.end, each.chunk) for each in corrupt]
    assert (start, end, chunk) == (300, 600, 1)
    assert 0 < corrupt[0].offset < at


def test_rows_of_arrow_without_an_image_are_reported_alone(tmp_path: Path) -> None:
    images = [{"bytes": b"1", "path": "a"}, None, {"bytes": None, "path": "b"}]
    records, corrupt = read_damaged(save_arrow(tmp_path / "a.arrow", pa.table({"image": images})))
    assert ([record["image"] for record in records], [each.start for each in corrupt]) == ([b"1"], [1, 2])


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
    for files, message in (
        ([{"filename": "../x"}], "outside of the folder"),
        ([{"filename": "x"}], "file x is missing"),
    ):
        state.write_text(json.dumps({"_data_files": files}))
        with pytest.raises(BadInputError, match=message):
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
