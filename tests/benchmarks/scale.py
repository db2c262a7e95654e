"""How much a run of the benchmarks does: whole, quickly, or only to show that everything works."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.machine import STORES

QUEUES = 4
"""Of each topic of every store."""
_OTHER_FILES = 500  # descriptors that a JVM, its jars and the rest of a store have open


@dataclass(frozen=True)
class Scale:
    """Amounts of one run.

    Attributes:
        name: small, quick or full.
        rounds: that count, of every row, after one that warms up; 0: that one counts.
        budget_s: of every row, see `measure`.
        log_messages: of the store that is scanned, exported, recovered; 1 KiB each.
        log_file_bytes: of its commit log files.
        append_messages: of one append; with the most topics, twice as many.
        topics: the numbers of topics of the rows that depend on them.
        puts: messages put one by one.
        sync_puts: messages put and flushed one by one.
        keys_messages: of the store in which keys are looked up; each has 3 index entries.
        keys: how many keys one look-up gets.
        part_records: that the loops in plain Python do.
        growth_messages: of the stores of which the growth is measured.
        growth_rounds: of each of their points, in the same way.
        spark_growth: the positions in `growth_messages` that Spark scans too.
        many_queues: of the store that is opened only.
        spark_topics: of the store that Spark's selective queries read.
        net_messages: that are received and served; at most 1 GiB of log.
        spark_plan: brokers, and files of each, of the scan that is planned only.
        touch_bytes: of memory before the first row.
    """

    name: str
    rounds: int
    budget_s: float
    log_messages: int
    log_file_bytes: int
    append_messages: int
    topics: tuple[int, ...]
    puts: int
    sync_puts: int
    keys_messages: int
    keys: tuple[int, ...]
    part_records: int
    growth_messages: tuple[int, ...]
    growth_rounds: int
    spark_growth: tuple[int, ...]
    many_queues: int
    spark_topics: int
    net_messages: int
    spark_plan: tuple[int, int]
    touch_bytes: int

    def topics_for_java(self, topics: int) -> int:
        """As many topics as a JVM here can write: it keeps every queue file open."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        most = (files - _OTHER_FILES) // QUEUES if files != resource.RLIM_INFINITY else topics
        return min(topics, most)


_GIB = 900_000
"""Messages of about 1 GiB of log."""

SCALES = {
    each.name: each
    for each in (
        Scale(
            name="small", rounds=0, budget_s=0, log_messages=12_000, log_file_bytes=8 << 20,
            append_messages=3_000, topics=(1, 20), puts=2_000, sync_puts=160, keys_messages=6_000,
            keys=(500,), part_records=500, growth_messages=(4_000, 8_000), growth_rounds=0,
            spark_growth=(1,), many_queues=200, spark_topics=20, net_messages=12_000,
            spark_plan=(2, 20), touch_bytes=0,
        ),
        Scale(
            name="quick", rounds=3, budget_s=3, log_messages=120_000, log_file_bytes=64 << 20,
            append_messages=60_000, topics=(1, 300), puts=50_000, sync_puts=1_600,
            keys_messages=200_000, keys=(20_000,), part_records=10_000,
            growth_messages=(_GIB // 16, _GIB // 4), growth_rounds=0, spark_growth=(1,),
            many_queues=4_000, spark_topics=100, net_messages=120_000, spark_plan=(10, 100),
            touch_bytes=1 << 30,
        ),
        Scale(
            name="full", rounds=5, budget_s=150, log_messages=2_500_000, log_file_bytes=1 << 30,
            append_messages=1_000_000, topics=(1, 10, 100, 1_000, 10_000), puts=500_000, sync_puts=50_000,
            keys_messages=6_660_000, keys=(1, 1_000, 20_000, 100_000), part_records=50_000,
            growth_messages=(_GIB, 2 * _GIB, 4 * _GIB, 8 * _GIB), growth_rounds=2,
            spark_growth=(0, 1, 2, 3), many_queues=100_000, spark_topics=1_000, net_messages=850_000,
            spark_plan=(100, 1_000), touch_bytes=8 << 30,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """One run: its amounts, and the folder in which everything is made."""

    scale: Scale
    folder: Path = STORES
