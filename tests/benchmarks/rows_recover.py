"""Recovery of a store whose queues, index and checkpoint are gone, beside a start of the broker's library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.benchmarks import messages
from tests.benchmarks.harness import Contender, Row, rmqtool
from tests.benchmarks.java import java, only
from tests.benchmarks.machine import remove_store
from tests.benchmarks.scale import Bench

_GONE = ("consumequeue", "batchconsumequeue", "index", "compaction", "rocksdbstore", "timerlog")


def rows(bench: Bench) -> Iterator[Row]:
    """The plan, and the whole repair."""
    store, count = bench.folder / "recover" / "store", bench.scale.log_messages
    messages.make_store(store, count, log_file_bytes=bench.scale.log_file_bytes)
    size = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    library = java_start(store, count, bench.scale.log_file_bytes)
    yield Row(
        name="recover, the plan", unit="bytes", amount=size, goals={library.name: 8},
        contenders=only([plan(store), library]),
    )  # fmt: skip
    yield Row(
        name="recover and apply", unit="bytes", amount=size, goals={library.name: 6},
        contenders=only([repair(store, count), library]),
    )  # fmt: skip
    remove_store(store.parent)


def crash(store: Path) -> None:
    """Leave only the log and abort: no queues, index or checkpoint, and no backup of a run before."""
    for name in _GONE:
        shutil.rmtree(store / name, ignore_errors=True)
    for path in store.parent.glob("backup*"):
        shutil.rmtree(path)
    (store / "checkpoint").unlink(missing_ok=True)
    (store / "abort").write_text("1", "ascii")
    os.sync()  # what the run before left to be written must not slow the next


def plan(store: Path) -> Contender:
    """`recover` alone: it shows the plan."""
    return rmqtool(
        "recover", store, codes=(1,), shown="rmqtool recover STORE", before=partial(crash, store),
        name="rmqtool recover",
    )  # fmt: skip


def repair(store: Path, count: int) -> Contender:
    """`recover --apply`; afterwards every message is in its queue."""

    def check() -> None:
        assert messages.stored_messages(store) == count

    backup = store.with_name("backup")
    return rmqtool(
        "recover", store, "--apply", "--yes", "--backup-dir", backup, name="rmqtool recover --apply",
        shown="rmqtool recover STORE --apply --yes", before=partial(crash, store), after=check,
    )  # fmt: skip


def java_start(store: Path, count: int, log_file_bytes: int) -> Contender:
    """A start of the broker's library, until log, queues and index are level; what it adds is removed."""
    logs = {path.name for path in (store / "commitlog").iterdir()}

    def after() -> None:
        for path in (store / "commitlog").iterdir():
            if path.name not in logs:
                path.unlink()  # created in advance

    return java(
        "RecoverBench", store, log_file_bytes, inside="complete_seconds",
        right=lambda told: told["loaded"] and told["dispatched"] == count,
        before=partial(crash, store), after=after,
    )  # fmt: skip
