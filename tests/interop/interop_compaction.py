"""Compacted topics: what a broker serves after the steps that rmqtool advises, and without them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.interop.after_repair import conf_of, verify_finds
from tests.interop.brokers import Broker, wait_for_topic
from tests.interop.processes import wait_until
from tests.support.stores import Library

VERSION, TOPIC, COUNT, KEPT = "5.4.0", "TopicCompact", 1300, 1282
SETTINGS = {"compactionMappedFileSize": "100000", "compactionCqMappedFileSize": "4600"}
CHECKPOINT_SECONDS = 4
"""A start goes back to the newest log file that begins 3 s before the times of the checkpoint."""


def with_more_files(root: Path) -> None:
    """Add files to the log, of which the newest begins well before the times of the checkpoint."""
    for wait in (0, CHECKPOINT_SECONDS):
        time.sleep(wait)
        with StoreWriter.open(root) as writer:
            for _ in range(6):
                writer.put(NewMessage("TopicA", bytes(300_000), queue_id=0))


def pulled(folder: Path, root: Path, offset: int, wanted: int) -> tuple[str, list[int]]:
    """What a consumer gets from an offset on, once that are as many messages as `wanted`."""
    with Broker(VERSION, folder, root, SETTINGS) as broker:
        broker.start()
        with broker.client() as client:
            wait_for_topic(client, [TOPIC])

            def answer() -> tuple[str, list[int]]:
                got = client.call("pull", topic=TOPIC, queue_id=0, offset=offset, tags="*", max=32)
                return got["status"], [row["queueOffset"] for row in got["messages"]]

            wait_until(lambda: len(answer()[1]) >= wanted, f"{wanted} messages from {offset} on")
            found = answer()
            client.call("close")
        broker.stop()
    return found


def nothing(root: Path) -> None:
    pass


def abort(root: Path) -> None:
    (root / "abort").touch()


def all_steps(root: Path) -> None:
    (root / "checkpoint").unlink()
    (root / "abort").touch()


@pytest.mark.parametrize("steps", [nothing, abort, all_steps])
def test_a_compacted_topic_is_compacted_again(
    steps: Callable[[Path], None], cases: Library, tmp_path: Path
) -> None:
    """CC03: only a start that dispatches the whole log brings the messages back; verify foretells it."""
    root = cases.copy("kind_compaction_540", tmp_path / "store")
    with_more_files(root)
    assert pulled(tmp_path / "before", root, 0, 5) == ("FOUND", list(range(KEPT, KEPT + 5)))
    shutil.rmtree(root / "compaction")
    steps(root)
    conf = conf_of(root, SETTINGS)
    is_back = steps is all_steps
    codes = [] if is_back else ["CC03"]
    unindexed = (
        frozenset({"IX03"}) if steps is abort else frozenset[str]()
    )  # keys of files that it does not read
    assert [found[:4] for found in verify_finds(root, conf, but=unindexed)] == codes
    status, offsets = pulled(tmp_path / "after", root, 0, 1 if is_back else 0)
    assert (status, offsets[:2]) == (("FOUND", [0, 1]) if is_back else ("NO_NEW_MSG", []))
    assert [found[:4] for found in verify_finds(root, conf, but=unindexed)] == codes
    if is_back:
        with Store.open(root / "compaction") as store:
            assert len(list(store.messages())) == COUNT
