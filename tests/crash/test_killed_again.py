"""A command killed at any file operation and run again: the store is that of a run that nothing disturbs.

Byte for byte, with modes, the names of all files and the times that a run sets; and undone it is the store of
before. Over stores of which one file alone knows something, which a repair moves away: committed and delay
offsets without a .bak, numbers of queues whose records have expired, own sizes of queues and index.

RMQTOOL_SWEEP=1 takes every operation of every command and store. Else a few of each, one of them when a file
of the store has just gone into the backup.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool.formats.consume_queue import UNIT_SIZE, Unit, decode_units, encode_unit
from rmqtool.read.kernels import load_kernels
from rmqtool.repair.expire import Request as Expiring
from rmqtool.repair.expire.remove import expire
from rmqtool.repair.rebuild.run import Request as Rebuilding
from rmqtool.repair.rebuild.run import rebuild_store
from rmqtool.repair.recover import Request, recover_store, undo_recover
from rmqtool.repair.reset_offset import Request as Resetting
from rmqtool.repair.reset_offset import reset_offsets
from rmqtool.write.store_writer import StoreWriter
from tests.crash.test_crash import says
from tests.crash.test_recover_crash import MANY, damaged
from tests.properties.test_lifecycle import SMALL
from tests.support.crash_child import ENDED, Tell, in_child, message
from tests.support.damage import damage_store
from tests.support.disk_calls import Stop, watched
from tests.support.recover_checks import opener, write_sizes
from tests.support.stores import Library
from tests.support.sweep import IS_WHOLE, sample
from tests.support.trees import copy_tree, tree_rows
from tests.unit.repair.test_expire import aged, disks  # noqa: F401  a fixture: the disk is one percent full

pytestmark = pytest.mark.sweep

START_NS = time.time_ns()
OLD_NS = 1_600_000_000 * 10**9
SAMPLE = 2  # moments of a command and a store
_CAN_BE_TORN = ("create_file", "write", "copy_range")
Rows = dict[str, tuple[Any, ...]]


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """Compiled once, so that no child has to."""
    load_kernels()


# Stores: each is made as the folder `store` of a new folder, beside it what else its commands need


def lost_tail(cases: Library, root: Path, *, backups: bool) -> None:
    """Offsets of consumers, delays, timers lie behind the log's new end; without .bak one file has them."""
    cases.copy("ok_540_clean", root)
    last = sorted((root / "commitlog").iterdir())[-1]
    size = last.stat().st_size
    os.truncate(last, 100_000)
    os.truncate(last, size)
    for path in () if backups else (root / "config").glob("*.bak"):
        path.unlink()


def expired(cases: Library, root: Path, *, version: str) -> None:
    """Queues whose records have all expired, with a unit too many: their files alone know their numbers."""
    cases.copy(f"ok_{version}_expired", root)
    for queue in ("pubTx/1", "pubMultiTag/0"):
        path = sorted((root / "consumequeue" / queue).iterdir())[-1]
        units = list(decode_units(path.read_bytes()))
        place = next(number for number, unit in enumerate(units) if not unit.is_present)
        with path.open("r+b") as file:
            file.seek(place * UNIT_SIZE)
            file.write(encode_unit(Unit(1 << 30, 200, 0)))


def wrong_index(cases: Library, root: Path, *, version: str) -> None:
    """No file of the index is right: all are made again, and they alone tell their size."""
    cases.copy(f"ok_{version}_clean", root)
    for path in (root / "index").iterdir():
        with path.open("r+b") as file:
            file.write(b"\xff" * 40)


def much(cases: Library, root: Path) -> None:
    """Strays, missing files, a hole in the log, a config file cut."""
    damaged(cases, MANY, root)


def small(cases: Library, root: Path, *, profile: str, seed: int) -> None:
    """Own sizes of all files, damage in several places."""
    with StoreWriter.create(root, profile, auto_create_queues=3, **SMALL) as writer:
        for number in range(150):
            writer.put(message(number))
    offsets = {f"Topic{topic}@group": {"0": 5, "1": 10**6} for topic in range(3)}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    for number, path in enumerate(sorted(path for path in root.rglob("*") if path.is_file())):
        os.utime(path, ns=(OLD_NS, OLD_NS + number * 10**9))
    damage_store(root, seed)
    write_sizes(root.with_name("broker.conf"), SMALL)


def ledger(cases: Library, root: Path) -> None:
    """The log is in DLedger; a queue, the time of the timer and a config file, but not its .bak, are lost."""
    cases.copy("kind_dledger_540", root)
    shutil.rmtree(root / "consumequeue/TopicA/0")
    (root / "config/timercheck").unlink()
    (root / "config/topics.json").replace(root / "config/topics.json.bak")


def wrong_type(cases: Library, root: Path) -> None:
    """A plain queue lies where topics.json says batch queues, whose own is gone."""
    cases.copy("ok_540_clean", root)
    shutil.copytree(root / "consumequeue/pubBatch/0", root / "consumequeue/pubBatchCQ/0")
    shutil.rmtree(root / "batchconsumequeue/pubBatchCQ/0")


def old(cases: Library, root: Path, *, version: str) -> None:
    """Two log files are old enough to be deleted; the time at which they are is beside the store."""
    _, now_ms = aged(cases, version, root)
    root.with_name("now").write_text(str(now_ms))


STORES: dict[str, Callable[[Library, Path], None]] = {
    "lost tail": partial(lost_tail, backups=False),
    "lost tail, .bak": partial(lost_tail, backups=True),
    "expired 4.9.7": partial(expired, version="497"),
    "expired 5.3.3": partial(expired, version="533"),
    "expired 5.4.0": partial(expired, version="540"),
    "index 4.9.7": partial(wrong_index, version="497"),
    "index 5.4.0": partial(wrong_index, version="540"),
    MANY: much,
    "small 4.9": partial(small, profile="4.9", seed=1),
    "small 5.3": partial(small, profile="5.3", seed=2),
    "small 5.4": partial(small, profile="5.4", seed=3),
    "DLedger": ledger,
    "wrong queue type": wrong_type,
    "old 4.9.7": partial(old, version="497"),
    "old 5.4.0": partial(old, version="540"),
}


# Commands


@dataclass(frozen=True)
class Run:
    """One run of a command on the store of a folder; `number` is 1 for the run that is killed."""

    folder: Path
    elsewhere: Path
    number: int

    @property
    def root(self) -> Path:
        return self.folder / "store"

    @property
    def backup(self) -> Path:
        return self.folder / f"backup-{self.number}"

    @property
    def conf(self) -> Path | None:
        path = self.folder / "broker.conf"
        return path if path.exists() else None


Work = Callable[[Run], object]


def recovers(run: Run, **options: Any) -> None:
    request = Request.of_options({"mode": "best", "broker": None, "fill": "records", **options})
    recover_store(opener(run.root, run.conf), request, backup_dir=run.backup, yes=True, jobs=1)


def recovers_elsewhere(run: Run) -> None:
    """The backup lies on another file system."""
    backup = run.elsewhere / run.backup.name
    recover_store(opener(run.root, run.conf), Request(), backup_dir=backup, yes=True, jobs=1)


def rebuilds(run: Run) -> None:
    rebuild_store(opener(run.root, run.conf), Rebuilding(), backup_dir=run.backup, force=True, jobs=1)


def resets(run: Run) -> None:
    topic = "pubTx" if (run.root / "consumequeue" / "pubTx").exists() else "Topic0"
    request = Resetting(groups=("g",), topics=(topic,), position=1)
    reset_offsets(opener(run.root, run.conf), request, backup_dir=run.backup, force=True)


def expires(run: Run, *, archive: bool) -> None:
    now_ms = int((run.folder / "now").read_text())
    folder = run.folder / "archive" if archive else None
    expire(opener(run.root), Expiring(now_ms, UTC), force=True, archive=folder)


def undoes(run: Run) -> None:
    undo_recover(opener(run.root, run.conf), run.folder / "backup-0")


def recovered_before(run: Run) -> None:
    recovers(Run(run.folder, run.elsewhere, 0))


def killed_before(run: Run) -> None:
    """A run that was killed after two thirds of its operations."""
    spare = copy_tree(run.folder, run.folder.with_name("spare"))
    count = len(operations(run, recovered_before)[0])
    shutil.rmtree(run.folder)
    kill(Run(spare.rename(run.folder), run.elsewhere, 0), recovered_before, Stop(count * 2 // 3, "before"))


@dataclass(frozen=True)
class Command:
    """What is killed, and what is run then; `prepare` comes first. `keeps`: a backup by its run's name."""

    work: Work
    again: Work
    prepare: Work | None = None
    keeps: bool = False


def same(work: Work, **options: Any) -> Command:
    return Command(work, work, **options)


REPAIRED = tuple(name for name in STORES if not name.startswith("old"))
COMMANDS: dict[str, tuple[Command, tuple[str, ...]]] = {
    "recover": (same(recovers, keeps=True), REPAIRED),
    "recover --fill none": (same(partial(recovers, fill="none"), keeps=True), (MANY, "small 5.4")),
    "recover --mode broker": (
        same(partial(recovers, mode="broker", broker="5.4"), keeps=True),
        ("lost tail", "small 5.4"),
    ),
    "recover, backup elsewhere": (same(recovers_elsewhere), ("lost tail", "small 4.9")),
    "recover of a killed one": (
        same(recovers, prepare=killed_before, keeps=True),
        ("lost tail", "small 5.4"),
    ),
    "rebuild": (
        same(rebuilds, keeps=True),
        (
            "expired 4.9.7",
            "expired 5.3.3",
            "expired 5.4.0",
            "index 4.9.7",
            "index 5.4.0",
            "wrong queue type",
            MANY,
            "small 5.4",
        ),
    ),
    "reset-offset": (same(resets, keeps=True), ("expired 4.9.7", "small 5.4")),
    "expire": (same(partial(expires, archive=False)), ("old 4.9.7", "old 5.4.0")),
    "expire --archive": (same(partial(expires, archive=True)), ("old 5.4.0",)),
    "undo": (
        same(undoes, prepare=recovered_before),
        ("lost tail", "expired 5.4.0", "index 4.9.7", "wrong queue type", MANY, "small 5.3", "DLedger"),
    ),
    "undo of a killed one": (same(undoes, prepare=killed_before), ("lost tail", "small 5.4")),
    "undo, then recover": (
        Command(undoes, recovers, prepare=recovered_before, keeps=True),
        ("lost tail", "small 5.4"),
    ),
}
PAIRS = [(command, store) for command, (_, stores) in COMMANDS.items() for store in stores]


# Killing


def operations(run: Run, work: Work) -> tuple[list[str], list[int]]:
    """The operations of a whole run, by name; the numbers of those before which a file has left the store."""

    def action(tell: Tell) -> None:
        with watched(run.folder) as calls:
            work(run)
        failed = calls.number - len(calls.done)  # at the start: the lock is there already
        names = ["make_folder"] * failed + [call.name for call in calls.done]
        left = [
            number
            for number, call in enumerate(calls.done, failed + 2)
            if call.name in ("rename", "remove") and Path(call.path).is_relative_to(run.root)
            and not Path(call.other or "/").is_relative_to(run.root)
        ]  # fmt: skip
        tell([names, left])

    status, told = in_child(action)
    assert status == 0
    return told[0][0], told[0][1]


def kill(run: Run, work: Work, stop: Stop) -> None:
    def action(tell: Tell) -> None:
        with watched(run.folder, stop=stop):
            work(run)

    assert in_child(action)[0] == ENDED


def moments(names: list[str], left: list[int], seed: str) -> list[Stop]:
    """Every moment at which a run can be killed, or a sample of them."""
    count = len(names)
    every = [Stop(number, "before") for number in range(1, count + 1)]
    every += [Stop(number, "half") for number, name in enumerate(names, 1) if name in _CAN_BE_TORN]
    every.append(Stop(count, "after"))
    if IS_WHOLE:
        return every
    random = Random(seed)
    found = random.sample(every, SAMPLE)
    return found + ([Stop(min(random.choice(left), count), "before")] if left else [])


def state(folder: Path) -> Rows:
    """What lies below a folder but the lock: kind, size, mode, bytes, and the time where a run has set it."""
    if not folder.is_dir():
        return {}
    return {
        name: (kind, size, (folder / name).lstat().st_mode, digest, mtime_ns)
        for name, kind, size, time_ns, digest in tree_rows(folder)
        if name not in (".", "lock")
        for mtime_ns in (time_ns if time_ns < START_NS and kind == "file" else None,)
    }


def difference(found: Rows, wanted: Rows) -> dict[str, Any]:
    names = found.keys() | wanted.keys()
    return {
        name: (found.get(name), wanted.get(name)) for name in names if found.get(name) != wanted.get(name)
    }


@pytest.mark.parametrize(("command", "store"), sample(PAIRS, 7))
def test_run_again(
    cases: Library,
    tmp_path: Path,
    disk_path: Path,
    command: str,
    store: str,
) -> None:
    what = COMMANDS[command][0]
    folder, elsewhere = tmp_path / "run", disk_path / "elsewhere"
    elsewhere.mkdir()
    if "elsewhere" in command and elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    first, second = Run(folder, elsewhere, 1), Run(folder, elsewhere, 2)
    folder.mkdir()
    STORES[store](cases, first.root)
    before = state(first.root)
    if what.prepare is not None:
        what.prepare(first)
    start = copy_tree(folder, tmp_path / "start")
    names, left = operations(first, what.work)
    if what.again is not what.work:
        what.again(second)
    wanted, archived = state(first.root), state(folder / "archive")
    tails = contents_of_tails(folder)
    assert command.startswith("undo") or wanted != state(start / "store")
    stops = moments(names, left, f"{command} {store}")
    for stop in stops:
        shutil.rmtree(folder)
        shutil.rmtree(elsewhere)
        elsewhere.mkdir()
        copy_tree(start, folder)
        with says(stop):
            kill(first, what.work, stop)
            what.again(second)
            assert difference(state(first.root), wanted) == {}
            assert contents_of_tails(folder) == tails
            for name, row in archived.items():
                assert name.endswith(".json") or state(folder / "archive")[name] == row
            if what.keeps:
                made = [path for path in folder.glob("backup-?") if path.is_dir()]
                undo_recover(opener(first.root, first.conf), max(made))
                assert difference(state(first.root), before) == {}


def contents_of_tails(folder: Path) -> set[bytes]:
    """What recover has written of the messages behind the log's new end, whichever run has."""
    return {path.read_bytes() for path in folder.glob("backup-*.tail*.jsonl")}
