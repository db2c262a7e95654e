"""A broker is killed with -9 while producers send: rmqtool reads what the Java library reads of a copy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import message, properties
from rmqtool.formats.message_id import OffsetMessageId
from rmqtool.log.events import StoredMessage
from rmqtool.read.store import Store
from tests.interop.brokers import BROKER_VERSIONS, Broker, store_settings
from tests.interop.interop_differential import java_host
from tests.interop.processes import store_library
from tests.support.trees import copy_tree

THREADS = 4
SENT = 3000
"""Acknowledged sends before the kill; they go on while it happens."""


def lost(events: list[Any]) -> list[Any]:
    """Of the producers that have given up."""
    return [event for event in events if event["kind"] == "lost"]


@pytest.fixture(scope="module", params=BROKER_VERSIONS)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(version, store, acknowledged sends) of a broker that was killed while four threads sent to it."""
    folder = tmp_path_factory.mktemp(f"killed-{request.param}")
    with Broker(request.param, folder, folder / "store") as broker:
        broker.start()
        with broker.client() as client:
            client.call("produce", topic="Killed", threads=THREADS)
            client.wait_events(
                lambda events: len(events) >= SENT or lost(events), lambda events: f"{len(events)} sends only"
            )
            assert not lost(client.events_so_far())
            broker.kill()
            events = client.wait_events(
                lambda events: len(lost(events)) == THREADS, lambda events: f"still sending: {events[-1]}"
            )
    yield request.param, folder / "store", [event for event in events if event["kind"] == "sent"]


def stored_row(found: StoredMessage) -> dict[str, Any]:
    """A record as the Java program prints it, but for what only a dispatch knows."""
    record = found.message
    raw = message.encode(record)
    return {
        "physicalOffset": found.physical_offset,
        "sha256": sha256(raw).hexdigest(),
        "size": record.total_size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "storeTimestamp": record.store_timestamp,
        "sysFlag": record.sys_flag,
        "properties": properties.decode(record.properties_bytes),
        "bornHost": java_host(record.born_host),
        "bodySha256": sha256(record.body).hexdigest() if record.body else None,
    }


def java_row(row: dict[str, Any]) -> dict[str, Any]:
    """The same of a line that Java printed."""
    flat = row | {name: row["message"][name] for name in ("bornHost", "bodySha256")}
    names = ("physicalOffset", "sha256", "size", "topic", "queueId", "queueOffset", "storeTimestamp",
             "sysFlag", "properties", "bornHost", "bodySha256")  # fmt: skip
    return {name: flat[name] for name in names}


def test_killed_brokers_store_reads_as_the_java_library_reads_it(killed: Any, tmp_path: Path) -> None:
    """Every record and field in log order, the log's end, every queue's offsets and what they lead to."""
    version, root, _ = killed
    assert (root / "abort").exists()
    copy = copy_tree(root, tmp_path / "copy")
    with Store.open(root) as store:
        ours = [stored_row(found) for found in store.messages()]
        end = store.end_offset()
        queues = {key: store.max_offset(*key) for key in store.queues}
    with store_library(version, tmp_path / "home") as library:
        assert library.call("load", store=str(copy), settings=store_settings(version)) is True
        java_end = library.call("walk", output=str(tmp_path / "walk.jsonl"))
        library.call("start")  # from here on 4.x delivers delayed messages, behind that end
        java_queues = library.call("queues")
        library.call("shutdown")
    java = [java_row(json.loads(line)) for line in (tmp_path / "walk.jsonl").read_text("ascii").splitlines()]
    assert ours == java
    assert end == java_end
    places: dict[tuple[str, int], list[int]] = {}
    for row in ours:
        if row["sysFlag"] & message.TRANSACTION_MASK in (0, message.TRANSACTION_COMMIT):
            places.setdefault((row["topic"], row["queueId"]), []).append(row["physicalOffset"])
    for topic, ids in java_queues.items():
        for queue_id, queue in ids.items():
            key = topic, int(queue_id)
            found = [offset for offset in queue["physicalOffsets"] if offset < java_end]
            assert found == places.get(key, []), key
            assert queue["min"] == 0 and queues.get(key, 0) <= len(found), key
    assert places.keys() <= {(topic, int(queue_id)) for topic, ids in java_queues.items() for queue_id in ids}


def test_everything_acknowledged_before_the_kill_is_there(killed: Any) -> None:
    """By message id, with the queue offset and keys that the producer was told."""
    _, root, sent = killed
    assert len(sent) >= SENT // 2
    with Store.open(root) as store:
        for event in sent:
            result = event["result"]
            for number, id_text in enumerate(result["offsetMsgId"].split(",")):
                found = store.get(OffsetMessageId.decode(id_text).physical_offset)
                assert found is not None and not found.status, event
                stored = properties.decode(found.message.properties_bytes)
                assert stored[properties.KEYS] == f"{event['number']}-{number}"
                if event["delayed"]:
                    assert stored[properties.REAL_TOPIC] == result["topic"]
                else:
                    told = result["topic"], result["queueId"], result["queueOffset"] + number
                    assert (found.message.topic, found.message.queue_id, found.message.queue_offset) == told
