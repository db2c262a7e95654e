"""A store that rmqtool made lives with a real broker: it reads ours, goes on, and reads what we add.

One life per version: made by us, served by the broker, written by the broker, verified, appended to by
us, served again. `Ledger` holds what any consumer must get at each point.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.formats import properties
from rmqtool.formats.message_id import host_bytes, offset_message_id
from rmqtool.message.system_topics import parse_delay_levels
from rmqtool.read.store import Store
from rmqtool.write.records import transactions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import PutResult, StoreWriter
from tests.interop.brokers import (
    BROKER_VERSIONS,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    LOG_FILE_SIZE,
    QUEUE_FILE_SIZE,
    Broker,
    wait_for_topic,
)
from tests.interop.ledger import (
    COMPRESSIONS,
    Ledger,
    Row,
    command,
    consumed_row,
    json_row,
    messages,
    row_of,
    text_message,
)
from tests.interop.processes import Program

PROFILES = {"4.9.7": "4.9", "5.4.0": "5.4"}
PLAIN = ("Ours0", "Ours1", "Ours2")
LONG, BATCH, INNER = "OursLong", "OursBatch", "OursInner"
DELAYED, TRANSACTION = "OursDelayed", "OursTransaction"
EMPTY = "OursEmpty"  # nobody subscribes to it, nor to these
AGAIN = ("%RETRY%lab_nobody", "%DLQ%lab_nobody")
GROUP, LATE_GROUP, PRODUCERS = "lab_readers", "lab_late_readers", "lab_transactions"
DELAY_LEVELS = "1s 3s 30s 1h"
SEED = 4
SIZES: dict[str, Any] = {
    "commit_log_file_size": LOG_FILE_SIZE,
    "consume_queue_file_size": QUEUE_FILE_SIZE,
    "index_slots": INDEX_SLOTS,
    "index_entries": INDEX_ENTRIES,
    "delays_ms": parse_delay_levels(DELAY_LEVELS),
}
BROKER_SETTINGS = {"messageDelayLevel": DELAY_LEVELS}


class Life:
    """The store of one version, its ledger, and what was put in ways that the tests come back to."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self.profile = PROFILES[version]
        self.root = folder / "store"
        self.random = Random(SEED)
        self.ledger = Ledger(frozenset({DELAYED, TRANSACTION}))
        self.topics = [*PLAIN, LONG, BATCH, DELAYED, TRANSACTION] + ([INNER] if self.profile != "4.9" else [])
        self.sizes = dict(SIZES) if self.profile == "4.9" else {**SIZES, "batch_queue_file_size": 46_000}
        # A push consumer of 4.9.7 fails on an empty body (ProcessQueue#putMessage): its queue stands still.
        self.smallest = 1 if self.profile == "4.9" else 0
        self.due: dict[str, int] = {}  # by key, ms since 1970
        self.put: list[tuple[NewMessage, PutResult]] = []

    def make(self) -> None:
        """A new store with every kind of message, several log, queue and index files.

        `rmqtool append` makes it, and stores plain messages; the engine goes on with all kinds.
        """
        made = list(messages(self.random, "command", PLAIN, 600, smallest=self.smallest))
        create = ("--create", "--profile", self.profile, "--create-topic", "--queues", "4",
                  "--commitlog-file-size", str(LOG_FILE_SIZE), "--queue-file-size", str(QUEUE_FILE_SIZE),
                  "--index-slots", str(INDEX_SLOTS), "--index-entries", str(INDEX_ENTRIES))  # fmt: skip
        self.append_by_command(made[:300], "--show", "messages", *create)
        self.append_by_command(made[300:], "--show", "messages")
        with StoreWriter.open(self.root, auto_create_queues=4, **self.sizes) as writer:
            if INNER in self.topics:
                writer.topics.add(INNER, 2, attributes={"queue.type": "BatchCQ"})
            self.append(writer, "made", 1800)
            self.put_halves(writer)
            for level in (1, 2, 3):
                self.put_delayed(writer, f"delayed-{level}", level)
            writer.put(text_message(DELAYED, "never", delay_level=4))
            writer.put(NewMessage(EMPTY, keys=["empty"], queue_id=0))
            for topic in AGAIN:
                again = NewMessage(topic, b"again", keys=[topic[1:6]], queue_id=0, reconsume_times=3)
                writer.put(replace(again, properties={properties.RETRY_TOPIC: PLAIN[0]}))

    def append_by_command(self, made: list[NewMessage], *options: str) -> None:
        """`rmqtool append --input` of JSON lines."""
        lines = "".join(json.dumps(json_row(message)) + "\n" for message in made)
        done = subprocess.run(
            [sys.executable, "-m", "rmqtool", "append", str(self.root), "--input", "-", "--format", "jsonl",
             *options],
            input=lines, capture_output=True, encoding="utf-8", check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for message, line in zip(made, done.stdout.splitlines(), strict=True):
            row = json.loads(line)
            result = PutResult(
                row["physical_offset"], row["queue_offset"], row["size"], row["topic"], row["queue_id"],
                row["store_timestamp_ms"], (row["physical_offset"],), host_bytes("127.0.0.1:10911"),
                row["flushed"],
            )  # fmt: skip
            assert result.topic == message.topic
            self.put.append((message, result))
            self.ledger.add(message.topic, result.queue_id, [row_of(message)])

    def append(self, writer: StoreWriter, prefix: str, count: int) -> None:
        """Plain messages, long queues, batches, compressed bodies; inner batches where there are any."""
        for message in messages(self.random, prefix, PLAIN, count, smallest=self.smallest):
            self.put.append((message, self.ledger.put(writer, message)))
        for message in messages(self.random, f"{prefix}-long", [LONG], 1100):
            message.queue_id, message.body = 0, message.body[:50]
            self.ledger.put(writer, message)
        for number in range(20):
            sizes = range(self.smallest, self.smallest + 1 + 2 * number)
            batch = [text_message(BATCH, f"{prefix}-batch-{number}-{size}", size) for size in sizes]
            self.ledger.put_batch(writer, batch)
            if INNER in self.topics:
                batch = [text_message(INNER, f"{prefix}-inner-{number}-{item}", item) for item in range(1, 9)]
                self.ledger.put_batch(writer, batch)
        for number, compression in enumerate(COMPRESSIONS * 2):
            message = text_message(PLAIN[0], f"{prefix}-packed-{number}", 3000, compression=compression)
            self.ledger.put(writer, message)

    def put_delayed(self, writer: StoreWriter, key: str, level: int) -> None:
        """A message that the broker delivers later."""
        result = self.ledger.put(writer, text_message(DELAYED, key, delay_level=level))
        self.due[key] = result.store_timestamp + self.sizes["delays_ms"][level - 1]

    def put_halves(self, writer: StoreWriter) -> None:
        """Half messages: committed and rolled back by us, and two that the broker has to ask about."""
        for key, end, answer in (
            ("half-committed", transactions.commit, "rollback"),
            ("half-rolled-back", transactions.rollback, "commit"),
            ("half-asked-commit", None, "commit"),
            ("half-asked-rollback", None, "rollback"),
        ):
            message = text_message(TRANSACTION, key, properties={"check": answer})
            placed = writer.put(transactions.half(message, PRODUCERS))
            if end is None:
                self.ledger.asked.add(key)
            else:
                writer.dispatch()
                with writer.read() as store:
                    record = store.get(placed.physical_offset)
                assert record is not None
                for following in end(record.message, writer.options, int(time.time() * 1000)):
                    writer.put(following)
            if key in ("half-committed", "half-asked-commit"):
                self.ledger.add(TRANSACTION, 0, [row_of(message)])

    def send(self, client: Program) -> None:
        """The broker's part: an ordinary producer sends all kinds to the same topics."""
        for message in messages(self.random, "sent", (*PLAIN, LONG), 400):
            self.ledger.send(client, message)
        for number in range(5):
            batch = [text_message(BATCH, f"sent-batch-{number}-{item}", item + 1) for item in range(10)]
            self.ledger.send_batch(client, batch)
        self.ledger.send(client, text_message(PLAIN[1], "sent-packed", 3000))
        self.ledger.send(client, text_message(DELAYED, "sent-delayed", delay_level=1))
        for then in ("commit", "rollback", "unknown"):
            message = text_message(TRANSACTION, f"sent-half-{then}", properties={"check": "commit"})
            client.call("send_half", then=then, **command(message))
            if then != "rollback":
                self.ledger.add(TRANSACTION, 0, [row_of(message)])
        self.ledger.asked.add("sent-half-unknown")


def consumed(events: list[Any], group: str) -> list[dict[str, Any]]:
    """What a group's consumer got, in order."""
    return [event["message"] for event in events if event["kind"] == "consumed" and event["group"] == group]


def consume(client: Program, life: Life, group: str) -> None:
    """Start an ordinary push consumer on all topics; a new group begins with the first message."""
    client.call("consume", group=group, topics=dict.fromkeys(life.topics, "*"))


def wait_consumed(client: Program, group: str, rows: list[Row]) -> list[dict[str, Any]]:
    """What a group's consumer has got, once it has as many messages as it must get: `rows`."""

    def missing(events: list[Any]) -> str:
        left = Counter(rows)
        left.subtract(map(consumed_row, consumed(events, group)))
        return f"{group} has not got {[row for row, count in left.items() if count > 0][:5]}"

    return consumed(
        client.wait_events(lambda events: len(consumed(events, group)) >= len(rows), missing), group
    )


def check_verify(root: Path) -> None:
    """`verify` finds nothing that is wrong."""
    with Store.open(root) as store:
        found = [finding for finding in verify(store) if finding.problem.severity != "note"]
    assert found == []


def check_delays(client: Program, life: Life) -> None:
    """Delayed messages came when they were due, not before, and the one of an hour not at all."""
    came = {}
    for event in client.events_so_far():
        if event["kind"] == "consumed" and event["message"]["topic"] == DELAYED:
            came[event["message"]["keys"]] = event["message"]["storeTimestamp"]
    assert life.due.keys() <= came.keys()
    for key, due in life.due.items():
        assert came[key] >= due, key
    assert "never" not in came


def check_transactions(client: Program, life: Life) -> None:
    """The broker asked about the halves that nobody had finished, and about no other."""
    asked = {event["message"]["keys"] for event in client.events_so_far() if event["kind"] == "check"}
    assert asked == life.ledger.asked


def check_pull_by_tag(client: Program, life: Life) -> None:
    """A tag expression gives the messages of these tags, in order."""
    for queue_id in range(4):
        rows = life.ledger.queues[PLAIN[0], queue_id]
        offset, found = 0, []
        while offset < len(rows):
            answer = client.call(
                "pull", topic=PLAIN[0], queue_id=queue_id, offset=offset, tags="TagA || 标签", max=32
            )
            assert answer["max"] == len(rows) and answer["next"] > offset
            found += [consumed_row(message) for message in answer["messages"]]
            offset = answer["next"]
        assert found == [row for row in rows if row.tags in ("TagA", "标签")]
        assert found


def check_empty_body(client: Program) -> None:
    """A message without a body is served."""
    wait_for_topic(client, [EMPTY])
    answer = client.call("pull", topic=EMPTY, queue_id=0, offset=0, tags="*", max=8)
    assert [(found["keys"], found["bodyLength"]) for found in answer["messages"]] == [("empty", 0)]


def check_again(client: Program) -> None:
    """What waits to be consumed again, and what was given up, is served under the group's own topics."""
    wait_for_topic(client, AGAIN)
    for topic in AGAIN:
        answer = client.call("pull", topic=topic, queue_id=0, offset=0, tags="*", max=8)
        (found,) = answer["messages"]
        assert (found["keys"], found["reconsumeTimes"]) == (topic[1:6], 3)
        assert found["properties"][properties.RETRY_TOPIC] == PLAIN[0]


def check_lookups(client: Program, life: Life, port: int) -> None:
    """By key, by unique key, by message id and by time the broker finds what we put."""
    now = int(time.time() * 1000)
    with Store.open(life.root) as store:
        stored = {place.physical_offset: store.get(place.physical_offset) for _, place in life.put[::97]}
    for message, result in life.put[::97]:
        record = stored[result.physical_offset]
        assert record is not None
        key, topic = message.keys[0], message.topic
        by_key = client.call("query", topic=topic, key=key, max=32, begin=0, end=now + 3_600_000)
        assert [consumed_row(found) for found in by_key] == [row_of(message)]
        uniq_key = properties.decode(record.message.properties_bytes)[properties.UNIQ_KEY]
        offset_id = offset_message_id(host_bytes(f"127.0.0.1:{port}"), result.physical_offset)
        for name in (uniq_key, offset_id):
            found = client.call("view", topic=topic, id=name)
            assert consumed_row(found) == row_of(message), name
            assert found["physicalOffset"] == result.physical_offset
        place = {"topic": topic, "queue_id": result.queue_id}
        offset = client.call("search_offset", time=result.store_timestamp, **place)
        with Store.open(life.root) as store:
            hit = store.get_by_queue_offset(topic, result.queue_id, offset)
        assert hit is not None and hit.message.store_timestamp == result.store_timestamp


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_broker_reads_ours_goes_on_and_reads_what_we_add(version: str, tmp_path: Path) -> None:
    """See the module's text; every step names its claim."""
    life = Life(version, tmp_path)
    life.make()
    check_verify(life.root)
    with Broker(version, tmp_path / "lab", life.root, BROKER_SETTINGS) as broker:
        broker.start()
        with broker.client() as client:
            wait_for_topic(client, life.topics)
            client.call("listen_for_checks", group=PRODUCERS, topic=TRANSACTION)
            consume(client, life, GROUP)
            life.ledger.check(wait_consumed(client, GROUP, life.ledger.rows()))
            check_delays(client, life)
            check_pull_by_tag(client, life)
            check_empty_body(client)
            check_again(client)
            check_lookups(client, life, broker.port)
            life.send(client)
            life.ledger.check(wait_consumed(client, GROUP, life.ledger.rows()))
            check_transactions(client, life)
            client.call("close")
        broker.stop()
        check_verify(life.root)
        with StoreWriter.open(life.root, auto_create_queues=4, **life.sizes) as writer:
            assert writer.options.profile.name == life.profile
            life.append(writer, "added", 300)
        check_verify(life.root)
        broker.start()
        with broker.client() as client:
            wait_for_topic(client, life.topics)
            consume(client, life, GROUP)
            consume(client, life, LATE_GROUP)
            life.ledger.check(wait_consumed(client, LATE_GROUP, life.ledger.rows()))
            added = [row for row in life.ledger.rows() if row.key.startswith("added")]
            rest = wait_consumed(client, GROUP, added)
            assert sorted(map(consumed_row, rest)) == sorted(added)
            client.call("close")
        broker.stop()
    check_verify(life.root)
