"""`stats` and `export` against the time that pyarrow needs to write the same columns from memory.

    stats           <= 3 x of that time; the log is warm
    export          <= 3 x of that time, to Parquet with zstd; JSON lines in messages/s, beside those of dump
    peak RssAnon    < 1 GB on a store of 4 GiB (RMQTOOL_BENCH_GIB to change it)

The yardstick writes Parquet with zstd from memory into nothing; the best round of each side counts, and
compiled code is there before the first. `stats` reads the columns of COUNTED, and checks the CRC of every
body; the second ratio is that to a yardstick that writes the bodies too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmqtool import export
from rmqtool.message.cells import json_text
from rmqtool.message.rows import RowFormat
from rmqtool.read.messages import message_batches
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump.log import message_rows
from rmqtool.report.export.request import export_request
from rmqtool.report.stats.overview import Request, overview
from tests.benchmarks.big_store import make_store
from tests.benchmarks.machine import SMALL, peak_of_anonymous_bytes, report

GIB = 1 / 16 if SMALL else float(os.environ.get("RMQTOOL_BENCH_GIB", "4"))
BODIES = (200, 1024)
ROUNDS = 3
LIMIT_BYTES = 1_000_000_000
TARGET = 3.0
PART_BYTES = 1 << 28
"""Of the log, that the yardstick holds in memory at once."""
COUNTED = (
    "topic", "queue_id", "queue_offset", "size", "body_length", "born_timestamp_ms", "store_timestamp_ms",
    "physical_offset", "sys_flag",
)  # fmt: skip
REQUESTS: dict[str, tuple[tuple[str, ...], Request]] = {
    "stats": (COUNTED, Request(Selection(), by=("topic",))),
    "stats --by topic,queue,hour": (
        COUNTED,
        Request(Selection(), by=("topic", "queue", "hour"), form=RowFormat(tz=UTC)),
    ),
    "stats --by tag": ((*COUNTED, "tags"), Request(Selection(), by=("tag",))),
    "stats --transactions": (COUNTED, Request(Selection(), transactions=True)),
    "stats --duplicates": ((*COUNTED, "uniq_key"), Request(Selection(), duplicates=True)),
}
"""What is counted, and the columns that it takes."""


def seconds_of(work: Callable[[], object]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def columns_in_memory(root: Path, columns: Sequence[str], selection: Selection) -> pa.Table:
    """These columns of the selected messages of a store."""
    with Store.open(root) as store:
        return pa.Table.from_batches(message_batches(store, selection, columns=list(columns)))


def write_parquet(table: pa.Table) -> None:
    """What pyarrow does with columns that it has in memory."""
    with pa.OSFile(os.devnull, "wb") as nowhere:
        pq.write_table(table, nowhere, compression="zstd")


def yardstick(root: Path, columns: Sequence[str], records: int) -> float:
    """Seconds for writing these columns of all records, by those of the first PART_BYTES."""
    table = columns_in_memory(root, columns, Selection(to_offset=PART_BYTES))
    return min(seconds_of(lambda: write_parquet(table)) for _ in range(ROUNDS)) * records / len(table)


def count(root: Path, request: Request) -> None:
    """All sections of a request, every row made."""
    with Store.open(root) as store:
        for section in overview(store, request, lambda _: None).sections:
            list(section.rows)


@pytest.mark.parametrize("body_bytes", BODIES)
def test_stats(tmp_path: Path, body_bytes: int) -> None:
    root = tmp_path / "store"
    records = make_store(root, int(GIB * (1 << 30)), body_bytes)
    with Store.open(root) as store:  # compile, or load what was compiled
        list(message_batches(store, Selection(limit=1), columns=[*COUNTED, "tags", "uniq_key"]))
    shown, peaks = [], []
    for name, (columns, request) in REQUESTS.items():
        with peak_of_anonymous_bytes() as peak:
            took = min(seconds_of(lambda each=request: count(root, each)) for _ in range(ROUNDS))
        peaks.append(peak[0])
        plain, whole = (yardstick(root, each, records) for each in (columns, (*columns, "body")))
        missed = "" if took <= TARGET * plain or SMALL else "  MISSED"
        shown.append(
            f"{name:28} {took:6.2f} s {records / took / 1e6:6.2f} M records/s {took / plain:6.2f} x of"
            f" {plain:.2f} s (target {TARGET:g} x){missed}, {took / whole:.2f} x with bodies,"
            f" RssAnon {peak[0] / 1e6:.0f} MB"
        )
    report(f"stats of {GIB:g} GiB, {records} records, bodies of {body_bytes} bytes", *shown)
    assert SMALL or max(peaks) < LIMIT_BYTES


EXPORTS = {
    "parquet": "export to Parquet", "arrow": "export to Arrow", "jsonl": "export to JSON lines",
    "csv": "export to CSV",
}  # fmt: skip
DUMPED = 20_000
"""Messages of which the rate of dump is taken."""


def exported(root: Path, target: Path, jobs: int) -> None:
    """An export of all messages."""
    with Store.open(root) as store:
        export(store, target, force=True, jobs=jobs)


def dump_rate(root: Path) -> float:
    """Lines of JSON that dump makes in a second."""
    with Store.open(root) as store:
        rows = message_rows(store, Selection(limit=DUMPED), RowFormat(tz=UTC), lambda _: None)
        begin = time.perf_counter()
        count = sum(1 for row in rows if json_text(row).encode())
        return count / (time.perf_counter() - begin)


@pytest.mark.parametrize("body_bytes", BODIES)
def test_export(tmp_path: Path, body_bytes: int) -> None:
    root = tmp_path / "store"
    records = make_store(root, int(GIB * (1 << 30)), body_bytes)
    columns = export_request("a.parquet").columns.names
    with Store.open(root) as store:  # compile, or load what was compiled
        list(message_batches(store, Selection(limit=1), columns=columns))
    plain, dumped = yardstick(root, columns, records), dump_rate(root)
    shown, peaks = [], []
    for suffix, name in EXPORTS.items():
        target = tmp_path / f"a.{suffix}"
        with peak_of_anonymous_bytes() as peak:
            took = min(
                seconds_of(lambda to=target: exported(root, to, os.cpu_count() or 1)) for _ in range(2)
            )
        peaks.append(peak[0])
        missed = "" if took <= TARGET * plain or SMALL or suffix != "parquet" else "  MISSED"
        than = f"{took / plain:6.2f} x of {plain:.2f} s (target {TARGET:g} x){missed}"
        if suffix in ("jsonl", "csv"):
            than = f"{records / took / dumped:6.1f} x dump (target 1 x)"
        shown.append(
            f"{name:22} {took:6.2f} s {records / took / 1e6:6.2f} M messages/s {than}, RssAnon"
            f" {peak[0] / 1e6:.0f} MB, {target.stat().st_size / 1e6:.0f} MB"
        )
        target.unlink()
    report(f"export of {GIB:g} GiB, {records} messages, bodies of {body_bytes} bytes", *shown)
    assert SMALL or max(peaks) < LIMIT_BYTES
