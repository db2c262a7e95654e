"""Expiry of whole stores: what real brokers deleted, who would miss it, the deletion and what can stop it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from rmqtool.broker.expiry_rules import Disk, Disks
from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.errors import RefusedError, StoreInUseError, UnwritableError, UsageError
from rmqtool.formats import config_json, timer
from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC
from rmqtool.read.consumer_offsets import known_offsets
from rmqtool.read.store import Store
from rmqtool.repair.expire import Expiry, OwnRules, Request, losses, plan_expiry
from rmqtool.repair.expire import expiry as expiry_module
from rmqtool.repair.expire.remove import Removed, expire
from rmqtool.storage import config_files, lock, open_files
from rmqtool.storage import durable as disk
from rmqtool.terminal import format_size
from rmqtool.times import DAY_MS, HOUR_MS
from tests.support.disk_calls import watched
from tests.support.stores import Library, case
from tests.support.trees import copy_tree, tree_rows

pytestmark = pytest.mark.usefixtures("unbroken")

AGED = ("00000000000000000000", "00000000000001048576")
START = 2 << 20  # where the log begins without the aged files
VERSIONS = ("497", "533", "540")
NO_RULES = OwnRules()


@pytest.fixture(autouse=True)
def disks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The disk is one percent full, whatever it is; call this to set another percentage."""
    percent = 1

    def read(store: Store, folders: Any) -> Disks:
        device = store.layout.commit_log[0].path.stat().st_dev
        gib = 1 << 30
        return Disks({device: Disk(percent * gib, (100 - percent) * gib)}, (device,), device)

    def fill(to: int) -> None:
        nonlocal percent
        percent = to

    monkeypatch.setattr(expiry_module, "_disks", read)
    return fill


def aged(cases: Library, version: str, target: Path) -> tuple[Path, int]:
    """The clean store of a version, two files aged as in the lab; and a time in the hour of deleteWhen."""
    root = cases.copy(f"ok_{version}_clean", target)
    newest = max(path.stat().st_mtime_ns for path in (root / "commitlog").iterdir()) // 1_000_000
    now = newest - newest % DAY_MS + 28 * HOUR_MS
    for name in AGED:
        old = (now - 73 * HOUR_MS) * 1_000_000
        os.utime(root / "commitlog" / name, ns=(old, old))
    return root, now


@pytest.fixture
def store(cases: Library, tmp_path: Path) -> tuple[Path, int]:
    """That of 5.4.0."""
    return aged(cases, "540", tmp_path / "store")


def planned(root: Path, now: int, rules: OwnRules = NO_RULES) -> Expiry:
    """The plan for a store."""
    with Store.open(root) as opened:
        return plan_expiry(opened, Request(now, UTC, rules))


def deleted(root: Path, now: int, rules: OwnRules = NO_RULES, **options: Any) -> Removed:
    """Expire a store, whoever waits for messages."""
    return expire(lambda: Store.open(root), Request(now, UTC, rules), **{"force": True, **options})


def names(root: Path) -> set[str]:
    """The files of a store."""
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def paths(expiry: Expiry) -> set[str]:
    """The files that go."""
    return {decision.path for decision in expiry.expired}


# as the broker does it


@pytest.mark.parametrize("version", VERSIONS)
def test_plan_is_what_the_real_broker_deleted(
    cases: Library,
    tmp_path: Path,
    version: str,
    unchanged: Callable[[Path], AbstractContextManager[None]],
) -> None:
    """The files of commit log, queues and index, and every queue's minimum afterwards."""
    root, now = aged(cases, version, tmp_path / "store")
    expired = case(f"ok_{version}_expired")
    with unchanged(root):
        found = planned(root, now)
    assert paths(found) == names(root) - names(cases.path(expired.name)) != set()
    assert (found.start_before, found.start_after) == (0, START)
    minimum = {(row["topic"], row["queueId"]): row["minOffset"] for row in expired.queues}
    assert {(each.topic, each.queue_id): each.min_after for each in found.effects.queues} == minimum
    assert sum(each.messages_going for each in found.effects.queues) > 1000
    assert found.unread == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_deletion(cases: Library, tmp_path: Path, version: str) -> None:
    """What stays is as it was, sound, and has the offsets that were foretold; a second run finds nothing."""
    root, now = aged(cases, version, tmp_path / "store")
    plan, before = planned(root, now), tree_rows(root)
    done = deleted(root, now)
    assert paths(done.expiry) == paths(plan) and done.manifest is None
    kept = [row for row in before if row[1] == "file" and row[0] not in paths(plan)]
    assert [row for row in tree_rows(root) if row[1] == "file"] == kept
    with Store.open(root) as opened:
        assert [found for found in verify(opened) if found.problem.severity != "note"] == []
        for each in plan.effects.queues:
            assert opened.min_offset(each.topic, each.queue_id) == each.min_after
            assert opened.max_offset(each.topic, each.queue_id) == each.max_offset
    assert deleted(root, now).expiry.expired == ()


def test_order_is_the_brokers(store: tuple[Path, int]) -> None:
    """Log files from the first one on, on the device before the queues go; then queues, then the index."""
    root, now = store
    with watched(root) as calls:
        deleted(root, now)
    done = [(call.name, Path(call.path).relative_to(root).parts[0]) for call in calls.done]
    done = [each for each in done if each[1] != "lock"]
    assert done == [
        ("remove", "commitlog"), ("remove", "commitlog"), ("sync_folder", "commitlog"),
        ("remove", "consumequeue"), ("sync_folder", "consumequeue"),
        ("remove", "index"), ("remove", "index"), ("sync_folder", "index"),
    ]  # fmt: skip
    assert [Path(call.path).name for call in calls.done if call.name == "remove"][:2] == list(AGED)


def test_stopped_anywhere_it_goes_on(cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue and index files whose log files went before follow in the next run."""
    base, now = aged(cases, "540", tmp_path / "base")
    whole = copy_tree(base, tmp_path / "whole")
    count = len(deleted(whole, now).expiry.expired)
    remove = disk.remove
    for stop in range(count):
        root = copy_tree(base, tmp_path / f"store{stop}")
        left = [None] * stop

        def until(path: Any, left: list[None] = left) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop()
            remove(path)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(disk, "remove", until)
            deleted(root, now)
        assert len(names(root)) == len(names(whole)) + count - stop
        deleted(root, now, force=False) if stop >= len(AGED) else deleted(root, now)
        assert names(root) == names(whole)


def test_full_disk_is_no_obstacle(store: tuple[Path, int]) -> None:
    """Nothing of the store needs new space to delete from it."""
    root, now = store
    with watched(root, full=2) as calls:  # the first tries to make the lock file, which is there
        assert len(deleted(root, now).expiry.expired) == 5
    assert calls.refused == 0


def test_full_disk_forces(store: tuple[Path, int], disks: Callable[[int], None]) -> None:
    """Above 85 % all but the last file go at any hour; above 75 % the old ones."""
    root, now = store
    logs = [f"commitlog/{n << 20:020}" for n in range(4)]
    for percent, count in ((75, 0), (76, 2), (85, 2), (86, 3)):
        disks(percent)
        found = planned(root, now + 6 * HOUR_MS)
        assert [decision.path for decision in found.expired if decision.kind == "commitlog"] == logs[
            :count
        ], percent
    assert found.trigger is not None and found.trigger.forced and not found.trigger.by_time


def test_every_file_has_its_fate_and_reason(store: tuple[Path, int]) -> None:
    """Log, queues, index and timer log; none twice."""
    root, now = store
    found = planned(root, now)
    listed = [decision.path for decision in found.files]
    parts = ("commitlog", "consumequeue", "batchconsumequeue", "index", "timerlog")
    assert sorted(listed) == sorted(name for name in names(root) if name.split("/")[0] in parts)
    assert all(decision.reason for decision in found.files)
    reasons = {decision.path: decision.reason for decision in found.files}
    assert reasons[f"commitlog/{AGED[0]}"] == "changed 3d01h ago, kept 72h"
    assert reasons["commitlog/00000000000003145728"] == "is the last file, which always stays"


def test_store_that_has_expired_before(cases: Library) -> None:
    """The broker's own result: nothing is left for us."""
    root, day = cases.path("ok_540_expired"), DAY_MS
    assert planned(root, 0, OwnRules(before_offset=START)).expired == ()
    found = planned(root, 50_000 * day + 4 * HOUR_MS)
    assert [decision.path for decision in found.expired if decision.kind == "commitlog"] == [
        f"commitlog/{START:020}"
    ]


# an operator's rules


def test_before_a_time_and_free_space(store: tuple[Path, int]) -> None:
    """By store times, at any hour; space counts what the files take on the disk."""
    root, now = store
    with Store.open(root) as opened:
        firsts = [opened.head(n << 20) for n in range(4)]
    times = [head.store_timestamp for head in firsts if head is not None]
    for rules, start in (
        (OwnRules(before_ms=times[2]), 1 << 20),
        (OwnRules(before_ms=times[2] + 1), 2 << 20),
        (OwnRules(before_ms=now), 3 << 20),
        (OwnRules(before_offset=START), START),
        (OwnRules(keep_hours=72), START),
        (OwnRules(until_free=(99 << 30) + 1), 1 << 20),
    ):
        assert planned(root, now + 6 * HOUR_MS, rules).start_after == start, rules


# who would miss it


def unconsumed(expiry: Expiry) -> dict[tuple[str, str, int], tuple[int | None, int]]:
    """(group, topic, queue id) -> committed offset and messages."""
    return {(e.group, e.topic, e.queue_id): (e.committed, e.messages) for e in expiry.losses.unconsumed}


def set_offsets(root: Path, table: dict[str, dict[int, int]]) -> None:
    """Replace consumerOffset.json."""
    text = json.dumps({"offsetTable": table})
    (root / "config" / "consumerOffset.json").write_text(text)
    (root / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)


def test_unconsumed_messages(store: tuple[Path, int]) -> None:
    """From a group's offset to the first message that stays; from the start in a queue it never committed."""
    root, now = store
    found = {(each.topic, each.queue_id): each for each in planned(root, now).effects.queues}
    four = [found["pub-Topic_Four", queue_id].first_after for queue_id in range(4)]
    table = {
        "pub-Topic_Four@g": {0: four[0], 1: four[1] - 1, 2: 0},
        "pub-Topic_Four@done": {n: 10_000 for n in range(4)},
        "pubTopicOne@h": {0: 7},
    }
    set_offsets(root, table)
    again = planned(root, now)
    mine = {key: value for key, value in unconsumed(again).items() if not key[1].startswith("%RETRY%")}
    assert mine == {
        ("g", "pub-Topic_Four", 1): (four[1] - 1, 1),
        ("g", "pub-Topic_Four", 2): (0, four[2]),
        ("g", "pub-Topic_Four", 3): (None, four[3]),
        ("h", "pubTopicOne", 0): (7, found["pubTopicOne", 0].first_after - 7),
    }
    retries = {key for key in unconsumed(again) if key[1].startswith("%RETRY%")}
    assert retries and all(topic == f"%RETRY%{group}" for group, topic, _ in retries)
    assert "pubMultiTag" in again.losses.without_group and "pubTopicOne" not in again.losses.without_group


def test_delayed_messages(store: tuple[Path, int]) -> None:
    """What a level has not delivered yet; without delayOffset.json all that is there."""
    root, now = store
    expired = {e.queue_id: e.first_after for e in planned(root, now).effects.queues
             if e.topic == "SCHEDULE_TOPIC_XXXX" and e.first_after}  # fmt: skip
    assert len(expired) > 1
    for offsets in ({level: 1 for level in (1, 2, 3, 4)}, {}):
        text = json.dumps({"offsetTable": offsets})
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            (root / "config" / name).write_text(text)
        pending = {e.level: e.messages for e in planned(root, now).losses.pending if e.kind == "delayed"}
        wanted = {n + 1: count - offsets.get(n + 1, 0) for n, count in expired.items()}
        assert pending == {level: count for level, count in wanted.items() if count}


def test_half_messages(cases: Library, tmp_path: Path) -> None:
    """Those without an op message; one that was checked lives on in its copy."""
    root, now = aged(cases, "497", tmp_path / "497")
    (pending,) = [each for each in planned(root, now).losses.pending if each.kind == "half"]
    assert (pending.messages, pending.exact) == (10, True)  # every third of 30
    names = [f"{topic}@CID_RMQ_SYS_TRANS" for topic in (HALF_TOPICS[0], OP_TOPICS[0])]
    set_offsets(root, {name: {"0": 9999} for name in names})  # past the ends: they say nothing
    assert [each for each in planned(root, now).losses.pending if each.kind == "half"] == [pending]
    root, now = aged(cases, "540", tmp_path / "540")
    set_offsets(root, {})  # then the check's progress is not known either
    assert [each for each in planned(root, now).losses.pending if each.kind == "half"] == []
    everything = planned(root, now, OwnRules(before_offset=3 << 20))
    assert everything.start_after == 3 << 20
    assert [each for each in everything.losses.pending if each.kind == "half"] == []


def test_half_messages_that_are_too_many_to_read(
    cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the most that they can be is said."""
    root, now = aged(cases, "497", tmp_path / "store")
    for name, count in (("OPS_READ_MAX", 10), ("HALF_READ_MAX", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(losses, name, count)
            (pending,) = [each for each in planned(root, now).losses.pending if each.kind == "half"]
        assert pending.messages > 10 and not pending.exact


def test_timer_messages(store: tuple[Path, int]) -> None:
    """Units of the timer log that are due later than the wheel's time, and what is not in it yet."""
    root, now = store
    assert [each for each in planned(root, now).losses.pending if each.kind == "timer"] == []
    check = root / "config" / "timercheck"
    values = timer.decode_check(check.read_bytes())
    data = (root / "timerlog" / "00000000000000000000").read_bytes()
    units = [unit for _, unit in timer.decode_log(data) if isinstance(unit, timer.LogUnit)]
    places = {
        u.physical_offset for u in units if u.physical_offset < START and not u.magic & timer.MAGIC_DELETE
    }
    assert places
    check.write_bytes(timer.encode_check(values._replace(last_read_time=0)))
    (pending,) = [each for each in planned(root, now).losses.pending if each.kind == "timer"]
    assert pending.messages == len(places)


def test_unreadable_offsets_are_not_known(store: tuple[Path, int]) -> None:
    """Nobody can say who waits, so it is refused."""
    root, now = store
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (root / "config" / name).write_text("{")
    assert any("consumerOffset.json" in reason for reason in planned(root, now).losses.unknown)
    with pytest.raises(RefusedError, match=r"unknown, up to all of them: config/consumerOffset.json: "):
        deleted(root, now, force=False)
    (root / "config" / "consumerOffset.json.bak").unlink()  # a broker would start, without any offset
    assert any("consumerOffset.json" in reason for reason in planned(root, now).losses.unknown)


@pytest.mark.parametrize("text", ["", None])
def test_lost_offsets_are_not_known(
    run: Run, store: tuple[Path, int], text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty or missing consumerOffset.json does not say that nobody reads: as one of garbage."""
    root, now = store
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)
        if text is not None:
            (root / "config" / name).write_text(text)
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (root / "config" / name).write_text(json.dumps({"offsetTable": {n: 10_000 for n in range(1, 19)}}))
    code, found, _ = run(root, "--at", now)
    assert code == 3 and found["without_group"] == {}
    assert [row["needs"] for row in found["refusals"]] == ["force"]
    unknown = found["groups_unknown"]
    inside = (*HALF_TOPICS, *OP_TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC)
    assert unknown["messages_max"] == sum(
        row["messages_going"] for row in found["queues"] if row["topic"] not in inside
    )
    assert unknown["messages_max"] > 1000
    why = (
        "config/consumerOffset.json and its .bak are missing"
        if text is None
        else "config/consumerOffset.json: "
    )
    assert len(unknown["reasons"]) == 1 and unknown["reasons"][0].startswith(why)
    assert found["unconsumed"] == []  # not even by the names of retry topics: part of the truth misleads
    assert f"the {unknown['messages_max']} deleted messages" in found["refusals"][0]["reason"]
    assert unknown["reasons"][0] in found["refusals"][0]["reason"]
    assert main(["expire", str(root), "--at", str(now), "--tz", "UTC"]) == 3
    shown = capsys.readouterr().out
    assert f"warning      up to {unknown['messages_max']} messages that groups have not consumed" in shown
    assert "Groups still need an unknown number of them" in shown and "unread by groups" not in shown
    before = names(root)
    assert run(root, "--at", now, "--apply")[0] == 4 and names(root) | {"lock"} == before | {"lock"}
    assert run(root, "--at", now, "--apply", "--force")[0] == 0
    assert names(root) < before


def test_missing_offsets_are_read_once(store: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = store
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)
    read: list[str] = []

    def read_head(path: Path, length: int) -> bytes | None:
        read.append(path.name)
        return open_files.read_head(path, length)

    monkeypatch.setattr(config_files, "read_head", read_head)
    with Store.open(root) as opened:
        offsets, unknown = known_offsets(opened, needed=True)
    assert not offsets and "and its .bak are missing" in unknown[0] and len(unknown) == 1
    both = ("consumerOffset.json", "lmqConsumerOffset.json")
    assert sorted(read) == sorted([*both, *(f"{name}.bak" for name in both)])


# refusals


def test_refused_while_somebody_waits(
    store: tuple[Path, int], unchanged: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """Nothing has changed then."""
    root, now = store
    (root / "lock").touch()
    with unchanged(root), pytest.raises(RefusedError, match="of group pub_group_one, .* 5 delayed"):
        deleted(root, now, force=False)


def test_store_in_use(store: tuple[Path, int]) -> None:
    """It can be looked at, and nothing is deleted."""
    root, now = store
    held = lock.acquire(root / "lock")
    try:
        assert len(planned(root, now).expired) == 5
        before = names(root)
        with pytest.raises(StoreInUseError):
            deleted(root, now)
        assert names(root) == before
    finally:
        held.release()


def test_guard_and_folder(store: tuple[Path, int]) -> None:
    """An unfinished repair, a part of a store: refused before anything is changed."""
    root, now = store
    guard = root / "commitlog" / "rmqtool-repair"
    guard.write_bytes(b"R")
    with pytest.raises(RefusedError, match="repair"):
        deleted(root, now)
    guard.unlink()
    with pytest.raises(UsageError):
        expire(lambda: Store.open(root / "commitlog"), Request(now, UTC))
    assert not (root / "commitlog" / "lock").exists()


# the archive


def manifest_of(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("manifest-*.json")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_archive(store: tuple[Path, int], tmp_path: Path) -> None:
    """Every file that goes, byte by byte with its mtime, and in the manifest; then it goes."""
    import zlib

    root, now = store
    base = copy_tree(root, tmp_path / "base")
    folder = tmp_path / "archive"
    done = deleted(root, now, archive=folder)
    rows = {row["path"]: row for row in manifest_of(folder)["files"]}
    assert set(rows) == paths(done.expiry) == names(base) - names(root)
    for name, row in rows.items():
        data = (base / name).read_bytes()
        assert (folder / name).read_bytes() == data
        assert (row["size_bytes"], row["crc32"]) == (len(data), zlib.crc32(data))
        assert (folder / name).stat().st_mtime_ns == (base / name).stat().st_mtime_ns
    with Store.open(base) as opened:
        stored = [
            found.message.store_timestamp for found in opened.messages() if found.physical_offset < 1 << 20
        ]
    first = rows[f"commitlog/{AGED[0]}"]
    assert (first["first_store_timestamp_ms"], first["last_store_timestamp_ms"]) == (stored[0], stored[-1])
    assert names(folder) == set(rows) | {done.manifest.name if done.manifest else "", "README.txt"}


def test_archive_has_the_times_of_messages(
    store: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each log, queue and index file, also if the store is named by a relative path."""
    root, now = store
    with Store.open(root) as opened:
        times = {each.physical_offset: each.message.store_timestamp for each in opened.messages()}
        units = [unit.physical_offset for _, unit in opened.queue("pubTopicOne", 0).units(0)][:1000]
    monkeypatch.chdir(root.parent)
    deleted(Path(root.name), now, archive=tmp_path / "archive")
    rows = {row["path"]: row for row in manifest_of(tmp_path / "archive")["files"]}
    assert {row["kind"] for row in rows.values()} == {"commitlog", "consumequeue", "index"}
    found = {
        path: (row["first_store_timestamp_ms"], row["last_store_timestamp_ms"]) for path, row in rows.items()
    }
    for name in AGED:
        held = [time for at, time in times.items() if int(name) <= at < int(name) + (1 << 20)]
        assert found[f"commitlog/{name}"] == (held[0], held[-1])
    assert found[f"consumequeue/pubTopicOne/0/{0:020}"] == (times[units[0]], times[units[-1]])
    assert all(None not in each for each in found.values())


def test_archive_that_a_killed_run_began(
    store: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole copies are kept, a part is made anew; a copy that is not equal is refused, and nothing goes."""
    root, now = store
    folder = tmp_path / "archive"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(disk, "rename", lambda old, new: (_ for _ in ()).throw(KeyboardInterrupt))
        deleted(root, now, archive=folder)
    assert list(folder.rglob("*.part")) and len(planned(root, now).expired) == 5
    wrong = folder / "commitlog" / AGED[1]
    wrong.write_bytes(b"another")
    with pytest.raises(RefusedError) as caught:
        deleted(root, now, archive=folder)
    assert caught.value.path == wrong and len(planned(root, now).expired) == 5
    wrong.unlink()
    deleted(root, now, archive=folder)
    assert not list(folder.rglob("*.part")) and planned(root, now).expired == ()


def test_archive_that_cannot_be(
    store: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside the store, in place of a file, without space: nothing is copied or deleted."""
    root, now = store
    (tmp_path / "file").touch()
    before = names(root)
    for folder in (root / "archive", root / "commitlog" / "x", root, tmp_path / "file"):
        with pytest.raises(RefusedError):
            deleted(root, now, archive=folder)
    found = os.statvfs(tmp_path)
    small = os.statvfs_result((*found[:4], 0, *found[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    with pytest.raises(UnwritableError, match="not enough space: [0-9]+ bytes are needed here, 0 are free"):
        deleted(root, now, archive=tmp_path / "archive")
    assert names(root) == before


# the command

Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """The command: exit code, JSON, stderr."""

    def call(*arguments: object) -> tuple[int, dict[str, Any], str]:
        code = main(["expire", *map(str, arguments), "--tz", "UTC", "--format", "json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else {}, captured.err

    yield call


def test_command(run: Run, store: tuple[Path, int]) -> None:
    """Plan, refusal, deletion, nothing left: exit codes 1, 4, 0, 0."""
    root, now = store
    code, found, note = run(root, "--at", now)
    size = format_size(found["totals"]["freed_bytes"])
    assert code == 1
    assert note == (
        f"rmqtool: 5 files, {size} would be deleted; --apply is refused without --force: rmqtool help"
        " recovery shows how to keep what is needed; to delete them all the same, with a copy in DIR"
        " (DIR on another disk; without --archive they are lost):"
        f" rmqtool expire {root} --at {now} --tz UTC --archive DIR --apply --force\n"
    )
    assert [row["needs"] for row in found["refusals"]] == ["force"]
    assert found["rules"] == "5.4" and found["commit_log"]["start_after"] == START
    assert [row["decision"] for row in found["files"] if row["kind"] == "commitlog"] == [
        "goes", "goes", "stays", "stays"
    ]  # fmt: skip
    assert found["settings"]["diskMaxUsedSpaceRatio"] == {"value": 0.75, "from": "default"}
    assert (
        found["totals"]["queues_that_become_empty"]
        == sum(row["becomes_empty"] for row in found["queues"])
        > 0
    )
    assert found["at_time"].endswith("+00:00") and found["forecast"]["reached"][0]["at_time"]
    code, found, error = run(root, "--at", now, "--apply")
    assert (code, found) == (4, {}) and "--force alone deletes for good" in error
    assert len(error.splitlines()) == 2 and str(root) not in error
    code, _, error = run(root, "--at", now, "--apply", "--archive", root.parent / "kept")
    line = f"rmqtool expire {root} --at {now} --archive {root.parent / 'kept'} --apply --tz UTC --force\n"
    assert code == 4 and error.endswith(f" and then delete them: {line}") and len(error.splitlines()) == 2
    (root.parent / "file").touch()
    code, found, _ = run(root, "--at", now, "--archive", root.parent / "file")
    assert code == 1 and found["refusals"][-1]["reason"] == f"the archive is not a folder: {root.parent}/file"
    code, found, note = run(root, "--at", now, "--apply", "--force")
    assert code == 0 and found["applied"] and note == f"rmqtool: deleted 5 files, {size}\n"
    assert {row["decision"] for row in found["files"]} == {"deleted", "kept"}
    code, found, note = run(root, "--at", now, "--apply")
    assert code == 0 and note == "rmqtool: nothing to delete\n" and found["totals"]["files_going"] == 0


def test_command_says_it_to_a_person(store: tuple[Path, int], capsys: pytest.CaptureFixture[str]) -> None:
    """The text has each part."""
    root, now = store
    assert main(["expire", str(root), "--at", str(now), "--tz", "UTC"]) == 1
    text = capsys.readouterr().out
    for piece in (
        "rules        defaults of broker 5.4 (--broker-conf FILE uses those of your broker): keep 72h,"
        " delete from 04:00; above 75% disk usage at any hour; above 85%",
        "trigger      04 is an hour of deleteWhen", "disk         1% used", "75% full in ", "h fit below 75%",
        "measured over only 1m04s: a rough guide", " ago: no broker uses the store",
        "no message since 2026-11-21T08:51:16",
        "once messages arrive again, the disk is",
        "what if      above 75%: deletes 2 of 4 log files with 3563 messages (groups have not consumed ",
        "             above 85%: deletes 3 of 4 log files with 3567 messages (",
        "             above 90%: the same; files of any age are deleted, and messages are refused",
        "2 of 4 log files would be deleted, 5 files in all", "the log would then start at 2097152",
        "changed 3d01h ago, kept 72h", "warning      ",
        "5 overdue delayed messages of level 4 still pending would be deleted",
        "This deletes 5 delayed messages that still wait.",
    ):  # fmt: skip
        assert piece in text, piece
    assert main(["expire", str(root), "--at", str(now + 6 * HOUR_MS), "--tz", "UTC"]) == 0
    text = capsys.readouterr().out
    assert "none now; deleteWhen comes in 18h00m" in text and "\noutcome" not in text
    assert "old enough (changed 3d07h ago, kept 72h), waits for deleteWhen (04)" in text
    (line,) = [each.removeprefix("next").strip() for each in text.splitlines() if each.startswith("next ")]
    assert line == f"rmqtool deliver {root}" and "First deliver the delayed messages that are overdue" in text
    assert main([*shlex.split(line)[1:], "--apply", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["expire", str(root), "--at", str(now + 6 * HOUR_MS), "--tz", "UTC"]) == 0
    text = capsys.readouterr().out
    assert "overdue" not in text and "delayed" not in text
    assert f"\nnext         rmqtool stats {root} --by group\n" in text  # who needs the first file
    assert "which has no committed" not in text and "once they are stored again, or if these" in text
    assert "groups have not consumed messages of 4 more queues (--all lists them)" in text
    assert main(["expire", str(root), "--at", str(now + 6 * HOUR_MS), "--tz", "UTC", "--all"]) == 0
    text = capsys.readouterr().out
    assert "more queues" not in text and "more line" not in text
    assert "_0, which has no committed offset, has not consumed 4 messages of %RETRY%pubVeryLong" in text
    _let_groups_consume(root)
    for number in (0, 1):  # as help recovery says: the copies are stored before the groups skip the originals
        group = "VeryLongGroup_".join(["pub", *[""] * 10]) + str(number)
        assert main(["tail", str(root), "--group", group, "--retry", "--json", "-q"]) == 0
        (root.parent / "unread.jsonl").write_text(capsys.readouterr().out)
        assert main(["append", str(root), "--input", str(root.parent / "unread.jsonl"), "-q"]) == 0
        capsys.readouterr()
    assert main(["expire", str(root), "--at", str(now + 6 * HOUR_MS), "--tz", "UTC"]) == 0
    text = capsys.readouterr().out
    says = "once they are stored again, or if these groups are no longer used, let them skip these 6"
    assert f"{says} messages, and none that stays:\nrun  " in text
    lines = [each.removeprefix("run").strip() for each in text.splitlines() if each.startswith("run ")]
    for line, count in zip(lines, (4, 2), strict=True):
        words = shlex.split(line)[1:]
        assert words[-4:] == ["--queue", "0", "--from", str(count)]
        assert main([*words, "--apply", "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert (row["skipped_messages"], row["lag_messages"]) == (count, count)  # the copies are left
    assert main(["expire", str(root), "--at", str(now + 6 * HOUR_MS), "--tz", "UTC"]) == 0
    assert "free to go   the log files before offset " in capsys.readouterr().out


def _let_groups_consume(root: Path) -> None:
    """All groups that have offsets have consumed everything; delayed messages were delivered."""
    for path in (root / "config").glob("consumerOffset.json*"):
        document = config_json.parse(path.read_bytes())
        for of_queues in document["offsetTable"].values():
            of_queues.update(dict.fromkeys("0123", 1400))
        path.write_text(json.dumps(document))
    for path in (root / "config").glob("delayOffset.json*"):
        path.write_text(json.dumps({"offsetTable": dict.fromkeys("12345", 1000)}))


def test_what_goes_at_the_next_delete_when(
    run: Run, store: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan without a trigger names it, with what groups need: it is the plan of that time."""
    root, now = store
    for at, stays in ((now + 6 * HOUR_MS, False), (now - 34 * HOUR_MS, True)):  # stays: too young even then
        found = run(root, "--at", at)[1]
        assert not found["totals"]["files_going"]
        row = found["what_if"][0]
        assert row["limit"] is None and row["at_timestamp_ms"] == found["next_delete_timestamp_ms"]
        then = run(root, "--at", row["at_timestamp_ms"])[1]
        assert then["what_if"][0]["limit"] == "diskMaxUsedSpaceRatio", "it is that time: nothing is later"
        assert row["log_files_going"] == then["commit_log"]["files_going"] == (0 if stays else 2)
        assert row["messages_going"] == then["totals"]["messages_going"]
        assert row["messages_unconsumed"] == sum(each["messages"] for each in then["unconsumed"])
        assert row["messages_pending"] == sum(each["messages"] for each in then["pending"])
        main(["expire", str(root), "--at", str(at), "--tz", "UTC"])
        text = capsys.readouterr().out
        line = f"what if      at {row['at_time']}: "
        if stays:
            assert f"{line}no file is deleted; files older than 72h are deleted then" in text
            assert "No file expires. " in text
        else:
            needed = f"(groups have not consumed {row['messages_unconsumed']}, 5 are pending)"
            going = f"deletes 2 of 4 log files with 3563 messages {needed}"
            assert f"{line}{going}, " in text
            assert f"No file expires now. A broker that runs at {row['at_time']} {going}. " in text


def test_command_options(
    run: Run, store: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """broker.conf, another broker, an operator's rules."""
    root, now = store
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=74\ndiskMaxUsedSpaceRatio=99\n")
    code, found, _ = run(root, "--at", now, "--broker-conf", conf)
    assert code == 0 and found["settings"]["fileReservedTime"] == {"value": 74, "from": "file"}
    ignored = tmp_path / "ignored.conf"
    ignored.write_text("fileReservedTime= 74 \n")
    main(["expire", str(root), "--broker-conf", str(ignored), "--at", str(now)])
    line = "ignored      fileReservedTime is '74 ', which a broker cannot parse: it uses its default"
    assert line in capsys.readouterr().out
    assert found["settings"]["diskMaxUsedSpaceRatio"] == {"value": 0.95, "from": "file", "configured": 99}
    assert run(root, "--at", now, "--broker", "4.9")[1]["rules"] == "4.9"
    for rule, start in ((("--before", START), START), (("--before", "2040-01-01"), 3 << 20),
                        (("--keep-hours", "73.5"), 0), (("--until-free", "98G"), 0)):  # fmt: skip
        code, found, _ = run(root, "--at", now, *rule)
        assert found["rules"] == "own" and found["commit_log"]["start_after"] == start, rule
    conf.write_text("deleteWhen=04:00\n")
    code, _, error = run(root, "--broker-conf", conf)
    assert code == 3 and "deleteWhen='04:00' cannot be read by a broker" in error


def test_times_of_a_plan_are_absolute(
    store: tuple[Path, int], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the rules, the reasons and the line that applies the plan; one in the future is warned of."""
    root, _ = store
    future = "2200-01-01T08:50:33.000+00:00"
    main(["expire", str(root), "--before", "2200-01-01 08:50:33", "--tz", "UTC"])
    shown = capsys.readouterr()
    assert f"\nrules        your own: --before is {future}, which is in the future\n" in shown.out
    assert shown.out.count(f"holds only messages stored before {future}") == 3
    assert "\nwarning      --before is in the future: all messages were stored before it" in shown.out
    assert " --before '2200-01-01 08:50:33' --tz UTC --archive DIR --apply --force" in shown.err
    main(["expire", str(root), "--before", "1h ago", "--at", "now", "--tz", "UTC"])
    shown = capsys.readouterr()
    assert "future" not in shown.out and "ago" not in shown.err and "--at now" not in shown.err
    assert (
        run(root, "--before", "1h ago", "--at", "now")[1]["before_timestamp_ms"] < time.time_ns() // 1_000_000
    )
    _, _, refused = run(root, "--before", "1h ago", "--archive", root.parent / "kept", "--apply")
    assert "and then delete them: rmqtool expire" in refused and "ago" not in refused


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--plan", "x"), 3),
        (("--plan", "x", "--write-plan", "y"), 2),
        (("--apply", "--write-plan", "x"), 2),
        (("--keep-hours", "nan"), 2),
        (("--keep-hours", "-1"), 2),
        (("--broker", "4.9", "--broker", "5.4"), 2),
        (("--before", "next week"), 2),
        (("--at", "9" * 19), 2),
        (("--until-free", "0"), 2),
    ],
)
def test_usage_errors(run: Run, store: tuple[Path, int], arguments: tuple[str, ...], code: int) -> None:
    """Values that make no sense."""
    found, _, error = run(store[0], *arguments)
    assert found == code and "Traceback" not in error


def test_command_for_a_store_in_use(run: Run, store: tuple[Path, int]) -> None:
    """Shown with a note; --apply ends with 5."""
    root, now = store
    held = lock.acquire(root / "lock")
    try:
        code, found, note = run(root, "--at", now)
        assert code == 1 and found["totals"]["files_going"] == 5 and "and deletes files itself" in note
        assert [row["needs"] for row in found["refusals"]] == ["force", None]
        assert note.endswith("would be deleted; --apply would be refused\n")
        assert run(root, "--at", now, "--apply", "--force")[0] == 5
    finally:
        held.release()
    assert (root / "commitlog" / AGED[0]).exists()


def test_topics_that_nobody_reads_are_warned_of(
    run: Run, store: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Dead letters and what only the broker itself reads count as well; that alone refuses nothing."""
    root, now = store
    broker = {"pubTopicOne@CID_RMQ_SYS_TRANS": {0: 5}}
    set_offsets(root, {**broker, "pub-Topic_Four@g": {n: 10_000 for n in range(4)}})
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (root / "config" / name).write_text(json.dumps({"offsetTable": {n: 10_000 for n in range(1, 19)}}))
    for queue in (root / "consumequeue").glob("%RETRY%*"):
        shutil.rmtree(queue)
    shutil.copytree(root / "consumequeue/pubMultiTag/0", root / "consumequeue/%DLQ%g/0")
    assert run(root, "--at", now)[1]["refusals"] == []
    assert main(["expire", str(root), "--at", str(now), "--tz", "UTC"]) == 1
    text = capsys.readouterr().out
    count = planned(root, now).losses.without_group
    assert count["pubTopicOne"] == 1400 and count["%DLQ%g"] > 0 and "pub-Topic_Four" not in count
    total = f"{sum(count.values())} messages of {len(count)} topics"
    assert f"warning      {total} for which no group has an offset would be deleted" in text
    assert "\nrefused" not in text
    assert main(["expire", str(root), "--at", str(now), "--tz", "UTC", "--apply"]) == 0
    text = capsys.readouterr().out
    assert f"warning      {total} for which no group has an offset were deleted" in text
    assert "2 of 4 log files were deleted" in text and "goes" not in text and "stays  " not in text


def test_refusals_are_shown_with_the_plan(
    run: Run, store: tuple[Path, int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And the command that does it has the option that it needs; none does while a repair is unfinished."""
    root, now = store
    arguments = ["expire", str(root), "--at", str(now), "--tz", "UTC"]
    plan = tmp_path / "a plan"
    assert main([*arguments, "--write-plan", str(plan)]) == 1
    text, note = capsys.readouterr()
    (refused,) = [line for line in text.splitlines() if line.startswith("refused ")]
    assert refused.startswith("refused      --apply is refused without --force: messages that consumers ")
    assert f"rmqtool expire {root} --plan '{plan}' --archive DIR --apply --force\n" in note
    guard = root / "commitlog" / "rmqtool-repair"
    guard.write_bytes(b"R")
    assert main(arguments) == 1
    text, note = capsys.readouterr()
    assert "refused      --apply is refused: a repair of this store was interrupted" in text
    assert note.endswith("would be deleted; --apply would be refused\n")


def test_free_space_that_cannot_be_reached(
    run: Run, store: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said with the numbers; the disk of the test has 99 GiB free."""
    root, now = store
    code, found, _ = run(root, "--at", now, "--until-free", "100G")
    goal = found["goal"]
    gain = found["totals"]["freed_bytes"]
    assert code == 1 and goal == {
        "wanted_bytes": 100 << 30, "free_before_bytes": 99 << 30, "free_after_bytes": (99 << 30) + gain,
        "missing_bytes": (1 << 30) - gain,
    }  # fmt: skip
    assert main(["expire", str(root), "--at", str(now), "--until-free", "100G"]) == 1
    said = f"--until-free cannot be reached: 99.0 GiB are free, deleting would free {format_size(gain)};"
    out = capsys.readouterr().out
    missing = format_size(goal["missing_bytes"])
    verdict = out[out.index("\nverdict ") :]
    assert said in out and f" --until-free cannot be reached: {missing} are missing." in verdict
    found = run(root, "--at", now, "--until-free", f"{(99 << 30) + 1}B")[1]
    assert found["goal"]["missing_bytes"] == 0 and found["totals"]["files_going"] > 0
    assert main(["expire", str(root), "--at", str(now), "--until-free", "98G"]) == 0
    out = capsys.readouterr().out
    assert "cannot be reached" not in out and "at least 98.0 GiB are free" in out
    assert run(root, "--at", now)[1]["goal"] is None


def test_a_part_of_the_disk_to_be_free(run: Run, store: tuple[Path, int]) -> None:
    """A percentage is of the fullest disk, which has 100 GiB here, 99 of them free."""
    root, now = store
    found = run(root, "--at", now, "--until-free", "99%")[1]
    assert found["goal"]["wanted_bytes"] == 99 << 30 and found["totals"]["files_going"] == 0
    found = run(root, "--at", now, "--until-free", "99.001%")[1]
    assert found["goal"]["wanted_bytes"] == round(0.99001 * (100 << 30))
    assert found["totals"]["files_going"] > 0
    assert "less than 99.0 GiB are free" in found["files"][0]["reason"]


def test_a_full_disk_is_explained(
    store: tuple[Path, int],
    run: Run,
    disks: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--disk-used shows all limits, that a broker refuses messages, and whether the deletion is enough."""
    root, now = store
    at = ("--at", str(now + 6 * HOUR_MS), "--tz", "UTC")
    for percent in (75, 92, 96):
        main(["expire", str(root), *at, "--disk-used", f"{percent}%"])
        out, err = capsys.readouterr()
        refuses = percent > 90
        assert f"disk         {percent}% used (assumed by --disk-used)" in out
        same = "the same" if percent == 75 else "deletes 2 of 4 log files"  # as at the next deleteWhen
        assert f" above 75%: {same}" in out and "             above 85%: deletes 3 of 4" in out
        assert ("above 90% the broker refuses messages, until at most 85% are used" in out) is refuses
        assert ("not enough, it is still above 85% and the broker still refuses messages" in out) is refuses
        assert ("A broker refuses messages: the disk is" in out) is refuses
        assert ("nothing to delete" in out + err) is False and out.count("No file expires") == (not refuses)
        assert "0h fit" not in out and "full already, " not in out
    assert "the disk is 75%, 85% and 90% full already" in out
    device = root.stat().st_dev
    for used, result in (
        (91, "free: not enough, it is still above 85% and the broker still refuses messages"),
        (86, "after the deletion 84% used, 17.0 MiB free: enough, it is not above 85%"),
    ):
        small = Disks({device: Disk(used << 20, 100 - used << 20)}, (device,), device)
        monkeypatch.setattr(expiry_module, "_disks", lambda store, folders, small=small: small)
        main(["expire", str(root), *at])
        out = capsys.readouterr().out
        assert result in out, out


@pytest.mark.parametrize("text", ["100", "0", "0%", "100%", "%", "-5%", "much"])
def test_free_space_without_a_unit_is_refused(
    store: tuple[Path, int], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """100 was taken for 100 bytes."""
    root, now = store
    for option in ("--until-free", "--disk-used"):
        assert main(["expire", str(root), "--at", str(now), f"{option}={text}"]) == 2
        assert option in capsys.readouterr().err or text == "much"
    for option, example in (("--until-free", "25%"), ("--disk-used", "92%")):
        assert main(["expire", str(root), "--at", str(now), option, "100%"]) == 2
        err = capsys.readouterr().err
        assert (
            f"{option} 100% is out of range\n  give more than 0% and less than 100%, such as {example}\n"
            in err
        )
    assert main(["expire", str(root), "--at", str(now), "--disk-used", "0.92"]) == 2  # a ratio?
    assert "--disk-used 0.92 is not a percentage" in capsys.readouterr().err


def test_disk_used_needs_no_percent_sign(run: Run, store: tuple[Path, int]) -> None:
    root, now = store
    plain, percent = (
        run(root, "--at", now, "--disk-used", value)[1]["disk_used_ratio"] for value in ("92.5", "92.5%")
    )
    assert plain == percent == 0.925  # noqa: PLR2004


def test_a_disk_that_were_full(
    run: Run, store: tuple[Path, int], disks: Callable[[int], None], tmp_path: Path
) -> None:
    """--disk-used and the table give what a disk that is as full gives."""
    root, now = store
    later = now + 6 * HOUR_MS  # no hour of deleteWhen
    names_of = ("log_files_going", "freed_bytes", "messages_going")
    table = {row["limit"]: row for row in run(root, "--at", later)[1]["what_if"]}
    assert run(root, "--at", later)[1]["totals"]["files_going"] == 0
    for percent, limit in ((76, "diskMaxUsedSpaceRatio"), (86, "diskSpaceCleanForciblyRatio"),
                           (91, "diskSpaceWarningLevelRatio")):  # fmt: skip
        assumed = run(root, "--at", later, "--disk-used", f"{percent}%")[1]
        disks(percent)
        real = run(root, "--at", later)[1]
        disks(1)
        assert assumed["disk_used_ratio"] == percent / 100 and real["disk_used_ratio"] is None
        for key in ("totals", "files", "unconsumed", "commit_log", "trigger"):
            assert assumed[key] == real[key], key
        going = real["commit_log"]["files_going"]
        found = tuple(table[limit][name] for name in names_of)
        assert found == (going, real["totals"]["freed_bytes"], real["totals"]["messages_going"])
        assert going > 0
        line = (
            run(root, "--at", later, "--disk-used", f"{percent}%")[2].split(" lost): ")[1].partition("\n")[0]
        )
        words = line.replace(" --apply", "").split()[2:]  # the printed line, as a plan
        assert run(*words)[1]["commit_log"]["start_after"] == real["commit_log"]["start_after"]
    assert main(["expire", str(root), "--disk-used", "92%", "--apply"]) == 2
    assert main(["expire", str(root), "--disk-used", "92%", "--write-plan", str(tmp_path / "plan")]) == 2


def test_archive_is_named_and_can_be_copied_back(
    store: tuple[Path, int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As rmqtool-recovery(7) says: the folders over the store. It is then what it was."""
    root, now = store
    before = {row for row in tree_rows(root) if row[1] == "file" and row[0] != "lock"}
    archive = tmp_path / "archive"
    arguments = ["--at", str(now), "--tz", "UTC", "--apply", "--force", "--archive", str(archive)]
    assert main(["expire", str(root), *arguments]) == 0
    (manifest,) = archive.glob("manifest-*.json")
    text = capsys.readouterr().out
    assert f"archive      5 files, listed in {manifest}\n" in text
    (restore,) = (line.split(None, 1)[1] for line in text.splitlines() if line.startswith("restore "))
    assert "README.txt in the archive says how to restore single log files" in text
    assert f"\n    {restore}\n    rmqtool verify {root}\n" in (archive / "README.txt").read_text()
    subprocess.run(restore, shell=True, check=True)
    assert {row for row in tree_rows(root) if row[1] == "file" and row[0] != "lock"} == before
    with Store.open(root) as opened:
        assert [found for found in verify(opened) if found.problem.severity != "note"] == []


def test_a_single_log_file_is_copied_back(store: tuple[Path, int], tmp_path: Path) -> None:
    """The newest, by the lines of README.txt: no gap, and every message is found."""
    root, now = store
    archive = tmp_path / "the archive"
    deleted(root, now, archive=archive)
    lines = [line.strip() for line in (archive / "README.txt").read_text().splitlines()]
    log, others = [line for line in lines if line.startswith("cp -an ")][1:]
    assert log == f"cp -an '{archive}/commitlog/{AGED[-1]}' {root}/commitlog/"
    for line in (log, others):
        subprocess.run(line, shell=True, check=True)
    with Store.open(root) as opened:
        assert opened.commit_log.min_offset == 1 << 20
        assert [found for found in verify(opened) if found.problem.severity != "note"] == []


def test_readme_of_an_archive_is_that_of_its_last_run(store: tuple[Path, int], tmp_path: Path) -> None:
    root, now = store
    archive = tmp_path / "archive"
    deleted(root, now, OwnRules(before_offset=1 << 20), archive=archive)
    assert AGED[0] in (archive / "README.txt").read_text()
    deleted(root, now, archive=archive)
    assert AGED[-1] in (archive / "README.txt").read_text()
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.txt").write_text("mine")
    deleted(root, now, OwnRules(before_offset=3 << 20), archive=other)
    assert (other / "README.txt").read_text() == "mine"


def test_plan_with_an_archive(
    run: Run, store: tuple[Path, int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It says what would be copied, and why not; the line that applies it has the folder."""
    root, now = store
    archive = tmp_path / "archive"
    code, found, note = run(root, "--at", now, "--archive", archive)
    assert code == 1 and found["archive"] == str(archive) and found["manifest"] is None
    line = f"rmqtool expire {root} --at {now} --tz UTC --archive {archive} --apply --force"
    assert note.endswith(f"; to delete them all the same, with a copy in {archive}: {line}\n")
    assert not archive.exists()
    main(["expire", str(root), "--at", str(now), "--archive", str(archive)])
    assert f"on the disk, would first be copied to {archive}\n" in capsys.readouterr().out
    code, found, note = run(root, "--at", now, "--archive", root / "index")
    assert code == 1 and "an archive would lie in the store" in found["refusals"][-1]["reason"]
    assert note.endswith("; --apply would be refused\n")


def test_archive_on_the_disk_of_the_store_frees_nothing(
    run: Run, store: tuple[Path, int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The plan and the result say so; free space cannot be reached that way, so nothing goes for it."""
    root, now = store
    words = ["--at", now, "--tz", "UTC", "--before", START, "--archive", tmp_path / "archive"]
    _, without, _ = run(root, *words[:-2])
    _, found, _ = run(root, *words)
    allocated = without["totals"]["freed_bytes"]
    assert allocated > 0 and found["totals"]["allocated_bytes"] == allocated
    assert found["totals"]["freed_bytes"] == 0
    assert [disk["usable_after_bytes"] - disk["usable_bytes"] for disk in found["disks"]] == [0]
    _, kept, _ = run(root, *words[:4], "--until-free", "100G", *words[-2:])
    assert kept["totals"]["files_going"] == 0 and kept["goal"]["missing_bytes"] == 1 << 30
    assert kept["files"][0]["reason"] == "an archive on the same disk frees nothing"
    assert main(["expire", str(root), *map(str, words), "--apply"]) == 4
    assert (
        "  this frees nothing, because the archive is on the same disk; to copy " in capsys.readouterr().err
    )
    for apply, verb, copies in (([], "frees", "take"), (["--apply", "--force"], "freed", "have taken")):
        main(["expire", str(root), *map(str, words), *apply])
        text = capsys.readouterr().out
        assert f"{verb} nothing: the archive is on the same disk." in text
        assert (
            f"archive is on the same disk as the store: archiving there frees nothing (the copies {copies}"
            in text
        )


def test_minimum_of_an_empty_queue_is_explained(
    cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """4.x answers 0 for a queue without a live message; 5.x its maximum."""
    for version, zero in (("497", True), ("540", False)):
        root, now = aged(cases, version, tmp_path / version)
        assert main(["expire", str(root), "--at", str(now), "--tz", "UTC"]) == 1
        text = capsys.readouterr().out
        assert "an empty queue keeps its max_offset" in text
        assert "min_offset_after" not in text  # neither the column, nor the note on it
        main(["expire", str(root), "--at", str(now), "--tz", "UTC", "--all"])
        text = capsys.readouterr().out
        assert ("a min_offset_after of 0 although messages are deleted" in text) == zero, version


def test_plan_file(run: Run, store: tuple[Path, int], tmp_path: Path) -> None:
    """Written, looked at, done; refused when store or plan has changed."""
    root, now = store
    plan = tmp_path / "plan.json"
    assert run(root, "--at", now, "--write-plan", plan)[0] == 1
    assert run(root, "--apply", "--plan", plan, "--keep-hours", 1)[0] == 2
    code, found, note = run(root, "--plan", plan)
    assert code == 1 and found["totals"]["files_going"] == 5 and not found["applied"]
    assert f" rmqtool expire {root} --plan {plan} --archive DIR --apply --force\n" in note
    document = json.loads(plan.read_text())
    assert [row["path"] for row in document["actions"]][:2] == [f"commitlog/{name}" for name in AGED]
    changed = {**document, "options": {**document["options"], "before_offset": 1 << 20}}
    plan.write_text(json.dumps(changed))
    code, _, error = run(root, "--apply", "--force", "--plan", plan)
    assert code == 4 and "plan" in error
    plan.write_text(json.dumps(document))
    touched = root / "commitlog" / "00000000000003145728"
    status = touched.stat()
    os.utime(touched)
    assert run(root, "--apply", "--force", "--plan", plan)[0] == 4
    os.utime(touched, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run(root, "--apply", "--plan", plan)[0] == 4, "messages are still waited for"
    code, found, _ = run(root, "--apply", "--force", "--plan", plan)
    assert code == 0 and found["totals"]["files_going"] == 5
    assert not (root / "commitlog" / AGED[0]).exists()
    plan.write_text(json.dumps({**document, "options": {"now_ms": "x"}}))
    assert run(root, "--apply", "--plan", plan)[0] == 3


def test_now_is_the_default(run: Run, store: tuple[Path, int]) -> None:
    """Without --at."""
    before = time.time_ns() // 1_000_000
    found = run(store[0])[1]
    assert before <= found["at_timestamp_ms"] <= time.time_ns() // 1_000_000


def test_queues_in_rocksdb(run: Run, store: tuple[Path, int]) -> None:
    """The log can be planned for; who waits for what is not known, and said."""
    root, now = store
    shutil.rmtree(root / "consumequeue")
    (root / "consumequeue").mkdir()
    (root / "consumequeue" / "CURRENT").write_text("MANIFEST-000001\n")
    code, found, _ = run(root, "--at", now)
    assert code == 3 and "the consume queues are in RocksDB" in found["unknown"]
    assert found["commit_log"]["start_after"] == START
    assert run(root, "--at", now, "--apply")[0] == 4
    assert run(root, "--at", now, "--apply", "--force")[0] == 0


def test_config_of_the_fixture_is_read(cases: Library) -> None:
    """The groups of the real store are known: else the tests above show nothing."""
    text = (cases.path("ok_540_clean") / "config" / "consumerOffset.json").read_bytes()
    assert len(config_json.consumer_offsets(config_json.load_with_bak("", text, None).document)) > 3
