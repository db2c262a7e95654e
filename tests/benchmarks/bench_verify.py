"""The comparison of queues and log against a walk in plain Python, and the memory of a whole verify.

    cross-check of a million messages   < 0.3 of the time of the reference walk over the same log
    peak anonymous memory of verify     < 400 MB on a store of 4 GiB (RMQTOOL_BENCH_GIB to change it)

Figures are printed, not asserted: machines are noisy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rmqtool.check.verify.context import Bounds, Context, Report
from rmqtool.check.verify.queues import QueueCheck
from rmqtool.check.verify.spans import Spans
from rmqtool.log.dispatch import dispatch_columns
from rmqtool.log.frames import Frames, walk
from rmqtool.log.python_scan import walk_reference
from rmqtool.read.store import Store
from rmqtool.storage.source import open_source
from tests.benchmarks.big_store import make_store

GIB = float(os.environ.get("RMQTOOL_BENCH_GIB", "4"))
REFERENCE_BYTES = 64 << 20  # a part of the log is enough for plain Python; its time is scaled up

_VERIFY = """
import sys, threading, time
from rmqtool.cli import main
peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.is_set():
        for line in open("/proc/self/status"):
            if line.startswith("RssAnon"):
                peak = max(peak, int(line.split()[1]))
        time.sleep(0.01)
thread = threading.Thread(target=watch); thread.start()
start = time.perf_counter()
main(["verify", sys.argv[1], "--quiet", "--keep-cache"])
seconds = time.perf_counter() - start
done.set(); thread.join()
print(f"{seconds} {peak // 1024}", file=sys.stderr)
"""


def cross_check_seconds(store: Store) -> tuple[float, int]:
    """Seconds that the comparison of queues and log alone takes, and the records compared."""
    context = Context(store, Bounds(), Report(), 1, True, None, lambda size: None, False)
    check, spans = QueueCheck(context), Spans()
    seconds, records = 0.0, 0
    file = store.layout.commit_log[0]
    source = open_source(file.path, keep_cache=True)
    with check.reader() as reader:
        for event in walk(source, file_from_offset=file.file_from_offset):
            if isinstance(event, Frames):
                dispatch = dispatch_columns(event)
                start = time.perf_counter()
                check.part(event, dispatch, reader, spans)
                seconds += time.perf_counter() - start
                records += len(event.rows)
    source.close()
    assert sum(span.count for span in spans.queues.values()) == records
    assert not any(span.mismatches for span in spans.queues.values())
    return seconds, records


def reference_seconds(store: Store) -> tuple[float, int]:
    """Seconds of the plain-Python walk over the first part of the log, and its records."""
    file = store.layout.commit_log[0]
    source = open_source(file.path, keep_cache=True)
    start = time.perf_counter()
    records = sum(1 for _ in walk_reference(source, file_from_offset=0, stop=REFERENCE_BYTES))
    seconds = time.perf_counter() - start
    source.close()
    return seconds, records


def test_cross_check_against_the_plain_walk(tmp_path: Path) -> None:
    """A million messages of 1 KiB."""
    make_store(tmp_path / "store", 1_250_000_000, 1024)
    with Store.open(tmp_path / "store") as store:
        checked, records = cross_check_seconds(store)
        plain, plain_records = reference_seconds(store)
    per_record, plain_per_record = checked / records, plain / plain_records
    sys.stdout.write(
        f"\ncross-check {per_record * 1e9:.0f} ns, plain walk {plain_per_record * 1e9:.0f} ns a message:"
        f" {per_record / plain_per_record:.3f} (target < 0.3), load {os.getloadavg()[0]:.1f}\n"
    )


def test_memory_of_verify(tmp_path: Path) -> None:
    """Messages of 200 bytes, with queues and index: the many records of a store that small ones fill."""
    make_store(tmp_path / "store", int(GIB * (1 << 30)), 200)
    done = subprocess.run(
        [sys.executable, "-c", _VERIFY, tmp_path / "store"], capture_output=True, text=True, check=True
    )
    seconds, peak_mib = done.stderr.split()[-2:]
    sys.stdout.write(
        f"\nverify of {GIB:g} GiB: {float(seconds):.1f} s, {GIB * 1.0737 / float(seconds):.2f} GB/s,"
        f" peak RssAnon {peak_mib} MiB (target < 400), load {os.getloadavg()[0]:.1f}\n"
    )
