"""Compressed files are unpacked once into a cache."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.format_files import (
    read_damaged,
    refuse,
    write_bytes,
)
from support.tfrecords import write_tfrecord

from edl.api.errors import BadInputError
from edl.data.reader_factory import check_reader_options, open_reader


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
    options = {"cache": str(cache), "cache_gib": 5e-6}
    open_reader(tmp_path / "a.txt.gz", options)
    before = sorted(path for path in cache.glob("*/*"))
    with pytest.raises(BadInputError, match=r"data\.reader\.cache_gib \(5e-06\)"):
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
    compressed = COMPRESSIONS[suffix](bytes(range(256)) * 40)
    for content in (compressed[:-9], b"plain", compressed[: len(compressed) // 2] + bytes(9)):
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
