"""What the benches know of the machine, and how they report."""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import ROOT

BUILD = ROOT / "build" / "bench"
"""Where `make bench` compiles."""
STORES = Path(os.environ.get("RMQTOOL_BENCH_DIR", BUILD)) / "stores"
"""Where the stores of both sides lie while they are measured, on one file system."""
SMALL = bool(os.environ.get("RMQTOOL_BENCH_SMALL"))
"""`make bench-smoke`: the same benches with small counts; their figures mean nothing."""


FEW_FILES = 1_000


def touch_memory(size: int) -> None:
    """Touch `size` bytes of memory and give them back.

    A virtual machine gets much of its memory from its host only when it is touched first, ten times slower
    than later; the page cache of whoever is measured first would pay for that.
    """
    mmap.mmap(
        -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    ).close()


def finish(store: Path, files: int) -> None:
    """Free the space of a store with about that many files, and let the disk come to rest.

    Of one with many files the queues stay until the end of the bench: an ext4 without a journal goes
    around the inodes of what was deleted in the last minutes one by one, and whoever makes files then
    would be measured twenty times slower.
    """
    for folder in [store] if files <= FEW_FILES else [store / "commitlog", store / "index"]:
        shutil.rmtree(folder)
    if not SMALL:
        os.sync()  # what one run left to be written is not to slow the next


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise OSError("the system does not tell RssAnon")


@contextmanager
def peak_of_anonymous_bytes(step_s: float = 0.01) -> Iterator[list[int]]:
    """The highest RssAnon of this process while the block runs: element 0 of the list."""
    peak, done = [anonymous_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(step_s):
            peak[0] = max(peak[0], anonymous_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def rate(messages: int, seconds: Sequence[float]) -> float:
    """Messages a second, by the median run."""
    return messages / statistics.median(seconds)


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start


def report(title: str, *lines: str) -> None:
    """Print a block of figures with the load average."""
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    small = " (small counts: the figures mean nothing)" if SMALL else ""
    sys.stdout.write(f"\n{title}{small}, load {load}\n" + "".join(f"  {line}\n" for line in lines))
    sys.stdout.flush()


def against(name: str, ours: float, java: float, target: float) -> str:
    """One line: our rate, Java's, their ratio, what is wanted of it."""
    ratio = ours / java
    verdict = "" if ratio >= target or SMALL else "  MISSED"
    return f"{name:44} {ours:11,.0f}/s  Java {java:9,.0f}/s  {ratio:6.2f} x (target {target:g} x){verdict}"
