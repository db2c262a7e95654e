"""A store of many topics over a week, with queues and index: what selective queries are measured on.

Message n is of topic n % topics, in its only queue, stored at even steps over a week; its unique key ends in
the hex digits of n. As brokers before 5.4 write it: without tags in the index.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rmqtool.formats import checkpoint, consume_queue, index, message
from tests.benchmarks.messages import KEY_PREFIX, hex_digits

WEEK_MS = 7 * 86_400_000
START_MS = 1_700_000_000_000
TOPIC_LENGTH = 10
_TOPIC = "TopicBench"
_CHUNK_RECORDS = 1 << 16


def template(body_bytes: int) -> tuple[np.ndarray, int]:
    """(one record as uint8 of shape (size,), position of the 8 digits of its key)."""
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    key = KEY_PREFIX + "00000000"
    properties = f"UNIQ_KEY\x01{key}\x02TAGS\x01TagA\x02".encode()
    size = message.record_size(1, 0, body_bytes, TOPIC_LENGTH, len(properties))
    host = bytes((127, 0, 0, 1, 0, 0, 42, 159))
    record = message.encode(
        message.Message(
            size, message.MAGIC_V1, message.masked_crc(body[:body_bytes]), 0, 0, 0, 0, 0, START_MS, host,
            START_MS, host, 0, 0, body_bytes, body[:body_bytes], _TOPIC.encode(), len(properties), properties,
        )
    )  # fmt: skip
    return np.frombuffer(record, np.uint8), record.index(b"00000000\x02")


def topic_name(number: int) -> str:
    """`Topic00017`."""
    return f"Topic{number:05}"


def key_of(number: int) -> str:
    """The unique key of a message."""
    return f"{KEY_PREFIX}{number:08X}"


def _decimal(numbers: np.ndarray) -> np.ndarray:
    """The 5 decimal digits of each number: uint8 of shape (n, 5)."""
    return (numbers[:, None] // 10 ** np.arange(4, -1, -1) % 10 + ord("0")).astype(np.uint8)


def make_store(root: Path, count: int, body_bytes: int, topics: int, file_size: int) -> int:
    """Write the store; the bytes of its log that hold records."""
    one, key_at = template(body_bytes)
    size = len(one)
    per_file = (file_size - 8) // size
    numbers = np.arange(count)
    offsets = numbers // per_file * file_size + numbers % per_file * size
    times = START_MS + numbers * WEEK_MS // count
    topic_at = bytes(one).index(b"TopicBench")
    head = message.HEADS[0].offsets
    (root / "commitlog").mkdir(parents=True)
    for first in range(0, count, per_file):
        stop = min(first + per_file, count)
        with (root / "commitlog" / f"{first // per_file * file_size:020}").open("wb") as file:
            for start in range(first, stop, _CHUNK_RECORDS):
                part = numbers[start : min(start + _CHUNK_RECORDS, stop)]
                rows = np.tile(one, (len(part), 1))
                for name, values, dtype in (
                    ("queue_id", np.zeros_like(part), ">i4"),
                    ("queue_offset", part // topics, ">i8"),
                    ("physical_offset", offsets[part], ">i8"),
                    ("born_timestamp", times[part], ">i8"),
                    ("store_timestamp", times[part], ">i8"),
                ):
                    raw = np.ascontiguousarray(values.astype(dtype)).view(np.uint8).reshape(len(part), -1)
                    rows[:, head[name] : head[name] + raw.shape[1]] = raw
                rows[:, key_at : key_at + 8] = hex_digits(part)
                rows[:, topic_at + 5 : topic_at + TOPIC_LENGTH] = _decimal(part % topics)
                file.write(rows.tobytes())
            if stop < count:
                file.write(message.encode_blank(file_size - per_file * size))
            file.truncate(file_size)
    _queues(root / "consumequeue", offsets, size, topics)
    _index(root / "index", offsets, times, topics)
    newest = int(times[-1])
    made = checkpoint.Checkpoint(newest, newest, newest, 0, 0)
    (root / "checkpoint").write_bytes(checkpoint.encode(made))
    return count * size


def _queues(folder: Path, offsets: np.ndarray, size: int, topics: int) -> None:
    from rmqtool.formats import java

    file_size = 300_000 * consume_queue.UNIT_SIZE
    for topic in range(topics):
        own = offsets[topic::topics]
        units = np.zeros(len(own), consume_queue.UNIT.dtype)
        units["physical_offset"], units["size"], units["tags_code"] = own, size, java.tags_code("TagA")
        path = folder / topic_name(topic) / "0"
        path.mkdir(parents=True)
        raw = units.tobytes()
        for start in range(0, len(raw), file_size):
            with (path / f"{start:020}").open("wb") as file:
                file.write(raw[start : start + file_size])
                file.truncate(file_size)


def _hashes(numbers: np.ndarray, topics: int) -> np.ndarray:
    """The index's hash of `topic#key` of messages: int32 of shape (n,)."""
    text = np.frombuffer(index.key_text(topic_name(0), key_of(0)).encode(), np.uint8)
    rows = np.tile(text, (len(numbers), 1))
    rows[:, 5:TOPIC_LENGTH] = _decimal(numbers % topics)
    rows[:, -8:] = hex_digits(numbers)
    hashes = np.zeros(len(numbers), np.int32)
    with np.errstate(over="ignore"):
        for column in rows.T:
            hashes = hashes * np.int32(31) + column.astype(np.int32)
    return np.where(hashes == np.iinfo(np.int32).min, 0, np.abs(hashes))


def _index(folder: Path, offsets: np.ndarray, times: np.ndarray, topics: int) -> None:
    folder.mkdir(parents=True)
    shape = index.DEFAULT_SHAPE
    for number, start in enumerate(range(0, len(offsets), shape.entries - 1)):
        stop = min(start + shape.entries - 1, len(offsets))
        hashes = _hashes(np.arange(start, stop), topics)
        slots = hashes % shape.slots
        order = np.argsort(slots, kind="stable")
        previous = np.zeros(stop - start, np.int32)
        same = slots[order[1:]] == slots[order[:-1]]
        previous[order[1:][same]] = order[:-1][same] + 1
        heads = np.zeros(shape.slots, ">i4")
        heads[slots] = np.arange(1, stop - start + 1)
        entries = np.zeros(stop - start, index.ENTRY.dtype)
        entries["key_hash"], entries["physical_offset"] = hashes, offsets[start:stop]
        entries["time_diff"] = (times[start:stop] - times[start]) // 1000
        entries["previous"] = previous
        header = index.Header(
            int(times[start]), int(times[stop - 1]), int(offsets[start]), int(offsets[stop - 1]),
            int(np.count_nonzero(heads)), stop - start + 1,
        )  # fmt: skip
        with (folder / f"{20231114221320000 + number:017}").open("wb") as file:
            file.write(index.encode_header(header))
            file.write(heads.tobytes())
            file.seek(shape.entry_offset(1))
            file.write(entries.tobytes())
            file.truncate(shape.size)
