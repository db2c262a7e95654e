"""A small store, and the plan that makes other files of it: what the tests of plans share."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from rmqtool.repair import plan as plans
from rmqtool.repair.plan import Action, Applied, Build, Plan, fingerprint
from rmqtool.repair.plan.apply import STAGING_NAME
from rmqtool.repair.plan.guard import JOURNAL_NAME
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreLayout, detect
from rmqtool.write.store_writer import StoreWriter
from tests.support.crash_child import Scenario, message
from tests.support.trees import tree_rows

LOG_BYTES, QUEUE_BYTES = 8192, 300
OLD_NS = 1_600_000_000 * 10**9
Wanted = dict[str, bytes | None]
"""Content by path; None: no such file."""
IN_PLACE = ("commitlog/", "epochFileCheckpoint")


@dataclass(frozen=True)
class BuiltPlan(Plan):
    """A plan, and what makes its files."""

    build: Build | None = None


def apply(plan: Plan, layout: StoreLayout, **options: Any) -> Applied:
    """Do a plan, also one that needs files to be made."""
    return plans.apply(plan, layout, build=getattr(plan, "build", None), **options)


def make_store(root: Path) -> Path:
    """A store of seven log files; every file has an mtime of its own, long ago."""
    with StoreWriter.create(root, "5.4", **{**Scenario().options(), "reserve": False}) as writer:
        for number in range(80):
            writer.put(message(number))
    (root / "epochFileCheckpoint").write_bytes(b"1-0\n")
    for number, path in enumerate(sorted(path for path in root.rglob("*") if path.is_file())):
        os.utime(path, ns=(OLD_NS, OLD_NS + number * 10**9 + 123_456_789))
    return root


def files_of(root: Path) -> dict[str, tuple[int, str]]:
    """(mtime, hash) of every file of the store, but lock and what a run has there while it lasts."""
    return {
        name: (mtime_ns, digest)
        for name, kind, _, mtime_ns, digest in tree_rows(root)
        if kind != "folder" and name != "lock"
        if not name.startswith((JOURNAL_NAME, STAGING_NAME)) and not name.endswith("/rmqtool-repair")
    }


def contents(root: Path) -> dict[str, bytes]:
    """The bytes of every file of the store that has a hash in `files_of`."""
    return {name: (root / name).read_bytes() for name in files_of(root)}


def wanted_of(root: Path) -> Wanted:
    """Another state of the store `root`: something of every kind of change."""
    old = contents(root)
    wanted: Wanted = dict(old)
    logs = sorted(name for name in old if name.startswith("commitlog/"))
    queues = sorted(name for name in old if name.startswith("consumequeue/"))
    index = sorted(name for name in old if name.startswith("index/"))
    first, second = bytearray(old[logs[0]]), old[logs[1]]
    first[1000:1100] = b"f" * 100
    first[1500:1501] = b"g"
    first[4090:4200] = b"w" * 110
    wanted[logs[0]] = bytes(first)
    wanted[logs[1]] = second[:3000] + bytes(LOG_BYTES - 3000)
    wanted[logs[2]] = None
    wanted[logs[-1]] = old[logs[-1]][:-100] + b"h" * 50 + bytes(50)  # where a hole was
    wanted["commitlog/00000000000000999424"] = bytes(500) + b"new" + bytes(LOG_BYTES - 503)
    wanted[queues[0]] = b"q" * QUEUE_BYTES
    wanted[queues[1]] = b"r" * 2 * QUEUE_BYTES
    wanted["consumequeue/New/0/00000000000000000000"] = b"n" * QUEUE_BYTES
    wanted[queues[-1]] = None
    wanted[index[0]] = b"i" * 100
    wanted["config/topics.json"] = b"{}"
    wanted["checkpoint"] = bytes(4096)
    wanted["epochFileCheckpoint"] = b"1-0\n2-100\n"
    wanted["abort"] = b"17" if "abort" not in old else None
    return wanted


def plan_towards(root: Path, wanted: Wanted, **named: Any) -> BuiltPlan:
    """The plan that makes the files of `root` those of `wanted`, whatever they are now."""
    layout = detect(root)
    now = contents(root)
    actions: list[Action] = []
    for name in sorted(now.keys() | wanted.keys()):
        old, new = now.get(name), wanted.get(name)
        if old == new:
            continue
        if new is None:
            actions.append(Action("delete", name, 0, len(old or b""), "not wanted"))
        elif name.startswith(IN_PLACE) and old is not None:
            actions += _in_place(name, old, new)
        elif name.startswith("commitlog/"):
            actions.append(Action("create", name, 0, len(new), "missing", zeros=True))
            actions += _in_place(name, bytes(len(new)), new)
        else:
            kind = "create" if old is None else "replace"
            built = name.startswith(("consumequeue/", "index/"))
            actions.append(Action(kind, name, 0, len(new), "wrong", content=None if built else new))

    def build(staging: Path) -> None:
        assert not list(staging.iterdir())
        for name in (action.path for action in actions if action.from_staging):
            disk.make_folder((staging / name).parent)
            disk.write_new(staging / name, wanted[name] or b"")

    touched = [action.path for action in actions if action.path.startswith("consumequeue/")]
    before = fingerprint(layout, touched=touched)
    return BuiltPlan("recover", {"mode": "best"}, tuple(actions), before, build=build, **named)


def set_manifest(backup: Path, document: Any) -> None:
    """Put another manifest into a backup, whose other files then tell the CRC of it."""
    (backup / "manifest.json").write_text(json.dumps(document))
    for path in (backup / "copied.json", backup / "applied.json"):
        row = json.loads(path.read_text())
        row["manifest_crc32"] = crc32((backup / "manifest.json").read_bytes())
        path.write_text(json.dumps(row))


def _in_place(name: str, old: bytes, new: bytes) -> list[Action]:
    """Fills and writes of the bytes that differ, and a cut where only zeros are left."""
    assert len(old) <= len(new)
    end = len(new.rstrip(b"\0"))
    actions, start = [], None
    for at in range(end + 1):
        differs = at < end and (at >= len(old) or old[at] != new[at])
        if differs and start is None:
            start = at
        elif not differs and start is not None:
            kind = "fill" if name.startswith("commitlog") else "write"
            actions.append(Action(kind, name, start, at - start, "differs", content=new[start:at]))
            start = None
    if old[end:].strip(b"\0") or len(old) < len(new):
        start = max(end, 0)
        if start < len(new):
            actions.append(Action("cut", name, start, len(new) - start, "behind the end"))
    return actions
