"""The walk over a warm 1 GiB commit log file, on one thread, against plain yardsticks in the same run.

Each figure is the best of several rounds, and the rounds take turns, so that what else the machine
does weighs on all of them alike. The bytes are resident; nothing is read from a disk.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rmqtool.formats import message
from rmqtool.scan.frames import Frames, walk
from rmqtool.scan.keys import dispatch_columns
from rmqtool.scan.source import ByteSource, open_source
from tests.benchmarks.big_store import make_log

ROUNDS = 7
LOG_BYTES = 1 << 30
TARGETS = {1024: (0.5, 8), 200: (0.4, 10)}
"""Body bytes -> (of the speed of a sum over 64-bit words, times the speed of a loop over zlib.crc32)."""


def best(functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of the best round of each."""
    seconds = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def walk_all(source: ByteSource) -> int:
    """Every record with all columns and its body CRC checked; the number of records."""
    count = 0
    for event in walk(source, file_from_offset=0):
        if isinstance(event, Frames):
            assert not event.rows["status"].any()
            count += len(event.rows)
    return count


def dispatch_all(source: ByteSource) -> int:
    """The same with tags codes and index keys; the number of keys."""
    frames = (event for event in walk(source, file_from_offset=0) if isinstance(event, Frames))
    return sum(len(dispatch_columns(batch).keys) for batch in frames)


def zlib_loop(data: memoryview) -> int:
    """What one writes without kernels: the number of records with a good body CRC."""
    head, body = struct.Struct(">iii"), struct.Struct(">i")
    body_at, start = message.HEADS[0].offsets["body_length"], message.HEAD_SIZE_V4
    crc32, good, position = zlib.crc32, 0, 0
    while position + start <= len(data):
        size, _, crc = head.unpack_from(data, position)
        if size <= 0:
            break
        (length,) = body.unpack_from(data, position + body_at)
        begin = position + start
        good += crc32(data[begin : begin + length]) & message.CRC_MASK == crc
        position += size
    return good


@pytest.mark.parametrize("body_bytes", TARGETS)
def test_walk(tmp_path: Path, body_bytes: int) -> None:
    offsets, size = make_log(tmp_path / "commitlog", LOG_BYTES, body_bytes)
    (path,) = (tmp_path / "commitlog").iterdir()
    source = open_source(path, keep_cache=True)
    data = source.window(0, source.size)
    words = data.view(np.uint64)
    assert walk_all(source) == zlib_loop(data.data) == len(offsets)
    assert dispatch_all(source) >= len(offsets)

    def fresh() -> None:
        again = open_source(path)
        walk_all(again)
        again.close()

    seconds = best(
        {
            "sum of 64-bit words": words.sum,
            "walk + CRC, all columns": lambda: walk_all(source),
            "same, file opened anew": fresh,
            "same, with index keys": lambda: dispatch_all(source),
            "loop over zlib.crc32": lambda: zlib_loop(data.data),
        }
    )
    walked, summed = seconds["walk + CRC, all columns"], seconds["sum of 64-bit words"]
    print(f"\n{len(offsets)} records of {size} bytes, bodies of {body_bytes}")  # noqa: T201
    for name, took in seconds.items():
        rate = f"{LOG_BYTES / took / 1e9:6.1f} GB/s {len(offsets) / took / 1e6:6.1f} M records/s"
        print(f"  {name:24} {rate}  {summed / took:5.2f} of the sum")  # noqa: T201
    ratio = seconds["loop over zlib.crc32"] / walked
    print(f"  the walk is {ratio:.1f} times the loop over zlib.crc32")  # noqa: T201
    source.close()
    of_sum, of_loop = TARGETS[body_bytes]
    assert summed / walked >= of_sum
    assert ratio >= of_loop
