"""The format, against files of the original implementation (shared golden vectors)."""

import gzip
import struct
import zlib
from pathlib import Path

import pytest

from edl.api.errors import BadInputError
from edl.data.reader import CorruptRecordError
from edl.data.reader_factory import open_reader
from edl.data.recordio.chunk import ChunkHeader
from edl.data.recordio.reader import NotRecordIOError, RecordFile
from edl.data.recordio.writer import LARGEST_RECORD, NotBytesError, RecordTooLargeError, Writer

RECORDS = [b"Hello", b"World,", b"", b"RecordIO!", b"a" * 40]

PLAIN = bytes.fromhex(
    "04030201d36b20a40000000050000000050000000500000048656c6c6f06000000576f726c642c00000000090000005265636f7264494f2128000000"
    "61616161616161616161616161616161616161616161616161616161616161616161616161616161"
)
SNAPPY = bytes.fromhex(
    "04030201644ba0c4010000008000000005000000ff060000734e6150705901080000d9c69c4305000000010900008aeeb9be48656c6c6f010800001c"
    "03ee5506000000010a0000629913bc576f726c642c01080000a67b113a0000000001080000a5b1b5a709000000010d000097a1a5715265636f726449"
    "4f2101080000e4bcd71b28000000000a000003c195912800619a0100"
)
TWO_CHUNKS = bytes.fromhex(
    "04030201b077d8d50000000017000000030000000500000048656c6c6f06000000576f726c642c00000000040302019246277c000000000d00000001"
    "000000090000005265636f7264494f21"
)


def file_of(tmp_path: Path, data: bytes) -> RecordFile:
    path = tmp_path / "data.recordio"
    path.write_bytes(data)
    return RecordFile(path)


def written(tmp_path: Path, records: list[bytes], **options: object) -> bytes:
    path = tmp_path / "written.recordio"
    with Writer(path, **options) as writer:
        for record in records:
            writer.write(record)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("data", "records"), [(PLAIN, RECORDS), (SNAPPY, RECORDS), (TWO_CHUNKS, RECORDS[:4])], ids=["none", "snappy", "two"]
)
def test_reads_the_files_of_the_original(tmp_path: Path, data: bytes, records: list[bytes]) -> None:
    file = file_of(tmp_path, data)
    assert file.records == len(records)
    assert file.read() == records


def test_writes_uncompressed_files_byte_for_byte(tmp_path: Path) -> None:
    assert written(tmp_path, RECORDS) == PLAIN


def test_applies_the_chunk_rule_and_goes_on_after_a_refused_record(tmp_path: Path) -> None:
    path = tmp_path / "two.recordio"
    with Writer(path, chunk_limit=12) as writer:
        for record in RECORDS[:4]:
            writer.write(record)
        with pytest.raises(RecordTooLargeError, match="record 4 has 40 bytes"):
            writer.write(RECORDS[4])
    assert path.read_bytes() == TWO_CHUNKS


def test_a_chunk_limit_of_32_mib_gives_the_chunks_of_the_original(tmp_path: Path) -> None:
    # 70 records of 1 MiB and one of 32 MiB - 1 gave chunks of 32, 32, 6 and 1 records.
    mebibyte = bytes(1024 * 1024)
    path = tmp_path / "large.recordio"
    with Writer(path, chunk_limit=32 << 20) as writer:
        for _ in range(70):
            writer.write(mebibyte)
        writer.write(bytes((32 << 20) - 1))
        with pytest.raises(RecordTooLargeError):
            writer.write(bytes(32 << 20))
    index = RecordFile(path).index
    assert [header.records for header in index.headers] == [32, 32, 6, 1]
    assert RecordFile(path).read(63, 66) == [mebibyte] * 3


def test_chunks_have_one_mib_by_default_and_larger_records_one_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "default.recordio"
    records = [bytes(1 << 18)] * 9 + [bytes(5 << 20), b"last"]
    with Writer(path) as writer:
        for record in records:
            writer.write(record)
        with pytest.raises(RecordTooLargeError, match="must be smaller than 33554432"):
            writer.write(bytes(LARGEST_RECORD))
    assert [header.records for header in RecordFile(path).index.headers] == [4, 4, 1, 1, 1]
    assert RecordFile(path).read() == records


def test_snappy_frames_span_records_and_stay_within_what_the_original_reads(tmp_path: Path) -> None:
    data = written(tmp_path, [bytes([number]) * 1000 for number in range(200)], compression="snappy")
    header, payload = ChunkHeader.parse(data[:20]), data[20:]
    assert header is not None
    assert payload.startswith(bytes.fromhex("ff060000734e61507059"))
    kinds, position = [], 10
    while position < len(payload):
        kinds.append(payload[position])
        position += 4 + int.from_bytes(payload[position + 1 : position + 4], "little")
    assert position == len(payload)
    assert set(kinds) <= {0, 1}
    assert len(kinds) == -(-200 * 1004 // 65536)


def test_reads_gzip_which_the_original_hangs_on(tmp_path: Path) -> None:
    payload = gzip.compress(PLAIN[20:])
    header = struct.pack("<5I", 0x01020304, zlib.crc32(payload), 2, len(payload), len(RECORDS))
    assert file_of(tmp_path, header + payload).read() == RECORDS


def test_concatenated_files_are_a_file_and_may_mix_compressors(tmp_path: Path) -> None:
    file = file_of(tmp_path, PLAIN + SNAPPY + TWO_CHUNKS)
    assert file.records == 14
    assert file.read() == RECORDS + RECORDS + RECORDS[:4]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    assert file_of(tmp_path, b"").records == 0
    assert written(tmp_path, []) == b""


# The table "Reader behaviour", row by row.


def test_the_index_walks_headers_without_checksums(tmp_path: Path) -> None:
    damaged = bytearray(PLAIN)
    damaged[30] ^= 1
    assert file_of(tmp_path, bytes(damaged)).records == 5


def test_a_truncated_payload_is_counted_and_reading_it_is_an_error(tmp_path: Path) -> None:
    file = file_of(tmp_path, TWO_CHUNKS + PLAIN[:-10])
    assert file.records == 9
    assert file.read(0, 4) == RECORDS[:4]
    with pytest.raises(CorruptRecordError, match="truncated: 70 of 80 bytes") as caught:
        file.read()
    assert (caught.value.corrupt.start, caught.value.corrupt.end) == (4, 9)
    assert (caught.value.corrupt.chunk, caught.value.corrupt.offset) == (2, 76)
    assert f"{file.path}, chunk 2 at byte 76: records 4 to 8" in str(caught.value)


def test_the_whole_chunk_is_damaged_whichever_part_of_it_is_read(tmp_path: Path) -> None:
    file = file_of(tmp_path, TWO_CHUNKS + PLAIN[:-10])
    with pytest.raises(CorruptRecordError) as caught:
        file.read(5, 7)
    assert (caught.value.corrupt.start, caught.value.corrupt.end) == (5, 7)
    assert "records 4 to 8 cannot be read" in str(caught.value)
    assert "at least 5 to skip" in str(caught.value)


def test_a_wrong_checksum_is_an_error_or_a_counted_skip(tmp_path: Path) -> None:
    damaged = bytearray(PLAIN + TWO_CHUNKS + PLAIN)
    damaged[len(PLAIN) + 30] ^= 1  # in the payload of the second chunk, records 5 to 7
    file = file_of(tmp_path, bytes(damaged))
    with pytest.raises(CorruptRecordError, match="records 5 to 7 cannot be read: checksum"):
        file.read()
    skipped: list[tuple[int, int]] = []
    rest = file.read(on_corrupt=lambda corrupt: skipped.append((corrupt.start, corrupt.end)))
    assert rest == [*RECORDS, RECORDS[3], *RECORDS]
    assert skipped == [(5, 8)]


@pytest.mark.parametrize("data", [PLAIN + b"junk", b"junk", b"not a recordio file at all", PLAIN[:19]])
def test_junk_is_a_runtime_error_of_the_index(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(RuntimeError, match="failed to read the index") as caught:
        _ = file_of(tmp_path, data).records
    assert isinstance(caught.value, NotRecordIOError)
    assert isinstance(caught.value, BadInputError)
    assert "data.recordio" in str(caught.value)


def test_a_range_is_clipped_at_the_end_of_a_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, PLAIN)
    assert file.read(3, 100) == RECORDS[3:]
    assert file.read(5, 100) == file.read(100, 200) == file.read(3, 3) == []


def test_empty_records_do_not_end_anything(tmp_path: Path) -> None:
    records = [b"", b"", b"x", b""]
    path = tmp_path / "empty.recordio"
    path.write_bytes(written(tmp_path, records))
    reader = open_reader(path)
    assert reader.read(str(path), 0, 4) == records


def test_writing_what_is_not_bytes_is_a_value_error(tmp_path: Path) -> None:
    with Writer(tmp_path / "x.recordio") as writer:
        for wrong in ("text", 3, None):
            with pytest.raises(ValueError, match="pass bytes") as caught:
                writer.write(wrong)  # type: ignore[arg-type]
            assert isinstance(caught.value, NotBytesError)
        writer.write(bytearray(b"fine"))  # type: ignore[arg-type]
    assert RecordFile(tmp_path / "x.recordio").read() == [b"fine"]
