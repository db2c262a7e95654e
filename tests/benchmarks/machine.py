"""What the benchmarks know of the machine: where stores are kept, what it is, and how it is left at rest."""

from __future__ import annotations

import mmap
import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from itertools import count
from pathlib import Path

import rmqtool
from tests import ROOT
from tests.interop.processes import JAVA

BUILD = ROOT / "build" / "bench"
"""Where `make bench` compiles, and where it writes its results."""
STORES = Path(os.environ.get("RMQTOOL_BENCH_DIR", BUILD)) / "stores"
"""The stores of all contenders while they are measured, on one file system."""
FEW_FILES = 1_000
_emptied = count()
LIBRARIES = ("numba", "numpy", "pyarrow", "pyspark")


def touch_memory(size: int) -> None:
    """Touch `size` bytes of memory, or half of all if that is less, and free them.

    A virtual machine gets much of its memory from its host only when it is first touched, ten times slower
    than later. The page cache of the contender that is measured first would pay for that.
    """
    mmap.mmap(
        -1,
        min(size, _memory_bytes() // 2),
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0),
    ).close()


def remove_store(store: Path) -> None:
    """Free the space of a store, and wait until the disk is at rest.

    The files of a store with many queues stay until the end of the run, empty and under another name: ext4
    without a journal skips the inodes of recently deleted files one by one, and the next contender that
    creates files would be twenty times slower.
    """
    paths = [path for path in store.rglob("*") if path.is_file()]
    if len(paths) <= FEW_FILES:
        shutil.rmtree(store)
    else:
        for path in paths:
            os.truncate(path, 0)
        store.rename(store.with_name(f"emptied-{next(_emptied)}"))
    os.sync()  # what one run left to be written must not slow the next


def drop_from_cache(folder: Path) -> None:
    """Remove the files of a folder from the page cache. On tmpfs this has no effect."""
    os.sync()  # only clean pages can be dropped
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def process_cpu_seconds(pid: int) -> float | None:
    """The user and system time of a process with all its threads; None where the system does not say."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return None
    user, system = path.read_text("ascii").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def file_system(folder: Path) -> str:
    """The kind of file system of a folder: ext4, tmpfs; empty where the system does not say."""
    best, kind, mounts = 0, "", Path("/proc/self/mounts")
    for line in mounts.read_text("utf-8").splitlines() if mounts.exists() else ():
        _, place, name, *_ = line.split()
        if folder.resolve().is_relative_to(place) and len(place) >= best:
            best, kind = len(place), name
    return kind


def has_page_cache(folder: Path) -> bool:
    """Whether files in this folder are on a device; in memory no file can be read with a cold cache."""
    return file_system(folder) not in ("", "tmpfs", "ramfs")


def describe() -> dict[str, str]:
    """The machine, the versions and the date, as the report shows them."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{_memory_bytes() / (1 << 30):.0f} GiB",
        "file_system": file_system(STORES),
        "system": f"{platform.system()} {platform.release()}",
        "rmqtool": rmqtool.__version__,
        "python": platform.python_version(),
        **{name: version for name in LIBRARIES if (version := _version(name))},
        **({"java": version} if (version := _java_version()) else {}),
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    """The model of the processor, as /proc/cpuinfo or the platform names it."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _java_version() -> str:
    """As `17.0.15`; empty without Java."""
    try:
        done = subprocess.run([JAVA, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    found = re.search(r'"([^"]+)"', done.stderr)
    return found[1] if found else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
