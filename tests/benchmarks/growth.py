"""How commands grow: with the bytes of a store, with its topics, with its queues.

A curve is a command at several sizes. Of each point: time, peak memory, open files. The slope is the exponent
of the time between the first and the last point: 1 grows as the data, 0 not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count as counter
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import messages, rows_recover, rows_spark
from tests.benchmarks.harness import Contender, rmqtool
from tests.benchmarks.machine import remove_store
from tests.benchmarks.rows_append import appended
from tests.benchmarks.scale import Bench

KEYS = 1_000
_SHOWN = 10
_numbers = counter()


def measured(bench: Bench) -> Iterator[dict[str, Any]]:
    """Every point, as it is measured: command, axis, size, seconds, peak_bytes, open_files."""
    for axis, size, contenders in _points(bench):
        for each in contenders:
            first = each.round(watched=True)
            others = [each.round() for _ in range(bench.scale.growth_rounds)] or [first]
            yield {
                "command": each.name, "shown": each.shown, "axis": axis, "size": size,
                "seconds": median(one.seconds for one in others),
                "peak_bytes": first.peak_bytes, "open_files": first.open_files,
            }  # fmt: skip


def curves(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of each command and axis together, with the slope; in the order of their first points."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for point in points:
        found.setdefault((point["command"], point["axis"]), []).append(point)
    return [
        {"command": command, "axis": axis, "slope": _slope(each), "points": each}
        for (command, axis), each in found.items()
    ]


def _slope(points: Sequence[dict[str, Any]]) -> float | None:
    first, last = points[0], points[-1]
    if first["size"] == last["size"]:
        return None
    return math.log(last["seconds"] / first["seconds"]) / math.log(last["size"] / first["size"])


def _points(bench: Bench) -> Iterator[tuple[str, float, list[Contender]]]:
    for number, count in enumerate(bench.scale.growth_messages):
        yield from _bytes(bench, count, spark=number in bench.scale.spark_growth)
    for topics in bench.scale.topics:
        yield from _topics(bench, topics)
    yield from _queues(bench)


def _bytes(bench: Bench, count: int, *, spark: bool) -> Iterator[tuple[str, float, list[Contender]]]:
    """Every command at one size of the log. What `export` has written is what `append` gets."""
    root = _new_root(bench)
    messages.make_store(root, count, log_file_bytes=bench.scale.log_file_bytes)
    exported, keys = root.with_name("exported.parquet"), root.with_name("keys.txt")
    step = max(count // KEYS, 1)
    keys.write_text("".join(f"{messages.key(number)}\n" for number in range(0, count, step)), "ascii")
    (topic,) = messages.topic_names(1)
    key, size = messages.key(count // 2), messages.log_end(root)
    yield "bytes of log", size, [
        rmqtool("info", root, name="info"),
        rmqtool("dump", root, "--limit", _SHOWN, name="dump of 10 messages"),
        rmqtool("tail", root, "--topic", topic, "--last", _SHOWN, name="tail of 10 messages"),
        rmqtool("lookup", root, "--key", key, "--topic", topic, name="lookup of one key"),
        rmqtool("verify", root, name="verify", answer=lambda text: "sound" in text),
        rmqtool("stats", root, name="stats"),
        rmqtool("lookup", root, "--keys-from", keys, "--topic", topic, name="lookup of 1,000 keys"),
        rmqtool("export", root, "--output", exported, "--force", "--jobs", 0, name="export to Parquet"),
    ]  # fmt: skip
    if spark and rows_spark.is_ready():
        yield "bytes of log", size, [_named(rows_spark.spark_scan(root, count), "spark-scan, count")]
    yield "bytes of log", size, _recovery(root, count)
    remove_store(root)
    yield "bytes of log", size, [appended(root, exported, count, name="append from Parquet")]
    exported.unlink()


def _recovery(root: Path, count: int) -> list[Contender]:
    """The plan of `recover`, then the repair itself."""
    return [
        _named(rows_recover.plan(root), "recover, the plan"),
        _named(rows_recover.repair(root, count), "recover and apply"),
    ]


def _new_root(bench: Bench) -> Path:
    """Where the next store is made; what is beside it belongs to it."""
    return bench.folder / f"growth-{next(_numbers)}" / "store"


def _topics(bench: Bench, topics: int) -> Iterator[tuple[str, float, list[Contender]]]:
    """What depends on the number of topics, with the same messages."""
    root, count = _new_root(bench), bench.scale.append_messages
    messages.make_store(root, count, topics=topics, log_file_bytes=bench.scale.log_file_bytes)
    target = root.with_name("exported.parquet")
    yield "topics", topics, [
        rmqtool("info", root, name="info"),
        rmqtool("verify", root, name="verify", answer=lambda text: "sound" in text),
        rmqtool("export", root, "--output", target, "--force", "--jobs", 0, name="export to Parquet"),
        *_recovery(root, count),
    ]  # fmt: skip
    remove_store(root)
    yield "topics", topics, [appended(root, target, count, name="append from Parquet")]
    target.unlink()


def _queues(bench: Bench) -> Iterator[tuple[str, float, list[Contender]]]:
    """Opening a store with many queues, of one message each; first with a tenth of them."""
    (topic,) = messages.topic_names(1)
    for queues in (bench.scale.many_queues // 10, bench.scale.many_queues):
        root = _new_root(bench)
        messages.make_store(
            root, queues, topics=queues // 4, body_bytes=16, log_file_bytes=bench.scale.log_file_bytes
        )
        yield "queues", queues, [
            rmqtool("info", root, name="info"),
            rmqtool("append", root, "--topic", topic, "--body", "1 book", name="append of one message"),
        ]  # fmt: skip
        remove_store(root)


def _named(contender: Contender, name: str) -> Contender:
    return replace(contender, name=name)
