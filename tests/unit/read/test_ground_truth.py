"""What rmqtool reads from real stores is what the Java library read from them, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import batch, body, checkpoint, index, message, message_id, properties
from rmqtool.log import events
from rmqtool.log import python_scan as reference
from rmqtool.read.store import Store
from rmqtool.storage.source import open_source
from tests.support.stores import (
    VERSIONS,
    Bench,
    Case,
    Library,
    case,
    real_case,
    real_cases,
    variant_id,
    variants,
)
from tests.support.sweep import sample
from tests.support.trees import tree_digest, tree_rows

pytestmark = pytest.mark.sweep

REAL = real_cases()
HASH_DIGITS = 32  # the fixtures keep this many


def digest(data: bytes) -> str:
    """The hash of `data` as the fixtures keep it."""
    return sha256(data).hexdigest()[:HASH_DIGITS]


def log_files(store: Path) -> list[Path]:
    """The commit log files, oldest first."""
    return sorted((store / "commitlog").iterdir())


def is_record(fact: dict[str, Any]) -> bool:
    """Whether the fact is a record, not a blank or the end of the log."""
    return "physicalOffset" in fact


def java_host(text: str) -> str:
    """A host as Java prints it, in the short form of rmqtool."""
    address, _, port = text.rpartition(":")
    return f"[{ip_address(address[1:-1]).compressed}]:{port}" if address.startswith("[") else text


def fact_of(record: message.Message, raw: bytes, physical_offset: int) -> dict[str, Any]:
    """What the Java library would say about a record, put together with rmqtool's formats."""
    plain = body.decompress(record.body, record.sys_flag)
    stored = properties.decode(record.properties_bytes)
    fact = {
        "physicalOffset": physical_offset,
        "storedPhysicalOffset": record.physical_offset,
        "storeSize": record.total_size,
        "magic": f"{record.magic & 0xFFFFFFFF:08x}",
        "version": record.version,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": message_id.host_text(record.born_host),
        "storeHost": message_id.host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "storedBodyLength": record.body_length,
        "bodyIsNull": record.body_length == 0,
        "bodyLength": len(plain),
        "bodySha256": digest(plain),
        "properties": stored,
        "msgId": message_id.offset_message_id(record.store_host, physical_offset),
        "recordSha256": digest(raw),
    }
    if record.sys_flag & message.INNER_BATCH:
        first = int(stored[properties.INNER_BASE])
        fact["inner"] = [
            {
                "queueOffset": first + number,
                "flag": item.flag,
                "bodySha256": digest(item.body),
                "bodyLength": len(item.body),
                "properties": properties.decode(item.properties_bytes),
            }
            for number, item in enumerate(batch.decode_items(plain))
        ]
    return fact


def expected(fact: dict[str, Any]) -> dict[str, Any]:
    """Java's fact with its hosts in rmqtool's spelling."""
    return fact | {name: java_host(fact[name]) for name in ("bornHost", "storeHost")}


def raw_records(store: Path, this: Case) -> list[tuple[dict[str, Any], bytes]]:
    """(fact, stored bytes) of every record."""
    files = {int(path.name): path.read_bytes() for path in log_files(store)}
    size = this.settings["mappedFileSizeCommitLog"]
    rows = []
    for fact in filter(is_record, this.facts()):
        start, position = divmod(fact["physicalOffset"], size)
        data = files[start * size]
        rows.append((fact, data[position : position + fact["storeSize"]]))
    return rows


@pytest.fixture(scope="module")
def name(request: pytest.FixtureRequest) -> str:
    """A real store; as it is of the module, all tests of one store follow each other, and share its facts."""
    return str(request.param)


def test_there_are_22_real_stores() -> None:
    assert len(REAL) == 22
    assert {case(name).version for name in REAL} == set(VERSIONS)


@pytest.mark.parametrize("name", sample(REAL, 3), indirect=True)
def test_unpacked_fixture_is_the_store_that_the_broker_left(name: str, cases: Library) -> None:
    """Names, sizes, times to the nanosecond and contents are those of the ground truth."""
    assert tree_digest(cases.path(name)) == case(name).tree


@pytest.mark.parametrize("name", sample(REAL, 3), indirect=True)
def test_every_record_has_the_fields_that_java_decoded(name: str, cases: Library) -> None:
    """All fields, properties, body hash after decompression, offset id, inner batch messages."""
    for fact, raw in raw_records(cases.path(name), case(name)):
        assert fact_of(message.decode(raw), raw, fact["physicalOffset"]) == expected(fact)


@pytest.mark.parametrize("name", sample(REAL, 3), indirect=True)
def test_every_record_encodes_to_the_bytes_it_was_decoded_from(name: str, cases: Library) -> None:
    """Record, hosts, batch bodies, CRC and property CRC: byte for byte."""
    for fact, raw in raw_records(cases.path(name), case(name)):
        record = message.decode(raw)
        assert message.encode(record) == raw, fact["physicalOffset"]
        assert message_id.host_bytes(message_id.host_text(record.born_host)) == record.born_host
        if record.body:
            assert message.masked_crc(record.body) == record.body_crc
        if record.sys_flag & message.INNER_BATCH:
            plain = body.decompress(record.body, record.sys_flag)
            assert batch.encode_items(batch.decode_items(plain)) == plain
        if "propcrc" in name:
            assert properties.property_crc_ok(raw) is True
            assert properties.seal_property_crc(raw[:-20] + bytes(20)) == raw


def walk_file(path: Path) -> Iterator[events.LogEvent]:
    """The plain-Python walk over one commit log file."""
    with closing(open_source(path)) as source:
        yield from reference.walk_reference(source, file_from_offset=int(path.name))


@pytest.mark.parametrize("name", sample(REAL, 3), indirect=True)
def test_walk_meets_the_records_blanks_and_ends_that_java_met(name: str, cases: Library) -> None:
    """Every record, blank (with its size) and end of the log; nothing bad anywhere."""
    met: list[tuple[str, int, int]] = []
    for path in log_files(cases.path(name)):
        for event in walk_file(path):
            offset = event.physical_offset
            match event:
                case events.StoredMessage():
                    assert event.status == 0
                    met.append(("record", offset, event.message.total_size))
                case events.Blank():
                    met.append(("blank", offset, event.size))
                case events.TrailingZeros():
                    met.append(("end", offset, 0))
                case _:
                    pytest.fail(f"{path.name}: {event}")
    assert met == [kind_offset_size(fact) for fact in case(name).facts()]


def kind_offset_size(fact: dict[str, Any]) -> tuple[str, int, int]:
    """("record" | "blank" | "end", physical offset, size) of a fact."""
    if is_record(fact):
        return "record", fact["physicalOffset"], fact["storeSize"]
    return ("blank", fact["blank"], fact["size"]) if "blank" in fact else ("end", fact["end"], 0)


@pytest.mark.parametrize("name", sample(REAL, 5), indirect=True)
def test_store_gives_the_messages_that_java_decoded(name: str, cases: Library) -> None:
    """Forwards and backwards, by physical offset, by message id; the log's end; the version."""
    with Store.open(cases.path(name)) as store:
        forwards = [(found.physical_offset, found.message, found.status) for found in store.messages()]
        facts = [fact for fact in case(name).facts() if is_record(fact)]
        assert [offset for offset, _, _ in forwards] == [fact["physicalOffset"] for fact in facts]
        assert not any(status for _, _, status in forwards)
        backwards = [found.physical_offset for found in store.messages(reverse=True)]
        assert backwards == [offset for offset, _, _ in reversed(forwards)]
        for (offset, record, _), fact in list(zip(forwards, facts, strict=True))[::50]:
            by_offset, by_id = store.get(offset), store.get_by_id(fact["msgId"])
            assert by_offset is not None and by_id is not None
            assert by_offset.message == by_id.message == record
        assert store.end_offset() == facts[-1]["physicalOffset"] + facts[-1]["storeSize"]
        assert store.profile.name == case(name).profile


@pytest.mark.parametrize("name", REAL, indirect=True)
def test_queues_have_the_offsets_that_java_answered(name: str, cases: Library) -> None:
    """Minimum and maximum; Java dispatched what lagging queues did not have before it answered."""
    behind = dispatched_later(case(name))
    with Store.open(cases.path(name)) as store:
        seen = []
        for row in case(name).queues:
            topic, queue_id = row["topic"], row["queueId"]
            last = max(store.max_offset(topic, queue_id), behind.get((topic, queue_id), 0))
            seen.append(row | {"minOffset": store.min_offset(topic, queue_id), "maxOffset": last})
        assert seen == case(name).queues
        assert set(store.queues) <= {(row["topic"], row["queueId"]) for row in seen}


def dispatched_later(this: Case) -> dict[tuple[str, int], int]:
    """The maximum of every queue by the log, for stores whose queues lag; nothing for the others."""
    ends: dict[tuple[str, int], int] = {}
    if this.state == "killed-burst":
        for fact in filter(is_record, this.facts()):
            if fact["sysFlag"] & message.TRANSACTION_MASK in (0, message.TRANSACTION_COMMIT):
                ends[fact["topic"], fact["queueId"]] = fact["queueOffset"] + 1
    return ends


@pytest.mark.parametrize("name", sample(REAL, 3), indirect=True)
def test_queue_units_lead_to_their_records(name: str, cases: Library) -> None:
    """By topic, queue and queue offset: the record whose fields say so."""
    facts = {fact["physicalOffset"]: fact for fact in case(name).facts() if is_record(fact)}
    with Store.open(cases.path(name)) as store:
        for topic, queue_id in store.queues:
            first = store.min_offset(topic, queue_id)
            for queue_offset in range(first, store.max_offset(topic, queue_id), 37):
                found = store.get_by_queue_offset(topic, queue_id, queue_offset)
                if found is None:  # 4.x keeps the minimum of a queue whose records are all expired
                    assert (case(name).profile, case(name).state) == ("4.9", "expired")
                    continue
                fact = facts[found.physical_offset]
                count = len(fact.get("inner", ())) or 1
                assert (fact["topic"], fact["queueId"]) == (topic, queue_id)
                assert fact["queueOffset"] <= queue_offset < fact["queueOffset"] + count


CHECKPOINT_NAMES = ("physic", "logics", "index", "masterFlushedOffset", "confirmPhyOffset")
INDEX_NAMES = ("beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset",
               "hashSlotCount", "indexCount")  # fmt: skip


def checkpoint_values(store: Path) -> dict[str, int] | None:
    """The checkpoint as the fixtures spell it; a short file counts as filled up with zeros."""
    path = store / "checkpoint"
    if not path.exists():
        return None
    values = checkpoint.decode(path.read_bytes().ljust(40, b"\0"))
    return dict(zip(CHECKPOINT_NAMES, astuple(values), strict=True))


def index_headers(store: Path) -> list[dict[str, Any]]:
    """Name, size and header of every index file as the fixtures spell it."""
    rows = []
    for path in sorted((store / "index").glob("*")):
        row = {"file": path.name, "size": path.stat().st_size}
        data = path.read_bytes()
        header = index.decode_header(data) if len(data) >= index.HEADER_SIZE else ()
        rows.append(row | dict(zip(INDEX_NAMES, header, strict=bool(header))))
    return rows


@pytest.mark.parametrize("version", VERSIONS)
def test_variants_are_the_damaged_stores_that_java_opened(
    version: str, cases: Library, tmp_path: Path
) -> None:
    """The edits give the checkpoint and index headers that were read before Java opened the store."""
    benches = {
        state: Bench(cases.path(real_case(version, state).name), tmp_path / state)
        for state in {variant["base"] for variant in variants(version)}
    }
    for variant in variants(version):
        name = variant_id(variant)
        with benches[variant["base"]].damaged(variant["edits"]) as store:
            assert (store / "abort").exists() == variant["abortFile"], name
            assert checkpoint_values(store) == variant["checkpointBefore"], name
            assert index_headers(store) == variant["indexBefore"], name
    for bench in benches.values():
        assert tree_rows(bench.root) == tree_rows(bench.base)
