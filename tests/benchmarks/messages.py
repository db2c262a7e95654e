"""The messages that both sides of the append benches store: bodies of 1 KiB, with tag, key and uniq key.

Number n goes to topic n % topics and queue n / topics % 4, as in StoreBench.java.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmqtool import NewMessage
from tests.benchmarks.big_store import hex_digits

BODY_BYTES = 1024
QUEUES = 4
BATCH_ROWS = 1 << 15
TAGS = ("TagA", "TagB", "TagC", "TagD")
KEY_PREFIX = "7F0000010001AABBCCDD0011"


def topic_names(topics: int) -> list[str]:
    return [f"BenchTopic{number:05}" for number in range(topics)]


def _texts(matrix: np.ndarray) -> pa.StringArray:
    """The rows of a uint8 matrix of shape (n, width) as strings."""
    count, width = matrix.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))
    )


def bodies(rows: int) -> pa.StringArray:
    """Bodies of printable text, each another one."""
    letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .", np.uint8)
    return _texts(letters[np.random.default_rng(1).integers(0, len(letters), (rows, BODY_BYTES), np.uint8)])


def batches(topics: int, messages: int) -> list[pa.RecordBatch]:
    """The messages as Arrow batches. All batches share the memory of one batch's bodies."""
    names = pa.array(topic_names(topics))
    tags = pa.array(TAGS)
    shared = bodies(min(BATCH_ROWS, messages)).cast(pa.binary())
    prefix = np.frombuffer(KEY_PREFIX.encode(), np.uint8)
    result = []
    for first in range(0, messages, BATCH_ROWS):
        number = np.arange(first, min(first + BATCH_ROWS, messages))
        digits = hex_digits(number)
        keys = np.char.add("order-", number.astype("U10"))
        result.append(
            pa.RecordBatch.from_pydict(
                {
                    "topic": names.take(pa.array(number % topics)),
                    "queue_id": pa.array((number // topics % QUEUES).astype(np.int32)),
                    "tags": tags.take(pa.array(number % len(TAGS))),
                    "keys": pa.array(keys.tolist()),
                    "uniq_key": _texts(np.hstack([np.tile(prefix, (len(number), 1)), digits])),
                    "body": shared[: len(number)],
                }
            )
        )
    return result


def each(topic: str, first: int, stop: int, step: int = 1) -> Iterator[NewMessage]:
    """The messages of one topic one by one, made while they are asked for, as a producer would."""
    body = bodies(1)[0].as_py().encode()
    for number in range(first, stop, step):
        yield NewMessage(
            topic, body, tags=TAGS[number & 3], keys=(f"order-{number}",),
            uniq_key=f"{KEY_PREFIX}{number:08X}", queue_id=number % QUEUES,
        )  # fmt: skip


def write_parquet(path: Path, tables: list[pa.RecordBatch]) -> None:
    """The batches as a Parquet file with pyarrow's own settings."""
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for batch in tables:
            writer.write_batch(batch)


def write_jsonl(path: Path, tables: list[pa.RecordBatch]) -> None:
    """The batches as JSON lines; nothing in them needs an escape."""
    with path.open("w", encoding="ascii") as file:
        for batch in tables:
            columns = batch.to_pydict()
            for topic, queue_id, tags, keys, uniq_key, body in zip(*columns.values(), strict=True):
                file.write(
                    f'{{"topic":"{topic}","queue_id":{queue_id},"tags":"{tags}","keys":["{keys}"],'
                    f'"uniq_key":"{uniq_key}","body":"{body.decode()}"}}\n'
                )
