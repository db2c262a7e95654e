"""Real brokers open queues in RocksDB that rmqtool has built: they serve every message, and go on writing.

The folder of the queues was deleted, or a table of it damaged. A broker of storeType defaultRocksDB would
build only a part of them again; the queues of a double write are read from RocksDB here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.broker.predict import predict
from rmqtool.errors import EXIT_OK
from rmqtool.formats import config_json
from rmqtool.formats.remoting_codes import Request
from rmqtool.net.broker_client import document
from rmqtool.net.ha_connection import Address
from rmqtool.read.consumer_offsets import known_offsets
from rmqtool.read.store import Store
from tests.interop.after_repair import can_be_pulled, check_broker, conf_of, run
from tests.interop.brokers import Broker, wait_for_topic
from tests.support.stores import Library

SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 1000,
    "maxIndexNum": 4000, "messageDelayLevel": "1s 3s 5s 1h", "mappedFileSizeTimerLog": 1 << 20,
}  # fmt: skip
ROCKSDB = SETTINGS | {"storeType": "defaultRocksDB"}
OF_FILES = ROCKSDB | {"mappedFileSizeCommitLog": 65536, "maxMessageSize": 16384}
TWICE = SETTINGS | {
    "rocksdbCQDoubleWriteEnable": "true", "combineCQPreferCQType": "defaultRocksDB",
    "timerRocksDBEnable": "true", "transRocksDBEnable": "true",
}  # fmt: skip


def is_gone(folder: Path) -> None:
    shutil.rmtree(folder)


def is_damaged(folder: Path) -> None:
    for path in folder.glob("*.sst"):
        path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("version", "name", "damage", "settings"),
    [
        ("5.3.3", "kind_rocksdb_533", is_gone, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540", is_damaged, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540_files", is_gone, OF_FILES),
        ("5.4.0", "kind_combine_index_timer_540", is_damaged, TWICE),
    ],
)
def test_brokers_serve_queues_that_were_built(
    version: str, name: str, damage: Callable[[Path], None], settings: dict[str, object], cases: Library,
    tmp_path: Path,
) -> None:  # fmt: skip
    root = cases.copy(name, tmp_path / "store")
    damage(root / "consumequeue")
    conf = conf_of(root, settings)
    assert run("rebuild", root, "--broker-conf", conf, "--apply", "--quiet") == EXIT_OK
    made = {path.name for path in (root / "consumequeue").glob("*.sst")}
    assert made and not list((root / "consumequeue").glob("OPTIONS*"))
    check_broker(version, tmp_path / "lab", root, settings)


@pytest.mark.parametrize(
    ("version", "name", "abort", "settings"),
    [
        ("5.3.3", "kind_rocksdb_533", False, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540", False, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540_files", True, OF_FILES),
    ],
)
def test_a_start_without_queues_makes_those_that_are_predicted(
    version: str, name: str, abort: bool, settings: dict[str, object], cases: Library, tmp_path: Path
) -> None:
    """The first record, or those of older files, get no unit: a consumer never receives them."""
    root = cases.copy(name, tmp_path / "store")
    is_gone(root / "consumequeue")
    if abort:
        (root / "abort").write_text("1")
    with Store.open(root, broker_conf=conf_of(root, settings)) as store:
        found = predict(store, "5.3" if version == "5.3.3" else "5.4")
    wanted = {key: queue for key, queue in found.queues.items() if can_be_pulled(key[0]) and queue.max_after}
    assert found.messages_unreachable and any(queue.min_after for queue in wanted.values())
    text = {key: str(value) for key, value in settings.items()}
    with Broker(version, tmp_path / "lab", root, text) as broker:
        broker.start()
        with broker.client() as client:
            topics = sorted({topic for topic, _ in wanted})
            wait_for_topic(client, topics)
            spans = {topic: client.call("queues", topic=topic) for topic in topics}
            client.call("close")
        broker.stop()
    for (topic, queue_id), queue in wanted.items():
        span = spans[topic][str(queue_id)]
        assert span["min"] == queue.min_after and span["max"] >= queue.max_after, (topic, queue_id, span)


@pytest.mark.parametrize("version", ["5.3.3", "5.4.0"])
@pytest.mark.parametrize("is_newer", [False, True])
def test_committed_offsets_beside_a_file(
    version: str, is_newer: bool, cases: Library, tmp_path: Path
) -> None:
    """The offsets that rmqtool shows are those of the broker after its start, whichever of both wins."""
    root = cases.copy(f"kind_rocksdb_{version.replace('.', '')}", tmp_path / "store")
    file = root / "config/consumerOffset.json"
    table = {"TopicA@cg1": {"0": 7}, "TopicB@another": {"0": 3}}
    counter = 1 << 30 if is_newer else 0  # 5.4.0 reads an int
    file.write_text(json.dumps({"dataVersion": {"counter": counter}, "offsetTable": table}))
    with Store.open(root) as store:
        shown = known_offsets(store)[0]
    with Broker(
        version, tmp_path / "lab", root, {key: str(value) for key, value in ROCKSDB.items()}
    ) as broker:
        broker.start()
        served = document(Address("127.0.0.1", broker.port), Request.GET_ALL_CONSUMER_OFFSET)
        broker.stop()
    assert config_json.consumer_offsets(served) == shown
    assert (("TopicB", "another") in shown) == is_newer
