"""The bytes of a chunk: the header, the compression, and the records within a payload."""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from edl.api.errors import BadInputError
from edl.data.reader import PackedRecords
from edl.numerics.checksum import crc32

try:  # takes a twentieth of the time: workers divide the chunks of a shuffled window several times per epoch
    from edl.data import _records
except ImportError:
    _NATIVE = False
else:
    _NATIVE = sys.byteorder == "little"

Compression: TypeAlias = Literal["none", "snappy", "gzip"]
COMPRESSORS: dict[Compression, int] = {"none": 0, "snappy": 1, "gzip": 2}
_COMPRESSOR_NAMES = {number: name for name, number in COMPRESSORS.items()}

CHUNK_MAGIC = 0x01020304
_HEADER = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
LENGTH_BYTES = _LENGTH.size


class CorruptChunkError(Exception):
    """A chunk's bytes do not match its header. The reader adds file and chunk, and raises an error of EDL."""


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The 20 bytes before a payload.

    Args:
        checksum: CRC-32 (IEEE) of the stored payload.
        compressor: 0 none, 1 snappy framing, 2 gzip.
        size: size of the stored payload in bytes.
        records: number of records in the chunk.
    """

    checksum: int
    compressor: int
    size: int
    records: int

    @classmethod
    def parse(cls, data: bytes) -> ChunkHeader | None:
        """Parse a header; None if the bytes are too short or have another magic number."""
        if len(data) != HEADER_BYTES:
            return None
        magic, *fields = _HEADER.unpack(data)
        return cls(*fields) if magic == CHUNK_MAGIC else None

    def pack(self) -> bytes:
        return _HEADER.pack(CHUNK_MAGIC, self.checksum, self.compressor, self.size, self.records)


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """A verified, decompressed payload. Record i is ``payload[bounds[i] + 4 : bounds[i + 1]]``."""

    payload: bytes
    bounds: array[int]

    def slice_records(self, first: int, last: int) -> list[bytes]:
        """Records ``[first, last)`` of the chunk."""
        return PackedRecords(self.payload, self.bounds, LENGTH_BYTES)[first:last]


@dataclass(frozen=True, slots=True)
class ChunkParts:
    """Where some records of a verified, uncompressed chunk are, to read a part of it alone, and to verify that part.

    Args:
        records: the chunk's number of records.
        step: number of records of each part; the last one may have fewer.
        offsets: where each part begins in the payload, and at the end the payload's size.
        checksums: CRC-32 of the payload up to each offset.
    """

    records: int
    step: int
    offsets: array[int]
    checksums: array[int]

    @classmethod
    def divide(cls, chunk: DecodedChunk, step: int) -> ChunkParts:
        """The parts of a chunk, which need not be verified: the last checksum is that of the payload."""
        offsets = chunk.bounds[:-1:step]
        offsets.append(len(chunk.payload))
        view, checksums = memoryview(chunk.payload), array("L", [0])
        for begin, end in pairwise(offsets):
            checksums.append(crc32(view[begin:end], checksums[-1]))
        return cls(len(chunk.bounds) - 1, step, offsets, checksums)

    def parts_of_range(self, first: int, last: int) -> range:
        """Numbers of the parts with the records ``[first, last)``."""
        return range(first // self.step, -(-last // self.step))

    def decode(self, parts: range, stored: bytes) -> DecodedChunk:
        """Verify and divide the bytes of some parts.

        Raises:
            CorruptChunkError: these are other bytes than when the whole chunk was verified.
        """
        if crc32(stored, self.checksums[parts.start]) != self.checksums[parts.stop]:
            raise CorruptChunkError(f"wrong checksum of {len(stored)} bytes of the chunk")
        count = min(parts.stop * self.step, self.records) - parts.start * self.step
        return DecodedChunk(stored, _record_bounds(stored, count))


def encode_chunk(records: Iterable[bytes], compression: Compression) -> bytes:
    """Header and payload of one chunk. Without compression, the bytes equal those of pyrecordio's writer."""
    parts: list[bytes] = []
    for record in records:
        parts += (_LENGTH.pack(len(record)), record)
    stored = _compress_payload(b"".join(parts), compression)
    return ChunkHeader(crc32(stored), COMPRESSORS[compression], len(stored), len(parts) // 2).pack() + stored


def decode_chunk(header: ChunkHeader, stored: bytes) -> DecodedChunk:
    """Verify, decompress and divide a payload.

    Raises:
        CorruptChunkError: the payload is truncated or has a wrong checksum, the compressor is unknown or fails, or the
            lengths of the records do not add up.
    """
    if len(stored) < header.size:
        raise CorruptChunkError(f"the payload is truncated: {len(stored)} of {header.size} bytes")
    checksum = crc32(stored)
    if checksum != header.checksum:
        raise CorruptChunkError(f"checksum {checksum:#010x} instead of {header.checksum:#010x}")
    payload = _decompress_payload(stored, header.compressor)
    return DecodedChunk(payload, _record_bounds(payload, header.records))


def decode_large_chunk(header: ChunkHeader, stored: bytes, step: int) -> tuple[DecodedChunk, ChunkParts]:
    """As ``decode_chunk``, of an uncompressed payload, with parts of ``step`` records."""
    try:
        chunk = DecodedChunk(stored, _record_bounds(stored, header.records))
        parts = ChunkParts.divide(chunk, step)
    except CorruptChunkError:
        parts = None
    if parts is None or len(stored) < header.size or parts.checksums[-1] != header.checksum:
        decode_chunk(header, stored)  # says why
        raise CorruptChunkError("the parts of the payload have another checksum than the whole")
    return chunk, parts


def _record_bounds(payload: bytes, records: int) -> array[int]:
    bounds = array("Q")
    if _NATIVE:
        ends = _records.record_ends(payload, records)
        if ends is None:
            raise _lengths_differ(payload, records)
        bounds.frombytes(ends)
        return bounds
    bounds.append(0)
    position = 0
    length_at, append = _LENGTH.unpack_from, bounds.append
    try:
        for _ in range(records):
            position += LENGTH_BYTES + length_at(payload, position)[0]
            append(position)
    except struct.error:
        position = -1
    if position != len(payload):
        raise _lengths_differ(payload, records)
    return bounds


def _lengths_differ(payload: bytes, records: int) -> CorruptChunkError:
    return CorruptChunkError(f"the lengths of its {records} records do not add up to {len(payload)} bytes")


def _compress_payload(payload: bytes, compression: Compression) -> bytes:
    if compression == "snappy":
        # One compressed stream of frames of up to 64 KiB; records may span frames, which pyrecordio reads too.
        return bytes(_import_cramjam().snappy.compress(payload))
    # mtime=0, so that equal records give equal files
    return gzip.compress(payload, mtime=0) if compression == "gzip" else payload


def _decompress_payload(stored: bytes, compressor: int) -> bytes:
    name = _COMPRESSOR_NAMES.get(compressor)
    if name is None:
        raise CorruptChunkError(f"unknown compressor {compressor}")
    if name == "snappy":
        return _decompress_snappy(stored)
    try:
        return gzip.decompress(stored) if name == "gzip" else stored
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptChunkError(f"gzip: {error}") from error


def _decompress_snappy(stored: bytes) -> bytes:
    cramjam = _import_cramjam()
    try:
        return bytes(cramjam.snappy.decompress(stored))
    except cramjam.DecompressionError as error:
        raise CorruptChunkError(f"snappy: {error}") from error


def _import_cramjam() -> Any:
    try:
        import cramjam
    except ImportError as error:
        raise BadInputError(
            "snappy compression needs the package cramjam", hint="pip install 'edl-platform[train]'"
        ) from error
    return cramjam
