"""What the tests of `rebuild` share: plan and apply, and what queues and index then hold."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rmqtool.check.verify import verify
from rmqtool.formats import index
from rmqtool.formats.consume_queue import UNIT_SIZE, Unit, decode_units
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from rmqtool.repair.plan import Plan, apply, fingerprint
from rmqtool.repair.rebuild import Rebuild, plan_rebuild
from rmqtool.storage.layout import detect
from tests.support.stores import case
from tests.support.trees import unchanged

QUEUES = ("consumequeue", "batchconsumequeue", "consumequeue_ext")
SETTINGS = {
    "mappedFileSizeCommitLog": "commit_log_file_size",
    "mappedFileSizeConsumeQueue": "consume_queue_file_size",
    "mapperFileSizeBatchConsumeQueue": "batch_queue_file_size",
    "mappedFileSizeConsumeQueueExt": "ext_queue_file_size",
    "maxHashSlotNum": "index_slots",
    "maxIndexNum": "index_entries",
}

_TOLD = ("messageDelayLevel", "enableConsumeQueueExt")


def conf_of(root: Path, name: str) -> Path:
    """A broker.conf beside the store, with its sizes and delay levels: the files that tell them may go."""
    layout = detect(root)
    values = {setting: getattr(layout, name) for setting, name in SETTINGS.items()}
    values |= {key: value for key, value in case(name).settings.items() if key in _TOLD}
    path = root.with_name(f"{root.name}.conf")
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def planned(root: Path, conf: Path | None = None, **arguments: Any) -> Rebuild:
    """The plan for a store, which stays as it is."""
    with unchanged(root):
        return _plan(root, conf, **arguments)


def _plan(root: Path, conf: Path | None, **arguments: Any) -> Rebuild:
    with Store(detect(root, broker_conf=conf)) as store:
        return plan_rebuild(store, jobs=2, **arguments)


def rebuilt(root: Path, conf: Path | None = None, **arguments: Any) -> Rebuild:
    """Plan and apply; the backup lies beside the store."""
    found = _plan(root, conf, **arguments)
    layout = detect(root, broker_conf=conf)
    plan = Plan("rebuild", {}, found.actions, fingerprint(layout))
    backup = root.with_name(f"{root.name}.backup")
    shutil.rmtree(backup, ignore_errors=True)
    apply(plan, layout, build=found.build, backup_dir=backup)
    return found


def queue_files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for part in QUEUES
        for path in sorted((root / part).rglob("*"))
        if path.is_file()
    }


def units(files: dict[str, bytes]) -> dict[tuple[str, int], Unit]:
    """The units of plain queues that are present and no fillers, by queue and queue offset."""
    found = {}
    for name, data in files.items():
        queue, _, first = name.rpartition("/")
        if name.startswith("consumequeue/"):
            for number, unit in enumerate(decode_units(data), int(first) // UNIT_SIZE):
                if unit.is_present and not unit.is_pre_blank:
                    found[queue, number] = unit
    return found


def index_entries(root: Path, shape: index.Shape) -> list[tuple[int, int]]:
    """(physical offset, key hash) of all index entries, in their order."""
    found = []
    for path in sorted((root / "index").iterdir()):
        data = path.read_bytes()
        for number in range(1, index.decode_header(data).next_entry):
            entry = index.decode_entry(data, shape.entry_offset(number))
            found.append((entry.physical_offset, entry.key_hash))
    return found


OF_BROKERS = {"IX05", "IX09"}
"""Entries that a broker made twice, and what it deletes where abort is."""


def problems(root: Path, conf: Path | None = None) -> list[Finding]:
    """What verify says about queues and index."""
    with Store(detect(root, broker_conf=conf)) as store:
        found = [item for item in verify(store) if item.problem.code[:2] in ("CQ", "IX")]
    return [item for item in found if item.problem.code not in OF_BROKERS]


def inodes(root: Path) -> dict[str, tuple[int, int]]:
    """Inode and mtime of every file of queues and index."""
    return {
        path.relative_to(root).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns)
        for part in (*QUEUES, "index")
        for path in (root / part).rglob("*")
        if path.is_file()
    }


def without(root: Path, *parts: str) -> None:
    for part in parts:
        shutil.rmtree(root / part, ignore_errors=True)
