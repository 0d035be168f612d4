"""Readers of object stores and of HTTP: the contract of readers, the cache, and what can go wrong."""

from __future__ import annotations

import gzip
import logging
import os
import random
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data import test_data_formats as formats
from support.format_files import PNG, write_coco
from support.object_stores import GcsBucket, S3Bucket, copy_folder, start_server
from support.range_server import ServerBehaviour, serve_folder
from support.reader_contract import ReaderCase

from edl.api.errors import BadInputError, RetryableError
from edl.data import remote_files, temporary_errors
from edl.data.cache_folder import CacheFolder
from edl.data.reader_factory import check_reader_options, open_reader
from edl.data.remote_files import BLOCK_BYTES, BlockStore, RemoteFile, RemotePath, RemoteStream

pytest.importorskip("s3fs")
pytest.importorskip("gcsfs")
pytest.importorskip("moto")

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Nobody waits between tries. Versions are asked for where changes are tested: moto is slow."""
    is_asked = request.cls is None or "changes" in request.node.name
    monkeypatch.setattr(remote_files, "FRESH_SECONDS", 0.0 if is_asked else 600.0)
    monkeypatch.setattr(temporary_errors, "pause", lambda seconds: None)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


# --------------------------------------------------------------------------------------------------
# The contract.


class OverHttp:
    @pytest.fixture(params=["memory", "folder"])
    def case(self, local_case: ReaderCase, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReaderCase]:
        options = {**local_case.options}
        if request.param == "folder" or "cache" in options:
            options["cache"] = str(tmp_path / "cache")
        folder = Path(local_case.paths[0]).parent
        with serve_folder(folder) as (address, _):
            urls = [f"{address}/{Path(path).relative_to(folder)}" for path in local_case.paths]
            yield replace(local_case, paths=urls, options=options)


class TestParquetOverHttp(OverHttp, formats.TestParquet):
    pass


class TestRecordIOOverHttp(OverHttp, formats.TestRecordIO):
    pass


@pytest.mark.repetition
class TestCsvOverHttp(OverHttp, formats.TestCsv):
    pass


@pytest.mark.repetition
class TestTFRecordOverHttp(OverHttp, formats.TestTFRecord):
    pass


@pytest.mark.repetition
class TestJsonLinesOverHttp(OverHttp, formats.TestJsonLines):
    pass


class TestNpyOverHttp(OverHttp, formats.TestNpy):
    pass


@pytest.mark.repetition
class TestNpzOverHttp(OverHttp, formats.TestNpz):
    pass


@pytest.mark.repetition
class TestWebDatasetOverHttp(OverHttp, formats.TestWebDataset):
    pass


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    with start_server(["-m", "moto.server", "-p", "0"], r"http://127\.0\.0\.1:\d+") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[str]:
    program = (
        "import socket, time; from gcp_storage_emulator.server import create_server\n"
        "probe = socket.create_server(('127.0.0.1', 0)); port = probe.getsockname()[1]; probe.close()\n"
        "server = create_server('127.0.0.1', port, in_memory=True, default_bucket='data')\n"
        "server.start(); print(f'http://127.0.0.1:{port}', flush=True); time.sleep(3600)"
    )
    with start_server(["-c", program], r"http://127\.0\.0\.1:\d+") as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Bucket]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    forget_file_systems()
    yield S3Bucket(s3_server, f"data-{uuid.uuid4().hex[:12]}")
    forget_file_systems()


@pytest.fixture
def gcs(gcs_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Bucket]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server)
    forget_file_systems()
    yield GcsBucket(gcs_server, "data")
    forget_file_systems()


def forget_file_systems() -> None:
    """Else the ones of another test would be used, with its addresses and credentials."""
    import fsspec
    from gcsfs.core import GCSFileSystem

    remote_files._file_system.cache_clear()
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    GCSFileSystem.clear_instance_cache()


class OverS3:
    @pytest.fixture
    def case(self, local_case: ReaderCase, s3: S3Bucket) -> ReaderCase:
        return move_to_bucket(local_case, s3)


def move_to_bucket(case: ReaderCase, bucket: S3Bucket) -> ReaderCase:
    folder = Path(case.paths[0]).parent
    known: set[str] = set()
    prefix = uuid.uuid4().hex

    def rewrite() -> None:
        case.rewrite()
        copy_folder(bucket, folder, prefix, known)

    copy_folder(bucket, folder, prefix, known)
    urls = [bucket.url(f"{prefix}/{Path(path).relative_to(folder)}") for path in case.paths]
    return replace(case, paths=urls, rewrite=rewrite)


class TestParquetInS3(OverS3, formats.TestParquet):
    pass


@pytest.mark.repetition  # 700 objects for each test
class TestImagesInS3(OverS3, formats.TestImages):
    pass


@pytest.mark.repetition
class TestCocoInS3(OverS3, formats.TestCoco):
    pass


@pytest.mark.first_cases(1)  # a folder of streams
class TestArrowInS3(OverS3, formats.TestArrow):
    pass


class TestParquetInGcs(formats.TestParquet):
    @pytest.fixture
    def case(self, local_case: ReaderCase, gcs: S3Bucket) -> ReaderCase:
        return move_to_bucket(local_case, gcs)


# --------------------------------------------------------------------------------------------------
# Folders and patterns.


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_folders_and_patterns_of_a_bucket_are_sorted(store: str, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue(store)
    for name in ("p/t-2.txt", "p/t-10.txt", "p/v-1.txt", "p/.t-0.txt", "p/t-2.txt.idx", "p/q/t-3.txt"):
        bucket.put(name, b"a\n")

    def names(url: str) -> list[str]:
        return [source.name.removeprefix(bucket.url("")) for source in open_reader(url).sources()]

    assert names(bucket.url("p")) == names(bucket.url("p/")) == ["p/t-10.txt", "p/t-2.txt", "p/v-1.txt"]
    assert names(bucket.url("p/t-*")) == ["p/t-10.txt", "p/t-2.txt"]
    assert names(bucket.url("p/**/*.txt"))[-1] == "p/v-1.txt"
    with pytest.raises(BadInputError, match="no object matches the pattern"):
        open_reader(bucket.url("p/x-*"))


def test_a_pattern_over_http_is_refused(served: tuple[str, ServerBehaviour]) -> None:
    with pytest.raises(BadInputError, match="a pattern needs a listing, which HTTP has not"):
        open_reader(f"{served[0]}/t-*.txt")


def test_images_of_a_bucket_have_the_classes_of_their_folders(s3: S3Bucket) -> None:
    for name in ("i/cat/1.png", "i/dog/2.png", "i/dog/.3.png", "i/notes.txt"):
        s3.put(name, PNG + name.encode())
    reader = open_reader(s3.url("i"), {"format": "images"})
    records = reader.read(s3.url("i"), 0, 2)
    assert [(record["label"], record["path"]) for record in records] == [(0, b"cat/1.png"), (1, b"dog/2.png")]
    assert records[1]["image"] == PNG + b"i/dog/2.png"
    s3.delete("i/cat/1.png")
    with pytest.raises(BadInputError, match="no such object") as refused:
        reader.read(s3.url("i"), 0, 2)
    assert refused.value.where == s3.url("i/cat/1.png")


def test_annotations_of_coco_are_read_from_a_bucket_and_kept_in_the_cache(s3: S3Bucket, tmp_path: Path) -> None:
    write_coco(tmp_path / "c" / "a", range(4), tmp_path / "c" / "a.json")
    copy_folder(s3, tmp_path / "c", "c", set())
    options: dict[str, object] = {"annotations": "{name}.json", "cache": str(tmp_path / "cache")}
    reader = open_reader(s3.url("c/a"), options)
    assert [len(record["boxes"]) for record in reader.read(s3.url("c/a"), 0, 4)] == [0, 1, 2, 0]
    assert len(list((tmp_path / "cache").glob("*/a.json.idx"))) == 1


# --------------------------------------------------------------------------------------------------
# The cache and the requests.


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, ServerBehaviour]]:
    (tmp_path / "www").mkdir()
    with serve_folder(tmp_path / "www") as server:
        yield server


def write_text(server: ServerBehaviour, name: str, megabytes: float) -> int:
    lines = int(megabytes * (1 << 20)) // 64
    (server.folder / name).write_bytes(b"".join(b"%062d|\n" % number for number in range(lines)))
    return lines


def bodies(server: ServerBehaviour) -> list[tuple[str, str, str]]:
    return [each for each in server.requests if each[0] == "GET"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12, at the fork
def test_a_forked_process_has_connections_and_threads_of_its_own(served: tuple[str, ServerBehaviour]) -> None:
    """Workers of PyTorch's DataLoader are forked."""
    address, server = served
    write_text(server, "a.txt", 0.1)
    write_text(server, "b.txt", 0.1)
    assert open_reader(f"{address}/a.txt").sources()[0].records
    process = os.fork()
    if not process:
        code = 2
        try:
            reader = open_reader(f"{address}/b.txt")
            source = reader.sources()[0]
            code = int(len(reader.read(source.name, 0, source.records)) != source.records)
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_blocks_in_the_cache_are_not_fetched_again_by_another_process(
    served: tuple[str, ServerBehaviour], tmp_path: Path
) -> None:
    address, server = served
    lines = write_text(server, "a.txt", 3.5)
    options = {"cache": str(tmp_path / "cache")}
    reader = open_reader(f"{address}/a.txt", options)
    assert reader.sources()[0].records == lines
    fetched = len(bodies(server))
    assert 1 <= fetched <= 4
    again = open_reader(f"{address}/a.txt", options)
    assert again.sources() == reader.sources()
    assert again.read(f"{address}/a.txt", 0, lines)[-1] == b"%062d|" % (lines - 1)
    assert len(bodies(server)) == fetched


def test_the_index_of_a_remote_file_is_in_the_cache(served: tuple[str, ServerBehaviour], tmp_path: Path) -> None:
    address, server = served
    write_text(server, "a.txt", 3)
    options = {"cache": str(tmp_path / "cache")}
    open_reader(f"{address}/a.txt", options).sources()
    for block in (tmp_path / "cache").glob("*/*.block"):
        block.unlink()
    server.requests.clear()
    assert open_reader(f"{address}/a.txt", options).sources()[0].records == 3 * (1 << 14)
    assert bodies(server) == []


def test_the_cache_removes_the_blocks_that_were_used_longest_ago(
    served: tuple[str, ServerBehaviour], tmp_path: Path
) -> None:
    address, server = served
    for name in ("a.txt", "b.txt"):
        write_text(server, name, 6)
    limit = 8 << 20
    options = {"cache": str(tmp_path / "cache"), "cache_gib": limit / (1 << 30)}
    for name in ("a.txt", "b.txt"):
        open_reader(f"{address}/{name}", options).sources()
        cached_bytes = sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*"))
        assert cached_bytes <= limit
    assert len(list((tmp_path / "cache").glob("*/*.block"))) >= 6


def test_unpacked_files_come_before_blocks_in_the_cache(served: tuple[str, ServerBehaviour], tmp_path: Path) -> None:
    address, server = served
    write_text(server, "a.txt", 3)
    options = {"cache": str(tmp_path / "cache"), "cache_gib": (4 << 20) / (1 << 30)}
    open_reader(f"{address}/a.txt", options).sources()
    (server.folder / "b.txt.gz").write_bytes(gzip.compress(b"x" * 99 + b"\n" + bytes(3 << 20)))
    reader = open_reader(f"{address}/b.txt.gz", options)
    assert reader.read(reader.sources()[0].name, 0, 1) == [b"x" * 99]
    cached_bytes = sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*"))
    assert cached_bytes <= 4 << 20


def test_a_damaged_block_in_the_cache_is_fetched_again(served: tuple[str, ServerBehaviour], tmp_path: Path) -> None:
    address, server = served
    lines = write_text(server, "a.txt", 1)
    options = {"cache": str(tmp_path / "cache")}
    open_reader(f"{address}/a.txt", options).sources()
    (block,) = (tmp_path / "cache").glob("*/*.block")
    block.write_bytes(block.read_bytes()[:-1] + b"!")
    records = open_reader(f"{address}/a.txt", options).read(f"{address}/a.txt", 0, lines)
    assert records[-1] == b"%062d|" % (lines - 1)


def test_a_cache_that_cannot_be_written_does_not_end_the_job(
    served: tuple[str, ServerBehaviour], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, server = served
    lines = write_text(server, "a.txt", 2)

    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    reader = open_reader(f"{address}/a.txt", {"cache": str(tmp_path / "cache")})
    assert reader.sources()[0].records == lines


def test_a_row_group_is_fetched_by_its_columns_and_nothing_else(served: tuple[str, ServerBehaviour]) -> None:
    address, server = served
    columns = {name: np.random.default_rng(number).random(600_000) for number, name in enumerate("abcdef")}
    pq.write_table(
        pa.table(columns), server.folder / "a.parquet", row_group_size=300_000, compression="none", use_dictionary=False
    )
    reader = open_reader(f"{address}/a.parquet", {"columns": ["b"]})
    assert reader.sources()[0].records == 600_000
    server.requests.clear()
    assert reader.read(f"{address}/a.parquet", 300_000, 300_003)[0]["b"] == columns["b"][300_000]
    sizes = [int(end) - int(start) + 1 for start, end in (each[2][6:].split("-") for each in bodies(server))]
    assert sum(sizes) <= 300_000 * 8 + 3 * BLOCK_BYTES


def test_streams_read_what_files_have(served: tuple[str, ServerBehaviour]) -> None:
    address, server = served
    content = np.random.default_rng(3).bytes(5 * BLOCK_BYTES + 17)
    (server.folder / "a.bin").write_bytes(content)
    stream = RemoteStream(RemoteFile(f"{address}/a.bin", BlockStore(memory=2 * BLOCK_BYTES)))
    for start, size in ((0, 10), (BLOCK_BYTES - 5, 10), (5 * BLOCK_BYTES, 99), (3, 4 * BLOCK_BYTES), (len(content), 1)):
        stream.seek(start)
        assert stream.read(size) == content[start : start + size]
    assert stream.seek(-17, 2) == 5 * BLOCK_BYTES
    assert stream.read() == content[-17:]


# --------------------------------------------------------------------------------------------------
# What can go wrong.


def test_temporary_failures_of_a_server_are_tried_again(served: tuple[str, ServerBehaviour]) -> None:
    address, server = served
    (server.folder / "a.txt").write_text("a\nb\n")
    reader = open_reader(f"{address}/a.txt")
    server.failures += [503, 500, 429]
    assert reader.sources()[0].records == 2


def test_a_server_that_always_fails_is_a_temporary_error(served: tuple[str, ServerBehaviour]) -> None:
    address, server = served
    (server.folder / "a.txt").write_text("a\n")
    server.failures += [503] * 50
    with pytest.raises(RetryableError, match="503") as refused:
        open_reader(f"{address}/a.txt")
    assert refused.value.where == f"{address}/a.txt"


@pytest.mark.parametrize("fault", ["cut", "short", "moved"])
def test_an_answer_with_other_bytes_than_asked_for_is_asked_for_again(
    served: tuple[str, ServerBehaviour], fault: str
) -> None:
    address, server = served
    lines = write_text(server, "a.txt", 9)
    reader = open_reader(f"{address}/a.txt")
    server.faults += [fault] * 3
    assert reader.sources()[0].records == lines
    expected = (server.folder / "a.txt").read_bytes().splitlines()
    assert list(reader.read(f"{address}/a.txt", 0, lines)) == expected


@pytest.mark.parametrize(
    ("fault", "said"),
    [("cut", "cannot be read"), ("short", "were asked for"), ("moved", r"sent bytes \d+ to \d+ where bytes")],
)
def test_a_server_that_always_sends_other_bytes_is_a_temporary_error(
    served: tuple[str, ServerBehaviour], fault: str, said: str
) -> None:
    address, server = served
    write_text(server, "a.txt", 2.5)
    server.faults += [fault] * 99
    with pytest.raises(RetryableError, match=said) as refused:
        open_reader(f"{address}/a.txt").sources()
    assert refused.value.where == f"{address}/a.txt"


def test_tries_wait_longer_each_time_and_use_no_random_number_of_the_model(
    served: tuple[str, ServerBehaviour], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, server = served
    (server.folder / "a.txt").write_text("a\n")
    waits: list[float] = []
    monkeypatch.setattr(temporary_errors, "pause", waits.append)
    state = random.getstate()
    server.failures += [503] * 50
    with pytest.raises(RetryableError):
        open_reader(f"{address}/a.txt")
    assert [longest / 2 <= wait <= longest for wait, longest in zip(waits, (0.4, 0.8, 1.6), strict=True)] == [True] * 3
    assert random.getstate() == state


@pytest.mark.parametrize(("address", "tries"), [("gs://bucket/a.txt", 1), ("s3://bucket/a.txt", 4)])
def test_requests_that_their_library_tries_again_are_not_tried_again_by_edl(address: str, tries: int) -> None:
    calls = []
    with pytest.raises(RetryableError, match="no route"):
        remote_files._call(address, lambda: calls.append(1) or (_ for _ in ()).throw(ConnectionError("no route")))
    assert len(calls) == tries


@pytest.mark.repetition
def test_gcsfs_prints_no_tracebacks_of_errors_that_edl_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSPEC_GS_TOKEN", "anon")
    remote_files._file_system("gs")
    assert not logging.getLogger("gcsfs").isEnabledFor(logging.ERROR)


def test_a_server_that_is_not_there_is_a_temporary_error() -> None:
    with pytest.raises(RetryableError, match="cannot be read") as refused:
        open_reader("http://127.0.0.1:9/a.txt")
    assert refused.value.where == "http://127.0.0.1:9/a.txt"


@pytest.mark.parametrize("status", [401, 403])
def test_permission_denied_over_http_names_what_to_set(served: tuple[str, ServerBehaviour], status: int) -> None:
    address, server = served
    server.failures += [status] * 9
    with pytest.raises(BadInputError, match="permission denied") as refused:
        open_reader(f"{address}/a.txt")
    assert refused.value.where == f"{address}/a.txt"
    assert "FSSPEC_HTTP" in str(refused.value.hint)


def test_headers_from_the_environment_are_sent_with_every_request(
    served: tuple[str, ServerBehaviour], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec.config

    address, server = served
    lines = write_text(server, "a.txt", 2.5)
    server.authorization = "Bearer 1"
    environment: dict[str, Any] = {}
    fsspec.config.set_conf_env(environment, {"FSSPEC_HTTP": '{"headers": {"Authorization": "Bearer 1"}}'})
    monkeypatch.setattr(fsspec.config, "conf", environment)
    monkeypatch.setitem(fsspec.spec.apply_config.__globals__, "conf", environment)
    remote_files._file_system.cache_clear()
    try:
        assert open_reader(f"{address}/a.txt").sources()[0].records == lines
    finally:
        remote_files._file_system.cache_clear()


def test_a_missing_file_over_http_is_named(served: tuple[str, ServerBehaviour]) -> None:
    with pytest.raises(BadInputError, match="there is no such object") as refused:
        open_reader(f"{served[0]}/b.txt")
    assert refused.value.where == f"{served[0]}/b.txt"


def test_a_server_that_sends_whole_files_is_refused(served: tuple[str, ServerBehaviour]) -> None:
    address, server = served
    write_text(server, "a.txt", 12)
    server.ignores_range = True
    with pytest.raises(BadInputError, match=r"does not send parts of a file|changed"):
        open_reader(f"{address}/a.txt").sources()


def test_a_file_that_changes_within_a_fetch_is_refused(
    served: tuple[str, ServerBehaviour], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, server = served
    write_text(server, "a.txt", 9)
    reader = open_reader(f"{address}/a.txt")
    fetch = remote_files._fetch_range

    def fetch_while_it_changes(url: str, start: int, end: int, size: int) -> bytes:
        write_text(server, "a.txt", 9)
        return fetch(url, start, end, size)

    monkeypatch.setattr(remote_files, "_fetch_range", fetch_while_it_changes)
    with pytest.raises(BadInputError, match="changed while it was in use"):
        reader.sources()


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_an_object_or_a_bucket_that_is_missing_is_named(store: str, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue(store)
    for url in (bucket.url("no/such.parquet"), f"{bucket.scheme}://no-such-bucket-{uuid.uuid4().hex[:8]}/a.parquet"):
        with pytest.raises(BadInputError, match="no such object") as refused:
            open_reader(url)
        assert refused.value.where == url


def test_s3_without_credentials_names_the_variables(s3: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    forget_file_systems()
    s3.put("a.txt", b"a\n")
    with pytest.raises(BadInputError, match="there are no credentials") as refused:
        open_reader(s3.url("a.txt"))
    assert "AWS_ACCESS_KEY_ID" in str(refused.value.hint)
    assert "pod.env" in str(refused.value.hint)


def test_s3_that_refuses_names_the_object(s3: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("a.txt", b"a\n")
    # moto checks rights from the next request on.
    s3.request("POST", "/moto-api/reset-auth", b"0")
    try:
        with pytest.raises(BadInputError, match="permission denied") as refused:
            open_reader(s3.url("a.txt"))
    finally:
        s3.request("POST", "/moto-api/reset-auth", b"1000000000")
    assert refused.value.where == s3.url("a.txt")


@pytest.mark.parametrize("url", ["s3://b/x/../y", "http://h/%2e%2e/x", "https:///x", "gs://b/../c"])
def test_an_address_that_leads_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(BadInputError, match=r"leads out|no host") as refused:
        RemotePath(url, BlockStore())
    assert refused.value.where == url


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(BadInputError, match="ftp:// is not read"):
        open_reader("ftp://host/a.txt")


@pytest.mark.parametrize(("url", "extra"), [("s3://b/a", "s3"), ("gs://b/a", "gcs"), ("https://h/a", "http")])
def test_a_missing_package_names_the_extra(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_file_systems()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(BadInputError, match="needs the package") as refused:
        open_reader(url)
    assert f"edl-platform[{extra}]" in str(refused.value.hint)
    remote_files._file_system.cache_clear()


def test_options_of_the_cache_are_those_of_any_remote_format(tmp_path: Path) -> None:
    check_reader_options(["s3://b/a.parquet"], {"cache": str(tmp_path), "cache_gib": 2})
    with pytest.raises(BadInputError, match="is not allowed"):
        check_reader_options(["s3://b/a.parquet"], {"cache": "relative"})


def test_blocks_of_killed_processes_are_removed_like_others(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".00000001.block.7.8.tmp").write_bytes(bytes(5000))
    cache: Any = CacheFolder(tmp_path, 6000)
    with cache.lock():
        assert cache.evict_blocks(3000) == 6000
