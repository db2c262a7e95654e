"""From messages to records: the records of real brokers, made once more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from rmqtool.formats import batch, message, properties
from rmqtool.formats.message import INNER_BATCH, Message
from rmqtool.message.system_topics import RETRY_PREFIX, SCHEDULE_TOPIC
from rmqtool.storage.profile import PROFILES
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import (
    EncodedRecord,
    batch_map,
    batch_records,
    check_batch,
    inner_batch,
    item_properties,
    pack,
    prepare,
    with_offsets,
)
from tests.support.stores import Library, real_case

NOW_MS = 1_700_000_000_000
STATES = [("4.9.7", "clean"), ("4.9.7", "small-ipv6"), ("5.3.3", "clean"), ("5.3.3", "small-propcrc"),
          ("5.4.0", "clean"), ("5.4.0", "small-ipv6"), ("5.4.0", "small-propcrc")]  # fmt: skip
STORES = [real_case(version, state).name for version, state in STATES]
ADDED = ("CLUSTER", "MSG_REGION", "TRACE_ON")


@cache
def records_of(root: str) -> tuple[tuple[Message, bytes], ...]:
    """Every record of a log with its bytes."""
    return tuple(_records(Path(root)))


def _records(root: Path) -> Iterator[tuple[Message, bytes]]:
    for path in sorted((root / "commitlog").iterdir()):
        data, offset = path.read_bytes(), 0
        while int.from_bytes(data[offset + 4 : offset + 8], signed=True) in message.VERSION_BY_MAGIC:
            record = message.decode(data, offset)
            yield record, data[offset : offset + record.total_size]
            offset += record.total_size


def options_of(name: str) -> WriteOptions:
    """How the broker of a case wrote; its delay table is in `lab.md`."""
    case = real_case(*STATES[STORES.index(name)])
    return WriteOptions(profile=PROFILES[case.profile], property_crc="propcrc" in name)


def is_item(record: Message, options: WriteOptions) -> bool:
    """Whether the record was an item of a batch; each version leaves its own traces of that."""
    names = [name for name, _ in properties.pairs(record.properties_bytes)]
    if record.topic == SCHEDULE_TOPIC or "REAL_TOPIC" in names or record.sys_flag & INNER_BATCH:
        return False
    if options.profile.appends_batch_properties:
        return names.count("WAIT") == 2
    return "UNIQ_KEY" in names and "CLUSTER" not in names


def sent(record: Message, found: dict[str, str]) -> NewMessage:
    """What the producer of `record` handed over; `found` is what the client had put."""
    rest = dict(found)
    return NewMessage(
        topic=record.topic, body=record.body, tags=rest.pop("TAGS", None), keys=rest.pop("KEYS", ""),
        uniq_key=rest.pop("UNIQ_KEY"), wait=rest.pop("WAIT", "true") == "true", properties=rest,
        queue_id=record.queue_id, flag=record.flag, sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp, born_host=record.born_host, store_host=record.store_host,
        reconsume_times=record.reconsume_times,
    )  # fmt: skip


def client_view(record: Message) -> dict[str, str]:
    """The client's properties: without those that the broker added."""
    found = properties.decode(record.properties_bytes)
    return {name: value for name, value in found.items() if name not in (*ADDED, message.PROPERTY_CRC_NAME)}


def bytes_of(made: EncodedRecord, record: Message) -> bytes:
    """The bytes of `made` where `record` was."""
    if made.late is not None:
        made = with_offsets(made, record.queue_offset)
    data = pack(made, record.queue_offset, record.physical_offset, record.store_timestamp)
    assert len(data) == made.size
    return data


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, cases: Library) -> tuple[list[tuple[Message, bytes]], WriteOptions]:
    """The records of a real store and how they were written."""
    return list(records_of(str(cases.path(request.param)))), options_of(request.param)


Store = tuple[list[tuple[Message, bytes]], WriteOptions]


def test_every_record_as_stored(store: Store) -> None:
    """Properties as bytes give the record back, whatever it is."""
    records, options = store
    for record, data in records:
        stored = NewMessage(
            topic=record.topic, body=record.body, properties=record.properties_bytes,
            queue_id=record.queue_id,
            flag=record.flag, sys_flag=record.sys_flag, born_timestamp=record.born_timestamp,
            born_host=record.born_host, store_timestamp=record.store_timestamp, store_host=record.store_host,
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )  # fmt: skip
        made = prepare(stored, options, NOW_MS, batch_topic=bool(record.sys_flag & INNER_BATCH))
        assert made.transaction_type == record.transaction_type
        assert made.store_timestamp == record.store_timestamp
        assert bytes_of(made, record) == data


def is_plain(record: Message, options: WriteOptions) -> bool:
    """Whether the record came from a producer and was stored under its own topic."""
    names = properties.decode(record.properties_bytes)
    if (
        record.topic.startswith((RETRY_PREFIX, "RMQ_SYS_", "rmq_sys_", SCHEDULE_TOPIC))
        or record.transaction_type
    ):
        return False
    if is_item(record, options) or record.sys_flag & INNER_BATCH or "REAL_TOPIC" in names:
        return False
    return "UNIQ_KEY" in names and "CLUSTER" in names


def test_plain_messages_as_sent(store: Store) -> None:
    """What the producer sent becomes the broker's bytes: the order of properties is right."""
    records, options = store
    plain = [(record, data) for record, data in records if is_plain(record, options)]
    assert len(plain) > len(records) // 2
    for record, data in plain:
        found = client_view(record)
        by_fields = sent(record, found)
        # Names that share a bucket stay in the order in which the client put them. With many of
        # them, some do, and a producer may put KEYS behind its own ones.
        assert bytes_of(prepare(by_fields, options, NOW_MS), record) == data or len(found) > 60
        by_properties = replace(by_fields, tags=None, keys=(), wait=True, uniq_key=None, properties=found)
        assert bytes_of(prepare(by_properties, options, NOW_MS), record) == data


def test_delayed_messages_as_sent(store: Store) -> None:
    """A delayed message is found under the schedule topic, its properties in order."""
    records, options = store
    count = 0
    for record, data in records:
        found = client_view(record)
        if record.topic != SCHEDULE_TOPIC or found["REAL_TOPIC"].startswith(RETRY_PREFIX):
            continue
        topic, queue_id, level = found.pop("REAL_TOPIC"), int(found.pop("REAL_QID")), int(found.pop("DELAY"))
        new = replace(sent(record, found), topic=topic, queue_id=queue_id, delay_level=level)
        made = prepare(new, options, NOW_MS)
        assert (made.topic, made.queue_id) == (SCHEDULE_TOPIC, level - 1)
        assert bytes_of(made, record) == data
        count += 1
    assert count


def groups(
    records: list[tuple[Message, bytes]], options: WriteOptions
) -> Iterator[list[tuple[Message, bytes]]]:
    """The batches of a store: items that were stored at once."""
    group: list[tuple[Message, bytes]] = []
    for record, data in records:
        if not is_item(record, options):
            continue
        last = group[-1][0] if group else None
        if last is None or (record.physical_offset, record.born_timestamp) != (
            last.physical_offset + last.total_size, last.born_timestamp
        ):  # fmt: skip
            if group:
                yield group
            group = []
        group.append((record, data))
    if group:
        yield group


def item_names(options: WriteOptions, *, keyed: bool) -> int:
    """How many properties of the batch end the string of each of its items."""
    if not options.profile.appends_batch_properties:
        return 0
    return len(batch_map(NewMessage("T"), options, "")) + (keyed and not options.profile.batch_uniq_key)


def test_batch_items_as_sent(store: Store) -> None:
    """Each item becomes the broker's record; before 5.4 with what belongs to the whole batch."""
    records, options = store
    count = 0
    for group in groups(records, options):
        news, batch_key, written = [], "", options
        for record, _ in group:
            pairs = [
                pair
                for pair in properties.pairs(record.properties_bytes)
                if pair[0] != message.PROPERTY_CRC_NAME
            ]
            keyed = [name for name, _ in pairs].count("UNIQ_KEY") == 2
            own = pairs[: len(pairs) - item_names(options, keyed=keyed)]
            batch_key = dict(pairs)["UNIQ_KEY"] if keyed else ""
            # One store has a batch with a key that a 4.9 client would not have given it.
            written = replace(options, profile=replace(options.profile, batch_uniq_key=keyed))
            news.append(sent(record, dict(own)))
        if any("" in dict(new.properties).values() for new in news):  # type: ignore[arg-type]
            continue  # a client can send that, rmqtool refuses it: readers drop it
        items = [
            batch.item(new.body, item_properties(new, written, str(new.uniq_key)), flag=new.flag)
            for new in news
        ]
        shared = batch_map(check_batch(news), written, batch_key)
        made = [prepare(new, written, NOW_MS) for new in batch_records(news, items, shared, written)]
        found = [bytes_of(one, record) for one, (record, _) in zip(made, group, strict=True)]
        assert found == [data for _, data in group]
        count += 1
    assert count


@pytest.mark.parametrize("name", ["ok_533_clean", "ok_540_clean"])
def test_inner_batches_as_sent(name: str, cases: Library) -> None:
    """A batch for a BatchCQ topic is one record, whose properties hold its first queue offset."""
    count = 0
    for record, data in records_of(str(cases.path(name))):
        if not record.sys_flag & INNER_BATCH:
            continue
        options = options_of(name)
        found = client_view(record)
        items = list(batch.decode_items(record.body))
        first = NewMessage(
            record.topic, queue_id=record.queue_id, wait=found["WAIT"] == "true",
            born_timestamp=record.born_timestamp, born_host=record.born_host, store_host=record.store_host,
        )  # fmt: skip
        whole = inner_batch(first, items, batch_map(first, options, found["UNIQ_KEY"]), options)
        made = prepare(whole, options, NOW_MS, batch_topic=True)
        assert made.count == len(items)
        assert bytes_of(made, record) == data
        count += 1
    assert count
