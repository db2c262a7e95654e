"""Appends some GB with put_table and prints what memory that took: `append_memory STORE GB`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa

from rmqtool.write.store_writer import StoreWriter
from tests.benchmarks import messages as made
from tests.benchmarks.machine import Clock, anonymous_bytes, peak_of_anonymous_bytes

TOPICS = 1_000


def main(root: str, gb: float) -> None:
    """Queues and index included; the store is closed."""
    tables = made.batches(TOPICS, made.BATCH_ROWS)
    rows = int(gb * 1e9) // made.BODY_BYTES
    early: list[int] = []

    def repeated(peak: list[int]) -> Iterator[pa.RecordBatch]:
        done = 0
        while done < rows:
            if not early and done > rows // 10:
                early.append(peak[0])
            yield from tables
            done += sum(map(len, tables))

    before = anonymous_bytes()
    clock = Clock()
    with (
        peak_of_anonymous_bytes() as peak,
        StoreWriter.create(root, auto_create_queues=made.QUEUES) as writer,
    ):
        writer.put_table(repeated(peak))
    result = {"before": before, "early_peak": early[0], "peak": peak[0], "seconds": clock.seconds}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
