"""Extension units (enableConsumeQueueExt): the store libraries over stores that we damaged, wrote and mended.

What a start does to queues and extension files is what `predict` says; what `rebuild` and `append` made is
served with the filters of consumers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.store import Store
from rmqtool.report.tail.get_message import get_message
from rmqtool.report.tail.subscription import Subscription
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.interop.processes import store_library
from tests.support.extension_damage import DAMAGE, STORES, Verdict, damaged, key_of, predicted, verdicts
from tests.support.rebuild_checks import conf_of, rebuilt
from tests.support.stores import case

_PARTS = ("consumequeue", "consumequeue_ext")


def settings_of(name: str) -> dict[str, str]:
    """Those of the broker that wrote a store; as a slave, else 4.x delivers delayed messages."""
    return {key: str(value) for key, value in case(name).settings.items()} | {
        "brokerRole": "SLAVE", "offsetCheckInSlave": "true"
    }  # fmt: skip


def files(root: Path) -> dict[str, str]:
    """The hash of every queue and extension file."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in _PARTS
        for path in (root / part).rglob("*")
        if path.is_file()
    }


def started(name: str, root: Path, home: Path) -> Verdict:
    """What a start and a stop of the library does to a store."""
    before = files(root)
    with store_library(STORES[name], home) as library:
        if not library.call("open", store=str(root), settings=settings_of(name))["load"]:
            return {"load": False}
        library.call("start")
        library.call("shutdown")
    after = files(root)
    return {
        "load": True,
        "made": sorted(after.keys() - before.keys()),
        "deleted": sorted(before.keys() - after.keys()),
        "changed": sorted(path for path in before.keys() & after.keys() if before[path] != after[path]),
    }


@pytest.mark.parametrize("abort", [False, True], ids=["noabort", "abort"])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", STORES)
def test_the_library_starts_as_before_and_as_predicted(
    name: str, damage: str, abort: bool, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = damaged(store_copy(name), damage, abort=abort)
    said = predicted(root, name)
    found = started(name, root, tmp_path / "home")
    assert found == said == verdicts()[key_of(name, damage, abort=abort)]


def pulls(root: Path) -> list[tuple[str, int, int, str]]:
    """Of every queue its beginning and its end, by tags."""
    with Store.open(root) as store:
        return [
            (topic, queue_id, max(queue.max_offset() - back, 0), tags)
            for (topic, queue_id), queue in store.queues.items()
            if isinstance(queue, ConsumeQueue) and queue.max_offset()
            for back in (1000, 12)
            for tags in ("TagA", "TagB || More")
        ]


@pytest.mark.parametrize("name", STORES)
def test_java_serves_by_tags_what_was_appended_and_mended(
    name: str, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """The extension files of one queue are gone and made again, others go on over the end of a file."""
    root = store_copy(name)
    for path in (root / "consumequeue_ext/ExtA/0").iterdir():
        path.unlink()
    rebuilt(root, conf_of(root, name))
    with StoreWriter.open(root) as writer:
        for number in range(150):
            tags = ("TagA", "More")[number % 2]
            writer.put(NewMessage(("ExtA", "ExtB")[number % 3 % 2], b"more", tags=tags, queue_id=number % 2))
    asked = pulls(root)
    with Store.open(root) as store:
        ours = [
            get_message(store, topic, queue_id, offset, 32, Subscription.of([tags]))
            for topic, queue_id, offset, tags in asked
        ]
    with store_library(STORES[name], tmp_path / "home") as library:
        assert library.call("load", store=str(root), settings=settings_of(name)) is True
        library.call("start")
        found: list[Any] = [
            library.call("get", topic=topic, queue_id=queue_id, offset=offset, max=32, tags=tags)
            for topic, queue_id, offset, tags in asked
        ]
    for one, other, question in zip(ours, found, asked, strict=True):
        assert one.status == other["status"], question
        assert [record.physical_offset for record in one.records] == other["physicalOffsets"], question
    assert sum(1 for answer in found if answer["physicalOffsets"]) > 8
