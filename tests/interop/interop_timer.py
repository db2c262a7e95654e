"""The timer of a real broker after a loss: `recover` makes it again, and every message is delivered once.

A broker delivers some timer messages and stops while others wait. Of copies of its store the files of the
timer are lost, all of them or one, and made again. A broker on each copy delivers what waits,
and nothing again. So it is with delayed messages after the loss of delayOffset.json.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.formats.timer import LOG_UNIT
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.config_files import delay_offsets
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.interop.after_repair import conf_of, run
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until
from tests.support.build_store import patch
from tests.support.trees import copy_tree

TOPIC = "TopicT"
SETTINGS = {"mappedFileSizeTimerLog": "1048576", "mappedFileSizeCommitLog": "1048576"}
SOON_MS, LATE_MS = 2000, 60_000
UNITS = "timerlog/00000000000000000000"
"""Of this file all units but the first are lost."""
LOST = {
    "5.4.0": (
        (UNITS,), ("timerlog",), ("config/timercheck",), ("timerwheel", "timerlog", "config/timercheck"),
    ),
    "5.3.3": (("config/timercheck",),),
}  # fmt: skip


SNAPSHOTS = {
    "timerWheelSnapshotFlush": "true", "timerWheelSnapshotIntervalMs": "500", "mappedFileSizeTimerLog": "120",
}  # fmt: skip
"""With files of two units, so that positions in a snapshot reach over several."""


def delivered(root: Path) -> Counter[bytes]:
    with Store.open(root) as store:
        return Counter(stored.message.body for stored in store.messages(Selection(topics=(TOPIC,))))


@pytest.mark.parametrize(("version", "more"), [*((version, {}) for version in LOST), ("5.4.0", SNAPSHOTS)])
def test_every_message_is_delivered_once(version: str, more: dict[str, str], tmp_path: Path) -> None:
    """Snapshots of the wheel, which a broker reads in place of timerwheel, are not left to it."""
    root, settings = tmp_path / "store", SETTINGS | more
    sizes = {"commit_log_file_size": 1 << 20, "consume_queue_file_size": 20_000, "index_slots": 1000}
    with StoreWriter.create(root, version[:3], auto_create_queues=1, index_entries=4000, **sizes) as writer:
        for number in range(5):
            delay = SOON_MS if number < 3 else LATE_MS
            body = f"message {number}".encode()
            writer.put(NewMessage(TOPIC, body, queue_id=0, properties={"TIMER_DELAY_MS": str(delay)}))
    with Broker(version, tmp_path / "first", root, settings) as broker:
        broker.start()
        wait_until(lambda: len(delivered(root)) >= 3, "the first messages are delivered")
        if more:
            wait_until(lambda: len(list(root.glob("timerwheel.*"))) == 2, "snapshots of the wheel are there")
        broker.stop()
    assert sum(delivered(root).values()) == 3
    for number, names in enumerate(LOST[version]):
        copy = copy_tree(root, tmp_path / f"copy{number}")
        for name in names:
            path = copy / name
            if name == UNITS:
                size = path.stat().st_size
                patch(path, LOG_UNIT.size, bytes(size - LOG_UNIT.size))
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert run("recover", copy, "--apply", "--broker-conf", conf_of(copy, settings), "--quiet") == EXIT_OK
        with Broker(version, tmp_path / f"lab{number}", copy, settings) as broker:
            broker.start()
            wait_until(lambda at=copy: len(delivered(at)) == 5, "the other messages are delivered")  # type: ignore[misc]
            broker.stop()
        assert set(delivered(copy).values()) == {1}, (names, delivered(copy))


def prediction(root: Path, version: str, settings: dict[str, str], capsys: pytest.CaptureFixture[str]) -> int:
    """How many delayed messages a start delivers again, as recover predicts."""
    capsys.readouterr()
    conf = str(conf_of(root, settings))
    assert run("recover", root, "--broker", version[:3], "--broker-conf", conf, "--json") == EXIT_FINDINGS
    found = json.loads(capsys.readouterr().out)
    assert found["delivered_again"] == 0
    (start,) = found["predictions"]
    return int(start["delivered_again"])


@pytest.mark.parametrize("version", ["4.9.7", "5.4.0"])
def test_every_delayed_message_is_delivered_once(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker delivers what it has delivered before if the file is gone, and does not if it is made again.

    The second level waits an hour. The broker on the copies has a shorter level, so it delivers at once.
    """
    root, settings = tmp_path / "store", SETTINGS | {"messageDelayLevel": "1s 1h"}
    sizes = {"commit_log_file_size": 1 << 20, "consume_queue_file_size": 20_000, "index_slots": 1000}
    options = {"auto_create_queues": 1, "index_entries": 4000, "delays_ms": (1_000, 3_600_000), **sizes}
    with StoreWriter.create(root, version[:3], **options) as writer:
        for number in range(5):
            body, level = f"message {number}".encode(), 1 if number < 3 else 2
            writer.put(NewMessage(TOPIC, body, queue_id=0, delay_level=level))
    with Broker(version, tmp_path / "first", root, settings) as broker:
        broker.start()
        wait_until(lambda: len(delivered(root)) >= 3, "the first messages are delivered")
        broker.stop()
    assert sum(delivered(root).values()) == 3
    for path in (root / "config").glob("delayOffset.json*"):
        path.unlink()
    assert prediction(root, version, settings, capsys) == 3
    later = settings | {"messageDelayLevel": "1s 1s"}
    for name, again in (("as-it-is", 3), ("recovered", 0), ("without-config", 0)):
        copy = copy_tree(root, tmp_path / name)
        if name == "without-config":  # then the new file does not show a version, and its levels are quoted
            shutil.rmtree(copy / "config")
        if not again:
            conf = conf_of(copy, settings)
            assert run("recover", copy, "--apply", "--broker-conf", conf, "--quiet") == EXIT_OK
        with Broker(version, tmp_path / f"lab-{name}", copy, later) as broker:
            broker.start()
            wait_until(
                lambda at=copy, wanted=5 + again: sum(delivered(at).values()) >= wanted,  # type: ignore[misc]
                "the other messages are delivered",
            )
            broker.stop()
        counts = delivered(copy)
        assert (len(counts), sum(counts.values())) == (5, 5 + again)
        assert delay_offsets(copy / "config") == {1: 3, 2: 2}
