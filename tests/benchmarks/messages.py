"""The messages of every store that is measured: bodies of 1 KiB of text, with tag, key and unique key.

Number n goes to topic n % topics and queue n / topics % 4, as in StoreBench.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmqtool import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.benchmarks.scale import QUEUES

BODY_BYTES = 1024
BATCH_ROWS = 1 << 15
TAGS = ("TagA", "TagB", "TagC", "TagD")
KEY_PREFIX = "7F0000010001AABBCCDD0011"
# Java's records have neither of these properties: a broker adds them before it asks its store.
OPTIONS: dict[str, Any] = {"cluster": None, "region": None}


def topic_names(topics: int) -> list[str]:
    return [f"BenchTopic{number:05}" for number in range(topics)]


def key(number: int) -> str:
    """The key of a message; its unique key is another one."""
    return f"order-{number}"


def hex_digits(numbers: np.ndarray) -> np.ndarray:
    """The 8 upper-case hex digits of each number: uint8 of shape (n, 8)."""
    nibbles = (numbers[:, None] >> (np.arange(7, -1, -1) * 4)) & 15
    return (nibbles + np.where(nibbles < 10, ord("0"), ord("A") - 10)).astype(np.uint8)


def _texts(matrix: np.ndarray) -> pa.StringArray:
    """The rows of a uint8 matrix of shape (n, width) as strings."""
    count, width = matrix.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))
    )


def bodies(rows: int, body_bytes: int = BODY_BYTES) -> pa.StringArray:
    """Bodies of printable text, all different."""
    letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .", np.uint8)
    return _texts(letters[np.random.default_rng(1).integers(0, len(letters), (rows, body_bytes), np.uint8)])


def batches(
    topics: int, messages: int, body_bytes: int = BODY_BYTES, compression: str = "none"
) -> Iterator[pa.RecordBatch]:
    """The messages as Arrow batches. All batches share the memory of one batch's bodies."""
    names = pa.array(topic_names(topics))
    tags = pa.array(TAGS)
    shared = bodies(min(BATCH_ROWS, messages), body_bytes).cast(pa.binary())
    prefix = np.frombuffer(KEY_PREFIX.encode(), np.uint8)
    for first in range(0, messages, BATCH_ROWS):
        number = np.arange(first, min(first + BATCH_ROWS, messages))
        keys = np.char.add("order-", number.astype("U10"))
        columns = {"body_compression": pa.repeat(compression, len(number))} if compression != "none" else {}
        yield pa.RecordBatch.from_pydict(
            columns
            | {
                "topic": names.take(pa.array(number % topics)),
                "queue_id": pa.array((number // topics % QUEUES).astype(np.int32)),
                "tags": tags.take(pa.array(number % len(TAGS))),
                "keys": pa.array(keys.tolist()),
                "uniq_key": _texts(np.hstack([np.tile(prefix, (len(number), 1)), hex_digits(number)])),
                "body": shared[: len(number)],
            }
        )


def each(topic: str, first: int, stop: int, step: int = 1) -> Iterator[NewMessage]:
    """The messages of one topic one by one, made while they are asked for, as a producer would."""
    body = bodies(1)[0].as_py().encode()
    for number in range(first, stop, step):
        yield NewMessage(
            topic, body, tags=TAGS[number & 3], keys=(key(number),),
            uniq_key=f"{KEY_PREFIX}{number:08X}", queue_id=number % QUEUES,
        )  # fmt: skip


def make_store(
    root: Path,
    messages: int,
    *,
    topics: int = 1,
    body_bytes: int = BODY_BYTES,
    log_file_bytes: int = 1 << 30,
    compression: str = "none",
    **options: Any,
) -> None:
    """A store that holds these messages, closed cleanly, in the page cache as far as there is room."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with StoreWriter.create(
        root, auto_create_queues=QUEUES, commit_log_file_size=log_file_bytes, **OPTIONS, **options
    ) as writer:
        writer.put_table(batches(topics, messages, body_bytes, compression))


def stored_messages(root: Path) -> int:
    """How many messages the queues of a store hold."""
    from rmqtool.read.store import Store

    with Store.open(root) as store:
        return sum(store.max_offset(*queue) for queue in store.queues)


def log_end(root: Path) -> int:
    """Where the log of a store ends: its bytes, without what is reserved."""
    from rmqtool.read.store import Store

    with Store.open(root) as store:
        return store.end_offset()


def write_parquet(path: Path, tables: Iterable[pa.RecordBatch]) -> None:
    """The batches as a Parquet file with pyarrow's own settings."""
    writer = None
    for batch in tables:
        writer = writer or pq.ParquetWriter(path, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def write_arrow(path: Path, tables: Iterable[pa.RecordBatch]) -> None:
    """The batches as an Arrow IPC file, not compressed."""
    writer = None
    for batch in tables:
        writer = writer or pa.ipc.new_file(path, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def write_jsonl(path: Path, tables: Iterable[pa.RecordBatch]) -> None:
    """The batches as JSON lines; nothing in them needs an escape."""
    with path.open("w", encoding="ascii") as file:
        for batch in tables:
            columns = batch.to_pydict()
            for topic, queue_id, tags, keys, uniq_key, body in zip(*columns.values(), strict=True):
                file.write(
                    f'{{"topic":"{topic}","queue_id":{queue_id},"tags":"{tags}","keys":["{keys}"],'
                    f'"uniq_key":"{uniq_key}","body":"{body.decode()}"}}\n'
                )
