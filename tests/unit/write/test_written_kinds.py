"""A store with every kind of message that the writer makes, as `info`, `dump` and `verify` see it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Store
from rmqtool.check.verify import PASSES, verify
from rmqtool.errors import IllegalMessageError
from rmqtool.formats.body import Compression
from rmqtool.formats.consume_queue import Unit
from rmqtool.formats.java import index_key_hash, string_hash
from rmqtool.formats.message import Message
from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPICS, SCHEDULE_TOPIC
from rmqtool.report.info import store_info
from rmqtool.write.options import WriteOptions
from rmqtool.write.put_result import PutResult
from rmqtool.write.records import transactions
from rmqtool.write.store_writer import StoreWriter
from tests.support.dumps import Dump, Row

CASES = [("4.9", False), ("5.3", False), ("5.3", True), ("5.4", False), ("5.4", True)]
V6 = bytes(15) + b"\1" + (10911).to_bytes(4)
COMPRESSIONS: tuple[Compression, ...] = ("zlib", "lz4", "zstd")
ROUNDS = 9
LONG_GROUP = "g" * 140
LIGHT = "%LMQ%"
TABLE = ["row 0", "row 1", "row 2"]


@dataclass
class Written:
    """The store, and what was put: (kind, system kind, body, its messages) by physical offset."""

    root: Path
    profile: str
    property_crc: bool
    options: WriteOptions
    put: dict[int, tuple[PutResult, str | None, bytes, int]] = field(default_factory=dict)
    other: Counter[tuple[str, int]] = field(default_factory=Counter)  # of light queues and of the table

    def add(self, result: PutResult, system: str | None, bodies: Sequence[bytes]) -> PutResult:
        """Note what a put has stored."""
        for number, (offset, body) in enumerate(zip(result.physical_offsets, bodies, strict=True)):
            placed = result._replace(queue_offset=result.queue_offset + number)
            self.put[offset] = (placed, system, body, 1)
        return result

    @property
    def queues(self) -> Counter[tuple[str, int]]:
        """How many messages each queue holds."""
        found = Counter(self.other)
        for result, _, _, count in self.put.values():
            found[result.topic, result.queue_id] += count
        return found


def fill(writer: StoreWriter, written: Written) -> None:
    """Put every kind, several times, so that files of all sorts roll."""
    is_5 = written.profile != "4.9"
    if is_5:
        writer.topics.add("Inner", 2, attributes={"queue.type": "BatchCQ"})
    for n in range(ROUNDS):
        plain = NewMessage("Plain", b"plain %d" % n, tags="TagA", keys=[f"key-{n}", "all"])
        written.add(writer.put(plain), None, [plain.body])
        v6 = NewMessage("Plain", b"v6", born_host=V6, store_host=V6 if n % 2 else None)
        written.add(writer.put(v6), None, [v6.body])
        late = NewMessage("Late", b"late %d" % n, tags="L", keys=["late"], delay_level=1 + n % 18)
        written.add(writer.put(late), "delayed", [late.body])
        big = NewMessage("Big", b"%d" % n * 5000, compression=COMPRESSIONS[n % 3] if is_5 else "zlib")
        written.add(writer.put(big), None, [big.body])
        batch = [NewMessage("Batch", b"item %d" % k, tags=f"T{k}", keys=[f"k{k}"]) for k in range(4)]
        written.add(writer.put_batch(batch), None, [one.body for one in batch])
        light = NewMessage(
            "Light", b"light", tags="L", properties={"INNER_MULTI_DISPATCH": f"{LIGHT}a,{LIGHT}b"}
        )
        written.add(writer.put(light), None, [light.body])
        written.other.update({(f"{LIGHT}a", 0): 1, (f"{LIGHT}b", 0): 1})
        group = LONG_GROUP if is_5 else LONG_GROUP[:100]
        retry = NewMessage(f"%RETRY%{group}", b"retry", tags="R", reconsume_times=2)
        written.add(writer.put(retry), "retry", [retry.body])
        dead = NewMessage("%DLQ%group", b"dead", reconsume_times=16)
        written.add(writer.put(dead), "dead_letter", [dead.body])
        if is_5:
            inner = [NewMessage("Inner", b"inner %d" % k, tags="I", keys=["inner"]) for k in range(5)]
            result = writer.put_batch(inner)
            written.put[result.physical_offset] = (result, "inner_batch", b"", 5)
        transaction(writer, written, n)
    import pyarrow as pa

    table = pa.table({"topic": ["Table"] * 3, "body": TABLE, "queue_id": [0, 1, 0]})
    assert writer.put_table(table).rows == len(TABLE)
    written.other.update({("Table", 0): 2, ("Table", 1): 1})


def transaction(writer: StoreWriter, written: Written, n: int) -> None:
    """A half message; every third stays open, the others are committed or rolled back."""
    half = transactions.half(NewMessage("Tx", b"tx %d" % n, tags="T", keys=["tx"]), "group")
    stored = written.add(writer.put(half), "half", [half.body])
    if n % 3 == 0:
        return
    with writer.read() as store:
        found = store.find(stored.physical_offset)
    assert found is not None
    record: Message = found.message
    end = transactions.commit if n % 3 == 1 else transactions.rollback
    for message in end(record, writer.options, time.time_ns() // 1_000_000):
        system = "op" if message.topic == OP_TOPICS[0] else "committed"
        written.add(writer.put(message), system, [message.body])


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}{'-crc' * case[1]}")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A store of each version, with property CRCs where there are any."""
    profile, property_crc = request.param
    root = tmp_path_factory.mktemp("written") / "store"
    with StoreWriter.create(
        root, profile, auto_create_queues=2, commit_log_file_size=16 << 10, consume_queue_file_size=100,
        batch_queue_file_size=2 * 46, index_slots=20, index_entries=80, multi_dispatch=True,
        property_crc=property_crc,
    ) as writer:  # fmt: skip
        result = Written(root, profile, property_crc, writer.options)
        fill(writer, result)
    return result


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes]) -> Dump:
    """`rmqtool dump` with what it wrote."""
    return Dump(capfdbinary)


@pytest.fixture
def rows(written: Written, dump: Dump) -> Callable[..., list[Row]]:
    """Rows of the written store; besides, only the note on batch records."""

    def run(*arguments: object) -> list[Row]:
        result = dump(written.root, "--format", "jsonl", *arguments)
        assert (result.code, [line for line in result.err.splitlines() if "batch record" not in line]) == (
            0,
            [],
        )
        return result.rows

    return run


def test_verify_finds_nothing(written: Written) -> None:
    """Not even a note."""
    with Store.open(written.root) as store:
        assert [item.row() for item in verify(store, passes=PASSES)] == []


def test_info(written: Written) -> None:
    with Store.open(written.root) as store:
        found: dict[str, Any] = store_info(store)
        ends = {key: store.max_offset(*key) for key in store.queues}
    assert (found["written_by"], found["state"]["abort"]) == (written.profile, False)
    assert found["problems"] == found["unsupported"] == found["unreadable"] == []
    assert found["behind"] == {"queues_bytes": 0, "index_bytes": 0}
    assert ends == written.queues
    topics = Counter[str]()
    for (topic, _), count in written.queues.items():
        topics[topic] += count
    assert {row["topic"]: row["messages"] for row in found["topics"]} == topics


def test_dump_of_the_log(written: Written, rows: Callable[..., list[Row]]) -> None:
    """Every record is where its put said, is called what it is, and its body is the message's."""
    shown = {row["physical_offset"]: row for row in rows()}
    assert list(shown) == sorted(shown)
    table = [row for row in shown.values() if row["topic"] == "Table"]
    assert [row["body"] for row in table] == TABLE
    assert len(shown) == len(written.put) + len(table)
    for offset, (result, system, body, count) in written.put.items():
        row = shown[offset]
        place = (row["topic"], row["queue_id"], row["queue_offset"], row["store_timestamp_ms"])
        assert place == (result.topic, result.queue_id, result.queue_offset, result.store_timestamp)
        assert row["status"] == ["ok"]
        assert row.get("system", {}).get("kind") == system, row
        assert row["version"] == (2 if len(result.topic) > 127 else 1)
        assert ("__CRC32#" in row["properties"]) == written.property_crc
        if system == "inner_batch":
            messages = row["system"]["messages"]
            assert [each["body"] for each in messages] == [f"inner {k}" for k in range(count)]
            assert [each["queue_offset"] for each in messages] == [
                result.queue_offset + k for k in range(count)
            ]
        else:
            assert row["body"].encode() == body
    assert len({row["file"] for row in shown.values()}) > 1


def test_dump_of_system_records(written: Written, rows: Callable[..., list[Row]]) -> None:
    """What half, committed, op and delayed records say fits together."""
    by_topic: dict[str, list[Row]] = {}
    for row in rows():
        by_topic.setdefault(row["topic"], []).append(row)
    halves = {row["queue_offset"]: row for row in by_topic[HALF_TOPICS[0]]}
    assert len(halves) == ROUNDS
    finished = [n for row in by_topic[OP_TOPICS[0]] for n in row["system"]["half_queue_offsets"]]
    assert finished == [n for n in range(ROUNDS) if n % 3]
    committed = {row["system"]["half_physical_offset"]: row for row in by_topic["Tx"]}
    assert list(committed) == [halves[n]["physical_offset"] for n in range(ROUNDS) if n % 3 == 1]
    for row in committed.values():
        half = next(each for each in halves.values() if each["body"] == row["body"])
        assert row["uniq_key"] == half["uniq_key"] == half["system"]["transaction_id"]
        assert half["system"]["real_topic"] == "Tx" and half["system"]["real_queue_id"] == row["queue_id"]
        assert row["system"]["producer_group"] == half["system"]["producer_group"] == "group"
    delays = written.options.delays_ms
    for number, row in enumerate(by_topic[SCHEDULE_TOPIC]):
        assert (row["system"]["level"], row["queue_id"]) == (number + 1, number)
        assert row["system"]["deliver_timestamp_ms"] == row["store_timestamp_ms"] + delays[number]
        assert row["system"]["real_topic"] == "Late" and row["tags"] == "L"
    assert {row["born_host"] for row in by_topic["Plain"] if row["body"] == "v6"} == {"[::1]:10911"}
    compressed = Counter(row["body_compression"] for row in by_topic["Big"])
    expected = {name: ROUNDS // 3 for name in COMPRESSIONS} if written.profile != "4.9" else {"zlib": ROUNDS}
    assert compressed == expected
    offsets = [row["properties"]["INNER_MULTI_QUEUE_OFFSET"] for row in by_topic["Light"]]
    assert offsets == [f"{n},{n}" for n in range(ROUNDS)]


def test_dump_of_the_queues(written: Written, rows: Callable[..., list[Row]]) -> None:
    """One unit for each record, at its queue offset, with its tag or the time of its delivery."""
    records = {row["physical_offset"]: row for row in rows()}
    units = rows("--what", "consumequeue")
    lights = [unit for unit in units if unit["topic"].startswith(LIGHT)]
    assert Counter((unit["topic"], unit["queue_id"]) for unit in lights) == {
        key: count for key, count in written.other.items() if key[0].startswith(LIGHT)
    }
    assert {unit["physical_offset"] for unit in units} == set(records)
    for unit in units:
        record = records[unit["physical_offset"]]
        assert unit["size"] == record["size"]
        if unit["topic"].startswith(LIGHT):
            assert record["topic"] == "Light" and unit["tags_code"] == string_hash("L")
            continue
        place = tuple(record[name] for name in ("topic", "queue_id", "queue_offset"))
        assert (unit["topic"], unit["queue_id"], unit["queue_offset"]) == place
        if unit["topic"] == SCHEDULE_TOPIC:
            assert unit["tags_code"] == record["system"]["deliver_timestamp_ms"]
        elif unit["topic"] == "Inner":
            assert unit["batch_size"] == 5
        else:
            assert unit["tags_code"] == (string_hash(record["tags"]) if record["tags"] else 0)
    assert len(units) == len(records) + len(lights)


def test_dump_of_the_index(written: Written, rows: Callable[..., list[Row]]) -> None:
    """Every key of every record is there once, by entries and by chains; 5.4 has the tags too."""
    wanted: Counter[tuple[int, int]] = Counter()
    for row in rows():
        texts = [f"{row['topic']}#{key}" for key in (row["uniq_key"], *row["keys"]) if key is not None]
        if written.profile == "5.4" and row["tags"]:
            texts.append(f"{row['topic']}#T#{row['tags']}")
        wanted.update((index_key_hash(text), row["physical_offset"]) for text in texts)
    for part in ("entries", "chains"):
        found = rows("--what", "index", "--part", part)
        assert Counter((row["key_hash"], row["physical_offset"]) for row in found) == wanted
        assert len({row["file"] for row in found}) > 1
    by_key = rows("--what", "index", "--topic", "Plain", "--key", "key-4")
    assert [row["physical_offset"] for row in by_key] == [
        row["physical_offset"] for row in rows("--topic", "Plain", "--key", "key-4")
    ]
    headers = rows("--what", "index", "--part", "header")
    assert {(row["slots"], row["entries"]) for row in headers} == {(20, 80)}


def test_dump_of_checkpoint_and_config(written: Written, rows: Callable[..., list[Row]]) -> None:
    last = rows("--reverse", "--limit", 1)[0]["store_timestamp_ms"]
    (checkpoint,) = rows("--what", "checkpoint")
    assert checkpoint["physic_msg_timestamp_ms"] == checkpoint["logics_msg_timestamp_ms"] == last
    config = {row["name"]: row for row in rows("--what", "config")}
    assert all(row["status"] == ["ok"] for row in config.values())
    topics = config["topics.json"]["content"]["topicConfigTable"]
    system = {HALF_TOPICS[0], OP_TOPICS[0], SCHEDULE_TOPIC, f"{LIGHT}a", f"{LIGHT}b"}
    assert {topic for topic, _ in written.queues} - set(topics) <= system


def test_a_delivery_time_beyond_a_long_wraps_around(tmp_path: Path) -> None:
    """As in Java. In Python it was too large for the queue's unit, and the store could not be closed."""
    with StoreWriter.create(tmp_path, commit_log_file_size=1 << 16, auto_create_queues=1) as writer:
        writer.put(NewMessage("T", b"", delay_level=18, store_timestamp=(1 << 63) - 1))
    with Store.open(tmp_path) as store:
        queue = store.queue(SCHEDULE_TOPIC, 17)
        unit = None if queue is None else queue.unit(0)
        assert isinstance(unit, Unit) and unit.tags_code == -(1 << 63) - 1 + 7_200_000


@pytest.mark.parametrize("level", [-(1 << 31) - 1, 1 << 31])
def test_a_delay_level_that_is_no_int_is_refused(tmp_path: Path, level: int) -> None:
    """Below the smallest one it was stored as it is, and no broker dispatches such a record."""
    told = f"property DELAY is '{level}', not an integer"
    with StoreWriter.create(tmp_path, commit_log_file_size=1 << 16, auto_create_queues=1) as writer:
        for more in ({"properties": {"DELAY": str(level)}}, {"delay_level": level}):
            one = replace(NewMessage("T", b""), **more)
            with pytest.raises(IllegalMessageError, match=told):
                writer.put(one)
            with pytest.raises(IllegalMessageError, match=f"of a batch|{told}"):
                writer.put_batch([one])
