"""Verdicts: what the store library of a version makes of a store, in the shape of `fixtures/damage`.

The store is loaded, started and shut down; files and index headers are compared before and after. A start
that does not come back is a verdict too: its process is killed and the next store gets a new one.
"""

from __future__ import annotations

import queue
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from rmqtool.formats import index
from tests.interop.processes import LabError, Program

HANG_SECONDS = 15.0
"""A start that takes longer hangs: a sound one of these stores takes less than a second."""
NOT_OF_A_STORE = ("rocksdbstore/",)
"""Folders that 5.4 makes anew at every start, with names of its own."""
_SHUTDOWN_SECONDS = 120.0

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Verdict = dict[str, Any]


def hashes(root: Path) -> dict[str, str]:
    """SHA-256 of every file below a store root, by path relative to it."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    names = {path.relative_to(root).as_posix(): path for path in files}
    return {
        name: sha256(path.read_bytes()).hexdigest()
        for name, path in names.items()
        if not name.startswith(NOT_OF_A_STORE)
    }


def index_headers(root: Path) -> list[dict[str, Any]]:
    """The headers of a store's index files, as the recorded verdicts show them."""
    rows = []
    for path in sorted((root / "index").glob("*")):
        header = index.decode_header(path.read_bytes()[: index.HEADER_SIZE].ljust(index.HEADER_SIZE, b"\0"))
        rows.append({
            "file": path.name, "size": path.stat().st_size,
            "beginTimestamp": header.begin_timestamp, "endTimestamp": header.end_timestamp,
            "beginPhyOffset": header.begin_physical_offset, "endPhyOffset": header.end_physical_offset,
            "hashSlotCount": header.hash_slot_count, "indexCount": header.index_count,
        })  # fmt: skip
    return rows


def checkpoint_times(root: Path) -> dict[str, int] | None:
    """The numbers of a store's checkpoint; None where it is missing or short."""
    path = root / "checkpoint"
    data = path.read_bytes() if path.exists() else b""
    names = ("physic", "logics", "index", "masterFlushedOffset", "confirmPhyOffset")
    return dict(zip(names, struct.unpack_from(">5q", data), strict=True)) if len(data) >= 40 else None


class Library:
    """The store library of a version, one store after the other; made anew after a hang."""

    def __init__(self, version: str, homes: Callable[[], Path]) -> None:
        self.version = version
        self._homes = homes
        self._program: Program | None = None

    @property
    def program(self) -> Program:
        """The process, started when it is wanted."""
        if self._program is None:
            self._program = Program(self.version, "StoreLibrary", home=self._homes(), heap_mb=256)
        return self._program

    def close(self) -> None:
        """End the process."""
        if self._program is not None:
            self._program.kill()
            self._program = None

    def judge(self, store: Path, settings: Mapping[str, Any]) -> Verdict:
        """Open, start and shut down the store, which is changed by that."""
        before = hashes(store)
        verdict: Verdict = {
            "indexBefore": index_headers(store),
            "checkpointBefore": checkpoint_times(store),
        }
        try:
            self._judge(store, settings, verdict)
        except LabError:
            if verdict.get("load") is not True or "start" in verdict:
                raise
            verdict["hung"] = True
            self.close()
        after = hashes(store)
        verdict |= {
            "indexAfter": index_headers(store),
            "checkpointAfter": checkpoint_times(store),
            "abortLeft": (store / "abort").exists(),
            "filesVanished": sorted(before.keys() - after.keys()),
            "filesNew": [
                {"path": name, "size": (store / name).stat().st_size, "sha256": after[name]}
                for name in sorted(after.keys() - before.keys())
            ],
            "filesChanged": [
                {"path": name, "size": (store / name).stat().st_size, "sha256": after[name]}
                for name in sorted(before.keys() & after.keys())
                if before[name] != after[name] and name != "checkpoint"
            ],
        }
        return verdict

    def _judge(self, store: Path, settings: Mapping[str, Any], verdict: Verdict) -> None:
        verdict |= self.program.call("open", store=str(store), settings=dict(settings))
        if not verdict["load"]:
            return
        loaded = self.program.call("offsets")
        verdict |= {"afterLoadMaxPhyOffset": loaded["max"], "afterLoadMinPhyOffset": loaded["min"]}
        verdict["afterLoadQueues"] = self.program.call("ranges")
        started = self.program.call("start", seconds=HANG_SECONDS)
        verdict |= {"start": True, "dispatchBehindBytes": 0}
        verdict |= {"maxPhyOffset": started["max"], "minPhyOffset": started["min"]}
        verdict["queues"] = self.program.call("ranges")
        self.program.call("shutdown", seconds=_SHUTDOWN_SECONDS)
        verdict["shutdown"] = True


class Libraries:
    """Several libraries of a version side by side: most of the time of one is spent asleep at shutdown."""

    def __init__(self, version: str, folder: Path, workers: int) -> None:
        numbers = count()
        self._idle: queue.SimpleQueue[Library] = queue.SimpleQueue()
        self.all = [
            Library(version, lambda: folder / f"home-{version}-{next(numbers)}") for _ in range(workers)
        ]
        for library in self.all:
            self._idle.put(library)

    @contextmanager
    def one(self) -> Iterator[Library]:
        """A library that nobody else uses meanwhile."""
        library = self._idle.get()
        try:
            yield library
        finally:
            self._idle.put(library)

    def each(self, work: Callable[[Library, Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """`work` of each item with a library of its own, side by side; the answers in the items' order."""
        with ThreadPoolExecutor(len(self.all)) as pool:

            def run(item: Item) -> Answer:
                with self.one() as library:
                    return work(library, item)

            yield from pool.map(run, items)


@contextmanager
def libraries(version: str, folder: Path, workers: int) -> Iterator[Libraries]:
    """Libraries that end with the block."""
    with ExitStack() as stack:
        made = Libraries(version, folder, workers)
        for library in made.all:
            stack.callback(library.close)
        yield made
