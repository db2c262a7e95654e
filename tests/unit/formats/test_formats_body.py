"""Compressed bodies and batches: golden bytes, limits, both directions, any bytes."""

from __future__ import annotations

import struct
import sys
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError, MissingCodecError
from rmqtool.formats import batch, body
from rmqtool.formats.body import Compression
from tests.support.missing_codec import hide_lz4

CODECS: list[Compression] = ["zlib", "lz4", "zstd"]
MIB = 1 << 20


@pytest.mark.parametrize(
    ("sys_flag", "compression"),
    [
        (0, "none"),
        (0x700, "none"),
        (1, "zlib"),
        (0x101, "lz4"),
        (0x201, "zstd"),
        (0x301, "zlib"),
        (0x3B1, "zlib"),
    ],
)
def test_compression_of(sys_flag: int, compression: Compression) -> None:
    assert body.compression_of(sys_flag) == compression


@pytest.mark.parametrize("sys_flag", [0x401, 0x501, 0x601, 0x701, -1])
def test_unknown_compression(sys_flag: int) -> None:
    with pytest.raises(FormatError, match="unknown compression type"):
        body.decompress(b"x", sys_flag)


@given(st.binary(max_size=2000), st.sampled_from(["none", *CODECS]))
def test_body_round_trip(plain: bytes, compression: Compression) -> None:
    sys_flag = body.compression_bits(compression)
    assert body.compression_of(sys_flag) == compression
    stored = body.compress(plain, compression)
    assert body.decompress(stored, sys_flag) == plain
    if compression != "none":
        assert body.decompress(stored, sys_flag, limit=len(plain)) == plain
        if plain:
            with pytest.raises(FormatError, match=f"more than {len(plain) - 1} bytes"):
                body.decompress(stored, sys_flag, limit=len(plain) - 1)


@pytest.mark.parametrize("compression", CODECS)
def test_every_cut_of_a_body_is_refused(compression: Compression) -> None:
    plain = b"a body that is cut somewhere " * 9
    stored = body.compress(plain, compression)
    for length in range(len(stored)):
        with pytest.raises(FormatError):
            body.decompress(stored[:length], body.compression_bits(compression))


@pytest.mark.parametrize("compression", CODECS)
def test_a_refused_body_does_not_spoil_the_next(compression: Compression) -> None:
    """A thread uses one decompressor for all bodies."""
    sys_flag = body.compression_bits(compression)
    first, second = b"a body that is damaged somewhere " * 9, b"another one " * 99
    stored, whole = body.compress(first, compression), body.compress(second, compression)
    for place in range(len(stored)):
        damaged = bytearray(stored)
        damaged[place] ^= 0x40
        for refused in (stored[:place], bytes(damaged)):
            with suppress(FormatError):  # a flipped bit may give other bytes
                body.decompress(refused, sys_flag)
            assert body.decompress(whole, sys_flag) == second
    with pytest.raises(FormatError, match="more than"):
        body.decompress(stored, sys_flag, limit=1)
    assert body.decompress(whole, sys_flag) == second


@pytest.mark.parametrize("compression", CODECS)
def test_threads_do_not_share_a_decompressor(compression: Compression) -> None:
    sys_flag = body.compression_bits(compression)
    plain = [bytes([number]) * (number << 12) for number in range(1, 32)]
    stored = [body.compress(each, compression) for each in plain]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(8):
            assert list(pool.map(lambda each: body.decompress(each, sys_flag), stored)) == plain


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_frames_in_a_row_are_one_body(compression: Compression) -> None:
    stored = body.compress(b"one ", compression) + body.compress(b"two", compression)
    assert body.decompress(stored, body.compression_bits(compression)) == b"one two"
    with pytest.raises(FormatError):
        body.decompress(stored + b"behind", body.compression_bits(compression))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("plain", [b"", b"x"])
def test_a_crowd_of_frames_is_refused_soon(compression: Compression, plain: bytes) -> None:
    """As many as are allowed, each read once; of more than that no further one is looked at."""
    frame, sys_flag = body.compress(plain, compression), body.compression_bits(compression)
    most = body.FRAMES_LIMIT
    assert body.decompress(frame * most, sys_flag) == plain * most
    stored = frame * 300_000
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=f"more than {most} frames"):
            body.decompress(stored, sys_flag)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("size", [0, 100, 4095, 4096, 70_000, MIB + 1])
def test_frames_end_anywhere_in_a_piece(compression: Compression, size: int) -> None:
    """Frames of bytes that do not compress, so that pieces end before, at and behind their ends."""
    plain = b"".join(struct.pack(">I", n * 2654435761 & 0xFFFFFFFF) for n in range(size // 4)) + b"x"
    sys_flag = body.compression_bits(compression)
    stored = body.compress(plain, compression) * 3 + body.compress(b"end", compression)
    whole = plain * 3 + b"end"
    assert body.decompress(stored, sys_flag) == whole
    assert body.decompress(stored, sys_flag, limit=len(whole)) == whole
    with pytest.raises(FormatError, match="more than"):
        body.decompress(stored, sys_flag, limit=len(whole) - 1)
    with pytest.raises(FormatError):
        body.decompress(stored[:-1], sys_flag)


def test_what_follows_a_zlib_stream_is_not_read() -> None:
    assert body.decompress(zlib.compress(b"body") + b"behind", 1) == b"body"


@pytest.mark.parametrize("compression", CODECS)
def test_a_large_body(compression: Compression) -> None:
    plain = b"".join(struct.pack(">I", number * 2654435761 & 0xFFFFFFFF) for number in range(MIB))
    stored = body.compress(plain, compression, level=1)
    assert body.decompress(stored, body.compression_bits(compression)) == plain


@given(st.binary(max_size=200), st.sampled_from([1, 0x101, 0x201]), st.integers(0, 3))
def test_any_body_gives_bytes_or_a_format_error(data: bytes, sys_flag: int, kind: int) -> None:
    heads = (b"", b"\x78\x9c", bytes.fromhex("04224d18"), bytes.fromhex("28b52ffd"))
    try:
        assert len(body.decompress(heads[kind] + data, sys_flag, limit=MIB)) <= MIB
    except FormatError:
        return


def zlib_bomb() -> bytes:
    """2 GiB of zeros: a flushed block of deflate, many times."""
    packer = zlib.compressobj(9)
    first = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * 2047


def zstd_bomb() -> bytes:
    """A frame that claims 2**60 bytes and holds 2 GiB: run-length blocks of 128 KiB."""
    head = bytes.fromhex("28b52ffd c0 70") + (1 << 60).to_bytes(8, "little")
    block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    return head + block * 16384


def lz4_bomb() -> bytes:
    """512 MiB of zeros."""
    return body.compress(bytes(512 * MIB), "lz4")


@pytest.mark.parametrize(
    ("bomb", "sys_flag"), [(zlib_bomb, 1), (zstd_bomb, 0x201), (lz4_bomb, 0x101)], ids=["zlib", "zstd", "lz4"]
)
def test_a_bomb_stops_at_the_limit(bomb, sys_flag: int) -> None:
    stored = bomb()
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="more than 4194304 bytes") as caught:
            body.decompress(stored, sys_flag, limit=4 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(stored) + 16 * MIB
    assert caught.value.hint


def test_a_missing_codec_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_lz4(monkeypatch)
    with pytest.raises(MissingCodecError) as caught:
        body.decompress(b"x", 0x101)
    assert caught.value.hint == "pip install lz4"
    assert caught.value.exit_code == 3


def test_zlib_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    body._zlib.cache_clear()
    try:
        assert body._zlib().__name__ == "zlib"
        test_every_cut_of_a_body_is_refused("zlib")
        assert body.decompress(zlib.compress(b"body" * 99), 1) == b"body" * 99
        with pytest.raises(FormatError, match="more than"):
            body.decompress(zlib_bomb(), 1, limit=MIB)
    finally:
        body._zlib.cache_clear()


def test_zstd_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape that Python 3.14's module has, on top of zlib's decompressor."""

    class Decompressor:
        def __init__(self) -> None:
            self.stream, self.rest = zlib.decompressobj(), b""

        def decompress(self, data: bytes, max_length: int) -> bytes:
            result = self.stream.decompress(self.rest + data, max_length)
            self.rest = self.stream.unconsumed_tail
            return result

        eof = property(lambda self: self.stream.eof)
        unused_data = property(lambda self: self.stream.unused_data)

    class Compressor:
        FLUSH_BLOCK = zlib.Z_SYNC_FLUSH

        def __init__(self, options: dict[str, int]) -> None:
            assert options == {"level": body.DEFAULT_LEVEL, "content size": 0}
            self.stream = zlib.compressobj(options["level"])

        def compress(self, data: bytes, mode: int) -> bytes:
            return self.stream.compress(data) + self.stream.flush(mode)

        def flush(self) -> bytes:
            return self.stream.flush()

    module = ModuleType("compression.zstd")
    module.ZstdDecompressor, module.ZstdError, module.ZstdCompressor = Decompressor, zlib.error, Compressor
    module.CompressionParameter = SimpleNamespace(compression_level="level", content_size_flag="content size")
    monkeypatch.setattr(body, "_zstd", lambda: module)
    stored = body.compress(b"a" * 3 * MIB, "zstd")
    assert body.decompress(stored + stored, 0x201) == b"a" * 6 * MIB
    with pytest.raises(FormatError, match="too early"):
        body.decompress(stored[:-1], 0x201)
    with pytest.raises(FormatError, match="more than"):
        body.decompress(stored, 0x201, limit=MIB)


@pytest.mark.parametrize(
    ("compression", "start", "end"),
    [
        ("zlib", "785e", ""),
        ("lz4", "04224d18607073", "00000000"),  # 4 MiB blocks, independent, no sizes and checksums
        ("zstd", "28b52ffd0058", "010000"),  # no content size, window of 2 MiB; an empty last block
    ],
)
def test_frames_are_those_of_the_java_client(compression: body.Compression, start: str, end: str) -> None:
    """As in the records of real stores."""
    stored = body.compress(b"delta invoice cart " * 60, compression).hex()
    assert stored.startswith(start)
    assert stored.endswith(end)


# Spec 01 section 14.6.
GOLDEN_ITEM = "00000022 00000000 00000000 00000000 00000005 68656c6c6f 0007 54414753014142"


def test_golden_batch_item() -> None:
    data = bytes.fromhex(GOLDEN_ITEM)
    item = batch.item(b"hello", b"TAGS\x01AB")
    assert (item.total_size, item.flag) == (34, 0)
    assert batch.encode_items([item]) == data
    assert list(batch.decode_items(data + data)) == [item, item]
    assert list(batch.decode_items(b"")) == []


ITEMS = st.builds(
    batch.BatchItem,
    *[st.integers(-(1 << 31), (1 << 31) - 1)] * 4,
    st.binary(max_size=30),
    st.binary(max_size=30),
)


@given(st.lists(ITEMS, max_size=4))
def test_batch_round_trip_and_declaration(items: list[batch.BatchItem]) -> None:
    data = batch.encode_items(items)
    assert list(batch.decode_items(data)) == items
    for item in items:
        one = batch.encode_items([item])
        parsed = batch.ITEM.parse(one)
        assert batch.ITEM.build(dict(parsed)) == one
        names = ("total_size", "magic", "body_crc", "flag", "body", "properties")
        assert [parsed[name] for name in names] == [
            item.total_size, item.magic, item.body_crc, item.flag, item.body, item.properties_bytes,
        ]  # fmt: skip


@given(st.binary(max_size=120) | st.binary(max_size=20).map(lambda end: bytes.fromhex(GOLDEN_ITEM) + end))
def test_any_batch_gives_items_or_a_format_error(data: bytes) -> None:
    items = []
    try:
        for item in batch.decode_items(data):
            items.append(item)
    except FormatError:
        assert data.startswith(batch.encode_items(items))
    else:
        assert batch.encode_items(items) == data


@pytest.mark.parametrize(
    "lengths", [(-1, 0), (6, 0), (0x7FFFFFFF, 0), (0, -1), (0, 8)], ids=lambda lengths: str(lengths)
)
def test_batch_lengths_are_checked(lengths: tuple[int, int]) -> None:
    data = struct.pack(">iiiii", 22, 0, 0, 0, lengths[0]) + struct.pack(">h", lengths[1]) + b"four"
    with pytest.raises(FormatError, match="does not fit"):
        list(batch.decode_items(data))


def test_a_batch_ends_at_what_a_unit_can_count() -> None:
    """Zeros are items, and 50 kB of zlib unpack to two millions of them."""
    most = bytes(batch.MIN_ITEM_SIZE * 32767)
    assert sum(1 for _ in batch.decode_items(most)) == 32767
    items = batch.decode_items(most + bytes(batch.MIN_ITEM_SIZE))
    with pytest.raises(FormatError, match="more than 32767 messages"):
        for _ in range(32768):
            next(items)


def test_a_batch_value_that_does_not_fit() -> None:
    with pytest.raises(FormatError, match="do not fit"):
        batch.encode_items([batch.item(b"", bytes(1 << 15))])
    with pytest.raises(FormatError, match="does not fit"):
        batch.encode_items([batch.item(b"", b"", flag=1 << 31)])
