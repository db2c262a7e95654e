"""The walk over a warm 1 GiB commit log file, on one thread, against plain yardsticks in the same run.

The log is taken in parts, and the yardsticks take turns on each; a figure is the sum of the best
rounds of all parts, so that what else the machine does weighs as little as possible, and on all
alike. The bytes are in memory; nothing is read from a disk.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rmqtool.formats import message
from rmqtool.log.dispatch import dispatch_columns
from rmqtool.log.frames import Frames, walk
from rmqtool.storage.source import ByteSource, BytesSource, open_source
from tests.benchmarks.big_store import make_log

PARTS = 32
ROUNDS = 15
FEW_ROUNDS = 3
LOG_BYTES = 1 << 30
TARGETS = {1024: (0.5, 8), 200: (0.4, 10)}
"""Body bytes -> (of the speed of a sum over 64-bit words, times the speed of a loop over zlib.crc32)."""

Step = Callable[[int, int], object]


def best(steps: dict[str, Step], edges: list[int], rounds: int) -> dict[str, float]:
    """Seconds that each step takes for all the ranges between `edges`, each at its best round."""
    seconds = {name: [float("inf")] * (len(edges) - 1) for name in steps}
    for _ in range(rounds):
        for part, (start, stop) in enumerate(pairwise(edges)):
            for name, step in steps.items():
                begin = time.perf_counter()
                step(start, stop)
                seconds[name][part] = min(seconds[name][part], time.perf_counter() - begin)
    return {name: sum(parts) for name, parts in seconds.items()}


def walk_all(source: ByteSource, start: int, stop: int) -> int:
    """Every record with all columns and its body CRC checked; the number of records."""
    count = 0
    for event in walk(source, file_from_offset=0, start=start, stop=stop):
        if isinstance(event, Frames):
            assert not event.rows["status"].any()
            count += len(event.rows)
    return count


def dispatch_all(source: ByteSource, start: int, stop: int) -> int:
    """The same with tags codes and index keys; the number of keys."""
    events = walk(source, file_from_offset=0, start=start, stop=stop)
    return sum(len(dispatch_columns(event).keys) for event in events if isinstance(event, Frames))


def zlib_loop(data: memoryview, position: int, stop: int) -> int:
    """What one writes without kernels: the number of records with a good body CRC."""
    head, body = struct.Struct(">iii"), struct.Struct(">i")
    body_at, start = message.HEADS[0].offsets["body_length"], message.HEAD_SIZE_V4
    crc32, good = zlib.crc32, 0
    while position + start <= stop:
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
    source = BytesSource(path.read_bytes())
    data = source.window(0, source.size)
    assert walk_all(source, 0, source.size) == zlib_loop(data.data, 0, source.size) == len(offsets)
    assert dispatch_all(source, 0, source.size) >= len(offsets)

    def from_file(start: int, stop: int) -> None:
        again = open_source(path)
        walk_all(again, start, stop)
        again.close()

    # The parts' first and last words are a few bytes off: numpy sums whole words.
    steps: dict[str, Step] = {
        "sum of 64-bit words": lambda start, stop: data[start & -8 : stop & -8].view(np.uint64).sum(),
        "walk + CRC, all columns": lambda start, stop: walk_all(source, start, stop),
    }
    more: dict[str, Step] = {
        "same, from the page cache": from_file,
        "same, with index keys": lambda start, stop: dispatch_all(source, start, stop),
        "loop over zlib.crc32": lambda start, stop: zlib_loop(data.data, start, stop),
    }
    edges = [*offsets[:: len(offsets) // PARTS].tolist()[:PARTS], int(offsets[-1]) + size]
    seconds = best(steps, edges, ROUNDS) | best(more, edges, FEW_ROUNDS)
    walked, summed = seconds["walk + CRC, all columns"], seconds["sum of 64-bit words"]
    print(f"\n{len(offsets)} records of {size} bytes, bodies of {body_bytes}")  # noqa: T201
    for name, took in seconds.items():
        rate = f"{LOG_BYTES / took / 1e9:6.1f} GB/s {len(offsets) / took / 1e6:6.1f} M records/s"
        print(f"  {name:26} {rate}  {summed / took:5.2f} of the sum")  # noqa: T201
    ratio = seconds["loop over zlib.crc32"] / walked
    print(f"  the walk is {ratio:.1f} times the loop over zlib.crc32")  # noqa: T201
    of_sum, of_loop = TARGETS[body_bytes]
    assert summed / walked >= of_sum
    assert ratio >= of_loop
