"""Compressed bodies: which codec, decompression within a limit, compression.

The producer compresses; the store never does. The `body` of a record holds the compressed bytes, and
`body_crc` covers them. zlib is a stream with header (RFC 1950), lz4 and zstd are frames.

Source: MessageSysFlag, CompressionType#findByValue, ZlibCompressor, Lz4Compressor, ZstdCompressor;
spec 01 section 3.3.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache, cached_property
from threading import local
from types import ModuleType
from typing import Any, Literal, Protocol, cast

from rmqtool.errors import FormatError, MissingCodecError
from rmqtool.formats.message import COMPRESSED, COMPRESSION_TYPE_MASK

Compression = Literal["none", "zlib", "lz4", "zstd"]

BODY_LIMIT = 64 << 20
"""Default limit on the size of a decompressed body, bytes."""

FRAMES_LIMIT = 1000
"""Most frames that a body may have. Producers write one; each costs time, however little it holds."""

DEFAULT_LEVEL = 5  # DefaultMQProducerImpl: rocketmq.message.compressLevel

_CHUNK = 1 << 20  # most bytes that one call of a decompressor takes or returns
_FIRST_ROOM = 64 << 10  # most bytes of the first results: lz4 allocates as many for each
_FIRST_PIECE = 4 << 10  # most bytes of a frame's first piece; each further piece is twice as long
_ZSTD_BLOCK = 128 << 10  # most that one zstd block decompresses to
_ZSTD_MIN_INPUT = 4  # fewest bytes that such a block takes (run-length block)
_TYPE_SHIFT = 8
_BY_TYPE: dict[int, Compression] = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}
_TYPE_OF: dict[Compression, int] = {"lz4": 1, "zstd": 2, "zlib": 3}


def compression_of(sys_flag: int) -> Compression:
    """The compression that a record's sys_flag names.

    The type bits count only if the COMPRESSED bit is set; type 0 (older clients) is zlib.

    Raises:
        FormatError: RocketMQ does not define the type.
    """
    if not sys_flag & COMPRESSED:
        return "none"
    kind = (sys_flag & COMPRESSION_TYPE_MASK) >> _TYPE_SHIFT
    if kind not in _BY_TYPE:
        raise FormatError(f"unknown compression type {kind} in sys_flag {sys_flag:#x}")
    return _BY_TYPE[kind]


def compression_bits(compression: Compression) -> int:
    """The sys_flag bits for `compression`; 0 for `none`."""
    return 0 if compression == "none" else COMPRESSED | _TYPE_OF[compression] << _TYPE_SHIFT


def decompress(body: bytes, sys_flag: int, *, limit: int = BODY_LIMIT) -> bytes:
    """The body as the producer had it.

    The output grows piece by piece and stops at the limit, whatever size a header claims. Consecutive
    frames form one body. Bytes after the end of a zlib stream are ignored, as in Java.

    Args:
        body: the stored bytes.
        sys_flag: the record's; without the COMPRESSED bit `body` is returned as it is.
        limit: most bytes of the result. It does not apply to a body that is not compressed.

    Raises:
        FormatError: unknown type, damaged or cut bytes, a result over `limit` bytes, or more than
            `FRAMES_LIMIT` frames.
        MissingCodecError: the library for the compression is not installed.
    """
    compression = compression_of(sys_flag)
    if compression == "none":
        return body
    if not body:
        raise FormatError(f"an empty body is not valid {compression} data")
    if compression == "zlib":
        zlib = _zlib()
        return _inflate(body, limit, "zlib", zlib.decompressobj, zlib.error, one_stream=True)
    if compression == "lz4":
        return _inflate(body, limit, "lz4", _of_thread.lz4, RuntimeError)
    return _unzstd(body, limit)


def compress(body: bytes, compression: Compression, *, level: int = DEFAULT_LEVEL) -> bytes:
    """`body` compressed; `compression_bits` gives the sys_flag bits that belong to it.

    The bytes are those of the Java client, as long as the libraries compress alike: lz4 in independent
    blocks of 4 MiB without checksums, zstd as a stream, whose end is an empty block.

    Raises:
        MissingCodecError: the library for the compression is not installed.

    Source: LZ4FrameOutputStream#<init>; ZstdOutputStream#close (zstd-jni).
    """
    if compression == "none":
        return body
    if compression == "zlib":
        import zlib

        return zlib.compress(body, level)
    if compression == "lz4":
        frame = _codec("lz4.frame", "lz4")
        packer = frame.LZ4FrameCompressor(block_size=frame.BLOCKSIZE_MAX4MB, block_linked=False)
        return bytes(packer.begin() + packer.compress(body) + packer.flush())
    zstd = _zstd()
    if zstd.__name__ == "zstandard":
        stream = zstd.ZstdCompressor(level=level, write_content_size=False).compressobj()
        return bytes(stream.compress(body) + stream.flush(zstd.COMPRESSOBJ_FLUSH_BLOCK) + stream.flush())
    names = zstd.CompressionParameter
    packer = zstd.ZstdCompressor(options={names.compression_level: level, names.content_size_flag: 0})
    return bytes(packer.compress(body, packer.FLUSH_BLOCK) + packer.flush())


def unpack_block(data: bytes, codec: str, size: int) -> bytes:
    """A block of a RocksDB table, decompressed: exactly `size` bytes of `snappy`, `zlib`, `lz4` or `zstd`.

    Raises:
        FormatError: damaged bytes, or another size.
        MissingCodecError: the library for the compression is not installed.
    """
    found = b""
    try:
        if codec == "zlib":  # without header
            found = _zlib().decompressobj(-15).decompress(data, size + 1)
        elif codec == "lz4":
            found = _codec("lz4.block", "lz4").decompress(data, uncompressed_size=size)
        elif codec == "snappy":
            found = _codec("pyarrow", "pyarrow").decompress(data, size, "snappy", asbytes=True)
        elif (zstd := _zstd()).__name__ == "zstandard":
            found = zstd.ZstdDecompressor().decompress(data, max_output_size=size)
        else:
            found = zstd.ZstdDecompressor().decompress(data, size + 1)
    except MissingCodecError:
        raise
    except Exception as error:  # each library has its own classes
        raise FormatError(f"damaged {codec} block: {error}") from error
    if len(found) != size:
        raise FormatError(f"a {codec} block of {size} bytes decompresses to {len(found)} bytes")
    return bytes(found)


def is_reproduced(stored: bytes, plain: bytes, sys_flag: int) -> bool:
    """Whether `compress` turns `plain` into exactly `stored`; always true for an uncompressed body.

    Another version of the library, or another level, gives different bytes that decompress to the same.

    Raises:
        FormatError: RocketMQ does not define the compression type.
        MissingCodecError: the library for it is not installed.
    """
    return compress(plain, compression_of(sys_flag)) == stored


def missing_codec(stored: bytes, sys_flag: int) -> str:
    """Which library a stored body needs and how to install it; empty when the body can be decompressed.

    Raises:
        FormatError: the body is damaged, or the type of its compression is unknown.
    """
    try:
        decompress(stored, sys_flag)
    except MissingCodecError as error:
        return f"{error.message}: {error.hint}" if error.hint else error.message
    return ""


class _Stream(Protocol):
    """A decompressor of the standard library's shape."""

    eof: bool
    unused_data: bytes | None

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes: ...


def _over(limit: int) -> FormatError:
    return FormatError(
        f"the body decompresses to more than {limit} bytes", hint="raise the limit for bodies to read it"
    )


def _damaged(name: str, error: Exception) -> FormatError:
    return FormatError(f"damaged {name} body: {error}")


def _cut(name: str) -> FormatError:
    return FormatError(f"the {name} body ends too early")


def _one_more(frames: int, name: str) -> int:
    if frames == FRAMES_LIMIT:
        raise FormatError(f"the {name} body has more than {FRAMES_LIMIT} frames")
    return frames + 1


def _inflate(
    body: bytes,
    limit: int,
    name: str,
    decompressor: Callable[[], _Stream],
    error_type: type[Exception],
    *,
    one_stream: bool = False,
) -> bytes:
    result = bytearray()
    view = memoryview(body)
    position = frames = 0
    while position < len(body):
        frames = _one_more(frames, name)
        stream = decompressor()
        # In small pieces: a decompressor copies the input that it does not use, and frames may be tiny.
        data: bytes | memoryview = b""
        piece, most, is_full = _FIRST_PIECE, _FIRST_ROOM, False
        while not stream.eof:
            if not data and not is_full:
                data = view[position : position + piece]
                position += len(data)
                piece = min(2 * piece, _CHUNK)
            # One byte more than the limit is enough to see that it is exceeded.
            room = min(most, limit + 1 - len(result))
            try:
                chunk = stream.decompress(data, room)
            except error_type as error:
                raise _damaged(name, error) from error
            if not chunk and not data and position == len(body) and not stream.eof:
                raise _cut(name)
            result += chunk
            if len(result) > limit:
                raise _over(limit)
            is_full = len(chunk) == room  # then more output may come without more input
            most = _CHUNK if is_full else most
            data = getattr(stream, "unconsumed_tail", b"")
        if one_stream:
            break
        position -= len(stream.unused_data or b"")
    return bytes(result)


def _unzstd(body: bytes, limit: int) -> bytes:
    zstd = _zstd()
    if zstd.__name__ != "zstandard":
        return _inflate(body, limit, "zstd", zstd.ZstdDecompressor, zstd.ZstdError)
    # zstandard's decompressobj cannot limit its output. Its reader can, but does not distinguish a cut
    # frame from a whole one. So limit the input: 4 bytes never give more than one block.
    result = bytearray()
    view = memoryview(body)
    position = frames = 0
    while position < len(body):
        frames = _one_more(frames, "zstd")
        stream = _of_thread.zstandard()
        piece = _FIRST_PIECE
        while not stream.eof:
            if position == len(body):
                raise _cut("zstd")
            most = max((limit - len(result)) // _ZSTD_BLOCK, 1) * _ZSTD_MIN_INPUT
            data = view[position : position + min(most, piece)]
            position += len(data)
            piece = min(2 * piece, _CHUNK)
            try:
                result += stream.decompress(data)
            except zstd.ZstdError as error:
                raise _damaged("zstd", error) from error
            if len(result) > limit:
                raise _over(limit)
        position -= len(stream.unused_data)
    return bytes(result)


class _OfThread(local):
    """Decompressors that a thread uses for one body after the other.

    A new one costs more than a body of some KiB: lz4 allocates 4 MiB, zstd 128 KiB.
    """

    @cached_property
    def _lz4(self) -> Any:
        return _codec("lz4.frame", "lz4").LZ4FrameDecompressor()

    @cached_property
    def _zstandard(self) -> Any:
        return _zstd().ZstdDecompressor()

    def lz4(self) -> _Stream:
        """The decompressor of lz4, for the next frame."""
        self._lz4.reset()
        return cast("_Stream", self._lz4)

    def zstandard(self) -> Any:
        """What decompresses the next frame, by the library zstandard."""
        return self._zstandard.decompressobj()


_of_thread = _OfThread()


@cache
def _zlib() -> ModuleType:
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:
        return importlib.import_module("zlib")


@cache
def _zstd() -> ModuleType:
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd")
    return _codec("zstandard", "zstandard")


def _codec(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingCodecError(
            f"{module} is needed to read this body and is not installed", hint=f"pip install {package}"
        ) from error
