"""gzip and zstd files, decompressed in small pieces; a file that was cut short is an error.

Source: RFC 1952; RFC 8878.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rmqtool.errors import FormatError, MissingCodecError, UnreadableError
from rmqtool.storage.random_file import PIECE, RandomFile, RemoteSource

SUFFIXES = (".zst", ".zstd", ".gz", ".tgz", ".tzst")
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"  # after a first byte 0x50 to 0x5f: a zstd frame without content
# Bytes of input at once, which bound the output to some 128 MiB: 1 byte of gzip becomes 1 KiB at
# most, 4 bytes of zstd 128 KiB.
_GZIP_INPUT, _ZSTD_INPUT = 64 << 10, 4 << 10


def stem(name: str) -> str | None:
    """`name` without the suffix of a compressed file; None if it has none."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), None)


def pieces(file: RandomFile, path: Path) -> Iterator[bytes]:
    """The decompressed content of the file `path`. The caller closes `file`.

    Raises:
        FormatError: it is neither gzip nor zstd, damaged, or cut short.
        UnreadableError: it cannot be read.
        MissingCodecError: the library for zstd is not installed.
    """
    source = RemoteSource(file, str(path))
    head = source.read(0, 4)
    if head.startswith(_GZIP_MAGIC):
        yield from _frames("gzip", path, source, lambda: zlib.decompressobj(31), _GZIP_INPUT, zlib.error)
    elif head == _ZSTD_MAGIC or (head[1:] == _SKIPPABLE and head[0] >> 4 == 5):
        make, error = _zstd()
        yield from _frames("zstd", path, source, make, _ZSTD_INPUT, error)
    else:
        raise FormatError("named as a compressed file, but neither gzip nor zstd", path=path)


def _zstd() -> tuple[Callable[[], Any], type[Exception]]:
    """A function that creates the decompressor of one frame, and the type of its errors."""
    if sys.version_info >= (3, 14):
        zstd = importlib.import_module("compression.zstd")
        return zstd.ZstdDecompressor, zstd.ZstdError
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingCodecError(
            "zstandard is needed to read this file and is not installed", hint="pip install zstandard"
        ) from error
    return zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError


def _frames(
    form: str,
    path: Path,
    source: RemoteSource,
    make: Callable[[], Any],
    input_bytes: int,
    error_type: type[Exception],
) -> Iterator[bytes]:
    """The content of the frames of a file, one after the other; `make` creates a decompressor for each."""
    frame: Any = None
    for offset in range(0, source.size, PIECE):
        block = _read(source, path, offset)
        position = 0
        while position < len(block):
            if frame is None:
                if form == "gzip" and not block[position]:  # padded with zeros, as on tapes
                    position = len(block) - len(block[position:].lstrip(b"\0"))
                    continue
                frame = make()
            part = block[position : position + input_bytes]
            position += len(part)
            try:
                data: bytes = frame.decompress(part)
            except error_type as error:
                raise FormatError(f"the {form} file is damaged: {error}", path=path) from error
            if data:
                yield data
            if frame.eof:
                position -= len(frame.unused_data)
                frame = None
    if frame is not None:
        raise FormatError(f"the {form} file was cut short", path=path)


def _read(source: RemoteSource, path: Path, offset: int) -> bytes:
    block = source.window(offset, PIECE).tobytes()
    if source.unreadable:
        raise UnreadableError("cannot be read", path=path, physical_offset=source.unreadable[0][0])
    return block
