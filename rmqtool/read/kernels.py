"""The compiled kernels: whether they are on disk, and loading them before a measurement.

The first use of this version on a machine compiles them, which takes some seconds of processor time;
later processes load them from the cache in a fraction of one.
"""

from __future__ import annotations

from rmqtool.formats import index, message
from rmqtool.log.compiled import SUFFIX, cache_folder


def are_cached() -> bool:
    """Whether loading the kernels will find compiled code on disk."""
    folder = cache_folder()
    return folder is not None and any(folder.glob(f"*{SUFFIX}"))


def load_kernels() -> None:
    """Compile or load every kernel that a scan or a dispatch uses, by taking one record."""
    from rmqtool.index.build import load_kernels as load_index_build
    from rmqtool.index.index_file import IndexFile
    from rmqtool.log.dispatch import dispatch_columns
    from rmqtool.log.frames import Frames, walk
    from rmqtool.queue.build import load_kernels as load_queue_build
    from rmqtool.storage.source import BytesSource

    host = bytes(message.HOST_V4_SIZE)
    size = message.record_size(1, 0, 0, 1, 0)
    one = message.Message(
        size, message.MAGIC_V1, 0, 0, 0, 0, 0, 0, 1, host, 1, host, 0, 0, 0, b"", b"T", 0, b"",
    )  # fmt: skip
    for event in walk(BytesSource(message.encode(one) + bytes(message.MIN_RECORD_SIZE)), file_from_offset=0):
        if isinstance(event, Frames):
            load_queue_build()
            load_index_build(event.rows, dispatch_columns(event).keys)
    shape = index.Shape(1, 2)
    header = index.encode_header(index.Header(0, 0, 0, 0, 0, shape.entries))
    IndexFile(BytesSource(header.ljust(shape.size, b"\0")), shape).check(shape.entries)
