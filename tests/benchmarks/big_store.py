"""Large sound stores for benchmarks, as broker 5.4 writes them: log, queues, index, checkpoint.

Made with numpy: `python -m tests.benchmarks.big_store FOLDER [GIB] [BODY_BYTES]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rmqtool.formats import checkpoint, consume_queue, index, java, message

TOPIC = "TopicBench"
QUEUES = 8
TAGS = "TagA"
KEY_PREFIX = "7F0000010000AABBCCDD0011"  # the other 8 digits of the unique key count the records
START_MS = 1_700_000_000_000
LOG_FILE_SIZE = 1 << 30
QUEUE_FILE_SIZE = 300_000 * consume_queue.UNIT_SIZE
_CHUNK_RECORDS = 1 << 16


def template(body_bytes: int) -> tuple[np.ndarray, int]:
    """(one record as uint8 of shape (size,), position of the key's 8 digits in it)."""
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    key = KEY_PREFIX + "00000000"
    properties = f"UNIQ_KEY\x01{key}\x02TAGS\x01{TAGS}\x02".encode()
    size = message.record_size(1, 0, body_bytes, len(TOPIC), len(properties))
    host = bytes((127, 0, 0, 1, 0, 0, 42, 159))
    record = message.encode(
        message.Message(
            size, message.MAGIC_V1, message.masked_crc(body[:body_bytes]), 0, 0, 0, 0, 0, START_MS, host,
            START_MS, host, 0, 0, body_bytes, body[:body_bytes], TOPIC.encode(), len(properties), properties,
        )
    )  # fmt: skip
    return np.frombuffer(record, np.uint8), record.index(b"00000000\x02")


def hex_digits(numbers: np.ndarray) -> np.ndarray:
    """The 8 upper-case hex digits of each number: uint8 of shape (n, 8)."""
    nibbles = (numbers[:, None] >> (np.arange(7, -1, -1) * 4)) & 15
    return (nibbles + np.where(nibbles < 10, ord("0"), ord("A") - 10)).astype(np.uint8)


def records(numbers: np.ndarray, offsets: np.ndarray, body_bytes: int) -> np.ndarray:
    """The records `numbers` that start at physical `offsets`: uint8 of shape (n, size)."""
    one, key_at = template(body_bytes)
    head = message.HEADS[0].offsets
    rows = np.tile(one, (len(numbers), 1))

    def put(name: str, values: np.ndarray, dtype: str) -> None:
        raw = np.ascontiguousarray(values.astype(dtype)).view(np.uint8).reshape(len(numbers), -1)
        rows[:, head[name] : head[name] + raw.shape[1]] = raw

    put("queue_id", numbers % QUEUES, ">i4")
    put("queue_offset", numbers // QUEUES, ">i8")
    put("physical_offset", offsets, ">i8")
    put("born_timestamp", START_MS + numbers // 100, ">i8")
    put("store_timestamp", START_MS + numbers // 100, ">i8")
    rows[:, key_at : key_at + 8] = hex_digits(numbers)
    return rows


def make_log(folder: Path, total_bytes: int, body_bytes: int) -> tuple[np.ndarray, int]:
    """Write commit log files; (physical offset of every record, record size)."""
    size = len(template(body_bytes)[0])
    per_file = (min(LOG_FILE_SIZE, total_bytes) - 8) // size
    file_size = min(LOG_FILE_SIZE, total_bytes)
    files = max(total_bytes // file_size, 1)
    folder.mkdir(parents=True)
    offsets = np.concatenate([number * file_size + np.arange(per_file) * size for number in range(files)])
    for number in range(files):
        with (folder / f"{number * file_size:020}").open("wb") as file:
            for first in range(0, per_file, _CHUNK_RECORDS):
                stop = min(first + _CHUNK_RECORDS, per_file)
                chunk = np.arange(number * per_file + first, number * per_file + stop)
                file.write(records(chunk, offsets[chunk], body_bytes).tobytes())
            if number < files - 1:
                file.write(message.encode_blank(file_size - per_file * size))
            file.truncate(file_size)
    return offsets, size


def make_queues(folder: Path, offsets: np.ndarray, size: int) -> None:
    """Write the consume queues of a log that `make_log` wrote."""
    tags_code = java.tags_code(TAGS)
    for queue in range(QUEUES):
        own = offsets[queue::QUEUES]
        units = np.zeros(len(own), consume_queue.UNIT.dtype)
        units["physical_offset"], units["size"], units["tags_code"] = own, size, tags_code
        path = folder / TOPIC / str(queue)
        path.mkdir(parents=True)
        raw = units.tobytes()
        for start in range(0, len(raw), QUEUE_FILE_SIZE):
            with (path / f"{start:020}").open("wb") as file:
                file.write(raw[start : start + QUEUE_FILE_SIZE])
                file.truncate(QUEUE_FILE_SIZE)


def make_index(folder: Path, offsets: np.ndarray, shape: index.Shape = index.DEFAULT_SHAPE) -> None:
    """Write index files with the unique key and the tag of every record, as broker 5.4 does."""
    folder.mkdir(parents=True)
    numbers = np.arange(len(offsets))
    seed = java.string_hash(index.key_text(TOPIC, KEY_PREFIX))
    hashes = np.full(len(offsets), seed, np.int32)
    with np.errstate(over="ignore"):
        for digit in hex_digits(numbers).T:
            hashes = hashes * np.int32(31) + digit.astype(np.int32)
    hashes = np.where(hashes == np.iinfo(np.int32).min, 0, np.abs(hashes))
    tag_hash = java.index_key_hash(index.tag_text(TOPIC, TAGS))
    all_hashes = np.stack([hashes, np.full(len(hashes), tag_hash, np.int32)], axis=1).ravel()
    all_offsets, all_times = np.repeat(offsets, 2), np.repeat(START_MS + numbers // 100, 2)
    for number, start in enumerate(range(0, len(all_hashes), shape.entries - 1)):
        stop = min(start + shape.entries - 1, len(all_hashes))
        part = all_hashes[start:stop]
        slots = part % shape.slots
        order = np.argsort(slots, kind="stable")
        previous = np.zeros(len(part), np.int32)
        same = slots[order[1:]] == slots[order[:-1]]
        previous[order[1:][same]] = order[:-1][same] + 1
        heads = np.zeros(shape.slots, ">i4")
        heads[slots] = np.arange(1, len(part) + 1)
        entries = np.zeros(len(part), index.ENTRY.dtype)
        entries["key_hash"], entries["physical_offset"] = part, all_offsets[start:stop]
        entries["time_diff"] = (all_times[start:stop] - all_times[start]) // 1000
        entries["previous"] = previous
        header = index.Header(
            int(all_times[start]), int(all_times[stop - 1]), int(all_offsets[start]),
            int(all_offsets[stop - 1]), int(np.count_nonzero(heads)), len(part) + 1,
        )  # fmt: skip
        with (folder / f"{20231114221320000 + number:017}").open("wb") as file:
            file.write(index.encode_header(header))
            file.write(heads.tobytes())
            file.seek(shape.entry_offset(1))
            file.write(entries.tobytes())
            file.truncate(shape.size)


def make_store(root: Path, total_bytes: int, body_bytes: int) -> int:
    """Write a whole store of about `total_bytes` of log; the number of its records."""
    offsets, size = make_log(root / "commitlog", total_bytes, body_bytes)
    make_queues(root / "consumequeue", offsets, size)
    make_index(root / "index", offsets)
    newest = START_MS + (len(offsets) - 1) // 100
    (root / "checkpoint").write_bytes(
        checkpoint.encode(checkpoint.Checkpoint(newest, newest, 0, 0, int(offsets[-1])))
    )
    return len(offsets)


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    gib, body = (float(numbers[0]) if numbers else 1.0), (int(numbers[1]) if len(numbers) > 1 else 1024)
    made = make_store(Path(folder), int(gib * (1 << 30)), body)
    sys.stdout.write(f"{made} records\n")
