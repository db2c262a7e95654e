"""Small stores with every part, sound in all of them, as a broker 5.4 leaves them after a clean stop.

`build_store` writes single parts and leaves tags and keys out; here units have their tags codes, the
index holds every key, and checkpoint and configuration agree with the log, so that `verify` finds
nothing at all and whatever it finds after a change comes from the change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rmqtool.check.verify import PASSES, Bounds, Report, verify
from rmqtool.formats import batch, checkpoint, epoch, index, properties
from rmqtool.formats.config_json import BATCH_ATTRIBUTES
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, BatchUnit, ExtUnit, Unit, encode_ext_unit
from rmqtool.formats.java import tags_code
from rmqtool.formats.message import (
    INNER_BATCH,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    Message,
)
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from tests.support.build_store import (
    LOG_FILE_SIZE,
    QUEUE_FILE_SIZE,
    file_name,
    write_index,
    write_log,
    write_queue,
)
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.trees import unchanged

SHAPE = index.Shape(50, 200)
LIGHT_PREFIX = "%LMQ%"
Key = tuple[str, int]


def keyed(
    count: int, *, topic: str = "TopicTest", queues: int = 2, first: int = 0, body: int = 150
) -> list[Message]:
    """Records with a tag, a unique key and two keys, one millisecond apart, in `queues` queues in turn."""
    return [
        record(
            topic, bytes([n % 251]) * (body + n % 7),
            {"UNIQ_KEY": f"U{n:08}", "KEYS": f"order{n} user{n % 3}", "TAGS": f"Tag{n % 3}"},
            queue_id=n % queues, queue_offset=n // queues, store_timestamp=STORE_TIMESTAMP + n,
        )
        for n in range(first, first + count)
    ]  # fmt: skip


def unit_of(stored: Message) -> Unit:
    """The unit that a broker's dispatch makes of a record, outside of SCHEDULE_TOPIC_XXXX."""
    found = properties.decode(stored.properties_bytes)
    return Unit(stored.physical_offset, stored.total_size, tags_code(found.get("TAGS")))


def units_of(stored: Iterable[Message]) -> dict[Key, dict[int, Unit]]:
    """The units of all queues, by queue offset, light queues included."""
    queues: dict[Key, dict[int, Unit]] = {}
    for item in stored:
        if item.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            continue
        queues.setdefault((item.topic, item.queue_id), {})[item.queue_offset] = unit_of(item)
        found = properties.decode(item.properties_bytes)
        names = found.get("INNER_MULTI_DISPATCH", "")
        offsets = found.get("INNER_MULTI_QUEUE_OFFSET", "")
        for name, offset in zip(names.split(",") if names else (), offsets.split(","), strict=False):
            light = (name, 0 if name.startswith(LIGHT_PREFIX) else item.queue_id)
            queues.setdefault(light, {})[int(offset)] = unit_of(item)
    return queues


def write_units(root: Path, stored: Iterable[Message], *, file_size: int = QUEUE_FILE_SIZE) -> None:
    """Write the consume queues of these records; every queue's offsets must be without gaps."""
    for (topic, queue_id), units in units_of(stored).items():
        ordered = [units[number] for number in sorted(units)]
        folder = root / "consumequeue" / topic / str(queue_id)
        write_queue(folder, ordered, first=min(units), file_size=file_size)


def write_keys(root: Path, stored: Sequence[Message], shape: index.Shape = SHAPE) -> Path:
    """Write one index file with all keys of these records."""
    entries = []
    for item in stored:
        found = properties.decode(item.properties_bytes)
        if item.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            texts = index.texts_of(item.topic, found.get("UNIQ_KEY"), found.get("KEYS"), found.get("TAGS"))
            entries += [(text, item.physical_offset) for _, text in texts]
    assert len(entries) < shape.entries
    times = {item.physical_offset: item.store_timestamp for item in stored}
    path = write_index(root / "index" / "20231114221320123", shape, entries)
    with path.open("r+b") as file:  # a first entry for offset 0 counts too
        header = index.decode_header(file.read(index.HEADER_SIZE))
        file.seek(0)
        file.write(index.encode_header(header._replace(
            begin_physical_offset=entries[0][1], begin_timestamp=times[entries[0][1]],
            end_timestamp=times[entries[-1][1]],
        )))  # fmt: skip
    return path


def write_state(root: Path, stored: Sequence[Message]) -> None:
    """Write checkpoint, lock, and a configuration that knows the topics and one consumer group."""
    newest = max(item.store_timestamp for item in stored)
    values = checkpoint.Checkpoint(newest, newest, newest, 0, 0)
    (root / "checkpoint").write_bytes(checkpoint.encode(values))
    (root / "lock").write_bytes(b"lock")
    topics = sorted({item.topic for item in stored})
    ends = {key: max(units) + 1 for key, units in units_of(stored).items()}
    offsets: dict[str, dict[str, int]] = {}
    for (topic, queue_id), end in ends.items():
        offsets.setdefault(f"{topic}@group", {})[str(queue_id)] = end
    batch = {item.topic for item in stored if item.sys_flag & INNER_BATCH}
    table = {
        name: {"attributes": BATCH_ATTRIBUTES if name in batch else {}, "topicName": name,
               "readQueueNums": 4, "writeQueueNums": 4}
        for name in topics
    }  # fmt: skip
    write_config(root, "topics.json", {"dataVersion": {"counter": 1}, "topicConfigTable": table})
    write_config(root, "consumerOffset.json", {"offsetTable": offsets})
    write_config(
        root, "subscriptionGroup.json", {"subscriptionGroupTable": {"group": {"groupName": "group"}}}
    )


def write_config(root: Path, name: str, document: dict[str, Any]) -> None:
    """Write a config file and its .bak."""
    (root / "config").mkdir(parents=True, exist_ok=True)
    for path in (root / "config" / name, root / "config" / f"{name}.bak"):
        path.write_text(json.dumps(document, indent="\t"), "utf-8")


def write_whole(
    root: Path,
    records: Iterable[Message],
    *,
    log_file_size: int = LOG_FILE_SIZE,
    queue_file_size: int = QUEUE_FILE_SIZE,
    shape: index.Shape = SHAPE,
) -> list[Message]:
    """A store with log, queues, index, checkpoint and config; returns the records as stored."""
    stored = write_log(root / "commitlog", records, file_size=log_file_size)
    write_units(root, stored, file_size=queue_file_size)
    write_keys(root, stored, shape)
    write_state(root, stored)
    return stored


def write_everything(root: Path) -> None:
    """A small sound store with every sort of file that a command reads; `verify` has notes at most."""
    light = {"INNER_MULTI_DISPATCH": "%LMQ%a", "TAGS": "A", "UNIQ_KEY": "L", "INNER_MULTI_QUEUE_OFFSET": "0"}
    items = batch.encode_items([batch.item(b"a", b""), batch.item(b"b", b"")])
    inner = {"INNER_BASE": "0", "INNER_NUM": "2", "TAGS": "A", "UNIQ_KEY": "B"}
    records = [
        *keyed(14, body=60),
        record("Mqtt", b"m", light, store_timestamp=STORE_TIMESTAMP + 20),
        record("Batch", items, inner, sys_flag=INNER_BATCH, store_timestamp=STORE_TIMESTAMP + 21),
    ]
    stored = write_log(root / "commitlog", records, file_size=2048)
    write_units(root, stored[:-1])
    of_batch = stored[-1]
    unit = BatchUnit(
        of_batch.physical_offset, of_batch.total_size, tags_code("A"), of_batch.store_timestamp, 0, 2
    )
    write_queue(root / "batchconsumequeue/Batch/0", [unit], file_size=4 * BATCH_UNIT_SIZE)
    write_keys(root, stored)
    write_state(root, stored)
    write_config(root, "consumerOffset.json", {"offsetTable": {"TopicTest@group": {"0": 7, "1": 3}}})
    write_config(root, "delayOffset.json", {"offsetTable": {"1": 0}})
    folder = root / "consumequeue_ext/TopicTest/0"
    folder.mkdir(parents=True)
    extension = encode_ext_unit(ExtUnit(20, 7, STORE_TIMESTAMP, b""))
    (folder / file_name(0)).write_bytes(extension.ljust(200, b"\0"))
    (root / "epochFileCheckpoint").write_bytes(epoch.encode([epoch.Entry(1, 0)]))
    (root / "compaction").mkdir()
    (root / "compaction/position-checkpoint").write_text(json.dumps({"topicPositions": {}}))
    (root / "timerlog").mkdir()
    (root / "timerlog" / file_name(0)).write_bytes(bytes(520))
    (root / "abort.bak").touch()


# -- running verify --------------------------------------------------------------------------------


def findings_of(store: Path, **arguments: Any) -> list[Finding]:
    """What `verify` finds, with all passes; the store must be as it was afterwards."""
    opening = {name: arguments.pop(name) for name in ("commitlog_paths", "read_only_paths", "broker_conf")
               if name in arguments}  # fmt: skip
    arguments.setdefault("passes", PASSES)
    with unchanged(store), Store.open(store, **opening) as opened:
        return list(verify(opened, **arguments))


def codes_of(store: Path, **arguments: Any) -> list[str]:
    """The codes of what `verify` finds, in its order."""
    return [item.problem.code for item in findings_of(store, **arguments)]


def report_of(store: Path, *, bounds: Bounds | None = None, jobs: int = 2) -> Report:
    """What `verify` says that it checked."""
    report = Report()
    findings_of(store, report=report, bounds=bounds, jobs=jobs)
    return report
