"""A process that appends to a store, says what was acknowledged, and may end at any moment.

    told = in_child(lambda tell: work(root, Scenario(seed=1), tell))

What is told, one row each:

    ["want", numbers]           these messages are put next; of a batch several
    ["stored", number, ...]     one was acknowledged: see `Stored`
    ["rows", numbers, ...]      a table was acknowledged: see `Rows`
    ["flushed", end]            the log is on the device up to this physical offset
    ["closed"]                  the store was closed cleanly
    ["failed", class, text]     an error ended the work
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from rmqtool.errors import RmqtoolError
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import PutResult, StoreWriter

Tell = Callable[[list[Any]], None]
FIRST_MS = 1_700_000_000_000
STEP_MS = 10_000  # far apart, so that the checkpoint tells records apart
DELAY_LEVEL = 3
BATCH_MAX = 4
OF_THREADS = 10_000  # from this number on messages are put by several threads, at the time that it is
ENDED = -signal.SIGKILL


class Stored(NamedTuple):
    """An acknowledged message; `topic` and `queue_id` are those under which it is stored."""

    number: int
    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    flushed: bool


class Rows(NamedTuple):
    """The acknowledged messages of a table, and where its first and its last record begin."""

    numbers: list[int]
    first: int
    last: int
    flushed: bool


@dataclass(frozen=True)
class Scenario:
    """What the process does; the same every time for the same values, but for its threads."""

    seed: int = 0
    flush: str = "async"
    profile: str = "5.4"
    write_buffer: bool = False
    steps: int = 40
    opened: int = 2  # how often the store is opened; the first time it is made
    reserve: bool = True
    topics: int = 3
    tables: bool = False
    threads: int = 1
    batch_queues: bool = False

    def options(self) -> dict[str, Any]:
        """Small files: every few messages one begins."""
        return {
            "auto_create_queues": 2, "commit_log_file_size": 8192, "consume_queue_file_size": 15 * 20,
            "batch_queue_file_size": 8 * 46, "index_slots": 10, "index_entries": 40, "flush": self.flush,
            "write_buffer": self.write_buffer, "reserve": self.reserve, "flush_interval_ms": 5,
            "flush_least_pages": 1, "commit_interval_ms": 3, "checkpoint_interval_ms": 20,
        }  # fmt: skip


@cache
def message(number: int, topics: int = 3) -> NewMessage:
    """The message with a number: all of it follows from the number."""
    random = Random(number)
    own_time = FIRST_MS + number * STEP_MS if number < OF_THREADS else None
    body = f"{number:08d}|".encode() + random.randbytes(random.choice((0, 3, 100, 700, 1500)))
    return NewMessage(
        f"Topic{random.randrange(topics)}", body, tags=f"Tag{number % 5}", keys=[f"key{number}"],
        store_timestamp=own_time, born_timestamp=FIRST_MS,
    )  # fmt: skip


def number_of(body: bytes) -> int:
    """The number of the message that a body belongs to; -1 for a body that no message has."""
    head, bar, _ = body.partition(b"|")
    number = int(head) if bar and len(head) == 8 and head.isdigit() else -1
    return number if number >= 0 and message(number).body == body else -1


def work(root: Path, scenario: Scenario, tell: Tell) -> None:
    """Make the store at `root`, append, close, open again, and so on; an error is told and ends it."""
    random = Random(scenario.seed)
    number = 0
    options = scenario.options()
    for turn in range(scenario.opened):
        if turn:
            writer = StoreWriter.open(root, **options)
        else:
            writer = StoreWriter.create(root, scenario.profile, **options)
        with writer:
            if scenario.batch_queues and not turn:
                for topic in range(scenario.topics):
                    writer.topics.add(f"Topic{topic}", 2, attributes={"queue.type": "BatchCQ"})
            if scenario.threads == 1:
                number = _steps(writer, scenario, random, number, tell)
            else:
                number = _side_by_side(writer, scenario, number, tell)
        tell(["closed"])


def _steps(writer: StoreWriter, scenario: Scenario, random: Random, number: int, tell: Tell) -> int:
    kinds = {"put": 70, "delayed": 6, "batch": 10, "flush": 7, "dispatch": 7, "table": 40 * scenario.tables}
    if scenario.batch_queues:
        kinds["batch"] = 0  # there a batch is one record
    for _ in range(scenario.steps // scenario.opened):
        match random.choices(list(kinds), list(kinds.values()))[0]:
            case "table":
                group = [message(number + place, scenario.topics) for place in range(random.randrange(1, 8))]
                _put_table(writer, group, number, tell)
                number += len(group)
            case "put":
                _put(writer, [message(number, scenario.topics)], number, tell)
                number += 1
            case "delayed":
                _put(
                    writer, [replace(message(number, scenario.topics), delay_level=DELAY_LEVEL)], number, tell
                )
                number += 1
            case "batch":
                group = [
                    message(number + place, scenario.topics)
                    for place in range(random.randrange(2, BATCH_MAX + 1))
                ]
                _put(writer, [replace(one, topic=group[0].topic) for one in group], number, tell)
                number += len(group)
            case "flush":
                tell(["flushed", writer.flush()])
            case "dispatch":
                writer.dispatch()
    return number


def _side_by_side(writer: StoreWriter, scenario: Scenario, number: int, tell: Tell) -> int:
    count = scenario.steps // scenario.opened // scenario.threads

    def put(first: int) -> None:
        for one in range(first, first + count):
            _put(writer, [message(one, scenario.topics)], one, tell)

    starts = [OF_THREADS + number + thread * count for thread in range(scenario.threads)]
    with ThreadPoolExecutor(scenario.threads) as pool:
        for done in [pool.submit(put, start) for start in starts]:
            done.result()
    return number + count * scenario.threads


def _put(writer: StoreWriter, messages: list[NewMessage], number: int, tell: Tell) -> None:
    tell(["want", list(range(number, number + len(messages)))])
    result: PutResult = writer.put(messages[0]) if len(messages) == 1 else writer.put_batch(messages)
    ends = [*result.physical_offsets[1:], result.physical_offset + result.size]
    for place, (start, end) in enumerate(zip(result.physical_offsets, ends, strict=True)):
        stored = Stored(number + place, start, end - start, result.topic, result.queue_id,
                        result.queue_offset + place, result.flushed)  # fmt: skip
        tell(["stored", *stored])


def _put_table(writer: StoreWriter, messages: list[NewMessage], number: int, tell: Tell) -> None:
    import pyarrow as pa

    numbers = list(range(number, number + len(messages)))
    table = pa.table({
        "topic": [one.topic for one in messages], "body": [one.body for one in messages],
        "tags": [one.tags for one in messages], "keys": [one.keys[0] for one in messages],
        "store_timestamp_ms": [one.store_timestamp for one in messages],
    })  # fmt: skip
    tell(["want", numbers])
    result = writer.put_table(table)
    assert result.rows == len(messages)
    tell(["rows", numbers, result.first_physical_offset, result.last_physical_offset, result.flushed])


def in_child(action: Callable[[Tell], None]) -> tuple[int, list[list[Any]]]:
    """Run `action` in a child; its exit status (negative: the signal) and what it told.

    A `RmqtoolError` is told and makes it end with the error's exit code; any other with 70.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.close(reading)

            def tell(row: list[Any]) -> None:
                os.write(writing, json.dumps(row).encode() + b"\n")

            try:
                action(tell)
                status = 0
            except RmqtoolError as error:
                tell(["failed", type(error).__name__, error.message])
                status = error.exit_code
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as lines:
        told = [json.loads(line) for line in lines if line.endswith("\n")]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told
