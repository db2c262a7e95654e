"""What must hold of a store that rmqtool has mended: real libraries and brokers go on with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, encode
from rmqtool.log.events import StoredMessage
from rmqtool.message.system_topics import DLQ_PREFIX, is_system_topic
from rmqtool.read.store import Store
from tests.interop.brokers import Broker, wait_for_topic, write_settings
from tests.interop.processes import LabError, Program
from tests.interop.verdicts import Library

NO_CRC = frozenset({"CL13", "CL14", "CL15", "CL16", "CL17"})
"""What `verify` goes on to say of records that are damaged in header or properties, which no CRC covers: they
are sound for every broker, and stay."""
Place = tuple[str, int, int]
"""Topic, queue id, queue offset."""


def run(*arguments: str | Path) -> int:
    """`rmqtool` with these arguments, in this process; returns the exit code."""
    return main([str(argument) for argument in arguments])


def conf_of(root: Path, settings: Mapping[str, Any]) -> Path:
    """The broker.conf of a store, written beside it."""
    path = root.with_name(f"{root.name}.conf")
    text = {name: str(value) for name, value in settings.items()}
    write_settings(path, text | {"storePathRootDir": str(root)})
    return path


def verify_finds(root: Path, conf: Path, *, but: frozenset[str] = frozenset()) -> list[str]:
    """What `verify` finds in a store, but for notes and the problems `but`."""
    with Store.open(root, broker_conf=conf) as store:
        return [
            f"{item.problem.code} {item.path} {item.physical_offset} {item.detail}"
            for item in verify(store)
            if item.problem.severity != "note" and item.problem.code not in but
        ]


def records(root: Path) -> dict[int, bytes]:
    """Every record of a store's log by its offset."""
    with Store.open(root) as store:
        return {found.physical_offset: encode(found.message) for found in store.messages()}


def intact(sound: Mapping[int, bytes], damaged: Path) -> dict[int, bytes]:
    """Those records of a sound store that still lie whole in the damaged one."""
    files = sorted(
        (int(path.name), path) for path in (damaged / "commitlog").iterdir() if path.name.isdigit()
    )
    logs = [(start, path.read_bytes()) for start, path in files if path.is_file()]
    found = {}
    for start, data in logs:
        for offset, record in sound.items():
            at = offset - start
            if 0 <= at and at + len(record) <= len(data) and data[at : at + len(record)] == record:
                found[offset] = record
    return found


def in_queues(root: Path) -> tuple[dict[Place, StoredMessage], set[int]]:
    """(the records that stand in queues, by place; physical offsets of those in batch queues).

    Of two records with the same place the first one has it.
    """
    places: dict[Place, StoredMessage] = {}
    batches: set[int] = set()
    with Store.open(root) as store:
        for found in store.messages():
            key = found.message.topic, found.message.queue_id
            if found.message.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
                continue
            if key in store.layout.batch_queues:
                batches.add(found.physical_offset)
            else:
                places.setdefault((*key, found.message.queue_offset), found)
    return places, batches


def end_of(root: Path) -> int:
    """End of the log: where the next record goes."""
    with Store.open(root) as store:
        return store.end_offset()


def lines(path: Path) -> Iterator[Any]:
    """The rows that a Java program has written."""
    with path.open("r", encoding="ascii") as rows:
        yield from map(json.loads, rows)


def check_library(
    library: Library, root: Path, settings: Mapping[str, Any], *, but: frozenset[str] = frozenset()
) -> None:
    """The store library opens the store, finds the end where it was, serves every record, and goes on.

    The store is changed: one message is put, and 4.x delivers what is due. See `verify_finds` for `but`.
    """
    conf = conf_of(root, settings)
    end, log = end_of(root), records(root)
    expected, batches = in_queues(root)
    call = library.program.call
    walked, served = (root.with_name(f"{root.name}.{what}") for what in ("walk", "serve"))
    assert call("open", store=str(root), settings=dict(settings)) == {"load": True}
    assert call("offsets")["max"] == end
    assert call("walk", output=str(walked)) == end
    assert [row["physicalOffset"] for row in lines(walked)] == sorted(log)
    delivers = library.version.startswith("4.")
    started = call("start")["max"]
    assert started == end or delivers and started > end
    assert call("serve", output=str(served)) == []
    got = {(row["queue"], row["id"], row["queueOffset"]): row for row in lines(served)}
    for place, found in expected.items():
        assert place in got, f"not served: {place} at {found.physical_offset}"
        row = got[place]
        assert (row["topic"], row["queueId"], row["physicalOffset"], row["size"]) == (
            place[0], place[1], found.physical_offset, found.message.total_size,
        ), place  # fmt: skip
    assert batches <= {row["physicalOffset"] for row in got.values()}
    own = [place for place in expected if can_be_pulled(place[0])]
    if not own:  # nothing was left of the log
        call("shutdown")
        return
    topic, queue_id, _ = own[0]
    following = 1 + max(place[2] for place in expected if place[:2] == (topic, queue_id))
    put = call("put", topic=topic, queue_id=queue_id)
    assert put["status"] == "PUT_OK"
    assert put["queueOffset"] == following or delivers and put["queueOffset"] > following
    call("shutdown")
    assert not (root / "abort").exists()
    after = records(root)
    assert log.items() <= after.items()
    assert len(after) == len(log) + 1 or delivers and len(after) > len(log)
    assert verify_finds(root, conf, but=but) == []


def can_be_pulled(topic: str) -> bool:
    """Whether a broker gives a topic to consumers: dead letters may be written only."""
    return not is_system_topic(topic) and not topic.startswith(DLQ_PREFIX)


def pull_all(client: Program, topic: str, queue_ids: set[int]) -> dict[Place, int]:
    """Physical offsets of what an ordinary consumer pulls from queues of a topic, by place."""
    got = {}
    ranges = client.call("queues", topic=topic)
    for queue_id in queue_ids:
        offset, end = ranges[str(queue_id)]["min"], ranges[str(queue_id)]["max"]
        while offset < end:
            answer = client.call("pull", topic=topic, queue_id=queue_id, offset=offset, tags="*", max=32)
            for row in answer["messages"]:
                got[row["topic"], row["queueId"], row["queueOffset"]] = row["physicalOffset"]
            assert answer["next"] > offset, (topic, queue_id, answer["status"])
            offset = answer["next"]
    return got


def check_broker(
    version: str, folder: Path, root: Path, settings: Mapping[str, Any], *, but: frozenset[str] = frozenset()
) -> None:
    """A whole broker starts on the store and an ordinary client gets every record of every topic from it.

    What a broker adds by itself (delayed messages that are due, halves that it asks about) comes behind.
    """
    end, log = end_of(root), records(root)
    expected = {place: found for place, found in in_queues(root)[0].items() if can_be_pulled(place[0])}
    queues: dict[str, set[int]] = {}
    for topic, queue_id, _ in expected:
        queues.setdefault(topic, set()).add(queue_id)
    text = {name: str(value) for name, value in settings.items()}
    with Broker(version, folder, root, text) as broker:
        broker.start()
        with broker.client() as client:
            wait_for_topic(client, sorted(queues))
            for topic, queue_ids in sorted(queues.items()):
                got = pull_all(client, topic, queue_ids)
                for place, found in expected.items():
                    if place[0] == topic and got.get(place) != found.physical_offset:
                        raise LabError(f"not served: {place} at {found.physical_offset}, {got.get(place)}")
            client.call("close")
        broker.stop()
    assert end_of(root) >= end
    assert log.items() <= records(root).items()
    assert verify_finds(root, conf_of(root, settings), but=but) == []
