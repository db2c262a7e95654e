"""What was sent to a store: the messages of the lab, and what a consumer must then get of them."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any, Literal

from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import PutResult, StoreWriter

TAGS = ("TagA", "TagB", "标签", None)
_WORDS = ("order", "订单", "payment", "\U0001f600", "shipping", "退款")
COMPRESSIONS: tuple[Literal["zlib", "lz4", "zstd"], ...] = ("zlib", "lz4", "zstd")


@dataclass(frozen=True, order=True)
class Row:
    """A message as a consumer sees it."""

    key: str
    tags: str
    flag: int
    word: str
    body: str | None  # hash of the bytes; Java has no empty body, but none


def body_hash(body: bytes) -> str | None:
    """As the Java program prints it."""
    return sha256(body).hexdigest() if body else None


def row_of(message: NewMessage) -> Row:
    """What a consumer must get of a message."""
    assert not isinstance(message.properties, bytes)
    return Row(
        " ".join(message.keys),
        message.tags or "",
        message.flag,
        message.properties.get("word", ""),
        body_hash(message.body),
    )


def consumed_row(found: dict[str, Any]) -> Row:
    """What a consumer got."""
    return Row(
        found["keys"] or "",
        found["tags"] or "",
        found["flag"],
        found["properties"].get("word", ""),
        found["bodySha256"],
    )


def messages(
    random: Random, prefix: str, topics: Sequence[str], count: int, *, smallest: int = 1
) -> Iterator[NewMessage]:
    """Messages of many sizes over some topics, each with a key like no other."""
    for number in range(count):
        size = random.choice((smallest, 1, 20, 300, 900, 2500))
        yield NewMessage(
            topics[number % len(topics)],
            random.randbytes(size),
            tags=random.choice(TAGS),
            keys=[f"{prefix}-{number}"],
            flag=random.choice((0, 1, -7)),
            properties={"word": random.choice(_WORDS), "number": str(number)},
        )


def text_message(topic: str, key: str, size: int = 100, **fields: Any) -> NewMessage:
    """A message whose body compresses well."""
    return NewMessage(topic, (key.encode() * size)[: 10 * size], tags="TagA", keys=[key], **fields)


def command(message: NewMessage) -> dict[str, Any]:
    """A message as the Java client is told to send it."""
    assert not isinstance(message.properties, bytes)
    return {
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tags": message.tags or "",
        "keys": " ".join(message.keys),
        "flag": message.flag,
        "properties": dict(message.properties),
        **({"delay_level": message.delay_level} if message.delay_level else {}),
        **({"queue_id": message.queue_id} if message.queue_id is not None else {}),
    }


def json_row(message: NewMessage) -> dict[str, Any]:
    """A message as `rmqtool append --input` takes it."""
    assert not isinstance(message.properties, bytes)
    return {
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "body_encoding": "base64",
        "tags": message.tags,
        "keys": list(message.keys),
        "flag": message.flag,
        "properties": dict(message.properties),
    }


@dataclass
class Ledger:
    """Every message that a consumer must get: by queue in order, or by topic where the order is free.

    `free` are topics that delayed and transactional messages go to: when they come is not known.
    `asked` are keys of half messages that a broker asks about. It may ask again before it has noted the
    answer, and then stores the message twice.
    """

    free: frozenset[str]
    asked: set[str] = field(default_factory=set)
    queues: dict[tuple[str, int], list[Row]] = field(default_factory=lambda: defaultdict(list))
    topics: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def rows(self) -> list[Row]:
        """All messages."""
        return [row for rows in (*self.queues.values(), *self.topics.values()) for row in rows]

    def add(self, topic: str, queue_id: int, rows: Iterable[Row]) -> None:
        """Note messages that were stored in a queue one behind the other."""
        if topic in self.free:
            self.topics[topic] += rows
        else:
            self.queues[topic, queue_id] += rows

    def put(self, writer: StoreWriter, message: NewMessage) -> PutResult:
        """Put one message and note it."""
        result = writer.put(message)
        self.add(message.topic, result.queue_id, [row_of(message)])
        return result

    def put_batch(self, writer: StoreWriter, batch: Sequence[NewMessage]) -> PutResult:
        """Put a batch and note its messages."""
        result = writer.put_batch(batch)
        self.add(batch[0].topic, result.queue_id, map(row_of, batch))
        return result

    def send(self, client: Any, message: NewMessage) -> dict[str, Any]:
        """Have the Java client send a message, and note it."""
        result: dict[str, Any] = client.call("send", **command(message))
        assert result["status"] == "SEND_OK"
        self.add(message.topic, result["queueId"], [row_of(message)])
        return result

    def send_batch(self, client: Any, batch: Sequence[NewMessage]) -> None:
        """Have the Java client send a batch, and note its messages."""
        result = client.call("send_batch", messages=[command(message) for message in batch])
        assert result["status"] == "SEND_OK"
        self.add(batch[0].topic, result["queueId"], map(row_of, batch))

    def _asked_once(self, rows: Iterable[Row]) -> list[Row]:
        seen: set[Row] = set()
        kept = []
        for row in rows:
            if row.key not in self.asked or row not in seen:
                kept.append(row)
            seen.add(row)
        return kept

    def check(self, got: Iterable[dict[str, Any]]) -> None:
        """What a consumer got is exactly this: every message once, each queue in order and without gaps."""
        queues: dict[tuple[str, int], list[Row]] = defaultdict(list)
        topics: dict[str, list[Row]] = defaultdict(list)
        offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        for found in got:
            key = found["topic"], found["queueId"]
            offsets[key].append(found["queueOffset"])
            if found["topic"] in self.free:
                topics[found["topic"]].append(consumed_row(found))
            else:
                queues[key].append(consumed_row(found))
        assert queues.keys() == self.queues.keys()
        for key, rows in self.queues.items():
            assert queues[key] == rows, key
        for topic, rows in self.topics.items():
            assert sorted(self._asked_once(topics.pop(topic))) == sorted(rows), topic
        assert not topics
        for key, numbers in offsets.items():
            assert numbers == list(range(len(numbers))), key
