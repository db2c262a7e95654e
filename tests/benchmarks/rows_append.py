"""Writing: tables and JSON lines as commands, single puts in process, beside Java and the bare device."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as counter
from itertools import islice
from pathlib import Path
from typing import Any

from rmqtool import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.benchmarks import limits, messages
from tests.benchmarks.harness import Call, Contender, Program, Row, rmqtool
from tests.benchmarks.java import (
    WARM,
    WARM_SHOWN,
    JavaStore,
    is_ready,
    java,
    java_store,
    only,
    remove_written,
    store_line,
)
from tests.benchmarks.machine import remove_store
from tests.benchmarks.scale import QUEUES, Bench

LIMITS = [sys.executable, "-m", "tests.benchmarks.limits"]
THREADS = 16
MOST = 10_000
_BLOCK = 1_024
_LIST = 1 << 14
_WRITERS: dict[str, Callable[..., None]] = {
    "Parquet": messages.write_parquet, "Arrow": messages.write_arrow, "JSON lines": messages.write_jsonl
}  # fmt: skip
_SUFFIXES = {"Parquet": "parquet", "Arrow": "arrow", "JSON lines": "jsonl"}


def rows(bench: Bench) -> Iterator[Row]:
    """All of them; the JVM stays warm as long."""
    bench.folder.mkdir(parents=True, exist_ok=True)
    if not is_ready():
        yield from _rows(bench, None)
        return
    with java_store(bench.folder, warm_messages=min(4 * bench.scale.append_messages, 500_000)) as warm:
        yield from _rows(bench, warm)


def _rows(bench: Bench, warm: JavaStore | None) -> Iterator[Row]:
    for topics in bench.scale.topics:
        yield from _tables(bench, warm, topics)
    yield from _json_lines(bench, warm)
    yield _puts(bench, warm)
    yield _lists(bench, warm)
    yield _flushed_puts(bench, warm)


def _new_store(root: Path) -> None:
    if root.exists():
        shutil.rmtree(root)


def appended(root: Path, source: Path, messages_stored: int, **options: Any) -> Program:
    """`append` of a file to a new store; every message must be in its queue afterwards."""

    def check() -> None:
        assert messages.stored_messages(root) == messages_stored
        remove_store(root)

    return rmqtool(
        "append", root, "--create", "--create-topic", "--queues", QUEUES, "--input", source, "--quiet",
        **{
            "name": "rmqtool append", "before": partial(_new_store, root), "after": check,
            "shown": f"rmqtool append STORE --create --create-topic --input FILE{source.suffix}",
        } | options,
    )  # fmt: skip


def _bare_writer(bench: Bench, source: Path, count: int) -> Program:
    """A writer of the bytes that `append` writes; the plan is that of a store that `append` has written."""
    root, plan = bench.folder / "planned", bench.folder / "plan.json"

    def note() -> None:
        limits.write_plan(root, messages.log_end(root), plan)
        remove_store(root)

    appended(root, source, count, after=note).round()
    target = bench.folder / "bare"
    return Program(
        name="bare writer", kind="limit", line=[*LIMITS, "write", plan, target],
        shown="writes as many bytes to as many new files, and flushes them",
        before=partial(_new_store, target), after=partial(remove_store, target),
    )  # fmt: skip


def _java_process(bench: Bench, topics: int, count: int) -> Program:
    """The library as a process: it starts, writes one store, closes it, and ends."""
    root = bench.folder / "java-process"
    return java(
        "StoreBench", inside="complete_seconds", right=lambda told: told["dispatched"] == count,
        stdin=store_line(root, topics, count).encode(), after=partial(remove_written, root),
    )  # fmt: skip


def _java_loop(warm: JavaStore, topics: int, count: int, **options: Any) -> Call:
    """The library in a warm JVM, until queues and index are level with the log."""
    return Call(
        name=WARM, kind="java", shown=WARM_SHOWN,
        work=lambda: warm.run(topics, count, **options)["complete_seconds"],
    )  # fmt: skip


def _java(
    bench: Bench, warm: JavaStore | None, topics: int, count: int, *, process: bool = False
) -> list[Contender]:
    """The warm library, and the process, with as many topics as Java can write here; or none."""
    if warm is None:
        return []
    topics = bench.scale.topics_for_java(topics)
    return [_java_loop(warm, topics, count), *([_java_process(bench, topics, count)] if process else [])]


def _tables(bench: Bench, warm: JavaStore | None, topics: int) -> Iterator[Row]:
    """Parquet with every number of topics, Arrow with the first."""
    count = bench.scale.append_messages * (2 if topics >= MOST else 1)
    queue_files = bench.folder / "partitions"
    table = bench.folder / "messages.arrow"
    messages.write_arrow(table, messages.batches(topics, count))
    partitions = Program(
        name="one file per queue", line=[*LIMITS, "partitions", table, queue_files],
        shown="appends each body to the file of its queue, as brokers with a file per partition do",
        before=partial(_new_store, queue_files), after=partial(remove_store, queue_files),
    )  # fmt: skip
    reachable = bench.scale.topics_for_java(topics)
    note = f"Java with {reachable:,} topics: its open files are limited" if reachable < topics else ""
    for name in _WRITERS if topics == bench.scale.topics[0] else ("Parquet",):
        if name == "JSON lines":
            continue  # a row of its own
        source = bench.folder / f"messages.{_SUFFIXES[name]}"
        _WRITERS[name](source, messages.batches(topics, count))
        bare = _bare_writer(bench, source, count)
        yield Row(
            name=f"append from {name}, {topics:,} topics".replace(" 1 topics", " 1 topic"),
            unit="messages", amount=count, note=note,
            goals={bare.name: 0.35 if topics >= MOST else 0.7},
            contenders=[
                appended(bench.folder / "store", source, count), bare, partitions,
                *_java(bench, warm, topics, count, process=name == "Parquet" and topics == 1),
            ],
        )  # fmt: skip
        if source != table:
            source.unlink()
    table.unlink()


def _json_lines(bench: Bench, warm: JavaStore | None) -> Iterator[Row]:
    count, source = bench.scale.append_messages, bench.folder / "messages.jsonl"
    messages.write_jsonl(source, messages.batches(1, count))
    loop = Program(
        name="Python, json.loads",
        line=[*LIMITS, "json", source],
        shown="decodes every line, and writes nothing",
    )
    columns = Program(
        name="pyarrow, read_json", line=[*LIMITS, "jsoncolumns", source],
        shown="parses the lines into columns, on all processors, and writes nothing",
    )  # fmt: skip
    yield Row(
        name="append from JSON lines", unit="messages", amount=count, goals={WARM: 2.5},
        contenders=[
            appended(bench.folder / "store", source, count), _bare_writer(bench, source, count), columns,
            loop, *_java(bench, warm, 1, count),
        ],
    )  # fmt: skip
    source.unlink()


def _with_writer(root: Path, count: int, work: Callable[[StoreWriter], float], **options: Any) -> float:
    """What `work` returns for the writer of a new store; all messages must be in its queues."""
    with StoreWriter.create(root, auto_create_queues=QUEUES, **messages.OPTIONS, **options) as writer:
        seconds = work(writer)
    assert messages.stored_messages(root) == count
    remove_store(root)
    return seconds


def _put_blocks(
    writer: StoreWriter, count: int, block: int, put: Callable[[list[NewMessage]], object]
) -> float:
    """Seconds in `put`, which gets all messages in blocks; as StoreBench, making them does not count."""
    (topic,) = messages.topic_names(1)
    made, seconds = messages.each(topic, 0, count), 0.0
    while some := list(islice(made, block)):
        start = time.perf_counter()
        put(some)
        seconds += time.perf_counter() - start
    return seconds


def _puts(bench: Bench, warm: JavaStore | None) -> Row:
    """As StoreBench."""
    count, numbers = bench.scale.puts, counter()

    def put_all(writer: StoreWriter) -> float:
        def put_each(some: list[NewMessage]) -> None:
            for message in some:
                writer.put(message)

        return _put_blocks(writer, count, _BLOCK, put_each)

    def put(**options: Any) -> float:
        return _with_writer(bench.folder / f"puts-{next(numbers)}", count, put_all, **options)

    return Row(
        name="put, one by one", unit="messages", amount=count, in_process=True, goals={WARM: 0.6},
        contenders=[
            Call(name="StoreWriter.put", kind="rmqtool", work=put),
            Call(name="StoreWriter.put, write buffer", kind="rmqtool", work=partial(put, write_buffer=True)),
            Call(name="a bare Python loop", kind="limit",
                 work=partial(_bare_puts, bench, count, limits.put_loop),
                 shown="packs records into mapped memory, and checks nothing"),
            Call(name="a bare Python loop, pwrite",
                 work=partial(_bare_puts, bench, count, limits.pwrite_loop),
                 shown="packs records and writes each with pwrite, in a lock, and checks nothing"),
            *_java_puts(warm, count),
        ],
    )  # fmt: skip


def _bare_puts(bench: Bench, count: int, loop: Callable[..., float]) -> float:
    """Seconds of a loop of `limits` over as many messages."""
    path, (topic,) = bench.folder / "put-loop", messages.topic_names(1)
    body = messages.bodies(1)[0].as_py().encode()
    made = [(number % QUEUES, topic, body, f"KEYS\1{messages.key(number)}\2TAGS\1TagA\2UNIQ_KEY\1"
             f"{messages.KEY_PREFIX}{number:08X}\2".encode()) for number in range(count)]  # fmt: skip
    seconds = loop(path, made)
    path.unlink()
    return seconds


def _java_puts(warm: JavaStore | None, count: int) -> list[Contender]:
    """The put loop of the warm library, without dispatch."""
    if warm is None:
        return []
    return [Call(name=WARM, kind="java", shown=WARM_SHOWN, work=lambda: warm.run(1, count)["put_seconds"])]


def _lists(bench: Bench, warm: JavaStore | None) -> Row:
    """Lists of messages; of results only what the lists need to make them later."""
    count = 4 * bench.scale.puts
    numbers = counter()

    def put(block: int) -> float:
        def put_all(writer: StoreWriter) -> float:
            return _put_blocks(writer, count, block, writer.put_many)

        return _with_writer(bench.folder / f"lists-{next(numbers)}", count, put_all)

    return Row(
        name="put, lists of messages", unit="messages", amount=count, in_process=True, goals={WARM: 2},
        contenders=[
            *(Call(name=f"StoreWriter.put_many, {block:,}", kind="rmqtool", work=partial(put, block))
              for block in (_LIST, _BLOCK)),
            *_java_puts(warm, count),
        ],
    )  # fmt: skip


def _flushed_puts(bench: Bench, warm: JavaStore | None) -> Row:
    """Every put returns when its message is on the device; as StoreBench, making messages does not count."""
    (topic,), count = messages.topic_names(1), bench.scale.sync_puts
    numbers = counter()

    def put_all(writer: StoreWriter) -> float:
        def put_every(some: list[NewMessage]) -> None:
            for message in some:
                assert writer.put(message).flushed

        made = [list(messages.each(topic, first, count, THREADS)) for first in range(THREADS)]
        threads = [threading.Thread(target=put_every, args=(some,)) for some in made]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin

    def put() -> float:
        return _with_writer(bench.folder / f"sync-{next(numbers)}", count, put_all, flush="sync")

    def bare() -> None:
        path = bench.folder / "flushed"
        limits.flush(str(path), count // THREADS)
        path.unlink()

    library = [] if warm is None else [_java_loop(warm, 1, count, threads=THREADS, flush="SYNC_FLUSH")]
    return Row(
        name=f"put and flush, {THREADS} threads", unit="messages", amount=count, in_process=True,
        goals={WARM: 1},
        contenders=only([
            Call(name="StoreWriter.put, sync", kind="rmqtool", work=put),
            Call(name="write and flush", kind="limit", work=bare,
                 shown=f"writes {THREADS} records and waits for the device, again and again"),
            Call(name=f"a bare Python loop, {THREADS} threads", kind="limit",
                 work=partial(_bare_puts, bench, count, partial(limits.flushed_loop, threads=THREADS)),
                 shown="packs records, writes each with pwrite, in a lock; one thread flushes for all"),
            *library,
        ]),
    )  # fmt: skip
