"""Arrays that come in parts make the very file that whole arrays make, with the same checksum."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.storage.safetensors_writer import (
    ArrayShape,
    combine_crc32,
    read_array_file,
    write_array_file,
    write_array_parts,
)

PATIENT = settings(deadline=None, max_examples=examples(40))


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_of_two_pieces_are_put_together(front, back):
    assert combine_crc32(zlib.crc32(front), zlib.crc32(back), len(back)) == zlib.crc32(front + back)


def test_a_long_piece_takes_no_longer():
    length = 5_000_000_000
    in_steps = 0x12345678
    for part in (4_000_000_000, 999_999_999, 1):
        in_steps = combine_crc32(in_steps, 0, part)
    assert combine_crc32(0x12345678, 0, length) == in_steps


@PATIENT
@given(st.data())
def test_parts_in_any_order_make_the_same_file(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("parts")
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = {
        "ids": random.integers(0, 99, data.draw(st.integers(0, 20))),
        "values": random.standard_normal((data.draw(st.integers(0, 20)), 3)).astype(np.float32),
        "scalar": np.array(2.5),
    }
    left = {name: np.atleast_1d(array) for name, array in arrays.items()}

    def parts():
        while rest := [name for name in left if len(left[name])]:
            name = data.draw(st.sampled_from(rest))
            count = data.draw(st.integers(1, len(left[name])))
            yield name, left[name][:count]
            left[name] = left[name][count:]

    shapes = [ArrayShape(name, array.dtype.name, array.shape) for name, array in arrays.items()]
    meta = {"cut": "7"}
    whole, parted = folder / "whole.safetensors", folder / "parted.safetensors"
    written = write_array_parts(parted, shapes, parts(), meta)
    assert written == write_array_file(whole, arrays, meta)
    assert parted.read_bytes() == whole.read_bytes()
    assert written == (len(parted.read_bytes()), zlib.crc32(parted.read_bytes()))
    assert read_array_file(parted)[1] == meta


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([np.ones(2, np.float32)], "4 bytes short"),
        ([np.ones(2, np.float32), np.ones(2, np.float32)], "more values"),
        ([np.ones(3)], "is float32, and a part of it is float64"),
    ],
)
def test_parts_that_are_not_the_array_leave_nothing_behind(tmp_path, parts, problem):
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match=problem):
        write_array_parts(path, [ArrayShape("x", "float32", (3,))], [("x", part) for part in parts], {})
    assert not list(tmp_path.iterdir())


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path, values = tmp_path / "a.safetensors", np.arange(4, dtype=np.float32)

    def parts():
        yield "a", values[:2]
        write_array_file(path, {"other": values}, {})
        assert list(read_array_file(path)[0]) == ["other"]
        yield "a", values[2:]

    write_array_parts(path, [ArrayShape("a", "float32", (4,))], parts(), {})
    np.testing.assert_array_equal(read_array_file(path)[0]["a"], values)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
