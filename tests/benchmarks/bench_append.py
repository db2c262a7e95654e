"""Writing, against the store library of broker 5.4.0 in the same run on the same disk.

    put_table, until log, queues and index are complete   >= 8 x Java with 1 topic and with 1,000 topics
                                                          >= 20 x with 10,000 topics of 4 queues
    append --input of Parquet / of JSONL                  >= 8 x / >= 2 x Java
    put, one by one                                       >= 1 x Java
    put by 16 threads, each flushed                       >= 1 x Java's group commit
    peak RssAnon while 10 GB are appended                 bounded: it does not grow with the bytes

Default sizes, all files new. One more row, plain files: the same bodies, each written to the end of a file of
its queue, which is what the format was made to avoid. Figures are printed, not asserted: machines are
noisy. What is asserted is that every message is there.

Java's figure includes the making of its messages, the table's does not: that is a microsecond of ten. In the
rows of single puts neither includes it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as counter
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from rmqtool.write.ingest.reader import Input, format_of, open_input
from rmqtool.write.ingest.rows import RowRules
from rmqtool.write.store_writer import StoreWriter
from tests.benchmarks import messages as made
from tests.benchmarks.java_store import JavaStore, most_topics
from tests.benchmarks.machine import SMALL, STORES, Clock, against, finish, rate, report, touch_memory


class Table(NamedTuple):
    """One row of the table bench; `target`: times Java."""

    topics: int
    messages: int
    target: float


class Sizes(NamedTuple):
    """How much is done."""

    tables: tuple[Table, ...]
    inputs: int
    puts: int
    sync_puts: int
    java_warm: int
    memory_gb: float
    touch_bytes: int
    runs: int


FULL = Sizes(
    tables=(Table(1, 1_000_000, 8), Table(1_000, 1_000_000, 8), Table(10_000, 2_000_000, 20)),
    inputs=1_000_000, puts=500_000, sync_puts=50_000, java_warm=500_000, memory_gb=10,
    touch_bytes=8 << 30, runs=3,
)  # fmt: skip
FEW = Sizes(
    tables=(Table(1, 50_000, 8), Table(50, 50_000, 8), Table(500, 50_000, 20)),
    inputs=50_000, puts=10_000, sync_puts=800, java_warm=10_000, memory_gb=0.2,
    touch_bytes=256 << 20, runs=1,
)  # fmt: skip
SIZES = FEW if SMALL else FULL
THREADS = 16
BLOCK = 1024
NUMBERS = counter()
# Java's records have neither of these properties: a broker adds them before it asks its store.
OPTIONS: dict[str, Any] = {"cluster": None, "region": None}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where all stores lie; memory has been touched by then."""
    path = STORES
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    touch_memory(SIZES.touch_bytes)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def java(folder: Path) -> Iterator[JavaStore]:
    with JavaStore(folder, warm_messages=SIZES.java_warm) as started:
        yield started


def with_store(folder: Path, work: Callable[[StoreWriter], float], messages: int, **options: Any) -> float:
    """What `work` returns, seconds, for a new store; all messages must be in its queues."""
    root = folder / f"python-{next(NUMBERS)}"
    with StoreWriter.create(root, auto_create_queues=made.QUEUES, **OPTIONS, **options) as writer:
        seconds = work(writer)
        with writer.read() as store:
            queues = list(store.queues)
            assert sum(store.max_offset(*queue) for queue in queues) == messages
    finish(root, len(queues))
    return seconds


def put_table(writer: StoreWriter, tables: list[pa.RecordBatch]) -> float:
    """Seconds until log, queues and index are complete."""
    clock = Clock()
    writer.put_table(tables)
    writer.dispatch()
    return clock.seconds


@pytest.mark.parametrize("table", SIZES.tables, ids=lambda table: str(table.topics))
def test_tables(folder: Path, java: JavaStore, table: Table) -> None:
    topics, count, target = table
    tables = made.batches(topics, count)
    first = made.batches(1, made.BATCH_ROWS)  # loads the compiled code
    with_store(folder, lambda writer: put_table(writer, first), made.BATCH_ROWS)
    java_topics = min(topics, most_topics())
    ours, theirs = [], []
    for _ in range(SIZES.runs):
        theirs.append(java.run(java_topics, count).complete_seconds)
        ours.append(with_store(folder, lambda writer: put_table(writer, tables), count))
    plain = [plain_files(folder / f"plain-{topics}", tables)]
    lines = [
        against("put_table, complete", rate(count, ours), rate(count, theirs), target),
        f"{'plain files, one per queue':44} {rate(count, plain):11,.0f}/s",
    ]
    if java_topics < topics:
        lines.append(
            f"not like for like: Java has {java_topics:,} topics, as many as may have their files open"
        )
    report(f"{topics:,} topics of {made.QUEUES} queues, {count:,} messages", *lines)


def put_input(writer: StoreWriter, path: Path) -> float:
    """What `append --input` does: seconds until log, queues and index are complete."""
    clock = Clock()
    with open_input(path) as file:
        writer.put_table(Input(file, format_of(file, path), RowRules()).batches())
    writer.dispatch()
    return clock.seconds


@pytest.mark.parametrize(
    ("name", "write", "target"), [("parquet", made.write_parquet, 8), ("jsonl", made.write_jsonl, 2)]
)
def test_inputs(folder: Path, java: JavaStore, name: str, write: Callable[..., None], target: float) -> None:
    """Of 1 topic; the file is in the page cache."""
    path, count = folder / f"messages.{name}", SIZES.inputs
    write(path, made.batches(1, count))
    ours, theirs = [], []
    for _ in range(SIZES.runs):
        theirs.append(java.run(1, count).complete_seconds)
        ours.append(with_store(folder, lambda writer: put_input(writer, path), count))
    size = path.stat().st_size
    path.unlink()
    report(
        f"append --input of {count:,} messages, {size / 1e9:.2f} GB",
        against(f"{name}, complete", rate(count, ours), rate(count, theirs), target),
    )


def plain_files(folder: Path, tables: list[pa.RecordBatch]) -> float:
    """Seconds to write each body to the end of its queue's file; as many files stay open as may be."""
    folder.mkdir()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200
    files: OrderedDict[tuple[str, int], int] = OrderedDict()
    seconds = 0.0
    for batch in tables:
        topics, queue_ids = batch["topic"].to_pylist(), batch["queue_id"].to_pylist()
        bodies = batch["body"].to_pylist()
        clock = Clock()
        for topic, queue_id, body in zip(topics, queue_ids, bodies, strict=True):
            key = (topic, queue_id)
            descriptor = files.get(key)
            if descriptor is None:
                if len(files) >= limit:
                    os.close(files.popitem(last=False)[1])
                descriptor = os.open(folder / f"{topic}-{queue_id}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                files[key] = descriptor
            else:
                files.move_to_end(key)
            os.write(descriptor, body)
        seconds += clock.seconds
    for descriptor in files.values():
        os.close(descriptor)
    for path in folder.iterdir():
        os.truncate(path, 0)  # and not deleted: see `finish`
    return seconds


def test_put_one_by_one(folder: Path, java: JavaStore) -> None:
    """As `StoreBench`: the making of the messages is not counted."""
    topic, count = made.topic_names(1)[0], SIZES.puts

    def put_all(writer: StoreWriter, inside: list[float]) -> float:
        messages, seconds, clock = made.each(topic, 0, count), 0.0, Clock()
        while block := list(islice(messages, BLOCK)):
            start = time.perf_counter()
            for message in block:
                writer.put(message)
            seconds += time.perf_counter() - start
        inside.append(seconds)
        writer.dispatch()
        return clock.seconds

    modes = {"put": False, "put, write buffer": True}
    puts: dict[str, list[float]] = {name: [] for name in modes}
    complete: dict[str, list[float]] = {name: [] for name in modes}
    theirs = []
    for _ in range(SIZES.runs):
        theirs.append(java.run(1, count))
        for name, buffer in modes.items():
            work = partial(put_all, inside=puts[name])
            complete[name].append(with_store(folder, work, count, write_buffer=buffer))
    java_puts = rate(count, [run.put_seconds for run in theirs])
    java_complete = rate(count, [run.complete_seconds for run in theirs])
    lines = []
    for name in modes:
        lines.append(against(name, rate(count, puts[name]), java_puts, 1))
        lines.append(against(f"{name}, complete", rate(count, complete[name]), java_complete, 1))
    report(f"{count:,} messages one by one", *lines)


def test_flushed_puts(folder: Path, java: JavaStore) -> None:
    """16 threads; every put returns when its message is on the device."""
    topic = made.topic_names(1)[0]
    count = SIZES.sync_puts

    def put_all(writer: StoreWriter) -> float:
        def put_every(first: int) -> None:
            for message in made.each(topic, first, count, THREADS):
                assert writer.put(message).flushed

        threads = [threading.Thread(target=put_every, args=(first,)) for first in range(THREADS)]
        clock = Clock()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return clock.seconds

    ours, theirs = [], []
    for _ in range(SIZES.runs):
        theirs.append(java.run(1, count, threads=THREADS, flush="SYNC_FLUSH").complete_seconds)
        ours.append(with_store(folder, put_all, count, flush="sync"))
    line = against("put, sync", rate(count, ours), rate(count, theirs), 1)
    report(f"{count:,} messages by {THREADS} threads, each flushed", line)


def test_memory(folder: Path) -> None:
    """In a process of its own, from the first byte on."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.append_memory",
        str(folder / "memory"),
        str(SIZES.memory_gb),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(folder / "memory")
    result = json.loads(done.stdout)
    report(
        f"{SIZES.memory_gb:g} GB appended in {result['seconds']:.1f} s",
        f"peak RssAnon {result['peak'] >> 20} MiB, after the first tenth {result['early_peak'] >> 20} MiB,"
        f" before the first byte {result['before'] >> 20} MiB (with the bodies of the bench)",
    )
